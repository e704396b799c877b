"""Uses of extents at run time that are refused, and their text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ocannl_core as oc

Array = npt.NDArray[Any]
Axis = int | oc.StaticExtent


@pytest.fixture
def rows(target: str) -> tuple[oc.Context, oc.Tensor, oc.Tensor, oc.Routine]:
    oc.reset()
    ctx, n = oc.Context(target), oc.static_extent("n", max=6)
    x = oc.placeholder("x", batch=[n], output=[2])
    y = x * 2.0
    return ctx, x, y, ctx.compile(oc.train.forward(y))


@pytest.mark.parametrize("size", [7, -1])
def test_a_value_beyond_the_maximum_is_refused_before_anything_is_written(
    rows: tuple[oc.Context, oc.Tensor, oc.Tensor, oc.Routine], size: int
) -> None:
    ctx, x, y, step = rows
    ctx[x] = np.ones((6, 2))
    step(n=4)
    ctx[x] = np.zeros((6, 2))
    with pytest.raises(oc.UsageError, match=rf"n from 0 to 6[^$]*n = {size}"):
        step(n=size)
    np.testing.assert_array_equal(ctx[y], np.full((4, 2), 2.0))


def test_cells_that_nothing_has_written_are_not_read(
    rows: tuple[oc.Context, oc.Tensor, oc.Tensor, oc.Routine],
) -> None:
    ctx, x, y, step = rows
    ctx[x] = np.ones((3, 2))
    step(n=3)
    step(n=2)
    with pytest.raises(oc.UsageError, match=r"n = 4, and placeholder x .* has 3 positions along"):
        step(n=4)
    with pytest.raises(oc.UsageError, match="has 3 positions"):
        step()
    assert ctx[y].shape == (2, 2)


def test_cells_of_another_routine_are_read_as_far_as_it_wrote_them(target: str) -> None:
    oc.reset()
    ctx, n = oc.Context(target), oc.static_extent("n", max=6)
    x, c = oc.placeholder("x", batch=[n]), oc.declare("c", batch=[n])

    @oc.cd
    def store() -> None:
        c[:] = x

    write = ctx.compile(store())
    total = oc.einsum("b| => 0", c)
    read = ctx.compile(oc.train.forward(total))
    ctx[x] = np.ones(5)
    write(n=4)
    read(n=3)
    assert ctx.item(total) == 3
    with pytest.raises(oc.UsageError, match=r"n = 5, and .* c .* has 4 positions"):
        read(n=5)
    write(n=5)
    read(n=5)
    assert ctx.item(total) == 5


def test_more_cells_than_the_maximum_are_refused(
    rows: tuple[oc.Context, oc.Tensor, oc.Tensor, oc.Routine],
) -> None:
    ctx, x, *_ = rows
    with pytest.raises(oc.ShapeError, match="7 along axis 0, whose extent is n<=6"):
        ctx[x] = np.zeros((7, 2))
    with pytest.raises(oc.ShapeError, match="an array of"):
        ctx[x] = np.zeros((3, 3))


def test_positions_stay_before_the_extent(target: str) -> None:
    oc.reset()
    ctx, n = oc.Context(target), oc.static_extent("n", max=6)
    i = oc.static_index("i")
    x = oc.placeholder("x", batch=[n], output=[2])
    chosen, third = x[i] * 1.0, x[2] * 1.0
    step = ctx.compile(oc.train.forward(chosen), bindings=[i])
    ctx[x] = np.arange(12.0).reshape(6, 2)
    step(i=2, n=3)
    np.testing.assert_array_equal(ctx[chosen], [4.0, 5.0])
    with pytest.raises(oc.UsageError, match=r"n - i in range\(1, 7\)"):
        step(i=3, n=3)
    step = ctx.compile(oc.train.forward(third))
    step(n=3)
    with pytest.raises(oc.UsageError, match=r"n in range\(3, 7\)"):
        step(n=2)


def compiled(tensor: oc.Tensor) -> None:
    oc.Context("interp").compile(oc.train.forward(tensor))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, y: x + oc.placeholder("z", batch=[6], output=[2]), "size n<=6 and size 6"),
        (lambda x, y: x + y, "size n<=6 and size n<=6, two extents of one name"),
        (lambda x, y: oc.concat("a|i; b|i => a^b|i", x, y), "n<=6 is the extent of an axis"),
        (lambda x, y: oc.einsum("2*b+1|i => b|i", x), "n<=6 is the extent of an axis"),
        (
            lambda x, y: oc.einsum("b<+k|i; k| => b|i", x, oc.tensor([1.0, 2.0], batch_axes=1)),
            "n<=6 is the extent of an axis",
        ),
    ],
)
def test_an_extent_equals_itself_only_and_is_traversed_as_a_whole(
    build: Callable[[oc.Tensor, oc.Tensor], oc.Tensor], message: str
) -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[oc.static_extent("n", max=6)], output=[2])
    y = oc.placeholder("y", batch=[oc.static_extent("n", max=6)], output=[2])
    with pytest.raises(oc.ShapeError, match=message.replace("^", r"\^")):
        compiled(build(x, y))


@pytest.mark.parametrize(
    ("key", "part", "positions"),
    [
        (-1, "position -1", 'oc.number(n, dtype="int32") - 1'),
        (slice(5), "a part", 'oc.arange(5, dtype="int32")'),
    ],
)
def test_positions_that_need_the_extent_are_taken(
    target: str, key: Any, part: str, positions: str
) -> None:
    oc.reset()
    n = oc.static_extent("n", max=6)
    x = oc.placeholder("x", output=[n, 2])
    with pytest.raises(oc.ShapeError) as error:
        compiled(x[key])
    assert error.value.found == f"{part} of an axis of size n<=6, which calls give"
    advice = f"oc.take(x, {positions}, axis=0)"
    assert error.value.fix.endswith(advice)
    taken = eval(advice, {"oc": oc, "x": x, "n": n})
    ctx = oc.Context(target)
    step = ctx.compile(oc.train.forward(taken))
    for rows in (5, 6):
        cells = np.arange(2.0 * rows).reshape(rows, 2)
        ctx[x] = cells
        step(n=rows)
        np.testing.assert_array_equal(ctx[taken], cells[key])


@pytest.mark.parametrize("size", [4, 6, 12])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_an_extent_is_not_resized(mode: str, size: int) -> None:
    oc.reset()
    x = oc.placeholder("x", batch=[2], output=[oc.static_extent("n", max=6), 3])
    with pytest.raises(oc.ShapeError, match=r"axis 1 of placeholder x .*, of size n<=6, which"):
        oc.nn.resize(x, [size], mode=mode)


def test_one_is_repeated_along_an_extent(target: str) -> None:
    oc.reset()
    ctx, n = oc.Context(target), oc.static_extent("n", max=6)
    x = oc.placeholder("x", batch=[n], output=[2])
    y = x + oc.tensor([[1.0, 2.0]], batch_axes=1)
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = np.zeros((2, 2))
    step(n=2)
    np.testing.assert_array_equal(ctx[y], [[1.0, 2.0], [1.0, 2.0]])


def test_parameters_have_constant_sizes() -> None:
    oc.reset()
    x = oc.placeholder("x", output=[oc.static_extent("n", max=6)])
    y = oc.param("w", output=[3]) @ x
    with pytest.raises(oc.ShapeError, match="The sizes of a parameter are constant"):
        oc.Context("interp").init_params(y)


def test_stated_index_maps_have_constant_sizes() -> None:
    oc.reset()
    x = oc.placeholder("x", output=[oc.static_extent("n", max=6)])
    c = oc.declare("c", output=[6])

    @oc.cd
    def store() -> None:
        c.assign(x, projections="-1*i + 5 => i over i<6")

    with pytest.raises(oc.ShapeError, match="whose extent is n<=6"):
        oc.Context("interp").compile(store())


def test_the_error_about_an_op_names_the_axis_of_its_lines() -> None:
    class Doubled(oc.custom.Op):
        spec = "...|n => ...|n"

        def perform(self, node: Any, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = 2 * inputs[0]

    x = oc.placeholder("x", batch=[oc.static_extent("n", max=4)], output=[3])
    with pytest.raises(oc.LoweringError, match="whole arrays") as caught:
        oc.Context("interp").compile(oc.train.forward(Doubled()(x)))
    assert "line_axis = -1" in caught.value.fix


def test_extents_of_one_routine_have_different_names() -> None:
    oc.reset()
    x, y = (oc.placeholder(each, batch=[oc.static_extent("n", max=6)]) for each in "xy")
    with pytest.raises(oc.UsageError, match="several named n"):
        compiled(oc.einsum("a|; b| => a|b", x, y))


@pytest.mark.parametrize("most", [1, 0, True, 2.0])
def test_the_maximum_is_at_least_two(most: Any) -> None:
    with pytest.raises(oc.UsageError, match=r"at least 2.*"):
        oc.static_extent("n", max=most)


def test_an_extent_is_no_position() -> None:
    oc.reset()
    n = oc.static_extent("n", max=6)
    x = oc.placeholder("x", batch=[n], output=[2])
    with pytest.raises(oc.UsageError, match="positions are integers and static indices"):
        x[n]


def test_shapes_and_programs_print_the_extent() -> None:
    oc.reset()
    n, ctx = oc.static_extent("n", max=6), oc.Context("interp")
    x = oc.placeholder("x", batch=[n], output=[2])
    y = x * 2.0
    step = ctx.compile(oc.train.forward(y))
    assert str(y.shape) == "n<=6|2"
    assert "x: float32[n<=6, 2]" in step.assignments
    assert "over b<n<=6, o<2" in step.assignments
    assert "static n <= 6" in step.loop_ir
    assert "for b in range(6) while b < n:" in step.loop_ir
    assert repr(n) == "<extent n<=6>"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda n: oc.one_hot(oc.arange(2, dtype="int32"), n + 1),
            r"n \+ 1 .*own: oc.static_extent",
        ),
        (lambda n: oc.scatter(oc.arange(2, dtype="int32"), oc.ones(2), size=n + 1), "own: oc.stat"),
        (lambda n: oc.arange(n + 1), r"n \+ 1 where Python .* an extent of its own"),
        (lambda n: oc.arange(1, n), "where Python needs a number"),
        (lambda n: oc.arange(0, n, 2), "where Python needs a number"),
        (lambda n: oc.arange(0.5, n), "A range is made of integers"),
        (lambda n: oc.zeros([n + 1]), r"output=\[<index n \+ 1>\].* oc.static_extent"),
    ],
)
def test_sizes_that_are_expressions_of_extents_are_refused(
    call: Callable[[oc.StaticExtent], object], text: str
) -> None:
    n = oc.static_extent("n", max=6)
    with pytest.raises(oc.UsageError) as caught:
        call(n)
    assert re.search(text, str(caught.value), re.DOTALL)
