"""Gradients of loops as expressions: the gradient of a loop is a loop in the opposite direction.

Its steps compute the values of the steps of the loop again, from the carry that the loop keeps,
and gradients of their operations:

    ys, last = scan(step, init, xs)
    -->
    carries, ys, last = scan(step, init, xs)        # also the carry that each step receives

    def gradient(d, sums):                          # d: the gradient of the carry after the step
        h, y = step(carry[t], xs[t])
        dcarry, dx, dw = gradients of h and y, weighted with d and dy[t]
        return (dcarry, sums + dw), dx

    dxs, (dinit, dw) = scan(gradient, (dlast, 0), reversed)

So it is differentiated like any other loop. Backpropagation has a code of its own for the same
loop, `computations/loop_code.py`: it emits assignments over closed shapes, which add to gradients
in place, and chooses the kept values by their sizes. Here shapes may be open, and sums are carried
from step to step. The facts that both read are those of `Loop`: its kept values, and the result at
which gradients pass through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.shape.language.constraints import equal_shapes
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.derivatives.gradient_terms import (
    GradientTerm,
    Values,
    derived_tensor,
    filled_like,
)
from ocannl_core.tensor.graph import definitions
from ocannl_core.tensor.graph.precision import Precision
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import subscript
from ocannl_core.tensor.operations.literals import number
from ocannl_core.tensor.operations.scan import run_steps, stacked_values, traced
from ocannl_core.tensor.primitives.operands import note_accesses
from ocannl_core.tensor.primitives.pointwise_operations import add

StepGradients = Callable[
    [Mapping[Tensor, Sequence[Tensor]], Sequence[Tensor], Values, AbstractSet[Tensor]],
    Mapping[Tensor, Tensor],
]
"""A function of the results of a step, with the terms of their gradients, of variables, of the
tensors that hold values, and of tensors from outside of the step, which pass no gradient on; it
returns the gradients of variables.
"""


class LoopGradient:
    """The loop that computes gradients of wanted inputs of a loop, given those of results."""

    def __init__(
        self,
        loop: definitions.Loop,
        given: Mapping[Tensor, Tensor],
        wanted: Sequence[Tensor],
        step_gradients: StepGradients,
    ) -> None:
        self._loop = loop
        self._given = given
        self._wanted = set(wanted)
        self._step_gradients = step_gradients
        self._carried = _carries_that_depend(loop, self._wanted)
        self._over = [k for k, each in enumerate(loop.over) if each in self._wanted]
        entries = set(loop.entries)
        read = {operand for t in loop.body if t not in entries for operand in t.operands}
        read.update((*loop.after, *loop.items))
        self._shared = [each for each in wanted if each in read]
        results = zip(loop.items, loop.stacked, strict=True)
        self._weighted = [(item, given[stacked]) for item, stacked in results if stacked in given]
        self._reached: set[Tensor] = set()
        """The inputs that a step passes a gradient to."""

    def terms(self) -> list[GradientTerm]:
        """Return the terms of the inputs' gradients."""
        loop = self._loop
        cotangents = [
            self._given[each] if each in self._given else filled_like(each, 0.0)
            for each in (loop.final[k] for k in self._carried)
        ]
        sums = [filled_like(each, 0.0) for each in self._shared]
        stacked, (starts, totals) = run_steps(
            self._step,
            (cotangents, sums),
            (list(loop.over), [weight for _, weight in self._weighted]),
            loop.length,
            is_reversed=not loop.is_reversed,
            keep=loop.keep,
            has_layers=False,
            name=f"{loop.name}_grad",
        )
        found = [
            GradientTerm(loop.initial[k], start, loop.final[k].terms)
            for k, start in zip(self._carried, starts, strict=True)
            if loop.initial[k] in self._wanted
        ]
        over = [loop.over[k] for k in self._over if loop.over[k] in self._reached]
        pairs = [*zip(over, stacked, strict=True), *zip(self._shared, totals, strict=True)]
        found += [GradientTerm(each, t, each.terms) for each, t in pairs if each in self._reached]
        return found

    def _step(self, carry: Any, entries: Any) -> Any:
        """Return the carry and the values of a step of the gradient."""
        loop = self._loop
        (cotangents, sums), (own, weights) = carry, entries
        copy = StepCopy(loop, own)
        ys: dict[Tensor, list[Tensor]] = {}
        results = [loop.after[k] for k in self._carried]
        results += [item for item, _ in self._weighted]
        for result, term in zip(results, (*cotangents, *weights), strict=True):
            if result.dtype.is_float:
                ys.setdefault(copy.of(result), []).append(term)
        before = [copy.of(loop.before[k]) for k in self._carried]
        read = {loop.over[k]: own[k] for k in self._over}
        variables = [*before, *read.values(), *self._shared]
        # an input may be computed from another one, outside of the step
        leaves = copy.received.union(self._shared)
        found = self._step_gradients(ys, variables, copy.value, leaves)
        passed = [found.get(each, 0.0) for each in before]
        items = [found[entry] for entry in read.values() if entry in found]
        totals = []
        for each, total in zip(self._shared, sums, strict=True):
            if each in found:
                total = derived_tensor(add, (total, found[each]), Pointwise(), each, loop.origin)
            totals.append(total)
        self._reached = {each for each in self._shared if each in found}
        self._reached.update(over for over, entry in read.items() if entry in found)
        copy.drop_unread([each for each in (*passed, *items, *totals) if isinstance(each, Tensor)])
        return (passed, totals), items


