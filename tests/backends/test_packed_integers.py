"""Cells of four bits: two to a byte in memory, numbers of int8 and uint8 in every operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.host_arrays import cells_in, memory_of
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers import dtypes

Array = np.ndarray[Any, Any]
LEAST = {"int4": -8, "uint4": 0}
VALUES = {"int4": np.int8, "uint4": np.uint8}
PACKED = list(LEAST)


def cells(dtype: str, *shape: int) -> Array:
    """Return random cells of a format, as the host has them."""
    found = np.random.default_rng(3).integers(0, 16, shape) + LEAST[dtype]
    return found.astype(VALUES[dtype])


def evaluated(target: str, *tensors: oc.Tensor) -> list[Array]:
    code = oc.train.forward(tensors[0])
    for each in tensors[1:]:
        code = code + oc.train.forward(each)
    ctx = oc.Context(target)
    ctx.compile(code)()
    return [ctx[each] for each in tensors]


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("dims", [(), (1,), (5,), (3, 5), (2, 3, 3), (0, 3)])
def test_memory_has_two_cells_to_a_byte_and_the_first_in_the_low_bits(
    dtype: str, dims: tuple[int, ...]
) -> None:
    info = NodeInfo(dtypes.dtype_of(dtype), dims)
    x = cells(dtype, *dims)
    memory = memory_of(x, info)
    assert memory.shape == info.memory_dims == ((x.size + 1) // 2,)
    flat = [int(number) & 15 for number in x.ravel()] + [0] * (x.size % 2)
    assert memory.tolist() == [a | b << 4 for a, b in zip(flat[::2], flat[1::2], strict=True)]
    np.testing.assert_array_equal(cells_in(memory, info), x)


@pytest.mark.parametrize("dtype", PACKED)
def test_the_host_reads_and_writes_cells_as_bytes(target: str, dtype: str) -> None:
    x = cells(dtype, 3, 5)
    with oc.Session():
        c = oc.declare("c", output=[3, 5], dtype=dtype)
        ctx = oc.Context(target)
        ctx[c] = x
        assert ctx[c].dtype == VALUES[dtype]
        np.testing.assert_array_equal(ctx[c], x)
        ctx[c] = x.astype(getattr(ml_dtypes, dtype))
        np.testing.assert_array_equal(ctx[c], x)
        assert oc.tensor(x.astype(getattr(ml_dtypes, dtype))).dtype.name == dtype


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("columns", [1, 37, 64])
def test_operations_take_the_cells_as_numbers_of_bytes(
    target: str, dtype: str, columns: int
) -> None:
    x = cells(dtype, 5, columns)
    wide = np.uint32 if dtype == "uint4" else np.int32
    with oc.Session():
        a = oc.tensor(x, dtype=dtype, batch_axes=1)
        scale = np.linspace(-1, 1, columns).astype(np.float32)
        found = evaluated(
            target,
            a + a,
            a * a,
            oc.cast(a, "float32") * oc.tensor(scale),
            oc.cast(a, "float64") * 0.5,
            oc.cast(a, "bool"),
            oc.where(a, oc.tensor(scale), 2.0),
            a.sum(axis=1),
            a.max(axis=0),
            a.argmin(axis=1),
            oc.cumsum(a, axis=1),
            oc.sort(a, axis=1),
            a[1:, ::-1],
            oc.take(a, oc.tensor(np.array([4, 0, 4])), axis=0),
            oc.einsum("a,b => b,a", oc.tensor(x, dtype=dtype)),
        )
    expected = [
        x + x,
        x * x,
        x * scale,
        x * 0.5,
        x != 0,
        np.where(x, scale, np.float32(2)),
        x.sum(axis=1, dtype=wide),
        x.max(axis=0),
        x.argmin(axis=1).astype(np.int32),
        x.cumsum(axis=1, dtype=wide),
        np.sort(x, axis=1),
        x[1:, ::-1],
        x[[4, 0, 4]],
        x.T,
    ]
    for got, wanted in zip(found, expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("columns", [64, 129])
def test_a_product_reads_quantized_weights(target: str, dtype: str, columns: int) -> None:
    weights = cells(dtype, 6, columns)
    x = np.random.default_rng(0).normal(size=columns).astype(np.float32)
    scale = np.linspace(0.5, 1.0, 6).astype(np.float32)
    with oc.Session():
        w = oc.tensor(weights, dtype=dtype, input_axes=1)
        y = (oc.cast(w, "float32") @ oc.tensor(x)) * oc.tensor(scale)
        (found,) = evaluated(target, y)
    np.testing.assert_allclose(
        found, (weights.astype(np.float64) @ x) * scale, rtol=1e-4, atol=1e-4
    )


def test_windows_in_margins_ask_for_bytes(target: str) -> None:
    x = cells("int4", 7)
    with oc.Session():
        given, kernel = oc.tensor(x, dtype="int4"), oc.tensor([1.0, 2.0, 4.0])
        with pytest.raises(oc.UsageError, match=r"margins(.|\n)*oc.cast\(x, \"int8\"\)"):
            oc.einsum("i=+k; k => i", given, kernel)
        (found,) = evaluated(target, oc.einsum("i<+k; k => i", given, kernel))
        np.testing.assert_array_equal(found, x[:-2] + 2.0 * x[1:-1] + 4.0 * x[2:])


def test_weights_of_four_bits_take_an_eighth_of_the_memory_and_are_never_written_out() -> None:
    with oc.Session():
        w = oc.tensor(cells("int4", 64, 256), dtype="int4", input_axes=1)
        y = oc.cast(w, "float32") @ oc.placeholder("x", output=[256])
        ctx = oc.Context("cpu_c")
        routine = ctx.compile(oc.train.forward(y))
        assert "_load_int4" in routine.source
        assert routine.memory_plan.nbytes < 64 * 256 // 2
        assert oc.explain(routine).nbytes < 64 * 256 // 2 + 4096


@pytest.mark.parametrize("dtype", PACKED)
def test_files_hold_packed_cells_as_bytes(target: str, dtype: str, tmp_path: Path) -> None:
    x = cells(dtype, 3, 5)
    with oc.Session():
        c = oc.declare("c", output=[3, 5], dtype=dtype)
        ctx = oc.Context(target)
        ctx[c] = x
        oc.save(tmp_path / "c.safetensors", ctx, {"c": c})
        ctx[c] = np.zeros((3, 5), VALUES[dtype])
        oc.load(tmp_path / "c.safetensors", ctx, {"c": c})
        np.testing.assert_array_equal(ctx[c], x)


def test_numbers_beyond_four_bits_are_errors(target: str) -> None:
    with oc.Session():
        with pytest.raises(oc.TransferError, match=r"int4 holds -8 to 7(.|\n)*test_packed"):
            oc.tensor(np.array([8], np.int8), dtype="int4")
        with pytest.raises(oc.TransferError, match="uint4 holds 0 to 15"):
            oc.tensor([-1], dtype="uint4")
        c = oc.declare("c", output=[2], dtype="int4")
        with pytest.raises(oc.TransferError, match="int4 holds -8 to 7"):
            oc.Context(target)[c] = np.array([0, -9], np.int8)


def test_results_in_four_bits_are_errors_that_name_the_wider_format() -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0])
        c = oc.declare("c", output=[2], dtype="int4")
        for make in (
            lambda: oc.cast(x, "int4"),
            lambda: oc.add(x, x, dtype="uint4"),
            lambda: oc.number(1, dtype="int4"),
            lambda: oc.uniform(dtype="int4"),
        ):
            with pytest.raises(oc.UsageError, match=r"write whole bytes(.|\n)*test_packed"):
                make()

        @oc.cd
        def step() -> None:
            c.assign(x)

        with pytest.raises(oc.UsageError, match=r"write whole bytes(.|\n)*compute in int8"):
            step()
        w = oc.param("w", output=[2], dtype="int4", init=1.0)
        with pytest.raises(oc.LoweringError, match=r"an assignment to w, which is int4(.|\n)*ctx"):
            oc.Context("interp").init_params(w)
        ids = oc.tensor([1], dtype="uint4")
        with pytest.raises(oc.UsageError, match="integers"):
            oc.take(x, ids)
