"""Lowering of assignments to loops.

Every assignment becomes a nest of loops over its domain, with loop variables of its own, around one
store. The rules:

- Operands are converted to the target's number format where it holds their numbers, otherwise to
  their promoted format. Comparisons and logical primitives always work in that; the condition of
  `where` keeps its format; words are never converted.
- An accumulation that resets its target fills it with the neutral element first, unless every cell
  is written exactly once; if no cell is written twice, it combines with the neutral element and
  does not read the target.
- Indices of a padded node are shifted by its left margins. Before a nest reads a margin, the margin
  is filled with the neutral element of the accumulation that reads it, or with the assignment's
  `beyond`.
- A concatenated index becomes one nest per component; several become one for each choice.
- A computed position becomes a gather or a scatter. The positions are checked first, before the
  first statement of the routine if it does not compute them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from math import isinf, prod
from typing import assert_never

from ocannl_core.base import settings
from ocannl_core.base.errors import LoweringError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.base.setting_formats import MOST_FILL_VALUES
from ocannl_core.ir.assignments import nodes as assign
from ocannl_core.ir.assignments import traverse
from ocannl_core.ir.assignments.printer import assignment_text
from ocannl_core.ir.indexing import (
    AxisIndex,
    ComputedIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    Projections,
    SubAxis,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    is_injective,
    is_surjective,
    position_at,
    row_major,
    traversals,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.computed_positions import gather_cell, place_checks, scatter_cell
from ocannl_core.ir.loops.conversions import (
    Conversions,
    constant,
    index_product,
    index_value,
    select_constant,
)
from ocannl_core.ir.loops.loop_nests import LoopNest, loops_around, with_fresh_variables
from ocannl_core.ir.loops.ranges import Range, index_range
from ocannl_core.ir.loops.traverse import nodes_of, writes
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float64, int32, int64, round_to, saturate, uint4x32
from ocannl_core.ir.numbers.primitives import (
    LOGICAL,
    BinaryOp,
    Op,
    Result,
    TernaryOp,
    UnaryOp,
    accumulates,
    arity,
    neutral,
    working_format,
)
from ocannl_core.ir.text import PrintedNames

_MOST_UNROLLED_STORES = 64

Operands = tuple[assign.Operand, ...]
"""The operands of an assignment."""


def lower(program: assign.AssignProgram) -> ir.LoopProgram:
    """Lower a program to loops.

    Raises:
        LoweringError: if an assignment is inconsistent; names the operation and the user's line.
    """
    state = _Lowering(program.nodes)
    state.assignments(program.body)
    body = ir.Block(place_checks(state.stmts))
    used = nodes_of(body)
    return ir.LoopProgram(
        program.name,
        used,
        traverse.static_indices(program),
        {node: program.nodes[node] for node in used},
        body,
    )


@dataclass(slots=True)
class _Lowering:
    """The state of the lowering of one program."""

    nodes: Mapping[TensorNode, NodeInfo]
    """The format, extents and margins of every node."""
    stmts: list[ir.Stmt] = field(default_factory=list)
    margins: dict[TensorNode, float] = field(default_factory=dict)
    """The values that the margins of padded nodes hold at this point."""
    names: PrintedNames = field(default_factory=PrintedNames)
    origin: Origin | None = None
    merged: TensorNode | None = None

    @property
    def formats(self) -> Conversions:
        """The conversions of the current assignment."""
        return Conversions(self.error)

    def error(self, rule: str, found: str = "", fix: str = "") -> LoweringError:
        return LoweringError(rule, found=found, where=str(self.origin or ""), fix=fix)

    def info(self, node: TensorNode) -> NodeInfo:
        if node not in self.nodes:
            raise self.error(
                "Every node of a program has a shape.", f"none is known for {node.name}"
            )
        return self.nodes[node]

    def assignments(self, body: Sequence[object]) -> None:
        pending = list(reversed(body))
        while pending:
            each = pending.pop()
            match each:
                case assign.AssignSequence(inner):
                    pending += reversed(inner)
                case assign.Section(title, inner):
                    self.stmts.append(ir.Remark(title))
                    pending += reversed(inner)
                case (
                    assign.Accumulate()
                    | assign.SetVector()
                    | assign.Fetch()
                    | assign.ExternalCall()
                    | assign.RepeatedAssignments()
                ):
                    self.assignment(each)

    def assignment(self, assignment: traverse.Leaf) -> None:
        self.origin = assignment.origin
        match assignment:
            case assign.Accumulate():
                self.accumulate(assignment)
            case assign.SetVector():
                self.set_vector(assignment)
            case assign.Fetch():
                self.remark(assignment)
                self.fetch(assignment)
            case assign.ExternalCall(op, inputs, targets):
                self.check_sizes(assignment)
                self.remark(assignment)
                self.stmts.append(ir.CallExternal(op, inputs, targets))
            case assign.RepeatedAssignments():
                self.remark(assignment)
                self.stmts.append(self.repetition(assignment))
            case _:
                assert_never(assignment)

    def repetition(self, repeat: assign.RepeatedAssignments) -> ir.Repeat:
        """Return the statement of a repetition. What margins hold at the start of an iteration
        follows from none of the assignments alone.
        """
        inside = _Lowering(self.nodes, names=self.names, merged=self.merged)
        inside.assignments(repeat.body)
        body = ir.Block(self.without_outer_checks(repeat, place_checks(inside.stmts)))
        self.merged = inside.merged
        written = [node for node in writes(body) if node not in repeat.private]
        for node in written:
            self.margins.pop(node, None)
        complete = tuple(node for node in traverse.complete_targets(repeat) if node in written)
        private = tuple((n, self.nodes[n]) for n in nodes_of(body) if n in repeat.private)
        accessed = traverse.repeat_inputs(repeat), tuple(written), complete
        order = repeat.index, repeat.count, repeat.is_reversed
        return ir.Repeat(*order, body, *accessed, private)

    def without_outer_checks(
        self, repeat: assign.RepeatedAssignments, stmts: tuple[ir.Stmt, ...]
    ) -> tuple[ir.Stmt, ...]:
        """Return the statements of an iteration after emitting those of its checks that are the
        same in all iterations; one that reads what iterations write remains in place.
        """
        changed = {node for stmt in stmts for node in writes(stmt)}
        inner: list[ir.Stmt] = []
        for stmt in stmts:
            if not isinstance(stmt, ir.CheckPositions) or stmt.node in changed:
                inner.append(stmt)
            elif repeat.count > 0:
                self.stmts.append(stmt)
        return tuple(inner)

    def check_sizes(self, call: assign.ExternalCall) -> None:
        """Refuse nodes with extents at run time, which an external operation could not find, unless
        it computes the lines along an axis each by itself, and that axis has none.
        """
        for node in (*call.inputs, *call.targets):
            extents = self.info(node).extents
            if call.op.line_axis is not None and extents:
                extents = (extents[call.op.line_axis],)
            if found := [extent for extent in extents if extent is not None]:
                rule = "External operations work on whole arrays, of constant sizes."
                fix = (
                    "give the axis a constant size; an op that computes the lines along another "
                    "axis each by itself states that one, as in line_axis = -1"
                )
                if call.op.line_axis is not None:
                    rule = "Operations along an axis work on whole lines, of constant sizes."
                    fix = "give the axis a constant size, or compute along another one"
                raise self.error(
                    rule, f"{node.name}, an axis of which has the extent {found[0]}", fix
                )

    def remark(self, assignment: traverse.Leaf) -> None:
        """Append the text of an assignment as a comment on the next statement."""
        with self.names.scope():
            text = assignment_text(assignment, self.names)
        self.stmts.append(ir.Remark(text, assignment.origin))

    def accumulate(self, assignment: assign.Accumulate) -> None:
        target, combine, projections = assignment.target, assignment.combine, assignment.projections
        dtype = self.info(target).dtype
        self.check(assignment)
        resets = assignment.reset and combine is not BinaryOp.SECOND
        reads_target = any(
            isinstance(a, assign.NodeOperand) and a.node is target for a in assignment.args
        )
        starts_neutral = resets and is_injective(projections)
        if resets and (reads_target or not (starts_neutral and is_surjective(projections))):
            self.fill(target, saturate(neutral(combine), dtype))
        for nest in self.nests(projections):
            self.prepare_margins(assignment, nest)
            value = self.value(assignment.op, assignment.args, nest.rhs, dtype)
            store = self.store(target, nest.lhs, assignment.args, nest.rhs)
            self.remark(assignment)
            if starts_neutral and not combine.value.keeps_first:
                start = constant(saturate(neutral(combine), dtype), dtype)
                value = ir.Binary(combine, start, value, dtype)
            elif combine is not BinaryOp.SECOND and not starts_neutral:
                value = ir.Binary(combine, store.value, value, dtype)
            self.stmts.append(nest.around(replace(store, value=value)))
            self.forget_margins(target, nest)

    def check(self, assignment: assign.Accumulate) -> None:
        op, combine = assignment.op, assignment.combine
        count, maps = len(assignment.args), len(assignment.projections.rhs)
        if isinstance(op, assign.Formula):
            self.check_formula(op, count)
        elif count != arity(op):
            raise self.error(f"{op.value.name} takes {arity(op)} operands.", f"{count} operands")
        if count != maps:
            raise self.error(
                "Each operand has an index map.", f"{count} operands, {maps} index maps"
            )
        if self.info(assignment.target).dtype.is_packed:
            dtype = self.info(assignment.target).dtype
            raise self.error(
                "Formats of 4 bits are for data: routines read them, and write whole bytes.",
                f"an assignment to {assignment.target.name}, which is {dtype}",
                f"assign to a tensor of {dtype.unpacked}, or from the host: ctx[x] = values",
            )
        if not accumulates(combine):
            raise self.error(
                "An assignment combines with a primitive that accumulates.",
                combine.value.name,
                "assign the result to a tensor of its own first",
            )
        if self.info(assignment.target).dtype is uint4x32 and combine is not BinaryOp.SECOND:
            raise self.error("Random words can be assigned, not accumulated.", combine.value.name)

    def check_formula(self, formula: assign.Formula, operands: int) -> None:
        name = formula.op.value.name
        if len(formula.args) != arity(formula.op):
            raise self.error(
                f"{name} takes {arity(formula.op)} operands.", f"{len(formula.args)} operands"
            )
        for arg in formula.args:
            if isinstance(arg, assign.Formula):
                self.check_formula(arg, operands)
            elif not 0 <= arg < operands:
                raise self.error(
                    "A formula refers to operands of its assignment.",
                    f"{name} of operand {arg}, of {operands}",
                )

    def set_vector(self, assignment: assign.SetVector) -> None:
        target = assignment.target
        length = 16 // self.info(target).dtype.nbytes
        if self.info(target).buffer_dims != self.info(target).dims:
            raise self.error("Vectors are written to nodes without margins.", target.name)
        for nest in self.nests(assignment.projections):
            self.prepare_margins(assignment, nest)
            self.remark(assignment)
            words = (assignment.arg,)
            (word,) = self.operands(UnaryOp.UNIFORM, (0,), words, nest.rhs, uint4x32)
            if word.dtype is not uint4x32:
                raise self.error(
                    "A vector is written from random words.", f"operand of {word.dtype}"
                )
            store = ir.StoreVector(target, self.shifted(target, nest.lhs), length, word)
            self.stmts.append(nest.around(store))
            self.forget_margins(target, nest)

    def nests(self, projections: Projections) -> Iterator[LoopNest]:
        """Yield the nests of an assignment: one for each choice of parts of concatenated axes."""
        found = False
        for domain, maps in traversals(projections):
            found = True
            yield with_fresh_variables(domain, maps)
        if not found:
            raise self.error(
                "Some component of a concatenated axis determines every operand.", "none does"
            )

    def value(
        self, op: Op | assign.Formula, args: Operands, maps: tuple[IndexMap, ...], dtype: DType
    ) -> ir.Expr:
        """Return a primitive of operands, or a formula, in a number format."""
        if isinstance(op, assign.Formula):
            primitive, parts = op.op, op.args
        else:
            primitive, parts = op, tuple(range(len(args)))
        operands = self.operands(primitive, parts, args, maps, dtype)
        return self.formats.apply(primitive, operands, dtype)

    def operands(
        self,
        op: Op,
        parts: Sequence[int | assign.Formula],
        args: Operands,
        maps: tuple[IndexMap, ...],
        dtype: DType,
    ) -> list[ir.Expr]:
        """Return the operands of a primitive as expressions, constants in its working format.

        Args:
            parts: Each a formula, or the position of an operand of the assignment.
        """
        given = [args[part] if isinstance(part, int) else part for part in parts]
        found: list[DType] = []
        for each in given[op is TernaryOp.WHERE :]:  # a condition has no influence on formats
            match each:
                case assign.Formula():
                    found.append(each.dtype)
                case assign.NodeOperand(node) | assign.Merge(node):
                    found.append(self.info(node).dtype)
                case assign.Scalar():
                    pass
        numbers = [each.value for each in given if isinstance(each, assign.Scalar)]
        working = working_format(op, found, numbers, dtype)
        exprs: list[ir.Expr] = []
        for part, each in zip(parts, given, strict=True):
            match each:
                case assign.Formula():
                    exprs.append(self.value(each, args, maps, each.dtype))
                case assign.Scalar(value):
                    self.formats.check_magnitude(value, working)
                    fits = not working.is_integer or round_to(value, working) == value
                    exprs.append(constant(value, working if fits or op not in LOGICAL else float64))
                case assign.NodeOperand(node):
                    assert isinstance(part, int)
                    exprs.append(self.load(node, maps[part], args, maps))
                case assign.Merge(node):
                    assert isinstance(part, int)
                    self.note_merge(node)
                    indices = self.shifted(node, maps[part])
                    exprs.append(ir.LoadMerge(node, indices, self.info(node).dtype))
                case _:
                    assert_never(each)
        return exprs

    def load(
        self, node: TensorNode, index_map: IndexMap, args: Operands, maps: tuple[IndexMap, ...]
    ) -> ir.Expr:
        """Return the cell of a node at an index map, which may have a computed position."""
        info, indices = self.info(node), self.shifted(node, index_map)
        axis = self.computed_axis(index_map)
        if axis is None:
            return ir.Load(node, indices, info.dtype)
        position = self.position(node, axis, index_map[axis], args, maps)
        return gather_cell(node, info, indices, axis, position)

    def store(
        self, node: TensorNode, index_map: IndexMap, args: Operands, maps: tuple[IndexMap, ...]
    ) -> ir.Store | ir.Scatter:
        """Return a store of a cell's own value, for another value to be put in its place."""
        info, indices = self.info(node), self.shifted(node, index_map)
        axis = self.computed_axis(index_map)
        if axis is None:
            return ir.Store(node, indices, ir.Load(node, indices, info.dtype))
        position = self.position(node, axis, index_map[axis], args, maps)
        return scatter_cell(node, info, indices, axis, position)

    def computed_axis(self, index_map: IndexMap) -> int | None:
        """Return the axis with a computed position, or None."""
        if ComputedIndex not in map(type, index_map):
            return None
        axes = [axis for axis, i in enumerate(index_map) if isinstance(i, ComputedIndex)]
        if len(axes) > 1:
            raise self.error(
                "One axis of a tensor has a computed position.",
                f"axes {', '.join(map(str, axes))}",
                "flatten these axes into one, and compute the position on it",
            )
        return axes[0]

    def position(
        self,
        node: TensorNode,
        axis: int,
        index: AxisIndex,
        args: Operands,
        maps: tuple[IndexMap, ...],
    ) -> ir.Expr:
        """Return a computed position, after emitting its check."""
        assert isinstance(index, ComputedIndex)
        holder = args[index.operand] if index.operand < len(args) else None
        if not isinstance(holder, assign.NodeOperand):
            raise self.error(
                "A computed position is a cell of another operand.", f"operand {index.operand}"
            )
        positions = self.info(holder.node)
        if not positions.dtype.is_integer:
            raise self.error(
                "Positions are integers.",
                f"{holder.node.name}: {positions.dtype}",
                'convert them: oc.cast(ids, "int32")',
            )
        if settings.current().check_positions:
            info, described = self.info(node), f"axis {axis} of {node.name}"
            extent, at_run_time = info.dims[axis], info.extents[axis] if info.extents else None
            sizes = positions.extents
            self.stmts.append(
                ir.CheckPositions(holder.node, extent, described, sizes, self.origin, at_run_time)
            )
        return ir.Load(holder.node, self.shifted(holder.node, index.at), positions.dtype)

    def note_merge(self, node: TensorNode) -> None:
        """Record the node of the merge buffer, and refuse a second one."""
        if self.merged is not None and self.merged is not node:
            raise self.error(
                "A routine reads the merge buffer of one tensor, because a device has one buffer.",
                f"{self.merged.name}.merge and {node.name}.merge",
                "compile the code for each tensor on its own, and run it after its transfer",
            )
        self.merged = node

    def fetch(self, fetch: assign.Fetch) -> None:
        target, source = fetch.target, fetch.source
        dtype = self.info(target).dtype
        match source:
            case assign.Constant(value) if dtype is not uint4x32:
                self.formats.check_magnitude(value, dtype)
                self.fill(target, round_to(value, dtype))
            case assign.Constant(value):
                if value != int(value) or not 0 <= value < 2**64:
                    raise self.error("A random word is made of a natural number.", f"{value}")
                self.everywhere(target, lambda _: ir.ConstBits(int(value), dtype))
            case assign.ConstantBits(bits):
                if dtype.is_float:
                    raise self.error(
                        "A bit pattern fills integers or random words.", f"{target.name}: {dtype}"
                    )
                self.everywhere(target, lambda _: ir.ConstBits(bits, dtype))
            case assign.ConstantFill(values):
                self.formats.must_be_number(dtype, UnaryOp.IDENTITY)
                for value in values:
                    self.formats.check_magnitude(value, dtype)
                self.constant_fill(target, values)
            case assign.RangeOverOffsets():
                self.everywhere(target, partial(self.offset, self.info(target)))
            case assign.EmbedIndex(index, ()):
                self.everywhere(target, lambda _: index_value(index, dtype))
            case assign.EmbedIndex(index, factors):
                self.formats.must_be_number(dtype, BinaryOp.MUL)
                product = index_product((index, *factors))
                self.everywhere(target, lambda _: self.formats.convert(product, dtype))
            case _:
                assert_never(source)

    def everywhere(self, target: TensorNode, value: Callable[[IndexMap], ir.Expr]) -> None:
        """Append loops that store a function of the position in every cell of a node."""
        loops = tuple((fresh_var(), dim) for dim in self.info(target).dims)
        cell = tuple(VarIndex(var) for var, _ in loops)
        store = ir.Store(target, self.shifted(target, cell), value(cell))
        self.stmts.append(loops_around(loops, store))

    def offset(self, info: NodeInfo, cell: IndexMap) -> ir.Expr:
        """Return the row-major offset of a cell, by the sizes that extents have at run time."""
        if not any(info.extents[1:]):
            return index_value(row_major(cell, info.dims), info.dtype)
        exact = int32 if prod(info.dims) < 2**31 else int64
        value: ir.Expr = constant(0, exact)
        for index, dim, extent in zip(cell, info.dims, info.extents, strict=True):
            size = ir.IndexValue(VarIndex(extent), exact) if extent else constant(dim, exact)
            before = ir.Binary(BinaryOp.MUL, value, size, exact)
            value = ir.Binary(BinaryOp.ADD, before, ir.IndexValue(index, exact), exact)
        return self.formats.convert(value, info.dtype)

    def constant_fill(self, target: TensorNode, values: tuple[float, ...]) -> None:
        info = self.info(target)
        if not 1 <= len(values) <= MOST_FILL_VALUES:
            raise self.error(
                f"A fill lists 1 to {MOST_FILL_VALUES} values.",
                f"{len(values)} values for {target.name}",
                "make a tensor from an array instead",
            )
        constants = [constant(value, info.dtype) for value in values]
        if prod(info.dims) > _MOST_UNROLLED_STORES:
            self.everywhere(
                target, lambda cell: select_constant(constants, row_major(cell, info.dims))
            )
            return
        for offset in range(prod(info.dims)):
            cell = self.shifted(target, position_at(offset, info.dims))
            self.stmts.append(ir.Store(target, cell, constants[offset % len(constants)]))

    def fill(self, target: TensorNode, value: float) -> None:
        """Append a fill of the whole buffer of a node."""
        self.stmts.append(ir.Fill(target, value))
        self.margins[target] = value

    def shifted(self, node: TensorNode, index_map: IndexMap) -> IndexMap:
        """Return an index map with the left margins of a node added."""
        info = self.info(node)
        if len(index_map) != len(info.dims):
            raise self.error(
                "An index map has one index for each axis of its node.",
                f"{len(index_map)} indices for the {len(info.dims)} axes of {node.name}",
            )
        if not info.padding and _MOVED.isdisjoint(map(type, index_map)):
            return index_map
        lefts = [margin.left for margin in info.padding] or [0] * len(info.dims)
        return tuple(
            FixedIndex(0) if isinstance(index, ComputedIndex) else _plus(index, left)
            for index, left in zip(index_map, lefts, strict=True)
        )

    def reaches_margins(self, node: TensorNode, index_map: IndexMap, nest: LoopNest) -> bool:
        info = self.info(node)
        if not info.padding or not any(margin.left or margin.right for margin in info.padding):
            return False
        ranges: dict[IndexVar, Range] = {var: Range(0, extent - 1) for var, extent in nest.loops}
        for index, dim in zip(index_map, info.dims, strict=True):
            if isinstance(index, ComputedIndex):
                continue  # never in a margin
            reach = index_range(index, ranges)
            if reach is None and as_affine(index)[0]:
                return True
            if reach is not None and not reach.is_within(dim):
                return True
        return False

    def prepare_margins(
        self, assignment: assign.Accumulate | assign.SetVector, nest: LoopNest
    ) -> None:
        """Append fills of the margins that a nest reads, unless they hold the value already."""
        match assignment:
            case assign.Accumulate(combine=combine, beyond=beyond, args=args, op=applied):
                op = applied.op if isinstance(applied, assign.Formula) else applied
                needed = 0.0 if combine is BinaryOp.SECOND and beyond is None else beyond
                needed = neutral(combine) if needed is None else needed
            case assign.SetVector(arg=arg):
                args, op, needed = (arg,), UnaryOp.IDENTITY, 0.0
            case _:
                assert_never(assignment)
        for arg, index_map in zip(args, nest.rhs, strict=True):
            if isinstance(arg, assign.Scalar) or not self.reaches_margins(
                arg.node, index_map, nest
            ):
                continue
            if isinstance(arg, assign.Merge):
                raise self.error(
                    "A merge buffer is read inside the axes of its node: margins are not "
                    "transferred.",
                    f"windows over {arg.node.name} that leave them",
                    "assign the merge buffer to a declared tensor, and read that",
                )
            dtype, target = self.info(arg.node).dtype, assignment.target
            written = self.info(target).dtype
            is_number = op.value.result not in (Result.TRUTH, Result.BITS)
            short, fix = None, ""
            if op is not UnaryOp.IDENTITY and not dtype.has_infinities:
                short = arg.node
                fix = 'convert the tensor to a format with infinities first: oc.cast(x, "float32")'
            elif is_number and dtype.has_infinities and not written.has_infinities:
                short = target
                fix = f'convert the result in place of the cells: oc.cast(y, "{written}")'
            if isinf(needed) and short is not None:
                raise self.error(
                    "Arithmetic on margins needs a format with infinities.",
                    f"{short.name}: {self.info(short).dtype}, where {needed} is needed",
                    fix,
                )
            value = saturate(needed, dtype)
            if self.margins.get(arg.node) != value:
                self.stmts += margin_loops(arg.node, self.info(arg.node), value)
                self.margins[arg.node] = value

    def forget_margins(self, target: TensorNode, nest: LoopNest) -> None:
        if self.reaches_margins(target, nest.lhs, nest):
            self.margins.pop(target, None)


