"""The parameters that training moves: backpropagation writes their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ocannl_core.base.errors import UsageError
from ocannl_core.base.graphs import reachable
from ocannl_core.tensor.computations.computation import require_tensor
from ocannl_core.tensor.graph.definitions import Applied, CarriedValue, ResultOf, ResultOfLoop
from ocannl_core.tensor.graph.parameter_set import Parameters
from ocannl_core.tensor.graph.tensor import Tensor


def trainable_params(loss: Tensor) -> Parameters:
    """Return the parameters whose gradient backpropagation from a tensor writes, by name.

    Other parameters of the tensor are frozen: it reads them through `oc.stop_gradient` or another
    operation without a gradient, or they are made with `requires_grad=False`. They have values and
    are saved; optimizers leave them as they are.
    """
    require_tensor(loss, "oc.train.trainable_params")
    reached = reachable([loss] if loss.requires_grad else [], _gradient_targets)
    return Parameters(p for p in loss.params if p in reached)


def trained_by_name(loss: Tensor, params: Iterable[Tensor] | None, call: str) -> dict[str, Tensor]:
    """Return the given parameters, or all that gradients flow into, by name in `loss.params`."""
    require_tensor(loss, call)
    if params is None:
        chosen = set(trainable_params(loss))
        if not chosen:
            raise UsageError(
                "Updates are for parameters that gradients flow into.",
                found=f"{loss!r} depends on none",
                where=str(loss.origin),
                fix='make trainable tensors with oc.param("w"); oc.stop_gradient freezes those '
                "behind it",
            )
    else:
        chosen = set(params.values() if isinstance(params, Parameters) else params)
        foreign = [p for p in chosen if p not in loss.params or p.grad is None]
        if foreign or not chosen:
            raise UsageError.at_caller(
                "params= are parameters of the loss that have a gradient.",
                found=", ".join(map(repr, foreign)) or "none",
                fix=f"{call}(loss, params=[...]) with some of "
                + ", ".join(name for name, p in loss.params.items() if p.grad is not None),
            )
    return {name: p for name, p in loss.params.items() if p in chosen}


def _gradient_targets(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors to whose gradients a tensor's gradient is passed on."""
    yield from (each for each in _differentiated(tensor) if each.requires_grad)


def _differentiated(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors by which the code of a gradient differentiates a tensor."""
    match tensor.definition:
        case Applied(operation=operation, operands=operands):
            if operation.gradient is None:
                return
            written = {
                each.position for each in operation.gradient.slots if each.role == "gradient"
            }
            yield from (o for i, o in enumerate(operands, 1) if i in written)
        case ResultOf(application):
            yield from (term.input for term in application.backward())
        case ResultOfLoop(loop):
            values = (*loop.after, *loop.items)
            yield from (v for r, v in zip(loop.results, values, strict=True) if r is tensor)
        case CarriedValue(loop):
            places = [place for place, each in enumerate(loop.before) if each is tensor]
            for place in places:
                yield loop.initial[place]
                yield loop.after[place]
        case _:
            return
