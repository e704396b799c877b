"""Generators continue sequences as the whole model would, and attention weights are those used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.nn.generation import likeliest

SIZES: dict[str, Any] = {"vocabulary": 11, "layers": 2, "heads": 4, "width": 2}
KINDS: dict[str, dict[str, Any]] = {
    "gpt": {"length": 24},
    "llama": {"rotary_base": 10000.0, "norm": nn.rms_norm, "gated": True, "kv_heads": 2},
}


def random_parameters(ctx: oc.Context, tensor: oc.Tensor) -> None:
    ctx.init_params(tensor)
    rng = np.random.default_rng(1)
    for p in tensor.params:
        ctx[p] = rng.normal(scale=0.5, size=ctx[p].shape)


@pytest.mark.parametrize(
    ("backend", "kind", "start"),
    [("cpu_c", "gpt", 3), ("cpu_c", "gpt", 13), ("cpu_c", "llama", 13), ("interp", "gpt", 10)],
)
def test_the_likeliest_tokens_are_those_of_the_whole_sequence(
    backend: str, kind: str, start: int
) -> None:
    length = start + 4
    with oc.Session():
        model = nn.gpt(**SIZES, **KINDS[kind])
        ids = oc.placeholder("ids", batch=[2, length], dtype="int32")
        scores, ctx = model(ids), oc.Context(backend)
        run = ctx.compile(oc.train.forward(scores))
        random_parameters(ctx, scores)
        generate = nn.Generator(ctx, model, length=length, batch=2)
        prompt = np.random.default_rng(0).integers(0, 11, (2, start))
        found = generate(prompt, temperature=0)
        assert found.shape == (2, length)
        assert (found[:, :start] == prompt).all()
        ctx[ids] = found
        run()
        expected = ctx[scores].argmax(axis=-1)
        assert (found[:, start:] == expected[:, start - 1 : -1]).all()


def test_a_seed_selects_the_text_and_an_earlier_prompt_leaves_nothing_behind() -> None:
    with oc.Session(), oc.settings.overrides(backend="cpu_c"):
        model, ctx = nn.gpt(**SIZES, length=16), oc.Context()
        generate = nn.Generator(ctx, model)
        random_parameters(ctx, model(oc.tensor([[1]], batch_axes=2, dtype="int32")))
        first = generate([1, 2], 14)
        other = generate(np.arange(11), 5)
        assert first.tolist() == generate([1, 2]).tolist()
        assert first.tolist() != generate([1, 2], seed=1).tolist()
        assert other[:11].tolist() == list(range(11))
        assert other.tolist() == generate(np.arange(11), 5).tolist()
        assert generate([4], 0).tolist() == [4]


@pytest.mark.parametrize("seed", [0, 1 << 24, 3_000_000_000, 1 << 40])
def test_every_position_has_random_numbers_of_its_own(seed: int) -> None:
    with oc.Session(), oc.settings.overrides(backend="cpu_c"):
        model, ctx = nn.gpt(**SIZES, length=24), oc.Context()
        generate = nn.Generator(ctx, model)
        random_parameters(ctx, model(oc.tensor([[1]], batch_axes=2, dtype="int32")))
        drawn = generate([1], temperature=1e4, seed=seed)
        assert len(set(drawn.tolist())) > 5


def likeliest_as_numpy(
    scores: np.ndarray, top_k: int, top_p: float, temperature: float
) -> np.ndarray:
    """Return the scores, those that are not kept at minus infinity: one token after the other
    leaves, the least likely one first, while the others still reach `top_p`."""
    kept = np.full_like(scores, -np.inf)
    for place in np.ndindex(scores.shape[:-1]):
        row = scores[place].astype(np.float64)
        order = np.argsort(-row, kind="stable")[: top_k or None]
        chances = np.exp((row[order] - row.max()) / temperature)
        chances /= chances.sum()
        while len(order) > 1 and chances[: len(order) - 1].sum() >= top_p:
            order = order[:-1]
        kept[place][order] = scores[place][order]
    return kept


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 100])
def test_the_likeliest_tokens_are_those_of_numpy(backend: str, top_k: int) -> None:
    with oc.Session():
        scores = oc.placeholder("scores", batch=[3, 1], output=[40])
        top_p, temperature = (oc.placeholder(name, output=[]) for name in ("p", "t"))
        kept, ctx = likeliest(scores, top_k, top_p, temperature), oc.Context(backend)
        run = ctx.compile(oc.train.forward(kept))
        cells = 3 * np.random.default_rng(top_k).normal(size=(3, 1, 40)).astype(np.float32)
        cells[0, 0, 7] = -np.inf
        for share in (1e-60, 0.3, 0.8, 0.99):
            for heat in (0.5, 1.0, 4.0):
                ctx[scores], ctx[top_p], ctx[temperature] = cells, share, heat
                run()
                expected = likeliest_as_numpy(cells, top_k, share, heat)
                np.testing.assert_array_equal(ctx[kept], expected)


def test_sets_of_likeliest_tokens_keep_equal_scores_and_all_at_probability_one() -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"):
        cells = [2.0, 1.0, 1.0, -200.0]
        top_p, heat = (oc.placeholder(name, output=[]) for name in ("p", "t"))
        scores = oc.tensor([cells], batch_axes=1)
        all_kept, two = likeliest(scores, 0, top_p, heat), likeliest(scores, 2, top_p, heat)
        ctx = oc.Context()
        run = ctx.compile(oc.train.forward(all_kept) + oc.train.forward(two))
        ctx[top_p], ctx[heat] = 1.0, 1.0
        run()
        assert ctx[all_kept].tolist() == [cells]
        assert ctx[two].tolist() == [[2.0, 1.0, 1.0, -np.inf]]
        ctx[heat] = 0.0
        ctx[top_p] = 0.9
        run()
        assert ctx[all_kept].tolist() == [[2.0, -np.inf, -np.inf, -np.inf]]


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_tokens_are_drawn_from_the_likeliest_ones(backend: str) -> None:
    with oc.Session():
        model, ctx = nn.gpt(**SIZES, length=16), oc.Context(backend)
        generate = nn.Generator(ctx, model)
        ids = oc.placeholder("ids", batch=[1, 16], dtype="int32")
        scores = model(ids)
        run = ctx.compile(oc.train.forward(scores))
        random_parameters(ctx, scores)
        free = generate([1, 2], temperature=2.0).tolist()
        greedy = generate([1, 2], temperature=0).tolist()
        assert generate([1, 2], temperature=2.0, top_k=11, top_p=1.0).tolist() == free
        assert generate([1, 2], temperature=2.0, top_k=1).tolist() == greedy
        assert generate([1, 2], temperature=2.0, top_p=1e-6).tolist() == greedy
        assert generate([1, 2], temperature=0, top_k=3, top_p=0.5).tolist() == greedy
        assert free != greedy
        for seed in range(3):
            for top_k, top_p in ((3, None), (None, 0.5), (4, 0.7)):
                found = generate([1, 2], temperature=2.0, top_k=top_k, top_p=top_p, seed=seed)
                ctx[ids] = found[None]
                run()
                kept = likeliest_as_numpy(ctx[scores][:, 1:-1], top_k or 0, top_p or 1.0, 2.0)
                assert np.isfinite(kept[0, np.arange(14), found[2:]]).all()
        assert generate([1, 2], temperature=2.0).tolist() == free


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_k", each) for each in (0, -1, 2.0, True, "3")]
    + [("top_p", each) for each in (0, -0.1, 1.5, float("nan"), True, "1")]
    + [("temperature", each) for each in (-1.0, float("nan"), True, "1")],
)
def test_sets_of_no_token_and_negative_temperatures_are_refused(name: str, value: Any) -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"):
        generate = nn.Generator(oc.Context(), nn.gpt(**SIZES, length=4))
        with pytest.raises(oc.UsageError, match=f"{name}={value!r}"):
            generate([1], **{name: value})


@pytest.mark.parametrize(
    ("prompt", "count"), [([], 1), ([0.5], 1), ([1, 2], 7), ([[1], [2]], 1), ([1], -1)]
)
def test_a_prompt_that_is_none_is_refused(prompt: Any, count: int) -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"):
        generate = nn.Generator(oc.Context(), nn.gpt(**SIZES, length=8))
        with pytest.raises(oc.UsageError, match="continues 1 sequence of at least one token"):
            generate(prompt, count)


def test_prompts_of_several_lengths_are_refused() -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"):
        generate = nn.Generator(oc.Context(), nn.gpt(**SIZES, length=8), batch=2)
        with pytest.raises(oc.UsageError, match="prompts of lengths 2, 1"):
            generate([[1, 2], [3]], 1)


def test_a_model_of_another_configuration_needs_a_cache() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="has a cache for two tokens or more"):
        nn.Generator(oc.Context("interp"), nn.dense(output=[3]))


def test_the_weights_of_all_heads_and_layers_are_collected() -> None:
    with oc.Session(), oc.settings.overrides(backend="cpu_c"):
        source, target = (
            oc.placeholder(name, batch=[2, size], output=[8]) for name, size in (("s", 5), ("t", 4))
        )
        with nn.attention_weights() as weights:
            result = nn.transformer(source, target, layers=3, heads=2, hidden=8)
        within = "transformer.transformer_decoder.transformer_layer"
        assert list(weights) == [
            "transformer.transformer_encoder.transformer_layer.attention",
            f"{within}.attention",
            f"{within}.cross_attention",
        ]
        ctx = oc.Context()
        ctx.init_params(result)
        for tensor in (source, target):
            ctx[tensor] = np.random.default_rng(0).normal(size=(2, tensor.shape.dims[1], 8))
        for each in weights.values():
            ctx.compile(oc.train.forward(each))()
        shapes = [ctx[each].shape for each in weights.values()]
        assert shapes == [(3, 2, 2, 5, 5), (3, 2, 2, 4, 4), (3, 2, 2, 4, 5)]
        for each in weights.values():
            np.testing.assert_allclose(ctx[each].sum(axis=-1), 1.0, rtol=1e-5)
        masked = np.triu(np.ones((4, 4)), 1)
        assert (ctx[weights[f"{within}.attention"]] * masked == 0).all()


def test_collected_weights_reproduce_the_attended_values() -> None:
    with oc.Session(dtype="float64"), oc.settings.overrides(backend="interp"):
        rng = np.random.default_rng(0)
        cells = [rng.normal(size=(3, 2, 4)) for _ in range(3)]
        q, k, v = (oc.tensor(each, batch_axes=1, dtype="float64") for each in cells)
        with nn.attention_weights() as weights:
            attended = nn.attention(q, k, v)
        (found,) = weights.values()
        ctx = oc.Context()
        ctx.compile(oc.train.forward(attended) + oc.train.forward(found))()
        np.testing.assert_allclose(
            np.einsum("hst,the->she", ctx[found], cells[2]), ctx[attended], rtol=1e-12
        )


def test_collecting_does_not_change_the_result() -> None:
    found = []
    for is_collected in (False, True):
        with oc.Session(seed=1), oc.settings.overrides(backend="interp"):
            ids = oc.tensor([[1, 2, 3]], batch_axes=2, dtype="int32")
            model = nn.gpt(**SIZES, length=4)
            if is_collected:
                with nn.attention_weights():
                    scores = model(ids)
            else:
                scores = model(ids)
            ctx = oc.Context()
            run = ctx.compile(oc.train.forward(scores))
            random_parameters(ctx, scores)
            run()
            found.append(np.array(ctx[scores]))
    assert (found[0] == found[1]).all()


def test_a_stack_without_attention_keeps_its_values() -> None:
    with oc.Session(), oc.settings.overrides(backend="interp"), nn.attention_weights() as weights:
        x = oc.tensor([[1.0, 2.0]], batch_axes=1)
        y = nn.repeat_layers(lambda x: oc.tanh(nn.dense(x, output=[2])), x, layers=2)
        assert weights == {}
        ctx = oc.Context()
        ctx.init_params(y)
        ctx.compile(oc.train.forward(y))()
        assert ctx[y].shape == (1, 2)


def test_weights_in_a_loop_over_time_are_refused() -> None:
    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, None]:
        return nn.attention(x, x, x) + h, None

    with oc.Session(), nn.attention_weights():
        xs = oc.tensor(np.ones((2, 3, 2, 4)), batch_axes=2)
        with pytest.raises(oc.UsageError, match="return the weights as a value"):
            oc.scan(step, 0.0, xs)
