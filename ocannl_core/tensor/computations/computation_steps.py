"""Steps of recorded code, with open shapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.shape.translation.logic import Logic, Pointwise
from ocannl_core.tensor.graph.definitions import ResultOf, ancestors
from ocannl_core.tensor.graph.index_maps import IndexMaps
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor

Argument = Tensor | MergeBuffer | float


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """`target = target combine op(*args)`, with stated index maps, or with index maps derived from
    a logic once shapes are closed.
    """

    target: Tensor
    combine: BinaryOp
    reset: bool
    op: Op
    args: tuple[Argument, ...]
    logic: Logic | IndexMaps
    origin: Origin

    @staticmethod
    def whole(target: Tensor, value: Argument, origin: Origin | None = None) -> Assign:
        """Return the assignment of a value to all cells of a tensor."""
        copy, args = UnaryOp.IDENTITY, (value,)
        logic, origin = Pointwise(), origin or target.origin
        return Assign(target, BinaryOp.SECOND, False, copy, args, logic, origin)


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """The forward code of tensors, oldest first."""

    tensors: tuple[Tensor, ...]
    is_written_here: bool = False
    """True for expressions of recorded code, which are computed at this place; other tensors are
    computed unless they are up to date.
    """


@dataclass(frozen=True, slots=True, eq=False)
class ZeroGradients:
    """Set the gradients of tensors and of all their dependencies to zero."""

    roots: tuple[Tensor, ...]
    keeps_sums: bool = False
    """True to keep gradients of parameters and data with contributions of earlier losses, as long
    as no gradient has been read, and no parameter assigned, since.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Backpropagate:
    """Accumulate gradients from tensors, whose own are set, into all their dependencies."""

    roots: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateGradients:
    """Compute tensors, and the gradients of the sum of all their cells in their dependencies."""

    roots: tuple[Tensor, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """The expansion into steps."""
        counts = Counter(self.roots)
        losses = tuple(counts)
        seeds = [
            Assign.whole(loss.grad, float(count), loss.origin)
            for loss, count in counts.items()
            if loss.grad is not None
        ]
        return (
            Titled("forward", (Forward(tuple(ancestors(list(losses)))),)),
            Titled("zero gradients", (ZeroGradients(losses, keeps_sums=True),)),
            Titled("backpropagate", (*seeds, Backpropagate(losses))),
            *effects_of(losses),
        )


def effects_of(losses: tuple[Tensor, ...]) -> tuple[Step, ...]:
    """Return the steps that follow backpropagation from losses, once each."""
    found = dict.fromkeys(each for t in ancestors(list(losses)) for each in t.effects)
    steps = tuple(step for effect in found for step in effect.steps)
    return (Titled("statistics", steps),) if steps else ()


@dataclass(frozen=True, slots=True, eq=False)
class Titled:
    """Steps under a title."""

    title: str
    steps: tuple[Step, ...]


Code = Assign | Forward | ZeroGradients | Backpropagate | UpdateGradients
Step = Code | Titled


def without_titles(steps: Iterable[Step]) -> Iterator[Code]:
    """Yield the steps, and the steps inside of titled ones."""
    for step in steps:
        if isinstance(step, Titled):
            yield from without_titles(step.steps)
        else:
            yield step


def session_of(steps: Iterable[Step]) -> Session | None:
    """Return the session of some tensor of steps; None if there is none."""
    for step in without_titles(steps):
        match step:
            case (
                Assign(target=tensor)
                | Forward(tensors=(tensor, *_))
                | ZeroGradients(roots=(tensor, *_))
                | Backpropagate(roots=(tensor, *_))
                | UpdateGradients(roots=(tensor, *_))
            ):
                return tensor.session
            case _:
                continue
    return None


def expand_updates(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps with gradient updates expanded. Updates without an assignment in between, of
    losses that read no gradient, are merged: backpropagation runs once, from all their losses.
    """
    found: list[Step] = []
    for step in _merge_updates(steps):
        match step:
            case UpdateGradients():
                found += step.steps
            case Titled(title, inner):
                found.append(Titled(title, expand_updates(inner)))
            case _:
                found.append(step)
    return tuple(found)


def _merge_updates(steps: tuple[Step, ...]) -> list[Step]:
    found: list[Step] = []
    last: int | None = None
    """The position of the gradient update that the next one may be merged with."""
    for step in steps:
        match step:
            case UpdateGradients(losses):
                before = found[last] if last is not None else None
                if (
                    last is not None
                    and isinstance(before, UpdateGradients)
                    and not any(each.is_gradient for each in ancestors(list(losses)))
                ):
                    found[last] = UpdateGradients((*before.roots, *losses))
                    continue
                last = len(found)
            case Forward(tensors) if not any(map(depends_on_gradients, tensors)):
                pass
            case _:
                last = None
        found.append(step)
    return found


def changes_state(tensor: Tensor) -> bool:
    """Return True if computing a tensor changes another one."""
    definition = tensor.definition
    return isinstance(definition, ResultOf) and definition.application.changes_state


def depends_on_gradients(tensor: Tensor) -> bool:
    """Return True if computing a tensor reads a gradient, or changes another tensor."""
    return changes_state(tensor) or any(operand.is_gradient for operand in tensor.operands)


def computed_tensors(step: Step) -> Iterator[Tensor]:
    """Yield the tensors whose forward code a step contains."""
    for each in without_titles((step,)):
        match each:
            case Forward(tensors):
                yield from tensors
            case UpdateGradients(losses):
                yield from ancestors(list(losses))


def operand_tensors(step: Assign) -> list[Tensor]:
    """Return the tensors that an assignment reads."""
    return [
        arg.tensor if isinstance(arg, MergeBuffer) else arg
        for arg in step.args
        if isinstance(arg, Tensor | MergeBuffer)
    ]
