"""Rows that become columns, transposed in squares of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.transforms import Schedule, axes_of_kind
from ocannl_core.ir.loops.axis_kinds import AxisKind
from ocannl_core.ir.loops.nodes import Binary, Block, Expr, Load, LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType, float32, float64, int32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.fusion import fuse_over_one_domain
from ocannl_core.schedule.rules.pointwise import pointwise_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.subject import subject_named
from tests.support.schedules import schedule_by_rule

LANES = 4
TARGET = Target("test", 0, vector_bytes=4 * LANES, vector_registers=16)


class Turned:
    """`y[i, j] = x[j, i] + z[i, j] + b[j] * w[2, j, i]`, or only its first term."""

    def __init__(self, rows: int, columns: int, dtype: DType, *, alone: bool) -> None:
        draft = Draft("turned")
        i, j = fresh_var("i"), fresh_var("j")
        shapes = {"x": (columns, rows), "z": (rows, columns), "b": (columns,)}
        shapes["w"] = (3, columns, rows)
        nodes = {name: draft.node(name, dtype, *shape) for name, shape in shapes.items()}
        self.y = draft.node("y", dtype, rows, columns)
        value: Expr = draft.load(nodes["x"], j, i)
        if not alone:
            value = Binary(BinaryOp.ADD, value, draft.load(nodes["z"], i, j), dtype)
            weighted = draft.load(nodes["b"], j), draft.load(nodes["w"], 2, j, i)
            value = Binary(BinaryOp.ADD, value, Binary(BinaryOp.MUL, *weighted, dtype), dtype)
        store = draft.store(self.y, i, j, value=value)
        self.program: LoopProgram = draft.program(loop(i, rows, loop(j, columns, store)))
        random = np.random.default_rng(0)
        self.arrays: dict[TensorNode, np.ndarray] = {
            node: random.integers(-9, 9, shapes[name]).astype(dtype.name)
            for name, node in nodes.items()
        }
        self.arrays[self.y] = np.zeros((rows, columns), dtype.name)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("dtype", [float32, float64, int32])
@pytest.mark.parametrize("shape", [(4, 4), (16, 20), (21, 33), (40, 7), (5, 64)])
@pytest.mark.parametrize("name", ["interp", "cpu_c"])
def test_transposed_squares_change_no_result(
    name: str, shape: tuple[int, int], dtype: DType, alone: bool
) -> None:
    work = Turned(*shape, dtype, alone=alone)
    chosen: list[Schedule | None] = []

    def rule(nest: Nest, nodes: object) -> Schedule | None:
        chosen.append(pointwise_schedule(nest, work.program.nodes, TARGET))
        return chosen[-1]

    expected = subject_named("interp").run(work.program, work.arrays)
    found = subject_named(name).run(
        work.program, work.arrays, (), lambda plan, target: schedule_by_rule(plan, rule)
    )
    np.testing.assert_array_equal(found[work.y], expected[work.y])
    assert [len(axes_of_kind(one or (), AxisKind.VECTOR)) for one in chosen] == [2]


def test_the_text_of_a_copy_is_one_transposition_of_each_square() -> None:
    work = Turned(64, 64, float32, alone=True)
    source = subject_named("cpu_c").generate(
        work.program,
        lambda plan, target: schedule_by_rule(
            plan, lambda nest, nodes: pointwise_schedule(nest, nodes, TARGET)
        ),
    )
    assert source.text.count("float32x4_transpose(&") == 1


def test_copies_whose_rows_cross_stay_apart() -> None:
    def copy(is_turned: bool) -> Nest:
        draft, i, j = Draft("copies"), fresh_var("i"), fresh_var("j")
        x, y = (draft.node(name, float32, 32, 32) for name in "xy")
        load: Load = draft.load(x, i, j)
        store = draft.store(y, *((j, i) if is_turned else (i, j)), value=load)
        nest = kernel_nest(Block((loop(i, 32, loop(j, 32, store)),)))
        assert nest is not None
        return nest

    assert fuse_over_one_domain(copy(False), copy(False)) is not None
    assert fuse_over_one_domain(copy(False), copy(True)) is None
