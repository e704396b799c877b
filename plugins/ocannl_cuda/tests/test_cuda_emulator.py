"""The emulation of devices: the text of a kernel runs on the processor, and faults are found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from plugins.ocannl_cuda.tests.kernels import REDUCE, REVERSE, Array, compiled

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_shuffles_barriers_and_shared_memory_make_a_block_reduction(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_ORDER", order)
    x, y = np.arange(3 * 1000, dtype=np.float32).reshape(3, 1000), np.zeros(3, np.float32)
    assert compiled(REDUCE, "total")(3, 128, x, y, 1000) == (0, "")
    assert y.tolist() == x.astype(np.float64).sum(1).astype(np.float32).tolist()


def reversed_in(order: str, barrier: str, monkeypatch: pytest.MonkeyPatch) -> Array:
    monkeypatch.setenv("CUDA_EMULATOR_ORDER", order)
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    assert compiled(REVERSE.replace("BARRIER", barrier), "reverse")(1, 64, x, y) == (0, "")
    return y


def test_a_missing_barrier_gives_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(range(63, -1, -1))
    for order in ("forward", "reverse"):
        assert reversed_in(order, "__syncthreads();", monkeypatch).tolist() == expected
        assert reversed_in(order, "", monkeypatch).tolist() != expected


def test_shared_memory_is_undefined_in_every_block() -> None:
    text = """
    extern "C" __global__ void left(float *y) {
      __shared__ float cells[4];
      y[blockIdx.x] = cells[0];
      cells[0] = 1;
    }
    """
    y = np.zeros(3, np.float32)
    assert compiled(text, "left")(3, 1, y) == (0, "")
    assert np.isnan(y).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "if (threadIdx.x < 16) __syncthreads();",
            "thread 0 waits at a barrier in line 3, and thread 16 has ended",
        ),
        (
            "if (threadIdx.x < 16) __syncthreads();\nelse __syncthreads();",
            "thread 0 waits at a barrier in line 3, and thread 16 at one in line 4",
        ),
        (
            "if (threadIdx.x < 16) y[0] = __shfl_xor_sync(0xffffffffu, y[0], 1);",
            "thread 0 waits at a warp's barrier in line 3, and thread 16 has ended",
        ),
    ],
)
def test_threads_that_do_not_meet_are_an_error_with_the_line(body: str, message: str) -> None:
    text = f'#line 1\n\nextern "C" __global__ void odd(float *y) {{\n{body}\n}}\n'
    assert compiled(text, "odd")(1, 32, np.zeros(1, np.float32)) == (719, message)


def test_a_shuffle_from_a_lane_that_does_not_exist_is_no_number() -> None:
    text = """
    extern "C" __global__ void beyond(float *y) {
      y[threadIdx.x] = __shfl_sync(0x3u, 1.0f, 20);
    }
    """
    y = np.zeros(2, np.float32)
    assert compiled(text, "beyond")(1, 2, y) == (0, "")
    assert np.isnan(y).all()


def test_a_shuffle_whose_mask_leaves_out_its_thread_is_an_error() -> None:
    text = """#line 2
    extern "C" __global__ void masked(float *y) {
      y[threadIdx.x] = __shfl_xor_sync(0x7fffffffu, 1.0f, 1);
    }
    """
    code, message = compiled(text, "masked")(1, 32, np.zeros(32, np.float32))
    assert code == 719
    assert message == (
        "thread 31 takes part in an exchange in line 3 whose mask 0x7fffffff leaves it out"
    )


def test_a_vector_at_an_address_that_is_no_multiple_of_it_is_an_error() -> None:
    text = """
    extern "C" __global__ void copy(const float *x, float *y) {
      copy_vector<uint4>(y + 4 * threadIdx.x, x + 4 * threadIdx.x + SHIFT);
    }
    """
    x, y = (each[-each.ctypes.data % 16 // 4 :][:16] for each in np.ones((2, 32), np.float32))
    assert compiled(text.replace("SHIFT", "0"), "copy")(1, 2, x, y) == (0, "")
    assert y.tolist() == [1.0] * 8 + y[8:].tolist()
    code, message = compiled(text.replace("SHIFT", "1"), "copy")(1, 2, x, y)
    assert code == 719
    assert "accesses a vector of 16 bytes in line" in message


def test_a_launch_of_the_wrong_shape_is_an_error() -> None:
    text = (
        'extern "C" __global__ void __launch_bounds__(64) wide(float *x) { x[threadIdx.x] = 1; }\n'
    )
    x = np.zeros(64, np.float32)
    launch = compiled(text, "wide")
    assert launch(1, 64, x) == (0, "")
    message = "the kernel is written for blocks of 64 threads, and is launched with 32"
    assert launch(1, 32, x) == (719, message)


def test_a_wrong_number_of_parameters_is_an_error() -> None:
    text = 'extern "C" __global__ void two(float *x, float *y) {}\n'
    code, message = compiled(text, "two")(1, 1, np.zeros(1, np.float32))
    assert (code, message) == (1, "the kernel takes 16 bytes of parameters, and was given 8")


SANITIZED = """
import ctypes, sys
import numpy as np
sys.path.insert(0, {tests!r})
from kernels import compiled
cells = np.zeros(8, np.float32)
{body}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("float *x", "heap-buffer-overflow"),
        ("__shared__ float x[8]", "global-buffer-overflow"),
        ("float x[8]", "stack-buffer-overflow"),
    ],
)
@pytest.mark.parametrize("barrier", ["", "__syncthreads();"])
def test_an_index_out_of_bounds_is_reported_with_its_line(
    body: str, found: str, barrier: str
) -> None:
    parameter = body if body.startswith("float *") else "float *y"
    local = "" if body.startswith("float *") else f"{body};"
    text = (
        f'extern "C" __global__ void far({parameter}) {{ {local} {barrier}\n'
        f"  for (int i = 0; i < 9; ++i)\n    *(volatile float *)(x + i) = i;\n}}\n"
    )
    code = SANITIZED.format(
        tests=str(Path(__file__).parent), body=f"print(compiled({text!r}, 'far')(1, 1, cells))"
    )
    result = run_sanitized(code)
    assert found in result.stderr
    assert "test.cu:" in result.stderr
    assert result.returncode != 0


def run_sanitized(code: str) -> subprocess.CompletedProcess[str]:
    """Return the outcome of a program whose kernels run under the address sanitizer."""
    from ocannl_cuda_emulator.driver import with_sanitizer

    own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env = os.environ | with_sanitizer(own)
    command: Sequence[str] = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=env)
