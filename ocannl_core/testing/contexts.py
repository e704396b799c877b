"""Conformance of a device as contexts use it: host access, copies and merge buffers between calls.

Derive a test class from `ContextConformance` and provide a fixture `target`, as for
`conformance.BackendConformance`. No test synchronizes the device: on an asynchronous device, each
one reads or writes right after a launch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ocannl_core.base import settings
from ocannl_core.base.errors import LinkError
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.ir.target import Capability
from ocannl_core.runtime.context import Context
from ocannl_core.tensor.computations.computation import forward
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import placeholder
from ocannl_core.testing.compare import Array

_CELLS = 1 << 12
_DEVICES = 3


def _numbers() -> Array:
    return np.arange(_CELLS, dtype=np.int32)


class ContextConformance:
    """Tests of one device through contexts; see the module for how to use it."""

    @pytest.fixture(autouse=True)
    def _session(self) -> Iterator[None]:
        with Session(), settings.overrides(host_devices=_DEVICES):
            yield

    @pytest.fixture
    def ctx(self, target: str) -> Context:
        ctx = Context(target)
        formats = ctx.target.formats
        if formats is not None and int32 not in formats:
            pytest.skip(f"{target} does not declare int32")
        return ctx

    @pytest.fixture
    def other(self, target: str) -> Context:
        """Return a context on another device of the backend if there is one."""
        name = target.partition(":")[0]
        first = Context(name)
        devices = [each.device for each in first.backend.targets().targets]
        return Context(name, device=devices[-1])

    def test_a_tensor_read_right_after_a_call_has_the_new_value(self, ctx: Context) -> None:
        x = placeholder("x", output=[_CELLS], dtype="int32")
        y = x * 2 + 1
        step = ctx.compile(forward(y))
        for scale in (1, 2, 3):
            ctx[x] = _numbers() * scale
            step()
            assert np.array_equal(ctx[y], _numbers() * scale * 2 + 1)

    def test_every_call_of_a_loop_counts(self, ctx: Context) -> None:
        x, total = (placeholder(name, output=[_CELLS], dtype="int32") for name in ("x", "total"))
        step = ctx.compile(_add(total, x))
        ctx[x], ctx[total] = _numbers(), 0
        for _ in range(5):
            step()
        assert np.array_equal(ctx[total], 5 * _numbers())

    def test_cells_written_right_after_a_call_do_not_change_its_result(self, ctx: Context) -> None:
        x = placeholder("x", output=[_CELLS], dtype="int32")
        y = x * 3
        step = ctx.compile(forward(y))
        ctx[x] = _numbers()
        step()
        ctx[x] = 0
        assert np.array_equal(ctx[y], 3 * _numbers())

    def test_a_routine_reads_the_results_of_the_one_before(self, ctx: Context) -> None:
        x, total = (placeholder(name, output=[_CELLS], dtype="int32") for name in ("x", "total"))
        y = x * 2
        first, second = ctx.compile(forward(y)), ctx.compile(_add(total, y))
        ctx[x], ctx[total] = _numbers(), 0
        first()
        second()
        first()
        second()
        assert np.array_equal(ctx[total], 4 * _numbers())

    def test_copies_to_another_context_follow_the_call_before(
        self, ctx: Context, other: Context
    ) -> None:
        x = placeholder("x", output=[_CELLS], dtype="int32")
        y = x + 1
        step = ctx.compile(forward(y))
        ctx[x] = _numbers()
        step()
        other.copy_from(ctx, y)
        assert np.array_equal(other[y], _numbers() + 1)

    def test_a_call_right_after_a_copy_does_not_change_the_copy(
        self, ctx: Context, other: Context
    ) -> None:
        x, total = (placeholder(name, output=[_CELLS], dtype="int32") for name in ("x", "total"))
        step = ctx.compile(_add(total, x))
        ctx[x], ctx[total] = 1, _numbers()
        step()
        other.copy_from(ctx, total)
        step()
        assert np.array_equal(other[total], _numbers() + 1)
        assert np.array_equal(ctx[total], _numbers() + 2)

    def test_a_copy_right_after_a_call_does_not_change_its_result(
        self, ctx: Context, other: Context
    ) -> None:
        x = placeholder("x", output=[_CELLS], dtype="int32")
        y = x * 2
        step = other.compile(forward(y))
        ctx[x], other[x] = 0, _numbers()
        step()
        other.copy_from(ctx, x)
        assert np.array_equal(other[y], 2 * _numbers())

    def test_a_merge_buffer_holds_the_value_after_the_call_before(
        self, ctx: Context, other: Context
    ) -> None:
        if Capability.MERGE_BUFFERS not in ctx.target.capabilities:
            pytest.skip(f"{ctx.target} does not declare merge buffers")
        x, total = (placeholder(name, output=[_CELLS], dtype="int32") for name in ("x", "total"))
        y = x * 2
        step = other.compile(forward(y))
        merge = ctx.compile(_add_merged(total, y))
        ctx[total] = 0
        for scale in (1, 10):
            other[x] = _numbers() * scale
            step()
            ctx.fill_merge(y, source=other)
            merge()
        assert np.array_equal(ctx[total], 22 * _numbers())

    def test_exhausted_memory_is_an_error_that_names_the_tensor(self, ctx: Context) -> None:
        enormous = placeholder("enormous", output=[1 << 56], dtype="int32")
        with pytest.raises(LinkError, match="enormous") as caught:
            ctx[enormous] = 1
        assert "memory" in str(caught.value)
        x = placeholder("x", output=[_CELLS], dtype="int32")
        step = ctx.compile(forward(y := x + 1))  # what fits still runs
        ctx[x] = _numbers()
        step()
        assert np.array_equal(ctx[y], _numbers() + 1)

    def test_a_routine_without_room_for_its_memory_is_an_error_that_names_a_tensor(
        self, ctx: Context
    ) -> None:
        x = placeholder("x", output=[], dtype="int32")
        enormous = placeholder("enormous", output=[1 << 56], dtype="int32")
        with pytest.raises(LinkError, match="enormous"):
            ctx.compile(_add(enormous, x))()


@cd
def _add(total: Tensor, x: Tensor) -> None:
    total += x


@cd
def _add_merged(total: Tensor, x: Tensor) -> None:
    total += x.merge
