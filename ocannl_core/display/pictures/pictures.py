"""The graph of a tensor's expression, or of a routine's kernels."""

from __future__ import annotations

from numbers import Integral

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import caller_location
from ocannl_core.display.pictures.expression_graph import expression_graph
from ocannl_core.display.pictures.graph import Graph
from ocannl_core.display.pictures.kernel_graph import kernel_graph
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.graph.tensor import Tensor


def graph(subject: Tensor | Routine, *, depth: int | None = None) -> Graph:
    """Return the graph of an expression, or of the kernels of a routine.

    Notebooks show it as a picture; `.svg()`, `.dot()` and `.mermaid()` are texts, and `.save(path)`
    writes one of them. Drawing an expression makes its shapes final, as compiling does; if it lacks
    the size of a parameter, it is drawn with what is known. No context is changed.

    Args:
        subject: A tensor, whose operations and operands are drawn with the blocks around them; or a
            routine, whose kernels are drawn with the memory between them.
        depth: Of an expression, the number of nested blocks whose operations are shown; 0 shows an
            outermost block as one node, None everything.

    Raises:
        UsageError: if the subject is neither, or the depth is no number of blocks.
    """
    if depth is not None and (
        not isinstance(depth, Integral) or isinstance(depth, bool) or depth < 0
    ):
        raise UsageError(
            "The depth of a graph is a number of nested blocks.",
            found=f"depth={depth!r}",
            where=str(caller_location() or ""),
            fix="depth=1, or depth=None for all operations",
        )
    match subject:
        case Tensor():
            return expression_graph(subject, depth)
        case Routine():
            return kernel_graph(subject.plan)
        case _:
            raise UsageError(
                "Graphs are drawn of tensors and of routines.",
                found=f"{type(subject).__name__}: {subject!r}",
                where=str(caller_location() or ""),
                fix="oc.graph(loss), or oc.graph(ctx.compile(...))",
            )
