"""Terms of gradients as tensors.

What an operation's gradient code assigns to the gradient of one operand becomes the application of
a derived operation (`derived_operations`), with plain intermediate slots substituted; user-written
operations and loops state their terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.assignments.nodes import Constant, RangeOverOffsets
from ocannl_core.ir.numbers.dtypes import DType, int32, int64
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.translation.logic import Adjoint, Logic, Pointwise, Several
from ocannl_core.tensor.derivatives.derived_operations import (
    added,
    negated,
    padding_of,
    search_operation,
    slot_behind,
    substitute,
    term_operation,
)
from ocannl_core.tensor.graph import slots
from ocannl_core.tensor.graph.definitions import Applied, Filled, ResultOf
from ocannl_core.tensor.graph.precision import Precision
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operands import check_recorded_here, note_accesses
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import add

Values = Callable[[Tensor], Tensor]
"""The tensors whose cells gradients read, for the tensors that are differentiated."""


class GradientTerm(NamedTuple):
    """A stated term of the gradient of an input, a tensor or a number."""

    input: Tensor
    value: Tensor | float
    common: Shape
    """The shape that both are broadcast to: the term is summed over axes that the input lacks."""

    def as_tensor(self, origin: Origin) -> Tensor:
        """Return the term as a tensor of the input's shape."""
        if isinstance(self.value, float):
            return filled_like(self.input, self.value)
        (summand,) = slots.operand_variables(1)
        operation = term_operation(f"{origin.operation}_grad", summand, (summand,), None)
        shapes = (self.common, self.input.terms, self.value.terms)
        logic = Adjoint(Pointwise(), shapes, 1, (2,))
        return derived_tensor(operation, (self.value,), logic, self.input, origin)


def stated_terms(
    definition: Applied, gradient: Tensor, values: Iterable[Tensor]
) -> tuple[GradientTerm, ...]:
    """Return the terms that an operation states as expressions."""
    operation = definition.operation
    assert operation.gradient_expression is not None
    stated = operation.gradient_expression(*values, gradient)
    return tuple(
        GradientTerm(operand, term, term.terms)
        for operand, term in zip(definition.operands, stated, strict=True)
        if term is not None
    )


def terms_in_memory(tensor: Tensor) -> tuple[GradientTerm, ...]:
    """Return the terms of gradients in memory that are expressions, which all backpropagations
    through a tensor share.
    """
    match tensor.definition:
        case ResultOf(application):
            return application.backward()
        case Applied(Operation(gradient=None, gradient_expression=Callable())) as definition:
            gradient = tensor.grad
            if gradient is None:
                return ()
            known = tensor.applications()
            if _terms_key not in known:
                with tensor.session.outside_of_code(tensor.loop):
                    stated = stated_terms(definition, gradient, definition.operands)
                found = tuple(each for each in stated if each.input.grad is not None)
                tensor.session.undo_log.put(known, _terms_key, found)
            terms: tuple[GradientTerm, ...] = known[_terms_key]
            return terms
        case _:
            return ()


