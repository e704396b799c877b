"""Parse the printed text of loop programs, so that tests can build nests from text.

`parse` is the inverse of `printer.to_text`, except for information that the text leaves out:
margins (they are part of the extents), the nodes of scalar variables, and the indices of `Scoped`.
External operations are printed by name, and passed to `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import StaticExtent, StaticIndex, fresh_var
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.parse_expression import (
    SymbolTable,
    read_constant,
    read_expression,
    read_format,
    read_index,
    read_indices,
    read_node,
)
from ocannl_core.ir.loops.printer import INDENT
from ocannl_core.ir.loops.tokens import Cursor, TextLine, Token
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, accumulates
from ocannl_core.ir.text import accumulation_symbol

_ROUTINE = re.compile(r" *routine (?P<name>.*)\((?P<signature>[^()]*)\):\s*$")
_STAGED = re.compile(r" *staged (?P<language>.*):\s*$")
_CALL = re.compile(r" *(?P<outputs>[\w, ]*) = call (?P<name>[^\W\d].*)\((?P<inputs>[\w, ]*)\)\s*$")
_CHECK = re.compile(
    r" *check (?P<node>\w+)(\[(?P<ends>[^]]*)\])? in range\((?P<extent>\d+)\) for (?P<axis>.*)$"
)
_KINDS = {("range" if kind is ir.AxisKind.SERIAL else kind.value): kind for kind in ir.AxisKind}
_SCOPES = {scope.value: scope for scope in ir.Scope}
_ACCUMULATORS = {
    accumulation_symbol(op).removesuffix("="): op
    for op in BinaryOp
    if accumulates(op) and op is not BinaryOp.SECOND
}


@dataclass(frozen=True, slots=True)
class NamedOp:
    """An external operation of which a text gives the name alone."""

    name: str
    line_axis: int | None = None

    def perform(
        self, inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]]
    ) -> None:
        raise UsageError(
            "The external operations of a parsed program are passed to `parse`.",
            found=f"a call of {self.name}",
            fix=f"parse(text, {{{self.name!r}: ...}})",
        )


def parse(text: str, externals: Mapping[str, ExternalOp] | None = None) -> ir.LoopProgram:
    """Return the program whose printed text is given.

    Args:
        text: One routine; every line may be indented by the same number of spaces.
        externals: The external operations by name; others cannot be performed.

    Raises:
        ParseError: if the text does not follow the notation; the message gives line and column.
    """
    lines = [TextLine(n, line) for n, line in enumerate(text.split("\n"), 1)]
    return TextParser([line for line in lines if line.text.strip()], externals or {}).program()


class TextParser:
    """The state of a recursive descent over the blocks of a text; the last line comes first."""

    def __init__(self, lines: list[TextLine], externals: Mapping[str, ExternalOp]) -> None:
        self.lines = lines[::-1]
        self.externals = externals
        self.names = SymbolTable()
        self.ids = count()

    def program(self) -> ir.LoopProgram:
        name, params, indices, indent = self.header(_ROUTINE, "routine")
        body = self.block(indent)
        self.expect_end()
        return ir.LoopProgram(name, params, indices, self.names.infos, body)

    def header(
        self, form: re.Pattern[str], kind: str
    ) -> tuple[str, tuple[TensorNode, ...], tuple[StaticIndex, ...], int]:
        """Consume the first line; return name, parameters, indices and the indentation below."""
        if not self.lines:
            raise TextLine(1, "").error(0, f"no {kind}", f"write `{kind} name(...):`")
        head = self.lines.pop()
        found = form.match(head.text)
        if found is None:
            raise head.error(
                head.indent, f"no head of a {kind}", f"write `{kind} name(a: float32[3]):`"
            )
        cursor = Cursor(head)
        while cursor.peek().column < found.start("signature"):
            cursor.take()
        return found["name"], *self.signature(cursor), head.indent + len(INDENT)

    def expect_end(self) -> None:
        if self.lines:
            line = self.lines[-1]
            raise line.error(line.indent, "a line that is not indented", "indent the line")

    def signature(self, cursor: Cursor) -> tuple[tuple[TensorNode, ...], tuple[StaticIndex, ...]]:
        params: list[TensorNode] = []
        indices: list[StaticIndex] = []
        while not cursor.accept(")"):
            if params or indices:
                cursor.expect(",")
            if cursor.peek().text == "static" and cursor.peek(1).kind == "name":
                cursor.take()
                name = self.new_name(cursor)
                if cursor.accept("<="):
                    indices.append(StaticExtent(name, cursor.expect_integer() + 1))
                else:
                    extent = cursor.expect_integer() if cursor.accept("<") else None
                    indices.append(StaticIndex(name, extent))
                self.names.variables[name] = indices[-1]
            else:
                params.append(self.array(cursor))
        return tuple(params), tuple(indices)

    def new_name(self, cursor: Cursor) -> str:
        """Consume a name that is not in use."""
        token = cursor.expect_kind("name", "a name")
        names = self.names
        if token.text in {*names.nodes, *names.scalars, *names.variables}:
            raise cursor.error_at(token, f"{token} for a second time", "choose another name")
        return token.text

    def array(self, cursor: Cursor) -> TensorNode:
        """Consume the declaration of an array; several scopes may allocate one array."""
        token = cursor.peek()
        node = self.names.nodes.get(token.text)
        name = self.new_name(cursor) if node is None else cursor.take().text
        cursor.expect(":")
        dtype = read_format(cursor)
        dims: list[int] = []
        cursor.expect("[")
        while not cursor.accept("]"):
            if dims:
                cursor.expect(",")
            dims.append(cursor.expect_integer())
        info = NodeInfo(dtype, tuple(dims))
        if node is None:
            node = self.names.nodes[name] = TensorNode(len(self.names.nodes), (name,))
            self.names.infos[node] = info
        elif self.names.infos[node] != info:
            raise cursor.error_at(
                token, f"{token} with another format or extents", "choose another name"
            )
        return node

    def scalar(self, cursor: Cursor) -> ir.Local:
        """Consume the declaration of a scalar variable; several scopes may declare one variable."""
        token = cursor.peek()
        local = self.names.scalars.get(token.text)
        name = self.new_name(cursor) if local is None else cursor.take().text
        cursor.expect(":")
        dtype = read_format(cursor)
        if local is None:
            number = next(self.ids)
            node = None if name == "v" else TensorNode(-1 - number, (name,))
            local = self.names.scalars[name] = ir.Local(number, dtype, node)
        elif local.dtype is not dtype:
            raise cursor.error_at(token, f"{token} with another format", "choose another name")
        return local

    def block(self, indent: int) -> ir.Block:
        """Consume the lines that are indented by this number of spaces, or more."""
        stmts: list[ir.Stmt] = []
        while self.lines and (line := self.lines[-1]).indent >= indent:
            if line.indent > indent:
                raise line.error(
                    line.indent, "a line that is indented too far", f"indent it by {indent} spaces"
                )
            if line.text.strip() == "pass":
                self.lines.pop()
            else:
                stmts.append(self.statement(indent))
        return ir.Block(tuple(stmts))

    def statement(self, indent: int) -> ir.Stmt:
        line = self.lines[-1]
        if line.text.startswith("#", indent):
            texts = self.marked("#", indent)  # consecutive comments are one remark
            return ir.Remark("\n".join(texts) + ("" if texts[-1] else "\n"))
        self.lines.pop()
        inner = indent + len(INDENT)
        if found := _STAGED.match(line.text):
            text = "\n".join(self.marked("|", inner))
            return ir.Staged(found["language"], text, self.block(inner))
        if line.text.strip() == "block:":
            return self.block(inner)
        if (found := _CALL.match(line.text)) is not None:
            return self.call(line, found)
        if (found := _CHECK.match(line.text)) is not None:
            (node,) = self.arrays(line, *found.span("node"))
            ends = [end.strip(" :") for end in (found["ends"] or "").split(",")]
            extents = tuple(self.extent_of(line, end) for end in ends) if found["ends"] else ()
            return ir.CheckPositions(node, int(found["extent"]), found["axis"], extents)
        cursor = Cursor(line)
        word, following = cursor.peek().text, cursor.peek(1)
        if word == "for" and following.kind == "name":
            return self.loop(cursor, inner)
        if word == "repeat" and following.kind == "name":
            return self.repeat(cursor, inner)
        stmt = self.simple(cursor, word, following, inner)
        cursor.expect_end()
        return stmt

    def simple(self, cursor: Cursor, word: str, following: Token, inner: int) -> ir.Stmt:
        names = self.names
        if word == "barrier" and following.text == "(":
            cursor.expect(word, "(")
            pending = 0 if cursor.peek().text == ")" else cursor.expect_integer()
            cursor.expect(")")
            return ir.Barrier(pending)
        if word == "prefetch" and following.kind == "name":
            cursor.take()
            return ir.Prefetch(read_node(cursor, names), read_indices(cursor, names))
        if word in _SCOPES and following.kind == "name":
            cursor.take()
            return ir.Allocate(self.array(cursor), _SCOPES[word])
        if following.text == ":":
            return ir.DeclareLocal(self.scalar(cursor))
        if following.text == "[" and cursor.peek(2).text == ":":
            node = read_node(cursor, names)
            cursor.expect(*"[:]=")
            return ir.Fill(node, read_constant(cursor, names.infos[node].dtype))
        return self.assignment(cursor, inner)

    def assignment(self, cursor: Cursor, inner: int) -> ir.Stmt:
        inlined = self.inlined(inner)
        names = self.names
        if cursor.peek().text == "scatter" and cursor.peek(1).text == "(":
            return self.scatter(cursor, inlined)
        if (local := names.scalars.get(cursor.peek().text)) is not None:
            cursor.take()
            if cursor.peek(1).text == "subgroup" and cursor.peek(2).text.isdigit():
                return self.subgroup(cursor, local, inlined)
            return ir.SetLocal(local, self.value(cursor, ir.LocalRead(local), inlined))
        if cursor.peek().text not in names.nodes:
            raise cursor.error("an array or a variable that is declared above")
        node = read_node(cursor, names)
        indices = read_indices(cursor, names)
        if cursor.accept("..."):
            length = cursor.expect_integer()
            cursor.expect("=", "lanes", "(")
            word = read_expression(cursor, names, uint4x32, inlined)
            cursor.expect(")")
            return ir.StoreVector(node, indices, length, word)
        value = self.value(cursor, ir.Load(node, indices, names.infos[node].dtype), inlined)
        return ir.Store(node, indices, value, cursor.accept("streamed"))

    def subgroup(self, cursor: Cursor, local: ir.Local, inlined: _Inlined) -> ir.SubgroupReduce:
        """Consume a reduction across neighbouring iterations."""
        cursor.expect("=", "subgroup")
        lanes, name = cursor.expect_integer(), cursor.take()
        op = next((op for op in BinaryOp if op.value.name == name.text and accumulates(op)), None)
        if op is None:
            raise cursor.error_at(name, f"{name}, which reduces nothing", "write add, for example")
        cursor.expect("(")
        value = read_expression(cursor, self.names, local.dtype, inlined)
        cursor.expect(")")
        return ir.SubgroupReduce(local, value, op, lanes)

    def scatter(self, cursor: Cursor, inlined: _Inlined) -> ir.Scatter:
        """Consume a store to a computed position."""
        start = cursor.peek()
        own = read_expression(cursor, self.names, uint4x32, inlined, is_computed_cell=True)
        if not isinstance(own, ir.Gather):
            raise cursor.error_at(start, "no cell at a computed position", "write scatter(a[p]) =")
        value = self.value(cursor, own, inlined)
        return ir.Scatter(own.node, own.indices, own.axis, own.position, value)

    def value(
        self, cursor: Cursor, own: ir.Load | ir.LocalRead | ir.Gather, inlined: _Inlined
    ) -> ir.Expr:
        """Consume `= value`, or an accumulation into a target."""
        op = None if cursor.peek().text == "=" else _ACCUMULATORS.get(cursor.peek().text)
        if op is not None:
            cursor.take()
        cursor.expect("=")
        value = read_expression(cursor, self.names, own.dtype, inlined)
        return value if op is None else ir.Binary(op, own, value, own.dtype)

    def inlined(self, indent: int) -> _Inlined:
        """Consume the inlined computations of a statement; return them by name."""
        found: dict[str, list[ir.Scoped]] = {}
        while self.lines and self.lines[-1].indent == indent:
            cursor = Cursor(self.lines[-1])
            if not cursor.accept("where") or cursor.peek().kind != "name":
                break
            self.lines.pop()
            name = cursor.peek().text
            local = self.scalar(cursor)
            cursor.expect_end()
            body = self.block(indent + len(INDENT))
            found.setdefault(name, []).append(ir.Scoped(local, body))
        return found

    def loop(self, cursor: Cursor, inner: int) -> ir.For:
        cursor.take()
        name = self.new_name(cursor)
        cursor.expect("in")
        kind = _KINDS.get(cursor.peek().text)
        if kind is None:
            raise cursor.error("a kind of loop: " + ", ".join(_KINDS))
        cursor.take()
        start, stop = cursor.expect_range()
        var = fresh_var(name)
        self.names.variables[name] = var
        bound = self.bound(cursor)
        is_traced = not cursor.accept("untraced")
        cursor.expect(":")
        cursor.expect_end()
        body = self.block(inner)
        del self.names.variables[name]
        return ir.For(var, start, stop, body, kind, is_traced, bound)

    def bound(self, cursor: Cursor) -> ir.LoopBound | None:
        """Consume the end of a loop at run time, if there is one."""
        if not cursor.accept("while"):
            return None
        index = read_index(cursor, self.names)
        cursor.expect("<")
        if cursor.peek().text.isdigit():
            return ir.LoopBound(index, cursor.expect_integer())
        extent = self.names.variables.get(cursor.peek().text)
        if not isinstance(extent, StaticExtent):
            raise cursor.error("an extent, declared as `static n <= 256`")
        cursor.take()
        return ir.LoopBound(index, extent)

    def repeat(self, cursor: Cursor, inner: int) -> ir.Repeat:
        cursor.take()
        name = self.new_name(cursor)
        cursor.expect("in", "range", "(")
        count = cursor.expect_integer()
        cursor.expect(")")
        is_reversed = cursor.accept("reversed")
        cursor.expect(":")
        cursor.expect_end()
        accessed = {role: self.role(role, inner) for role in ("inputs", "outputs", "complete")}
        private = self.declared("private", inner)
        index = self.names.variables[name] = StaticIndex(name, count)
        body = self.block(inner)
        del self.names.variables[name]
        infos = tuple((node, self.names.infos.pop(node)) for node in private)
        return ir.Repeat(index, count, is_reversed, body, **accessed, private=infos)

    def declared(self, word: str, indent: int) -> tuple[TensorNode, ...]:
        """Consume lines that each declare an array after a word."""
        nodes: list[TensorNode] = []
        while self.lines and self.lines[-1].text.startswith(f"{word} ", indent):
            line = Cursor(self.lines.pop())
            line.take()
            nodes.append(self.array(line))
            line.expect_end()
        return tuple(nodes)

    def role(self, role: str, indent: int) -> tuple[TensorNode, ...]:
        """Consume the line with the nodes of a role in a repetition, if there is one."""
        if not (self.lines and self.lines[-1].text.startswith(f"{role} ", indent)):
            return ()
        line = self.lines.pop()
        return self.arrays(line, indent + len(role), len(line.text))

    def call(self, line: TextLine, found: re.Match[str]) -> ir.CallExternal:
        op = self.externals.get(found["name"]) or NamedOp(found["name"])
        inputs, outputs = (self.arrays(line, *found.span(each)) for each in ("inputs", "outputs"))
        return ir.CallExternal(op, inputs, outputs)

    def extent_of(self, line: TextLine, name: str) -> StaticExtent | None:
        """Return the extent at run time with a name; None without one."""
        if not name:
            return None
        extent = self.names.variables.get(name)
        if not isinstance(extent, StaticExtent):
            raise line.error(
                line.indent, f"`{name}`, which is no extent", "name one: static n <= 8"
            )
        return extent

    def arrays(self, line: TextLine, start: int, stop: int) -> tuple[TensorNode, ...]:
        """Return the arrays named between two columns of a line."""
        nodes: list[TensorNode] = []
        for match in re.finditer(r"\w+", line.text[start:stop]):
            if match[0] not in self.names.nodes:
                raise line.error(
                    start + match.start(),
                    f"`{match[0]}`, which is no array",
                    "name parameters, or arrays allocated above",
                )
            nodes.append(self.names.nodes[match[0]])
        return tuple(nodes)

    def marked(self, mark: str, indent: int) -> list[str]:
        """Consume consecutive lines that begin with a mark; return the text behind it."""
        texts: list[str] = []
        while self.lines and self.lines[-1].indent == indent:
            if not self.lines[-1].text.startswith(mark, indent):
                break
            texts.append(self.lines.pop().text[indent + 1 :].removeprefix(" "))
        return texts


_Inlined = Mapping[str, Sequence[ir.Scoped]]
