"""Recurrent networks, normalization and transformers beside the modules of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

from .conftest import Compare

torch = pytest.importorskip("torch")
F = torch.nn.functional

rng = np.random.default_rng(3)
SEQUENCE = rng.normal(size=(4, 2, 3))
TOKENS = rng.normal(size=(2, 4, 6))
MEMORY = rng.normal(size=(2, 3, 6))
IMAGES = rng.normal(size=(2, 4, 6, 4))
FIRST_IMAGES = np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2))


def channels_last(x: Any) -> Any:
    return x.permute(0, 2, 3, 1)


def run_module(module: Any, arguments: tuple[Any, ...], values: dict[str, Any]) -> Any:
    """Apply a module in training with its parameters replaced, with gradients to them."""
    return torch.func.functional_call(module.double().train(), values, arguments)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("name", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_a_recurrent_network_of_two_layers(
    compare: Compare, name: str, gates: int, bidirectional: bool
) -> None:
    xs = oc.tensor(SEQUENCE, batch_axes=2)
    network = getattr(nn, name)(width=2, layers=2, bidirectional=bidirectional)
    outputs, states = network(xs)
    assert len(states) == (4 if bidirectional else 2)

    def reference(*values: Any) -> Any:
        module = getattr(torch.nn, name.upper())(3, 2, 2, bidirectional=bidirectional)
        suffixes = ["", "_reverse"] if bidirectional else [""]
        names = [
            f"{kind}_l{layer}{suffix}"
            for layer in range(2)
            for suffix in suffixes
            for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        ]
        flat = [
            v.reshape(2 * gates, *v.shape[v.ndim - ("weight" in n) :])
            for n, v in zip(names, values, strict=True)
        ]
        return run_module(module, (torch.tensor(SEQUENCE),), dict(zip(names, flat, strict=True)))[0]

    compare(outputs, reference)


def test_the_last_state_of_a_reversed_network_is_that_of_the_first_step(compare: Compare) -> None:
    xs = oc.tensor(SEQUENCE, batch_axes=2)
    _, (_, backward) = nn.gru(xs, width=2, bidirectional=True)

    def reference(*values: Any) -> Any:
        w_ih, b_ih, w_hh, b_hh = (v.reshape(6, *v.shape[2:]) for v in values)
        cell = torch.nn.GRUCell(3, 2)
        h = torch.zeros(2, 2, dtype=torch.float64)
        named = {"weight_ih": w_ih, "weight_hh": w_hh, "bias_ih": b_ih, "bias_hh": b_hh}
        for step in reversed(range(4)):
            h = run_module(cell, (torch.tensor(SEQUENCE[step]), h), named)
        return h

    compare(backward, reference)


def test_states_continue_a_sequence(compare: Compare) -> None:
    network = nn.lstm(width=2)
    _, states = network(oc.tensor(SEQUENCE[:2], batch_axes=2))
    outputs, _ = network(oc.tensor(SEQUENCE[2:], batch_axes=2), states)

    def reference(*values: Any) -> Any:
        names = ("weight_ih_l0", "bias_ih_l0", "weight_hh_l0", "bias_hh_l0")
        flat = dict(zip(names, (v.reshape(8, *v.shape[2:]) for v in values), strict=True))
        return run_module(torch.nn.LSTM(3, 2), (torch.tensor(SEQUENCE),), flat)[0][2:]

    compare(outputs, reference)


def test_rms_norm(compare: Compare) -> None:
    output = nn.rms_norm(oc.tensor(TOKENS, batch_axes=2))

    def reference(gamma: Any) -> Any:
        return F.rms_norm(torch.tensor(TOKENS), (6,), gamma, 1e-6)

    assert compare(output, reference) == ["6"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(compare: Compare, groups: int) -> None:
    output = nn.group_norm(oc.tensor(IMAGES, batch_axes=1), groups=groups)

    def reference(gamma: Any, beta: Any) -> Any:
        return channels_last(F.group_norm(torch.tensor(FIRST_IMAGES), groups, gamma, beta))

    assert compare(output, reference) == ["4", "4"]


def test_instance_norm(compare: Compare) -> None:
    output = nn.instance_norm(oc.tensor(IMAGES, batch_axes=1))

    def reference(gamma: Any, beta: Any) -> Any:
        return channels_last(F.instance_norm(torch.tensor(FIRST_IMAGES), weight=gamma, bias=beta))

    assert compare(output, reference) == ["4", "4"]


def attention_weights(q: Any, bq: Any, k: Any, bk: Any, v: Any, bv: Any, o: Any, bo: Any) -> Any:
    """The parameters of multi-head attention in PyTorch's layout."""
    weight = torch.cat([w.flatten(0, 1) for w in (q, k, v)])
    bias = torch.cat([b.flatten() for b in (bq, bk, bv)])
    return {
        "in_proj_weight": weight,
        "in_proj_bias": bias,
        "out_proj.weight": o.flatten(1),
        "out_proj.bias": bo,
    }


