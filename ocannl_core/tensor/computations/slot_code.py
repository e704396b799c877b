"""Assignments emitted by the code of an operation, from slots."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import prod
from typing import TYPE_CHECKING, NoReturn

from ocannl_core.base.errors import SpecError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Location, Origin, returns_of
from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Constant,
    Fetch,
    NodeOperand,
    Operand,
    RangeOverOffsets,
    SetVector,
)
from ocannl_core.ir.assignments.traverse import leaves, targets
from ocannl_core.ir.indexing import (
    ComputedIndex,
    ConcatIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    VarIndex,
    exchange_roles,
    variables,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, int32, int64, promote
from ocannl_core.ir.numbers.primitives import (
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    neutral,
    working_format,
)
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.einsum import Einsum
from ocannl_core.shape.translation.logic import Adjoint, Several
from ocannl_core.tensor.derivatives.derived_operations import (
    DerivedOperation,
    padding_of,
    position_search,
)
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.margins import Margins, has_margins, margins_of
from ocannl_core.tensor.graph.precision import result_dtype
from ocannl_core.tensor.graph.slots import (
    Role,
    Slot,
    SlotApplication,
    SlotValue,
    as_application,
    as_operand,
    call_code,
    extreme_of,
    part_of,
    role_of,
    value_variables,
    with_numbered_positions,
    with_slots,
)
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operation import Code

if TYPE_CHECKING:
    from ocannl_core.tensor.computations.resolve import AssignmentEmitter

_NO_POSITION = -1
"""The position of an intermediate result, which has axes of its own."""


class SlotCode:
    """The slots of one application of an operation, and the assignments of its code to them.

    Args:
        selection: The positions of the selected cells from an earlier search, or None.
    """

    def __init__(
        self, emitter: AssignmentEmitter, tensor: Tensor, selection: TensorNode | None = None
    ) -> None:
        assert isinstance(tensor.definition, Applied)
        self._emitter = emitter
        self._tensor = tensor
        self._definition = tensor.definition
        operands = tensor.definition.operands
        self._value_count = len(operands) - tensor.definition.operation.positions
        self._has_parts = isinstance(tensor.definition.logic, Several)
        # where each assignment has a logic of its own, these are the projections of the current one
        self._projections = self._base = Projections((), (), (), (), ())
        if not self._has_parts:
            self._projections, self._base = _projections_of(tensor)
            check_margins(self._projections, tensor, operands, tensor.origin)
        self._is_padded = has_margins(self._projections)
        self._beyond = self._margin_value() if any(self._is_padded) else None
        self._writable: set[TensorNode] = set()
        self._blank: set[TensorNode] = set()  # nodes that the code must write before it reads them
        self._gradients: set[TensorNode] = set()
        self._selection = selection
        self._ramp: Slot | None = None

    def _margin_value(self) -> float | None:
        """Return the number that windows over values read beyond an axis; None for the default."""
        combine = padding_of(self._definition.operation)
        return None if combine is None else neutral(combine)

    def forward(self) -> None:
        """Emit the computation of the result."""
        node = self._tensor.node
        start = len(self._emitter.body)
        self._blank.add(node)
        self._run(self._definition.operation.forward, {node})
        made = leaves(self._emitter.body[start:])
        if all(node not in targets(each) for each in made):
            self._refuse("it assigns nothing to v")

    def gradient(self, code: Code) -> None:
        """Emit the contributions of the result's gradient to the gradients of the operands."""
        gradients = [operand.grad for operand in self._definition.operands]
        self._gradients = {self._emitter.node_of(each) for each in gradients if each is not None}
        self._run(code, self._gradients)

    def _run(self, code: Code, writable: set[TensorNode]) -> None:
        """Call a defining function with the slots of its parameters."""
        self._writable |= writable
        returned = call_code(code, len(self._definition.operands), self._slot)
        if returned is not None:
            self._refuse("it returns something", returns_of(code))

    def _refuse(self, found: str, lines: tuple[Location, ...] = ()) -> NoReturn:
        raise UsageError(
            "The code of an operation returns nothing: the forward function assigns to v, the "
            "gradient function adds to g1, g2, g3; both may write intermediate slots.",
            found=f"in the code of {self._tensor.origin.operation}, {found}",
            where="\n".join(map(str, (*lines, self._tensor.origin))),
        )

    def _slot(self, name: str, position: int) -> Slot | SlotApplication:
        match role_of(name):
            case "selection":
                return self._select()
            case "position":
                return self._positions()
            case role:
                return self._slot_at(name, role, position)

    def _slot_at(self, name: str, role: Role, position: int) -> Slot:
        tensor = self._tensor_at(position)
        p = self._projections
        index, dims = (
            ((), tensor.shape.dims)
            if self._has_parts
            else (p.lhs, p.lhs_dims)
            if position == 0
            else (p.rhs[position - 1], p.rhs_dims[position - 1])
        )
        operand: Operand | None
        if role == "intermediate":
            operand = self._intermediate(name, tensor, dims)
        elif role == "value":
            is_padded = self._has_parts or (position > 0 and self._is_padded[position - 1])
            keeps_format = self._definition.operation.primitive is UnaryOp.WORD
            is_padded |= position > self._value_count
            operand = self._emitter.operand(tensor, is_stored=is_padded or keeps_format)
        else:
            operand = (
                None if tensor.grad is None else NodeOperand(self._emitter.node_of(tensor.grad))
            )
        beyond = self._beyond_at(position) if position > 0 else None
        return Slot(name, operand, tensor.dtype, index, dims, self, position, beyond)

    def _beyond_at(self, position: int) -> float | None:
        """Return the number in the margins of an operand whose windows leave an axis, or None."""
        if self._has_parts or not self._is_padded[position - 1]:
            return None
        operation = self._definition.operation
        is_gradient = isinstance(operation, DerivedOperation) and operation.is_gradient(position)
        return 0.0 if is_gradient else self._beyond

    def _tensor_at(self, position: int) -> Tensor:
        return self._tensor if position == 0 else self._definition.operands[position - 1]

    def _intermediate(self, name: str, tensor: Tensor, dims: tuple[int, ...]) -> NodeOperand:
        """Return a new node for an intermediate tensor with the axes of a slot."""
        if any(margins_of(self._projections, i) for i in (None, *range(len(self._is_padded)))):
            raise UsageError(
                "Intermediate slots have no margins for windows that leave an axis.",
                found=f"{name} in the code of {self._tensor.origin.operation}",
                where=str(self._tensor.origin),
            )
        node = TensorNode(self._tensor.id, (name, *self._tensor.label))
        self._emitter.nodes[node] = NodeInfo(tensor.dtype, dims)
        self._emitter.embedded.add(node)
        self._writable.add(node)
        self._blank.add(node)
        return NodeOperand(node)

    def accumulate(self, target: Slot, combine: BinaryOp, *, reset: bool, value: SlotValue) -> None:
        """Emit one assignment to a slot, unless it is the gradient of a tensor that needs none."""
        if target.operand is None:
            return
        if not isinstance(target.operand, NodeOperand):
            raise UsageError(
                "A constant cannot be assigned to.",
                found=target.name,
                where=str(self._tensor.origin),
            )
        node = target.operand.node
        if node not in self._writable:
            self._refuse(f"it writes {target.name}")
        target, value = self._align(target, value)
        if combine is BinaryOp.SECOND:
            self._refuse_reduction(target, value)
        self._check_order(node, combine, reset)
        if combine is BinaryOp.SECOND and isinstance(value, int | float):
            # also the cells that no operand is placed at
            self._blank.discard(node)
            number = Constant(float(value))
            self._emitter.body.append(Fetch(node, number, self._tensor.origin))
            return
        op, args = self._with_positions(target, *as_application(value))
        for arg in args:
            if isinstance(arg, Slot) and arg.operand is None:
                self._refuse(f"it reads {arg.name}, the gradient of an operand that has none")
        target, args = with_numbered_positions(target, args)
        values, beyond = self._with_one_margin_value(
            tuple(self._settle(arg, target.dtype) for arg in args)
        )
        settled = list(map(as_operand, values))
        used = {
            var
            for index in (target.index, *(i for _, i, _ in settled))
            for each in index
            for var in variables(each)
        }
        projections = Projections(
            self._domain(target.index, used if combine.value.drops_repeats else None),
            target.index,
            tuple(index for _, index, _ in settled),
            target.dims,
            tuple(dims for _, _, dims in settled),
        )
        operands = tuple(operand for operand, _, _ in settled)
        for each in operands:
            if isinstance(each, NodeOperand) and each.node in self._blank:
                self._refuse(f"it reads {self._name_of(each.node)} before it writes it")
        self._blank.discard(node)
        origin = self._tensor.origin
        self._emitter.body.append(
            Accumulate(node, combine, reset, op, operands, projections, origin, beyond)
        )

    def _with_one_margin_value(
        self, args: tuple[Slot | int | float, ...]
    ) -> tuple[tuple[Slot | int | float, ...], float | None]:
        """Return the operands of an assignment, and the number in the margins that it reads.

        Where they need different numbers, operands are stored in nodes without margins first.
        """
        found = [arg.beyond if isinstance(arg, Slot) else None for arg in args]
        beyond = next((each for each in found if each is not None), None)
        if beyond is None:
            return args, self._beyond
        return tuple(
            self._store(arg, (arg,), arg.dtype)
            if isinstance(arg, Slot) and each not in (None, beyond)
            else arg
            for arg, each in zip(args, found, strict=True)
        ), beyond

    def _with_positions(
        self, target: Slot, op: Op, args: tuple[SlotValue, ...]
    ) -> tuple[Op, tuple[SlotValue, ...]]:
        """Return a primitive and its arguments, with the operand that holds computed positions.

        v = v1  -->  v = first(v1, v2), where v1 is read at positions in v2
        """
        slots = [target, *(arg for arg in args if isinstance(arg, Slot))]
        holders = {i.operand for s in slots for i in s.index if isinstance(i, ComputedIndex)}
        missing = holders - {arg.position - 1 for arg in args if isinstance(arg, Slot)}
        if not missing:
            return op, args
        if op is not UnaryOp.IDENTITY or len(missing) > 1:
            self._refuse("it computes with cells at positions that it does not read")
        (number,) = missing
        return BinaryOp.FIRST, (*args, self._slot_at(f"v{number + 1}", "value", number + 1))

    def _align(self, target: Slot, value: SlotValue) -> tuple[Slot, SlotValue]:
        """Return the target and the value of an assignment, under the index maps of its own logic
        if it has one.
        """
        origin = self._tensor.origin
        if not self._has_parts and isinstance(value, SlotApplication) and value.logic is not None:
            raise UsageError(
                "The logic of an operation holds for all its assignments, or each states its own.",
                found=f"{value!r} with a logic of its own in the code of {origin.operation}, for "
                "which define_operation or its call states one",
                where=str(origin),
                fix="state it in one place: leave logic= out there, or here",
            )
        if not self._has_parts or target.position == _NO_POSITION:
            return target, value
        part = part_of(target, value)
        shapes = [self._tensor_at(position).shape for position in part.sources]
        found = project(part.logic, self._tensor_at(part.target).shape, shapes, origin)
        if any(margins_of(found, i) for i in (None, *range(len(shapes)))):
            raise UsageError(
                "Windows of an operation whose assignments have a logic each stay inside the axes.",
                found=f"{target.name} = {value!r} in the code of {origin.operation}",
                where=str(origin),
                fix="mark the window with `<`, or make it an operation of its own",
            )
        self._projections = found
        maps = iter(zip(found.rhs, found.rhs_dims, strict=True))

        def placed(each: SlotValue) -> SlotValue:
            if isinstance(each, SlotApplication):
                return SlotApplication(each.op, tuple(map(placed, each.args)))
            if isinstance(each, Slot):
                index, dims = next(maps)
                return replace(each, index=index, dims=dims)
            return each

        return replace(target, index=found.lhs, dims=found.lhs_dims), placed(value)

    def _check_order(self, node: TensorNode, combine: BinaryOp, reset: bool) -> None:
        """Refuse accumulation into a node without a value, and assignment to one with a value."""
        is_sum = combine in (BinaryOp.ADD, BinaryOp.SUB) and not reset
        if node in self._gradients and not is_sum:
            self._refuse("it writes a gradient by other means than += and -=")
        if node in self._blank and combine is not BinaryOp.SECOND and not reset:
            self._refuse(f"it accumulates into {self._name_of(node)} before it writes it")

    def _name_of(self, node: TensorNode) -> str:
        return "v" if node is self._tensor.node else node.label[0]

    def set_from_words(self, target: Slot, words: Slot) -> None:
        """Emit the assignment of runs of cells, one for each word."""
        assert isinstance(target.operand, NodeOperand), "results of operations are stored"
        if self._has_parts:
            self._refuse("random words become numbers, which is an operation with one logic")
        operand, index, dims = as_operand(words)
        domain = self._projections.domain
        projections = Projections(domain, target.index, (index,), target.dims, (dims,))
        origin = self._tensor.origin
        self._emitter.body.append(SetVector(target.operand.node, operand, projections, origin))

    def _refuse_reduction(self, target: Slot, value: SlotValue) -> None:
        """Refuse a plain assignment that would keep the last of several values of a cell."""
        extents = self._projections.extents
        reduced = value_variables(value) - value_variables(target)
        if any(isinstance(var, LoopVar) and extents.get(var, 1) > 1 for var in reduced):
            kind = SpecError if isinstance(self._definition.logic, Einsum) else UsageError
            raise kind(
                "An operation without an accumulation of its own cannot reduce axes.",
                found=f"{self._tensor.origin.operation} with a logic that drops axes",
                where=str(self._tensor.origin),
                fix="use oc.einsum(spec, ...), or assign it in recorded code: "
                "c[oc.neutral] += oc.mul(a, b, logic=...)",
            )

    def _domain(
        self, result: IndexMap, used: set[IndexVar] | None
    ) -> tuple[tuple[LoopVar, int], ...]:
        """Return the domain, the result's variables outermost, restricted to `used` if given."""
        extents = self._projections.extents
        first = [var for index in result for var in variables(index) if isinstance(var, LoopVar)]
        order = dict.fromkeys([*first, *extents])
        return tuple((var, extents[var]) for var in order if used is None or var in used)

    def _settle(self, value: SlotValue, target: DType) -> Slot | int | float:
        """Return a value as an operand of an assignment to a format; store a nested application in
        a node of its own first, in that format if it holds the operands.
        """
        if not isinstance(value, SlotApplication):
            return value
        args = tuple(self._settle(arg, target) for arg in value.args)
        default = self._tensor.session.default_dtype
        dtype: DType = value.dtype or result_dtype(
            value.op, _formats(value.op, args, self._tensor.dtype, default), self._tensor.dtype
        )
        if value.dtype is None:
            dtype = working_format(value.op, [dtype], (), target)
        return self._store(SlotApplication(value.op, args), args, dtype)

    def _store(self, value: SlotValue, args: tuple[Slot | int | float, ...], dtype: DType) -> Slot:
        """Return a new node that holds a value of settled arguments."""
        name = value.op.value.name if isinstance(value, SlotApplication) else "converted"
        varying = set().union(*(value_variables(arg) for arg in args))
        maps = [arg.index for arg in args if isinstance(arg, Slot)]
        axes = self._axes(maps, varying)
        slot = self._new(name, dtype, tuple(axes), tuple(axes.values()))
        self.accumulate(slot, BinaryOp.SECOND, reset=False, value=value)
        return slot

    def _new(
        self, name: str, dtype: DType, index: IndexMap, dims: tuple[int, ...], margins: Margins = ()
    ) -> Slot:
        """Return a slot for a new node that is addressed by an index map."""
        node = TensorNode(self._tensor.id, (name, *self._tensor.label))
        self._emitter.nodes[node] = NodeInfo(dtype, dims, margins)
        self._emitter.embedded.add(node)
        self._writable.add(node)
        return Slot(node.name, NodeOperand(node), dtype, index, dims, self, _NO_POSITION)

    def _axes(
        self, maps: Sequence[IndexMap], varying: AbstractSet[IndexVar]
    ) -> dict[VarIndex | ConcatIndex, int]:
        """Return one axis with its extent for each domain variable of a set.

        The variables of the parts of a concatenated axis have one axis together. Concatenated axes
        that share parts have an axis each: in `a^1^a => a^a`, every cell of the one meets two cells
        of the other.
        """
        extents = self._projections.extents
        concatenations = list(
            dict.fromkeys(each for index in maps for each in index if isinstance(each, ConcatIndex))
        )
        axes: dict[VarIndex | ConcatIndex, int] = {}
        for var, extent in self._projections.domain:
            wholes = [each for each in concatenations if var in each.variables]
            axes.update((each, each.length(extents)) for each in wholes)
            if var in varying and not wholes:
                axes[VarIndex(var)] = extent
        return axes

    def selection(self) -> TensorNode:
        """Emit the search for the cells that a maximum selects; return the node of positions."""
        result = self._slot_at("v", "value", 0)
        combine, value = self._term()
        position = self._positions()
        margins = margins_of(self._projections, None)
        first = self._new("first", position.dtype, result.index, result.dims, margins)
        searched = position_search(combine, result, value, position)
        self.accumulate(first, BinaryOp.MIN, reset=True, value=searched)
        assert isinstance(first.operand, NodeOperand)
        return first.operand.node

    def _select(self) -> SlotApplication:
        """Return the comparison of every position with the position of the selected cell."""
        node = self._selection or self.selection()
        position = self._positions()
        result = self._slot_at("v", "value", 0)
        first = replace(result, name="first", operand=NodeOperand(node), dtype=position.dtype)
        return SlotApplication(BinaryOp.EQ, (first, position))

    def _positions(self) -> Slot:
        """Return the positions on the reduced axes, in row-major order, as a ramp of its own."""
        if self._ramp is None:
            base = self._base
            # include axes along which the value is repeated: the gradient is a sum over them
            every = self._axes(base.rhs, base.extents.keys())
            axes = {i: n for i, n in every.items() if i not in base.lhs}
            count = prod(axes.values())
            is_wide = self._compared_format().nbytes == int64.nbytes or count >= 2**31
            dtype = int64 if is_wide else int32  # as wide as the compared values, for vectors
            position = self._new("position", dtype, tuple(axes), tuple(axes.values()))
            assert isinstance(position.operand, NodeOperand)
            origin = self._tensor.origin
            self._emitter.body.append(Fetch(position.operand.node, RangeOverOffsets(), origin))
            self._ramp = position
        return self._ramp

    def _compared_format(self) -> DType:
        """Return the number format of the compared values, or of the positions found in them."""
        operation = self._definition.operation
        at = operation.selection if isinstance(operation, DerivedOperation) else None
        return self._tensor.dtype if at is None else self._definition.operands[at].dtype

    def _term(self) -> tuple[BinaryOp, Slot]:
        """Return the accumulation of the forward function and its operand, in the number format of
        the result.
        """
        forward = self._definition.operation.forward
        extreme = extreme_of(forward, len(self._definition.operands))
        if extreme is None:
            self._refuse(
                "the slot `selected` stands for the selection of a maximum or minimum, and the "
                "forward function does not accumulate one into v"
            )
        combine, formal = extreme
        value = with_slots(
            formal, lambda slot: self._slot_at(slot.name, role_of(slot.name), slot.position)
        )
        return combine, self._settle_as(value, self._tensor.dtype)

    def _settle_as(self, value: SlotValue, dtype: DType) -> Slot:
        """Return a slot that holds a value after conversion to a number format."""
        if isinstance(value, Slot) and value.dtype is dtype:
            return value
        op, args = as_application(value)
        settled = tuple(self._settle(arg, dtype) for arg in args)
        return self._store(SlotApplication(op, settled), settled, dtype)


