"""The cells of the tensors to print: from the host, from a context, or computed once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ocannl_core.assign.traverse import static_indices
from ocannl_core.errors import LinkError, UsageError
from ocannl_core.host_arrays import Array
from ocannl_core.indexing import StaticIndex
from ocannl_core.origin import caller_location
from ocannl_core.tensor.computation import Computation, forward, gradient_update
from ocannl_core.tensor.tensor import Applied, Filled, Literal, Tensor, ancestors

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context


def checked(subject: object) -> Tensor:
    """Returns what is to be printed, if it is a tensor."""
    if isinstance(subject, Tensor):
        return subject
    raise UsageError(
        "Tensors are printed as tables and trees.",
        found=f"{type(subject).__name__}: {subject!r}",
        where=str(caller_location() or ""),
        fix="oc.table(x, ctx), oc.tree(x, ctx): first the tensor, then its context",
    )


class Cells:
    """Reads the cells of tensors. Nothing in the given context changes."""

    def __init__(
        self,
        ctx: Context | None,
        tensors: Sequence[Tensor],
        *,
        recompute: bool = False,
        indices: Mapping[StaticIndex, int],
    ) -> None:
        """Prepares reading.

        Args:
            ctx: The context that stores them.
            tensors: Those for whose sake others are computed again.
            recompute: Computes them and what they are computed from, in a context of its own.
            indices: The values of the static indices in their code.
        """
        self._ctx = ctx
        self._copy: Context | None = None
        if recompute:
            if ctx is None:
                raise _needs_context(tensors[0])
            self._copy = _recomputed(ctx, tensors, indices)

    def of(self, tensor: Tensor) -> Array:
        """Returns the cells of a tensor.

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
        """Returns the cells of a tensor, or None where there are none.

        A tensor without a node is in no context; asking for the node would make its label final.
        """
        if tensor is None or not (tensor.has_node or isinstance(tensor.definition, Literal)):
            return None
        try:
            return self.of(tensor)
        except (LinkError, UsageError):
            return None


def _needs_context(tensor: Tensor) -> UsageError:
    return UsageError(
        "The cells of a tensor are in a context.",
        found=f"{tensor!r}, and no context",
        where=str(caller_location() or ""),
        fix="oc.table(x, ctx), where ctx is the context that computed it",
    )


def _recomputed(
    ctx: Context, tensors: Sequence[Tensor], indices: Mapping[StaticIndex, int]
) -> Context:
    """Returns a new context in which tensors, what they are computed from and their gradients have
    been computed from the values of another one.
    """
    copy = type(ctx)(ctx.target.backend, device=ctx.target.device)
    for tensor in tensors:
        session = tensor.session
        consumed = session.consumed.copy()
        graph = ancestors([tensor])
        for leaf in graph:
            if not isinstance(leaf.definition, Applied | Filled | Literal) and leaf in ctx:
                copy[leaf] = ctx[leaf]
        code = forward(tensor) if tensor.grad is None else gradient_update(tensor)
        _check_indices(code, indices)
        wanted = [each for each in graph if not isinstance(each.definition, Literal)]
        gradients = [each.grad for each in graph if each.grad is not None]
        mentioned = set(code.tensors().values())
        keep = [each for each in (*wanted, *gradients) if each in mentioned]
        routine = copy.compile(code, bindings=list(indices), keep=keep)
        session.consumed = consumed  # code recorded later must not rely on what was printed
        routine(**{index.name: value for index, value in indices.items()})
    return copy


def _check_indices(code: Computation, indices: Mapping[StaticIndex, int]) -> None:
    unbound = [each.name for each in static_indices(code.resolve()) if each not in indices]
    if unbound:
        raise UsageError(
            "Computing a tensor again needs a value for every static index that its code reads.",
            found="without a value: " + ", ".join(unbound),
            where=str(caller_location() or ""),
            fix=f"indices={{{unbound[0]}: 0, ...}}",
        )
