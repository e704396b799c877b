"""Text of plans: kernels and kernel nests in the notation of the loop language.

    plan layer(a: float32[4, 6], b: float32[6, 5], c: float32[4, 5], static step < 10):
        scratch t: float32[4]
        kernel t = 0:
            schedule split i 4; vectorize i1
            for i in range(4):
                t[i] = 0.0
        nest c = a @ b:
            axes i in range(4), j in range(5), reduce k in range(6)
            result: float32 = 0.0
            result += a[i, k] * b[k, j]
            c[i, j] = result

A kernel nest is printed as its axes, its reduction (the initial value, then the accumulation of one
term) and its epilogue. A nest that may use all matrix units (`accumulation = "fast"`) is a `fast
nest`, a kernel whose loops run on several threads a `parallel kernel`. A row group is printed as
`rows` with its nests, each with the axes that it shares. Repeated steps are printed as `repeat`
with the steps of an iteration.

Names are unique within a plan, and the loop variables of separate steps share them. An axis is
named by the letter that schedules use; `k as k1` where that letter is the name of an array.
`testing.parser` reads the text back, except for information that concerns no result: measured
times, the statements that a nest was read from, and equal earlier kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from ocannl_core.ir.kernels.nest import LoopAxis, Nest
from ocannl_core.ir.kernels.nest_plan import NestKernel, NestLeaf, NestPlan, NestStep
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, RepeatedSteps
from ocannl_core.ir.kernels.row_fusion import RowFusion
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
    head = f"plan {plan.name}({printer.signature()})"
    return "\n".join(printer.nested(head, _steps(printer, plan)))


def _steps(printer: TextPrinter, block: NestPlan | RepeatedSteps[NestLeaf]) -> list[str]:
    """Return the scratch nodes and the steps of a plan or of an iteration."""
    lines = [f"scratch {printer.array(node)}" for node in block.scratch]
    return lines + [line for step in block.steps for line in _step(printer, step)]


def _step(printer: TextPrinter, step: NestStep) -> list[str]:
    match step:
        case Kernel(body, title=title, schedule=schedule, is_parallel=is_parallel):
            head = _head("parallel kernel" if is_parallel else "kernel", title)
            lines = [f"schedule {schedule_text(schedule)}"] if schedule else []
            return printer.nested(head, lines + printer.block(body))
        case HostCall(call, title):
            return printer.nested(_head("host", title), printer.lines(call))
        case NestKernel(nest, title):
            return nest_lines(printer, nest, title)
        case RowFusion():
            return _row_group(printer, step)
        case RepeatedSteps(index, count, is_reversed):
            head = printer.names.repetition(index, count, is_reversed)
            return printer.nested(_head(head, step.title), _steps(printer, step))
        case _:
            assert_never(step)


def _head(kind: str, title: str) -> str:
    return " ".join([kind, *title.split()])


def nest_lines(
    printer: TextPrinter, nest: Nest, title: str = "", options: Iterable[str] = ()
) -> list[str]:
    """Return the lines of a nest, with options in front of its axes."""
    kind = "nest"
    if nest.reduction is not None:
        kind = "fast " * nest.reduction.is_fast + kind
        kind = "widened " * nest.reduction.is_widened + kind
    with printer.names.scope():
        axes = ", ".join([_axis(printer, axis) for axis in nest.axes])
        lines = [*options, *([f"axes {axes}"] if axes else [])]
        if nest.repetition is not None:
            names = ", ".join(map(printer.names.node, nest.repetition.constants))
            lines.append(f"repeated {nest.repetition.count} times with {names}")
        lines += _computation(printer, nest)
    return printer.nested(_head(kind, title), lines)


def _axis(printer: TextPrinter, axis: LoopAxis) -> str:
    kind = "shift " if axis.is_shifting else "reduce " if axis.is_reduced else ""
    name = printer.names.of(axis.var, axis.name)
    alias = "" if name == axis.name else f" as {name}"
    limits = printer.limits(axis.start, axis.start + axis.extent, axis.bound)
    return f"{kind}{axis.name}{alias} in range{limits}"


def _computation(printer: TextPrinter, nest: Nest) -> list[str]:
    """Return the reduction and the epilogue of a nest."""
    reduction = nest.reduction
    if reduction is None:
        return printer.block(Block(nest.epilogue))
    result = Local(reduction.result.id, reduction.dtype, RESULT)
    body = rename_local(Block((*reduction.statements, *nest.epilogue)), reduction.result, result)
    head, *lines = printer.block(body)
    name = printer.local(result)
    return [f"{name}: {reduction.dtype}{head.removeprefix(name)}", *lines]


def _row_group(printer: TextPrinter, fusion: RowFusion) -> list[str]:
    lines = printer.roles(fold=fusion.folded, inline=fusion.inlined, stream=fusion.streamed)
    for at, each in enumerate(fusion.members):
        rows = [schedule_text((fusion.rows_of(at),))]
        lines += nest_lines(printer, each.nest, each.title, rows)
    return printer.nested("rows", lines)
