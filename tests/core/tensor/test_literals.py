"""Literals: the axis kinds of containers, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.numbers.dtypes import dtype_of


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([1, 2, 3], "3"),
        ((1, 2, 3), "3->"),
        ([(1, 2, 3), (4, 5, 6)], "3->2"),
        (oc.batch([1, 2], [3, 4], [5, 6]), "3|2"),
        (oc.batch([(1,), (2,)]), "1|1->2"),
        ([[1, 2], [3, 4], [5, 6]], "3,2"),
        (2.5, "()"),
    ],
)
def test_lists_are_output_axes_tuples_input_axes_and_batches_batch_axes(
    value: object, shape: str
) -> None:
    assert str(oc.tensor(value).shape) == shape


def test_cells_are_stored_batch_first_then_output_then_input() -> None:
    literal = oc.tensor((oc.batch(1, 2, 3), oc.batch(4, 5, 6))).literal
    assert literal is not None
    np.testing.assert_array_equal(literal, [[1, 4], [2, 5], [3, 6]])


def test_axes_of_an_array_are_output_axes_but_for_those_named() -> None:
    array = np.zeros((2, 3, 4, 5))
    assert str(oc.tensor(array).shape) == "2,3,4,5"
    assert str(oc.tensor(array, batch_axes=1, input_axes=2).shape) == "2|4,5->3"


def test_float64_arrays_become_the_default_float_and_other_formats_stay() -> None:
    assert oc.tensor(np.zeros(2)).dtype is oc.float32
    assert oc.tensor(np.zeros(2, ">f8")).dtype is oc.float32
    assert oc.tensor(np.zeros(2), dtype=oc.float64).dtype is oc.float64
    assert oc.tensor(np.zeros(2, np.int64)).dtype is oc.int64
    assert oc.tensor([1, 2]).dtype is oc.float32
    assert oc.tensor(1).dtype is oc.float32
    assert oc.tensor(np.int32(1)).dtype is oc.int32


def test_a_literal_is_a_copy_of_the_array() -> None:
    array = np.zeros(2, np.float32)
    literal = oc.tensor(array)
    array[0] = 7
    assert literal.literal is not None
    assert literal.literal[0] == 0


@pytest.mark.parametrize("depth", [65, 1000, 100_000, None])
def test_a_literal_is_no_deeper_than_an_array(depth: int | None) -> None:
    value: list[Any] = [1.0]
    if depth is None:
        value[:] = [value]
    for _ in range((depth or 1) - 1):
        value = [value]
    for function in (oc.tensor, lambda given: oc.param("w", init=given)):
        with pytest.raises(oc.UsageError, match="at most 64 deep"):
            function(value)
    assert oc.tensor(np.zeros((1,) * 64).tolist()).ndim == 64


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, [2]], "[2] at [1]"),
        ([[1, 2], 3], "3 at [1], where a list of length 2"),
        ([[1, 2], [3]], "list of length 1 at [1], where a list of length 2"),
        ([[1, 2], (3, 4)], "tuple of length 2 at [1], where a list of length 2"),
        ([oc.batch(1), [1]], "list of length 1 at [1], where a oc.batch of length 1"),
        ([[], [1]], "list of length 1 at [1], where a list of length 0"),
        ([[0, 1], [2, "a"]], "'a' at [1][1]"),
        ([None], "None at [0]"),
        ([np.zeros(2), np.zeros(3)], "shape (3,) at [1], where (2,)"),
        ([np.zeros(2, np.complex64)], "dtype complex64"),
        ([1, 10**400], "a number beyond 1.8e308"),
    ],
)
def test_ragged_literals_and_other_values_are_refused_with_the_place(
    value: object, found: str
) -> None:
    with pytest.raises(oc.UsageError) as caught:
        oc.tensor(value)
    assert found in caught.value.found
    assert "test_literals.py" in caught.value.where


def test_more_named_axes_than_there_are_is_an_error() -> None:
    with pytest.raises(oc.UsageError, match="batch_axes=2"):
        oc.tensor(np.zeros(3), batch_axes=2)


def cells(tensor: oc.Tensor) -> object:
    assert tensor.literal is not None
    return tensor.literal.tolist()


def test_nested_lists_name_their_batch_and_input_axes_as_arrays_do() -> None:
    assert str(oc.tensor([[1, 2], [3, 4]], batch_axes=1).shape) == "2|2"
    assert str(oc.tensor([[[1], [2]]], batch_axes=1, input_axes=1).shape) == "1|1->2"
    with pytest.raises(oc.UsageError, match="beside a tuple"):
        oc.tensor([(1, 2)], input_axes=1)


def test_arrays_in_a_literal_have_output_axes_inside_those_of_the_literal() -> None:
    rows = np.arange(3.0), np.arange(3.0) + 3
    assert str(oc.tensor(list(rows)).shape) == "2,3"
    assert str(oc.tensor(oc.batch(*rows)).shape) == "2|3"
    columns = oc.tensor(rows)
    assert str(columns.shape) == "2->3"
    assert cells(columns) == [[0, 3], [1, 4], [2, 5]]


def test_whole_numbers_of_a_literal_stay_exact() -> None:
    assert cells(oc.tensor([2**63, 1], dtype="uint64")) == [2**63, 1]
    assert cells(oc.tensor([2**53 + 1], dtype="int64")) == [2**53 + 1]
    assert cells(oc.tensor([Fraction(1, 2), True])) == [0.5, 1.0]
    assert cells(oc.tensor([10**30])) == [float(np.float32(1e30))]


class FromElsewhere:
    """An array of another library, which only speaks DLPack."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        if self._array.size == 0:
            raise BufferError("the array requires a gradient")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_are_taken_through_dlpack() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    taken = oc.tensor(FromElsewhere(array), input_axes=1)
    assert str(taken.shape) == "3->2"
    assert cells(taken) == array.tolist()
    array[0, 0] = 7
    assert cells(taken)[0][0] == 0  # type: ignore[index]
    assert cells(oc.tensor([FromElsewhere(array)])) == [array.tolist()]


