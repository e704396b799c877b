"""Rows of a table chosen by comparing positions: read, not multiplied by zeros and ones."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings

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


def positions_of(kind: str) -> oc.Tensor:
    match kind:
        case "computed":
            return oc.arange(ROWS)
        case "computed integers":
            return oc.arange(ROWS, dtype="int32")
        case "data":
            return oc.tensor(np.arange(ROWS, dtype=np.float32))
        case _:
            return oc.tensor(np.arange(ROWS, dtype=np.int64))


@pytest.mark.parametrize("kind", ["computed", "computed integers", "data", "integer data"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bfloat16"])
@pytest.mark.parametrize(("select", "finite"), [(choice, False), (product, True)])
def test_rows_are_read_and_their_gradients_written_for_every_format(
    target: str, kind: str, dtype: str, select: object, finite: bool
) -> None:
    with settings.overrides(tables_are_finite=finite), oc.Session():
        ids = oc.placeholder("ids", batch=[4], output=[1], dtype=dtype)
        table = oc.param("table", input=[ROWS], output=[WIDTH])
        rows = select(positions_of(kind) == ids, table)  # type: ignore[operator]
        loss = oc.einsum("...|... => 0", rows * rows)
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[rows, table.grad])
        assert "gather" in step.loop_ir
        assert "scatter" in step.loop_ir
        assert "==" not in step.loop_ir.replace("== trunc", "")
        ctx.init_params(loss)
        chosen = np.array([[4], [0], [4], [9]])
        ctx[ids] = chosen.astype(ids.dtype.numpy)
        step()
        weights = ctx[table].T
        flags = np.arange(ROWS) == chosen
        assert ctx[rows].tolist() == (flags @ weights).tolist()
        assert np.allclose(ctx[table.grad].T, 2 * flags.T @ (flags @ weights))


def test_a_literal_of_positions_is_a_part_of_the_program() -> None:
    with oc.Session():
        ids = oc.placeholder("ids", output=[1])
        compared, overwritten = (oc.tensor(np.arange(3.0), label=each) for each in "ab")
        ctx = oc.Context("interp")
        ctx[overwritten] = np.array([2.0, 2.0, 0.0])
        flags = [compared == ids, overwritten == ids]
        routine = ctx.compile(oc.train.forward(flags[0]) + oc.train.forward(flags[1]), keep=flags)
        ctx[ids] = np.array([2.0])
        routine()
        assert [ctx[each].tolist() for each in flags] == [[0, 0, 1], [1, 1, 0]]
        with pytest.raises(oc.UsageError, match="compare with a placeholder"):
            ctx[compared] = np.zeros(3)