class OperationTerms:
    """The gradient code of a tensor's operation, as tensors."""

    def __init__(
        self, tensor: Tensor, definition: Applied, gradient: Tensor, values: Values
    ) -> None:
        operation = definition.operation
        assert operation.gradient is not None
        self._tensor = tensor
        self._definition = definition
        self._gradient = gradient
        self._values = values
        self._code: slots.Code = operation.gradient
        self._padding = padding_of(operation)
        self._has_parts = isinstance(definition.logic, Several)
        self._origin = Origin(f"gradient of {tensor.origin.operation}", tensor.origin.location)
        self._written: dict[slots.Variable, slots.Formula] = {}
        """The values of intermediate slots at the current assignment."""
        self._sums: dict[slots.Variable, Tensor] = {}
        """The tensors behind variables that stand for sums in intermediate slots."""

    def terms(self, position: int) -> Iterator[Tensor]:
        """Yield the terms of the gradient of one operand."""
        target = slots.Variable("gradient", position)
        together: list[slots.Formula] = []
        self._written.clear()
        for each in self._code.assignments:
            if each.target.role == "intermediate":
                self._write(each)
            elif each.target == target:
                value = self._value(each)
                if self._has_parts:
                    yield self._term(target, value, each.logic)
                else:
                    together.append(value)
        if together:
            yield self._term(target, added(together))

    def _value(self, assignment: slots.SlotAssignment) -> slots.Formula:
        """Return the value that an assignment sets or adds."""
        combine, target = assignment.combine, assignment.target
        if combine not in (BinaryOp.SECOND, BinaryOp.ADD, BinaryOp.SUB):
            raise UsageError(
                "oc.gradients differentiates sums: the gradient function of an operation assigns, "
                "or accumulates with += and -=.",
                found=f"{combine.value.name} into {target.name or 'a gradient'} in the gradient of "
                f"{self._definition.operation.name}",
                where=str(self._tensor.origin),
                fix="compute that part in an operation of its own, whose result is an operand here",
            )
        value = substitute(assignment.value, self._written)
        return negated(value) if combine is BinaryOp.SUB else value

    def _write(self, assignment: slots.SlotAssignment) -> None:
        """Note the value of an intermediate slot after an assignment.

        A plain assignment is substituted into its readers: it has one value for each cell, which
        they read through the same index map. A sum over cells becomes a tensor.
        """
        target, value = assignment.target, self._value(assignment)
        is_sum = assignment.combine is not BinaryOp.SECOND
        if is_sum or self._has_parts:
            term = replace(target, occurrence=len(self._sums) + 1)
            self._sums[term] = self._term(target, value, assignment.logic)
            value = term
        before = self._written.get(target)
        if is_sum and not assignment.reset and before is not None:
            if self._has_parts:  # each value is read along axes of its own
                value = self._sum_of_two(target, before, value)
            else:
                value = added((before, value))
        self._written[target] = value

    def _sum_of_two(
        self, target: slots.Variable, one: slots.Formula, other: slots.Formula
    ) -> slots.Formula:
        assert isinstance(one, slots.Variable)
        assert isinstance(other, slots.Variable)
        terms, model = (self._sums[one], self._sums[other]), self._tensor_at(target.position)
        total = replace(target, occurrence=len(self._sums) + 1)
        self._sums[total] = derived_tensor(add, terms, Pointwise(), model, self._origin)
        return total

    def _term(
        self, target: slots.Variable, value: slots.Formula, stated: Logic | None = None
    ) -> Tensor:
        """Return the sum of a value over the cells that an assignment adds to each cell."""
        logic = self._definition.logic
        occurrences = list(slots.variables_in(value)) if self._has_parts else []
        if self._has_parts:
            value = slots.with_occurrences(value)
        variables = [v for v in dict.fromkeys(slots.variables_in(value)) if v != slots.POSITION]
        positions = self._definition.operation.positions
        every = slots.operand_variables(len(self._definition.operands))
        variables += every[len(every) - positions :]
        operands = tuple(map(self._tensor_of, occurrences or variables))
        model = self._tensor_at(target.position)
        if isinstance(logic, Several):
            shapes = (model.terms, *(each.terms for each in operands))
            adjoint = Adjoint(stated or Pointwise(), shapes, 0, tuple(range(1, len(shapes))))
        else:
            adjoint = self._adjoint(target.position, tuple(v.position for v in variables))
        values: dict[slots.Variable, slots.Formula] = dict(
            zip(variables, slots.operand_variables(len(variables)), strict=True)
        )
        formula = substitute(value, values)
        if isinstance(formula, float):
            formula = slots.Application(UnaryOp.IDENTITY, (formula,))  # compares by bits
        operation = term_operation(
            f"{self._definition.operation.name}_grad",
            formula,
            tuple(slot_behind(self._definition.operation, each) for each in variables),
            self._padding,
            positions,
        )
        capture = self._definition.capture
        return derived_tensor(operation, operands, adjoint, model, self._origin, capture)

    def _adjoint(self, target: int, sources: tuple[int, ...]) -> Adjoint:
        """Return the operation's index maps with roles exchanged."""
        logic = self._definition.logic
        if isinstance(logic, Adjoint):
            roles = (logic.target, *logic.sources)
            return Adjoint(
                logic.logic, logic.shapes, roles[target], tuple(roles[each] for each in sources)
            )
        shapes = (self._tensor.terms, *(each.terms for each in self._definition.operands))
        return Adjoint(logic, shapes, target, sources)

    def _tensor_at(self, position: int) -> Tensor:
        return self._tensor if position == 0 else self._definition.operands[position - 1]

    def _tensor_of(self, variable: slots.Variable) -> Tensor:
        """Return the tensor that a slot of the gradient code stands for."""
        if variable.is_merge:
            raise UsageError(
                "oc.gradients differentiates functions of slots as they are.",
                found=f"{self._code.text(variable)} in the gradient function of an operation",
                fix="merge buffers are read by recorded code",
            )
        match variable.role:
            case "value":
                return self._values(self._tensor_at(variable.position))
            case "gradient" if variable.position == 0:
                return self._gradient
            case "intermediate" if variable in self._sums:
                return self._sums[variable]
            case "selection":
                return self._search()
            case _:
                raise UsageError(
                    "The gradient function of an operation reads g, values, and intermediate slots "
                    "that it has written.",
                    found=f"a read of {variable.name or f'g{variable.position}'} in the gradient "
                    f"of {self._definition.operation.name}",
                    where=str(self._tensor.origin),
                )

    def _search(self) -> Tensor:
        """Return the positions of the cells that a maximum or minimum selects."""
        tensor, definition = self._tensor, self._definition
        shared = tensor.applications() if tensor.session.recorder is None else {}
        if _search_key not in shared:
            own = definition.operation
            operation = search_operation(
                own.name, own.forward, len(definition.operands), own.positions
            )
            operands = tuple(map(self._values, (tensor, *definition.operands)))
            adjoint = self._adjoint(0, tuple(range(len(operands))))
            dtype = int64 if tensor.dtype.nbytes == int64.nbytes else int32
            found = derived_tensor(
                operation, operands, adjoint, tensor, self._origin, definition.capture, dtype
            )
            tensor.session.undo_log.put(shared, _search_key, found)
        positions: Tensor = shared[_search_key]
        return positions


