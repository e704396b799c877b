"""Loops that tensor cores, WGMMA and asynchronous copies execute as a whole.

Where a dialect states no such instructions, the loops are plain ones, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ocannl_core.backend_api import (
    AsynchronousProduct,
    IdentityMap,
    Kernel,
    MatrixInstruction,
    MatrixUnit,
)
from ocannl_core.backend_api.c_family import Dialect
from ocannl_core.backend_api.loops import AxisKind, Block, For, IndexVar, Stmt
from ocannl_core.backend_api.rendering import DeviceLoops, RenderState
from ocannl_cuda.rendering.software_pipelining import AsynchronousCopies
from ocannl_cuda.rendering.tensor_cores import TensorCoreTiles
from ocannl_cuda.rendering.wgmma import WgmmaPipeline


class CudaLoops(DeviceLoops):
    """Renders TILE and COPY loops inside of BLOCK loops, and the loops of a WGMMA pipeline.

    Args:
        state: The names in scope, the writer, and the renderer of addresses.
        persistent: The dialect for the axes of a kernel whose blocks are persistent.
        units: The matrix units of the dialect.
        copies: The bytes that one instruction copies asynchronously, in place of a COPY loop.
    """

    def __init__(
        self,
        kernel: Kernel,
        state: RenderState,
        dialect: Dialect,
        persistent: Dialect,
        units: Sequence[MatrixUnit],
        copies: tuple[int, ...],
    ) -> None:
        shared = state.names, state.writer, state.positions
        self._writer = state.writer
        matrix = [each for each in units if isinstance(each, MatrixInstruction)]
        asynchronous = [each for each in units if isinstance(each, AsynchronousProduct)]
        self._tiles = TensorCoreTiles(*shared, dialect, matrix)
        self._kinds: dict[IndexVar, AxisKind] = {}
        self._copies = AsynchronousCopies(*shared, copies, self._kinds)
        self._wgmma = WgmmaPipeline(kernel, *shared, dialect, asynchronous)
        self.tensor_maps = self._wgmma.tensor_maps
        super().__init__(persistent if self.tensor_maps else dialect)
        self._outer: IdentityMap[For, tuple[For, ...]] = IdentityMap()
        self._around: IdentityMap[For, None] = IdentityMap()
        self._has_copies = False
        if matrix or copies:
            self._find(kernel.body, (), has_copies=bool(copies))

    def _find(self, stmt: Stmt, around: tuple[For, ...], *, has_copies: bool) -> None:
        """Find the tiles and copies inside of a statement."""
        if isinstance(stmt, For):
            self._kinds[stmt.var] = stmt.kind
        match stmt:
            case Block(stmts):
                for each in stmts:
                    self._find(each, around, has_copies=has_copies)
            case For(kind=AxisKind.TILE):
                is_in_block = any(each.kind is AxisKind.BLOCK for each in around)
                if is_in_block and self._tiles.is_executed(stmt):
                    self._outer[stmt] = around
                    for each in around:
                        self._around[each] = None
            case For(kind=AxisKind.COPY):
                self._has_copies = self._has_copies or has_copies
            case For(body=body):
                self._find(body, (*around, stmt), has_copies=has_copies)
            case _:
                pass

    def launch(
        self, counts: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        grid, block = counts
        return grid, tuple(each + self._wgmma.copying_threads for each in block)

    def write_body(self, body: Block, blocks: int, write_block: Callable[[Block], None]) -> None:
        if not self._wgmma.write(body, blocks, write_block):
            write_block(body)

    def skips(self, stmt: Stmt) -> bool:
        return self._wgmma.skips(stmt)

    def around(self, loop: For) -> AbstractContextManager[None]:
        return self._wgmma.around(loop)

    def is_around_tile(self, loop: For) -> bool:
        return loop in self._around

    def render(self, loop: For) -> bool:
        if self._wgmma.render(loop):
            return True
        if loop.kind is AxisKind.COPY and self._has_copies:
            self._writer.forget()
            return self._copies.render(loop)
        if loop not in self._outer:
            return False
        self._tiles.render(loop, self._outer[loop])
        return True

    def await_copies(self, pending: int) -> None:
        if self._has_copies:
            self._copies.await_copies(pending)
