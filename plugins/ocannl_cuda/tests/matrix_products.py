"""Products of matrices on matrix instructions: their kernels, operands, and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.transforms import schedule_text
from ocannl_core.ir.loops.nodes import Binary, LoopProgram
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.drafts import Draft, loop
from ocannl_cuda.dialect import DIALECT
from ocannl_cuda.matrix_instructions import COPIES, INSTRUCTIONS
from ocannl_cuda.source import generate
from plugins.ocannl_cuda.tests.emulated_kernels import Array, aligned, launcher

REGISTERS = 128
UNIT = 2.0**-24
"""Half the distance from 1 to the next number of float32."""


def device(processors: int = 4, local_bytes: int = 48 << 10) -> Target:
    blocks = ThreadBlocks(
        1024,
        256,
        local_bytes,
        REGISTERS,
        32,
        processors,
        vector_bytes=16,
        asynchronous_copies=COPIES,
    )
    return Target("cuda", thread_blocks=blocks, has_fma=True, matrix_units=INSTRUCTIONS)


@dataclass(frozen=True)
class Product:
    """A product of two matrices as it is in memory.

    Attributes:
        rows: Rows of the result.
        terms: Terms of each sum.
        columns: Columns of the result.
        dtype: The number format.
        layout: The axes of both operands and of the result; `b` is a batch of 2.
        pitches: Cells that a row of each operand has in memory beyond its own.
    """

    rows: int
    terms: int
    columns: int
    dtype: DType = bfloat16
    layout: str = "ik kj ij"
    pitches: tuple[int, int] = (0, 0)

    @property
    def extents(self) -> dict[str, int]:
        return {"i": self.rows, "k": self.terms, "j": self.columns, "b": 2}

    def program(self) -> LoopProgram:
        """Return the program `r += a * c`."""
        draft = Draft("product")
        axes = {name: fresh_var(name) for name in self.extents}
        left, right, result = self.layout.split()
        loads = []
        for label, names, more in zip("ac", (left, right), self.pitches, strict=True):
            shape = [self.extents[name] for name in names]
            node = draft.node(label, self.dtype, *shape[:-1], shape[-1] + more)
            loads.append(draft.load(node, *(axes[name] for name in names)))
        node = draft.node("r", self.dtype, *(self.extents[name] for name in result))
        term = Binary(BinaryOp.MUL, loads[0], loads[1], self.dtype)
        body: Any = draft.accumulate(
            node, *(axes[name] for name in result), op=BinaryOp.ADD, value=term
        )
        for name in "kjib" if "b" in result else "kji":
            body = loop(axes[name], self.extents[name], body)
        return draft.program(body)

    def kernels(self, target: Target | None = None) -> tuple[tuple[KernelText, ...], str]:
        """Return the kernels, and the schedule."""
        target = device() if target is None else target
        with settings.overrides(accumulation="fast"):
            source = generate(plan_kernels(self.program(), target))
        schedules = "; ".join(schedule_text(each.schedule) for each in source.plan.kernels)
        return source.kernels, schedules

    def operands(self, seed: int = 0, spread: float = 0.0) -> list[Array]:
        """Return random operands and a result of zeros."""
        numbers = np.random.default_rng(seed)
        found: list[Array] = []
        for names, more in zip(self.layout.split(), (*self.pitches, 0), strict=True):
            shape = [self.extents[name] for name in names]
            shape[-1] += more
            cells = numbers.standard_normal(shape) * np.exp(spread * numbers.normal(size=shape))
            found.append(aligned(cells.astype(self.dtype.numpy)))
        found[-1][...] = 0
        return found

    def exact(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Return the product, and that of the magnitudes, without rounding errors that matter."""
        names, others, result = self.layout.split()
        own = [
            each.astype(np.float64)[..., : self.extents[axes[-1]]]
            for each, axes in ((left, names), (right, others))
        ]
        spec = f"{names},{others}->{result}"
        return np.einsum(spec, *own), np.einsum(spec, *map(np.abs, own))

    def bound(self, exact: Array, magnitude: Array) -> Array:
        """Return the error that the documentation states."""
        if self.dtype is float32:
            return 7 * (self.terms + 8) * UNIT * magnitude
        narrow = 2.0**-8 if self.dtype is bfloat16 else 2.0**-11
        sums = 3 * (self.terms + 8) * UNIT * magnitude
        return sums + narrow * (np.abs(exact) + sums) + 2.0**-25


def run(kernel: KernelText, operands: list[Array], text: str | None = None) -> tuple[int, str]:
    launch = launcher(DIALECT.unit([kernel]) if text is None else text, kernel.symbol)
    return launch(kernel.grid, kernel.block, *operands)