_search_key, _terms_key = "search", "terms"
"""The keys of the positions of selected cells and of terms in memory, beside applications of
user-written operations.
"""


def derived_tensor(
    operation: Operation,
    operands: tuple[Tensor, ...],
    logic: Logic,
    model: Tensor,
    origin: Origin,
    capture: Mapping[str, DimRef] | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Return the result of an operation, with the shape of another tensor.

    No constraints are added: the shapes of the operands have the same terms as shapes that an
    earlier operation has related.

    Args:
        capture: Names of the logic's specification, and the references to their sizes.
        dtype: The number format; the format of `model` when not given.
    """
    session = model.session
    recorder = session.recorder
    check_recorded_here(operands, None if recorder is None else recorder.recording)
    can_flow = operation.has_gradient and dtype is None and recorder is None
    result = Tensor(
        session,
        Applied(operation, operands, logic, capture or {}, model if dtype is None else None),
        model.terms,
        Precision.stated(dtype or model.dtype),
        (operation.name,),
        origin,
        requires_grad=can_flow and any(operand.requires_grad for operand in operands),
    )
    for operand in operands:
        operand.note_use(origin)
    if dtype is None:
        model.note_use(origin)
        model.add_dependent(result)
    note_accesses(logic, result, operands, origin, capture)
    if recorder is not None:
        recorder.add_tensor(result, is_named=False)
    return result


def filled_like(
    tensor: Tensor, fill: float | Constant | RangeOverOffsets, dtype: DType | None = None
) -> Tensor:
    """Return a tensor with the shape of another one, of its number format unless stated."""
    source = Constant(fill) if isinstance(fill, float) else fill
    return Tensor(
        tensor.session,
        Filled(lambda: source),
        tensor.terms,
        Precision.stated(dtype or tensor.dtype),
        (f"{source.value:g}" if isinstance(source, Constant) else "offsets",),
        Origin("oc.gradients", caller_location()),
    )
