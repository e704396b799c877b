"""Assignments emitted by the code of an operation, from slots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, NoReturn

from ocannl_core.base.errors import SpecError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.identity import ById
from ocannl_core.base.origin import Origin
from ocannl_core.base.trampoline import Steps, run_trampoline
from ocannl_core.ir.assignments import nodes as assign
from ocannl_core.ir.indexing import (
    AffineIndex,
    AxisIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    StaticExtent,
    VarIndex,
    as_affine,
    exchange_roles,
    traversals,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, int32, int64, uint4x32
from ocannl_core.ir.numbers.primitives import (
    OF_OTHER_FORMATS,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    working_format,
)
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.einsum import Einsum
from ocannl_core.shape.translation.logic import Adjoint, NumbersOfWords, Several
from ocannl_core.tensor.computations.gradient_states import no_expression
from ocannl_core.tensor.computations.slot_values import (
    Argument,
    NestedValue,
    SlotAccess,
    as_formula,
    as_operand,
    formats_of,
    leaf_values,
    position_holders,
    variables_of,
    varying_variables,
)
from ocannl_core.tensor.derivatives.derived_operations import (
    DerivedOperation,
    position_search,
    rounded,
    value_beyond,
)
from ocannl_core.tensor.graph import slots
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.margins import Margins, has_margins, margins_of
from ocannl_core.tensor.graph.precision import result_dtype
from ocannl_core.tensor.graph.slots import RETURNS_NOTHING, Code, SlotAssignment
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.tensor.computations.resolve import AssignmentEmitter

_MOST_REPEATED = 8
"""The number of primitives of a part of a formula up to which each occurrence is computed by
itself, so that no memory holds the value. Formulas of second and third derivatives have so many
occurrences of large parts that the code would have no end.
"""
_OF_FORMULAS = frozenset((VarIndex, FixedIndex, AffineIndex))
"""The kinds of indices at which an assignment with nested applications reads and writes."""
_MOST_NESTED = 32
"""The depth of formulas in assignments, which are visited recursively."""
_SELECTED_TERM = slots.Variable("intermediate", 0, "term")
"""The cells that a maximum or minimum compares, stored in the number format of the result."""


class SlotCode:
    """The code of one application of an operation, emitted as assignments.

    A nested application that varies with all domain variables is a part of its assignment. Others
    are stored first, in a node with one axis for every domain variable that they vary with:
    `g2 -= g * (v / v2)` computes `v / v2` once per cell of `v`.

    Args:
        selection: The positions of the selected cells from an earlier search, or None.
        target: The tensor of the same extents and format that is assigned to in place of the
            application's own; None for that.
    """

    def __init__(
        self,
        emitter: AssignmentEmitter,
        tensor: Tensor,
        selection: TensorNode | None = None,
        target: Tensor | None = None,
    ) -> None:
        assert isinstance(tensor.definition, Applied)
        self._emitter = emitter
        self._tensor = tensor
        self._target = tensor if target is None else target
        self._definition = tensor.definition
        operands = tensor.definition.operands
        self._value_count = len(operands) - tensor.definition.operation.positions
        self._has_parts = isinstance(tensor.definition.logic, Several)
        # where each assignment has a logic of its own, these are the projections of the current one
        self._projections = self._base = Projections((), (), (), (), ())
        if not self._has_parts:
            self._projections, self._base = _projections_of(tensor)
            check_margins(self._projections, tensor, operands, tensor.origin)
        p = self._projections
        kinds = {type(index) for index_map in (p.lhs, *p.rhs) for index in index_map}
        self._has_formulas = not self._has_parts and kinds <= _OF_FORMULAS
        self._has_formulas &= not (p.margins or p.lhs_margins)
        self._is_padded = has_margins(self._projections)
        self._code = tensor.definition.operation.forward
        self._selection = selection
        self._accesses: dict[slots.Variable, SlotAccess] = {}
        self._stored: dict[tuple[ById, DType], SlotAccess] = {}
        """The nodes of large parts of the current assignment that occur again, by their identity
        and the format that they are read for.
        """
        self._repeated: AbstractSet[ById] = frozenset()

    def forward(self) -> None:
        """Emit the computation of the result."""
        self._emit_assignments()
        if not self._code.results:
            self._refuse("it assigns nothing to v")

    def gradient(self, code: Code) -> None:
        """Emit the contributions of the result's gradient to the gradients of the operands."""
        self._code = code
        self._emit_assignments()

    def _emit_assignments(self) -> None:
        for variable in self._code.slots:
            self._accesses[variable] = self._new_access(variable)
        code = self._code
        for assignment, violation in zip(code.assignments, code.violations, strict=True):
            target = self._access(assignment.target)
            if target.operand is None:  # the gradient of a tensor that needs none
                continue
            if violation is not None:
                self._refuse(violation)
            self._assign(assignment, target)

    def _refuse(self, found: str) -> NoReturn:
        raise UsageError(
            RETURNS_NOTHING,
            found=f"in the code of {self._tensor.origin.operation}, {found}",
            where=str(self._tensor.origin),
        )

    def _access(self, variable: slots.Variable) -> SlotAccess:
        """Return the access of a variable; a merge buffer is accessed like its tensor."""
        found = self._accesses.get(variable)
        if found is None:
            found = self._accesses[variable] = self._new_access(variable)
        return found

    def _new_access(self, variable: slots.Variable) -> SlotAccess:
        if variable.is_merge:
            base = self._access(replace(variable, is_merge=False))
            if not isinstance(base.operand, assign.NodeOperand):
                name = self._code.text(variable)
                raise UsageError("Constants have no merge buffer.", found=name)
            return replace(base, operand=assign.Merge(base.operand.node))
        match variable.role:
            case "selection":
                result = self._new_access(slots.RESULT)
                node = self._selection or self.selection()
                dtype = self._access(slots.POSITION).dtype
                beyond = self._beyond(variable)
                return replace(result, operand=assign.NodeOperand(node), dtype=dtype, beyond=beyond)
            case "position" if variable == slots.PLACE:
                return self._place()
            case "position":
                return self._accesses.get(slots.POSITION) or self._ramp()
            case "count":
                position = self._access(slots.POSITION)
                return SlotAccess(assign.Scalar(float(prod(position.dims))), position.dtype, (), ())
            case _:
                return self._access_of_tensor(variable)

    def _access_of_tensor(self, variable: slots.Variable) -> SlotAccess:
        position = variable.position
        tensor = self._tensor_at(position)
        p = self._projections
        index, dims = (
            ((), tensor.shape.dims)
            if self._has_parts
            else (p.lhs, p.lhs_dims)
            if position == 0
            else (p.rhs[position - 1], p.rhs_dims[position - 1])
        )
        operand: assign.Operand | None
        dtype = tensor.dtype
        if variable.role == "intermediate":
            dtype = float32 if dtype.is_narrow else dtype
            operand = self._intermediate(variable.name, dtype, dims)
        elif variable.role == "value":
            is_padded = self._has_parts or (position > 0 and self._is_padded[position - 1])
            keeps_format = self._definition.operation.primitive in OF_OTHER_FORMATS
            is_padded |= position > self._value_count
            written = tensor if position else self._target
            operand = self._emitter.operand(written, is_stored=is_padded or keeps_format)
        else:
            grad = tensor.grad
            operand = None if grad is None else assign.NodeOperand(self._emitter.node_of(grad))
        beyond = self._beyond(variable)
        return SlotAccess(operand, dtype, index, dims, position, beyond)

    def _beyond(self, variable: slots.Variable) -> float | None:
        """Return the number in the margins of a slot whose windows leave an axis, or None."""
        found, position = self._projections, variable.position
        if not (found.margins or found.lhs_margins):
            return None
        if not margins_of(found, position - 1 if position else None):
            return None
        return value_beyond(self._definition.operation, variable)

    def _tensor_at(self, position: int) -> Tensor:
        return self._tensor if position == 0 else self._definition.operands[position - 1]

    def _intermediate(self, name: str, dtype: DType, dims: tuple[int, ...]) -> assign.NodeOperand:
        """Return a new node for an intermediate tensor with the axes of a slot, in `float32` in
        place of narrower floats, as other parts of the code.
        """
        if any(margins_of(self._projections, i) for i in (None, *range(len(self._is_padded)))):
            raise UsageError(
                "Intermediate slots have no margins for windows that leave an axis.",
                found=f"{name} in the code of {self._tensor.origin.operation}",
                where=str(self._tensor.origin),
            )
        return assign.NodeOperand(self._new_node(name, dtype, dims))

    def _assign(self, assignment: SlotAssignment, target: SlotAccess) -> None:
        value, combine, origin = assignment.value, assignment.combine, self._tensor.origin
        if isinstance(self._definition.logic, NumbersOfWords):
            self._unpack(target, value)
            return
        if self._has_parts:
            target, value = self._align(assignment, target)
        elif assignment.logic is not None:
            self._refuse_logic(value)
        if combine is BinaryOp.SECOND:
            self._refuse_reduction(target, value)
            if isinstance(value, float):  # also the cells that no operand is placed at
                self._emitter.body.append(assign.Fetch(target.node, assign.Constant(value), origin))
                return
        op, args = _as_application(value)
        self._stored.clear()
        is_large = slots.applies_more_than(_MOST_REPEATED, value)
        self._repeated = slots.repeated_parts(value) if is_large else frozenset()
        settled = tuple([self._settle(arg, target.dtype) for arg in args])
        self._accumulate(target, combine, assignment.reset, op, settled)

    def _accumulate(
        self, target: SlotAccess, combine: BinaryOp, reset: bool, op: Op, args: tuple[Argument, ...]
    ) -> None:
        """Emit the accumulation of a primitive of values."""
        target, op, args = self._with_positions(target, op, args)
        applied: Op | assign.Formula = op
        if NestedValue in map(type, args):
            applied, args = as_formula(op, args, target.dtype)
        values, beyond = self._with_one_margin_value(args)
        settled = [as_operand(each) for each in values if not isinstance(each, NestedValue)]
        maps = [target.index, *[index for _, index, _ in settled]]
        projections = Projections(
            self._domain(target.index, variables_of(maps) if combine.value.drops_repeats else None),
            target.index,
            tuple(maps[1:]),
            target.dims,
            tuple([dims for _, _, dims in settled]),
        )
        if any(ConcatIndex in map(type, index_map) for index_map in maps):
            projections = _of_one_part(projections)
        operands = tuple([operand for operand, _, _ in settled])
        origin = self._tensor.origin
        self._emitter.body.append(
            assign.Accumulate(
                target.node, combine, reset, applied, operands, projections, origin, beyond
            )
        )

    def _with_one_margin_value(
        self, args: tuple[Argument, ...]
    ) -> tuple[tuple[Argument, ...], float | None]:
        """Return the operands of an assignment, and the number in the margins that it reads.

        Where they need different numbers, operands are stored in nodes without margins first.
        """
        found = [arg.beyond if isinstance(arg, SlotAccess) else None for arg in args]
        beyond = next((each for each in found if each is not None), None)
        if beyond is None:
            return args, None
        return tuple(
            self._store("converted", UnaryOp.IDENTITY, (arg,), arg.dtype)
            if isinstance(arg, SlotAccess) and each not in (None, beyond)
            else arg
            for arg, each in zip(args, found, strict=True)
        ), beyond

    def _with_positions(
        self, target: SlotAccess, op: Op, args: tuple[Argument, ...]
    ) -> tuple[SlotAccess, Op, tuple[Argument, ...]]:
        """Return an assignment whose computed positions refer to its arguments, with the operand
        that holds them. Cells at positions are copied before they are computed with, and values are
        stored before they are written at positions.

        v = v1         -->  v = first(v1, v2), where v1 is read at positions in v2
        v = v1 + v3    -->  taken = first(v1, v2); v = taken + v3
        v max= v1 + v3 -->  term = v1 + v3; v max= first(term, v2), where v is written at positions
        """
        holders = position_holders(target, *args)
        if not holders:
            return target, op, args
        numbers = {arg.position - 1: i for i, arg in enumerate(args) if isinstance(arg, SlotAccess)}
        missing = holders - numbers.keys()
        if missing and op is not UnaryOp.IDENTITY:
            dtype = self._format(op, args, target.dtype)
            args = tuple(
                self._store("taken", UnaryOp.IDENTITY, (arg,), arg.dtype)
                if isinstance(arg, SlotAccess) and position_holders(arg)
                else arg
                for arg in args
            )
            if not position_holders(target):
                return target, op, args
            op, args = UnaryOp.IDENTITY, (self._store("term", op, args, dtype),)
            return self._with_positions(target, op, args)
        if missing:
            (number,) = missing
            numbers[number] = len(args)
            op, args = BinaryOp.FIRST, (*args, self._access(slots.Variable("value", number + 1)))
        renumbered = (
            arg.with_numbers(numbers) if isinstance(arg, SlotAccess) else arg for arg in args
        )
        return target.with_numbers(numbers), op, tuple(renumbered)

    def _refuse_logic(self, value: slots.Formula) -> NoReturn:
        origin = self._tensor.origin
        raise UsageError(
            "The logic of an operation holds for all its assignments, or each states its own.",
            found=f"{self._code.text(value)} with a logic of its own in the code of "
            f"{origin.operation}, for which define_operation or its call states one",
            where=str(origin),
            fix="state it in one place: leave logic= out there, or here",
        )

    def _align(
        self, assignment: SlotAssignment, target: SlotAccess
    ) -> tuple[SlotAccess, slots.Formula]:
        """Return the target and the value of an assignment, under the index maps of its logic."""
        origin, part = self._tensor.origin, assignment.part
        shapes = [self._tensor_at(position).shape for position in part.sources]
        found = project(part.logic, self._tensor_at(part.target).shape, shapes, origin)
        if any(margins_of(found, i) for i in (None, *range(len(shapes)))):
            raise UsageError(
                "Windows of an operation whose assignments have a logic each stay inside the axes.",
                found=f"{self._code.text(assignment.target)} = "
                f"{self._code.text(assignment.value)} in the code of {origin.operation}",
                where=str(origin),
                fix="mark the window with `<`, or make it an operation of its own",
            )
        self._projections = found
        value = slots.with_occurrences(assignment.value)
        numbers = {number: source - 1 for number, source in enumerate(part.sources)}
        for variable, index, dims in zip(
            slots.variables_in(value), found.rhs, found.rhs_dims, strict=True
        ):
            access = self._access(replace(variable, occurrence=0))
            aligned = replace(access, index=index, dims=dims).with_numbers(numbers)
            self._accesses[variable] = aligned
        written = replace(target, index=found.lhs, dims=found.lhs_dims)
        return written.with_numbers(numbers), value

    def _unpack(self, target: SlotAccess, words: slots.Formula) -> None:
        """Emit the assignment of runs of cells, one for each word."""
        assert isinstance(words, slots.Variable)
        operand, index, dims = as_operand(self._access(words))
        domain = self._projections.domain
        projections = Projections(domain, target.index, (index,), target.dims, (dims,))
        self._emitter.body.append(
            assign.SetVector(target.node, operand, projections, self._tensor.origin)
        )

    def _refuse_reduction(self, target: SlotAccess, value: slots.Formula) -> None:
        """Refuse a plain assignment that would keep the last of several values of a cell."""
        extents = self._projections.extents
        read = (self._access(each).variables for each in slots.variables_in(value))
        reduced = set().union(*read) - target.variables
        if any(isinstance(var, LoopVar) and extents.get(var, 1) > 1 for var in reduced):
            kind = SpecError if isinstance(self._definition.logic, Einsum) else UsageError
            raise kind(
                "An operation without an accumulation of its own cannot reduce axes.",
                found=f"{self._tensor.origin.operation} with a logic that drops axes",
                where=str(self._tensor.origin),
                fix="use oc.einsum(spec, ...), or assign it in recorded code: "
                "c[oc.neutral] += oc.multiply(a, b, logic=...)",
            )

    def _domain(
        self, result: IndexMap, used: Collection[IndexVar] | None
    ) -> tuple[tuple[LoopVar, int], ...]:
        """Return the domain, the result's variables outermost, restricted to `used` if given."""
        extents = self._projections.extents
        first = [var for var in variables_of([result]) if isinstance(var, LoopVar)]
        order = dict.fromkeys([*first, *extents])
        return tuple([(var, extents[var]) for var in order if used is None or var in used])

    def _settle(self, value: slots.Formula, target: DType) -> Argument:
        """Return a value as an operand of an assignment to a format. A nested application has that
        format if it holds the operands; where it needs a node of its own, it is stored first.
        """
        match value:
            case slots.Variable():
                access = self._access(value)
                if access.operand is None:
                    text = self._code.text(value)
                    self._refuse(f"it reads {text}, the gradient of an operand that has none")
                if value.role == "value":
                    self._check_gradient_in_memory(self._tensor_at(value.position))
                return access
            case slots.Application():
                return run_trampoline(self._settle_application(value, target))
            case _:
                return value

    def _settle_in_node(self, value: slots.Formula, target: DType) -> SlotAccess:
        """Return a value that depends on slots as the cells of a node."""
        found = self._settle(value, target)
        if isinstance(found, NestedValue):
            return self._store(found.op.value.name, found.op, found.args, found.dtype)
        assert isinstance(found, SlotAccess)
        return found

    def _settle_application(self, value: slots.Application, target: DType) -> Steps[Argument]:
        key = ById(value), target
        if key in self._stored:
            return self._stored[key]
        op, stated = value.op, None if value.like is None else self._access(value.like).dtype
        args: list[Argument] = []
        for arg in value.args:
            if isinstance(arg, slots.Application):
                args.append((yield self._settle_application(arg, stated or target)))
            else:
                args.append(self._settle(arg, stated or target))
        settled = tuple(args)
        dtype = stated or self._format(op, settled, target)
        match op, settled:
            case UnaryOp.IDENTITY, ((SlotAccess() | NestedValue()) as same,) if (
                same.dtype is stated
            ):
                return same
        is_shared = key[0] in self._repeated and slots.applies_more_than(_MOST_REPEATED, value)
        nested = None if is_shared else self._nested(op, settled, dtype)
        if nested is not None:
            return nested
        access = self._store(op.value.name, op, settled, dtype)
        if is_shared:
            self._stored[key] = access
        return access

    def _nested(self, op: Op, args: tuple[Argument, ...], dtype: DType) -> NestedValue | None:
        """Return a nested application as a part of its assignment, if that computes it as often as
        code of its own would; None if it needs a node.
        """
        formats = {dtype, *(arg.dtype for arg in args if not isinstance(arg, int | float))}
        varying = varying_variables(args)
        depth = 1 + max(arg.depth if isinstance(arg, NestedValue) else 0 for arg in args)
        is_plain = self._has_formulas and uint4x32 not in formats and depth <= _MOST_NESTED
        if not is_plain or not self._projections.extents.keys() <= varying:
            return None
        return NestedValue(op, args, dtype, varying, depth)

    def _check_gradient_in_memory(self, read: Tensor) -> None:
        """Refuse gradient code that reads a gradient which has changed since the forward code has
        read it: `p.grad * p` is differentiated by `p` after `p.grad` is cleared.
        """
        is_forward = self._code is self._definition.operation.forward
        if is_forward or not read.is_gradient:
            return
        if self._emitter.last_change([read]) > self._emitter.last_change([self._tensor]):
            raise no_expression(read)

    def _format(self, op: Op, args: tuple[Argument, ...], target: DType) -> DType:
        """Return the number format in which a nested application is stored: `float32` in place of
        narrower floats, so that the code of an operation rounds to these once.
        """
        alone, default = self._tensor.dtype, self._tensor.session.default_dtype
        found = result_dtype(op, formats_of(op, args, alone, default), alone)
        stored = working_format(op, [found], (), target)
        return float32 if stored.is_narrow else stored

    def _store(self, name: str, op: Op, args: tuple[Argument, ...], dtype: DType) -> SlotAccess:
        """Return a new node that holds a primitive of values."""
        maps = [leaf.index for leaf in leaf_values(args) if isinstance(leaf, SlotAccess)]
        axes = self._axes(maps, varying_variables(args))
        access = self._new(name, dtype, tuple(axes), tuple(axes.values()))
        self._accumulate(access, BinaryOp.SECOND, False, op, args)
        return access

    def _new(
        self, name: str, dtype: DType, index: IndexMap, dims: tuple[int, ...], margins: Margins = ()
    ) -> SlotAccess:
        """Return the access to a new node that is addressed by an index map."""
        operand = assign.NodeOperand(self._new_node(name, dtype, dims, margins, _sizes(index)))
        return SlotAccess(operand, dtype, index, dims)

    def _new_node(
        self,
        name: str,
        dtype: DType,
        dims: tuple[int, ...],
        margins: Margins = (),
        extents: tuple[StaticExtent | None, ...] = (),
    ) -> TensorNode:
        node = TensorNode(self._tensor.id, (name, *self._tensor.label))
        self._emitter.nodes[node] = NodeInfo(dtype, dims, margins, extents)
        self._emitter.embedded.add(node)
        return node

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
        result = self._access(slots.RESULT)
        extreme = self._definition.operation.forward.extreme
        if extreme is None:
            self._refuse(
                "the slot `selected` stands for the selection of a maximum or minimum, and the "
                "forward function does not accumulate one into v"
            )
        combine, value = extreme
        term = rounded(value, slots.RESULT)
        self._accesses[_SELECTED_TERM] = self._settle_in_node(term, result.dtype)
        margins = margins_of(self._projections, None)
        dtype = self._access(slots.POSITION).dtype
        first = self._new("first", dtype, result.index, result.dims, margins)
        searched = position_search(combine, slots.RESULT, _SELECTED_TERM)
        args = tuple(self._settle(arg, dtype) for arg in searched.args)
        self._accumulate(first, BinaryOp.MIN, True, searched.op, args)
        return first.node

    def _ramp(self) -> SlotAccess:
        """Return the positions on the reduced axes, in row-major order, as a ramp of its own.

        It numbers cells beyond extents at run time, too: the order alone matters.
        """
        base = self._base
        # include axes along which the value is repeated: the gradient is a sum over them
        every = self._axes(base.rhs, base.extents.keys())
        axes = {i: n for i, n in every.items() if i not in base.lhs}
        count = prod(axes.values())
        is_wide = self._compared_format().nbytes == int64.nbytes or count >= 2**31
        dtype = int64 if is_wide else int32  # as wide as the compared values, for vectors
        return self._numbers("position", dtype, axes)

    def _numbers(
        self, name: str, dtype: DType, axes: Mapping[VarIndex | ConcatIndex, int]
    ) -> SlotAccess:
        """Return a new node whose cells are numbered in row-major order."""
        dims = tuple(axes.values())
        node = self._new_node(name, dtype, dims)
        self._emitter.body.append(
            assign.Fetch(node, assign.RangeOverOffsets(), self._tensor.origin)
        )
        return SlotAccess(assign.NodeOperand(node), dtype, tuple(axes), dims)

    def _place(self) -> SlotAccess:
        """Return the positions on the reduced axes, and their number where an operand is read in
        its margin: a maximum of cells of minus infinity equals the cells there, too.
        """
        p, dtype = self._projections, self._access(slots.POSITION).dtype
        found: slots.Formula = slots.POSITION
        for index_map, dims, margins in zip(p.rhs, p.rhs_dims, p.margins, strict=False):
            for index, dim, margin in zip(index_map, dims, margins, strict=False):
                at = self._index(index, dtype) if margin.left or margin.right else 0.0
                for width, sides in ((margin.left, (at, 0.0)), (margin.right, (dim - 1.0, at))):
                    if width:
                        outside = slots.Application(BinaryOp.LT, sides)
                        found = slots.Application(TernaryOp.WHERE, (outside, slots.COUNT, found))
        return self._settle_in_node(found, dtype)

    def _index(self, index: AxisIndex, dtype: DType) -> slots.Formula:
        """Return the value of an index of loop variables."""
        terms, offset = as_affine(index)
        found: slots.Formula = float(offset)
        for factor, var in terms:
            assert isinstance(var, LoopVar), "windows slide along axes"
            value = slots.Variable("intermediate", 0, "index", len(self._accesses))
            extent = self._projections.extents[var]
            self._accesses[value] = self._numbers("index", dtype, {VarIndex(var): extent})
            term = slots.Application(BinaryOp.MUL, (float(factor), value))
            found = slots.Application(BinaryOp.ADD, (found, term))
        return found

    def _compared_format(self) -> DType:
        """Return the number format of the compared values, or of the positions found in them."""
        operation = self._definition.operation
        at = operation.selection if isinstance(operation, DerivedOperation) else None
        return self._tensor.dtype if at is None else self._definition.operands[at].dtype


