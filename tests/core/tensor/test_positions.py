"""Constant positions in specifications exist, or the operation is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]


@pytest.fixture(autouse=True)
def _session() -> Any:
    with oc.Session(seed=1, dtype="float64") as session:
        yield session


def _cells(dims: Dims) -> Array:
    return np.arange(1.0, 1.0 + np.prod(dims)).reshape(dims)


def _value(tensor: oc.Tensor) -> Array:
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(tensor))()
    cells: Array = ctx[tensor]
    return cells


READ = {
    "i{0} => i": lambda a, k: a[:, k],
    "{0}i => i": lambda a, k: a[k],
    "{0}... => ...": lambda a, k: a[k],
    "...{0} => ...": lambda a, k: a[..., k],
    "{0}...j => j": lambda a, k: a[k],
    "i...{0} => i": lambda a, k: a[:, k],
    "{0}, ... => ...": lambda a, k: a[k],
    "i | {0} => i": lambda a, k: a[:, k],
    "i -> {0} => i": lambda a, k: a[k],
}


@pytest.mark.parametrize("spec", READ)
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("dims", list(product((1, 2, 3), repeat=2)), ids=str)
def test_a_position_is_read_or_refused_as_in_numpy(spec: str, position: int, dims: Dims) -> None:
    array = _cells(dims)
    x = oc.tensor(array, batch_axes="|" in spec, input_axes="->" in spec)
    try:
        wanted = READ[spec](array, position)
    except IndexError:
        with pytest.raises(oc.ShapeError, match=f"Position {position} is accessed"):
            oc.einsum(spec.format(position), x)
        return
    np.testing.assert_array_equal(_value(oc.einsum(spec.format(position), x)), wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_strided_axis_with_an_offset_is_not_repeated(size: int, offset: int) -> None:
    x = oc.tensor(_cells((2, size)))
    spec = f"..., 2*i+{offset} => ..., i"
    if size % 2 and (size > 1 or offset):
        with pytest.raises(oc.ShapeError, match="multiple of the stride"):
            oc.einsum(spec, x)
    else:
        np.testing.assert_array_equal(_value(oc.einsum(spec, x)), _cells((2, size))[:, offset::2])


@pytest.mark.parametrize("spec", ["3i => i", "3...i => i", "3i... => i..."])
def test_a_position_of_an_axis_that_an_operand_lacks_is_refused(spec: str) -> None:
    for missing in (oc.tensor([1.0, 2.0]), oc.tensor(2.0), 2.0):
        with pytest.raises(oc.ShapeError, match="An operand has the axis"):
            oc.einsum(spec, missing)


@pytest.mark.parametrize(
    ("spec", "shape"), [("...2 => ...", "3"), ("2...j => j", "3,1"), ("...2j => ...", "3,1")]
)
def test_an_open_operand_gets_the_axes_that_positions_are_read_of(spec: str, shape: str) -> None:
    x = oc.placeholder("x", output=[...])
    oc.train.forward(oc.einsum(spec, x)).resolve()
    assert str(x.shape) == shape


def test_an_open_operand_keeps_the_size_that_other_uses_give() -> None:
    x = oc.placeholder("x", output=[...])
    total = oc.einsum("...2 => ...", x) + oc.einsum("...i; i => ...", x, oc.tensor(_cells((5,))))
    oc.train.forward(total).resolve()
    assert str(x.shape) == "5"


def _written(array: Array, position: int, size: int) -> Array:
    found = np.zeros((*array.shape, size))
    found[..., position] = array
    return found


@pytest.mark.parametrize(("first", "second"), list(product((1, 2, 3), repeat=2)))
def test_tensors_written_at_different_positions_meet(first: int, second: int) -> None:
    a, b = _cells((5,)), _cells((6,))
    x = oc.einsum(f"j => j {first}", oc.tensor(a))
    y = oc.einsum(f"k => k {second}", oc.tensor(b))
    size = max(first, second) + 1
    wanted = _written(a, first, size)[:, None] + _written(b, second, size)
    for spec in ("j...; k... => jk...", "jx; kx => jkx", "j..x..; k..x.. => jk..x.."):
        found = _value(oc.primitives.outer_sum(spec, x, y))
        np.testing.assert_array_equal(found, wanted, strict=True)


@pytest.mark.parametrize("size", [None, 3, 4])
def test_a_written_axis_has_the_size_of_its_aligned_axis(size: int | None) -> None:
    a = _cells((5,))
    x = oc.einsum("j => j2", oc.tensor(a))
    y = oc.tensor(_cells((5, 1))) if size is None else oc.tensor(_cells((5, size)))
    total = x + y
    wanted = _written(a, 2, size or 3) + _cells((5, size or 1))
    np.testing.assert_array_equal(_value(total), wanted, strict=True)


def test_a_written_axis_is_not_repeated_along_a_shorter_one() -> None:
    x = oc.einsum("j => j2", oc.tensor(_cells((5,))))
    with pytest.raises(oc.ShapeError, match="Position 2 is accessed"):
        x + oc.tensor(_cells((5, 2)))


def test_axes_of_selected_cells_are_counted_where_those_of_the_source_are_known() -> None:
    ids = oc.placeholder("ids", output=[2], dtype="int32")
    with pytest.raises(oc.ShapeError, match="number of axes"):
        _ = oc.take(oc.param("w"), ids).ndim
    part = (oc.placeholder("x", output=[6, 2, 4]) + oc.param("b"))[0:3]
    assert oc.take(part, ids, axis=0).ndim == 3
    assert oc.reshape(oc.take(part, oc.tensor(1, dtype="int32"), axis=0), (8,)).size == 8
