"""Steps of recorded code, with open shapes, and the elimination of copies in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import assert_never

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.shape.translation.logic import Logic, Pointwise
from ocannl_core.tensor.graph.definitions import Applied, ResultOf, ancestors
from ocannl_core.tensor.graph.index_maps import IndexMaps
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import MergeBuffer, Tensor

Argument = Tensor | MergeBuffer | float


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """`target = target combine op(*args)`, with stated index maps, or with index maps derived from
    a logic once shapes are closed.

    Attributes:
        formula: The tensor whose code computes the target in place of `op`; None for `op`.
    """

    target: Tensor
    combine: BinaryOp
    reset: bool
    op: Op
    args: tuple[Argument, ...]
    logic: Logic | IndexMaps
    origin: Origin
    formula: Tensor | None = None

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
        graph = ancestors(list(losses))
        return (
            Titled("forward", (Forward(tuple(graph)),)),
            Titled("zero gradients", (ZeroGradients(losses, keeps_sums=True),)),
            Titled("backpropagate", (*seeds, Backpropagate(losses))),
            *effects_of(losses, set(graph)),
        )


def effects_of(
    losses: tuple[Tensor, ...], computed: AbstractSet[Tensor] = frozenset()
) -> tuple[Step, ...]:
    """Return the steps that follow backpropagation from losses, once each, without the code of
    tensors that are computed before.
    """
    found = dict.fromkeys(each for t in ancestors(list(losses)) for each in t.effects)
    steps = tuple(
        Forward(tuple(t for t in step.tensors if t not in computed))
        if isinstance(step, Forward) and not step.is_written_here
        else step
        for effect in found
        for step in effect.steps
    )
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


def eliminate_copies(steps: tuple[Step, ...], temporaries: frozenset[Tensor]) -> tuple[Step, ...]:
    """Return the steps without copies: the assignment of a temporary computes it in place.

        tmp = a * b;  c += tmp   -->   c += a * b
        tmp = a @ b;  c[:] = tmp -->   c[neutral] += a * b, composed

    The tensor must be local to the computation, have no other use, have the format and the extents
    of the target, and be computed by one assignment. Its operands must not be written between its
    definition and the assignment, nor by the assignment before they are read. Shapes must be
    closed.
    """
    order = list(without_titles(steps))
    uses = _count_uses(order)
    places = {
        t: i for i, step in enumerate(order) if isinstance(step, Forward) for t in step.tensors
    }
    absorbed: set[Tensor] = set()
    replaced: dict[Assign, Assign] = {}
    for position, step in enumerate(order):
        if not isinstance(step, Assign) or len(step.args) != 1:
            continue
        (value,) = step.args
        if not isinstance(value, Tensor) or value not in temporaries or uses[value] != 1:
            continue
        fused = _substitute(step, value)
        if fused is None or value not in places:
            continue
        between = order[places[value] + 1 : position]
        if not any(_may_write(each, value.operands) for each in between):
            absorbed.add(value)
            replaced[step] = fused
    return tuple(_rebuild(steps, absorbed, replaced)) if absorbed else steps


def _count_uses(order: list[Code]) -> Counter[Tensor]:
    """Return the number of reads of each tensor."""
    uses: Counter[Tensor] = Counter()
    for step in order:
        match step:
            case Assign(args=args):
                uses.update(arg for arg in args if isinstance(arg, Tensor))
            case Forward(tensors):
                for tensor in dict.fromkeys(tensors):
                    uses.update(tensor.operands)
            case ZeroGradients(roots) | Backpropagate(roots) | UpdateGradients(roots):
                uses.update(ancestors(list(roots)))
            case _:
                assert_never(step)
    return uses


def _substitute(step: Assign, value: Tensor) -> Assign | None:
    """Return the assignment that computes the tensor instead of copying it, or None."""
    definition = value.definition
    if not isinstance(definition, Applied) or step.op is not UnaryOp.IDENTITY:
        return None
    if not isinstance(step.logic, Pointwise):
        return None
    primitive, needed = definition.operation.primitive, definition.operation.combine
    is_plain = step.combine is BinaryOp.SECOND and not step.reset
    if not (needed is None or is_plain or needed is step.combine):
        return None
    if value.dtype is not step.target.dtype or value.shape != step.target.shape:
        return None
    if primitive is None:
        is_formula = is_plain and isinstance(definition.logic, Pointwise)
        is_formula = is_formula and definition.operation.forward.formula is not None
        args = definition.operands
        return replace(step, args=args, formula=value) if is_formula else None
    reads_target = any(operand is step.target for operand in definition.operands)
    rearranges = needed is not None or step.reset or not isinstance(definition.logic, Pointwise)
    if reads_target and rearranges:
        return None
    fused = replace(step, op=primitive, args=definition.operands, logic=value.logic)
    if needed is not None and is_plain:
        fused = replace(fused, combine=needed, reset=True)
    return fused


def _may_write(step: Code, tensors: tuple[Tensor, ...]) -> bool:
    match step:
        case Assign(target=target):
            return any(target is tensor for tensor in tensors)
        case Forward(made):
            return any(each is tensor for each in made for tensor in tensors)
        case ZeroGradients() | Backpropagate() | UpdateGradients():
            return True
        case _:
            assert_never(step)


def _rebuild(
    steps: tuple[Step, ...], absorbed: set[Tensor], replaced: dict[Assign, Assign]
) -> Iterator[Step]:
    for step in steps:
        match step:
            case Assign():
                yield replaced.get(step, step)
            case Forward(tensors):
                if kept := tuple(tensor for tensor in tensors if tensor not in absorbed):
                    yield replace(step, tensors=kept)
            case Titled(title, inner):
                yield Titled(title, tuple(_rebuild(inner, absorbed, replaced)))
            case _:
                yield step
