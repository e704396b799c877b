"""Rendering of reductions across neighbouring threads.

    v0 = subgroup 4 add(v0)      -->      const float v1 = __shfl_xor_sync(0xfu, v0, 2);
                                          v0 += v1;
                                          const float v2 = __shfl_xor_sync(0xfu, v0, 1);
                                          v0 += v2;

Languages without shuffles exchange the values through memory that the threads of a block share. The
steps are the same, so the results have the same bits.
"""

from __future__ import annotations

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.rendering.expressions import Expressions
from ocannl_core.codegen.rendering.state import RenderState
from ocannl_core.ir.loops.nodes import Binary, Local, LocalRead, SubgroupReduce
from ocannl_core.ir.numbers.dtypes import DType, Kind, float32


def render_subgroup_reduce(stmt: SubgroupReduce, threads: int, expressions: Expressions) -> None:
    """Write a reduction across threads.

    Raises:
        CodegenError: if the number of threads of a block is no multiple of the lanes, or for
            128-bit words.
    """
    local, dtype = stmt.local, stmt.local.dtype
    names, writer = expressions.state.names, expressions.state.writer
    if not threads or threads % stmt.lanes or dtype.kind is Kind.WORD:
        raise CodegenError(
            "The threads of a block, a multiple of the lanes, reduce numbers across lanes.",
            found=f"{stmt.lanes} lanes of {threads} threads, of {dtype}",
        )
    name = names.local(local)
    value = expressions.value(stmt.value)
    if value.code != name:
        writer.assign(name, value.code)
    exchange = _Exchange(expressions.state, dtype, threads)
    other, value_type = Local(-1, dtype), expressions.state.dialect.value_type(dtype)
    apart = stmt.lanes // 2
    while apart:
        given = exchange.value(name, apart)
        writer.line(f"const {value_type} {names.declare(other)} = {given};")
        both = Binary(stmt.op, LocalRead(local), LocalRead(other), dtype)
        writer.line(f"{name} = {expressions.value(both)};")
        apart //= 2
    exchange.close()


class _Exchange:
    """Exchanges of values between threads, by shuffles or else through shared memory.

    Two arrays take turns, so that a thread stores its next value while others load the last one.
    """

    def __init__(self, state: RenderState, dtype: DType, threads: int) -> None:
        self._dialect = state.dialect
        self._names = state.names
        self._writer = state.writer
        self._format = float32 if dtype.is_narrow else dtype
        self._threads = threads
        self._arrays: list[str] = []
        self._turn = 0

    def value(self, name: str, apart: int) -> str:
        """Return the value of a variable in the thread whose number differs in one bit."""
        shuffle = self._dialect.shuffle_xor(name, apart, self._threads)
        if shuffle is not None:
            return shuffle
        thread = self._dialect.thread_number
        while len(self._arrays) < 2:
            self._arrays.append(self._names.fresh())
            shared = self._arrays[-1], self._format, self._threads
            self._writer.group_arrays.append(shared)
        array = self._arrays[self._turn % 2]
        self._turn += 1
        self._writer.line(f"{array}[{thread}] = {name};")
        self._barrier()
        return f"{array}[{thread} ^ {apart}]"

    def _barrier(self) -> None:
        for line in self._dialect.barrier(inside_block_axis=True):
            self._writer.line(line)

    def close(self) -> None:
        """Wait for the last loads, before which no thread may store again."""
        if self._arrays:
            self._barrier()
