"""Parts of a concatenated axis that are short or repeated are each added up once."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("a^b => 0", {"a": 1, "b": 1}),
        ("a^b => 0", {"a": 1, "b": 3}),
        ("a^b^c => 0", {"a": 1, "b": 1, "c": 1}),
        ("a^b^c => 0", {"a": 1, "b": 3, "c": 1}),
    ],
)
def test_the_sum_over_all_parts_is_that_over_the_axis(
    target: str, spec: str, values: dict[str, int]
) -> None:
    size = sum(values.values())
    cells = np.arange(1.0, 1.0 + size)
    given = dict(list(values.items())[1:])
    with oc.Session(dtype="float64"):
        x = oc.param("x", init=oc.tensor(cells))
        total, greatest = (make(spec, x, values=given) for make in (oc.einsum, oc.einmax))
        ctx = oc.Context(target)
        step = ctx.compile(
            oc.train.grad_update(total) + oc.train.forward(greatest), keep=[total, greatest, x.grad]
        )
        ctx.init_params(total)
        step()
        assert ctx.item(total) == cells.sum()
        assert ctx.item(greatest) == cells.max()
        np.testing.assert_array_equal(ctx[x.grad], np.ones(size))


def test_a_part_that_an_axis_has_twice_is_read_twice(target: str) -> None:
    with oc.Session(dtype="float64"):
        x = oc.tensor([1.0, 2.0, 3.0, 4.0])
        folded = oc.einsum("a^a => a", x)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(folded))()
        np.testing.assert_array_equal(ctx[folded], [4.0, 6.0])


def test_a_product_of_three_operands_visits_every_part(target: str) -> None:
    with settings.overrides(warn_summed_once=False), oc.Session(dtype="float64"):
        a, b, c = (oc.tensor(np.arange(1.0, n)) for n in (4, 6, 3))
        all_of_it = oc.einsum("..i..; a^b; ..j.. => 0", c, b, a, values={"a": 1})
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(all_of_it))()
        assert ctx.item(all_of_it) == 3 * 15 * 6


@pytest.mark.parametrize(("spec", "values"), [("a^a;=>", {}), ("a^b;=>", {"a": 1})])
def test_a_sum_of_pairs_has_a_gradient_for_every_pair(
    target: str, spec: str, values: dict[str, int]
) -> None:
    with oc.Session(), oc.settings.overrides(warn_summed_once=False):
        p = oc.param("p", output=[], init=1.0)
        y = oc.primitives.outer_sum(spec, oc.tensor([3.0, 1.0, -1.0, -1.0]), p, values=values)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(y), keep=[p.grad, y])
        ctx.init_params(y)
        step()
        assert ctx.item(y) == 2 + 4 * 1
        assert ctx.item(p.grad) == 4
