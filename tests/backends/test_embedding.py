"""Rows of a table chosen by comparing positions: read, not multiplied by zeros and ones."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import settings

ROWS, WIDTH = 5, 3
IDS = [0.0, 4.0, 2.5, -1.0, 2.0]


def product(flags: oc.Tensor, table: oc.Tensor) -> oc.Tensor:
    return oc.einsum("b|k; |k->o => b|o", flags, table)


def choice(flags: oc.Tensor, table: oc.Tensor) -> oc.Tensor:
    rows = oc.einsum("|k->o => |k,o", table)
    return oc.einsum("b|k,o => b|o", oc.where(oc.einsum("b|k => b|k,0", flags), rows, 0.0))


@pytest.mark.parametrize(
    ("select", "finite", "is_read"),
    [(choice, False, True), (product, True, True), (product, False, False)],
)
def test_a_sum_over_flags_reads_one_row(
    target: str, select: object, finite: bool, is_read: bool
) -> None:
    with settings.overrides(tables_are_finite=finite), oc.Session():
        ids = oc.placeholder("ids", batch=[len(IDS)], output=[1])
        table = oc.param("table", input=[ROWS], output=[WIDTH])
        rows = select(oc.arange(ROWS) == ids, table)  # type: ignore[operator]
        loss = oc.einsum("...|... => 0", rows * rows)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[rows, table.grad])
        assert ("gather" in step.loop_ir) is is_read
        assert rows.node not in {n for n in step.placements if "equal" in n.name}
        ctx.init_params(loss)
        ctx[ids] = np.reshape(IDS, (len(IDS), 1))
        step()
        weights = ctx[table].T
        flags = np.arange(ROWS) == np.reshape(IDS, (-1, 1))
        assert ctx[rows].tolist() == (flags @ weights).tolist()
        assert np.allclose(ctx[table.grad].T, 2 * flags.T @ (flags @ weights))
