"""Several computations compiled together."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.passes.kernels import schedule_kernels


def network() -> tuple[oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return an input, an output and a loss of three layers."""
    x = oc.placeholder("x", batch=[4], output=[6])
    y = x
    for width in (5, 7, 3):
        y = oc.tanh(oc.param("w", output=[width]) @ y)
    return x, y, oc.einsum("...|... => 0", y * y)


def results(ctx: oc.Context, tensors: list[oc.Tensor]) -> list[bytes]:
    return [ctx[tensor].tobytes() for tensor in tensors]


def test_routines_compiled_together_give_the_results_of_single_ones(target: str) -> None:
    found = []
    for together in (False, True):
        with oc.Session(seed=2):
            x, y, loss = network()
            ctx = oc.Context(target)
            codes = [oc.train.grad_update(loss), oc.train.forward(y), oc.train.forward(loss)]
            if together:
                steps = ctx.compile_all(codes)
            else:
                steps = tuple(ctx.compile(code) for code in codes)
            ctx.init_params(loss)
            ctx[x] = np.linspace(-1, 1, 24).reshape(4, 6)
            for step in steps:
                step()
            gradients = [p.grad for p in loss.params if p.grad is not None]
            found.append(results(ctx, [y, loss, *gradients]))
    assert found[0] == found[1]


def test_each_routine_takes_the_indices_and_keeps_the_tensors_that_it_mentions(target: str) -> None:
    with oc.Session():
        i = oc.static_index("i", range=3)
        rows = oc.tensor(np.arange(6, dtype=np.float32).reshape(3, 2), batch_axes=1)
        picked, total = rows[i] * 2.0, oc.einsum("...|... => 0", rows)
        ctx = oc.Context(target)
        one, other = ctx.compile_all(
            [oc.train.forward(picked), oc.train.forward(total)], [i], keep=[picked, total]
        )
        one(i=2)
        other()
        assert ctx[picked].tolist() == [8.0, 10.0]
        assert ctx.item(total) == 15.0


def test_equal_kernels_of_several_computations_are_scheduled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    counts = []
    original = schedule_kernels._schedule_step

    def counted(*arguments: object) -> object:
        counts[-1] += 1
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule_kernels, "_schedule_step", counted)
    for together in (False, True):
        counts.append(0)
        with oc.Session(), settings.overrides(cache_dir=str(tmp_path) + str(together)):
            _, y, loss = network()
            ctx = oc.Context("cpu_c")
            codes = [oc.train.forward(y), oc.train.forward(loss)]
            if together:
                ctx.compile_all(codes)
            else:
                for code in codes:
                    ctx.compile(code)
    apart, shared = counts
    assert 0 < shared < apart
