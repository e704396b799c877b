"""Inlining on every device: the same bits, less memory, and nodes shared between routines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.loops.traverse import writes
from ocannl_core.ir.node import MemoryMode, Placement, Reason
from ocannl_core.passes.loops.inline.decide import Policy, inline
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.chains import chain_programs
from tests.support.example_count import example_count

KEPT = Placement(MemoryMode.ON_DEVICE, Reason.KEPT)


def classifier() -> tuple[oc.Tensor, oc.Tensor, oc.Tensor]:
    """Return images, classes, and the loss of a perceptron with one hidden layer."""
    images = oc.placeholder("images", batch=[6], output=[5])
    classes = oc.placeholder("classes", batch=[6], output=[3])
    hidden = oc.relu(oc.param("w1", output=[4]) @ images + oc.param("b1", output=[4]))
    scores = oc.param("w2", output=[3]) @ hidden + oc.param("b2", output=[3])
    total = oc.einsum("...|... => ...|0", oc.exp(scores))
    return images, classes, oc.einsum("...|... => 0", classes * (oc.log(total) - scores))


def trained(target: str, **chosen: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the parameters after two steps of training under some settings."""
    with settings.overrides(contract=False, **chosen), oc.Session(seed=1):
        images, classes, loss = classifier()
        ctx = oc.Context(target)
        update = oc.train.sgd_update(loss, learning_rate=0.1, momentum=0.9)
        step = ctx.compile(oc.train.grad_update(loss) + update)
        ctx.init_params(loss)
        ctx[images] = np.linspace(-1, 1, 30).reshape(6, 5)
        ctx[classes] = np.eye(3)[[0, 1, 2, 0, 1, 2]]
        step()
        step()
        return {p.label[-1]: ctx[p] for p in loss.params}


@pytest.mark.parametrize(
    "chosen",
    [
        {"max_visits": 0},
        {"max_visits": 100},
        {"inline_complex_computations": True},
        {"inline_simple_computations": False, "inline_scalar_constexprs": False},
        {"enable_device_only": False},
    ],
    ids=str,
)
def test_settings_of_inlining_change_no_bit_of_a_training_run(
    target: str, chosen: dict[str, Any]
) -> None:
    expected, found = trained(target), trained(target, **chosen)
    assert {name: cells.tobytes() for name, cells in found.items()} == {
        name: cells.tobytes() for name, cells in expected.items()
    }


def test_a_training_step_stores_the_nodes_that_backpropagation_reads(target: str) -> None:
    with oc.Session():
        _, _, loss = classifier()
        update = oc.train.sgd_update(loss, learning_rate=0.1)
        step = oc.Context(target).compile(oc.train.grad_update(loss) + update)
        nodes = oc.explain(step).nodes
    local = [node.name for node in nodes if node.mode is MemoryMode.LOCAL]
    kept = [node.name for node in nodes if node.mode is MemoryMode.ON_DEVICE]
    assert local == snapshot(
        [
            "add_grad",
            "relu",
            "relu_grad",
            "add",
            "add_grad",
            "exp",
            "einsum",
            "einsum_grad",
            "log",
            "sub_grad",
        ]
    )
    assert kept == snapshot(
        [
            "images",
            "classes",
            "w1",
            "w1_grad",
            "b1",
            "b1_grad",
            "w2",
            "w2_grad",
            "b2",
            "b2_grad",
            "einsum",
        ]
    )


def test_doubling_and_adding_is_one_loop(target: str) -> None:
    with oc.Session():
        a = oc.placeholder("a", output=[4])
        b = a * 2
        c = b + 1
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(c))
        assert len(routine.plan.steps) == 1
        assert oc.explain(routine).nbytes == 2 * 4 * 4
        assert routine.loop_ir.endswith("""\
    for o in range(4):
        add[o] = fma(a[o], 2.0, 1.0)""")
        ctx[a] = [1, 2, 3, 4]
        routine()
        assert ctx[c].tolist() == [3, 5, 7, 9]


def test_code_without_results_runs_and_does_nothing(target: str) -> None:
    with oc.Session():
        a = oc.placeholder("a", output=[4])
        ctx = oc.Context(target)
        routine = ctx.compile(oc.train.forward(a * 2 + 1), keep=())
        routine()
        assert len(routine.plan.steps) == 0


def test_code_compiled_later_computes_a_virtual_tensor_again(target: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[3])
        doubled = x * 2.0
        tripled = doubled * 1.5
        copied = oc.declare("copied")

        @oc.cd
        def copy(to: oc.Tensor, source: oc.Tensor) -> None:
            to[:] = source

        ctx = oc.Context(target)
        first = ctx.compile(oc.train.forward(tripled), name="first")
        second = ctx.compile(copy(copied, doubled), name="second")
        ctx[x] = [1, 2, 3]
        first()
        second()
        assert ctx[copied].tolist() == [2, 4, 6]
        ctx[x] = [0, 0, 0]
        with pytest.raises(oc.LinkError, match="run first again first"):
            second()


def test_a_padded_tensor_is_inlined_with_its_margins(target: str) -> None:
    for visits in (0, 1, 100):
        with oc.Session(), settings.overrides(max_visits=visits):
            x = oc.placeholder("x", output=[6])
            shifted = x * 2.0 + 1.0
            kernel = oc.tensor([1.0, 10.0, 100.0])
            y = oc.einsum("i=+k; k => i", shifted, kernel)
            ctx = oc.Context(target)
            run = ctx.compile(oc.train.forward(y))
            ctx[x] = np.arange(6)
            run()
            expected = np.correlate(np.arange(6) * 2.0 + 1.0, [1.0, 10.0, 100.0], "same")
            assert ctx[y].tolist() == expected.tolist()


@given(chain_programs(max_steps=5))
@hypothesis_settings(
    max_examples=example_count(6),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_inlined_chains_give_the_same_bits_on_every_device(target: str, example: Example) -> None:
    subject = subject_named(target)
    kept = writes(example.program.body)[-1]
    found = inline(example.program, {kept: KEPT}, Policy(max_visits=100))
    if kept not in found.program.params:
        return
    before = subject.run(example.program, example.arrays)[kept]
    after = subject.run(found.program, example.arrays)[kept]
    assert before.tobytes() == after.tobytes()


def test_random_numbers_that_a_product_reads_often_are_stored() -> None:
    with oc.Session(seed=1):
        noise = oc.require_shape(oc.normal(), "32|4")
        y = oc.param("w", output=[64]) @ noise
        routine = oc.Context("cpu_c").compile(oc.train.forward(y))
        assert routine.placements[noise.node].mode is MemoryMode.LOCAL


def test_random_numbers_that_are_read_twice_are_computed_twice() -> None:
    with oc.Session(seed=1):
        x = oc.placeholder("x", batch=[32], output=[8])
        draws = oc.uniform()
        loss = oc.einsum("...|... => 0", oc.where(draws < 0.5, oc.param("s", output=[8]) * x, 0.0))
        ctx = oc.Context("cpu_c")
        routine = ctx.compile(oc.train.grad_update(loss))
        assert routine.placements[draws.node].mode is MemoryMode.VIRTUAL
