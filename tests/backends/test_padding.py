"""Margins around cells: windows read them, and no other operation does."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.indexing import Margin
from ocannl_core.tensor.computations.computation_steps import Forward

SUM = "i=+k; k => i"
CELLS = np.array([1.0, 2.0, 3.0], np.float32)


def ones(*shape: int) -> oc.Tensor:
    return oc.tensor(np.ones(shape, np.float32))


def zeros(*shape: int) -> oc.Tensor:
    return oc.tensor(np.zeros(shape, np.float32))


def test_a_sum_finds_zeros_and_a_maximum_nothing_beyond_the_axis(target: str) -> None:
    with oc.Session():
        x = oc.tensor(CELLS)
        total = oc.einsum(SUM, x, ones(3))
        peak = oc.primitives.tropical(SUM, x, zeros(3))
        again = oc.einsum(SUM, x, ones(3))
        ctx = oc.Context(target)
        code = oc.train.forward(total) + oc.train.forward(peak) + oc.train.forward(again)
        run = ctx.compile(code)
        for _ in range(2):
            run()
            np.testing.assert_array_equal(ctx[total], [3, 6, 5])
            np.testing.assert_array_equal(ctx[peak], [2, 3, 3])
            np.testing.assert_array_equal(ctx[again], [3, 6, 5])
        np.testing.assert_array_equal(ctx[x], CELLS)


def test_a_plane_of_negative_numbers(target: str) -> None:
    cells = np.arange(-16, 0, dtype=np.float32).reshape(4, 4)
    spec = "i=+k, j=+l; k, l => i, j"
    with oc.Session():
        x = oc.tensor(cells)
        peak = oc.primitives.tropical(spec, x, zeros(3, 3))
        total = oc.einsum(spec, x, ones(3, 3))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(peak) + oc.train.forward(total))()
        assert [ctx[peak][at] for at in ((0, 0), (1, 1), (3, 3))] == [-11, -6, -1]
        assert [ctx[total][at] for at in ((0, 0), (1, 1))] == [-54, -99]


def test_the_widest_reader_decides_the_margins(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=(), input=(), output=[4])
        narrow = oc.einsum(SUM, x, ones(3))
        wide = oc.einsum(SUM, x, ones(5))
        ctx = oc.Context(target)
        run = ctx.compile(oc.train.forward(narrow))
        assert x.info.padding == (Margin(2, 2),)
        also = ctx.compile(oc.train.forward(wide))
        ctx[x] = [1, 2, 3, 4]
        run()
        also()
        np.testing.assert_array_equal(ctx[narrow], [3, 6, 9, 7])
        np.testing.assert_array_equal(ctx[wide], [6, 10, 10, 9])


def test_data_written_before_and_after_compilation_is_read_back_without_margins(
    target: str,
) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=(), input=(), output=[3])
        ctx = oc.Context(target)
        ctx[x] = CELLS  # no operation reads it through windows so far
        total = oc.einsum(SUM, x, ones(3))
        run = ctx.compile(oc.train.forward(total))
        np.testing.assert_array_equal(ctx[x], CELLS)
        run()
        np.testing.assert_array_equal(ctx[total], [3, 6, 5])
        ctx[x] = 2 * CELLS
        np.testing.assert_array_equal(ctx[x], 2 * CELLS)
        run()
        np.testing.assert_array_equal(ctx[total], [6, 12, 10])


def test_margins_of_nodes_written_by_another_routine_are_filled_by_the_reader(target: str) -> None:
    with oc.Session():
        x = oc.tensor(CELLS)
        doubled = x + x
        peak = oc.primitives.tropical(SUM, doubled, zeros(3))
        total = oc.einsum(SUM, doubled, ones(3))
        ctx = oc.Context(target)
        write = ctx.compile(oc.train.forward(doubled))
        readers = [ctx.compile(only(t)) for t in (peak, total)]
        write()
        for _ in range(2):
            for reader in readers:
                reader()
            np.testing.assert_array_equal(ctx[peak], [4, 6, 6])
            np.testing.assert_array_equal(ctx[total], [6, 12, 10])
            write()
        np.testing.assert_array_equal(ctx[doubled], [2, 4, 6])


def only(tensor: oc.Tensor) -> oc.Computation:
    """The code of one tensor, without that of its operands."""
    return oc.Computation((Forward((tensor,)),), frozenset({tensor}), tensor.label[0])


def test_results_slices_and_copies_have_no_margins(target: str) -> None:
    with oc.Session():
        x = oc.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), batch_axes=1)
        i = oc.static_index("i", range=2)
        total = oc.einsum("...|i=+k; k => ...|i", x, ones(3))
        part, copy = x[i], x + 0.0
        ctx = oc.Context(target)
        code = oc.train.forward(total) + oc.train.forward(part) + oc.train.forward(copy)
        run = ctx.compile(code, bindings=[i])
        run(i=1)
        np.testing.assert_array_equal(ctx[total], [[1, 3, 3], [7, 12, 9]])
        np.testing.assert_array_equal(ctx[part], [3, 4, 5])
        np.testing.assert_array_equal(ctx[copy], ctx[x])
        assert [t.info.padding for t in (total, part, copy)] == [(), (), ()]
        assert x.info.padding == (Margin(0, 0), Margin(1, 1))


def test_a_slice_of_a_padded_axis_stays_inside_it(target: str) -> None:
    with oc.Session():
        x = oc.tensor(CELLS.reshape(3, 1), batch_axes=1)
        i = oc.static_index("i")
        total = oc.einsum("i=+k|...; k => i|...", x, ones(3))
        part = x[i]
        ctx = oc.Context(target)
        run = ctx.compile(oc.train.forward(total) + oc.train.forward(part), bindings=[i])
        run(i=2)
        assert ctx[part] == [3]
        np.testing.assert_array_equal(ctx[total], [[3], [6], [5]])
        for outside in (-1, 3):
            with pytest.raises(oc.UsageError, match="stays in its range"):
                run(i=outside)


def test_a_constant_differs_beyond_its_axis(target: str) -> None:
    with oc.Session():
        x = oc.arange(3)
        total = oc.einsum(SUM, x, ones(3))
        one = oc.einsum(SUM, oc.einsum("i => i", oc.tensor([2.0])), ones(3))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(total) + oc.train.forward(one))()
        np.testing.assert_array_equal(ctx[total], [1, 3, 3])
        np.testing.assert_array_equal(ctx[one], [2])


def test_recorded_code_reads_through_windows(target: str) -> None:
    with oc.Session():
        x, w = oc.tensor(CELLS), ones(3)
        y = oc.placeholder("y", batch=(), input=(), output=[3])

        @oc.cd
        def accumulate() -> None:
            y[:] = oc.einsum(SUM, x, w)
            y[oc.neutral, oc.maximum] = oc.einmax("... => ...", y)

        ctx = oc.Context(target)
        run = ctx.compile(accumulate())
        run()
        np.testing.assert_array_equal(ctx[y], [3, 6, 5])


def test_an_integer_maximum_over_sums_is_refused_beyond_an_axis(target: str) -> None:
    with oc.Session():
        x = oc.tensor(np.array([1, 2, 3], np.int32))
        peak = oc.primitives.tropical(SUM, x, oc.tensor(np.zeros(3, np.int32)))
        ctx = oc.Context(target)
        with pytest.raises(oc.LoweringError, match="needs a format with infinities"):
            ctx.compile(oc.train.forward(peak))


def test_margins_do_not_grow_under_compiled_code(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=(), input=(), output=[4])
        first = oc.einsum(SUM, x, ones(3))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(first))
        second = oc.einsum(SUM, x, ones(5))
        with pytest.raises(oc.ShapeError) as caught:
            ctx.compile(oc.train.forward(second))
        text = str(caught.value)
        assert (
            "Operation padding (left=2, right=2) exceeds resolved padding (left=1, right=1)" in text
        )
        assert "ctx.compile(oc.train.forward(first))" in text
        assert "second = oc.einsum(SUM, x, ones(5))" in text
        assert "before compiling" in text
        assert "oc.primitives.identity(x)" in text
        ctx.compile(oc.train.forward(oc.einsum(SUM, oc.primitives.identity(x), ones(5))))


def test_offsets_count_the_cells_of_the_axis_and_not_those_beyond_it(target: str) -> None:
    with oc.Session():
        sums = oc.einsum(
            "2*i=+k,j; k => i,j", oc.primitives.offsets(output=[4, 2]), oc.tensor([1.0] * 3)
        )
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(sums))()
        assert ctx[sums].tolist() == [[2, 4], [12, 15]]