def _carries_that_depend(loop: definitions.Loop, wanted: set[Tensor]) -> list[int]:
    """Return the positions of the carries that depend on inputs."""
    found = set(wanted)
    found.update(e for e, over in zip(loop.entries, loop.over, strict=True) if over in wanted)
    size = -1
    while size != len(found):
        size = len(found)
        for initial, before, after in zip(loop.initial, loop.before, loop.after, strict=True):
            if initial in found or after in found:
                found.add(before)
        found.update(each for each in loop.body if not found.isdisjoint(each.operands))
    return [k for k, each in enumerate(loop.before) if each in found and each.dtype.is_float]


class StepCopy:
    """The tensors of a step of a loop, copied into the step of another loop that is being traced.

    The carry that the step receives, and values as `keep` of the loop says, are read from memory:
    they become results of the loop.
    """

    def __init__(self, loop: definitions.Loop, entries: Sequence[Tensor]) -> None:
        self._loop = loop
        self._session = loop.results[0].session
        self._around: definitions.Loop = self._session.loop
        self._originals: dict[Tensor, Tensor] = {}
        self._values: dict[Tensor, Tensor] = {}
        self._kept: dict[Tensor, tuple[Tensor, Tensor]] = {}
        """The stacks and their entries, by the tensors of the step."""
        self._known_stacks = set(loop.stacked)
        self._kept_values = frozenset(loop.kept_values)
        self._recomputed = set(loop.body) - {*loop.entries, *loop.positions, *self._kept_values}
        self._copies: dict[Tensor, Tensor] = {}
        for entry, own in zip(loop.entries, entries, strict=True):
            self._relate(own, entry)
            self._copies[entry] = own
        for before in loop.before:
            self._copies[before] = self._entry_of_stack(before)
        self.received = frozenset(self._copies.values())
        """The entries and the carry."""
        self._copies |= _positions(loop, self._around)
        for tensor in loop.body:
            self._copy(tensor)
        self._originals = {copy: tensor for tensor, copy in self._copies.items()}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor of the step; return a tensor from outside itself."""
        return self._copies.get(tensor, tensor)

    def value(self, copy: Tensor) -> Tensor:
        """Return the tensor that holds the value of a copy; kept values are read from memory."""
        tensor = self._originals.get(copy)
        return copy if tensor is None else self._value_of(tensor)

    def _value_of(self, tensor: Tensor) -> Tensor:
        """Return the value of a tensor of the step: an entry of kept values, or an operation on
        such values. A copy already holds the value, unless something that it is computed from is
        kept.
        """
        needed, pending = {tensor}, [tensor]
        while pending:
            each = pending.pop()
            if each not in self._values and each in self._recomputed:
                operands = each.operands if isinstance(each.definition, definitions.Applied) else ()
                pending += (operand for operand in operands if operand not in needed)
                needed.update(operands)
        for each in sorted(needed, key=lambda each: each.id):
            if each not in self._values:
                self._values[each] = self._compute(each)
        return self._values[tensor]

    def _compute(self, tensor: Tensor) -> Tensor:
        """Return the value of a tensor whose operands have theirs."""
        if tensor in self._kept_values:
            return self._entry_of_stack(tensor)
        copy, definition = self.of(tensor), tensor.definition
        if tensor not in self._recomputed or not isinstance(definition, definitions.Applied):
            return copy
        operands = tuple(self._values[each] for each in definition.operands)
        if all(
            one is self.of(each) for one, each in zip(operands, definition.operands, strict=True)
        ):
            return copy
        return self._apply(tensor, definition, operands)

    def _entry_of_stack(self, tensor: Tensor) -> Tensor:
        """Return the entry, for a step of the other loop, of the values of all steps."""
        if tensor not in self._kept:
            around = self._around
            stack = stacked_values(self._loop, tensor)
            entry = subscript(stack, around.index)
            self._relate(entry, tensor)
            around.over, around.entries = (*around.over, stack), (*around.entries, entry)
            self._kept[tensor] = stack, entry
        return self._kept[tensor][1]

    def drop_unread(self, results: Sequence[Tensor]) -> None:
        """Keep no values that results of the other loop's step do not depend on."""
        read, around, loop = set(definitions.ancestors(list(results))), self._around, self._loop
        for stack, entry in self._kept.values():
            if entry in read:
                continue
            pairs = zip(around.over, around.entries, strict=True)
            left = [(one, each) for one, each in pairs if each is not entry]
            around.over, around.entries = tuple(o for o, _ in left), tuple(e for _, e in left)
            if stack not in self._known_stacks:
                items = zip(loop.items, loop.stacked, strict=True)
                still = [(item, each) for item, each in items if each is not stack]
                loop.items, loop.stacked = tuple(i for i, _ in still), tuple(s for _, s in still)

    def _relate(self, copy: Tensor, tensor: Tensor) -> None:
        """Add the constraint that a copy has the shape of the tensor."""
        self._session.environment.constrain(
            equal_shapes(copy.terms, tensor.terms, self._loop.origin)
        )

    def _copy(self, tensor: Tensor) -> None:
        """Copy a tensor of the step, whose operands are copied."""
        if tensor in self._copies:
            return
        match tensor.definition:
            case definitions.Applied(operands=operands) as definition:
                self._copies[tensor] = self._apply(
                    tensor, definition, tuple(map(self.of, operands))
                )
            case definitions.ResultOf(application):
                again = application.copy(list(map(self.of, application.inputs)))
                self._copies |= zip(application.results, again.results, strict=True)
            case definitions.ResultOfLoop(inner):
                self._copy_loop(inner)
            case _:
                raise AssertionError(f"{tensor!r} is computed from no tensor of a step")

    def _apply(
        self, tensor: Tensor, definition: definitions.Applied, operands: tuple[Tensor, ...]
    ) -> Tensor:
        origin = tensor.origin
        made = self._new(tensor, replace(definition, operands=operands, like=None), operands)
        for operand in operands:
            operand.note_use(origin)
        note_accesses(definition.logic, made, operands, origin, definition.capture)
        return made

    def _new(self, tensor: Tensor, definition: Any, operands: Sequence[Tensor]) -> Tensor:
        recorder = self._session.recorder
        flows = recorder is None and tensor.requires_grad
        made = Tensor(
            self._session,
            definition,
            tensor.terms,
            Precision.stated(tensor.dtype),
            tensor.label,
            tensor.origin,
            requires_grad=flows and any(each.requires_grad for each in operands),
        )
        if recorder is not None:
            recorder.add_tensor(made, is_named=False)
        return made

    def _copy_loop(self, inner: definitions.Loop) -> None:
        made: definitions.Loop = definitions.Loop(
            inner.name,
            StaticIndex(inner.index.name, inner.index.extent),
            inner.is_reversed,
            inner.keep,
            self._session.loop,
            inner.origin,
            inner.length,
            inner.time,
        )
        made.over = tuple(map(self.of, inner.over))
        made.initial = tuple(map(self.of, inner.initial))
        with traced(made, self._session):
            for before, initial in zip(inner.before, made.initial, strict=True):
                self._copies[before] = self._new(before, definitions.CarriedValue(made), [before])
                self._copies[before].loop = made
                initial.note_use(inner.origin)
            for entry, over in zip(inner.entries, made.over, strict=True):
                self._copies[entry] = subscript(over, made.index)
                self._relate(self._copies[entry], entry)
            self._copies |= _positions(inner, made)
            for tensor in inner.body:
                self._copy(tensor)
        made.before = tuple(map(self.of, inner.before))
        made.entries = tuple(map(self.of, inner.entries))
        made.after, made.items = tuple(map(self.of, inner.after)), tuple(map(self.of, inner.items))
        made.body, made.inputs = tuple(map(self.of, inner.body)), tuple(map(self.of, inner.inputs))
        for result in inner.results:
            self._copies[result] = self._new(result, definitions.ResultOfLoop(made), made.inputs)
        made.final = tuple(map(self.of, inner.final))
        made.stacked = tuple(map(self.of, inner.stacked))


def _positions(loop: definitions.Loop, other: definitions.Loop) -> dict[Tensor, Tensor]:
    """Return position tensors for a step of another loop, by the position tensors of a loop."""
    found = {each: number(other.index, dtype=each.dtype) for each in loop.positions}
    other.positions.update(found.values())
    return found
