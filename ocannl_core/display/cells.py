"""Cells of the tensors to print: from the host, from a context, or recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.ir.assignments.traverse import static_indices
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.tensor.computations.computation import Computation, forward, gradient_update
from ocannl_core.tensor.graph.definitions import (
    Applied,
    Filled,
    Literal,
    ResultOf,
    ResultOfLoop,
    ancestors,
)
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context


def check_tensor(subject: object) -> Tensor:
    """Return an object to print, if it is a tensor."""
    if isinstance(subject, Tensor):
        return subject
    raise UsageError.at_caller(
        "Tensors are printed as tables and trees.",
        found=f"{type(subject).__name__}: {subject!r}",
        fix="oc.table(x, ctx), oc.tree(x, ctx): first the tensor, then its context",
    )


class CellReader:
    """Reader of the cells of tensors. It does not change the given context."""

    def __init__(
        self,
        ctx: Context | None,
        root: Tensor,
        *,
        recompute: bool,
        indices: Mapping[StaticIndex, int],
    ) -> None:
        """Prepare a reader.

        Args:
            recompute: True to compute it and its dependencies in a new context.
            indices: The values of the static indices in its code.
        """
        self._ctx = ctx
        self._copy: Context | None = None
        if recompute:
            if ctx is None:
                raise _needs_context(root)
            self._copy = _recompute(ctx, root, indices)

    def of(self, tensor: Tensor) -> Array:
        """Return the cells of a tensor.

        Raises:
            LinkError: if the context does not have them.
            UsageError: if there is no context and it is no literal.
        """
        if isinstance(tensor.definition, Literal) and tensor.shape.is_closed:
            literal = tensor.literal
            assert literal is not None
            return literal
        for ctx in (self._copy, self._ctx):
            if ctx is not None and (ctx is self._ctx or tensor in ctx):
                return ctx[tensor]
        raise _needs_context(tensor)

    def known(self, tensor: Tensor | None) -> Array | None:
        """Return the cells of a tensor, or None if they are not available.

        A tensor without a node is in no context; creating the node here would make its label final.
        """
        if tensor is None or not (tensor.has_node or isinstance(tensor.definition, Literal)):
            return None
        try:
            return self.of(tensor)
        except (LinkError, UsageError):
            return None


def _needs_context(tensor: Tensor) -> UsageError:
    return UsageError.at_caller(
        "The cells of a tensor are in a context.",
        found=f"{tensor!r}, and no context",
        fix="oc.table(x, ctx), where ctx is the context that computed it",
    )


def _recompute(ctx: Context, root: Tensor, indices: Mapping[StaticIndex, int]) -> Context:
    """Return a new context in which a tensor, its dependencies and their gradients have been
    computed from the values of another context.
    """
    copy = type(ctx)(ctx.target.backend, device=ctx.target.device, fallback=ctx.fallback)
    graph = ancestors([root])
    sizes: dict[StaticIndex, int] = {}
    for leaf in graph:
        if (
            not isinstance(leaf.definition, Applied | Filled | Literal | ResultOf | ResultOfLoop)
            and leaf in ctx
        ):
            cells = copy[leaf] = ctx[leaf]
            found = zip(leaf.shape.extents, cells.shape, strict=False)
            sizes.update((extent, size) for extent, size in found if extent is not None)
    with compile_aside(root.session):
        code = forward(root) if root.grad is None else gradient_update(root)
        _check_indices(code, indices)
        gradients = [each.grad for each in graph if each.grad is not None]
        mentioned = set(code.tensors().values())
        keep = [
            each
            for each in (*graph, *gradients)
            if each in mentioned and not isinstance(each.definition, Literal)
        ]
        routine = copy.compile(code, bindings=list(indices), keep=keep)
    known = {**{each: n for each, n in sizes.items() if each in routine.bindings}, **indices}
    routine(**{index.name: value for index, value in known.items()})
    return copy


@contextmanager
def compile_aside(session: Session) -> Iterator[None]:
    """Compile code apart from the program: recordings neither contain it nor depend on it."""
    recorder, consumed = session.recorder, session.consumed.copy()
    session.recorder = None
    try:
        yield
    finally:
        session.recorder, session.consumed = recorder, consumed


def _check_indices(code: Computation, indices: Mapping[StaticIndex, int]) -> None:
    read = static_indices(code.resolve())
    unbound = [
        each.name for each in read if each not in indices and not isinstance(each, StaticExtent)
    ]
    if unbound:
        raise UsageError.at_caller(
            "Computing a tensor again needs a value for every static index that its code reads.",
            found="without a value: " + ", ".join(unbound),
            fix=f"indices={{{unbound[0]}: 0, ...}}",
        )
