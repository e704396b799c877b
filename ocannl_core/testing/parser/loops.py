"""Parse the printed text of loop programs.

`parse` is the inverse of `ir.loops.printer.to_text`, except for information that the text leaves
out: margins (they are part of the extents), the nodes of scalar variables, and the indices of
`Scoped`. External operations are printed by name, and passed to `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import StaticExtent, StaticIndex, fresh_var
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import uint4x32
from ocannl_core.ir.numbers.primitives import BinaryOp, accumulates
from ocannl_core.ir.text import accumulation_symbol
from ocannl_core.testing.parser.python_expressions import ExpressionParser
from ocannl_core.testing.parser.symbols import SourceLine, leading, nested_lines, python_name

RANGE = r"\((?:(-?\d+), )?(-?\d+)\)(?: while (.+?) < (\w+))?"
REPETITION = r"repeat (\w+) in range\((\d+)\)( reversed)?"

_STATIC = re.compile(r"static (\w+)(?: (<=?) (\d+))?")
_KINDS = {("range" if kind is ir.AxisKind.SERIAL else kind.value): kind for kind in ir.AxisKind}
_ACCUMULATORS = {accumulation_symbol(op): op for op in BinaryOp if accumulates(op)}


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
        ParseError: if the text does not follow the notation; the message gives the line.
    """
    parser = ProgramParser(externals or {})
    name, params, indices, lines = parser.head(text, "routine")
    body = parser.block(lines)
    return ir.LoopProgram(name, params, indices, parser.infos, body)


class ProgramParser(ExpressionParser):
    """A parser of statements."""

    def __init__(self, externals: Mapping[str, ExternalOp]) -> None:
        super().__init__()
        self.externals = externals

    def head(
        self, text: str, kind: str
    ) -> tuple[str, tuple[TensorNode, ...], tuple[StaticIndex, ...], Sequence[SourceLine]]:
        """Return the name, the parameters and the static indices of a program, and its lines."""
        self.line, *others = nested_lines(text) or [SourceLine(1, "")]
        found = re.fullmatch(rf"{kind} (.*)\(([^()]*)\):\s*", self.line.text)
        if found is None:
            raise self.error(f"no head of a {kind}, `{kind} name(a: float32[3]):`")
        if others:
            raise others[0].error("a line that is not indented")
        params: list[TensorNode] = []
        indices: list[StaticIndex] = []
        for item in filter(None, re.split(r", (?=[^\W\d])", found[2])):
            if (static := _STATIC.fullmatch(item)) is None:
                params.append(self.array(item))
                continue
            name, relation, bound = static.groups()
            kind_of_index, more = (StaticExtent, 1) if relation == "<=" else (StaticIndex, 0)
            index = kind_of_index(name, int(bound) + more if bound else None)
            self.define(name, index)
            indices.append(index)
        return found[1], tuple(params), tuple(indices), self.line.inside

    def block(self, lines: Sequence[SourceLine]) -> ir.Block:
        stmts: list[ir.Stmt] = []
        for is_remark, group in groupby(lines, lambda line: line.text.startswith("#")):
            if is_remark:  # consecutive comments are one remark
                texts = [line.text[1:].removeprefix(" ") for line in group]
                stmts.append(ir.Remark("\n".join(texts) + ("" if texts[-1] else "\n")))
            else:
                stmts += [self.statement(line) for line in group if line.text.strip() != "pass"]
        return ir.Block(tuple(stmts))

    def statement(self, line: SourceLine) -> ir.Stmt:
        text = line.text.rstrip()
        self.begin(line, {} if text.endswith(":") else self.computations(line))
        for form, read in _FORMS:
            if found := form.fullmatch(text):
                return read(self, *found.groups())
        raise self.error("no statement")

    def begin(self, line: SourceLine, inlined: dict[str, list[ir.Scoped]]) -> None:
        """Go on to a line with inlined computations."""
        self.line, self.inlined = line, inlined

    def computations(self, line: SourceLine) -> dict[str, list[ir.Scoped]]:
        """Return the inlined computations of a statement by name."""
        inlined: dict[str, list[ir.Scoped]] = {}
        for each in line.inside:
            self.line = each
            found = re.fullmatch(r"where (\w+): (\w+)\s*", each.text)
            if found is None:
                raise self.error("a line that is indented too far")
            scoped = ir.Scoped(self.scalar(found[1], found[2]), self.block(each.inside))
            inlined.setdefault(python_name(found[1]), []).append(scoped)
        return inlined

    def loop(self, name: str, kind: str, *rest: str | None) -> ir.For:
        if kind not in _KINDS:
            raise self.error(f"`{kind}` instead of a kind of loop: {', '.join(_KINDS)}")
        *limits, untraced = rest
        var = fresh_var(name)
        with self.scope(name, var):
            start, stop, bound = self.limits(*limits)
            body = self.block(self.line.inside)
        return ir.For(var, start, stop, body, _KINDS[kind], untraced is None, bound)

    def limits(
        self, start: str | None, stop: str | None, index: str | None, end: str | None
    ) -> tuple[int, int, ir.LoopBound | None]:
        """Return the start and the stop of a loop, and its end at run time, if there is one."""
        bound: ir.LoopBound | None = None
        if index and end:
            extent = int(end) if end.isdecimal() else self.find(end, StaticExtent)
            bound = ir.LoopBound(self.index(index), extent)
        return int(start or 0), int(stop or 0), bound

    def repeat(self, name: str, count: str, is_reversed: str | None) -> ir.Repeat:
        rest: Sequence[SourceLine] = self.line.inside
        accessed: dict[str, tuple[TensorNode, ...]] = {}
        for role in ("inputs", "outputs", "complete"):
            accessed[role], rest = self.marked(role, rest)
        private, rest = self.marked("private", rest)
        index = StaticIndex(name, int(count))
        with self.scope(name, index):
            body = self.block(rest)
        infos = tuple([(node, self.infos.pop(node)) for node in private])
        return ir.Repeat(
            index, int(count), is_reversed is not None, body, **accessed, private=infos
        )

    def marked(
        self, word: str, lines: Sequence[SourceLine]
    ) -> tuple[tuple[TensorNode, ...], Sequence[SourceLine]]:
        """Return the arrays that the first lines state after a word, and the lines below."""
        found, rest = leading(lines, f"{word} ")
        nodes = [
            [self.array(line.text)] if ":" in line.text else self.arrays(line.text)
            for line in found
        ]
        return tuple(chain.from_iterable(nodes)), rest

    def verbatim(self, language: str) -> ir.Verbatim:
        texts, rest = leading(self.line.inside, "|")
        text = "\n".join([each.text.removeprefix(" ") for each in texts])
        return ir.Verbatim(language, text, self.block(rest))

    def call(self, outputs: str, name: str, inputs: str) -> ir.CallExternal:
        op = self.externals.get(name) or NamedOp(name)
        return ir.CallExternal(op, self.arrays(inputs), self.arrays(outputs))

    def check(self, name: str, ends: str | None, extent: str, axis: str) -> ir.CheckPositions:
        texts = [each.strip(" :") for each in ends.split(",")] if ends else []
        extents = tuple([self.find(each, StaticExtent) if each else None for each in texts])
        at_run_time = None if extent.isdigit() else self.find(extent, StaticExtent)
        most = int(extent) if at_run_time is None else at_run_time.maximum
        node = self.find(name, TensorNode)
        return ir.CheckPositions(node, most, axis, extents, at_run_time=at_run_time)

    def fill(self, name: str, value: str) -> ir.Fill:
        node = self.find(name, TensorNode)
        return ir.Fill(node, self.number(value, self.infos[node].dtype))

    def subgroup(self, name: str, lanes: str, function: str, value: str) -> ir.SubgroupReduce:
        """Return a reduction across neighboring iterations."""
        local = self.find(name, ir.Local)
        op = next((op for op in _ACCUMULATORS.values() if op.value.name == function), None)
        if op is None:
            raise self.error(f"`{function}`, which reduces nothing")
        return ir.SubgroupReduce(local, self.expression(value, local.dtype), op, int(lanes))

    def vector(self, cell: str, length: str, word: str) -> ir.StoreVector:
        node, indices = self.cell(cell)
        return ir.StoreVector(node, indices, int(length), self.expression(word, uint4x32))

    def assignment(self, target: str, symbol: str, text: str, streamed: str | None) -> ir.Stmt:
        own = self.expression(target)
        value, op = self.expression(text, own.dtype), _ACCUMULATORS[symbol]
        if op is not BinaryOp.SECOND:
            value = ir.Binary(op, own, value, own.dtype)
        match own:
            case ir.Load(node, indices):
                return ir.Store(node, indices, value, streamed is not None)
            case ir.LocalRead(local) if streamed is None:
                return ir.SetLocal(local, value)
            case ir.Gather(node, indices, axis, position) if streamed is None:
                return ir.Scatter(node, indices, axis, position, value)
            case _:
                raise self.error(f"`{target}` instead of a cell or a variable")


