"""Margins: the operations that require them, and the time at which they are final."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.assignments.nodes import Accumulate
from ocannl_core.ir.indexing import Margin
from ocannl_core.ir.node import NodeInfo


def data(size: int = 6) -> oc.Tensor:
    return oc.placeholder("x", batch=(), input=(), output=[size])


def ones(size: int) -> oc.Tensor:
    return oc.tensor(np.ones(size, np.float32))


@pytest.mark.parametrize(
    ("kernel", "dilation", "margin"),
    [
        (1, 1, (0, 0)),
        (2, 1, (1, 0)),
        (3, 1, (1, 1)),
        (5, 1, (2, 2)),
        (3, 2, (2, 2)),
        (2, 3, (2, 1)),
    ],
)
def test_a_margin_has_the_cells_of_the_dilated_span_on_one_side(
    kernel: int, dilation: int, margin: tuple[int, int]
) -> None:
    x = data()
    oc.einsum(f"i=+{dilation}*k; k => i", x, ones(kernel))
    assert x.info.padding == ((Margin(*margin),) if any(margin) else ())


def test_every_side_is_as_wide_as_the_widest_reader() -> None:
    x = oc.placeholder("x", batch=(), input=(), output=[6, 6])
    oc.einsum("i=+k, j; k => i, j", x, ones(5))
    oc.einsum("i=+k, j=+l; k; l => i, j", x, ones(3), ones(2))
    assert x.info.padding == (Margin(2, 2), Margin(1, 0))


def test_windows_that_stay_inside_need_no_margins() -> None:
    x, w = data(), ones(3)
    z = oc.einsum("i<+k; k => i", x, w)
    oc.einsum("2*i+1 => i", x)
    assert [t.info.padding for t in (x, w, z)] == [(), (), ()]


def test_a_gradient_has_the_margins_of_its_tensor() -> None:
    x = oc.param("x", output=[6], init=1.0)
    w = oc.param("w", output=[3], init=1.0)
    y = oc.einsum("i=+k; k => i", x, w)
    assert x.grad.info.padding == x.info.padding == (Margin(1, 1),)
    assert w.grad.info.padding == y.info.padding == y.grad.info.padding == ()


def test_asking_for_margins_decides_nothing() -> None:
    x, w = data(), oc.param("w")
    y = oc.einsum("i=+k; k => i", x, w)
    assert x.info.padding == ()  # nothing determines the width of the window
    oc.einsum("i => i", w + ones(5))
    assert x.info.padding == (Margin(2, 2),)
    assert str(y.shape) == "6"
    assert not w.shape.is_closed


def test_operations_outside_the_compiled_code_count_too() -> None:
    x = data()
    oc.einsum("i=+k; k => i", x, oc.param("w", output=[3]))
    program = oc.train.forward(x + 1.0).resolve()
    assert NodeInfo(oc.float32, (6,), (Margin(1, 1),)) in program.nodes.values()
    oc.einsum("i=+k; k => i", x, ones(3))
    assert x.info.padding == (Margin(1, 1),)


def test_the_gradient_of_a_maximum_compares_the_same_cells() -> None:
    x = oc.param("x", output=[6], init=1.0)
    peak = oc.primitives.tropical("i=+k; k => i", x, ones(3))
    loss = oc.einsum("...=>0", peak)
    code = [a for a in flat(oc.train.grad_update(loss).resolve().body) if x.node in reads(a)]
    assert len(code) > 1
    assert all(a.beyond == -np.inf for a in code)


def flat(body: Any) -> list[Accumulate]:
    found: list[Accumulate] = []
    for each in body:
        found += [each] if isinstance(each, Accumulate) else flat(getattr(each, "body", ()))
    return found


def reads(assignment: Accumulate) -> list[object]:
    return [getattr(arg, "node", None) for arg in assignment.args]


def test_an_operation_may_take_all_operands_as_one_slot() -> None:
    def forward(v: Any, vs: Any) -> None:
        v[:] = 0.0
        for each in vs:
            v += each

    def gradient(g: Any, gs: Any) -> None:
        for each in gs:
            each += g

    total = oc.define_operation("total", forward=forward, gradient=gradient, operands=4)
    p = oc.param("p", output=[2], init=1.0)
    y = total(p, p, oc.tensor([2.0, 3.0]), 5.0)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.grad_update(oc.einsum("...=>0", y)), keep=[y, p.grad])
    ctx.init_params(y)
    step()
    np.testing.assert_array_equal(ctx[y], [9, 10])
    np.testing.assert_array_equal(ctx[p.grad], [2, 2])


def test_data_that_comes_padded_is_stripped_of_its_margins() -> None:
    cells = np.arange(20.0).reshape(4, 5)
    x = oc.tensor(cells, margins=[(1, 2), (0, 1)])
    assert x.literal is not None
    np.testing.assert_array_equal(x.literal, cells[1:2, :4])
    for margins in ([(1, 2)], [(3, 2), (0, 0)], [(-1, 0), (0, 0)]):
        with pytest.raises(oc.UsageError, match="Margins are two numbers of cells"):
            oc.tensor(cells, margins=margins)
