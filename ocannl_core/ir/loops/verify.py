"""Verifier of loop programs, run between passes in tests.

A broken invariant is a defect of the pass that produced the program, so the error lists all of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import assert_never

from ocannl_core.base.errors import VerifyError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range, bounded_range, index_range, static_ranges
from ocannl_core.ir.loops.traverse import Node, accesses, children, walk
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import primitives
from ocannl_core.ir.numbers.dtypes import DType, uint4x32


def verify(program: ir.LoopProgram) -> None:
    """Check the invariants of the loop language."""
    problems = broken_invariants(program)
    if problems:
        raise VerifyError(
            "A loop program keeps the invariants of the loop language.",
            found="\n".join(problems),
            where=f"routine {program.name}",
            fix="report this as a defect, with the program",
        )


def broken_invariants(program: ir.LoopProgram) -> tuple[str, ...]:
    """Return a description of every broken invariant of a program, each once."""
    checker = _Checker(program)
    checker.run()
    return tuple(dict.fromkeys(checker.problems))


@dataclass(slots=True)
class _Checker:
    """The state of one walk. `pending` is an explicit stack, so that no program is too deep."""

    program: ir.LoopProgram
    problems: list[str] = field(default_factory=list)
    pending: list[Callable[[], None]] = field(default_factory=list)
    ranges: dict[indexing.IndexVar, Range] = field(default_factory=dict)
    ends: list[tuple[indexing.AxisIndex, int]] = field(default_factory=list)
    """The positions that the enclosing loops keep below limits."""
    memory: set[TensorNode] = field(default_factory=set)
    scalars: set[ir.Local] = field(default_factory=set)
    assigned: set[ir.Local] = field(default_factory=set)
    guarded: int = 0
    """Depth of conditional branches, in which loads may be out of bounds because they are not
    always executed.
    """
    dead: int = 0

    def run(self) -> None:
        program = self.program
        self.memory.update(program.params)
        if len(set(program.params)) < len(program.params):
            self.problem("a node is a parameter twice")
        for node in program.params:
            if node not in program.nodes:
                self.problem(f"{node!r} is a parameter but not in the table of nodes")
        self.ranges.update(static_ranges(program.indices))
        self.pending.append(lambda: self.visit(program.body))
        while self.pending:
            self.pending.pop()()

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def visit(self, node: Node) -> None:
        if isinstance(node, ir.Stmt):
            self.statement(node)
        else:
            self.expression(node)

    def later(self, *work: Callable[[], None]) -> None:
        self.pending.extend(reversed(work))

    def inside(self, node: Node) -> tuple[Callable[[], None], ...]:
        return tuple(partial(self.visit, child) for child in children(node))

    def statement(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.For():
                self.loop(stmt)
            case ir.Block():
                memory, scalars = set(self.memory), set(self.scalars)
                self.later(*self.inside(stmt), lambda: self.leave(memory, scalars))
            case ir.Store(node, indices, value):
                self.access(node, indices, "store to")
                if node in self.program.nodes:
                    self.expect(
                        value.dtype, self.program.nodes[node].dtype, f"value stored to {node.name}"
                    )
                self.later(*self.inside(stmt))
            case ir.StoreVector():
                self.vector(stmt)
                self.later(*self.inside(stmt))
            case ir.Scatter(node, indices, axis, position, value):
                self.access(node, indices, "scatter to")
                self.computed(node, indices, axis, position, "scatter to")
                if node in self.program.nodes:
                    dtype = self.program.nodes[node].dtype
                    self.expect(value.dtype, dtype, f"value scattered to {node.name}")
                self.later(*self.inside(stmt))
            case ir.CheckPositions(node, extent):
                self.known(node, "check of")
                if node in self.program.nodes and not self.program.nodes[node].dtype.is_integer:
                    self.problem(f"a check of positions {node.name} that are no integers")
                if extent < 0:
                    self.problem(f"a check of positions {node.name} of a negative extent")
            case ir.Fill(node):
                self.known(node, "fill of")
                if node in self.program.nodes and self.program.nodes[node].dtype is uint4x32:
                    self.problem(f"a fill of {node.name}, whose cells are words and not numbers")
            case ir.SetLocal(local, value):
                if local not in self.scalars:
                    self.problem(f"variable {local.id} is assigned outside its scope")
                self.expect(value.dtype, local.dtype, f"value of variable {local.id}")
                self.later(*self.inside(stmt), lambda: self.assign(local))
            case ir.SubgroupReduce(local, value, op, lanes):
                if local not in self.scalars:
                    self.problem(f"variable {local.id} is reduced outside its scope")
                self.expect(value.dtype, local.dtype, f"value of variable {local.id}")
                if op not in primitives.REORDERED or lanes < 2 or lanes & (lanes - 1):
                    reduced = f"by {op.value.name} over {lanes} lanes"
                    self.problem(f"variable {local.id} is reduced {reduced}")
                self.later(*self.inside(stmt), lambda: self.assign(local))
            case ir.DeclareLocal(local):
                self.declare(local)
            case ir.Allocate(node):
                self.allocate(node)
            case ir.Prefetch(node, indices):
                self.prefetch(node, indices)
            case ir.CallExternal(_, inputs, outputs):
                for node in (*inputs, *outputs):
                    self.known(node, "external call with")
            case ir.Repeat():
                self.repeat(stmt)
            case ir.Verbatim():
                self.later(*self.inside(stmt))
            case ir.Barrier() | ir.Remark():
                pass
            case _:
                assert_never(stmt)

    def leave(self, memory: set[TensorNode], scalars: set[ir.Local]) -> None:
        self.memory, self.scalars = memory, scalars

    def repeat(self, stmt: ir.Repeat) -> None:
        """Check the body of a repetition as a program, and its accesses."""
        program = self.program
        for node in (*stmt.inputs, *stmt.outputs):
            self.known(node, "repetition with")
        if stmt.index.extent != stmt.count or stmt.count < 0:
            self.problem(f"the repetition over {stmt.index.name} runs {stmt.count} times")
        if stmt.index in program.indices:
            self.problem(f"static index {stmt.index.name} is bound again by a repetition")
        if self.scalars or len(self.ranges) > len(program.indices):
            self.problem("a repetition stands inside another statement")
        if not set(stmt.complete) <= set(stmt.outputs):
            self.problem("a repetition assigns all cells of a node that is no output")
        accessed = tuple(dict.fromkeys((*stmt.inputs, *stmt.outputs)))
        private = dict(stmt.private)
        for node in private:
            if node in program.nodes:
                self.problem(f"{node!r} is private to a repetition, and in the table of nodes")
        body = ir.LoopProgram(
            program.name,
            (*accessed, *private),
            (*program.indices, stmt.index),
            {
                **{node: program.nodes[node] for node in accessed if node in program.nodes},
                **private,
            },
            stmt.body,
        )
        inner = _Checker(body)
        inner.run()
        self.problems += inner.problems
        for access in accesses(stmt.body):
            if access.node in private or access.node not in program.nodes:
                continue
            role, nodes = ("output", stmt.outputs) if access.writes else ("input", stmt.inputs)
            if access.node not in nodes and (access.writes or access.node not in stmt.outputs):
                self.problem(f"{access.node!r} is no {role} of the repetition that accesses it")

    def loop(self, loop: ir.For) -> None:
        var = loop.var
        if var in self.ranges:
            self.problem(f"loop variable {var.hint}#{var.id} is bound again inside its loop")
            return
        self.ranges[var] = Range(loop.start, loop.stop - 1)
        if loop.bound is not None:
            self.loop_bound(loop, loop.bound)
        empty = loop.stop <= loop.start
        self.dead += empty

        def close() -> None:
            del self.ranges[var]
            self.dead -= empty
            if loop.bound is not None:
                self.ends.pop()

        self.later(*self.inside(loop), close)

    def loop_bound(self, loop: ir.For, bound: ir.LoopBound) -> None:
        """Check the end of a loop below its stop."""
        self.ends.append((bound.index, bound.maximum))
        what = f"bound of loop variable {loop.var.hint}#{loop.var.id}"
        self.bound(bound.index, what)
        self.bound(bound.end, what)
        terms, _ = indexing.as_affine(bound.index)
        if [coefficient > 0 for coefficient, var in terms if var is loop.var] != [True]:
            self.problem(f"{what}: the position does not increase with it")

    def declare(self, local: ir.Local) -> None:
        if local in self.scalars:
            self.problem(f"variable {local.id} is declared again inside its scope")
        self.scalars.add(local)
        self.assigned.discard(local)

    def assign(self, local: ir.Local) -> None:
        if not self.dead:
            self.assigned.add(local)

    def allocate(self, node: TensorNode) -> None:
        if node not in self.program.nodes:
            self.problem(f"{node!r} is allocated but not in the table of nodes")
        if node in self.memory:
            self.problem(f"{node!r} is allocated although it has memory")
        self.memory.add(node)

    def prefetch(self, node: TensorNode, indices: tuple[indexing.AxisIndex, ...]) -> None:
        """Check a prefetch, which may be out of bounds."""
        for index in indices:
            self.bound(index, f"prefetch of {node.name}")
        if self.known(node, "prefetch of"):
            dims = self.program.nodes[node].buffer_dims
            if len(indices) != len(dims):
                self.problem(
                    f"prefetch of {node.name}: {len(indices)} indices for {len(dims)} axes"
                )

    def vector(self, stmt: ir.StoreVector) -> None:
        self.access(stmt.node, stmt.indices, "vector store to", flat=True)
        self.expect(stmt.arg.dtype, uint4x32, f"word stored to {stmt.node.name}")
        info = self.program.nodes.get(stmt.node)
        if info is None or len(stmt.indices) != len(info.buffer_dims):
            return
        if stmt.length != 16 // info.dtype.nbytes:
            self.problem(
                f"a vector store to {stmt.node.name} writes {stmt.length} cells; "
                f"a word holds {16 // info.dtype.nbytes} of {info.dtype}"
            )
        reach = index_range(indexing.row_major(stmt.indices, info.buffer_dims), self.ranges)
        if reach is None or self.dead:
            return
        if reach.low < 0 or reach.high + stmt.length > info.size:
            self.problem(f"a vector store to {stmt.node.name} leaves its {info.size} cells")

    def expression(self, expr: ir.Expr) -> None:
        match expr:
            case ir.Load(node, indices, dtype) | ir.LoadMerge(node, indices, dtype):
                self.access(node, indices, "load from")
                self.load_dtype(node, dtype)
            case ir.Gather(node, indices, axis, position, dtype):
                self.access(node, indices, "gather from")
                self.load_dtype(node, dtype)
                self.computed(node, indices, axis, position, "gather from")
            case ir.LocalRead(local):
                if local not in self.scalars:
                    self.problem(f"variable {local.id} is read outside its scope")
                elif local not in self.assigned and not self.dead:
                    self.problem(f"variable {local.id} is read before it is set")
            case ir.Scoped():
                self.scoped(expr)
                return
            case ir.Ternary(primitives.TernaryOp.WHERE, first, second, third):
                self.operator_dtypes(expr)
                self.later(
                    lambda: self.visit(first),
                    lambda: self.guard(1),
                    lambda: self.visit(second),
                    lambda: self.visit(third),
                    lambda: self.guard(-1),
                )
                return
            case ir.Unary() | ir.Binary() | ir.Ternary():
                self.operator_dtypes(expr)
            case ir.Const(_, dtype):
                self.number(dtype, "constant")
            case ir.ConstBits(_, dtype):
                if dtype.is_float:
                    self.problem(f"a bit pattern has the format {dtype}")
            case ir.IndexValue(index, dtype):
                self.bound(index, "index value")
                self.number(dtype, "index value")
            case _:
                assert_never(expr)
        self.later(*self.inside(expr))

    def computed(
        self,
        node: TensorNode,
        indices: tuple[indexing.AxisIndex, ...],
        axis: int,
        position: ir.Expr,
        what: str,
    ) -> None:
        """Check a computed position and the place that it takes."""
        if not 0 <= axis < len(indices) or indices[axis] != indexing.FixedIndex(0):
            self.problem(f"a {what} {node.name} has no free place at axis {axis}")
        self.number(position.dtype, f"position of a {what} {node.name}")

    def guard(self, step: int) -> None:
        self.guarded += step

    def scoped(self, expr: ir.Scoped) -> None:
        if not any(isinstance(n, ir.SetLocal) and n.local == expr.local for n in walk(expr.body)):
            self.problem(f"an inlined computation never sets its variable {expr.local.id}")
        self.declare(expr.local)
        self.later(*self.inside(expr), lambda: self.scalars.discard(expr.local))

    def operator_dtypes(self, expr: ir.Unary | ir.Binary | ir.Ternary) -> None:
        match expr:
            case ir.Unary(op, arg, dtype):
                self.unary(op, arg.dtype, dtype)
            case ir.Binary(op, left, right, dtype):
                self.binary(op, left.dtype, right.dtype, dtype)
            case ir.Ternary(op, first, second, third, dtype):
                name = op.value.name
                if op is primitives.TernaryOp.WHERE:
                    self.number(first.dtype, f"condition of {name}")
                else:
                    self.number(dtype, f"result of {name}")
                    self.expect(first.dtype, dtype, f"operand of {name}")
                self.expect(second.dtype, dtype, f"operand of {name}")
                self.expect(third.dtype, dtype, f"operand of {name}")

    def unary(self, op: primitives.UnaryOp, arg: DType, dtype: DType) -> None:
        name = op.value.name
        match op:
            case primitives.UnaryOp.IDENTITY if arg is not dtype:
                self.number(arg, "operand of a conversion")
                self.number(dtype, "result of a conversion")
            case primitives.UnaryOp.IDENTITY:
                pass
            case primitives.UnaryOp.WORD:
                self.expect(dtype, uint4x32, f"result of {name}")
                self.number(arg, f"operand of {name}")
            case primitives.UnaryOp.UNIFORM:
                self.expect(arg, uint4x32, f"operand of {name}")
                self.number(dtype, f"result of {name}")
            case primitives.UnaryOp.BITCAST:
                self.number(arg, f"operand of {name}")
                self.number(dtype, f"result of {name}")
                if arg.bits != dtype.bits:
                    self.problem(f"{name} from {arg} to {dtype}, which has another width")
            case _:
                self.number(dtype, f"result of {name}")
                self.expect(arg, dtype, f"operand of {name}")

    def binary(self, op: primitives.BinaryOp, left: DType, right: DType, dtype: DType) -> None:
        name = op.value.name
        if op in primitives.COMPARISONS:
            self.number(dtype, f"result of {name}")
            self.number(left, f"operand of {name}")
            self.expect(right, left, f"right operand of {name}")
        elif op is primitives.BinaryOp.FIRST:
            self.expect(left, dtype, f"left operand of {name}")
        elif op is primitives.BinaryOp.SECOND:
            self.expect(right, dtype, f"right operand of {name}")
        else:
            expected = uint4x32 if op in primitives.HASHES else dtype
            if op not in primitives.HASHES:
                self.number(dtype, f"result of {name}")
            for found in (left, right, dtype):
                self.expect(found, expected, f"operand or result of {name}")

    def expect(self, found: DType, expected: DType, what: str) -> None:
        if found is not expected:
            self.problem(f"{what}: {found} where {expected} is needed")

    def number(self, dtype: DType, what: str) -> None:
        if dtype is uint4x32:
            self.problem(f"{what}: a word where a number is needed")

    def load_dtype(self, node: TensorNode, dtype: DType) -> None:
        if node in self.program.nodes:
            self.expect(dtype, self.program.nodes[node].dtype, f"value loaded from {node.name}")

    def known(self, node: TensorNode, what: str) -> bool:
        if node not in self.program.nodes:
            self.problem(f"{what} {node!r}, which is not in the table of nodes")
        elif node not in self.memory:
            self.problem(f"{what} {node!r}, which is no parameter and not allocated yet")
        return node in self.program.nodes

    def access(
        self,
        node: TensorNode,
        indices: tuple[indexing.AxisIndex, ...],
        what: str,
        *,
        flat: bool = False,
    ) -> None:
        """Check one access; a flat one is in bounds if its row-major offset is."""
        for index in indices:
            self.bound(index, f"{what} {node.name}")
        if not self.known(node, what):
            return
        dims = self.program.nodes[node].buffer_dims
        if len(indices) != len(dims):
            self.problem(f"{what} {node.name}: {len(indices)} indices for {len(dims)} axes")
            return
        if self.guarded or self.dead or flat:
            return
        extents = indexing.joint_extents(indices, dims)
        for axis, (index, dim) in enumerate(zip(indices, extents, strict=True)):
            reach = bounded_range(index, self.ranges, self.ends)
            if reach is None:
                continue
            outside = not reach.is_within(dim)
            if any(isinstance(var, indexing.StaticIndex) for var in indexing.variables(index)):
                # an out-of-bounds value is an error of the caller; no in-bounds value, one of the
                # program
                outside = reach.high < 0 or reach.low >= dim
            if outside:
                self.problem(
                    f"{what} {node.name}: axis {axis} reaches {reach.low}..{reach.high}, "
                    f"outside 0..{dim - 1}"
                )

    def bound(self, index: indexing.AxisIndex, what: str) -> None:
        if isinstance(index, indexing.ConcatIndex | indexing.ComputedIndex):
            kind = "concatenated" if isinstance(index, indexing.ConcatIndex) else "computed"
            self.problem(f"{what}: a {kind} index, which lowering should have removed")
        for var in indexing.variables(index):
            if isinstance(var, indexing.StaticIndex) and var not in self.program.indices:
                self.problem(f"{what}: static index {var.name} is not one of the program")
            if isinstance(var, indexing.LoopVar) and var not in self.ranges:
                self.problem(f"{what}: loop variable {var.hint}#{var.id} is not bound")
