"""Rendering of WGMMA: a TMA multistage pipeline with specialized warps, on persistent blocks.

    for tile in blocks:                       if this thread is of the warps that copy:
      for k in stages:                          for tile, k: wait until stage k is free;
        barrier                                              copy boxes of both operands to it
        copies of both operands     -->       else:
        barrier                                 for tile: for k: wait until stage k is complete;
        products of the stage                                start its products;
      results                                                wait for those of the stage before,
                                                             and let that one be free
                                                          wait for the last products
                                                          results

The loops come from `schedule/apply/wgmma_pipeline.py` of the core. The rendering verifies that
threads have the cells that the instruction gives them. The operands of a stage lie in shared memory
as the instruction reads them, which no other statement sees. The copy engine copies boxes of
arrays, with zeros beyond their ends: the conditions of the copies are those ends.

A stage has two barriers, whose phases count its turns: it is complete when all bytes have arrived,
and free when all warps have multiplied it. Both sides keep the parities of the next phases as bits
of a word. The products of one stage are under way while the next one is waited for.

`warpgroup_ptx.py` defines the helpers, and `matrix_descriptors.py` the descriptor of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ocannl_core.backend_api import AsynchronousProduct, Kernel, uint8, uint32
from ocannl_core.backend_api.c_family import Dialect, NameRole, TensorMap
from ocannl_core.backend_api.loops import Allocate, Block, For, Stmt, VarIndex
from ocannl_core.backend_api.rendering import Addresses, KernelNames, KernelWriter
from ocannl_cuda.matrix_descriptors import matrix_descriptor
from ocannl_cuda.rendering.wgmma_stages import (
    BARRIER_BYTES,
    RING_ALIGNMENT,
    StageFinder,
    WgmmaOperand,
    WgmmaStages,
)

_WARP = 32
_ENTRY_THREADS = 256
"""The most threads of which each may have as many registers as an instruction names."""


class WgmmaPipeline:
    """Renders a kernel with a ring of stages.

    Args:
        names: The names in scope.
        writer: Receives the statements.
        positions: Renders addresses.
        products: The instructions.

    Raises:
        CodegenError: if the threads have other cells than the instruction's.
    """

    def __init__(
        self,
        kernel: Kernel,
        names: KernelNames,
        writer: KernelWriter,
        positions: Addresses,
        dialect: Dialect,
        products: Sequence[AsynchronousProduct],
    ) -> None:
        self._names = names
        self._writer = writer
        self._positions = positions
        self._dialect = dialect
        self._copies = False
        self._stages = self._barriers = self._parities = self._held = ""
        finder = StageFinder(kernel, positions, products)
        self._ring = finder.find(kernel.body) if products else None
        self._around = finder.around

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """The arrays of which boxes are copied, in the order of the parameters."""
        return () if self._ring is None else tuple(each.map for each in self._ring.operands)

    @property
    def copying_threads(self) -> int:
        """The threads of a block beyond the loops' threads: a group that makes the copies."""
        return 0 if self._ring is None else self._ring.product.threads

    def skips(self, stmt: Stmt) -> bool:
        """Return True for a statement that is none of the threads whose code is written."""
        ring = self._ring
        if ring is None:
            return False
        if isinstance(stmt, Allocate):
            return any(stmt.node is each.node for each in ring.operands) or self._copies
        return self._copies and stmt not in self._around

    def write(self, body: Block, blocks: int, write_block: Callable[[Block], None]) -> bool:
        """Write the code of both kinds of threads; return False if the kernel has no ring.

        Args:
            body: The body of the kernel.
            blocks: The iterations of the grid.
            write_block: Writes statements.
        """
        ring, writer = self._ring, self._writer
        if ring is None:
            return False
        array = self._names.allocate(ring.operands[0].node)
        writer.group_arrays.append((array, uint8, ring.nbytes))
        word = self._dialect.type_names[uint32]
        self._stages, self._barriers = self._names.fresh(), self._names.fresh()
        address, most = self._call("shared_address", array), RING_ALIGNMENT - 1
        writer.line(f"const {word} {self._stages} = ({address} + {most}) & ~{most}u;")
        end = ring.stages * ring.stage_bytes
        writer.line(f"const {word} {self._barriers} = {self._stages} + {end};")
        thread = self._dialect.thread_number
        with writer.braces(f"if ({thread} == 0)"):
            for stage in range(ring.stages):
                self._write("start_phases", self._barrier(stage), "1")
                warps = ring.threads // _WARP
                self._write("start_phases", self._barrier(stage, is_free=True), str(warps))
            self._write("publish_phases")
        for line in self._dialect.barrier(True):
            writer.line(line)
        moves_registers = ring.threads + self.copying_threads > _ENTRY_THREADS
        for self._copies in (True, False):
            head = f"if ({thread} >= {ring.threads})" if self._copies else "else"
            with writer.braces(head):
                if moves_registers:
                    self._write("give_registers" if self._copies else "take_registers")
                if self._copies:
                    # one thread of them copies
                    with writer.braces(f"if ({thread} == {ring.threads})"):
                        self._write_blocks(body, blocks, write_block)
                else:
                    self._write_blocks(body, blocks, write_block)
        return True

    def _write_blocks(self, body: Block, blocks: int, write_block: Callable[[Block], None]) -> None:
        self._parities = self._names.fresh()
        # at the start all stages are free, as if a phase before had ended
        first = "~0u" if self._copies else "0u"
        self._writer.line(f"{self._dialect.type_names[uint32]} {self._parities} = {first};")
        with self._writer.braces(_persistent_loop(blocks)):
            write_block(body)

    @contextmanager
    def around(self, loop: For) -> Iterator[None]:
        """Write what comes before and after a loop: all products are made at the end of a sweep."""
        ring = self._ring
        if ring is None or loop is not ring.sweep or self._copies:
            yield
            return
        self._held = self._names.fresh()
        self._writer.line(f"{self._dialect.type_names[uint32]} {self._held} = 0u;")
        yield
        self._write(f"await_products_{ring.columns}", self._names.array(ring.sums))
        self._free_held()

    def render(self, loop: For) -> bool:
        """Write the loop over the stages; return False for another loop."""
        ring = self._ring
        if ring is None or loop is not ring.loop:
            return False
        index = self._dialect.index_type
        with self._names.loop(loop.var) as stage:
            head = f"for ({index} {stage} = 0; {stage} < {ring.stages}; ++{stage})"
            with self._writer.braces(head):
                if ring.end is None:
                    self._write_stage(ring, stage)
                else:
                    step = self._positions.index(ring.end.index)
                    with self._writer.braces(f"if ({step} < {ring.end.extent})"):
                        self._write_stage(ring, stage)
        return True

    def _write_stage(self, ring: WgmmaStages, stage: str) -> None:
        parity = f"{self._parities} >> {stage} & 1"
        self._write("await_phase", self._barrier(stage, is_free=self._copies), parity)
        self._writer.line(f"{self._parities} ^= 1u << {stage};")
        if self._copies:
            self._write("arrive_expecting", self._barrier(stage), str(ring.stage_bytes))
            start = 0
            for number, operand in enumerate(ring.operands):
                self._write_boxes(ring, number, f"{ring.stage_bytes} * {stage}", start)
                start += ring.operand_bytes(operand)
            return
        sums = self._names.array(ring.sums)
        self._write(f"start_products_{ring.columns}", sums)
        forms = "_".join("across" if each.is_across else "along" for each in ring.operands)
        helper = f"multiply_async_{ring.product.name}_{ring.columns}_{forms}"
        for number in range(ring.product.depth // ring.product.terms):
            start = 0
            factors = []
            for operand in ring.operands:
                place = self._place(ring, operand, stage, start, number)
                form = matrix_descriptor(ring.product, is_across=operand.is_across)
                factors.append(self._call("described", f"{form:#x}ull", place))
                start += ring.operand_bytes(operand)
            self._write(helper, sums, *factors)
        self._write("commit_products")
        self._write("await_earlier_products")
        self._free_held(f"{self._held} != 0u")
        self._writer.line(f"{self._held} = {self._barrier(stage, is_free=True)};")

    def _free_held(self, *conditions: str) -> None:
        """Write that a stage is free: one thread of each warp arrives at its barrier."""
        first = f"{self._dialect.thread_number} % {_WARP} == 0"
        with self._writer.braces(f"if ({' && '.join([first, *conditions])})"):
            self._write("arrive", self._held)

    def _write_boxes(self, ring: WgmmaStages, number: int, stage: str, start: int) -> None:
        """Write the copies of an operand, one for each block of cells of a row."""
        operand = ring.operands[number]
        cells = operand.map.box[0] if operand.is_across else operand.cells
        nbytes = cells * ring.product.row_bytes
        (outer, inner), barrier = operand.copied, self._barrier(stage.split()[-1])
        for block in range(operand.cells // cells):
            with self._names.bind(outer, 0), self._names.bind(inner, block * cells):
                places = [self._positions.index(each).code for each in operand.places]
            to = f"{self._stages} + {stage} + {start + block * nbytes}"
            name = NameRole.BOXES.name_of(number)
            self._writer.helpers.add("TensorMap")
            self._write(f"copy_box_{len(places)}", to, name, barrier, *places)

    def _place(
        self, ring: WgmmaStages, operand: WgmmaOperand, stage: str, start: int, number: int
    ) -> str:
        """Return the address at which a factor of an instruction begins.

        Args:
            stage: The number of the stage.
            start: The start of the operand in its stage.
            number: The number of the instruction in the stage.
        """
        product = ring.product
        if operand.is_across:
            start += number * product.terms * product.row_bytes
        else:
            start += number * product.terms * product.dtype.nbytes
        place = f"{self._stages} + {ring.stage_bytes} * {stage} + {start}"
        if operand is ring.operands[0] and ring.group is not None:
            group = self._positions.index(VarIndex(ring.group))
            place += f" + {product.sums.rows * product.row_bytes} * {group}"
        return place

    def _barrier(self, stage: str | int, *, is_free: bool = False) -> str:
        """Return the address of the barrier of a stage that is complete, or free."""
        assert self._ring is not None
        start = BARRIER_BYTES * self._ring.stages if is_free else 0
        if isinstance(stage, int):
            return f"{self._barriers} + {start + BARRIER_BYTES * stage}"
        return f"{self._barriers} + {BARRIER_BYTES} * {stage}{f' + {start}' if start else ''}"

    def _call(self, helper: str, *arguments: str) -> str:
        self._writer.helpers.add(helper)
        return f"{helper}({', '.join(arguments)})"

    def _write(self, helper: str, *arguments: str) -> None:
        self._writer.line(f"{self._call(helper, *arguments)};")


def _persistent_loop(blocks: int) -> str:
    """Return the head of a loop in which each thread block of a launch runs some of the blocks of
    the grid.
    """
    return f"for (uint32_t block = blockIdx.x; block < {blocks}u; block += gridDim.x)"
