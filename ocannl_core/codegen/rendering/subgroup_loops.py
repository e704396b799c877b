"""Loops that tensor cores, WGMMA, or asynchronous copies execute as a whole.

Where a dialect has no such instructions, the loops are plain ones, with the same results.
"""

from __future__ import annotations

from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.dialect import Dialect, KernelParameter
from ocannl_core.codegen.rendering.software_pipelining import AsynchronousCopies
from ocannl_core.codegen.rendering.tensor_cores import TensorCoreTiles
from ocannl_core.codegen.rendering.wgmma import WgmmaPipeline
from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.names import KernelNames, NameRole
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.indexing import IndexVar
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import AxisKind, Block, For, Stmt


class SubgroupLoops:
    """Renders TILE and COPY loops inside of BLOCK loops.

    Args:
        kernel: The kernel.
        names: The names in scope.
        writer: Receives the statements.
        positions: Renders addresses.
        dialect: The dialect.

    Attributes:
        products: Renders a kernel with a ring of stages.
        dialect: The dialect for the axes of the device.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: KernelNames,
        writer: KernelWriter,
        positions: Addresses,
        dialect: Dialect,
    ) -> None:
        self._writer = writer
        self._tiles = TensorCoreTiles(names, writer, positions, dialect)
        self._kinds: dict[IndexVar, AxisKind] = {}
        self._copies = AsynchronousCopies(names, writer, positions, dialect, self._kinds)
        self.products = WgmmaPipeline(kernel, names, writer, positions, dialect)
        is_persistent = bool(self.products.tensor_maps)
        self.dialect = dialect.for_persistent_blocks() if is_persistent else dialect
        self._outer: IdentityMap[For, tuple[For, ...]] = IdentityMap()
        self._around: IdentityMap[For, None] = IdentityMap()
        self._has_copies = False
        if dialect.matrix_instructions or dialect.asynchronous_copies:
            self._find(kernel.body, (), dialect)

    def _find(self, stmt: Stmt, around: tuple[For, ...], dialect: Dialect) -> None:
        """Find the tiles and copies inside of a statement."""
        if isinstance(stmt, For):
            self._kinds[stmt.var] = stmt.kind
        match stmt:
            case Block(stmts):
                for each in stmts:
                    self._find(each, around, dialect)
            case For(kind=AxisKind.TILE) if dialect.matrix_instructions:
                is_in_block = any(each.kind is AxisKind.BLOCK for each in around)
                if is_in_block and self._tiles.is_executed(stmt):
                    self._outer[stmt] = around
                    for each in around:
                        self._around[each] = None
            case For(kind=AxisKind.COPY):
                self._has_copies = self._has_copies or bool(dialect.asynchronous_copies)
            case For(body=body):
                self._find(body, (*around, stmt), dialect)
            case _:
                pass

    def is_around_tile(self, loop: For) -> bool:
        """Return True if an unrolled loop has a tile inside: its iterations share fragments."""
        return loop in self._around

    def launch(
        self, counts: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the grid and the block of a launch, given those of the loops."""
        grid, block = counts
        return grid, tuple(each + self.products.copying_threads for each in block)

    def parameters(self) -> list[KernelParameter]:
        """Return the parameters before the arrays."""
        names = map(NameRole.BOXES.name_of, range(len(self.products.tensor_maps)))
        return [KernelParameter(name, None, is_tensor_map=True) for name in names]

    def render(self, loop: For) -> bool:
        """Write a loop as instructions; return False if it is a plain loop."""
        if self.products.render(loop):
            return True
        if loop.kind is AxisKind.COPY and self._has_copies:
            self._writer.forget()
            return self._copies.render(loop)
        if loop not in self._outer:
            return False
        self._tiles.render(loop, self._outer[loop])
        return True

    def await_copies(self, pending: int) -> None:
        """Write the waiting of a barrier for copies."""
        if self._has_copies:
            self._copies.await_copies(pending)