def _sizes(index_map: IndexMap) -> tuple[StaticExtent | None, ...]:
    """Return the extent at run time of each axis that a variable traverses; empty without any."""
    found = tuple(
        index.var.size if isinstance(index, VarIndex) and isinstance(index.var, LoopVar) else None
        for index in index_map
    )
    return found if any(found) else ()


def _as_application(value: slots.Formula) -> tuple[Op, tuple[slots.Formula, ...]]:
    """Return the primitive and the arguments that compute a value, `identity` for a slot."""
    if isinstance(value, slots.Application):
        return value.op, value.args
    return UnaryOp.IDENTITY, (value,)


def _of_one_part(projections: Projections) -> Projections:
    """Return projections that choose one part of each concatenated axis, if they visit only that:
    the gradient of one of `n` parts needs no list of the others.
    """
    choices = list(islice(traversals(projections), 2))
    if len(choices) != 1:
        return projections
    ((domain, (lhs, *rhs)),) = choices
    return replace(projections, domain=domain, lhs=lhs, rhs=tuple(rhs))


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
    if not (projections.margins or projections.lhs_margins):
        return
    positions: list[tuple[int | None, Tensor]] = [(None, result), *enumerate(operands)]
    for position, tensor in positions:
        needed = margins_of(projections, position)
        if needed:
            tensor.layout.check(needed, tensor.describe(), origin)
