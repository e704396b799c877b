"""Races of the threads of a kernel, as the emulation reports them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from plugins.ocannl_cuda.tests.emulated import needs_emulation, run
from plugins.ocannl_cuda.tests.kernels import REDUCE, REVERSE, Array, compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(autouse=True)
def _finds_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_RACES", "1")


def race_in(text: str, name: str, *given: Array | int, grid: int = 1, block: int = 64) -> str:
    """Return the message about a race; empty without any."""
    code, message = compiled(text, name)(grid, block, *given)
    assert code == (719 if message else 0)
    return message


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_missing_barrier_is_a_race_with_variable_threads_and_lines(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_ORDER", order)
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    assert race_in(REVERSE.replace("BARRIER", "__syncthreads();"), "reverse", x, y) == ""
    message = race_in(REVERSE.replace("BARRIER", ""), "reverse", x, y)
    assert "race on shared cells[" in message
    assert "thread 31 of block 0 " in message
    assert "thread 32 of block 0 " in message
    assert "writes (test.cu:" in message
    assert "reads (test.cu:" in message


def test_shuffles_and_barriers_of_a_reduction_order_its_threads() -> None:
    x, y = np.ones((3, 1000), np.float32), np.zeros(3, np.float32)
    assert race_in(REDUCE, "total", x, y, 1000, grid=3, block=128) == ""
    assert y.tolist() == [1000.0] * 3


@pytest.mark.parametrize(
    ("barrier", "found"), [("__syncwarp();", ""), ("", "race on shared cells[")]
)
def test_barriers_of_warps_order_the_threads_of_one_warp(barrier: str, found: str) -> None:
    text = f"""
    extern "C" __global__ void exchange(float *y) {{
      __shared__ float cells[64];
      cells[threadIdx.x] = threadIdx.x;
      {barrier}
      y[threadIdx.x] = cells[threadIdx.x ^ 1];
    }}
    """
    message = race_in(text, "exchange", np.zeros(64, np.float32))
    assert message.startswith(found)
    assert bool(message) == bool(found)


def test_barriers_of_warps_do_not_order_different_warps() -> None:
    text = """
    extern "C" __global__ void exchange(float *y) {
      __shared__ float cells[64];
      cells[threadIdx.x] = threadIdx.x;
      __syncwarp();
      y[threadIdx.x] = cells[threadIdx.x ^ 32];
    }
    """
    assert "race on shared cells[" in race_in(text, "exchange", np.zeros(64, np.float32))


GLOBAL = """
extern "C" __global__ void add(const int *__restrict__ x, int *y) {
  STATEMENT
}
"""


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("y[threadIdx.x] = x[threadIdx.x];", ""),
        ("y[threadIdx.x / 2] = x[threadIdx.x];", "race on y[0]: thread 0 of block 0 writes"),
        ("y[threadIdx.x] = y[(threadIdx.x + 1) % 64];", "race on y["),
        ("atomicAdd(y, x[threadIdx.x]);", ""),
        ("atomicAdd(y, x[threadIdx.x]); y[1] = y[0];", "race on y["),
        ("y[threadIdx.x] = 1; __syncthreads(); y[63 - threadIdx.x] += 1;", ""),
        (
            "int own[3]; for (int k = 0; k < 3; ++k) own[k] = x[k]; y[threadIdx.x] = own[x[0] & 1];",
            "",
        ),
    ],
)
def test_accesses_of_one_cell_of_global_memory_are_races(statement: str, found: str) -> None:
    x, y = np.ones(64, np.int32), np.zeros(64, np.int32)
    message = race_in(GLOBAL.replace("STATEMENT", statement), "add", x, y)
    assert message.startswith(found)
    assert bool(message) == bool(found)


def test_nothing_orders_threads_of_different_blocks() -> None:
    statement = "y[0] = x[0]; __syncthreads();"
    x, y = np.ones(64, np.int32), np.zeros(64, np.int32)
    text = GLOBAL.replace("STATEMENT", statement)
    assert race_in(text, "add", x, y, grid=1, block=1) == ""
    message = race_in(text, "add", x, y, grid=2, block=1)
    assert "thread 0 of block 0 writes" in message
    assert "thread 0 of block 1 writes" in message


def test_neighboring_bytes_are_not_one_cell() -> None:
    text = """
    extern "C" __global__ void bytes(signed char *y) {
      *(int *)(y + 4 * threadIdx.x) = 0;
      __syncthreads();
      y[threadIdx.x] = y[threadIdx.x] + 1;
      WRITE
    }
    """
    y = np.zeros(256, np.int8)
    assert race_in(text.replace("WRITE", ""), "bytes", y) == ""
    assert race_in(text.replace("WRITE", "y[(threadIdx.x + 1) % 64] = 1;"), "bytes", y) != ""


def test_a_later_launch_does_not_race_with_an_earlier_one() -> None:
    launch = compiled(GLOBAL.replace("STATEMENT", "y[x[0] - threadIdx.x] = 1;"), "add")
    x, y = np.full(64, 63, np.int32), np.zeros(64, np.int32)
    for _ in range(3):
        assert launch(1, 64, x, y) == (0, "")


@needs_emulation
def test_a_race_in_generated_code_is_an_error_with_the_kernel(tmp_path: Path) -> None:
    program = """
        import numpy as np
        import ocannl_core as oc
        from ocannl_cuda import dialect
        if WITHOUT_BARRIERS:
            dialect.Cuda.barrier = lambda self, inside_block_axis: []
        random = np.random.default_rng(0)
        a, b = (oc.tensor(random.standard_normal((64, 64)).astype(np.float32)) for _ in "ab")
        y = oc.einsum("ik; kj => ij", a, b)
        ctx = oc.Context("cuda")
        ctx.compile(oc.train.forward(y))()
        try:
            assert np.allclose(ctx[y], ctx[a] @ ctx[b], atol=1e-4)
        except oc.DeviceError as error:
            print(error)
        """
    # one does not run the code of the other
    right, wrong = (
        run(
            program.replace("WITHOUT_BARRIERS", str(choice)),
            tmp_path,
            CUDA_EMULATOR_RACES="1",
            OCANNL_CACHE_DIR=str(tmp_path / str(choice)),
        )
        for choice in (False, True)
    )
    assert (right.output, right.errors, right.code) == ("", "", 0)
    assert "The work of a device runs to its end." in wrong.output
    assert "emulated device 0, kernel k_" in wrong.errors
    assert "race on shared " in wrong.errors


@pytest.mark.parametrize("barrier", ["", "__syncthreads();"])
def test_copies_in_the_background_are_accesses_of_their_threads(barrier: str) -> None:
    text = f"""
    extern "C" __global__ void stage(const float *x, float *y) {{
      __shared__ __align__(16) float cells[64];
      if (threadIdx.x < 16) cuda_emulator::copy_async(cells + 4 * threadIdx.x, x + 4 * threadIdx.x, 16, 16, 1);
      cuda_emulator::await_copies(0);
      {barrier}
      y[threadIdx.x] = cells[63 - threadIdx.x];
    }}
    """
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    message = race_in(text, "stage", x, y)
    assert ("race on shared cells[" in message) == (not barrier), message
