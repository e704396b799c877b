"""The periods demo: its operations pass `check_op`, and it learns on every backend."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.testing import check_op

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import periods

    return periods


@pytest.fixture
def ops(demo: ModuleType) -> ModuleType:
    import periods_ops

    return periods_ops


def numbers(*extents: int, dtype: str = "float64", batch_axes: int = 0) -> oc.Tensor:
    cells = np.random.default_rng(len(extents)).normal(size=extents)
    return oc.tensor(cells, batch_axes=batch_axes, dtype=dtype)


def test_it_learns_to_classify_periods(demo: ModuleType, capsys: Any) -> None:
    assert demo.main(["--backend", "cpu_c", "--steps", "120", "--require", "0.85"]) == 0
    assert "of new rows are told right" in capsys.readouterr().out


def test_an_accuracy_below_the_required_one_fails(demo: ModuleType, capsys: Any) -> None:
    arguments = ["--backend", "cpu_c", "--steps", "1", "--batch", "4", "--require", "1.1"]
    assert demo.main(arguments) == 1
    assert "below the required 110%" in capsys.readouterr().err


def test_training_is_the_same_on_the_interpreter_in_c_and_with_python_ops(demo: ModuleType) -> None:
    options = demo.parse(["--steps", "3", "--batch", "2"])
    found = {}
    for backend in ("interp", "cpu_c"):
        for python in (False, True):
            with settings.overrides(backend=backend, python_ops=python):
                found[backend, python] = demo.train(options).losses
    first, *others = found.values()
    for losses in others:
        assert np.allclose(losses, first, rtol=1e-5)
    assert first[0] != first[-1]


def test_the_fourier_transform_keeps_its_contract(ops: ModuleType) -> None:
    check_op(ops.FourierTransform(), [numbers(2, 5, 3, batch_axes=1)])
    check_op(ops.AdjointTransform(), [numbers(2, 5, 3, 2, batch_axes=1)])


def test_the_look_up_keeps_its_contract_also_beyond_the_table(ops: ModuleType) -> None:
    positions = oc.tensor(np.array([[0, 2, 2, -1], [4, 5, 1, 3]], np.int32), batch_axes=1)
    check_op(ops.Rows(), [numbers(5, 3), positions])
    check_op(ops.AddedRows(), [numbers(5, 3), positions, numbers(2, 4, 3, batch_axes=1)])


def test_the_update_keeps_its_contract(ops: ModuleType) -> None:
    check_op(ops.Momentum(0.1, 0.9), [numbers(5, dtype="float32") for _ in range(3)])


def test_the_update_is_the_optimizer_with_momentum(ops: ModuleType) -> None:
    found = []
    for update in ("op", "recorded"):
        with oc.Session(seed=1):
            w = oc.param("w", init=[1.0, 2.0])
            loss = oc.einsum("...|... => 0", w * w)

            @oc.cd
            def step_of(loss: oc.Tensor) -> None:
                ops.Momentum(0.1, 0.5)(w, w.grad, oc.declare("velocity"))  # noqa: B023

            code = (
                step_of(loss)
                if update == "op"
                else oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.5)
            )
            ctx = oc.Context("cpu_c")
            step = ctx.compile(oc.train.grad_update(loss) + code)
            ctx.init_params(loss)
            for _ in range(4):
                step()
            found.append(ctx[w])
    assert np.allclose(*found, rtol=1e-6)


def test_the_look_up_has_code_for_cuda_with_a_thread_for_each_cell(ops: ModuleType) -> None:
    with oc.Session():
        node = ops.Rows().make_node(numbers(500, 3, dtype="float32"), oc.arange(500, dtype="int32"))
        code = ops.Rows().native("cuda", node)
    assert (code.grid, code.block) == ((6,), (256,))
    assert "found[cell] = is_row ? table[row * width + cell % width] : 0;" in code.body
