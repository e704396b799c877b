"""Axes that run along memory together become one; every access keeps its cells and their order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.ir.indexing import (
    AffineIndex,
    FixedIndex,
    IndexVar,
    SubAxis,
    VarIndex,
    joint_extents,
    row_major,
    value_of,
)
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.passes.kernels.collapse_axes import collapsed
from ocannl_core.testing.parser.loops import parse


def nest_of(text: str) -> tuple[Nest, NodeInfos]:
    program = parse(f"routine test({text}")
    nest = kernel_nest(program.body)
    assert nest is not None
    return nest, program.nodes


def extents(text: str) -> list[int]:
    """Return the extents of the axes after the pass."""
    return [axis.extent for axis in collapsed(*nest_of(text)).axes]


def cells(nest: Nest, nodes: NodeInfos) -> Iterator[tuple[int, ...]]:
    """Yield the offsets in memory of the accesses of each iteration, in the order of the axes."""
    places = [
        row_major(access.indices or (), nodes[access.node].buffer_dims) for access in nest.accesses
    ]
    ordered = [*nest.output_axes, *nest.reduced]
    for position in product(*(range(axis.start, axis.start + axis.extent) for axis in ordered)):
        env: dict[IndexVar, int] = dict(zip((axis.var for axis in ordered), position, strict=True))
        yield tuple(value_of(place, env) for place in places)


ROWS = """x: float32[37, 61], y: float32[37, 61]):
    for i in range(37):
        for j in range(61):
            y[i, j] = x[i, j] + 1.0"""


def test_rows_of_any_length_are_one_axis() -> None:
    nest = collapsed(*nest_of(ROWS))
    (axis,) = nest.axes
    assert (axis.name, axis.start, axis.extent) == ("i", 0, 37 * 61)
    (store,) = nest.epilogue
    assert store.indices == (SubAxis(), VarIndex(axis.var))


def test_rows_of_whole_vectors_stay_rows_on_a_processor() -> None:
    nest, nodes = nest_of(ROWS)
    assert len(collapsed(nest, nodes, lanes=16).axes) == 1
    nest, nodes = nest_of(ROWS.replace("61", "64"))
    assert len(collapsed(nest, nodes, lanes=16).axes) == 2


@pytest.mark.parametrize(("terms", "expected"), [(128, [5, 8192]), (127, [5, 127, 64])])
def test_many_terms_along_memory_have_one_axis_on_a_processor_too(
    terms: int, expected: list[int]
) -> None:
    nest, nodes = nest_of(f"""x: float32[5, {terms}, 64], y: float32[5]):
    for i in range(5):
        for j in range({terms}):
            for k in range(64):
                y[i] += x[i, j, k]""")
    assert [axis.extent for axis in collapsed(nest, nodes, lanes=16).axes] == expected


def test_many_axes_are_one() -> None:
    text = """x: float32[2, 3, 5, 7], y: float32[2, 3, 5, 7]):
    for i in range(2):
        for j in range(3):
            for k in range(5):
                for l in range(7):
                    y[i, j, k, l] = x[i, j, k, l] + 1.0"""
    assert extents(text) == [210]


def test_the_order_of_loops_does_not_matter() -> None:
    text = """x: float32[3, 5], y: float32[3, 5]):
    for j in range(5):
        for i in range(3):
            y[i, j] = x[i, j] + 1.0"""
    assert extents(text) == [15]


def test_rows_from_a_position_on_are_one_axis() -> None:
    text = """x: float32[9, 5], y: float32[3, 5]):
    for i in range(3):
        for j in range(5):
            y[i, j] = x[i + 4, j] + 1.0"""
    nest, nodes = nest_of(text)
    found = collapsed(nest, nodes)
    (load,) = [access for access in found.accesses if not access.writes]
    assert load.indices == (SubAxis(), AffineIndex(((1, found.axes[0].var),), 20))


def test_rows_that_share_numbers_of_a_column_stay_apart() -> None:
    text = """x: float32[3, 5], b: float32[5], y: float32[3, 5]):
    for i in range(3):
        for j in range(5):
            y[i, j] = x[i, j] + b[j]"""
    assert extents(text) == [3, 5]


@pytest.mark.parametrize("load", ["x[i, j + 1]", "x[2*i, j]", "x[j, i]", "x[i, 0]"])
def test_cells_that_are_no_neighbors_stay_apart(load: str) -> None:
    text = f"""x: float32[9, 9], y: float32[3, 5]):
    for i in range(3):
        for j in range(5):
            y[i, j] = {load} + 1.0"""
    assert extents(text) == [3, 5]


def test_a_transposed_matrix_keeps_its_axes() -> None:
    text = """x: float32[5, 3], y: float32[3, 5]):
    for i in range(3):
        for j in range(5):
            y[i, j] = x[j, i] + 1.0"""
    assert extents(text) == [3, 5]


def test_terms_are_one_axis_apart_from_cells() -> None:
    text = """x: float32[4, 3, 5, 7], y: float32[4]):
    for i in range(4):
        for j in range(3):
            for k in range(5):
                for l in range(7):
                    y[i] = y[i] + x[i, j, k, l]"""
    assert extents(text) == [4, 105]


def test_terms_in_another_order_than_memory_stay_apart() -> None:
    text = """x: float32[4, 3, 5], y: float32[4]):
    for i in range(4):
        for k in range(5):
            for j in range(3):
                y[i] = y[i] + x[i, j, k]"""
    assert extents(text) == [4, 5, 3]


def test_a_choice_by_position_keeps_its_axis_apart() -> None:
    text = """x: float32[3, 5], y: float32[3, 5]):
    for i in range(3):
        for j in range(5):
            y[i, j] = where(int32(j) < 2, x[i, j], 0.0)"""
    assert extents(text) == [3, 5]


@st.composite
def random_nests(draw: st.DrawFn) -> str:
    """Return the text of a nest whose loads mostly follow its stores."""
    count = draw(st.integers(2, 4))
    sizes = [draw(st.integers(1, 4)) for _ in range(count)]
    letters = "ijkl"[:count]
    kept = draw(st.integers(1, count))
    order = draw(st.permutations(range(count)))
    params = [f"y: float32[{', '.join(map(str, sizes[:kept]))}]"]
    terms = []
    for at in range(draw(st.integers(1, 3))):
        dims, indices = [], []
        for letter, size in zip(letters, sizes, strict=True):
            kind = draw(st.sampled_from(["same"] * 8 + ["later", "wide", "missing", "fixed"]))
            later = draw(st.integers(1, 2)) if kind == "later" else 0
            if kind == "missing":
                continue
            wide = draw(st.integers(1, 3)) if kind == "wide" else 0
            dims.append(size + later + wide)
            indices.append("0" if kind == "fixed" else f"{letter} + {later}" if later else letter)
        if not dims:
            dims, indices = [1], ["0"]
        params.append(f"x{at}: float32[{', '.join(map(str, dims))}]")
        terms.append(f"x{at}[{', '.join(indices)}]")
    cell = f"y[{', '.join(letters[:kept])}]"
    value = " + ".join(terms)
    lines = [f"{', '.join(params)}):"]
    for depth, axis in enumerate(order, 1):
        lines.append(f"{'    ' * depth}for {letters[axis]} in range({sizes[axis]}):")
    is_sum = kept < count
    lines.append(f"{'    ' * (count + 1)}{cell} = {f'{cell} + ({value})' if is_sum else value}")
    return "\n".join(lines)


@settings(deadline=None)
@given(random_nests())
def test_every_access_keeps_its_cells(text: str) -> None:
    nest, nodes = nest_of(text)
    found = collapsed(nest, nodes)
    assert sorted(cells(found, nodes)) == sorted(cells(nest, nodes))
    for access in found.accesses:
        dims = nodes[access.node].buffer_dims
        assert access.indices is not None
        limits = joint_extents(access.indices, dims)
        ranges: dict[IndexVar, int] = {axis.var: axis.extent - 1 for axis in found.axes}
        for index, limit in zip(access.indices, limits, strict=True):
            assert value_of(index, ranges) < limit


@settings(deadline=None)
@given(random_nests())
def test_the_terms_of_a_cell_keep_their_order(text: str) -> None:
    nest, nodes = nest_of(text)

    def sums(each: Nest) -> dict[int, list[tuple[int, ...]]]:
        found: dict[int, list[tuple[int, ...]]] = {}
        stored = [access.writes for access in each.accesses].index(True)
        for places in cells(each, nodes):
            found.setdefault(places[stored], []).append(places)
        return found

    assert sums(collapsed(nest, nodes)) == sums(nest)


def test_a_sub_axis_is_counted_by_the_next_index() -> None:
    i, zero = VarIndex(nest_of(ROWS)[0].axes[0].var), FixedIndex(0)
    assert joint_extents((i, i), (3, 4)) == (3, 4)
    assert joint_extents((SubAxis(), i), (3, 4)) == (1, 12)
    assert joint_extents((i, SubAxis(), SubAxis(), i, zero), (2, 3, 4, 5, 6)) == (2, 1, 1, 60, 6)
