"""Native code of external operations as kernels; whole files are in tests/golden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from inline_snapshot import external_file, snapshot

from ocannl_core.base.errors import OpError
from ocannl_core.codegen.dialect import Dialect, KernelParameter
from ocannl_core.codegen.prelude.prelude import PreludeWords
from ocannl_core.codegen.rendering.native import native_arguments, render_native
from ocannl_core.ir.external import NativeCode
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import bfloat16, float32, float64, int32

GOLDEN = "../../golden"
X, Y, Z, N = (TensorNode(n, (name,)) for n, name in enumerate("xyzn"))
NODES = {
    X: NodeInfo(float32, (6, 4)),
    Y: NodeInfo(int32, (3,)),
    Z: NodeInfo(float32, (3, 4)),
    N: NodeInfo(bfloat16, ()),
}


@dataclass(frozen=True)
class Coded:
    """An operation with the code of one language."""

    code: NativeCode
    language: str = "c"
    name: str = "coded"

    def perform(self, inputs: Any, outputs: Any) -> None:
        raise AssertionError("native code runs instead")

    def native(self, language: str) -> NativeCode | None:
        return self.code if language == self.language else None


class Cuda(Dialect):
    """As much of CUDA C++ as a kernel needs around it."""

    language: ClassVar[str] = "cuda"
    words: ClassVar[PreludeWords] = PreludeWords(inline="static __device__ inline")
    restrict: ClassVar[str] = "__restrict__"
    headers: ClassVar[tuple[str, ...]] = ("<stdint.h>",)

    def opening(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return self.function_head(f'extern "C" __global__ void {symbol}', parameters)

    def closing(self, symbol: str, parameters: Sequence[KernelParameter]) -> list[str]:
        return ["}"]


LOOK_UP = """
    const int64_t width = table_shape[1];
    for (int64_t i = 0; i < rows_size; ++i)
      for (int64_t j = 0; j < width; ++j)
        found[i * width + j] = $twice(table[rows[i] * width + j]);
"""
SUPPORT = """
    static float $twice(float x) { return 2 * x; }
"""
NAMES = (("table", "rows"), ("found",))


def kernel(call: CallExternal, dialect: Dialect | None = None) -> Any:
    found = render_native(call, NODES, dialect or Dialect())
    assert found is not None
    return found


def body(code: NativeCode, inputs: Sequence[TensorNode], outputs: Sequence[TensorNode]) -> str:
    """Return the function of a call, without the one that unpacks its arguments."""
    found = kernel(CallExternal(Coded(code), tuple(inputs), tuple(outputs)))
    text: str = found.text.replace(found.symbol, "k")
    return text[: text.index("\n}\n") + 3]


def test_c_code_is_a_function_of_its_own() -> None:
    code = NativeCode(LOOK_UP, *NAMES, SUPPORT, ("<float.h>",))
    found = kernel(CallExternal(Coded(code), (X, Y), (Z,)))
    text = f"{Dialect().prelude(found.helpers)}\n{found.text}"
    assert text == external_file(f"{GOLDEN}/look_up.c", format=".txt")


def test_cuda_code_is_a_kernel_with_its_launch() -> None:
    device_code = """
        const int64_t width = table_shape[1];
        const int64_t cell = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
        if (cell < found_size)
          found[cell] = $twice(table[rows[cell / width] * width + cell % width]);
    """
    support = "static __device__ float $twice(found_type x) { return 2 * x; }"
    code = NativeCode(device_code, *NAMES, support.replace("found_type", "float"), (), (1,), (32,))
    found = kernel(CallExternal(Coded(code, "cuda"), (X, Y), (Z,)), Cuda())
    assert (found.grid, found.block) == ((1,), (32,))
    text = f"{Cuda().prelude(found.helpers)}\n{found.text}"
    assert text == external_file(f"{GOLDEN}/look_up.cu", format=".txt")


def test_an_operation_without_code_in_the_language_has_no_kernel() -> None:
    call = CallExternal(Coded(NativeCode("", *NAMES), "cuda"), (X, Y), (Z,))
    assert render_native(call, NODES, Dialect()) is None


def test_only_the_nodes_of_the_code_are_declared() -> None:
    code = NativeCode("n_type one = 1; z[0] = x_shape[0] + z_size + one;", ("x", "n"), ("z",))
    assert body(code, (X, N), (Z,)) == snapshot("""\
static void k_body(
    const float *restrict x,
    const uint16_t *restrict n,
    float *restrict z) {
  const int64_t x_shape[] = {6, 4};
  typedef uint16_t n_type;
  enum { z_size = 12 };
  n_type one = 1; z[0] = x_shape[0] + z_size + one;
}
""")


def test_a_node_is_one_argument_however_often_it_occurs() -> None:
    code = NativeCode("z[0] = x[0] + y[0];", ("x", "y"), ("z",))
    call = CallExternal(Coded(code), (X, X), (X,))
    assert native_arguments(call) == (X,)
    assert body(code, (X, X), (X,)) == snapshot("""\
static void k_body(float *restrict x) {
  const float *const y = x;
  float *const z = x;
  z[0] = x[0] + y[0];
}
""")


def test_scratch_memory_is_an_input_that_is_written() -> None:
    code = NativeCode("x[0] = 1; z[0] = x[0];", ("x",), ("z",))
    assert body(code, (X,), (Z, X)).splitlines()[0] == snapshot(
        "static void k_body(float *restrict x, float *restrict z) {"
    )


def test_the_name_of_an_operation_is_not_part_of_its_kernel() -> None:
    code = NativeCode("z[0] = x[0];", ("x",), ("z",))
    one, other = (
        kernel(CallExternal(Coded(code, name=name), (X,), (Z,))) for name in ("one", "other")
    )
    assert one == other
    assert (one.author, other.author) == ("one", "other")


def test_kernels_differ_in_their_extents_and_their_launch() -> None:
    def symbol(nodes: Any = NODES, **launch: Any) -> str:
        code = NativeCode("z[0] = x_size;", ("x",), ("z",), **launch)
        found = render_native(CallExternal(Coded(code), (X,), (Z,)), nodes, Dialect())
        assert found is not None
        return found.symbol

    assert symbol() == symbol()
    assert symbol() != symbol(NODES | {X: NodeInfo(float32, (5, 4))})
    assert symbol() != symbol(NODES | {X: NodeInfo(float64, (6, 4))})
    assert symbol() != symbol(grid=(2,))


@pytest.mark.parametrize(
    "names",
    [(("x",), ("z",)), (("x", "x"), ("z",)), (("x", "2y"), ("z",)), (("x", "y"), ("z", "w"))],
)
def test_names_are_different_identifiers_and_one_for_each_array(names: Any) -> None:
    call = CallExternal(Coded(NativeCode("", *names)), (X, Y), (Z,))
    with pytest.raises(OpError) as error:
        render_native(call, NODES, Dialect())
    assert error.value.where == "coded"