def test_attention_with_biases_and_a_mask(compare: Compare) -> None:
    x, memory = oc.tensor(TOKENS, batch_axes=2), oc.tensor(MEMORY, batch_axes=2)
    allowed = rng.integers(0, 2, (4, 3))
    allowed[:, 0] = 1
    mask = oc.tensor(allowed, batch_axes=1, input_axes=1)
    output = x + nn.multi_head_attention(x, mask, memory, heads=2, bias=True)

    def reference(*values: Any) -> Any:
        own, other = torch.tensor(TOKENS), torch.tensor(MEMORY)
        module = torch.nn.MultiheadAttention(6, 2, batch_first=True)
        hidden = torch.tensor(allowed == 0)
        weights = attention_weights(*values)
        return (
            own
            + torch.func.functional_call(
                module.double(), weights, (own, other, other), {"attn_mask": hidden}
            )[0]
        )

    compare(output, reference)


@pytest.mark.parametrize("causal", [False, True])
def test_groups_of_queries_share_keys_and_values(compare: Compare, causal: bool) -> None:
    x = oc.tensor(TOKENS, batch_axes=2)
    output = x + nn.multi_head_attention(x, heads=4, kv_heads=2, width=3, causal=causal)

    def reference(q: Any, k: Any, v: Any, o: Any) -> Any:
        own = torch.tensor(TOKENS)
        heads = [torch.einsum("hdn,bsn->bhsd", w.reshape(-1, 3, 6), own) for w in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True)
        return own + torch.einsum("nhd,bhsd->bsn", o.flatten(1, 2), mixed)

    shapes = compare(output, reference)
    assert shapes == ["6->2,2,3", "6->2,3", "6->2,3", "2,2,3->6"]


def layer_weights(values: list[Any], *, has_memory: bool) -> dict[str, Any]:
    """The parameters of a transformer layer by PyTorch's names, from ours in the order of names."""
    given = iter(values)
    take = lambda n: [next(given) for _ in range(n)]  # noqa: E731
    found = {f"self_attn.{k}": v for k, v in attention_weights(*take(8)).items()}
    found["norm1.weight"], found["norm1.bias"] = take(2)
    if has_memory:
        found |= {f"multihead_attn.{k}": v for k, v in attention_weights(*take(8)).items()}
        found["norm2.weight"], found["norm2.bias"] = take(2)
    for name in ("linear1", "linear2"):
        found[f"{name}.weight"], found[f"{name}.bias"] = take(2)
    last = "norm3" if has_memory else "norm2"
    found[f"{last}.weight"], found[f"{last}.bias"] = take(2)
    return found


