"""Index maps, compared with NumPy by running through the domain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.errors import ShapeError, SpecError, VerifyError
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import (
    AxisIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    Projections,
    StaticIndex,
    VarIndex,
    value_of,
    variables,
)
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import Row, Shape, Size, closed_shape
from ocannl_core.shape.language.subscripts import Position
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.logic import (
    Compose,
    ComposeAccumulate,
    Einsum,
    Logic,
    Pointwise,
    Slice,
    Transpose,
)

ORIGIN = Origin("test")
Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]


def einsum(text: str) -> Einsum:
    return Einsum(parse_spec(text))


def output(*sizes: int) -> Shape:
    return closed_shape(output=sizes)


def infer(logic: Logic, *operands: Shape) -> Shape:
    """Return the closed shape of a result."""
    environment = Environment()
    result = environment.fresh_shape()
    environment.relate(logic, result, operands, ORIGIN)
    environment.close([result])
    return environment.view(result)


def run(
    projections: Projections, operands: Sequence[Array], statics: dict[IndexVar, int] | None = None
) -> Array:
    """Return the sum of products that the index maps describe, cell by cell."""
    result = np.zeros(projections.lhs_dims, dtype=np.int64)
    names = [var for var, _ in projections.domain]
    for values in product(*(range(extent) for _, extent in projections.domain)):
        env: dict[IndexVar, int] = {**(statics or {}), **dict(zip(names, values, strict=True))}
        cells = [
            operand[tuple(value_of(index, env) for index in indices)]
            for operand, indices in zip(operands, projections.rhs, strict=True)
        ]
        result[tuple(value_of(index, env) for index in projections.lhs)] += prod(map(int, cells))
    return result


def filled(shape: Shape, seed: int = 0) -> Array:
    """Return an array whose cells are distinct small numbers, in buffer order."""
    return (np.arange(shape.size, dtype=np.int64) * 7 + seed + 1).reshape(shape.dims)


def text(projections: Projections) -> str:
    """Return the index maps as text, loop variables numbered in order of appearance."""
    names: dict[IndexVar, str] = {}

    def show(index: AxisIndex) -> str:
        if isinstance(index, FixedIndex):
            return str(index.value)
        (var,) = variables(index)
        if isinstance(var, StaticIndex):
            return f"@{var.name}"
        return names.setdefault(var, f"{var.hint}{len(names)}")

    def row(indices: Sequence[AxisIndex]) -> str:
        return "[" + ", ".join(map(show, indices)) + "]"

    domain = ", ".join(f"{show(VarIndex(var))}<{extent}" for var, extent in projections.domain)
    return f"{domain}: {row(projections.lhs)} <- {' '.join(map(row, projections.rhs))}"


def test_a_matrix_product_contracts_its_shared_axis() -> None:
    projections = project(einsum("ij;jk=>ik"), output(2, 4), [output(2, 3), output(3, 4)], ORIGIN)
    assert text(projections) == snapshot("i0<2, k1<4, j2<3: [i0, k1] <- [i0, j2] [j2, k1]")
    assert projections.rhs_dims == ((2, 3), (3, 4))


def test_the_domain_lists_result_axes_in_buffer_order_then_reduced_ones() -> None:
    shape = closed_shape((2,), (3,), (4,))
    projections = project(
        einsum("b|i->o; b|k->i => b|k->o"),
        closed_shape((2,), (5,), (4,)),
        [shape, closed_shape((2,), (5,), (3,))],
        ORIGIN,
    )
    assert text(projections) == snapshot(
        "b0<2, o1<4, k2<5, i3<3: [b0, o1, k2] <- [b0, o1, i3] [b0, i3, k2]"
    )


def test_equal_operations_have_equal_index_maps_over_variables_of_their_own() -> None:
    logic, operands = einsum("ij; jk => ik"), [output(2, 3), output(3, 4)]
    one, other = (project(logic, output(2, 4), operands, ORIGIN) for _ in range(2))
    assert text(one) == text(other)
    assert not set(one.extents) & set(other.extents)
    arrays = [filled(operand) for operand in operands]
    assert (run(one, arrays) == run(other, arrays)).all()


def test_pointwise_operands_of_size_1_are_read_at_0() -> None:
    projections = project(
        Pointwise(), output(2, 3), [output(2, 3), output(1, 3), output(1)], ORIGIN
    )
    assert text(projections) == snapshot("o0<2, o1<3: [o0, o1] <- [o0, o1] [0, o1] [0]")


def test_composition_of_a_batch() -> None:
    w, x = closed_shape(input=(3,), output=(2,)), closed_shape(batch=(5,), output=(3,))
    projections = project(Compose(), closed_shape((5,), (), (2,)), [w, x], ORIGIN)
    assert text(projections) == snapshot("b0<5, o1<2, i2<3: [b0, o1] <- [o1, i2] [b0, i2]")


def test_an_addend_is_read_at_the_result_axes() -> None:
    w, x = closed_shape(input=(3,), output=(2,)), output(3)
    projections = project(ComposeAccumulate(), output(2), [w, x, output(2)], ORIGIN)
    assert text(projections) == snapshot("o0<2, i1<3: [o0] <- [o0, i1] [i1] [o0]")


def test_transposition_swaps_indices() -> None:
    shape = closed_shape((5,), (2,), (3,))
    projections = project(Transpose(), closed_shape((5,), (3,), (2,)), [shape], ORIGIN)
    assert text(projections) == snapshot("b0<5, o1<2, i2<3: [b0, o1, i2] <- [b0, i2, o1]")


def test_two_occurrences_of_one_tensor_are_indexed_independently() -> None:
    square = output(3, 3)
    assert text(project(einsum("ij;jk=>ik"), square, [square, square], ORIGIN)) == snapshot(
        "i0<3, k1<3, j2<3: [i0, k1] <- [i0, j2] [j2, k1]"
    )


def test_a_diagonal_is_read_and_written_with_one_variable() -> None:
    assert text(project(einsum("ii=>i"), output(3), [output(3, 3)], ORIGIN)) == snapshot(
        "i0<3: [i0] <- [i0, i0]"
    )
    assert text(project(einsum("i=>ii"), output(3, 3), [output(3)], ORIGIN)) == snapshot(
        "i0<3: [i0, i0] <- [i0]"
    )


def test_a_position_written_is_fixed() -> None:
    assert text(project(einsum("i=>i2"), output(4, 3), [output(4)], ORIGIN)) == snapshot(
        "i0<4: [i0, 2] <- [i0]"
    )
    assert text(project(einsum("i=>i0"), output(4, 3), [output(4)], ORIGIN)) == snapshot(
        "i0<4: [i0, 0] <- [i0]"
    )
    assert text(project(einsum("i=>i0"), output(4, 1), [output(4)], ORIGIN)) == snapshot(
        "i0<4: [i0, 0] <- [i0]"
    )


def test_a_position_read_is_fixed() -> None:
    x = closed_shape((5, 6), (2,), (3,))
    sliced = einsum("2...|...->... => ...|...->...")
    assert text(project(sliced, closed_shape((6,), (2,), (3,)), [x], ORIGIN)) == snapshot(
        "b0<6, o1<3, i2<2: [b0, o1, i2] <- [2, b0, o1, i2]"
    )


def test_a_row_variable_pairs_batch_and_output_axes() -> None:
    x = closed_shape(batch=(5, 6), output=(2, 3, 4))
    projections = project(einsum("..v..|ijk => ..v..kji"), output(5, 6, 4, 3, 2), [x], ORIGIN)
    assert text(projections) == snapshot(
        "o0<5, o1<6, k2<4, j3<3, i4<2: [o0, o1, k2, j3, i4] <- [o0, o1, i4, j3, k2]"
    )


def test_axes_not_mentioned_are_reduced() -> None:
    x = closed_shape((5,), (2,), (3, 4))
    assert text(project(einsum("j => 0"), output(1), [x], ORIGIN)) == snapshot(
        "b0<5, o1<3, j2<4, i3<2: [0] <- [b0, o1, j2, i3]"
    )


def test_a_larger_result_repeats_along_its_further_axes() -> None:
    assert text(project(einsum("i => i"), output(2, 3), [output(3)], ORIGIN)) == snapshot(
        "o0<2, i1<3: [o0, i1] <- [i1]"
    )


def test_a_slice_is_read_at_the_index() -> None:
    i = StaticIndex("i", 10)
    x = closed_shape(batch=(10, 20), output=(3,))
    projections = project(
        Slice((Position(VarIndex(i)),)), closed_shape(batch=(20,), output=(3,)), [x], ORIGIN
    )
    assert text(projections) == snapshot("b0<20, o1<3: [b0, o1] <- [@i, b0, o1]")
    projections = project(Slice((Position(VarIndex(i)), Position(4))), output(3), [x], ORIGIN)
    assert text(projections) == snapshot("o0<3: [o0] <- [@i, 4, o0]")


def test_an_empty_axis_has_a_loop_of_no_iterations() -> None:
    projections = project(einsum("i=>0"), output(1), [output(0)], ORIGIN)
    assert [extent for _, extent in projections.domain] == [0]
    assert projections.lhs == (FixedIndex(0),)


def test_scalars_with_and_without_an_axis_go_together() -> None:
    assert text(project(Pointwise(), output(), [output(1), output()], ORIGIN)) == snapshot(
        ": [] <- [0] []"
    )
    assert text(project(Pointwise(), output(1), [output(), output(1)], ORIGIN)) == snapshot(
        ": [0] <- [] [0]"
    )


def test_every_projection_has_variables_of_its_own() -> None:
    first = project(Pointwise(), output(3), [output(3)], ORIGIN)
    second = project(Pointwise(), output(3), [output(3)], ORIGIN)
    assert isinstance(first.domain[0][0], LoopVar)
    assert first.domain[0][0] != second.domain[0][0]


def test_a_basis_does_not_disturb() -> None:
    rgb = Shape(output=Row(trailing=(Size(3, "rgb"),)))
    assert text(project(Pointwise(), output(3), [rgb], ORIGIN)) == snapshot("o0<3: [o0] <- [o0]")


@pytest.mark.parametrize(
    ("logic", "result", "operands"),
    [
        (Pointwise(), output(3), [output(4)]),
        (Pointwise(), output(3), [output(2, 3)]),
        (einsum("ij;jk=>ik"), output(2, 4), [output(2, 3), output(2, 4)]),
        (einsum("ii=>i"), output(3), [output(3, 4)]),
        (einsum("i=>i3"), output(2, 3), [output(2)]),
        (einsum("...=>..."), output(4), [output(3, 4)]),
        (Slice((Position(5),)), output(2), [closed_shape(batch=(5,), output=(2,))]),
    ],
)
def test_shapes_that_contradict_the_operation_are_an_error(
    logic: Logic, result: Shape, operands: list[Shape]
) -> None:
    with pytest.raises(ShapeError):
        project(logic, result, operands, ORIGIN)


def test_open_shapes_have_no_projections() -> None:
    with pytest.raises(VerifyError):
        project(Pointwise(), Environment().fresh_shape(), [output(3)], ORIGIN)


def test_the_number_of_operands_must_fit() -> None:
    with pytest.raises(SpecError):
        project(einsum("i;j=>ij"), output(3), [output(3)], ORIGIN)


_sizes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def _einsums(draw: st.DrawFn) -> tuple[str, str, list[Shape]]:
    """Return a spec, the same for NumPy over axes in buffer order, and shapes of operands.

    Each operand has an axis of its label's size or of size 1; the axes of `...` are A and B, or
    only B.
    """
    extents = {label: draw(st.integers(1, 3)) for label in "ijkAB"}
    specs, labels, shapes = [], [], []
    for _ in range(draw(st.integers(1, 2))):
        kinds: list[str] = [draw(st.text("ijk", max_size=2)) for _ in range(3)]
        ellipsis = draw(st.sampled_from(["AB", "B", "", None]))
        specs.append(f"{'' if ellipsis is None else '...'}{kinds[0]}|{kinds[1]}->{kinds[2]}")
        rows = [(ellipsis or "") + kinds[0], kinds[1], kinds[2]]
        sizes = [
            tuple(draw(st.sampled_from([1, extents[c], extents[c]])) for c in row) for row in rows
        ]
        labels.append(rows[0] + rows[2] + rows[1])
        shapes.append(closed_shape(*sizes))
    has_ellipsis = any(spec.startswith("...") for spec in specs)
    there = sorted({c for label in labels for c in label if c in "ijk"})
    kept = draw(st.permutations(there))[: draw(st.integers(0, len(there)))]
    cut = draw(st.integers(0, len(kept)))
    batch, out = "".join(kept[:cut]), "".join(kept[cut:])
    shown = has_ellipsis and draw(st.booleans())
    spec = f"{'; '.join(specs)} => {'...' if shown else ''}{batch}|{out}"
    wide = max((label for label in ("AB", "B", "") if any(label in one for one in labels)), key=len)
    return spec, ",".join(labels) + f"->{wide if shown else ''}{batch}{out}", shapes


def _broadcast_einsum(spec: str, operands: list[Array]) -> Array:
    """np.einsum, with axes of size 1 repeated to the size that their label has elsewhere."""
    extents: dict[str, int] = {}
    labels = spec.split("->")[0].split(",")
    for label, operand in zip(labels, operands, strict=True):
        for name, extent in zip(label, operand.shape, strict=True):
            extents[name] = max(extent, extents.get(name, 1))
    wide = [
        np.broadcast_to(operand, [extents[name] for name in label])
        for label, operand in zip(labels, operands, strict=True)
    ]
    result: Array = np.einsum(spec, *wide)
    return result


@settings(max_examples=150, deadline=None)
@given(_einsums())
def test_einsum_agrees_with_numpy(problem: tuple[str, str, list[Shape]]) -> None:
    spec, numpy_spec, shapes = problem
    logic = einsum(spec)
    arrays = [filled(shape, seed) for seed, shape in enumerate(shapes)]
    expected = _broadcast_einsum(numpy_spec, arrays)
    result = infer(logic, *shapes)
    assert result.dims == expected.shape
    np.testing.assert_array_equal(run(project(logic, result, shapes, ORIGIN), arrays), expected)


def _aligned(shape: Shape, ranks: Sizes) -> Array:
    """Return a filled array with axes of size 1 inserted, so that each row has a given number of axes."""
    rows = [row.sizes for _, row in shape.rows()]
    padded = [(1,) * (rank - len(row)) + row for rank, row in zip(ranks, rows, strict=True)]
    return filled(shape).reshape([size for row in padded for size in row])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.builds(closed_shape, _sizes, _sizes, _sizes), min_size=1, max_size=3))
def test_pointwise_agrees_with_numpy_broadcasting_per_row(shapes: list[Shape]) -> None:
    ranks = tuple(
        max(len(row) for row in rows)
        for rows in zip(*([row.sizes for _, row in shape.rows()] for shape in shapes), strict=True)
    )
    aligned = [_aligned(shape, ranks) for shape in shapes]
    try:
        dims = np.broadcast_shapes(*(array.shape for array in aligned))
    except ValueError:
        with pytest.raises(ShapeError):
            infer(Pointwise(), *shapes)
        return
    result = infer(Pointwise(), *shapes)
    assert result.dims == dims
    projections = project(Pointwise(), result, shapes, ORIGIN)
    expected = np.ones(dims, dtype=np.int64)
    for array in aligned:
        expected = expected * array
    np.testing.assert_array_equal(run(projections, [filled(shape) for shape in shapes]), expected)


@settings(max_examples=100, deadline=None)
@given(_sizes, _sizes, _sizes, _sizes)
def test_composition_agrees_with_tensordot(
    batch: Sizes, outer: Sizes, shared: Sizes, inner: Sizes
) -> None:
    one, two = closed_shape((), shared, outer), closed_shape(batch, inner, shared)
    result = infer(Compose(), one, two)
    first, second = filled(one), filled(two, 5)
    projections = project(Compose(), result, [one, two], ORIGIN)
    axes = range(len(outer), len(outer) + len(shared)), range(len(batch), len(batch) + len(shared))
    expected = np.tensordot(first, second, axes=(list(axes[0]), list(axes[1])))
    order = [*range(len(outer), len(outer) + len(batch)), *range(len(outer))]
    order += range(len(order), expected.ndim)
    np.testing.assert_array_equal(run(projections, [first, second]), expected.transpose(order))


@settings(max_examples=50, deadline=None)
@given(_sizes, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple), st.data())
def test_slices_agree_with_indexing(rest: Sizes, leading: Sizes, data: st.DataObject) -> None:
    x = closed_shape(leading + rest, (2,), (3,))
    values = [data.draw(st.integers(0, extent - 1)) for extent in leading]
    statics = [StaticIndex(f"i{n}", extent) for n, extent in enumerate(leading)]
    logic = Slice(tuple(Position(VarIndex(i)) for i in statics))
    result = infer(logic, x)
    projections = project(logic, result, [x], ORIGIN)
    bound: dict[IndexVar, int] = dict(zip(statics, values, strict=True))
    sliced = run(projections, [filled(x)], bound)
    np.testing.assert_array_equal(sliced, filled(x)[tuple(values)])