_MOVED = frozenset((ComputedIndex, SubAxis))
"""The classes of indices that are at a first position, in the absence of margins too."""


def _plus(index: AxisIndex, offset: int) -> AxisIndex:
    """Add an offset to an index; a sub-axis is at its first position."""
    if offset == 0 and not isinstance(index, SubAxis):
        return index
    terms, own = as_affine(index)
    return affine(terms, own + offset)


def margin_loops(node: TensorNode, info: NodeInfo, value: float) -> Iterator[ir.Stmt]:
    """Yield loops over the cells of the margins, each once.

    A cell in the margins of several axes belongs to the first of them: the loops over earlier axes
    run over the interior.
    """
    for axis, (dim, margin) in enumerate(zip(info.dims, info.padding, strict=True)):
        for start, stop in (
            (0, margin.left),
            (margin.left + dim, margin.left + dim + margin.right),
        ):
            if start == stop:
                continue
            bounds = [
                (m.left, m.left + n) for n, m in zip(info.dims[:axis], info.padding, strict=False)
            ]
            bounds += [(start, stop), *((0, n) for n in info.buffer_dims[axis + 1 :])]
            vars = [fresh_var() for _ in bounds]
            cell = tuple(VarIndex(var) for var in vars)
            body: ir.Stmt = ir.Store(node, cell, constant(value, info.dtype))
            for var, (low, high) in reversed(list(zip(vars, bounds, strict=True))):
                body = ir.For(var, low, high, ir.Block((body,)))
            yield body
