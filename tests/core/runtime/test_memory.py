"""The memory of devices: reports, limits, errors, release."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session():
        yield


def training_step(ctx: oc.Context) -> tuple[oc.Routine, oc.Tensor]:
    x = oc.placeholder("x", batch=[4], output=[8])
    hidden = oc.tanh(oc.param("w", output=[16]) @ x)
    loss = oc.einsum("...|... => 0", hidden * hidden)
    ctx[x] = 1.0
    ctx.init_params(loss)
    return ctx.compile(oc.train.grad_update(loss)), loss


def test_a_report_lists_tensors_by_label_and_kind() -> None:
    ctx = oc.Context("cpu_c")
    _, loss = training_step(ctx)
    (w,) = loss.params
    report = ctx.memory
    found = {(entry.label, entry.kind): entry.nbytes for entry in report.entries}
    assert found["w", "parameter"] == found["w_grad", "gradient"] == 16 * 8 * 4
    assert found["x", "placeholder"] == 4 * 8 * 4
    assert any(kind == "scratch" for _, kind in found)
    assert report.nbytes == sum(found.values()) == sum(report.by_kind().values())
    assert report.in_use >= report.nbytes
    assert f"{16 * 8 * 4:,}  parameter     w" in str(report)
    assert w in ctx


def test_keys_of_random_numbers_have_a_kind_of_their_own() -> None:
    first, second = oc.Context("interp"), oc.Context("interp")
    step = first.compile(oc.train.forward(oc.uniform() + oc.tensor([1.0, 2.0])))
    for ctx in (first, second):
        ctx.link(step)()
        kinds = {each.label: (each.kind, each.nbytes) for each in ctx.memory.entries}
        assert kinds["key"] == ("key", 16)


def test_contexts_of_other_lineages_are_not_in_a_report() -> None:
    first, second = oc.Context("interp"), oc.Context("interp")
    x = oc.placeholder("x", output=[4])
    before = second.memory.in_use
    first[x] = 1.0
    assert [entry.label for entry in first.memory.entries] == ["x"]
    assert not second.memory.entries
    assert second.memory.in_use == before + 16


def test_memory_of_contexts_that_are_gone_is_not_in_use() -> None:
    ctx = oc.Context("interp")
    x = oc.placeholder("x", output=[1000])
    gc.collect()
    before = ctx.memory.in_use
    other = oc.Context("interp")
    other[x] = 1.0
    assert ctx.memory.in_use == before + 4000
    del other
    gc.collect()
    assert ctx.memory.in_use == before
    assert ctx.memory.peak >= before + 4000


def test_a_released_context_holds_nothing_and_its_routines_do_not_run() -> None:
    ctx = oc.Context("cpu_c")
    step, loss = training_step(ctx)
    step()
    child = ctx.child()
    y = oc.placeholder("y", output=[2])
    child[y] = 1.0
    ctx.release()
    assert [entry.label for entry in ctx.memory.entries] == ["y"]
    with pytest.raises(oc.LinkError, match="the context has been released"):
        step()
    with pytest.raises(oc.LinkError, match="Only tensors that a context stores"):
        ctx[loss.params["w"]]
    ctx.init_params(loss)
    assert ctx[loss.params["w"]].shape == (16, 8)


def test_releasing_a_child_leaves_its_parent_alone() -> None:
    ctx = oc.Context("cpu_c")
    step, loss = training_step(ctx)
    child = ctx.child()
    child.compile(oc.train.forward(loss * 2.0))()
    child.release()
    step()
    assert ctx.item(loss) > 0


def test_memory_beyond_the_limit_is_an_error_that_lists_the_largest_tensors() -> None:
    ctx = oc.Context("interp")
    big = oc.placeholder("big", output=[1 << 18])
    small, other = oc.placeholder("small", output=[16]), oc.placeholder("other", output=[1 << 18])
    gc.collect()
    with settings.overrides(device_memory=ctx.memory.in_use // (1 << 20) + 2):
        ctx[small] = ctx[big] = 0.0
        with pytest.raises(oc.LinkError) as error:
            ctx[other] = 0.0
        assert "no room for 1,048,576 bytes" in error.value.found
        assert "the setting device_memory allows" in error.value.found
        assert "1,048,576  placeholder   big" in error.value.found
        assert "ctx.release()" in error.value.fix


def test_the_limit_holds_for_scratch_of_routines() -> None:
    ctx = oc.Context("interp")
    x = oc.placeholder("x", output=[1 << 19])
    y = oc.einsum("i => 0", oc.exp(x) * 2.0)
    gc.collect()
    with settings.overrides(device_memory=ctx.memory.in_use // (1 << 20) + 3, max_visits=0):
        ctx[x] = 0.0
        with pytest.raises(oc.LinkError, match="scratch of forward"):
            ctx.compile(oc.train.forward(y))


def test_garbage_makes_room_before_the_limit_is_an_error() -> None:
    ctx = oc.Context("interp")
    gc.collect()
    with settings.overrides(device_memory=ctx.memory.in_use // (1 << 20) + 2):
        for _ in range(8):
            other = oc.Context("interp")
            x = oc.placeholder("x", output=[1 << 18])
            other[x] = np.zeros(1 << 18, np.float32)
            del other, x


def test_shared_literals_count_once() -> None:
    x = oc.tensor(np.zeros(1 << 16, np.float32))
    gc.collect()
    before = oc.Context("interp").memory.in_use
    contexts = [oc.Context("interp") for _ in range(3)]
    for ctx in contexts:
        ctx.compile(oc.train.forward(oc.einsum("i => 0", x)))
    assert contexts[0].memory.in_use < before + 2 * x.info.nbytes