def _projections_of(tensor: Tensor) -> tuple[Projections, Projections]:
    """Return the projections of a tensor's operation, and of the one that it is derived from."""
    assert isinstance(tensor.definition, Applied)
    logic, origin = tensor.logic, tensor.origin
    if isinstance(logic, Adjoint):
        base = project(logic.logic, logic.shapes[0], logic.shapes[1:], origin)
        return exchange_roles(base, logic.target, logic.sources), base
    shapes = [operand.shape for operand in tensor.definition.operands]
    found = project(logic, tensor.shape, shapes, origin)
    return found, found


def check_margins(
    projections: Projections, result: Tensor, operands: Sequence[Tensor], origin: Origin
) -> None:
    """Raise ShapeError if an operation needs wider margins than its tensors have."""
    positions: list[tuple[int | None, Tensor]] = [(None, result), *enumerate(operands)]
    for position, tensor in positions:
        needed = margins_of(projections, position)
        if needed:
            tensor.layout.check(needed, tensor.describe(), origin)


def _formats(
    op: Op, args: tuple[Slot | int | float, ...], alone: DType, default: DType
) -> list[DType]:
    """Return one format per argument of a primitive. Numbers take the format of the other slots;
    fractions beside integers are of the default float.
    """
    others = args[1:] if op is TernaryOp.WHERE else args
    slots = [arg.dtype for arg in others if isinstance(arg, Slot)]
    beside = promote(*slots) if slots else alone

    def of_number(number: float) -> DType:
        return default if beside.holds_integers and number % 1 else beside

    return [arg.dtype if isinstance(arg, Slot) else of_number(arg) for arg in args]
