"""Lowering of assignments to loops.

Every assignment becomes a nest of loops over its domain, with loop variables of its own, around one
store. The rules:

- Operands are converted to the target's number format. Comparisons and logical primitives work in
  the promoted format of their operands; the condition of `where` keeps its format; words are never
  converted.
- An accumulation that resets its target fills it with the neutral element first, unless every cell
  is written exactly once; if no cell is written twice, it combines with the neutral element and
  does not read the target.
- Indices of a padded node are shifted by its left margins. Before a nest reads a margin, the margin
  is filled with the neutral element of the accumulation that reads it, or with the assignment's
  `beyond`.
- A concatenated index becomes one nest per component; several become one for each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from math import isinf, prod
from typing import assert_never

from ocannl_core import settings
from ocannl_core.assign.nodes import (
    Accumulate,
    AssignProgram,
    Cells,
    Constant,
    ConstantBits,
    ConstantFill,
    EmbedIndex,
    ExternalCall,
    Fetch,
    Merge,
    Operand,
    RangeOverOffsets,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.assign.nodes import Repeat as AssignRepeat
from ocannl_core.assign.nodes import Sequence as AssignSequence
from ocannl_core.assign.printer import assignment_text
from ocannl_core.assign.traverse import Leaf, complete_targets, repeat_inputs, static_indices
from ocannl_core.dtypes import (
    SHORT_RANGE,
    DType,
    constant_limit,
    float64,
    promote,
    round_to,
    uint4x32,
)
from ocannl_core.errors import LoweringError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.indexing import (
    AxisIndex,
    FixedIndex,
    IndexMap,
    IndexVar,
    LoopVar,
    Projections,
    SubAxis,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    is_injective,
    is_surjective,
    row_major,
    substitute,
    traversals,
)
from ocannl_core.ir_text import PrintedNames
from ocannl_core.loopir.constants import constant, index_value, saturate, select_constant
from ocannl_core.loopir.margins import margin_loops
from ocannl_core.loopir.nodes import (
    Binary,
    Block,
    CallExternal,
    ConstBits,
    Expr,
    Fill,
    For,
    Load,
    LoadMerge,
    LoopProgram,
    Remark,
    Repeat,
    Stmt,
    Store,
    StoreVector,
    Ternary,
    Unary,
)
from ocannl_core.loopir.ranges import Range, index_range
from ocannl_core.loopir.traverse import nodes_of, writes
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import (
    COMPARISONS,
    HASHES,
    LOGICAL,
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    accumulates,
    arity,
    neutral,
    working_format,
)
from ocannl_core.origin import Origin
from ocannl_core.settings import MOST_FILL_VALUES

_MOST_UNROLLED_STORES = 64


def lower(program: AssignProgram) -> LoopProgram:
    """Lower a program to loops.

    Raises:
        LoweringError: if an assignment is inconsistent; names the operation and the user's line.
    """
    state = _Lowering(program.nodes)
    state.assignments(program.body)
    body = Block(tuple(state.stmts))
    used = nodes_of(body)
    return LoopProgram(
        program.name,
        used,
        static_indices(program),
        {node: program.nodes[node] for node in used},
        body,
    )


@dataclass(frozen=True, slots=True)
class _Nest:
    """A nest to be built: its loops, and index maps over their variables, without margins."""

    loops: tuple[tuple[LoopVar, int], ...]
    lhs: IndexMap
    rhs: tuple[IndexMap, ...]

    def around(self, innermost: Stmt) -> Stmt:
        return _loops(self.loops, innermost)


def _loops(loops: Sequence[tuple[LoopVar, int]], innermost: Stmt) -> Stmt:
    for var, extent in reversed(loops):
        innermost = For(var, 0, extent, Block((innermost,)))
    return innermost


@dataclass(slots=True)
class _Lowering:
    """The state of the lowering of one program.

    Attributes:
        nodes: The format, extents and margins of every node.
        stmts: The statements emitted so far.
        margins: The values that the margins of padded nodes hold at this point.
        origin: The origin of the current assignment.
        merged: The node whose merge buffer is read.
    """

    nodes: Mapping[TensorNode, NodeInfo]
    stmts: list[Stmt] = field(default_factory=list)
    margins: dict[TensorNode, float] = field(default_factory=dict)
    names: PrintedNames = field(default_factory=PrintedNames)
    origin: Origin | None = None
    merged: TensorNode | None = None

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
                case AssignSequence(inner):
                    pending += reversed(inner)
                case Section(title, inner):
                    self.stmts.append(Remark(title))
                    pending += reversed(inner)
                case Accumulate() | SetVector() | Fetch() | ExternalCall() | AssignRepeat():
                    self.assignment(each)

    def assignment(self, assignment: Leaf) -> None:
        self.origin = assignment.origin
        match assignment:
            case Accumulate():
                self.accumulate(assignment)
            case SetVector():
                self.set_vector(assignment)
            case Fetch():
                self.remark(assignment)
                self.fetch(assignment)
            case ExternalCall(op, inputs, targets):
                self.remark(assignment)
                self.stmts.append(CallExternal(op, inputs, targets))
            case AssignRepeat():
                self.remark(assignment)
                self.stmts.append(self.repetition(assignment))
            case _:
                assert_never(assignment)

    def repetition(self, repeat: AssignRepeat) -> Repeat:
        """Return the statement of a repetition. What margins hold at the start of an iteration
        follows from none of the assignments alone.
        """
        inside = _Lowering(self.nodes, names=self.names, merged=self.merged)
        inside.assignments(repeat.body)
        body = Block(tuple(inside.stmts))
        self.merged = inside.merged
        written = [node for node in writes(body) if node not in repeat.private]
        for node in written:
            self.margins.pop(node, None)
        complete = tuple(node for node in complete_targets(repeat) if node in written)
        private = tuple((n, self.nodes[n]) for n in nodes_of(body) if n in repeat.private)
        accessed = repeat_inputs(repeat), tuple(written), complete
        order = repeat.index, repeat.count, repeat.is_reversed
        return Repeat(*order, body, *accessed, private)

    def remark(self, assignment: Leaf) -> None:
        """Append the text of an assignment as a comment on the next statement."""
        with self.names.scope():
            text = assignment_text(assignment, self.names)
        self.stmts.append(Remark(text, assignment.origin))

    def accumulate(self, assignment: Accumulate) -> None:
        target, combine, projections = assignment.target, assignment.combine, assignment.projections
        dtype = self.info(target).dtype
        self.check(assignment)
        resets = assignment.reset and combine is not BinaryOp.SECOND
        reads_target = any(isinstance(a, Cells) and a.node is target for a in assignment.args)
        if resets and (reads_target or not _writes_each_once(projections)):
            self.fill(target, _neutral_number(combine, dtype))
        starts_neutral = resets and is_injective(projections)
        for nest in self.nests(projections):
            self.prepare_margins(assignment, nest)
            self.remark(assignment)
            indices = self.shifted(target, nest.lhs)
            operands = self.operands(assignment.op, assignment.args, nest.rhs, dtype)
            value = self.apply(assignment.op, operands, dtype)
            if starts_neutral and not combine.value.keeps_first:
                start = constant(_neutral_number(combine, dtype), dtype)
                value = Binary(combine, start, value, dtype)
            elif combine is not BinaryOp.SECOND and not starts_neutral:
                value = Binary(combine, Load(target, indices, dtype), value, dtype)
            self.stmts.append(nest.around(Store(target, indices, value)))
            self.forget_margins(target, nest)

    def check(self, assignment: Accumulate) -> None:
        op, combine = assignment.op, assignment.combine
        if len(assignment.args) != arity(op) or len(assignment.projections.rhs) != arity(op):
            raise self.error(
                f"{op.value.name} takes {arity(op)} operands, each with an index map.",
                f"{len(assignment.args)} operands, {len(assignment.projections.rhs)} index maps",
            )
        if not accumulates(combine):
            raise self.error(
                "An assignment combines with a primitive that accumulates.",
                combine.value.name,
                "assign the result to a tensor of its own first",
            )
        if self.info(assignment.target).dtype is uint4x32 and combine is not BinaryOp.SECOND:
            raise self.error("Random words can be assigned, not accumulated.", combine.value.name)

    def set_vector(self, assignment: SetVector) -> None:
        target = assignment.target
        length = 16 // self.info(target).dtype.nbytes
        if self.info(target).buffer_dims != self.info(target).dims:
            raise self.error("Vectors are written to nodes without margins.", target.name)
        for nest in self.nests(assignment.projections):
            self.prepare_margins(assignment, nest)
            self.remark(assignment)
            (word,) = self.operands(UnaryOp.UNIFORM, (assignment.arg,), nest.rhs, uint4x32)
            if word.dtype is not uint4x32:
                raise self.error(
                    "A vector is written from random words.", f"operand of {word.dtype}"
                )
            store = StoreVector(target, self.shifted(target, nest.lhs), length, word)
            self.stmts.append(nest.around(store))
            self.forget_margins(target, nest)

    def nests(self, projections: Projections) -> Iterator[_Nest]:
        """Yield the nests of an assignment: one, or one for each choice of a part of every
        concatenated axis.
        """
        found = False
        for domain, maps in traversals(projections):
            found = True
            yield _with_fresh_variables(domain, maps)
        if not found:
            raise self.error(
                "Some component of a concatenated axis determines every operand.", "none does"
            )

    def operands(
        self, op: Op, args: tuple[Operand, ...], maps: tuple[IndexMap, ...], dtype: DType
    ) -> list[Expr]:
        """Return the operands as expressions, constants in the working format of the operation."""
        stated = args[op is TernaryOp.WHERE :]  # a condition has no influence on other formats
        found = [self.info(a.node).dtype for a in stated if not isinstance(a, Scalar)]
        numbers = [arg.value for arg in args if isinstance(arg, Scalar)]
        working = working_format(op, found, numbers, dtype)
        exprs: list[Expr] = []
        for arg, index_map in zip(args, maps, strict=True):
            match arg:
                case Scalar(value):
                    self.check_magnitude(value, working)
                    fits = not working.is_integer or round_to(value, working) == value
                    exprs.append(constant(value, working if fits or op not in LOGICAL else float64))
                case Cells(node):
                    exprs.append(Load(node, self.shifted(node, index_map), self.info(node).dtype))
                case Merge(node):
                    self.note_merge(node)
                    indices = self.shifted(node, index_map)
                    exprs.append(LoadMerge(node, indices, self.info(node).dtype))
                case _:
                    assert_never(arg)
        return exprs

    def note_merge(self, node: TensorNode) -> None:
        """Record the node of the merge buffer, and refuse a second one."""
        if self.merged is not None and self.merged is not node:
            raise self.error(
                "A routine reads the merge buffer of one tensor, because a device has one buffer.",
                f"{self.merged.name}.merge and {node.name}.merge",
                "compile the code for each tensor on its own, and run it after its transfer",
            )
        self.merged = node

    def apply(self, op: Op, args: list[Expr], dtype: DType) -> Expr:
        """Return a primitive applied to operands, as an expression of the target's format."""
        match op, args:
            case BinaryOp.FIRST, [first, _]:
                return self.convert(first, dtype)
            case BinaryOp.SECOND, [_, second]:
                return self.convert(second, dtype)
            case UnaryOp.IDENTITY, [arg]:
                return self.convert(arg, dtype)
            case UnaryOp.WORD, [arg]:
                self.must_be_word(dtype, op)
                self.must_be_number(arg.dtype, op)
                return Unary(UnaryOp.WORD, arg, dtype)
            case BinaryOp(), [key, counter] if op in HASHES:
                for each in (dtype, key.dtype, counter.dtype):
                    self.must_be_word(each, op)
                return Binary(op, key, counter, dtype)
            case UnaryOp.UNIFORM, [arg]:
                self.must_be_word(arg.dtype, op)
                self.must_be_number(dtype, op)
                return Unary(UnaryOp.UNIFORM, arg, dtype)
            case BinaryOp(), [left, right] if op in COMPARISONS:
                common = promote(left.dtype, right.dtype)
                self.must_be_number(dtype, op)
                return Binary(op, self.convert(left, common), self.convert(right, common), dtype)
            case ((BinaryOp.OR | BinaryOp.AND), [left, right]):
                common = promote(left.dtype, right.dtype)
                both = self.convert(left, common), self.convert(right, common)
                return self.convert(Binary(op, *both, common), dtype)
            case UnaryOp.NOT, [arg]:
                return self.convert(Unary(op, arg, arg.dtype), dtype)
            case TernaryOp.WHERE, [condition, first, second]:
                self.must_be_number(condition.dtype, op)
                first, second = self.convert(first, dtype), self.convert(second, dtype)
                return Ternary(op, condition, first, second, dtype)
        self.must_be_number(dtype, op)
        working = working_format(op, [arg.dtype for arg in args], (), dtype)
        value = self.computed(op, [self.convert(arg, working) for arg in args], working)
        return self.convert(value, dtype)

    def computed(self, op: Op, args: list[Expr], dtype: DType) -> Expr:
        """Return a primitive applied to operands in its working format."""
        match op:
            case UnaryOp():
                return Unary(op, args[0], dtype)
            case BinaryOp():
                return Binary(op, args[0], args[1], dtype)
            case TernaryOp():
                return Ternary(op, args[0], args[1], args[2], dtype)
            case _:
                assert_never(op)

    def convert(self, expr: Expr, dtype: DType) -> Expr:
        if expr.dtype is dtype:
            return expr
        if uint4x32 in (expr.dtype, dtype):
            raise self.error(
                "Numbers and random words do not convert into each other.",
                f"{expr.dtype} where {dtype} is needed",
                "use `uniform` to make a number of a word, and threefry4x32 to make words",
            )
        return Unary(UnaryOp.IDENTITY, expr, dtype)

    def must_be_word(self, dtype: DType, op: Op) -> None:
        if dtype is not uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on random words.",
                f"{dtype}",
                "oc.word(x) makes words of the bits of numbers, oc.random_words() random ones",
            )

    def must_be_number(self, dtype: DType, op: Op) -> None:
        if dtype is uint4x32:
            raise self.error(
                f"The primitive {op.value.name} works on numbers.",
                f"{dtype}",
                "oc.uniform_of(words) makes numbers of random words",
            )

    def check_magnitude(self, value: float, dtype: DType) -> None:
        """Refuse constants near or beyond the end of a narrow range."""
        cutoff = settings.current().half_constant_cutoff
        if dtype not in SHORT_RANGE:
            return
        limit = constant_limit(dtype, cutoff)
        if limit <= abs(value) and not (isinf(value) and dtype.has_infinities):
            raise self.error(
                f"A constant in {dtype} is less than {limit:g} in magnitude, far from the end of "
                "the format's range.",
                f"{value:g}",
                'compute with it in a wider format: dtype="bfloat16" or dtype="float32", where '
                "the tensor beside it is made"
                + ("; or raise the setting half_constant_cutoff" if limit == cutoff else ""),
            )

    def fetch(self, fetch: Fetch) -> None:
        target, source = fetch.target, fetch.source
        dtype = self.info(target).dtype
        match source:
            case Constant(value) if dtype is not uint4x32:
                self.check_magnitude(value, dtype)
                self.fill(target, round_to(value, dtype))
            case Constant(value):
                if value != int(value) or not 0 <= value < 2**64:
                    raise self.error("A random word is made of a natural number.", f"{value}")
                self.everywhere(target, lambda _: ConstBits(int(value), dtype))
            case ConstantBits(bits):
                if dtype.is_float:
                    raise self.error(
                        "A bit pattern fills integers or random words.", f"{target.name}: {dtype}"
                    )
                self.everywhere(target, lambda _: ConstBits(bits, dtype))
            case ConstantFill(values):
                self.must_be_number(dtype, UnaryOp.IDENTITY)
                for value in values:
                    self.check_magnitude(value, dtype)
                self.constant_fill(target, values)
            case RangeOverOffsets():
                dims = self.info(target).dims
                self.everywhere(target, lambda cell: index_value(row_major(cell, dims), dtype))
            case EmbedIndex(index):
                self.everywhere(target, lambda _: index_value(index, dtype))
            case _:
                assert_never(source)

    def everywhere(self, target: TensorNode, value: Callable[[IndexMap], Expr]) -> None:
        """Append loops that store a function of the position in every cell of a node."""
        loops = tuple((fresh_var(), dim) for dim in self.info(target).dims)
        cell = tuple(VarIndex(var) for var, _ in loops)
        store = Store(target, self.shifted(target, cell), value(cell))
        self.stmts.append(_loops(loops, store))

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
            cell = self.shifted(target, _position(offset, info.dims))
            self.stmts.append(Store(target, cell, constants[offset % len(constants)]))

    def fill(self, target: TensorNode, value: float) -> None:
        """Append a fill of the whole buffer of a node."""
        self.stmts.append(Fill(target, value))
        self.margins[target] = value

    # ----- padding -----

    def shifted(self, node: TensorNode, index_map: IndexMap) -> IndexMap:
        """Return an index map with the left margins of a node added."""
        info = self.info(node)
        if len(index_map) != len(info.dims):
            raise self.error(
                "An index map has one index for each axis of its node.",
                f"{len(index_map)} indices for the {len(info.dims)} axes of {node.name}",
            )
        lefts = [margin.left for margin in info.padding] or [0] * len(info.dims)
        return tuple(_plus(index, left) for index, left in zip(index_map, lefts, strict=True))

    def reaches_margins(self, node: TensorNode, index_map: IndexMap, nest: _Nest) -> bool:
        info = self.info(node)
        if not any(margin.left or margin.right for margin in info.padding):
            return False
        ranges: dict[IndexVar, Range] = {var: Range(0, extent - 1) for var, extent in nest.loops}
        for index, dim in zip(index_map, info.dims, strict=True):
            reach = index_range(index, ranges)
            if reach is None and as_affine(index)[0]:
                return True
            if reach is not None and (reach.low < 0 or reach.high >= dim):
                return True
        return False

    def prepare_margins(self, assignment: Accumulate | SetVector, nest: _Nest) -> None:
        """Append fills of the margins that a nest reads, unless they hold the value already."""
        match assignment:
            case Accumulate(combine=combine, beyond=beyond, args=args, op=op):
                needed = _margin_value(combine) if beyond is None else beyond
            case SetVector(arg=arg):
                args, op, needed = (arg,), UnaryOp.IDENTITY, 0.0
            case _:
                assert_never(assignment)
        for arg, index_map in zip(args, nest.rhs, strict=True):
            if isinstance(arg, Scalar) or not self.reaches_margins(arg.node, index_map, nest):
                continue
            if isinstance(arg, Merge):
                raise self.error(
                    "A merge buffer is read inside the axes of its node: margins are not "
                    "transferred.",
                    f"windows over {arg.node.name} that leave them",
                    "assign the merge buffer to a declared tensor, and read that",
                )
            dtype = self.info(arg.node).dtype
            if isinf(needed) and not dtype.has_infinities and op is not UnaryOp.IDENTITY:
                raise self.error(
                    "Arithmetic on margins needs a format with infinities.",
                    f"{arg.node.name}: {dtype}, where {needed} is needed",
                    "convert the tensor to a format with infinities first, such as float32",
                )
            value = saturate(needed, dtype)
            if self.margins.get(arg.node) != value:
                self.stmts += margin_loops(arg.node, self.info(arg.node), value)
                self.margins[arg.node] = value

    def forget_margins(self, target: TensorNode, nest: _Nest) -> None:
        if self.reaches_margins(target, nest.lhs, nest):
            self.margins.pop(target, None)


