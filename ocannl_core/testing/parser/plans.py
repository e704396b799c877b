"""Parse the printed text of plans.

`parse` is the inverse of `ir.kernels.printer.to_text`, except for information that the text leaves
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.external import ExternalOp
from ocannl_core.ir.indexing import StaticIndex, fresh_var
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, NestRepetition, Reduction
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestStep
from ocannl_core.ir.kernels.nodes import HostCall, Plan, RepeatedSteps, kernel_of
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion
from ocannl_core.ir.kernels.transforms import FuseRows, parse_kernel_schedule
from ocannl_core.ir.loops.nodes import Binary, Block, CallExternal, LocalRead, SetLocal, Store
from ocannl_core.ir.node import TensorNode
from ocannl_core.testing.parser.loops import RANGE, REPETITION, ProgramParser
from ocannl_core.testing.parser.symbols import SourceLine, leading

_REPETITION = re.compile(rf"{REPETITION}(?: (.*))?:\s*")
_STEP = re.compile(r"(parallel kernel|kernel|host|(?:widened )?(?:fast )?nest|rows)(?: (.*))?:\s*")
_AXIS = re.compile(rf"(shift |reduce )?(\w+)(?: as (\w+))? in range{RANGE}\s*")


def parse(text: str, externals: Mapping[str, ExternalOp] | None = None) -> Plan[Any]:
    """Return the plan whose printed text is given.

    Args:
        text: One plan; every line may be indented by the same number of spaces.
        externals: The external operations by name; others cannot be performed.

    Raises:
        ParseError: if the text does not follow the notation; the message gives the line.
    """
    parser = _PlanParser(externals or {})
    name, params, indices, lines = parser.head(text, "plan")
    scratch, steps = parser.steps(lines)
    return Plan(name, steps, params, scratch, indices, parser.infos)


class _PlanParser(ProgramParser):
    """A parser of steps."""

    def steps(
        self, lines: Sequence[SourceLine]
    ) -> tuple[tuple[TensorNode, ...], tuple[NestStep, ...]]:
        """Return the scratch nodes that the first lines declare, and the steps below."""
        scratch, rest = self.marked("scratch", lines)
        return scratch, tuple([self.step(each) for each in rest if each.text.strip() != "pass"])

    def step(self, line: SourceLine) -> NestStep:
        if (found := _REPETITION.fullmatch(line.text)) is not None:
            name, count, is_reversed, title = found.groups(default="")
            index = StaticIndex(name, int(count))
            with self.scope(name, index):
                scratch, steps = self.steps(line.inside)
            return RepeatedSteps(index, int(count), bool(is_reversed), steps, scratch, title)
        kind, title = self.step_head(line)
        match kind:
            case "kernel" | "parallel kernel":
                stated, rest = leading(line.inside, "schedule ")
                kernel = kernel_of(self.block(rest), title)
                schedule = parse_kernel_schedule(stated[0].text) if stated else ()
                return replace(kernel, schedule=schedule, is_parallel=kind != "kernel")
            case "host":
                match self.block(line.inside):
                    case Block((CallExternal() as call,)):
                        return HostCall(call, title)
                raise line.error("a host step that is no call")
            case "rows":
                return self.row_group(line)
            case _:
                return NestKernel(self.nest(kind, line.inside), title)

    def step_head(self, line: SourceLine) -> tuple[str, str]:
        """Go on to a step; return its kind and its title."""
        self.begin(line, {})
        found = _STEP.fullmatch(line.text)
        if found is None:
            raise self.error("no head of a step, `kernel title:`")
        return found[1], found[2] or ""

    def nest(self, kind: str, lines: Sequence[SourceLine]) -> Nest:
        line, (stated, rest) = self.line, leading(lines, "axes ")
        with ExitStack() as scopes:
            texts = re.split(r", (?=[^\W\d])", stated[0].text) if stated else []
            axes = tuple([self.axis(scopes, text) for text in texts])
            repeated, rest = leading(rest, "repeated ")
            repetition = self.repetition(repeated[0].text) if repeated else None
            reduction, rest = self.reduction(kind, rest)
            stmts = self.block(rest).stmts
        epilogue = tuple([each for each in stmts if isinstance(each, Store)])
        if len(epilogue) != len(stmts):
            raise line.error("an epilogue with other statements than stores")
        return Nest(axes, reduction, epilogue, repetition=repetition)

    def repetition(self, text: str) -> NestRepetition:
        count, _, names = text.partition(" times with ")
        return NestRepetition(int(count), self.arrays(names))

    def axis(self, scopes: ExitStack, text: str) -> LoopAxis:
        """Return an axis, whose variable is defined until the end of the nest."""
        found = _AXIS.fullmatch(text)
        if found is None:
            raise self.error(f"`{text}` instead of an axis, `i in range(4)`")
        kind, letter, alias, *limits = found.groups()
        var = fresh_var(letter)
        scopes.enter_context(self.scope(alias or letter, var))
        start, stop, bound = self.limits(*limits)
        is_reduced, is_shifting = kind is not None, kind == "shift "
        return LoopAxis(letter, var, start, stop - start, is_reduced, is_shifting, bound)

    def reduction(
        self, kind: str, lines: Sequence[SourceLine]
    ) -> tuple[Reduction | None, Sequence[SourceLine]]:
        """Return the reduction that the first lines state, if any, and the lines below.

        They are the initial value of a variable and the accumulation of a term.
        """
        found = re.fullmatch(r"(\w+): (\w+) = (.+)", lines[0].text) if lines else None
        if found is None:
            return None, lines
        self.begin(lines[0], self.computations(lines[0]))
        result = self.scalar(found[1], found[2])
        initial = self.expression(found[3], result.dtype)
        match self.block(lines[1:2]):
            case Block((SetLocal(local, Binary(op, LocalRead(own), term)),)) if (
                local == own == result
            ):
                is_fast, is_widened = "fast" in kind, "widened" in kind
                return Reduction(op, term, initial, result, is_fast, is_widened), lines[2:]
        raise lines[0].error("no accumulation `result += term` below")

    def row_group(self, line: SourceLine) -> RowFusion:
        folded, rest = self.marked("fold", line.inside)
        inlined, rest = self.marked("inline", rest)
        streamed, rest = self.marked("stream", rest)
        members: list[Member] = []
        rows: list[FuseRows] = []
        for each in rest:
            kind, title = self.step_head(each)
            stated, lines = leading(each.inside, "rows ")
            match parse_kernel_schedule(f"rows {stated[0].text}") if stated else ():
                case (FuseRows() as own,) if kind.endswith("nest"):
                    rows.append(own)
                case _:
                    raise each.error("no nest with rows, `rows i` below")
            members.append(Member(self.nest(kind, lines), own.axes, title))
        if not rows:
            raise line.error("a row group without nests")
        along = frozenset([at for at, own in enumerate(rows) if own.is_along])
        first, storages = rows[0], (folded, inlined, streamed)
        return RowFusion(tuple(members), first.size, first.groups, along, *storages, first.threads)
