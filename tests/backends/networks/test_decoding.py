"""Language models: decoding from a cache beside whole sequences, and evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

IDS = np.random.default_rng(0).integers(0, 11, (2, 6))
SIZES: dict[str, Any] = {"vocabulary": 11, "layers": 2, "heads": 4, "width": 2}
LLAMA: dict[str, Any] = {
    "rotary_base": 10000.0,
    "norm": nn.rms_norm,
    "gated": True,
    "activation": oc.silu,
    "kv_heads": 2,
    "bias": False,
    "tied": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"length": 8},
    "llama": LLAMA,
    "interleaved": {**LLAMA, "interleaved": True},
    "window": {**LLAMA, "window": 3, "bias": "qkv"},
}


def initialize(ctx: oc.Context, tensor: oc.Tensor) -> None:
    """Give all parameters random values."""
    ctx.init_params(tensor)
    rng = np.random.default_rng(1)
    for p in tensor.params:
        ctx[p] = rng.normal(scale=0.5, size=ctx[p].shape)


@pytest.mark.parametrize(
    ("backend", "kind", "start"),
    [
        ("cpu_c", "gpt", 0),
        ("cpu_c", "gpt", 3),
        ("cpu_c", "llama", 3),
        ("interp", "interleaved", 3),
        ("cpu_c", "window", 2),
    ],
)
def test_decoding_from_a_cache_gives_the_scores_of_the_whole_sequence(
    backend: str, kind: str, start: int
) -> None:
    with oc.Session(dtype="float64"), oc.evaluation():
        model = nn.gpt(**SIZES, **MODELS[kind])
        whole = model(oc.tensor(IDS, batch_axes=2, dtype="int32"))
        i = oc.static_index("i", range=8)
        cache = nn.key_value_cache(
            layers=2, length=8, heads=LLAMA["kv_heads"] if kind != "gpt" else 4, width=2, batch=2
        )
        prompt = oc.placeholder("prompt", batch=[2, start], dtype="int32") if start else None
        token = oc.placeholder("token", batch=[2, 1], dtype="int32")
        scores = oc.declare("scores")

        @oc.cd
        def read_prompt() -> None:
            first = oc.declare("first")
            first[:] = model(prompt, cache)

        @oc.cd
        def decode() -> None:
            scores[:] = model(token, cache, i)

        ctx = oc.Context(backend)
        run = ctx.compile(oc.train.forward(whole))
        initialize(ctx, whole)
        run()
        step = ctx.compile(decode(), bindings=[i])
        if prompt is not None:
            read = ctx.compile(read_prompt())
            ctx[prompt] = IDS[:, :start]
            read()
        for place in range(start, 6):
            ctx[token] = IDS[:, place : place + 1]
            step(i=place)
            np.testing.assert_allclose(
                ctx[scores][:, 0], ctx[whole][:, place], rtol=1e-9, atol=1e-11
            )


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("cpu_c", "gpt"), ("cpu_c", "llama"), ("interp", "interleaved"), ("cpu_c", "window")],
)
def test_pieces_of_several_tokens_at_their_positions_give_the_scores_of_the_whole_sequence(
    backend: str, kind: str
) -> None:
    with oc.Session(dtype="float64"), oc.evaluation():
        model = nn.gpt(**SIZES, **MODELS[kind])
        whole = model(oc.tensor(IDS, batch_axes=2, dtype="int32"))
        i = oc.static_index("i", range=5)
        cache = nn.key_value_cache(
            layers=2, length=8, heads=LLAMA["kv_heads"] if kind != "gpt" else 4, width=2, batch=2
        )
        piece = oc.placeholder("piece", batch=[2, 2], dtype="int32")
        scores = oc.declare("scores")

        @oc.cd
        def read_piece() -> None:
            scores[:] = model(piece, cache, i)

        ctx = oc.Context(backend)
        run = ctx.compile(oc.train.forward(whole))
        initialize(ctx, whole)
        run()
        step = ctx.compile(read_piece(), bindings=[i])
        for place in (0, 2, 4):
            ctx[piece] = IDS[:, place : place + 2]
            step(i=place)
            np.testing.assert_allclose(
                ctx[scores], ctx[whole][:, place : place + 2], rtol=1e-9, atol=1e-11
            )


@pytest.mark.parametrize("backend", ["cpu_c", "interp"])
def test_a_decoder_reads_the_keys_and_values_of_its_memory_from_the_cache(backend: str) -> None:
    """The decoding step has no product with the memory."""
    rng = np.random.default_rng(2)
    cells, known = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 7, 4))
    with oc.Session(dtype="float64"), oc.evaluation():
        decoder = nn.transformer_decoder(layers=2, heads=2, hidden=6, final_norm=True)
        memory = oc.placeholder("memory", batch=[2, 7], output=[4])
        whole = decoder(oc.tensor(cells, batch_axes=2), memory)
        i = oc.static_index("i", range=8)
        cache = nn.key_value_cache(layers=2, length=8, heads=2, width=2, batch=2, memory=7)
        first, token = (
            oc.placeholder(n, batch=[2, k], output=[4]) for n, k in (("p", 3), ("t", 1))
        )
        result, ahead = oc.declare("result"), oc.declare("ahead")

        @oc.cd
        def read() -> None:
            ahead[:] = decoder(first, memory, cache=cache)

        @oc.cd
        def decode() -> None:
            result[:] = decoder(token, cache=cache, position=i)

        ctx = oc.Context(backend)
        run = ctx.compile(oc.train.forward(whole))
        initialize(ctx, whole)
        ctx[memory] = known
        run()
        begin, step = ctx.compile(read()), ctx.compile(decode(), bindings=[i])
        assert "memory_keys" in str(step.loop_ir)
        assert memory.node not in step.nodes
        ctx[first] = cells[:, :3]
        begin()
        np.testing.assert_allclose(ctx[ahead], ctx[whole][:, :3], rtol=1e-9, atol=1e-11)
        for place in (3, 4):
            ctx[token] = cells[:, place : place + 1]
            step(i=place)
            np.testing.assert_allclose(
                ctx[result][:, 0], ctx[whole][:, place], rtol=1e-9, atol=1e-11
            )


def test_the_cache_is_written_in_place() -> None:
    """The routine has no copy of the cache."""
    with oc.Session(), oc.evaluation():
        model = nn.gpt(**SIZES, length=4096)
        i = oc.static_index("i", range=4096)
        cache = nn.key_value_cache(layers=2, length=4096, heads=4, width=2)
        token = oc.placeholder("token", batch=[1], dtype="int32")
        scores = oc.declare("scores")

        @oc.cd
        def decode() -> None:
            scores[:] = model(token, cache, i)

        ctx = oc.Context("cpu_c")
        plan = ctx.compile(decode(), bindings=[i]).memory_plan
        cached = 2 * 4096 * 4 * 2 * 4
        longest = max(
            int(line.split()[4]) - int(line.split()[2]) for line in str(plan).splitlines()[1:]
        )
        assert longest < cached // 2


def test_a_model_applied_to_a_cache_outside_of_recorded_code_is_an_error() -> None:
    with oc.Session():
        cache = nn.key_value_cache(layers=2, length=8, heads=4, width=2, batch=2)
        model = nn.gpt(**SIZES, length=8)
        with pytest.raises(oc.UsageError, match="written in place") as error:
            model(oc.tensor(IDS, batch_axes=2, dtype="int32"), cache)
        assert "@oc.cd" in str(error.value)


def test_a_cache_is_written_at_a_position_of_the_call() -> None:
    with oc.Session():
        cache = nn.key_value_cache(layers=2, length=8, heads=4, width=2, batch=2)
        model = nn.gpt(**SIZES, length=8)
        token = oc.placeholder("token", batch=[2, 1], dtype="int32")
        place = oc.placeholder("place", dtype="int32")

        @oc.cd
        def decode() -> None:
            oc.declare("scores")[:] = model(token, cache, place)

        with pytest.raises(oc.UsageError, match="static_index"):
            decode()


def test_a_model_learns_a_sequence_with_dropout_and_evaluates_without() -> None:
    with oc.Session(seed=1):
        model = nn.gpt(**SIZES, length=8, dropout=0.1)
        ids = oc.tensor(IDS[:, :-1], batch_axes=2, dtype="int32")
        following = oc.tensor(IDS[:, 1:], batch_axes=2, dtype="int32")
        loss = nn.cross_entropy(model(ids), following)
        with oc.evaluation():
            scores = model(ids)
            clean = nn.cross_entropy(scores, following)
        assert scores.params == loss.params
        opt = oc.train.SGD(learning_rate=0.1, momentum=0.9)
        ctx = oc.Context("cpu_c")
        step = ctx.compile(oc.train.grad_update(loss) + opt.update(loss))
        ctx.init_params(loss)
        evaluate = ctx.compile(oc.train.forward(clean))
        evaluate()
        assert abs(ctx.item(clean) - np.log(11)) < 1.0
        for _ in range(60):
            step()
        evaluate()
        first = ctx.item(clean)
        assert first < 1.0
        evaluate()
        assert ctx.item(clean) == first


def test_many_layers_compile_to_the_code_of_one() -> None:
    lengths = []
    for layers in (2, 24):
        with oc.Session():
            model = nn.gpt(**{**SIZES, "layers": layers}, length=8)
            loss = nn.cross_entropy(
                model(oc.tensor(IDS, batch_axes=2, dtype="int32")),
                oc.tensor(IDS, batch_axes=2, dtype="int32"),
            )
            step = oc.Context("interp").compile(oc.train.grad_update(loss))
            lengths.append(len(str(step.loop_ir).splitlines()))
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_window_is_a_mask_of_the_positions_before(target: str, window: int) -> None:
    x = oc.placeholder("x", batch=[2, 7], output=[8], requires_grad=True)
    block = nn.multi_head_attention(heads=2, output=[8], causal=True, window=window, bias="qkv")
    cells = np.tril(np.ones((7, 7), np.uint8)) - np.tril(np.ones((7, 7), np.uint8), -window)
    found = block(x)
    w = {name.rpartition(".")[2]: p for name, p in block.params.items()}
    assert sorted(w) == ["b_k", "b_q", "b_v", "w_k", "w_o", "w_q", "w_v"]
    q, k, v = (w[f"w_{each}"] @ x + w[f"b_{each}"] for each in "qkv")
    mask = oc.tensor(cells, batch_axes=1, input_axes=1)
    expected = w["w_o"] @ nn.attention(q * 0.5, k, v, mask)
    difference = oc.sum((found - expected) ** 2.0)
    gradients = [oc.gradients(oc.sum(each * each), [x])[0] for each in (found, expected)]
    ctx = oc.Context(target)
    step = ctx.compile(sum(map(oc.train.forward, gradients), oc.train.forward(difference)))
    initialize(ctx, difference)
    ctx[x] = np.random.default_rng(2).normal(size=(2, 7, 8))
    step()
    assert ctx[difference] < 1e-10
    np.testing.assert_allclose(ctx[gradients[0]], ctx[gradients[1]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"window": 3}, "window=3, causal=False"),
        ({"window": 0, "causal": True}, "window=0"),
        ({"bias": "all"}, "bias='all'"),
    ],
)
def test_windows_and_biases_that_mean_nothing_are_refused(
    stated: dict[str, Any], message: str
) -> None:
    x = oc.placeholder("x", batch=[2, 7], output=[8])
    with pytest.raises(oc.UsageError, match=message):
        nn.multi_head_attention(x, heads=2, **stated)


def test_heads_of_keys_divide_those_of_queries() -> None:
    with oc.Session():
        x = oc.tensor(np.zeros((4, 6)), batch_axes=1)
        with pytest.raises(oc.UsageError, match="divide those of queries"):
            nn.multi_head_attention(x, heads=4, kv_heads=3, width=2)