def _margin_value(combine: BinaryOp) -> float:
    """Return the default value of margins that an accumulation reads."""
    return 0.0 if combine is BinaryOp.SECOND else neutral(combine)


def _writes_each_once(projections: Projections) -> bool:
    return is_surjective(projections) and is_injective(projections)


def _with_fresh_variables(
    domain: tuple[tuple[LoopVar, int], ...], maps: tuple[IndexMap, ...]
) -> _Nest:
    """Return a nest with fresh loop variables, because assignments may share domains."""
    fresh = {var: fresh_var(var.hint) for var, _ in domain}
    values: dict[IndexVar, AxisIndex] = {old: VarIndex(new) for old, new in fresh.items()}
    lhs, *rhs = (tuple(substitute(index, values) for index in index_map) for index_map in maps)
    return _Nest(tuple((fresh[var], extent) for var, extent in domain), lhs, tuple(rhs))


def _plus(index: AxisIndex, offset: int) -> AxisIndex:
    """Add an offset to an index; a sub-axis is at its first position."""
    if offset == 0 and not isinstance(index, SubAxis):
        return index
    terms, own = as_affine(index)
    return affine(terms, own + offset)


def _position(offset: int, dims: Sequence[int]) -> IndexMap:
    position: list[AxisIndex] = []
    for dim in reversed(dims):
        offset, rest = divmod(offset, dim)
        position.insert(0, FixedIndex(rest))
    return tuple(position)


def _neutral_number(op: BinaryOp, dtype: DType) -> float:
    return saturate(neutral(op), dtype)
