"""Fixtures of the core's tests: a loop program runs on the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.split_kernels import split_kernels

BOUNDED = oc.Context, oc.Routine
"""Classes whose messages get the user's line once their public names have been read."""

Arrays = Mapping[TensorNode, Any]
Run = Callable[..., dict[TensorNode, np.ndarray[Any, Any]]]


@pytest.fixture(scope="session")
def interpret() -> Run:
    """Return `(program, arrays, indices) -> cells of all parameters`, margins included.

    Parameters without an array start at zero; memory of the routine starts with rubbish.
    """
    interp = pytest.importorskip("ocannl_interp")
    memory = pytest.importorskip("ocannl_interp.memory")
    routine = pytest.importorskip("ocannl_interp.routine")

    def run(
        program: LoopProgram, arrays: Arrays | None = None, indices: Sequence[int] = ()
    ) -> dict[TensorNode, np.ndarray[Any, Any]]:
        cells = {}
        for node in program.params:
            info = program.nodes[node]
            cells[node] = np.zeros(info.buffer_dims, info.dtype.numpy)
            if arrays is not None and node in arrays:
                cells[node][...] = arrays[node]
        buffers = {
            node: memory.ArrayBuffer(array, program.nodes[node], interp.TARGET)
            for node, array in cells.items()
        }
        routine.Interpretation(split_kernels(program)).link(buffers)(indices)
        return cells

    return run
