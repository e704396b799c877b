"""Verifier of plans, run between kernel passes in tests.

A broken invariant is a defect of the pass that produced the plan, so the error lists all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import field
from itertools import dropwhile
from typing import assert_never

from ocannl_core.base.errors import VerifyError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels import nest_plan
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.nest import LoopAxis, Nest, is_independent
from ocannl_core.ir.kernels.row_fusion import RowFusion, find_row_dims, nodes_written_by_rows
from ocannl_core.ir.kernels.transforms import AXIS_LETTERS
from ocannl_core.ir.loops import traverse
from ocannl_core.ir.loops.nodes import Block, DeclareLocal, For, LoopProgram, SetLocal, Stmt
from ocannl_core.ir.loops.verify import broken_invariants
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import REORDERED


def verify(plan: nest_plan.NestPlan) -> None:
    """Check the invariants of the kernel language; a `VerifyError` lists the broken ones."""
    checker = _Checker(plan)
    checker.run()
    if checker.problems:
        raise VerifyError(
            "A plan keeps the invariants of the kernel language.",
            found="\n".join(dict.fromkeys(checker.problems)),
            where=f"plan {plan.name}",
            fix="report this as a defect, with the plan",
        )


@dataclass(slots=True)
class _Checker:
    """The state of one check.

    Attributes:
        step: The place of the step being checked, as the beginning of a message; empty for the
            plan as a whole.
    """

    plan: nest_plan.NestPlan
    problems: list[str] = field(default_factory=list)
    step: str = ""

    def run(self) -> None:
        self.tables()
        for number, step in enumerate(self.plan.steps, 1):
            title = step.title
            self.step = f"step {number} ({title}): " if title else f"step {number}: "
            self.check(step)

    def problem(self, text: str) -> None:
        self.problems.append(self.step + text)

    def tables(self) -> None:
        """Check the parameters, the scratch nodes and the static indices."""
        plan = self.plan
        for kind, nodes in (("parameter", plan.params), ("scratch node", plan.scratch)):
            for node in _repeated(nodes):
                self.problem(f"{node!r} is a {kind} twice")
            for node in nodes:
                if node not in plan.nodes:
                    self.problem(f"{node!r} is a {kind} but not in the table of nodes")
        for node in plan.params:
            if node in plan.scratch:
                self.problem(f"{node!r} is both a parameter and a scratch node")
        for index in _repeated(plan.indices):
            self.problem(f"static index {index} is listed twice")
        used = frozenset[TensorNode]().union(*map(nest_plan.mentioned, plan.steps))
        for node in plan.scratch:
            if node not in used:
                self.problem(f"scratch node {node!r} is mentioned by no step")

    def check(self, step: nest_plan.NestStep) -> None:
        match step:
            case kernel_ir.RepeatedSteps():
                self.repetition(step)
            case kernel_ir.Kernel():
                self.kernel(step)
            case kernel_ir.HostCall(call):
                self.memory(kernel_ir.nodes_of_step(step))
                self.body(Block((call,)), traverse.nodes_of(call))
            case nest_plan.NestKernel(nest):
                self.nest(nest)
            case RowFusion():
                for nest in step.nests:
                    self.nest(nest)
                self.row_fusion(step)
            case _:
                assert_never(step)

    def repetition(self, repeated: kernel_ir.RepeatedSteps[nest_plan.NestLeaf]) -> None:
        """Check the steps of an iteration as a plan; its parameters have memory of this plan."""
        plan = self.plan
        if repeated.count < 0 or repeated.index.extent != repeated.count:
            self.problem(f"the steps over {repeated.index.name} repeat {repeated.count} times")
        outside = (*plan.params, *plan.scratch)
        indices = (*plan.indices, repeated.index)
        steps, scratch = repeated.steps, repeated.scratch
        checker = _Checker(
            nest_plan.NestPlan(plan.name, steps, outside, scratch, indices, plan.nodes)
        )
        checker.run()
        for problem in checker.problems:
            self.problem(problem)

    def memory(self, nodes: Iterable[TensorNode]) -> None:
        """Check that nodes have memory of the plan."""
        for node in nodes:
            if node not in self.plan.params and node not in self.plan.scratch:
                self.problem(f"{node!r} is neither a parameter nor a scratch node")

    def body(self, body: Block, params: Sequence[TensorNode]) -> None:
        """Check the invariants of the loop language."""
        plan = self.plan
        program = LoopProgram(plan.name, tuple(params), plan.indices, plan.nodes, body)
        for problem in broken_invariants(program):
            self.problem(problem)

    def kernel(self, kernel: kernel_ir.Kernel) -> None:
        own = set(traverse.allocated_nodes(kernel.body))
        used = [node for node in traverse.nodes_of(kernel.body) if node not in own]
        self.listed("argument", kernel.arguments, used)
        self.listed("static index", kernel.indices, traverse.static_indices(kernel.body))
        self.memory(kernel.arguments)
        self.body(kernel.body, tuple(dict.fromkeys(kernel.arguments)))
        if kernel.is_parallel and not _has_parallel_form(kernel.body.stmts):
            self.problem("a parallel kernel has statements outside parallel loops")

    def listed(self, kind: str, found: Sequence[object], expected: Collection[object]) -> None:
        """Check that a kernel lists the objects that its body uses, each once."""
        for each in _repeated(found):
            self.problem(f"{kind} {each!r} is listed twice")
        for each in found:
            if each not in expected:
                self.problem(f"{kind} {each!r} is not mentioned by the body")
        for each in expected:
            if each not in found:
                self.problem(f"the body mentions {each!r}, which is no {kind}")

    def nest(self, nest: Nest) -> None:
        for name in _repeated([axis.name for axis in nest.axes]):
            self.problem(f"two axes have the name {name}")
        for var in _repeated([axis.var for axis in nest.axes]):
            self.problem(f"two axes have the variable {var}")
        for axis in nest.axes:
            self.axis(axis)
        if nest.reduction is None and nest.reduced:
            self.problem("an axis is reduced, but the nest has no reduction")
        if not nest.epilogue:
            self.problem("the nest stores nothing")
        if not is_independent(nest):
            self.problem("an iteration depends on a cell that another one writes")
        self.reduction(nest)
        self.memory(sorted(nest.mentioned, key=lambda node: node.id))
        self.body(_loops(nest), tuple(nest.mentioned))

    def axis(self, axis: LoopAxis) -> None:
        if axis.name not in AXIS_LETTERS or len(axis.name) != 1:
            self.problem(f"{axis.name} is no name of an axis")
        if axis.extent < 0:
            self.problem(f"axis {axis.name} has the extent {axis.extent}")
        if axis.is_shifting and not axis.is_reduced:
            self.problem(f"axis {axis.name} is shifting, but not reduced")

    def reduction(self, nest: Nest) -> None:
        reduction = nest.reduction
        if reduction is None:
            return
        if reduction.op not in REORDERED:
            self.problem(f"the reduction by {reduction.op.value.name} is not associative")
        for part, expr in (("term", reduction.term), ("initial value", reduction.initial)):
            if reduction.result in traverse.locals_of(expr):
                self.problem(f"the {part} of the reduction reads its result")

    def row_fusion(self, fusion: RowFusion) -> None:
        members = fusion.members
        named = True
        for number, member in enumerate(members):
            names = [axis.name for axis in member.nest.axes]
            for name in member.rows:
                if name not in names:
                    named = False
                    self.problem(f"nest {number} of the row group has no axis {name}")
        if fusion.size < 1 or fusion.groups < 1:
            self.problem(f"a row group of {fusion.size} rows in {fusion.groups} parts")
        for at in sorted(fusion.along):
            if not 0 < at < len(members):
                self.problem(f"nest {at} of the row group runs along no earlier one")
        if not named:
            return
        ranges = {tuple(axis.domain for axis in each.axes) for each in members}
        if len(ranges) != 1:
            self.problem("the nests of the row group share rows of different extents")
        if find_row_dims(members) is None:
            self.problem("a node of the row group is written at positions other than the rows")
        by_rows = nodes_written_by_rows(members)
        for kind, nodes in (
            ("folded", fusion.folded),
            ("inlined", fusion.inlined),
            ("streamed", fusion.streamed),
        ):
            for node in nodes:
                if node not in by_rows:
                    self.problem(f"{node!r} is {kind}, but not written row by row")
        for node in fusion.folded:
            if node not in self.plan.scratch:
                self.problem(f"{node!r} is folded, but no scratch node")


def _repeated(found: Iterable[Hashable]) -> list[Hashable]:
    seen: dict[Hashable, int] = {}
    for each in found:
        seen[each] = seen.get(each, 0) + 1
    return [each for each, count in seen.items() if count > 1]


def _has_parallel_form(stmts: Sequence[Stmt]) -> bool:
    """Return True if statements are parallel loops, after scalars that they read."""
    loops = dropwhile(lambda stmt: isinstance(stmt, DeclareLocal | SetLocal), stmts)
    return all(
        isinstance(stmt, For) and kernel_ir.parallel_loop(stmt) is not None for stmt in loops
    )


def _loops(nest: Nest) -> Block:
    """Return the statements of a nest: shifting axes outermost, the other reduced ones inside."""

    def around(axes: Iterable[LoopAxis], stmts: tuple[Stmt, ...]) -> Block:
        return traverse.with_loops([axis.loop(Block()) for axis in axes], Block(stmts))

    inside: tuple[Stmt, ...] = nest.epilogue
    if nest.reduction is not None:
        start, accumulate = nest.reduction.statements
        terms = around((axis for axis in nest.reduced if not axis.is_shifting), (accumulate,))
        inside = (DeclareLocal(start.local), start, *terms.stmts, *inside)
    return around((*(a for a in nest.reduced if a.is_shifting), *nest.output_axes), inside)