def ordered(network: oc.Tensor, values: tuple[Any, ...], prefix: str = "") -> list[Any]:
    """Sort the values of a layer's parameters, given oldest first, by the use in a post-norm layer."""
    names = network.params.keys()
    pairs = [(n, v) for n, v in zip(names, values, strict=True) if n.startswith(prefix)]
    order = ["attention", "norm1", "cross_attention", "norm2", "linear1", "linear2", "norm3"]
    if not any("cross_attention" in name for name, _ in pairs):
        order = ["attention", "norm1", "linear1", "linear2", "norm2"]
    return [v for part in order for n, v in pairs if f".{part}." in n]


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer(compare: Compare, norm_first: bool) -> None:
    x = oc.tensor(TOKENS, batch_axes=2)
    output = nn.transformer_layer(x, heads=2, hidden=5, norm_first=norm_first, dropout=0.0)

    def reference(*values: Any) -> Any:
        module = torch.nn.TransformerEncoderLayer(
            6, 2, 5, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        named = layer_weights(ordered(output, values), has_memory=False)
        return run_module(module, (torch.tensor(TOKENS),), named)

    compare(output, reference)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer(compare: Compare, norm_first: bool) -> None:
    x, memory = oc.tensor(TOKENS, batch_axes=2), oc.tensor(MEMORY, batch_axes=2)
    layer = nn.transformer_layer(heads=2, hidden=5, causal=True, norm_first=norm_first)
    output = layer(x, None, memory)

    def reference(*values: Any) -> Any:
        module = torch.nn.TransformerDecoderLayer(
            6, 2, 5, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        hidden = torch.ones(4, 4).triu(1).bool()
        named = layer_weights(ordered(output, values), has_memory=True)
        arguments = (torch.tensor(TOKENS), torch.tensor(MEMORY), hidden)
        return run_module(module, arguments, named)

    compare(output, reference)


def test_an_encoder_and_a_decoder_of_two_layers(compare: Compare) -> None:
    source, target = oc.tensor(MEMORY, batch_axes=2), oc.tensor(TOKENS, batch_axes=2)
    output = nn.transformer(source, target, layers=2, heads=2, hidden=3)

    def reference(*values: Any) -> Any:
        module = torch.nn.Transformer(6, 2, 2, 2, 3, dropout=0.0, batch_first=True)
        parts = {}
        names = list(output.params.keys())
        for half in ("encoder", "decoder"):
            own = f"transformer.transformer_{half}."
            stacked = ordered(output, values, own + "transformer_layer.")
            for k in range(2):
                each = layer_weights_of(half, [v[k] for v in stacked])
                parts |= {f"{half}.layers.{k}.{n}": v for n, v in each.items()}
            for ours, theirs in (("gamma", "weight"), ("beta", "bias")):
                parts[f"{half}.norm.{theirs}"] = values[names.index(f"{own}norm.{ours}")]
        hidden = torch.ones(4, 4).triu(1).bool()
        return torch.func.functional_call(
            module.double(),
            parts,
            (torch.tensor(MEMORY), torch.tensor(TOKENS)),
            {"tgt_mask": hidden},
        )

    compare(output, reference)


def layer_weights_of(half: str, values: list[Any]) -> dict[str, Any]:
    return layer_weights(values, has_memory=half == "decoder")


def residual(x: Any, values: dict[str, Any], name: str, stride: int) -> Any:
    """A basic block of a residual network, with images in PyTorch's layout."""

    def normal(x: Any, number: str, stride: int) -> Any:
        weight = values[f"{name}.conv{number}.weight"].permute(0, 3, 1, 2)
        gamma, beta = (values[f"{name}.norm{number}.{n}"] for n in ("gamma", "beta"))
        y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2)
        return F.batch_norm(y, None, None, gamma, beta, training=True)

    y = normal(F.relu(normal(x, "1", stride)), "2", 1)
    return F.relu(y + (normal(x, "_shortcut", stride) if stride > 1 else x))


def test_a_residual_network(compare: Compare) -> None:
    images = oc.tensor(IMAGES[:, :, :4], batch_axes=1)
    output = nn.resnet(images, classes=3, blocks=(1, 1), channels=(2, 4), stem="small")

    def reference(*values: Any) -> Any:
        own = dict(zip(output.params.keys(), values, strict=True))
        named = {name.removeprefix("resnet."): value for name, value in own.items()}
        x = F.conv2d(
            torch.tensor(FIRST_IMAGES[..., :4]),
            named["conv1.weight"].permute(0, 3, 1, 2),
            padding=1,
        )
        x = F.batch_norm(x, None, None, named["norm1.gamma"], named["norm1.beta"], training=True)
        x = residual(F.relu(x), named, "group1_1", 1)
        x = residual(x, named, "group2_1", 2)
        return F.linear(x.mean((2, 3)), named["dense.weight"], named["dense.bias"])

    compare(output, reference)


def test_a_vgg_block(compare: Compare) -> None:
    images = oc.tensor(IMAGES[:, :, :4], batch_axes=1)
    output = nn.vgg_block(images, channels=3)

    def reference(w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
        x = torch.tensor(FIRST_IMAGES[..., :4])
        for w, b in ((w1, b1), (w2, b2)):
            x = F.relu(F.conv2d(x, w.permute(0, 3, 1, 2), b, padding=1))
        return F.max_pool2d(x, 2).permute(0, 2, 3, 1)

    compare(output, reference)


def test_a_network_of_separable_convolutions(compare: Compare) -> None:
    """The second of three layers doubles the channels, and halves height and width."""
    images = oc.tensor(IMAGES[:, :, :4], batch_axes=1)
    output = nn.mobilenet(images, classes=3, first=2, channels=(3, 6, 6))

    def reference(*values: Any) -> Any:
        named = {
            name.removeprefix("mobilenet."): value
            for name, value in zip(output.params.keys(), values, strict=True)
        }

        def normal(x: Any, name: str, number: int, stride: int, groups: int) -> Any:
            weight = named[f"{name}conv{number}.weight"]
            weight = weight if groups == 1 else weight.reshape(groups, 3, 3, 1)
            weight = weight.permute(0, 3, 1, 2)
            y = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2, groups=groups)
            gamma, beta = (named[f"{name}norm{number}.{part}"] for part in ("gamma", "beta"))
            return F.relu(F.batch_norm(y, None, None, gamma, beta, training=True))

        x = normal(torch.tensor(FIRST_IMAGES[..., :4]), "", 1, 2, 1)
        for layer, stride in ((1, 1), (2, 2), (3, 1)):
            x = normal(x, f"layer{layer}.", 1, stride, x.shape[1])
            x = normal(x, f"layer{layer}.", 2, 1, 1)
        return F.linear(x.mean((2, 3)), named["dense.weight"], named["dense.bias"])

    compare(output, reference)


def test_lenet(compare: Compare) -> None:
    images = rng.normal(size=(2, 12, 12, 1))
    output = nn.lenet(oc.tensor(images, batch_axes=1), classes=3, channels=(2, 3), hidden=(5, 4))

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, *dense: Any) -> Any:
        x = torch.tensor(images).permute(0, 3, 1, 2)
        for w, b, padding in ((w1, b1, 2), (w2, b2, 0)):
            x = F.max_pool2d(F.relu(F.conv2d(x, w.permute(0, 3, 1, 2), b, padding=padding)), 2)
        x = x.permute(0, 2, 3, 1).flatten(1)
        for number in range(3):
            weight, bias = dense[2 * number : 2 * number + 2]
            x = F.linear(F.relu(x) if number else x, weight.flatten(1), bias)
        return x

    compare(output, reference)
