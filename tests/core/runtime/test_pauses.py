"""Actions between the steps of a routine: results are complete, and the bits stay the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings


def gradients_of_two_layers() -> tuple[oc.Tensor, oc.Tensor, list[oc.Tensor]]:
    x = oc.placeholder("x", batch=[3], output=[5])
    w = [oc.param(f"w{k}", output=[4]) for k in range(3)]
    hidden = oc.tanh(w[1] @ oc.tanh(w[0] @ x))
    loss = oc.einsum("...|... => 0", w[2] @ hidden)
    return x, loss, w


@pytest.mark.parametrize("backend", ["cpu_c", "interp"])
def test_each_result_is_complete_when_it_is_reported(backend: str) -> None:
    found = []
    for pauses in (False, True):
        with oc.Session(seed=1):
            x, loss, w = gradients_of_two_layers()
            ctx = oc.Context(backend)
            ctx.init_params(loss)
            ctx[x] = np.random.default_rng(0).normal(size=(3, 5))
            step = ctx.compile(oc.train.grad_update(loss))
            step()
            early: dict[int, bytes] = {}
            order: list[Sequence[int]] = []

            def action(
                complete: Sequence[int], order: list[Sequence[int]] = order, **_: object
            ) -> None:
                order.append(complete)
                for k in complete:
                    early[k] = ctx[w[k].grad].tobytes()  # noqa: B023  called in this iteration

            for each in w:
                ctx[each.grad] = 0.0
            if pauses:
                step.pause([{each.grad.node} for each in w], action)
            step()
            final = [ctx[each.grad].tobytes() for each in w]
            found.append(final)
            if pauses:
                assert [early[k] for k in range(3)] == final
                at = {k: n for n, complete in enumerate(order) for k in complete}
                assert at[2] <= at[1] < at[0]
                assert order[-1] or len(order) > 1
    assert found[0] == found[1]


def test_static_indices_and_errors_pass_through_pauses() -> None:
    with oc.Session():
        i = oc.static_index("i", range=3)
        table = oc.param("table", output=[3], init=1.0)
        total = oc.param("total", output=[], init=0.0)

        @oc.cd
        def add() -> None:
            total[:] = total + table[i]
            table[i] = table[i] + 1.0

        ctx = oc.Context("cpu_c")
        ctx.init_params(add())
        step = ctx.compile(add(), bindings=[i])
        calls: list[Sequence[int]] = []
        step.pause([{total.node}, {table.node}], calls.append)
        for index in (2, 2, 0):
            step(i=index)
        assert ctx.item(total) == 1 + 2 + 1
        assert sorted(k for complete in calls for k in complete) == [0, 0, 0, 1, 1, 1]
        with pytest.raises(oc.UsageError, match="stays in its range"):
            step(i=3)


def test_observed_and_queued_routines_run_without_pauses() -> None:
    with oc.Session(), settings.overrides(asynchronous=True):
        w = oc.param("w", output=[2], init=3.0)
        loss = oc.einsum("...|... => 0", w * w)
        ctx = oc.Context("cpu_c")
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss))
        calls: list[Sequence[int]] = []
        step.pause([{w.grad.node}], calls.append)  # type: ignore[union-attr]
        step()
        assert ctx[w.grad].tolist() == [6.0, 6.0]  # type: ignore[index]
        assert not calls
