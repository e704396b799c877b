"""Updates of some rows of each parameter, by several workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.train.optimizer import Shard

ELEMENTWISE = (
    oc.train.SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    oc.train.RMSprop(learning_rate=0.01, momentum=0.5),
    oc.train.Adagrad(learning_rate=0.1),
    oc.train.Adadelta(learning_rate=1.0),
    oc.train.AdamW(learning_rate=oc.train.cosine(0.1, steps=3), clip_norm=0.5),
    oc.train.Adam(learning_rate=0.1, weight_decay=0.1, average=0.9, skip_nonfinite=True),
    oc.train.Adamax(learning_rate=0.1),
    oc.train.NAdam(learning_rate=0.1),
    oc.train.RAdam(learning_rate=0.1),
    oc.train.Rprop(learning_rate=0.1),
    oc.train.Lion(learning_rate=0.01),
    oc.train.ScheduleFreeAdamW(learning_rate=0.1),
)
WORKERS = 3


def trained(
    target: str,
    optimizer: oc.train.Optimizer,
    workers: int | None,
    dtype: str = "float32",
    steps: int = 3,
) -> Any:
    """Return the parameters after some steps, and the bytes of the state of each worker."""
    with oc.Session(seed=1, dtype=dtype, param_dtype="float32"):
        x = oc.tensor(np.arange(5, dtype=np.float32) - 2)
        y = oc.param("w", output=[7]) @ x + oc.param("b", output=[7])
        loss = oc.einsum("...|... => 0", y * y)
        context = oc.Context(target)
        shards = [None] if workers is None else [Shard(k, workers) for k in range(workers)]
        own = [replace(optimizer) for _ in shards]
        code = oc.train.grad_update(loss)
        for each, shard in zip(own, shards, strict=True):
            code += each.update(loss, shard=shard)
        step = context.compile(code)
        context.init_params(loss)
        for _ in range(steps):
            step()
        sizes = [
            sum(context[tensor].size for tensor in each.state.values() if tensor.info.dims)
            for each in own
        ]
        return {p.label: context[p] for p in loss.parameters()}, sizes


@pytest.mark.parametrize("optimizer", ELEMENTWISE, ids=lambda each: type(each).__name__)
def test_updates_of_rows_have_the_bits_of_the_whole_update(
    target: str, optimizer: oc.train.Optimizer
) -> None:
    expected, (whole,) = trained(target, optimizer, None)
    found, parts = trained(target, optimizer, WORKERS)
    for name, cells in expected.items():
        np.testing.assert_array_equal(found[name].view(np.int32), cells.view(np.int32), str(name))
    assert sum(parts) == whole
    assert max(parts) == whole * 3 // 7


@pytest.mark.parametrize("optimizer", ELEMENTWISE, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_rows_of_wide_parameters_stay_wide_where_a_model_computes_in_a_narrow_format(
    optimizer: oc.train.Optimizer, dtype: str
) -> None:
    small = replace(optimizer, learning_rate=1e-4)
    expected, _ = trained("interp", small, None, dtype)
    found, _ = trained("interp", small, WORKERS, dtype)
    for name, cells in expected.items():
        assert cells.dtype == np.float32
        np.testing.assert_array_equal(found[name].view(np.int32), cells.view(np.int32), str(name))


def test_a_step_that_only_accumulates_changes_no_parameter(target: str) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        optimizer = oc.train.SGD(learning_rate=0.1, accumulate=2)
        (start, _), (same, _), (moved, _) = (
            trained(target, replace(optimizer), WORKERS, dtype, steps) for steps in range(3)
        )
        for name, cells in start.items():
            np.testing.assert_array_equal(same[name], cells)
            assert np.any(moved[name] != cells)


def test_optimizers_that_need_whole_parameters_are_refused() -> None:
    loss = oc.einsum("i => 0", oc.param("w", output=[4]) * 2.0)
    for optimizer in (oc.train.LAMB(learning_rate=0.1), oc.train.Adafactor(learning_rate=0.1)):
        with pytest.raises(oc.UsageError, match="computes with whole parameters"):
            optimizer.update(loss, shard=Shard(0, 2))
