"""Reductions behind conditions on positions: nests where they are defined for every cell."""

from __future__ import annotations

import pytest

from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.loops.nodes import LocalRead, Ternary
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.testing.parser.loops import parse


def nest_of(condition: str, loads: str, extent: int = 1) -> Nest | None:
    """Return the nest of products that a condition chooses for the cells of a table.

    Args:
        condition: The condition on `i`, `j`, and the position `t` of a call.
        loads: The product.
        extent: The number of values of `t`.
    """
    text = f"""
    routine test(a: float32[4, 6], b: float32[5, 6], c: float32[4, 5], n: int32[9], static t < {extent}):
        for i in range(4):
            for j in range(5):
                c[i, j] = where({condition}, total, -9.0)
                    where total: float32
                        total = 0.0
                        for k in range(6):
                            total += {loads}
    """
    program = parse(text)
    assert kernel_nest(program.body) is None  # without the extents nothing is proven
    return kernel_nest(program.body, program.nodes)


@pytest.mark.parametrize(
    "condition", ["int32(j) <= int32(i)", "int32(i) < 2", "(int32(i + j) == 3) * (n[i] < int32(j))"]
)
def test_a_product_that_is_defined_for_every_cell_is_a_nest_with_the_condition_as_its_epilogue(
    condition: str,
) -> None:
    nest = nest_of(condition, "a[i, k] * b[j, k]")
    assert nest is not None
    assert nest.reduction is not None
    assert [axis.name for axis in nest.reduced] == ["k"]
    (store,) = nest.epilogue
    assert isinstance(store.value, Ternary)
    assert store.value.second == LocalRead(nest.reduction.result)


@pytest.mark.parametrize(
    "loads",
    [
        "a[i - 1, k] * b[j, k]",
        "a[i, k] * b[j + 1, k]",
        "a[i, k + 1] * b[j, k]",
        "a[i, k] * gather(b[n[i], k])",
    ],
)
def test_a_product_of_cells_that_the_condition_excludes_stays_behind_it(loads: str) -> None:
    assert nest_of("int32(i) < 2", loads) is None


def test_a_position_in_a_call_is_bounded_by_its_range() -> None:
    def at(extent: int) -> Nest | None:
        return nest_of("int32(j) <= int32(t)", "a[t, k] * b[j, k]", extent)

    found = at(4)
    assert found is not None
    assert not any(isinstance(each, Ternary) for each in walk(found.roots[0]))
    assert at(5) is None
