"""Text of loop programs, in the notation of user code and in C.

Names are unique within a program; the loop variables of separate nests share them. An inlined
computation stands after (`where`, in the notation of user code) or before (in C) the statement that
uses it.

The notation of user code is complete: `testing.parser` reads it back. It states the number formats
of arrays, variables and conversions. The others follow: a value has the format of the place that it
is stored to, operands have the format of their operation, and an operand that may have any format
(`is_free`) has the first format that its text states. Where none follows, the text states it, as in
`2.5:float16`. The notation of C is for readers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from math import copysign
from typing import assert_never, cast

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, StaticExtent, VarIndex
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node, children, fold, operands_of
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import primitives
from ocannl_core.ir.numbers.dtypes import DType, float64, uint4x32
from ocannl_core.ir.text import (
    ATOM,
    RESERVED_NAMES,
    PrintedNames,
    Text,
    accumulation_symbol,
    application,
    number_text,
    parenthesise,
    subscript,
)

INDENT = "    "

_Simple = (
    ir.Store
    | ir.SetLocal
    | ir.Scatter
    | ir.SubgroupReduce
    | ir.StoreVector
    | ir.Fill
    | ir.DeclareLocal
    | ir.Allocate
    | ir.Barrier
    | ir.Prefetch
    | ir.CheckPositions
    | ir.CallExternal
)
_FormattedText = tuple[Text, DType | None]
"""Text, and the number format that it states; None where the context gives the format."""


def to_text(program: ir.LoopProgram) -> str:
    """Return a program as text, from which `ocannl_core.testing.parser.loops.parse` makes an equal
    one.
    """
    printer = TextPrinter(program)
    return "\n".join([f"routine {program.name}({printer.signature()}):", *printer.body()])


def to_c_like(program: ir.LoopProgram) -> str:
    """Return a program in the notation of C, for readers and not for a compiler."""
    printer = _CLikePrinter(program)
    return "\n".join([f"void {program.name}({printer.signature()}) {{", *printer.body(), "}"])


@dataclass(slots=True)
class TextPrinter:
    """The notation of user code; the notation of C overrides its small methods."""

    program: ir.LoopProgram
    """The program, or one without statements for statements that are passed to `lines`."""
    names: PrintedNames = field(default_factory=lambda: PrintedNames(RESERVED_NAMES))
    """The printed names; they include all nodes and static indices of the program."""

    def __post_init__(self) -> None:
        for node in self.program.nodes:
            self.names.node(node)
        for index in self.program.indices:
            self.names.variable(index)

    def signature(self) -> str:
        given = [f"{self.names.node(n)}: {self.shape(n)}" for n in self.program.params]
        for index in self.program.indices:
            bound = "" if index.extent is None else f" < {index.extent}"
            if isinstance(index, StaticExtent):
                bound = f" <= {index.maximum}"
            given.append(f"static {self.names.variable(index)}{bound}")
        return ", ".join(given)

    def body(self) -> list[str]:
        return [INDENT + line for line in self.block(self.program.body)]

    def block(self, block: ir.Block) -> list[str]:
        return [line for stmt in block.stmts for line in self.lines(stmt)]

    def shape(self, node: TensorNode) -> str:
        info = self.program.nodes[node]
        return f"{info.dtype}[{', '.join(map(str, info.buffer_dims))}]"

    def local(self, local: ir.Local) -> str:
        return self.names.of(local, local.node.name if local.node is not None else "v")

    def lines(self, stmt: ir.Stmt) -> list[str]:
        match stmt:
            case ir.For():
                with self.names.scope():
                    return self.loop(stmt)
            case ir.Repeat():
                return self.repeat(stmt)
            case ir.Block():
                return self.nested("block", self.block(stmt))
            case ir.Verbatim(language, text, body):
                return self.nested(f"verbatim {language}", self.foreign(text) + self.block(body))
            case ir.Remark(text):
                return [self.comment(line) for line in text.splitlines()]
            case _:
                line = self.terminated(self.simple(stmt))
                return self.with_inlined(line, children(stmt))

    def simple(self, stmt: _Simple) -> str:
        """Return the line of a statement without statements inside."""
        match stmt:
            case ir.Store() | ir.SetLocal() | ir.Scatter():
                return self.assignment(stmt)
            case ir.SubgroupReduce(local, value, op, lanes):
                reduced = f"subgroup {lanes} {op.value.name}({self.expr(value)})"
                return f"{self.local(local)} = {reduced}"
            case ir.StoreVector(node, indices, length, word):
                return f"{self.cell(node, indices)}...{length} = lanes({self.expr(word)})"
            case ir.Fill(node, value):
                text, _ = self.number(value, self.program.nodes[node].dtype)
                return f"{self.names.node(node)}[:] = {text}"
            case ir.DeclareLocal(local):
                return self.declaration(self.local(local), str(local.dtype))
            case ir.Allocate(node, scope):
                return f"{scope.value} {self.array(node)}"
            case ir.Barrier(pending):
                return f"barrier({pending or ''})"
            case ir.Prefetch(node, indices):
                return f"prefetch {self.cell(node, indices)}"
            case ir.CheckPositions(node, extent, axis, extents, at_run_time=at_run_time):
                ends = ["" if each is None else self.names.variable(each) for each in extents]
                positions = subscript(self.names.node(node), [f":{end}" for end in ends])
                end = extent if at_run_time is None else self.names.variable(at_run_time)
                return f"check {positions} in range({end}) for {axis}"
            case ir.CallExternal(op, inputs, outputs):
                written = ", ".join(map(self.names.node, outputs))
                read = ", ".join(map(self.names.node, inputs))
                return f"{written} = call {op.name}({read})"
            case _:
                assert_never(stmt)

    def assignment(self, stmt: ir.Store | ir.SetLocal | ir.Scatter) -> str:
        suffix = ""
        match stmt:
            case ir.Store(node, indices, value, is_streamed):
                target = self.cell(node, indices)
                own: ir.Expr = ir.Load(node, indices, self.program.nodes[node].dtype)
                suffix = " streamed" if is_streamed else ""
            case ir.SetLocal(local, value):
                target, own = self.local(local), ir.LocalRead(local)
            case ir.Scatter(_, _, _, position, value):
                (text, _), dtype = fold(position, self.formatted_text, operands_of)
                if dtype is not position.dtype:
                    text, _ = self.annotated((text, _), position.dtype)
                target, own = f"scatter({self.computed_place(stmt, text)})", stmt.own
        match value:
            case ir.Binary(op, left, right) if (
                primitives.accumulates(op) and left == own and not suffix
            ):
                return f"{target} {accumulation_symbol(op)} {self.expr(right)}"
            case _:
                return f"{target} = {self.expr(value)}{suffix}"

    def with_inlined(self, line: str, values: Sequence[Node]) -> list[str]:
        """Return the lines of a statement and of the computations inlined into its values."""
        lines = [line]
        for scoped in _inlined_directly(values):
            inner = self.block(scoped.body)
            declared = self.simple(ir.DeclareLocal(scoped.local))
            lines += [f"{INDENT}where {declared}", *(INDENT * 2 + each for each in inner)]
        return lines

    def loop(self, loop: ir.For) -> list[str]:
        kind = "range" if loop.kind is ir.AxisKind.SERIAL else loop.kind.value
        name = self.names.variable(loop.var)
        head = f"for {name} in {kind}{self.limits(loop.start, loop.stop, loop.bound)}"
        head += "" if loop.traced else " untraced"
        return self.nested(head, self.block(loop.body))

    def repeat(self, stmt: ir.Repeat) -> list[str]:
        """Return a repetition: its accesses and its private nodes, then an iteration."""
        infos = dict(stmt.private)
        inside = replace(self, program=replace(self.program, nodes={**self.program.nodes, **infos}))
        with self.names.scope():
            head = self.names.repetition(stmt.index, stmt.count, stmt.is_reversed)
            lines = self.roles(inputs=stmt.inputs, outputs=stmt.outputs, complete=stmt.complete)
            lines += [inside.terminated(f"private {inside.array(node)}") for node in infos]
            lines += inside.block(stmt.body)
        return self.nested(head, lines)

    def roles(self, **roles: Sequence[TensorNode]) -> list[str]:
        """Return a line for each role that some nodes have."""
        return [
            self.terminated(f"{role} {', '.join(map(self.names.node, nodes))}")
            for role, nodes in roles.items()
            if nodes
        ]

    def limits(self, start: int, stop: int, bound: ir.LoopBound | None) -> str:
        """Return the start and the stop of a loop, and its end below the stop."""
        text = f"({start}, {stop})" if start else f"({stop})"
        if bound is None:
            return text
        return f"{text} while {self.names.index(bound.index)} < {self.names.index(bound.end)}"

    def nested(self, head: str, inner: list[str]) -> list[str]:
        return [f"{head}:", *(INDENT + line for line in inner or ["pass"])]

    def declaration(self, name: str, type_: str) -> str:
        return f"{name}: {type_}"

    def terminated(self, text: str) -> str:
        return text

    def comment(self, text: str) -> str:
        return f"# {text}"

    def array(self, node: TensorNode) -> str:
        return self.declaration(self.names.node(node), self.shape(node))

    def foreign(self, text: str) -> list[str]:
        return [f"| {line}" for line in text.split("\n")] if text else []

    def cell(self, node: TensorNode, indices: Iterable[AxisIndex], suffix: str = "") -> str:
        return self.place(self.names.node(node) + suffix, map(self.names.index, indices))

    def place(self, name: str, positions: Iterable[str]) -> str:
        return subscript(name, positions)

    def expr(self, expr: ir.Expr) -> str:
        text, _ = fold(expr, self.formatted_text, operands_of)
        return text[0]

    def formatted_text(self, node: Node, args: tuple[_FormattedText, ...]) -> _FormattedText:
        """Return the text of an expression and the number format that it states."""
        inside = cast(tuple[ir.Expr, ...], operands_of(node))
        stated = [dtype for _, dtype in args]
        match node:
            case ir.Unary(primitives.UnaryOp.IDENTITY) | ir.Gather():
                places: tuple[int, ...] = (0,)
            case ir.Binary(op) if op in primitives.COMPARISONS:
                places = (0,)
                stated[0] = stated[0] or stated[1]
            case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op):
                places = tuple([n for n in range(len(args)) if is_free(op, n)])
            case _:
                places = ()
        texts = [text for text, _ in args]
        for place in places:
            if stated[place] is not (dtype := inside[place].dtype):
                texts[place] = self.annotated(texts[place], dtype)
                stated[place] = dtype
        match node:
            case ir.Const() | ir.ConstBits():
                own: DType | None = None
            case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op) if (
                op is not primitives.UnaryOp.IDENTITY
            ):
                own = stated_format(op, stated)
            case _:
                own = cast(ir.Expr, node).dtype
        return self.node_text(node, tuple(texts)), own

    def annotated(self, text: Text, dtype: DType) -> Text:
        return f"{parenthesise(text, ATOM)}:{dtype}", ATOM

    def node_text(self, node: Node, args: tuple[Text, ...]) -> Text:
        match node:
            case ir.Load():
                return self.cell(node.node, node.indices), ATOM
            case ir.LoadMerge():
                return self.cell(node.node, node.indices, ".merge"), ATOM
            case ir.Gather(beyond=beyond, dtype=dtype):
                place = self.computed_place(node, args[0][0])
                value = self.number(beyond, dtype)[0]
                is_zero = copysign(1.0, beyond) > 0 and beyond == 0
                return f"gather({place})" if is_zero else f"gather({place}, {value})", ATOM
            case ir.LocalRead(local) | ir.Scoped(local):
                return self.local(local), ATOM
            case ir.Const(value, dtype):
                return self.number(value, dtype)
            case ir.ConstBits(bits):
                return f"{bits:#x}", ATOM
            case ir.IndexValue(index, dtype):
                level = ATOM if isinstance(index, VarIndex | FixedIndex) else 0
                return self.conversion((self.names.index(index), level), dtype)
            case ir.Unary(primitives.UnaryOp.IDENTITY, _, dtype):
                return self.conversion(args[0], dtype)
            case ir.Unary(
                primitives.UnaryOp.NEG, ir.Const()
            ):  # without parentheses a negative constant
                return application(primitives.UnaryOp.NEG, [(f"({args[0][0]})", ATOM)])
            case ir.Ternary(primitives.TernaryOp.WHERE):
                return self.where(*args)
            case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op):
                return application(op, args)
            case _:
                raise TypeError(f"{type(node).__name__} is no expression")

    def computed_place(self, access: ir.Gather | ir.Scatter, position: str) -> str:
        """Return the text of a cell at a computed position."""
        inside = [self.names.index(index) for index in access.indices]
        inside[access.axis] = position
        return self.place(self.names.node(access.node), inside)

    def number(self, value: float, dtype: DType) -> Text:
        text = number_text(value, dtype)
        return text, ATOM - 2 if text.startswith("-") else ATOM

    def conversion(self, arg: Text, dtype: DType) -> Text:
        return f"{dtype}({arg[0]})", ATOM

    def where(self, condition: Text, first: Text, second: Text) -> Text:
        return f"where({condition[0]}, {first[0]}, {second[0]})", ATOM


class _CLikePrinter(TextPrinter):
    """The notation of C."""

    __slots__ = ()

    def annotated(self, text: Text, dtype: DType) -> Text:
        return text

    def signature(self) -> str:
        given = list(map(self.array, self.program.params))
        given += [f"int {self.names.variable(index)}" for index in self.program.indices]
        return ", ".join(given)

    def with_inlined(self, line: str, values: Sequence[Node]) -> list[str]:
        lines: list[str] = []
        for scoped in _inlined_directly(values):
            lines.append(self.terminated(self.simple(ir.DeclareLocal(scoped.local))))
            lines += self.nested("", self.block(scoped.body))
        return [*lines, line]

    def loop(self, loop: ir.For) -> list[str]:
        name = self.names.variable(loop.var)
        head = f"for (int {name} = {loop.start}; {name} < {loop.stop}; ++{name})"
        remark = "" if loop.kind is ir.AxisKind.SERIAL else f"  // {loop.kind.value}"
        first, *rest = self.nested(head, self.block(loop.body))
        return [first + remark, *rest]

    def nested(self, head: str, inner: list[str]) -> list[str]:
        opening = f"{head} {{" if head.startswith("for (") else "{"
        opening += f"  // {head}" if opening == "{" and head else ""
        return [opening, *(INDENT + line for line in inner), "}"]

    def declaration(self, name: str, type_: str) -> str:
        return f"{type_} {name}"

    def terminated(self, text: str) -> str:
        return f"{text};"

    def comment(self, text: str) -> str:
        return f"// {text}"

    def array(self, node: TensorNode) -> str:
        info = self.program.nodes[node]
        return f"{info.dtype} {self.place(self.names.node(node), map(str, info.buffer_dims))}"

    def simple(self, stmt: _Simple) -> str:
        match stmt:
            case ir.StoreVector(node, indices, length, word):
                return f"store_lanes(&{self.cell(node, indices)}, {length}, {self.expr(word)})"
            case ir.Fill(node, value):
                text, _ = self.number(value, self.program.nodes[node].dtype)
                return f"fill({self.names.node(node)}, {text})"
            case ir.CheckPositions(node, extent, _, extents, at_run_time=at_run_time):
                ends = map(self.names.variable, filter(None, (*extents, at_run_time)))
                last = [] if at_run_time else [str(extent)]
                return f"check({', '.join([self.names.node(node), *ends, *last])})"
            case ir.CallExternal():
                return super().simple(stmt).replace(" = call ", " = ", 1)
            case _:
                return super().simple(stmt)

    def foreign(self, text: str) -> list[str]:
        return []

    def place(self, name: str, positions: Iterable[str]) -> str:
        return name.replace(".", "_") + "".join(f"[{position}]" for position in positions)

    def number(self, value: float, dtype: DType) -> Text:
        text, level = super().number(value, dtype)
        return (text + "f" if dtype.is_float and dtype is not float64 else text), level

    def conversion(self, arg: Text, dtype: DType) -> Text:
        return f"({dtype}){parenthesise(arg, ATOM - 1)}", ATOM - 2

    def where(self, condition: Text, first: Text, second: Text) -> Text:
        texts = [parenthesise(each, 1) for each in (condition, first, second)]
        return f"{texts[0]} ? {texts[1]} : {texts[2]}", 0


def _inlined_directly(values: Sequence[Node]) -> list[ir.Scoped]:
    """Return the inlined computations of expressions, without computations inside their bodies."""
    found: list[ir.Scoped] = []
    pending: list[Node] = list(reversed(values))
    while pending:
        node = pending.pop()
        if isinstance(node, ir.Scoped):
            found.append(node)
        else:
            pending.extend(reversed(children(node)))
    return found


_FREE = frozenset(
    {
        (primitives.UnaryOp.IDENTITY, 0),
        (primitives.UnaryOp.WORD, 0),
        (primitives.UnaryOp.BITCAST, 0),
        (primitives.BinaryOp.FIRST, 1),
        (primitives.BinaryOp.SECOND, 0),
        (primitives.TernaryOp.WHERE, 0),
    }
)


def is_free(op: primitives.Op, position: int) -> bool:
    """Return True if an operand may have any format, independently of the other operands."""
    return (op, position) in _FREE


def stated_format(op: primitives.Op, operands: Sequence[DType | None]) -> DType | None:
    """Return the format that the text of an operation states; None if it states none.

    Args:
        op: The primitive; a conversion states its format by itself.
    """
    if op is primitives.UnaryOp.WORD or op in primitives.HASHES:
        return uint4x32
    if op in (primitives.UnaryOp.UNIFORM, primitives.UnaryOp.BITCAST):
        return None
    stated = (each for place, each in enumerate(operands) if each and not is_free(op, place))
    return next(stated, None)
