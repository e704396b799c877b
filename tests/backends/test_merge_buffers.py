"""Merge buffers: filled from other contexts, checked at linking and at running."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings

BACKENDS = [each for each in manager.load_all() if each.targets().targets]


@pytest.fixture(params=BACKENDS, ids=lambda each: each.name)
def names(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Yield the names of three devices of a backend, or one of them repeatedly."""
    with settings.overrides(host_devices=3):
        found = [str(each) for each in request.param.targets().targets]
        yield (found * 3)[:3]


@oc.cd
def add_merged(target: oc.Tensor, source: oc.Tensor) -> None:
    target += source.merge


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_values_of_other_devices_are_added(
    names: list[str], streamed: bool, asynchronous: bool
) -> None:
    with oc.Session():
        v, w = oc.placeholder("v", output=[2]), oc.placeholder("w", output=[2])
        owner, *others = (oc.Context(name, asynchronous=asynchronous) for name in names)
        owner[w] = [10.0, 20.0]
        step = owner.compile(add_merged(w, v))
        for k, other in enumerate(others, 1):
            other[v] = [1.0 * k, 2.0 * k]
            owner.fill_merge(v, source=other, streamed=streamed)
            step()
        assert owner[w].tolist() == [13.0, 26.0]


def test_gradients_of_two_devices_are_merged(names: list[str]) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[3])
        p = oc.param("p", output=[4])
        y = p @ x
        loss = oc.einsum("...|... => 0", y * y)

        @oc.cd
        def merge_gradient() -> None:
            p.grad += p.grad.merge

        owner, other = oc.Context(names[0]), oc.Context(names[1])
        steps = [ctx.compile(oc.train.grad_update(loss)) for ctx in (owner, other)]
        merge = owner.compile(merge_gradient())
        owner.init_params(loss)
        other.copy_from(owner, loss.params)
        cells = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        owner[x], other[x] = cells[:2], cells[2:]
        for step in steps:
            step()
        owner.fill_merge(p.grad, source=other)
        merge()
        expected = 2 * (owner[p] @ cells.T) @ cells
        assert np.allclose(owner[p.grad], expected, rtol=1e-4, atol=1e-5)


def test_a_copy_has_the_values_of_the_time_of_filling(names: list[str]) -> None:
    with oc.Session():
        v, w = oc.placeholder("v", output=[2]), oc.placeholder("w", output=[2])
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        owner[w], other[v] = 0.0, 1.0
        step = owner.compile(add_merged(w, v))
        owner.fill_merge(v, source=other)
        other[v] = 7.0
        step()
        assert owner[w].tolist() == [1.0, 1.0]


def test_a_source_that_was_written_is_not_streamed(names: list[str]) -> None:
    with oc.Session():
        v, w = oc.placeholder("v", output=[2]), oc.placeholder("w", output=[2])
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        owner[w], other[v] = 0.0, 1.0
        step = owner.compile(add_merged(w, v))
        owner.fill_merge(v, source=other, streamed=True)
        other[v] = 7.0
        with pytest.raises(oc.LinkError, match=r"written on .* since fill_merge"):
            step()


def test_code_that_reads_another_node_is_not_linked(names: list[str]) -> None:
    with oc.Session():
        u, v, w = (oc.placeholder(name, output=[2]) for name in "uvw")
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        owner[w], other[u] = 0.0, 1.0
        owner.fill_merge(u, source=other)
        with pytest.raises(oc.LinkError) as error:
            owner.compile(add_merged(w, v))
        assert "it holds placeholder u" in str(error.value)
        assert "v.merge" in str(error.value)
        assert "ctx.fill_merge(v, source=other)" in error.value.fix


def test_code_that_reads_another_node_does_not_run(names: list[str]) -> None:
    with oc.Session():
        u, v, w = (oc.placeholder(name, output=[2]) for name in "uvw")
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        owner[w], other[u] = 0.0, 1.0
        step = owner.compile(add_merged(w, v))
        owner.fill_merge(u, source=other)
        with pytest.raises(oc.LinkError, match=r"it reads v\.merge, .* holds placeholder u"):
            step()
        assert owner[w].tolist() == [0.0, 0.0]


def test_a_content_that_a_routine_waits_for_is_not_replaced(names: list[str]) -> None:
    with oc.Session():
        v, w = oc.placeholder("v", output=[2]), oc.placeholder("w", output=[2])
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        owner[w], other[v] = 0.0, 1.0
        step = owner.compile(add_merged(w, v), name="reader")
        owner.fill_merge(v, source=other)
        with pytest.raises(oc.LinkError, match="which reader has not read"):
            owner.fill_merge(v, source=other)
        owner.fill_merge(v, source=other, discard=True)
        step()
        owner.fill_merge(v, source=other)
        step()
        assert owner[w].tolist() == [2.0, 2.0]


def test_a_tensor_without_a_value_does_not_fill_a_merge_buffer(names: list[str]) -> None:
    with oc.Session():
        v = oc.placeholder("v", output=[2])
        owner, other = oc.Context(names[0]), oc.Context(names[1])
        with pytest.raises(oc.LinkError, match="placeholder v"):
            owner.fill_merge(v, source=other)


def test_backends_that_share_no_memory_do_not_stream() -> None:
    first, second, *_ = BACKENDS
    with oc.Session():
        v = oc.placeholder("v", output=[2])
        owner, other = oc.Context(first.name), oc.Context(second.name)
        other[v] = 1.0
        with pytest.raises(oc.UsageError, match="streams between devices of one backend"):
            owner.fill_merge(v, source=other, streamed=True)
        owner.fill_merge(v, source=other)
