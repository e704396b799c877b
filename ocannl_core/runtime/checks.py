"""Checks before a routine runs or a tensor is read, and the remedies that errors name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.compile.stages import CompileOptions
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.runtime.store import BufferStore, NodeMemory, RunRecord

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


def description(node: TensorNode, tensor: Tensor | None) -> str:
    return tensor.describe() if tensor is not None else node.name


def check_code(computation: object, among: str = "") -> None:
    """Raise UsageError unless an object, perhaps an entry of an argument, is recorded code."""
    if not hasattr(computation, "resolve"):
        raise UsageError.at_caller(
            "`compile` takes code.",
            found=f"{type(computation).__name__}: {computation!r}"
            + (f", an entry of {among}" if among else ""),
            fix="compile oc.train.forward(x) to compute a tensor, oc.train.grad_update(loss) "
            "to compute gradients, or the result of a function decorated with @oc.cd",
        )


def checked_options(
    bindings: Sequence[StaticIndex],
    keep: Sequence[Tensor] | None,
    name: str | None = None,
    inline: Sequence[Tensor] = (),
) -> CompileOptions:
    """Return the arguments of `compile` beside the code, or raise UsageError."""
    for keyword, given in (("keep", keep), ("bindings", bindings), ("inline", inline)):
        if given is not None:
            _check_list(keyword, given)
    kept = None if keep is None else tuple(keep)
    return CompileOptions(tuple(bindings), kept, name, tuple(inline))


def _check_list(keyword: str, given: object) -> None:
    if not isinstance(given, Sequence):
        raise UsageError(
            f"{keyword}= takes a list.",
            found=repr(given),
            fix=f"{keyword}=[...]; a sum of code is code, ctx.compile(first + second)",
        )
    for entry in given:
        if keyword == "bindings":
            is_right = isinstance(entry, StaticIndex)
        else:
            is_right = isinstance(getattr(entry, "node", None), TensorNode)
        if not is_right:
            kind = "static indices" if keyword == "bindings" else "tensors"
            raise UsageError(
                f"{keyword}= is a list of {kind}.",
                found=repr(entry),
                fix="a tensor that needs no gradient has None as its .grad"
                if entry is None
                else f"{keyword}=[x] with the object x, not its name",
            )


def refuse_positional(given: Sequence[object], names: Sequence[str], routine: str) -> NoReturn:
    """Raise the UsageError for a call with positional arguments."""
    fixes = ["ctx[x] = array in front of the call writes the cells of a placeholder"]
    if names:
        fixes.insert(0, f"{routine}({', '.join(f'{name}=...' for name in names)})")
    raise UsageError(
        "A routine is called with the values of its static indices, as keywords; its data are in "
        "the context.",
        found=f"positional: {', '.join(type(each).__name__ for each in given)}",
        where=f"running {routine}",
        fix="\n".join(fixes),
    )


def check_values(needed: Sequence[NodeMemory], routine: str, store: BufferStore) -> None:
    """Raise LinkError unless every node that a routine reads before writing it has a value."""
    missing = [stored for stored in needed if not stored.has_value]
    if not missing:
        return
    fixes: dict[str, None] = {}  # a set that keeps its order
    for stored in missing:
        fixes[fix_for_missing_value(stored)] = None
    if scope := _scope_with_values(missing, store):
        fixes[
            f"another application of {scope} has values here; each call of a function with @oc.op "
            f"makes new parameters: model = {scope}() once, and model(x) for each application"
        ] = None
    raise LinkError(
        "A routine runs when every node that it reads has a value.",
        found="\n".join(
            f"{description(each.node, each.tensor)} has none"
            + (", but a value in another context" if store.has_value_anywhere(each.node) else "")
            for each in missing
        ),
        where=f"running {routine}",
        fix="\n".join(fixes),
    )


def _scope_with_values(missing: Sequence[NodeMemory], store: BufferStore) -> str:
    """Return the block of parameters without values that has values under the same names."""
    known = {_path(each) for each in store.memories() if each.has_value}
    for stored in missing:
        if (path := _path(stored)) is not None and path in known and stored.tensor is not None:
            return stored.tensor.scopes[0].name
    return ""


def _path(stored: NodeMemory) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Return the names and the sizes of a parameter of a block."""
    tensor = stored.tensor
    if tensor is None or not tensor.is_parameter or not tensor.scopes:
        return None
    return (*(scope.title for scope in tensor.scopes), tensor.label[0]), tuple(stored.info.dims)


def check_sizes(
    needed: Sequence[NodeMemory], sizes: Mapping[StaticExtent, int], routine: str
) -> None:
    """Raise UsageError if a routine would read more cells of a node than were written."""
    for stored in needed:
        written = stored.sizes()
        for extent in dict.fromkeys(stored.info.extents):
            if extent is None or sizes[extent] <= written.get(extent, extent.maximum):
                continue
            raise UsageError(
                "A routine reads cells that have a value.",
                found=f"{extent.name} = {sizes[extent]}, and "
                f"{description(stored.node, stored.tensor)} has {written[extent]} positions along "
                f"{extent}",
                where=f"running {routine}",
                fix=f"give {extent.name}={written[extent]}, or write more of it first",
            )


def check_gradients(carried: Sequence[NodeMemory], run: RunRecord) -> None:
    """Raise UsageError if gradients still hold values that an earlier run has passed on.

    Args:
        carried: Gradients that a routine adds to and passes on without setting them before.
    """
    found = [(stored, last) for stored in carried if (last := stored.passed_on_by()) is not None]
    if not found:
        return
    raise UsageError(
        "A gradient is passed on to operands once, when it is complete.",
        found="\n".join(
            f"{description(stored.node, stored.tensor)} has been passed on by {last.routine}"
            for stored, last in found
        ),
        where=f"running {run.routine}",
        fix="clear the gradients before each backpropagation, with loss.zero_grads() in its code; "
        "to sum over several, add p.grad to a declared tensor each time",
    )


def fix_for_missing_value(stored: NodeMemory) -> str:
    """Return the call that gives a node its first value."""
    tensor = stored.tensor
    if tensor is not None and tensor.is_statistic:
        return (
            "ctx.init_params(loss), with a tensor whose statistics they are, a training step, with "
            "oc.train.grad_update(loss), or a checkpoint"
        )
    if tensor is not None and tensor.is_parameter:
        return "ctx.init_params(loss), with the tensor whose parameters they are"
    if (tensor is not None and tensor.is_placeholder) or not stored.writers:
        return f"ctx[{stored.node.name}] = array"
    return f"run {' or '.join(stored.writers)} first: it computes {stored.node.name}"


def fix_for_unknown(tensor: Tensor) -> str:
    """Return the call that brings a tensor into a context."""
    name = tensor.node.name
    if tensor.is_placeholder:
        return f"ctx[{name}] = array"
    if tensor.is_parameter:
        return f"ctx.init_params({name})"
    if tensor.node.gradient_of is not None:
        return "step = ctx.compile(oc.train.grad_update(loss)), then step()"
    return f"compile and run code that computes it, such as ctx.compile(oc.train.forward({name}))()"
