"""Rendering of a scheduled kernel as C text.

The text depends only on the meaning of the kernel and the dialect: names are canonical, and remarks
and titles are left out. So alpha-equivalent kernels over different nodes have one text, and its
hash is the symbol of the kernel.

Verbatim code is printed as given, with `$0`, `$1`, ... replaced by the names of the nodes that its
body mentions, in order of first mention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import assert_never

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.files.digests import text_digest
from ocannl_core.base.identity import IdentityMap
from ocannl_core.base.renamed import takes_old_keywords
from ocannl_core.base.rounding import power_above
from ocannl_core.codegen.dialect import AddressSpace, DeviceLoops, Dialect, KernelParameter
from ocannl_core.codegen.prelude.prelude import remaining_vectorization
from ocannl_core.codegen.prelude.vector_types import ELEMENTS
from ocannl_core.codegen.rendering import statements
from ocannl_core.codegen.rendering.device_axes import DeviceAxis, device_axes
from ocannl_core.codegen.rendering.dot_products import DotProductLoop
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.loop_bounds import bound_condition, earlier_end, partition_loops
from ocannl_core.codegen.rendering.native import render_native
from ocannl_core.codegen.rendering.render_state import MOST_LANES, NotVectorizedError, RenderState
from ocannl_core.codegen.rendering.vector_copies import render_vector_copies
from ocannl_core.codegen.text.address_strength_reduction import has_reduced_addresses
from ocannl_core.codegen.text.kernel_text import (
    CompilerVectorization,
    KernelText,
    group_offsets,
    symbol_of,
)
from ocannl_core.codegen.text.names import verbatim_text
from ocannl_core.codegen.text.ordered_chains import has_ordered_chain
from ocannl_core.codegen.text.precedence import CExpr
from ocannl_core.codegen.text.scalar_replacement import assign_registers
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, LeafStep, NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.ranges import Range
from ocannl_core.ir.loops.traverse import nodes_of, reads, walk_up, writes
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import int64, uint4x32
from ocannl_core.schedule.machine_model import STACK_BYTES

_DECLARATIONS = frozenset({ir.Allocate, ir.DeclareLocal})


@takes_old_keywords("oc.backend_api.c_family.render_kernel")
def render_kernel(
    kernel: Kernel, nodes: Mapping[TensorNode, NodeInfo], dialect: Dialect
) -> KernelText:
    """Render a kernel.

    Its arguments are the kernel's nodes, then the merge buffers in order of first use, then its
    static indices. If the dialect partitions parallel loops, the buffers and bounds of the thread
    follow. A kernel that checks positions has an integer last, which it sets to 1 if one is wrong.

    Raises:
        CodegenError: for a statement or number format that the dialect cannot express.
    """
    most = max((nodes[node].size for node in nodes_of(kernel.body) if node in nodes), default=0)
    required, dialect = dialect.required_helpers, dialect.for_positions(most)
    try:
        rendered = _render(kernel, nodes, dialect)
    except RecursionError:
        raise CodegenError(
            "Expressions must not be nested too deeply for the renderer to follow.",
            found="a tree of some hundreds of levels",
            fix="split the computation so that some intermediate results are stored",
        ) from None
    for declaration in reversed(dialect.group_arrays(rendered.writer.group_arrays)):
        rendered.writer.insert_first(declaration)
    parameters = rendered.parameters()
    helpers = tuple(sorted(rendered.writer.helpers | required))

    def text(symbol: str) -> str:
        opening = "\n".join(dialect.opening(symbol, parameters))
        closing = "\n".join(dialect.closing(symbol, parameters))
        return f"{opening}\n{rendered.writer.text}{closing}\n"

    maps = map(str, rendered.device_loops.tensor_maps)
    definitions = dialect.definitions(helpers)
    symbol = symbol_of(dialect.language, definitions, str(rendered.launch), text("kernel"), *maps)
    return KernelText(
        symbol,
        text(symbol),
        helpers,
        *rendered.launch,
        rendered.private,
        rendered.bounds,
        rendered.vectorization,
        checks=rendered.checks,
        group_bytes=group_offsets(rendered.writer.group_arrays)[-1],
        tensor_maps=rendered.device_loops.tensor_maps,
        definitions=text_digest(definitions),
        has_plain_tiles=rendered.has_plain_tiles,
    )


def render_step(step: LeafStep, nodes: NodeInfos, dialect: Dialect) -> KernelText | None:
    """Return the kernel of a step; None for a call of code that is not of the language.

    Raises:
        CodegenError: for a statement or number format that the language cannot express.
    """
    match step:
        case Kernel():
            return render_kernel(step, nodes, dialect)
        case HostCall(call):
            return render_native(call, nodes, dialect)
        case _:
            assert_never(step)


_CARRYING = (ir.Scatter, ir.CheckPositions, ir.SubgroupReduce, ir.Verbatim)


def _carries_nothing(body: ir.Block) -> bool:
    """Return True if no iteration of a loop reads what an earlier one wrote, as sums do."""
    if not {*reads(body)}.isdisjoint(writes(body)):
        return False
    assigned = set[ir.Local]()
    for node in walk_up(body):
        match node:
            case ir.LocalRead(local) if local not in assigned:
                return False
            case ir.SetLocal(local):
                if local in assigned:
                    return False
                assigned.add(local)
            case _ if isinstance(node, _CARRYING):
                return False
    return True


def _render(
    kernel: Kernel, nodes: Mapping[TensorNode, NodeInfo], dialect: Dialect
) -> _KernelRenderer:
    """Render with vectors, or else with plain loops."""
    if dialect.has_vectors:
        with suppress(NotVectorizedError):
            renderer = _KernelRenderer(kernel, nodes, dialect, has_vectors=True)
            renderer.write_block(kernel.body)
            renderer.close()
            return renderer
    renderer = _KernelRenderer(kernel, nodes, dialect)
    renderer.write_body()
    return renderer


class _KernelRenderer:
    """The state of rendering one kernel."""

    def __init__(
        self,
        kernel: Kernel,
        nodes: Mapping[TensorNode, NodeInfo],
        dialect: Dialect,
        *,
        has_vectors: bool = False,
    ) -> None:
        self._has_vectors = has_vectors
        self._kernel = kernel
        self._dialect = dialect
        self._state = state = RenderState(kernel, nodes, dialect)
        self._names = state.names
        self.writer = state.writer
        self._written = state.written
        self._expressions = Expressions(state, self._write_statements)
        uses_instructions = has_vectors or not dialect.has_vectors
        self.device_loops = (
            dialect.device_loops(kernel, state) if uses_instructions else DeviceLoops(dialect)
        )
        self.checks = False
        self.has_plain_tiles = False
        self._stack_bytes = 0
        self._innermost = 0
        self._plain_loops = 0
        self._vector_loops = 0
        self._enclosing: list[ir.AxisKind] = []
        self._mentioned: IdentityMap[ir.For, frozenset[TensorNode]] = IdentityMap()
        self._device = device_axes(kernel.body, self.device_loops.dialect)
        self._group: set[TensorNode] = set()
        self._partitions = partition_loops(kernel) if dialect.partitions_loops else IdentityMap()
        self._private: dict[TensorNode, KernelParameter] = {}

    @property
    def bounds(self) -> int:
        """Return the number of levels of partitioned loops."""
        return max((partition.level for partition in self._partitions.values()), default=0)

    @property
    def vectorization(self) -> CompilerVectorization:
        """Return the work that is left for the C compiler."""
        is_pointwise = self._dialect.has_vectors and _carries_nothing(self._kernel.body)
        left = CompilerVectorization.PLAIN
        if self._has_vectors:
            left = remaining_vectorization(
                self.writer.helpers,
                self._plain_loops,
                self._vector_loops,
                is_pointwise=is_pointwise,
            )
        if left is CompilerVectorization.PLAIN and is_pointwise:
            return CompilerVectorization.INDEPENDENT
        return left

    @property
    def private(self) -> tuple[int, ...]:
        """Return the size in bytes of each buffer that is private to a thread."""
        return tuple(self._state.info(node).nbytes for node in self._private)

    @property
    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the number of thread blocks, and of the threads of each."""
        return self.device_loops.launch(self._device.launch)

    def parameters(self) -> list[KernelParameter]:
        """Return the parameters of the kernel; they are complete once the body is rendered."""
        names, info = self._names, self._state.info
        arrays = [
            KernelParameter(names.array(node), info(node).dtype, node in self._written)
            for node in self._kernel.arguments
        ]
        arrays += [
            KernelParameter(names.merge(node), info(node).dtype) for node in self._state.merges
        ]
        indices = [KernelParameter(str(names.index(index)), None) for index in self._kernel.indices]
        indices += self._private.values()
        for level in range(1, self.bounds + 1):
            indices += [KernelParameter(f"{end}{level}", None) for end in ("first", "end")]
        if self.checks:
            indices.append(KernelParameter(statements.FAILURE_FLAG, int64, is_written=True))
        if any(each.dtype is uint4x32 for each in (*arrays, *indices)):
            self.writer.helpers.add("uint4x32")
        return self.device_loops.parameters() + arrays + indices

    def close(self) -> None:
        """Write the prologue and epilogue of the kernel; streaming stores are fenced."""
        if any(name.endswith("_stream") for name in self.writer.helpers):
            self.writer.helpers.add("stream_end")
            self.writer.line("stream_end();")
        self.device_loops.close()

    def write_body(self) -> None:
        """Write the statements of all threads."""
        blocks = self._device.counts[0]
        self.device_loops.write_body(self._kernel.body, blocks, self.write_block)

    def write_block(self, block: ir.Block) -> None:
        """Write statements in a scope of their own."""
        if not any(type(stmt) in _DECLARATIONS for stmt in block.stmts):
            self._write_statements(block)
            return
        stack_bytes = self._stack_bytes
        with self._names.block():
            self._write_statements(block)
        self._stack_bytes = stack_bytes

    def _write_statements(self, block: ir.Block) -> None:
        for position, stmt in enumerate(block.stmts):
            if (
                isinstance(stmt, ir.Allocate)
                and stmt.scope is ir.Scope.THREAD
                and self._has_vectors
            ):
                self._allocate_thread(stmt.node, block.stmts[position + 1 :])
            else:
                self._write_statement(stmt)

    def _write_statement(self, stmt: ir.Stmt) -> None:
        if self.device_loops.skips(stmt):
            return
        if not isinstance(stmt, ir.Block | ir.For | ir.Store | ir.Prefetch | ir.Remark):
            self.writer.forget()
        match stmt:
            case ir.Block():
                self.write_block(stmt)
            case ir.For():
                with self.device_loops.around(stmt):
                    self._write_loop(stmt)
            case ir.Store(node, indices, value):
                self._write_store(node, self._expressions.cell(node, indices), value, stmt)
            case ir.StoreVector():
                self._written.add(stmt.node)
                self._state.note_type(uint4x32)
                statements.render_vector_store(stmt, self._expressions)
            case ir.Scatter():
                self._written.add(stmt.node)
                statements.render_scatter(stmt, self._expressions)
            case ir.CheckPositions():
                statements.render_check(stmt, self._device.counts, self._state)
                self.checks = True
                self._plain_loops += 1
            case ir.Fill(node):
                self._written.add(node)
                self._plain_loops += statements.render_fill(stmt, self._expressions)
            case ir.DeclareLocal(local):
                type_name = self._dialect.value_type(local.dtype)
                self._state.note_type(local.dtype)
                self.writer.declare(type_name, self._names.declare(local))
            case ir.SetLocal(local, value):
                self._write_assignment(stmt)
            case ir.Allocate(node, scope):
                self._allocate(node, scope)
            case ir.Barrier(pending):
                self.device_loops.await_copies(pending)
                inside = ir.AxisKind.BLOCK in self._enclosing
                for line in self._dialect.barrier(inside):
                    self.writer.line(line)
            case ir.SubgroupReduce():
                statements.render_subgroup_reduce(stmt, self._device.counts[1], self._expressions)
            case ir.Prefetch(node):
                if node in self._kernel.arguments:  # the others are in the cache
                    # the address may exceed the bounds of its array
                    cell = self._expressions.cell(node, stmt.indices)
                    if prefetch := self._dialect.prefetch(cell):
                        self.writer.line(prefetch)
            case ir.CallExternal(op):
                raise CodegenError(
                    "External calls run between kernels, never inside one.", found=op.name
                )
            case ir.Repeat(index):
                raise CodegenError(
                    "Repetitions run kernels, never inside one.", found=f"over {index.name}"
                )
            case ir.Remark():
                return
            case ir.Verbatim():
                self._write_verbatim(stmt)
            case _:
                assert_never(stmt)

    def _write_loop(self, loop: ir.For) -> None:
        """Write a loop; omit it for one iteration, and write nothing for none."""
        extent = loop.stop - loop.start
        if extent <= 0:
            return
        self._state.ranges[loop.var] = Range(loop.start, loop.stop - 1)
        if loop.bound is None:
            self._write_iterations(loop, extent)
            return
        self._state.limits.append((loop.bound.index, loop.bound.maximum))
        self._write_iterations(loop, extent)
        self._state.limits.pop()

    def _write_iterations(self, loop: ir.For, extent: int) -> None:
        axis = self._device.axes.find(loop)
        is_whole = loop.bound is None
        if self._has_vectors and loop.kind is ir.AxisKind.VECTOR and extent > 1 and is_whole:
            self._write_vector_loop(loop)
            return
        may_copy = loop.kind is ir.AxisKind.VECTOR and not self._has_vectors
        if may_copy and render_vector_copies(loop, self._expressions, self._space_of):
            return
        if loop.kind is ir.AxisKind.UNROLLED and is_whole and self._uses_registers(loop):
            with self.writer.unrolled():
                for value in range(loop.start, loop.stop):
                    with self._names.bind(loop.var, value):
                        self.write_block(loop.body)
            return
        if is_whole and self.device_loops.render(loop):
            self._innermost += 1
            return
        partition = self._partitions.find(loop)
        if extent == 1 and (axis is None or axis.is_full):
            self._enclosing.append(loop.kind)
            with self._names.bind(loop.var, loop.start):
                conditions = [] if partition is None else [partition.condition()]
                if loop.bound is not None:
                    conditions.append(bound_condition(loop.bound, self._state))
                self._write_guarded(conditions, loop.body)
            self._enclosing.pop()
            return
        cleared = (
            None if partition or loop.bound else statements.render_row_fill(loop, self._expressions)
        )
        if cleared is not None:
            self._written.add(cleared)
            return
        self._enclosing.append(loop.kind)
        with self._names.loop(loop.var) as name:
            if axis is None:
                self._write_serial_loop(loop, name)
            else:
                self._write_device_axis(loop, name, axis)
        self._enclosing.pop()

    def _uses_registers(self, loop: ir.For) -> bool:
        """Return True if a loop uses an array in registers."""
        if not self._names.has_registers:
            return self.device_loops.is_around_tile(loop)
        mentioned = self._mentioned.find(loop)
        if mentioned is None:
            mentioned = self._mentioned[loop] = frozenset(nodes_of(loop))
        return self._names.in_registers(mentioned)

    def _space_of(self, node: TensorNode) -> AddressSpace:
        if node in self._kernel.arguments:
            return AddressSpace.GLOBAL
        return AddressSpace.GROUP if node in self._group else AddressSpace.PRIVATE

    def _write_vector_loop(self, loop: ir.For) -> None:
        self._innermost += 1
        self._vector_loops += 1
        vector_loop = DotProductLoop(loop, self._expressions)
        match loop.body.stmts:
            case (ir.For(kind=ir.AxisKind.VECTOR, body=ir.Block((ir.Store() as copy,))) as inner,):
                vector_loop.render_square(inner, copy)
            case (
                ir.For(
                    kind=ir.AxisKind.VECTOR, body=ir.Block((ir.For(kind=ir.AxisKind.DOT) as dot,))
                ) as inner,
            ):
                vector_loop.render_square_of_terms(inner, dot)
            case _:
                vector_loop.render(loop.body)

    def _write_serial_loop(self, loop: ir.For, name: str) -> None:
        if loop.kind is ir.AxisKind.TILE or (
            loop.kind is ir.AxisKind.VECTOR and self._dialect.has_vectors and loop.bound is None
        ):
            self.has_plain_tiles = True
        pragma = self._dialect.loop_pragma(loop.kind, loop.stop - loop.start)
        if pragma:
            self.writer.line(pragma)
        index_type = self._dialect.index_type
        partition = self._partitions.find(loop)
        first, end = (
            (str(loop.start), str(loop.stop)) if partition is None else partition.bounds_of(loop)
        )
        if loop.bound is not None:
            end = earlier_end(loop, loop.bound, end, self._state, is_part=partition is not None)
        before, around = self._innermost, self.writer.reduced_loop
        if self._has_vectors and around is None and has_reduced_addresses(loop):
            depth = self._names.depth - 1
            written = frozenset(writes(loop.body))
            inside = self.writer.reduce_addresses(index_type, name, (first, end), depth, written)
        else:
            if around is not None:
                around.inside.add(name)
            head = f"for ({index_type} {name} = {first}; {name} < {end}; ++{name})"
            inside = self.writer.braces(head)
        with inside:
            for line in self._dialect.compiler_barrier() if has_ordered_chain(loop) else ():
                self.writer.line(line)
            self.write_block(loop.body)
        if self._innermost == before:  # no inner loop, neither plain nor of vectors
            self._plain_loops += 1
        self._innermost += 1

    def _write_guarded(self, conditions: Sequence[str], body: ir.Block) -> None:
        """Write statements that run if all of some conditions hold."""
        if not conditions:
            self.write_block(body)
            return
        with self.writer.braces(f"if ({' && '.join(conditions)})"):
            self.write_block(body)

    def _write_device_axis(self, loop: ir.For, name: str, axis: DeviceAxis) -> None:
        """Write the body for the iteration that the device runs; idle iterations skip it."""
        start = f"{loop.start} + " if loop.start else ""
        declaration = f"const {self._dialect.index_type} {name} = {start}{axis.index};"
        head = f"if ({axis.condition})" if axis.condition else ""
        with self.writer.braces(head):
            self.writer.line(declaration)
            self._write_guarded(
                [bound_condition(loop.bound, self._state)] if loop.bound else [], loop.body
            )

    def _write_store(self, node: TensorNode, cell: CExpr, value: ir.Expr, stmt: ir.Store) -> None:
        if node in self._names.registers:
            self.writer.assign(cell.code, self._expressions.storage_value(value).code)
            return
        self._written.add(node)
        self.writer.forget()
        self._expressions.update_cell(cell, value, ir.Load(node, stmt.indices, value.dtype))

    def _write_assignment(self, stmt: ir.SetLocal) -> None:
        name = self._names.local(stmt.local)
        if not self._expressions.update(name, stmt.value, ir.LocalRead(stmt.local)):
            self.writer.assign(name, self._expressions.value(stmt.value).code)

    def _allocate(self, node: TensorNode, scope: ir.Scope) -> None:
        info = self._state.info(node)
        if scope is ir.Scope.ROUTINE:
            raise CodegenError(
                "Memory of a routine is allocated before its kernels run.",
                found=f"{node.name} allocated inside a kernel",
            )
        if self._partitions and scope is ir.Scope.KERNEL and info.nbytes > STACK_BYTES:
            name = self._names.allocate_private(node)  # all its allocations share it
            self._private[node] = KernelParameter(name, info.dtype, is_written=True)
            return
        if scope is ir.Scope.GROUP and self._device.counts[1]:
            self._state.note_type(info.dtype)
            self._group.add(node)
            self.writer.group_arrays.append((self._names.allocate(node), info.dtype, info.size))
            return
        self._stack_bytes += info.nbytes
        if self._stack_bytes > self._dialect.stack_limit:
            raise CodegenError(
                f"A kernel keeps at most {self._dialect.stack_limit} bytes of arrays of its own.",
                found=f"{self._stack_bytes} bytes with {node.name} of {info.nbytes} bytes",
                fix="allocate the larger ones in the routine's memory",
            )
        self._state.note_type(info.dtype)
        name = self._names.allocate(node)
        self.writer.line(self._dialect.array(name, info.dtype, info.size, scope))

    def _allocate_thread(self, node: TensorNode, scope: tuple[ir.Stmt, ...]) -> None:
        """Declare memory of one iteration: registers if possible, else an array."""
        info = self._state.info(node)
        if self.device_loops.allocate(node, scope):
            return
        lanes = assign_registers(scope, node, info.buffer_dims)
        if lanes is None or info.dtype.name not in ELEMENTS:
            self._allocate(node, ir.Scope.THREAD)
            return
        file = self._names.allocate_registers(node, lanes)
        for position, count in lanes.items():
            if count > MOST_LANES:
                raise NotVectorizedError
            width = power_above(count)
            vector = f"{info.dtype.name}x{width}"
            if count > 1:
                self.writer.helpers.add(vector)
            type_name = vector if count > 1 else self._dialect.value_type(info.dtype)
            self.writer.line(f"{type_name} {file.variable(position)};")

    def _write_verbatim(self, verbatim: ir.Verbatim) -> None:
        if verbatim.language != self._dialect.language:
            self.write_block(verbatim.body)
            return
        # verbatim code writes the nodes that its body writes
        self._written.update(writes(verbatim.body))
        self._plain_loops += 1  # unknown, so assume some
        with self.writer.braces(""):
            self.writer.line(verbatim_text(verbatim, self._names.array))
