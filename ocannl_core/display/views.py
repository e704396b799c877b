"""One entry to everything that prints a thing: the view is picked by the type of the thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.display.explain import explain
from ocannl_core.display.pictures.curves import curves
from ocannl_core.display.pictures.expression_graph import graph
from ocannl_core.display.pictures.heatmaps import heatmap
from ocannl_core.display.summary import summary
from ocannl_core.display.tables import table
from ocannl_core.display.trees import tree
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.computations.precision_report import precision_report
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.train.training_loop import Run

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context

VIEWS: dict[str, Callable[..., Any]] = {
    "explain": explain,
    "tree": tree,
    "table": table,
    "summary": summary,
    "graph": graph,
    "curves": curves,
    "heatmap": heatmap,
    "precision_report": precision_report,
}
"""The functions behind `show`, by name; each is a function of `oc`, too."""

_READS_CELLS = frozenset({"tree", "table"})


@dataclass(frozen=True, slots=True)
class Shown:
    """A view of a thing, and the names of its other views."""

    view: str
    """The name of the view."""
    value: Any
    """The result of the function of that name, such as a `Graph`."""
    others: tuple[str, ...]
    """Calls that show more."""

    def __str__(self) -> str:
        text = f"{self.value}".rstrip("\n")
        return f"{text}\n\nMore: {', '.join(self.others)}" if self.others else text

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Return the view in the formats that notebooks show."""
        bundle = {"text/plain": str(self)}
        for mime, name in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            method = getattr(self.value, name, None)
            if method is not None and (text := method()) is not None:
                bundle[mime] = text
        return bundle


@dataclass(frozen=True, slots=True)
class NamedViews:
    """The same view of several tensors."""

    views: Mapping[str, Any]
    """The view of each, by name."""

    def __str__(self) -> str:
        return "\n\n".join(f"{name}:\n{view}".rstrip("\n") for name, view in self.views.items())

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        """Return the views one below the other, where all of them are HTML."""
        parts = [(name, getattr(view, "_repr_html_", None)) for name, view in self.views.items()]
        if any(method is None for _, method in parts):
            return None
        return "\n".join(f"<h4>{escape(name)}</h4>\n{method()}" for name, method in parts if method)


def show(
    subject: object, ctx: Context | None = None, *, view: str | None = None, **options: Any
) -> Shown:
    """Return a printable view of a thing, which names the other views of it.

    A tensor is shown as its expression, and as a table of its cells where a context is given. A
    routine is explained, code has its number formats listed, arrays are heat maps, losses and other
    series are curves. Several tensors, by name or in a list, are shown one after the other.

    Args:
        subject: A tensor, several by name, a routine, a computation, an array, a series of
            numbers, several series by name, or the result of `oc.train.fit`.
        ctx: The context that holds the cells of a tensor.
        view: Another view: explain, tree, table, summary, graph, curves, heatmap, precision_report.
        options: Arguments of the function of that name.
    """
    tensors = _tensors_of(subject)
    views = _views_of(
        next(iter(tensors.values())) if tensors else subject, has_cells=ctx is not None
    )
    if not views:
        raise UsageError.at_caller(
            "oc.show shows tensors, routines, computations, arrays and series of numbers.",
            found=f"{type(subject).__name__}",
            fix="oc.show(x), oc.show(step), oc.show(losses)",
        )
    chosen = views[0] if view is None else view
    if tensors and chosen == "table" and ctx is None:
        raise UsageError.at_caller(
            "A table shows the cells of a tensor, which live in a context.",
            found="view='table' without a context",
            fix="oc.show(x, ctx, view='table')",
        )
    if chosen not in views:
        raise UsageError.at_caller(
            f"A {type(subject).__name__} has the views {', '.join(views)}.",
            found=f"view={view!r}",
            fix=f"oc.show(..., view={views[0]!r})",
        )
    context = [ctx] if chosen in _READS_CELLS and ctx is not None else []
    others = tuple(f"oc.show(..., view={each!r})" for each in views if each != chosen)
    if tensors and not isinstance(subject, Tensor):
        each_view = {n: VIEWS[chosen](x, *context, **options) for n, x in tensors.items()}
        return Shown(chosen, NamedViews(each_view), others)
    return Shown(chosen, VIEWS[chosen](subject, *context, **options), others)


def _tensors_of(subject: object) -> dict[str, Tensor]:
    """Return the tensors that a subject is or consists of, by name; none of other things."""
    match subject:
        case Tensor():
            found: dict[str, object] = {subject.node.name: subject}
        case Mapping():
            found = {str(name): each for name, each in subject.items()}
        case list() | tuple():
            found = {
                f"{at} {each.node.name}" if isinstance(each, Tensor) else str(at): each
                for at, each in enumerate(subject)
            }
        case _:
            return {}
    tensors = {name: each for name, each in found.items() if isinstance(each, Tensor)}
    return tensors if len(tensors) == len(found) else {}


def _views_of(subject: object, *, has_cells: bool) -> tuple[str, ...]:
    """Return the names of the views of a thing, the usual one first."""
    match subject:
        case Tensor():
            first = ("table", "tree") if has_cells else ("tree",)
            return (*first, "summary", "explain", "graph", "precision_report")
        case Routine():
            return ("explain", "graph")
        case Computation():
            return ("precision_report",)
        case np.ndarray():
            return ("curves", "heatmap") if subject.ndim == 1 else ("heatmap",)
        case Mapping() | Sequence() if not isinstance(subject, str | bytes):
            return ("curves",)
    return ("curves",) if isinstance(subject, Run) else ()