def test_an_array_that_its_library_does_not_hand_over_is_refused_with_the_reason() -> None:
    with pytest.raises(oc.UsageError, match="requires a gradient") as caught:
        oc.tensor(FromElsewhere(np.zeros(0)))
    assert "x.detach().cpu()" in caught.value.fix


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (lambda: oc.tensor([1, 2, 3], basis="rgb"), "3:rgb"),
        (lambda: oc.tensor([(1, 2), (3, 4)], basis=["rgb", None]), "2->2:rgb"),
        (lambda: oc.tensor(np.zeros((2, 3)), batch_axes=1, basis=[None, "rgb"]), "2|3:rgb"),
        (lambda: oc.tensor(2.0, basis="q"), "1:q"),
        (lambda: oc.number(2.0, basis="q"), "1:q"),
        (lambda: oc.placeholder("x", output=[oc.Size(3, "rgb")]), "3:rgb"),
    ],
)
def test_an_axis_may_have_a_basis(made: Callable[[], oc.Tensor], shape: str) -> None:
    assert str(made().shape) == shape


def test_a_basis_is_unified_with_aligned_axes() -> None:
    w = oc.param("w", output=[2])
    y = w @ oc.tensor([1, 2, 3], basis="rgb")
    assert y.info.dims == (2,)
    assert str(w.shape) == "3:rgb->2"


def test_two_bases_do_not_meet() -> None:
    with pytest.raises(oc.ShapeError, match="'rgb'"):
        oc.tensor([1, 2, 3], basis="rgb") + oc.tensor([1, 2, 3], basis="hsv")


def test_the_basis_of_size_1_passes_to_axes_of_size_1() -> None:
    hey = oc.param("hey")
    y = hey @ oc.number(2.0, basis="q") + oc.number(1.0, basis="p")
    assert y.info.dims == (1,)
    assert (str(hey.shape), str(y.shape)) == ("1:q->1:p", "1:p")


@pytest.mark.parametrize("first", [0, 1])
def test_the_basis_of_size_1_does_not_pass_to_broadcast_axes(first: int) -> None:
    one, many = oc.number(2.0, basis="q"), oc.tensor([1, 2, 3], basis="rgb")
    operands = (one, many) if first == 0 else (many, one)
    y = operands[0] + operands[1]
    assert y.info.dims == (3,)
    assert str(y.shape) == "3:rgb"


def test_two_bases_of_single_positions_do_not_meet() -> None:
    y = oc.number(2.0, basis="q") + oc.number(1.0, basis="p")
    with pytest.raises(oc.ShapeError) as caught:
        y.info  # noqa: B018 - closes the shape
    assert caught.value.found == "basis 'q' (size 1) and basis 'p' (size 1)"
    assert "first operand of add" in caught.value.where
    assert "second operand of add" in caught.value.where


def test_bases_that_do_not_match_the_axes_are_refused() -> None:
    with pytest.raises(oc.UsageError, match="for 2 axes"):
        oc.tensor([[1, 2]], basis="rgb")


