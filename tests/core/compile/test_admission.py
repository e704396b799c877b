"""A device gets kernels whose parts it has; others are errors that name the user's line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend_api import HostCall
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp, VectorOp
from ocannl_core.ir.target import Capability
from tests.support.limited_backend import all_but, capabilities_but, limited

pytestmark = pytest.mark.usefixtures("fresh_plugins")


def refused(tensor: Any, backend: str = "limited", **options: Any) -> oc.UnsupportedError:
    """Return the error about the code of a tensor."""
    context = oc.Context(backend)
    with pytest.raises(oc.UnsupportedError) as caught:
        context.compile(oc.train.forward(tensor), name="step", **options)
    assert not context.memory.entries  # a compilation that fails leaves nothing
    return caught.value


def test_a_primitive_without_a_decomposition_is_refused_at_its_line() -> None:
    limited(primitives=all_but(UnaryOp.TANH))
    with oc.Session():
        x = oc.tensor([1.0, 2.0])
        inner = oc.tanh(x)  # inlined into the next line
        error = refused(oc.exp(inner) + 1.0)
    assert error.found.splitlines()[:2] == ["the primitive tanh, which limited:0 lacks", "for tanh"]
    assert "inner = oc.tanh(x)" in error.where
    assert "compiling step for limited:0 (registered in this process)" in error.where
    assert 'fallback="' in error.fix


def test_a_primitive_with_a_decomposition_runs() -> None:
    limited(primitives=all_but(UnaryOp.RELU, BinaryOp.MAX, TernaryOp.FMA, UnaryOp.SIGN))
    with oc.Session():
        x = oc.tensor([-1.5, -0.0, 2.0])
        y = oc.fma(x, oc.relu(x), oc.sign(x), logic=".") + oc.maximum(x, 1.0)
        total = oc.einmax("i => 0", y)
        context = oc.Context("limited")
        routine = context.compile(oc.train.forward(total), keep=[y, total])
        routine()
        np.testing.assert_array_equal(context[y], [0.0, 1.0, 7.0])
        assert context.item(total) == 7.0
        for name in ("relu", "fma", "sign", "max("):
            assert name not in routine.source


@pytest.mark.parametrize(
    ("lacking", "make"),
    [
        (Capability.EXTERNAL_CALLS, lambda x: oc.sort(x)),
        (Capability.POSITION_CHECKS, lambda x: oc.take(x, oc.tensor([0, 1], dtype="int32"))),
        (
            Capability.REPETITIONS,
            lambda x: oc.scan(lambda c, _: (oc.tanh(c), None), x, length=3)[1],
        ),
    ],
    ids=lambda each: each.value if isinstance(each, Capability) else "",
)
def test_a_capability_that_is_not_declared_is_refused(lacking: Capability, make: Any) -> None:
    limited(capabilities=capabilities_but(lacking))
    with oc.Session():
        error = refused(make(oc.tensor([3.0, 1.0])))
    assert f"{lacking.value}, which limited:0 lacks" in error.found
    assert "test_admission.py:" in error.where


def test_scatters_and_merge_buffers_are_refused() -> None:
    limited(capabilities=capabilities_but(Capability.SCATTERS, Capability.MERGE_BUFFERS))
    with oc.Session():
        table, ids = oc.param("table", output=[3]), oc.tensor([0, 2], dtype="int32")
        loss = oc.sum(oc.take(table, ids))
        context = oc.Context("limited")
        context.init_params(loss)
        with pytest.raises(oc.UnsupportedError, match="scatters, which limited:0 lacks"):
            context.compile(oc.train.grad_update(loss))


def test_random_numbers_in_vectors_are_a_primitive() -> None:
    limited(primitives=all_but(VectorOp.UNIFORM))
    with oc.Session():
        error = refused(oc.uniform(packed=True) + oc.tensor(np.zeros(64)))
    assert "the primitive uniform_vector" in error.found


def test_the_target_of_a_plugin_has_only_parts_of_the_language() -> None:
    with pytest.raises(oc.BackendNotFoundError):
        limited(primitives=("tanh",))
    report = manager.backend("limited").targets()
    assert "Target.primitives must hold objects of type UnaryOp or BinaryOp" in report.reason


def test_a_backend_refuses_kernels_with_a_reason() -> None:
    seen = []

    def ocannl_refuse(step: Any, nodes: Any) -> str | None:
        seen.append(step)
        assert all(node in nodes for node in getattr(step, "arguments", ()))
        return "it has a\x1b[2J matrix product" if " * " in step.title else None

    limited(hooks={"ocannl_refuse": ocannl_refuse})
    with oc.Session():
        a = oc.tensor([(1.0, 2.0), (3.0, 4.0)])
        context = oc.Context("limited")
        context.compile(oc.train.forward(oc.sort(a)))
        assert isinstance(seen[-1], HostCall)
        context.compile(oc.train.forward(oc.exp(a)))
        product = a @ oc.tensor([1.0, 1.0])
        with pytest.raises(oc.UnsupportedError) as caught:
            context.compile(oc.train.forward(product))
    assert caught.value.found.startswith("limited cannot compile the kernel: it has a")
    assert "\x1b" not in str(caught.value)
    assert "product = a @" in caught.value.where


@pytest.mark.parametrize("answer", [True, "", 3], ids=str)
def test_an_answer_that_is_no_reason_is_a_defect_of_the_plugin(answer: object) -> None:
    limited(hooks={"ocannl_refuse": lambda step: answer})
    with oc.Session(), pytest.raises(oc.HookError, match="ocannl_refuse: it must return a reason"):
        oc.Context("limited").compile(oc.train.forward(oc.tensor([1.0]) * 2.0))