_FORMS: Sequence[tuple[re.Pattern[str], Callable[..., ir.Stmt]]] = [
    (re.compile(form), read)
    for form, read in (
        (rf"for (\w+) in (\w+){RANGE}( untraced)?:", ProgramParser.loop),
        (rf"{REPETITION}:", ProgramParser.repeat),
        (r"block:", lambda parser: parser.block(parser.line.inside)),
        (r"verbatim (.*):", ProgramParser.verbatim),
        (r"([\w, ]*) = call ([^\W\d].*)\(([\w, ]*)\)", ProgramParser.call),
        (r"check (\w+)(?:\[([^]]*)\])? in range\((\w+)\) for (.*)", ProgramParser.check),
        (r"barrier\((\d*)\)", lambda _, pending: ir.Barrier(int(pending or 0))),
        (r"prefetch ([^\W\d].*)", lambda parser, cell: ir.Prefetch(*parser.cell(cell))),
        (
            rf"({'|'.join([scope.value for scope in ir.Scope])}) (\w+: .*)",
            lambda parser, scope, array: ir.Allocate(parser.array(array), ir.Scope(scope)),
        ),
        (r"(\w+): (\w+)", lambda parser, *local: ir.DeclareLocal(parser.scalar(*local))),
        (r"(\w+)\[:\] = (.+)", ProgramParser.fill),
        (r"(\w+) = subgroup (\d+) (\w+)\((.*)\)", ProgramParser.subgroup),
        (r"(.+)\.\.\.(\d+) = lanes\((.*)\)", ProgramParser.vector),
        (
            rf"(.+?) ({'|'.join(map(re.escape, _ACCUMULATORS))}) (.+?)((?<=[\w\])]) streamed)?",
            ProgramParser.assignment,
        ),
    )
]