def test_cells_of_no_fixed_shape_take_the_shape_of_their_use() -> None:
    for count in (6, 24):  # below and above the number that is written into code
        filling = oc.reshape(range(count))
        y = filling + oc.tensor(np.zeros((count // 2, 2)), batch_axes=1)
        assert y.info.dims == (count // 2, 2)
        assert str(filling.shape) == f"{count // 2}|2"


def test_cells_of_no_fixed_shape_alone_are_one_axis() -> None:
    assert oc.reshape([[1, 2], [3, 4]]).info.dims == (4,)


def test_a_use_with_another_number_of_cells_is_an_error() -> None:
    y = oc.reshape([1, 2, 3, 4, 5]) + oc.tensor(np.zeros((2, 3)))
    with pytest.raises(oc.ShapeError, match="6 cells in place of 5"):
        _ = y.info


def test_the_setting_limits_the_cells_written_into_code() -> None:
    assert oc.reshape(range(16)).literal is None
    assert oc.reshape(range(17)).literal is not None
    with oc.settings.overrides(fill_limit=0):
        assert oc.reshape([1]).literal is not None
    with (
        pytest.raises(oc.SettingsError, match="from 0 to 16"),
        oc.settings.overrides(fill_limit=17),
    ):
        pass


def test_reshape_refuses_tensors() -> None:
    with pytest.raises(oc.UsageError, match="takes the shape of its use"):
        oc.reshape([oc.number(1.0), 2.0])


def test_offsets_have_the_stated_axes_or_those_of_their_use() -> None:
    assert str(oc.primitives.offsets(output=[2], input=[3]).shape) == "3->2"
    inferred = oc.primitives.offsets()
    assert (inferred + oc.tensor([(1, 2)])).info.dims == (1, 2)
    assert str(inferred.shape) == "2->1"


@pytest.mark.parametrize("arguments", [(2.5,), (1, 5, 0), (1, 2.5)])
def test_ranges_are_of_integers(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(oc.UsageError, match="range is made of integers"):
        oc.arange(*arguments)


def test_a_function_of_indices_is_called_with_batch_output_and_input_indices() -> None:
    made = oc.from_function(lambda b, o, i: 100 * b + 10 * o + i, batch=[2], output=[1], input=[2])
    assert str(made.shape) == "2|2->1"
    assert cells(made) == [[[0, 1]], [[100, 101]]]


def test_a_function_of_indices_returns_numbers() -> None:
    with pytest.raises(oc.UsageError, match="None at 0, 1"):
        oc.from_function(lambda i, j: None if j else 1, output=[2, 2])  # type: ignore[arg-type, return-value]
    with pytest.raises(oc.UsageError, match="sizes are known"):
        oc.from_function(lambda i: i, output=[...])  # type: ignore[list-item]


def test_files_state_their_shape_or_the_length_gives_the_number_of_entries(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(12.0).reshape(3, 2, 2))
    images = oc.data.memmap(tmp_path / "images.npy", input_axes=1)
    assert (str(images.shape), images.dtype, images.label) == ("3|2->2", oc.float32, ("images",))
    np.arange(12, dtype=np.int32).tofile(tmp_path / "labels.bin")
    labels = oc.data.memmap(tmp_path / "labels.bin", dtype="int32", output=[2])
    assert (str(labels.shape), labels.dtype) == ("6|2", oc.int32)


def test_a_mapped_file_is_not_read_when_the_tensor_is_made(tmp_path: Path) -> None:
    path = tmp_path / "data.npy"
    np.save(path, np.zeros(3, np.float32))
    for mapped in (oc.data.memmap(path), oc.tensor(np.load(path, mmap_mode="r"), batch_axes=1)):
        assert isinstance(mapped.literal, np.memmap)
    stored = np.load(path, mmap_mode="r+")
    stored[1] = 5.0
    stored.flush()
    assert cells(mapped) == [0, 5, 0]


def test_files_that_hold_no_entries_of_that_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(10))
    with pytest.raises(oc.UsageError, match="10 bytes are no entries of 3 cells of int32"):
        oc.data.memmap(path, dtype="int32", output=[3])
    with pytest.raises(oc.UsageError, match="number format"):
        oc.data.memmap(path, output=[3])
    with pytest.raises(oc.UsageError, match="No such file"):
        oc.data.memmap(tmp_path / "missing.npy")


def test_not_a_number_is_refused_with_its_place() -> None:
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells, the first at \[1, 0\]"):
        oc.tensor([[0.0, 1.0], [float("nan"), 2.0]])
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells, the first at \[1, 0\]"):
        oc.tensor(np.array([[0.0, 1.0], [np.nan, 2.0]]))


@pytest.mark.parametrize(
    ("cells", "dtype"), [([[1, 2], [3, -1]], "uint8"), ([[0, 1], [2, 1e9]], "float16")]
)
def test_a_number_that_does_not_fit_the_format_is_refused_with_its_place(
    cells: list[list[float]], dtype: str
) -> None:
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells do not fit, the first at \[1, 1\]"):
        oc.tensor(cells, dtype=dtype)


@pytest.mark.parametrize(
    ("value", "dtype"), [(2.5, "int32"), (300, "uint8"), (-1, "uint8"), (float("inf"), "int64")]
)
def test_a_number_is_one_of_its_format(value: float, dtype: str) -> None:
    with pytest.raises(oc.TransferError) as caught:
        oc.number(value, dtype=dtype)
    assert "test_literals.py" in caught.value.where


def test_fractions_are_numbers() -> None:
    assert cells(oc.tensor(Fraction(1, 4))) == 0.25
    assert cells(oc.tensor([Fraction(1, 4), 2])) == [0.25, 2]
    assert oc.number(Fraction(1, 4)).label == ("0.25",)


def test_an_array_of_another_format_needs_a_stated_one() -> None:
    array = np.arange(3, dtype=np.longdouble)
    with pytest.raises(oc.UsageError, match="state the format"):
        oc.tensor(array)
    assert cells(oc.tensor(array, dtype="float32")) == [0, 1, 2]


def test_arrays_of_numpy_files_have_the_format_that_they_were_saved_in(tmp_path: Path) -> None:
    for dtype in ("bfloat16", "float8_e4m3fn", "float16"):
        saved = np.array([1.5, -2.0]).astype(dtype_of(dtype).numpy)
        np.savez(tmp_path / "cells.npz", w=saved)
        np.save(tmp_path / "cells.npy", saved)
        loaded = np.load(tmp_path / "cells.npz")["w"]
        made = [
            oc.tensor(loaded, dtype=dtype),
            oc.tensor([loaded[0], loaded[1]], dtype=dtype),
            oc.data.memmap(tmp_path / "cells.npy", dtype=dtype),
        ]
        if dtype != "float8_e4m3fn":
            made.append(oc.tensor(loaded))
        for tensor in made:
            assert tensor.dtype is dtype_of(dtype)
            assert cells(tensor) == [1.5, -2.0]
        assert cells(oc.tensor(saved, dtype="float32")) == [1.5, -2.0]
    with pytest.raises(oc.TransferError, match=r"ml_dtypes\.float8_e5m2"):
        oc.tensor(np.zeros(2, "V1"))
    with pytest.raises(oc.TransferError, match=r"array\['a'\]"):
        oc.tensor(np.zeros(2, [("a", "f4"), ("b", "f4")]))


def test_masked_cells_are_refused_with_their_place() -> None:
    array = np.ma.array([[1.0, 2.0], [3.0, 4.0]], mask=[[False, False], [True, False]])
    records = np.ma.array(np.zeros(2, oc.random.uint4x32.numpy), mask=[(1, 0, 0, 0), (0, 0, 0, 0)])
    values: list[Any] = [array, array.astype("int32"), array.astype(bool), [array, array], records]
    values += [
        [1.0, np.ma.masked],
        [array[1, 0], 2.0],
        (array, array.filled(0)),
        array.data[0] + array,
    ]
    for value in values:
        with pytest.raises(oc.TransferError, match="none is masked") as caught:
            oc.tensor(value)
        assert "test_literals.py" in caught.value.where
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells masked, the first at \[1, 0\]"):
        oc.reshape(array)
    with pytest.raises(oc.TransferError, match=r"1 of 4 cells masked"):
        oc.param("p", init=array)
    assert cells(oc.tensor(array.filled(0))) == [[1, 2], [0, 4]]
    assert cells(oc.tensor(np.ma.getmaskarray(array))) == [[0, 0], [1, 0]]


def test_a_masked_array_that_masks_nothing_is_an_array() -> None:
    for mask in (False, [False, False], np.ma.nomask):
        assert cells(oc.tensor(np.ma.array([1.0, 2.0], mask=mask))) == [1, 2]
    assert cells(oc.tensor(np.ma.array([1.0, 2.0], mask=[True, False])[1:])) == [2]


def test_a_basis_is_a_text() -> None:
    with pytest.raises(oc.UsageError, match="basis=3 for 1 axes"):
        oc.tensor([1, 2], basis=3)  # type: ignore[arg-type]


def test_a_function_of_indices_takes_one_for_each_axis() -> None:
    with pytest.raises(oc.UsageError, match=r"one for each axis(.|\n)*for 2 axes"):
        oc.from_function(lambda i: i, output=[2], input=[2])


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda x, huge: x + huge, id="a sum"),
        pytest.param(lambda x, huge: x**huge, id="a power"),
        pytest.param(lambda _, huge: oc.number(huge), id="a number tensor"),
        pytest.param(lambda _, huge: oc.param("p", init=huge), id="a first value"),
    ],
)
@pytest.mark.parametrize("huge", [10**400, -(10**400), Fraction(10**400, 3)])
def test_a_number_beyond_all_formats_is_refused_where_it_is_used(
    use: Callable[[oc.Tensor, Real], object], huge: Real
) -> None:
    with pytest.raises(oc.UsageError, match=r"beyond 1\.8e308"):
        use(oc.placeholder("x", output=[3]), huge)
