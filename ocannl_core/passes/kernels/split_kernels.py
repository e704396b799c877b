"""Split a routine into kernels, one for each top-level loop nest.

# c = w @ x                     kernel "c = w @ x (writes c)", given c, w, x
c[:] = 0.0              -->
for b in range(64): ...         kernel "writes c", given w, x, c
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from ocannl_core.base.errors import VerifyError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.text import PrintedNames
from ocannl_core.passes.loops.once_per_form import is_loop_free
from ocannl_core.schedule.machine_model import MAX_STRAIGHT_LINE_STATEMENTS


def split_kernels(program: ir.LoopProgram) -> kernel_ir.Plan:
    """Return the routine as kernels and host calls, in program order.

    Every top-level nest, fill or verbatim code becomes a kernel; neighboring statements without
    loops share one, up to a length. Statements from the declaration of a variable, or of memory
    narrower than the routine's, to its last use stay together.

    Raises:
        VerifyError: if an external call lies between the declaration of a variable and its use.
    """
    cutter = _KernelSplitter(program)
    for group in _groups(tuple(_flat(program.body))):
        cutter.add(group)
    return kernel_ir.Plan(
        program.name,
        tuple(cutter.finished()),
        program.params,
        tuple(cutter.scratch),
        program.indices,
        {**program.nodes, **cutter.private},
    )


@dataclass(slots=True)
class _KernelSplitter:
    """The steps so far, and the pending parts of the next one."""

    program: ir.LoopProgram
    steps: list[kernel_ir.Step] = field(default_factory=list)
    scratch: list[TensorNode] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    scalars: list[ir.Stmt] = field(default_factory=list)
    scalar_remarks: list[str] = field(default_factory=list)
    names: PrintedNames = field(default_factory=PrintedNames)
    private: dict[TensorNode, NodeInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.program.nodes:
            self.names.node(node)

    def add(self, group: tuple[ir.Stmt, ...]) -> None:
        match group:
            case (ir.Remark(text),):
                self.remarks.append(text)
            case (ir.Barrier(),):
                pass  # kernels run one after the other
            case (ir.Allocate(node, ir.Scope.ROUTINE),):
                self.scratch.append(node)
            case (ir.CallExternal() as call,):
                self.close_scalars()
                title = self.title(self.remarks, group)
                self.steps.append(kernel_ir.HostCall(call, title))
                self.remarks = []
            case (ir.Repeat() as repeat,):
                self.close_scalars()
                self.steps.append(self.repetition(repeat))
                self.remarks = []
            case (ir.CheckPositions(origin=origin),):  # a kernel of its own, before others write
                self.close_scalars()
                body = ir.Block(group)
                self.steps.append(kernel_ir.kernel_of(body, f"check positions: {origin}"))
            case _ if all(map(is_loop_free, group)):
                if len(self.scalars) + len(group) > MAX_STRAIGHT_LINE_STATEMENTS:
                    self.close_scalars()
                self.scalars += group
                self.scalar_remarks += self.remarks
                self.remarks = []
            case _:
                self.close_scalars()
                self.steps.append(self.nest(group, self.remarks))
                self.remarks = []

    def repetition(self, repeat: ir.Repeat) -> kernel_ir.RepeatedSteps:
        nodes = {**self.program.nodes, **dict(repeat.private)}
        inside = split_kernels(replace(self.program, nodes=nodes, body=repeat.body))
        self.private |= {n: info for n, info in inside.nodes.items() if n not in self.program.nodes}
        title = "; ".join(self.remarks)
        order = repeat.index, repeat.count, repeat.is_reversed
        used = frozenset(node for step in inside.steps for node in kernel_ir.nodes_of_step(step))
        private = tuple(node for node, _ in repeat.private if node in used)
        return kernel_ir.RepeatedSteps(*order, inside.steps, (*private, *inside.scratch), title)

    def finished(self) -> list[kernel_ir.Step]:
        self.close_scalars()
        return self.steps

    def close_scalars(self) -> None:
        if self.scalars:
            self.steps.append(self.nest(tuple(self.scalars), self.scalar_remarks))
        self.scalars, self.scalar_remarks = [], []

    def nest(self, group: tuple[ir.Stmt, ...], remarks: list[str]) -> kernel_ir.Kernel:
        body = ir.Block(tuple(stmt for stmt in group if not isinstance(stmt, ir.Remark)))
        return kernel_ir.kernel_of(body, self.title(remarks, group))

    def title(self, remarks: list[str], group: tuple[ir.Stmt, ...]) -> str:
        inside = [stmt.text for stmt in group if isinstance(stmt, ir.Remark)]
        body = ir.Block(group)
        own = set(traverse.allocated_nodes(body))
        written = ", ".join(self.names.node(n) for n in traverse.writes(body) if n not in own)
        text = "; ".join([*remarks, *inside])
        return f"{text} (writes {written})" if text else f"writes {written}"


def _flat(body: ir.Block) -> Iterator[ir.Stmt]:
    """Yield statements, also of inner blocks; memory of several blocks is allocated once."""
    seen: set[TensorNode] = set()
    for stmt in traverse.flattened(body):
        if isinstance(stmt, ir.Allocate):
            if stmt.node in seen:
                continue
            seen.add(stmt.node)
        yield stmt


def _groups(stmts: tuple[ir.Stmt, ...]) -> Iterator[tuple[ir.Stmt, ...]]:
    """Yield groups of statements: single ones, or those from a declaration to its last use."""
    last_use: dict[object, int] = {}
    if any(_declared(stmt) is not None for stmt in stmts):
        for position, stmt in enumerate(stmts):
            last_use.update(
                dict.fromkeys((*traverse.locals_of(stmt), *traverse.nodes_of(stmt)), position)
            )
    start = 0
    while start < len(stmts):
        end = position = start
        while position <= end:
            end = max(end, last_use.get(_declared(stmts[position]), 0))
            position += 1
        group = stmts[start : end + 1]
        if len(group) > 1 and any(isinstance(stmt, ir.CallExternal) for stmt in group):
            raise VerifyError(
                "A variable or a kernel's memory is not used across an external call.",
                found=f"declared by {stmts[start]!r}",
            )
        yield group
        start = end + 1


def _declared(stmt: ir.Stmt) -> object:
    match stmt:
        case ir.DeclareLocal(local):
            return local
        case ir.Allocate(node, scope) if scope is not ir.Scope.ROUTINE:
            return node
        case _:
            return None
