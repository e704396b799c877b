"""Text of plans: kernels and kernel nests in the notation of the loop language.

    plan layer(a: float32[4, 6], b: float32[6, 5], c: float32[4, 5], static step < 10):
        scratch t: float32[4]
        kernel t = 0:
            schedule split i 4; vectorise i1
            for i in range(4):
                t[i] = 0.0
        nest c = a @ b:
            axes i in range(4), j in range(5), reduce k in range(6)
            result: float32 = 0.0
            result += a[i, k] * b[k, j]
            c[i, j] = result

A kernel nest is printed as its axes, its reduction (the initial value, then the accumulation of one
term) and its epilogue. A nest whose sums may be paired is a `pairing nest`, a kernel whose loops
run on several threads a `parallel kernel`. A row group is printed as `rows` with its nests, each
with the axes that it shares. Repeated steps are printed as `repeat` with the steps of an iteration.

Names are unique within a plan, and the loop variables of separate steps share them. An axis is
named by the letter that schedules use; `k as k1` where that letter is the name of an array.
`testing.parser` reads the text back, except for information that concerns no result: measured
times, the statements that a nest was read from, and equal earlier kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from ocannl_core.ir.kernels.nest import KernelNest, LoopAxis
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestPlan, NestStep, RowGroup
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, RepeatedSteps
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.loops.nodes import Block, Local, LoopProgram
from ocannl_core.ir.loops.printer import TextPrinter
from ocannl_core.ir.loops.traverse import rename_local
from ocannl_core.ir.node import TensorNode

RESULT = TensorNode(-1, ("result",))
"""Names the variable that holds the result of a reduction."""


def to_text(plan: NestPlan) -> str:
    """Return the canonical text of a plan."""
    empty = LoopProgram(plan.name, plan.params, plan.indices, plan.nodes, Block(()))
    printer = TextPrinter(empty)
    lines = [f"scratch {printer.array(node)}" for node in plan.scratch]
    for step in plan.steps:
        lines += _step(printer, step)
    return "\n".join(printer.nested(f"plan {plan.name}({printer.signature()})", lines))


def _step(printer: TextPrinter, step: NestStep) -> list[str]:
    match step:
        case Kernel(body, title=title, schedule=schedule, is_parallel=is_parallel):
            head = _head("parallel kernel" if is_parallel else "kernel", title)
            lines = [f"schedule {schedule_text(schedule)}"] if schedule else []
            lines += [line for stmt in body.stmts for line in printer.lines(stmt)]
            return printer.nested(head, lines)
        case HostCall(call, title):
            return printer.nested(_head("host", title), printer.lines(call))
        case NestKernel():
            return nest_lines(printer, step)
        case RowGroup():
            return _row_group(printer, step)
        case RepeatedSteps(index, count, is_reversed):
            order = " reversed" if is_reversed else ""
            head = f"repeat {printer.names.variable(index)} in range({count}){order}"
            lines = [f"scratch {printer.array(node)}" for node in step.scratch]
            lines += [line for each in step.steps for line in _step(printer, each)]
            return printer.nested(_head(head, step.title), lines)
        case _:
            assert_never(step)


def _head(kind: str, title: str) -> str:
    return " ".join([kind, *title.split()])


def nest_lines(printer: TextPrinter, kernel: NestKernel, options: Iterable[str] = ()) -> list[str]:
    """Return the lines of a nest, with options in front of its axes."""
    nest = kernel.nest
    kinds = ["nest"]
    if nest.reduction is not None and nest.reduction.may_pair:
        kinds.insert(0, "pairing")
    if nest.reduction is not None and nest.reduction.is_widened:
        kinds.insert(0, "widened")
    head = _head(" ".join(kinds), kernel.title)
    with printer.names.scope():
        axes = ", ".join([_axis(printer, axis) for axis in nest.axes])
        lines = [*options, *([f"axes {axes}"] if axes else []), *_computation(printer, nest)]
    return printer.nested(head, lines)


def _axis(printer: TextPrinter, axis: LoopAxis) -> str:
    kind = "shift " if axis.is_shifting else "reduce " if axis.is_reduced else ""
    name = printer.names.of(axis.var, axis.name)
    alias = "" if name == axis.name else f" as {name}"
    start = f"{axis.start}, " if axis.start else ""
    end = "" if axis.bound is None else printer.end(axis.bound)
    return f"{kind}{axis.name}{alias} in range({start}{axis.start + axis.extent}){end}"


def _computation(printer: TextPrinter, nest: KernelNest) -> list[str]:
    """Return the reduction and the epilogue of a nest."""
    reduction = nest.reduction
    if reduction is None:
        return [line for store in nest.epilogue for line in printer.lines(store)]
    result = Local(reduction.result.id, reduction.dtype, RESULT)
    body = rename_local(Block((*reduction.statements, *nest.epilogue)), reduction.result, result)
    (head, *inlined), *lines = [printer.lines(stmt) for stmt in body.stmts]
    name = printer.local(result)
    declared = printer.declaration(name, str(reduction.dtype))
    return [
        f"{declared}{head.removeprefix(name)}",
        *inlined,
        *(line for each in lines for line in each),
    ]


def _row_group(printer: TextPrinter, group: RowGroup) -> list[str]:
    fusion = group.fusion
    lines: list[str] = []
    for verb, nodes in (
        ("fold", fusion.folded),
        ("inline", fusion.inlined),
        ("stream", fusion.streamed),
    ):
        if nodes:
            lines.append(f"{verb} {', '.join(map(printer.names.node, nodes))}")
    for at, (nest, title) in enumerate(zip(group.nests, group.titles, strict=True)):
        rows = [schedule_text((fusion.rows_of(at),))]
        lines += nest_lines(printer, NestKernel(nest, title), rows)
    return printer.nested("rows", lines)
