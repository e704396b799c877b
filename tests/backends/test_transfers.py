"""Copies between contexts: every pair of devices, every format, all tensors or none."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes

PAIRS = list(
    product([str(t) for each in manager.load_all() for t in each.targets().targets], repeat=2)
)


@pytest.mark.parametrize(("origin", "destination"), PAIRS)
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_bit_of_every_format_arrives(
    origin: str, destination: str, dtype: dtypes.DType, asynchronous: bool
) -> None:
    raw = bytes((37 * k + 11) % 256 for k in range(7 * dtype.nbytes))  # NaN of all kinds among them
    cells = np.frombuffer(raw, dtype.numpy)
    with oc.Session(), settings.overrides(allow_nan=True):
        x = oc.placeholder("x", output=[7], dtype=dtype)
        first = oc.Context(origin, asynchronous=asynchronous)
        second = oc.Context(destination, asynchronous=asynchronous)
        first[x] = cells
        second.copy_from(first, x).wait()
        assert second[x].tobytes() == first[x].tobytes()


@pytest.mark.parametrize(("origin", "destination"), PAIRS)
def test_a_model_goes_to_another_backend_and_back(origin: str, destination: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        w, b = oc.param("w", output=[2]), oc.param("b", output=[2])
        y = w @ x + b
        here, there = oc.Context(origin), oc.Context(destination)
        here.init_params(y)
        here[x] = there[x] = [1.0, 2.0, 3.0]
        there.copy_from(here, y.params)
        forward = there.compile(oc.train.forward(y))
        forward()
        assert np.array_equal(there[w], here[w])
        assert np.allclose(there[y], here[w] @ [1, 2, 3] + here[b], rtol=1e-6)
        there[w] = 0.0
        here.copy_from(there, [w])
        assert not here[w].any()


def test_a_routine_reads_the_copied_cells(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        y = x * 2.0
        source, ctx = oc.Context(target), oc.Context(target)
        step = ctx.compile(oc.train.forward(y))
        for value in (1.0, 5.0):
            source[x] = value
            ctx.copy_from(source, x)
            step()
            assert ctx[y].tolist() == [2 * value] * 2


def test_one_tensor_without_a_value_stops_all_copies(target: str) -> None:
    with oc.Session():
        x, y = oc.placeholder("x", output=[2]), oc.placeholder("y", output=[2])
        source, ctx = oc.Context(target), oc.Context(target)
        source[x] = 1.0
        with pytest.raises(oc.LinkError, match="placeholder y"):
            ctx.copy_from(source, [x, y])
        assert x not in ctx


def test_only_tensors_are_copied(target: str) -> None:
    ctx = oc.Context(target)
    with pytest.raises(oc.UsageError, match="copy_from takes tensors"):
        ctx.copy_from(ctx, ["w"])  # type: ignore[list-item]


def test_a_copy_within_a_lineage_changes_nothing(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        ctx = oc.Context(target)
        ctx[x] = [1.0, 2.0]
        ctx.child().copy_from(ctx, x).wait()
        assert ctx[x].tolist() == [1.0, 2.0]


def test_margins_are_those_of_each_context(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=(), input=(), output=[3])
        total = oc.einsum("i=+k; k => i", x, oc.tensor(np.ones(3, np.float32)))
        plain, padded = oc.Context(target), oc.Context(target)
        step = padded.compile(oc.train.forward(total))
        plain[x] = [1.0, 2.0, 3.0]
        padded.copy_from(plain, x)
        step()
        assert padded[total].tolist() == [3.0, 6.0, 5.0]
        plain[x] = 0.0
        plain.copy_from(padded, x)
        assert plain[x].tolist() == [1.0, 2.0, 3.0]


def test_a_literal_has_one_copy_on_a_device_until_a_context_writes_it(target: str) -> None:
    with oc.Session():
        x = oc.tensor(np.arange(1.0, 4.0, dtype=np.float32))
        y = x * 2.0
        first, second = oc.Context(target), oc.Context(target)
        steps = [ctx.compile(oc.train.forward(y)) for ctx in (first, second)]
        held = [ctx._store.find(x.node) for ctx in (first, second)]
        assert held[0] is not None
        assert held[1] is not None
        assert held[0].buffer is held[1].buffer
        first[x] = 5.0
        for step in steps:
            step()
        assert first[y].tolist() == [10.0] * 3
        assert second[y].tolist() == [2.0, 4.0, 6.0]
        second.copy_from(first, x)
        steps[1]()
        assert second[y].tolist() == [10.0] * 3


def test_code_is_linked_in_a_context_of_another_device_of_its_kind(target: str) -> None:
    name = target.partition(":")[0]
    with oc.Session(), settings.overrides(host_devices=2):
        x = oc.placeholder("x", output=[2])
        total = oc.placeholder("total", output=[2])

        @oc.cd
        def add_to_total() -> None:
            total.assign(total + x * oc.tensor(np.array([1.0, 10.0], np.float32)))

        first = oc.Context(name)
        devices = [each.device for each in first.backend.targets().targets]
        if len(devices) < 2:
            pytest.skip(f"this machine has one device of {name}")
        second = oc.Context(name, device=devices[-1])
        step = first.compile(add_to_total())
        same = second.link(step)
        for ctx, value in ((first, 1.0), (second, 2.0)):
            ctx[x], ctx[total] = value, 0.0
        step()
        same()
        same()
        assert first[total].tolist() == [1.0, 10.0]
        assert second[total].tolist() == [4.0, 40.0]
        assert same.source == step.source


def test_code_is_not_linked_on_another_backend() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        step = oc.Context("interp").compile(oc.train.forward(x * 2.0))
        with pytest.raises(oc.LinkError, match="compiled for interp:0, and the context is on cpu"):
            oc.Context("cpu_c").link(step)
        with pytest.raises(oc.UsageError, match="A context links routines"):
            oc.Context("cpu_c").link(x)  # type: ignore[arg-type]


def test_linked_code_reads_nothing_that_is_missing(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        y = oc.exp(x)
        first, second = oc.Context(target), oc.Context(target)
        first.compile(oc.train.forward(y))

        @oc.cd
        def follow() -> None:
            total = oc.declare("total")
            total += y

        step = first.compile(follow())
        with pytest.raises(oc.LinkError, match=r"tensor exp .* not in the context"):
            second.link(step)
