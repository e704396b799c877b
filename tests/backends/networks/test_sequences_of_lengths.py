"""Recurrent networks over sequences of several lengths, and norms with a configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

STEPS, BATCH, WIDTH = 5, 3, 6
CELLS = np.random.default_rng(0).normal(size=(STEPS, BATCH, 4)).astype(np.float32)
LENGTHS = np.array([5, 2, 3], np.int32)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_a_sequence_beside_longer_ones_is_computed_as_by_itself(
    target: str, name: str, layers: int
) -> None:
    block = getattr(oc.nn, name)(width=WIDTH, layers=layers, bidirectional=True)
    x = oc.placeholder("x", batch=[STEPS, BATCH], output=[4])
    n = oc.placeholder("n", batch=[BATCH], dtype="int32")
    together, states = block(x, lengths=n)
    own = [oc.placeholder(f"x{k}", batch=[LENGTHS[k], 1], output=[4]) for k in range(BATCH)]
    alone = [block(each) for each in own]
    found = [together, *flat(states)]
    every = [found, *([y, *flat(s)] for y, s in alone)]
    code = [oc.train.forward(each) for row in every for each in row]
    ctx = oc.Context(target)
    ctx.init_params(together)
    run = ctx.compile(sum(code[1:], code[0]), keep=[each for row in every for each in row])
    ctx[x], ctx[n] = CELLS, LENGTHS
    for k, each in enumerate(own):
        ctx[each] = CELLS[: LENGTHS[k], k : k + 1]
    run()
    for k, row in enumerate(every[1:]):
        outputs = ctx[together][:, k]
        np.testing.assert_allclose(outputs[: LENGTHS[k]], ctx[row[0]][:, 0], atol=1e-6)
        assert not outputs[LENGTHS[k] :].any()
        for state, other in zip(found[1:], row[1:], strict=True):
            np.testing.assert_allclose(ctx[state][k], ctx[other][0], atol=1e-6)


def flat(states: Any) -> list[oc.Tensor]:
    return [each for s in states for each in (s if isinstance(s, tuple) else (s,))]


def test_no_gradient_flows_from_cells_beyond_a_length() -> None:
    x = oc.tensor(CELLS, batch_axes=2, requires_grad=True)
    n = oc.tensor(LENGTHS, batch_axes=1, dtype="int32")
    loss = oc.sum(oc.nn.gru(x, lengths=n, width=WIDTH)[0])
    ctx = oc.Context("interp")
    ctx.init_params(loss)
    assert x.grad is not None
    ctx.compile(oc.train.grad_update(loss), keep=[x.grad])()
    is_read = np.abs(ctx[x.grad]).sum(axis=2) > 0
    np.testing.assert_array_equal(is_read, np.arange(STEPS)[:, None] < LENGTHS)


def test_a_configured_norm_has_parameters_of_its_own_at_each_place() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2, 3], output=[8])
        options: Any = {"heads": 2, "width": 4, "hidden": 16, "layers": 1, "final_norm": True}
        y = oc.nn.transformer_encoder(x, norm=oc.nn.rms_norm(epsilon=0.5), **options)
        plain = oc.nn.transformer_encoder(x, norm=oc.nn.rms_norm, **options)
        norms = [name for name, _ in y.params.items() if name.endswith("gamma")]
        assert [name.split(".")[-2] for name in norms] == ["norm1", "norm2", "norm"]
        ctx = oc.Context("interp")
        ctx.init_params(y + plain)
        pairs = zip(y.params.values(), plain.params.values(), strict=True)
        ctx.assign({b: ctx[a] for a, b in pairs})
        ctx[x] = np.random.default_rng(0).normal(size=(2, 3, 8))
        ctx.compile(oc.train.forward(y) + oc.train.forward(plain), keep=[y, plain])()
        squares = [(ctx[each] ** 2).mean(axis=-1) for each in (y, plain)]
        np.testing.assert_allclose(squares[1], 1.0, rtol=1e-4)
        assert (squares[0] < 0.9).all()


def test_parameters_are_a_mapping_by_name_and_a_set() -> None:
    with oc.Session():
        x = oc.nn.dense(oc.placeholder("x", output=[2]), output=[3])
        found = x.params
        assert list(found) == list(found.values())
        assert dict(found) == {name: found[name] for name, _ in found.items()}
        assert found.get("dense.bias") is found["dense.bias"]
        assert found.get("nothing") is None
        assert found.get("nothing", 1) == 1


def test_lengths_along_an_output_axis_are_refused() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[4, 3], output=[2])
        with pytest.raises(oc.ShapeError, match="lengths of sequences have batch axes only"):
            oc.nn.gru(x, None, oc.tensor(np.array([1, 2, 3], np.int32)), width=3)
