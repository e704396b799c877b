"""Parse the printed text of plans, so that tests can build kernels and nests from text.

`parse` is the inverse of `printer.to_text`, except for information that the text leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import StaticIndex, fresh_var
from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis, Reduction
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestLeaf, NestStep, RowGroup
from ocannl_core.ir.kernels.nodes import HostCall, Plan, RepeatedSteps, kernel_of
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion
from ocannl_core.ir.kernels.transforms import FuseRows, Schedule, parse_schedule
from ocannl_core.ir.loops.nodes import Binary, CallExternal, LocalRead, SetLocal, Store
from ocannl_core.ir.loops.parse import TextParser
from ocannl_core.ir.loops.printer import INDENT
from ocannl_core.ir.loops.tokens import Cursor, TextLine
from ocannl_core.ir.node import TensorNode

_PLAN = re.compile(r" *plan (?P<name>.*)\((?P<signature>[^()]*)\):\s*$")
_STEP = re.compile(
    r" *(?P<kind>parallel kernel|kernel|host|(?:widened )?(?:pairing )?nest|rows)"
    r"( (?P<title>.*))?:\s*$"
)
_REPEAT = re.compile(
    r" *repeat (?P<index>\w+) in range\((?P<count>\d+)\)(?P<order> reversed)?( (?P<title>.*))?:\s*$"
)
_SCHEDULE = re.compile(r" *schedule (?P<text>[a-z].*)$")
_ROWS = re.compile(r" *(?P<text>rows [a-z].*)$")
_STORAGE = re.compile(r" *(?P<verb>fold|inline|stream) (?P<nodes>[\w, ]+)$")
_RESULT = re.compile(r" *\w+: \w+ = ")


def parse(text: str, externals: Mapping[str, ExternalOp] | None = None) -> Plan[Any]:
    """Return the plan whose printed text is given.

    Args:
        text: One plan; every line may be indented by the same number of spaces.
        externals: The external operations by name; others cannot be performed.

    Raises:
        ParseError: if the text does not follow the notation; the message gives line and column.
    """
    lines = [TextLine(n, line) for n, line in enumerate(text.split("\n"), 1)]
    return _PlanParser([line for line in lines if line.text.strip()], externals or {}).plan()


class _PlanParser(TextParser):
    """The state of a recursive descent over the steps of a text."""

    def plan(self) -> Plan[Any]:
        name, params, indices, indent = self.header(_PLAN, "plan")
        scratch, steps = self.steps(indent)
        self.expect_end()
        return Plan(name, steps, params, scratch, indices, self.names.infos)

    def steps(self, indent: int) -> tuple[tuple[TensorNode, ...], tuple[NestStep, ...]]:
        """Consume scratch nodes, and the steps below."""
        scratch = self.declared("scratch", indent)
        steps: list[NestStep] = []
        while self.lines and self.lines[-1].indent == indent:
            if self.lines[-1].text.strip() == "pass":
                self.lines.pop()
            else:
                steps.append(self.step(indent))
        return scratch, tuple(steps)

    def step(self, indent: int) -> NestStep:
        if (found := self.matched(_REPEAT)) is not None:
            return self.repetition(found, indent + len(INDENT))
        line, kind, title = self.step_head()
        inner = indent + len(INDENT)
        match kind:
            case "host":
                body = self.block(inner)
                if len(body.stmts) != 1 or not isinstance(body.stmts[0], CallExternal):
                    raise line.error(indent, "a host step that is no call", "write one call")
                return HostCall(body.stmts[0], title)
            case "rows":
                return self.row_group(line, inner)
            case _ if kind.endswith("nest"):
                return NestKernel(self.nest(line, inner, kind), title)
            case _:
                found = self.matched(_SCHEDULE)
                schedule: Schedule = () if found is None else parse_schedule(found["text"])
                kernel = kernel_of(self.block(inner), title)
                return replace(kernel, schedule=schedule, is_parallel=kind == "parallel kernel")

    def repetition(self, found: re.Match[str], indent: int) -> RepeatedSteps[NestLeaf]:
        name, count = found["index"], int(found["count"])
        index = self.names.variables[name] = StaticIndex(name, count)
        scratch, steps = self.steps(indent)
        del self.names.variables[name]
        title = found["title"] or ""
        return RepeatedSteps(index, count, found["order"] is not None, steps, scratch, title)

    def step_head(self) -> tuple[TextLine, str, str]:
        """Consume the first line of a step; return it, the kind and the title."""
        line = self.lines.pop()
        found = _STEP.match(line.text)
        if found is None:
            raise line.error(line.indent, "no head of a step", "write `kernel title:`")
        return line, found["kind"], found["title"] or ""

    def matched(self, form: re.Pattern[str]) -> re.Match[str] | None:
        """Consume the next line if it has a form."""
        found = form.match(self.lines[-1].text) if self.lines else None
        if found is not None:
            self.lines.pop()
        return found

    def nest(self, line: TextLine, indent: int, kind: str) -> KernelNest:
        axes: list[LoopAxis] = []
        names: list[str] = []
        if self.lines and self.lines[-1].text.startswith("axes ", indent):
            cursor = Cursor(self.lines.pop())
            cursor.take()
            while not axes or cursor.accept(","):
                axes.append(self.axis(cursor, names))
            cursor.expect_end()
        reduction: Reduction | None = None
        if self.lines and _RESULT.match(self.lines[-1].text):
            may_pair, is_widened = "pairing" in kind, "widened" in kind
            reduction = replace(self.reduction(indent), may_pair=may_pair, is_widened=is_widened)
        stmts = self.block(indent).stmts
        epilogue = tuple(each for each in stmts if isinstance(each, Store))
        if len(epilogue) != len(stmts):
            raise line.error(line.indent, "an epilogue with other statements", "write stores")
        for name in names:
            del self.names.variables[name]
        return KernelNest(tuple(axes), reduction, epilogue)

    def axis(self, cursor: Cursor, names: list[str]) -> LoopAxis:
        is_shifting = cursor.accept("shift")
        is_reduced = is_shifting or cursor.accept("reduce")
        letter = cursor.peek().text
        if cursor.peek(1).text == "as":
            cursor.take()
            cursor.take()
        name = self.new_name(cursor)
        cursor.expect("in", "range")
        start, stop = cursor.expect_range()
        var = self.names.variables[name] = fresh_var(letter)
        names.append(name)
        end = self.bound(cursor)
        return LoopAxis(letter, var, start, stop - start, is_reduced, is_shifting, end)

    def reduction(self, indent: int) -> Reduction:
        """Consume the initial value and the accumulation of a term."""
        line = self.lines.pop()
        cursor = Cursor(line)
        result = self.scalar(cursor)
        inlined = self.inlined(indent + len(INDENT))
        initial = self.value(cursor, LocalRead(result), inlined)
        cursor.expect_end()
        match self.statement(indent) if self.lines else None:
            case SetLocal(local, Binary(op, LocalRead(partial), term)) if (
                local == partial == result
            ):
                return Reduction(op, term, initial, result)
            case _:
                raise line.error(indent, "no accumulation", "write `result += term` below")

    def row_group(self, line: TextLine, indent: int) -> RowGroup:
        storage: dict[str, tuple[TensorNode, ...]] = {}
        while self.lines and (found := _STORAGE.match(self.lines[-1].text)) is not None:
            storage[found["verb"]] = self.arrays(self.lines.pop(), *found.span("nodes"))
        members: list[Member] = []
        titles: list[str] = []
        rows: list[FuseRows] = []
        while self.lines and self.lines[-1].indent == indent:
            head, kind, title = self.step_head()
            found = self.matched(_ROWS)
            match parse_schedule(found["text"]) if found is not None else ():
                case (FuseRows() as own,) if kind.endswith("nest"):
                    rows.append(own)
                case _:
                    raise head.error(indent, "no nest with rows", "write `rows i` below")
            members.append(Member(self.nest(head, indent + len(INDENT), kind), own.axes))
            titles.append(title)
        if not rows:
            raise line.error(line.indent, "a row group without nests", "write its nests below")
        along = frozenset(at for at, own in enumerate(rows) if own.is_along)
        first = rows[0]
        fold, inline, stream = (storage.get(verb, ()) for verb in ("fold", "inline", "stream"))
        storages = fold, inline, stream, first.threads
        fusion = RowFusion(tuple(members), first.size, first.groups, along, *storages)
        return RowGroup(tuple(titles), fusion)
