"""Blocks for PyTorch's recurrent networks, attention and transformers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

import ocannl_core as oc
from ocannl_core import nn
from tests.judges.trial import Missing, Trial, adapter, same


def gates(count: int) -> Any:
    """Return the conversion of stacked gates to an axis of gates."""
    return lambda cells: (
        cells if count == 1 else cells.reshape(count, cells.shape[0] // count, *cells.shape[1:])
    )


@adapter("RNNCell", "GRUCell", "LSTMCell")
def cell(trial: Trial, x: Any, state: Any = None) -> Any:
    module = trial.module
    name = type(module).__name__
    width = {"width": module.hidden_size}
    if name == "RNNCell":
        width["activation"] = getattr(oc, module.nonlinearity)
    block = {"RNNCell": nn.rnn_cell, "GRUCell": nn.gru_cell, "LSTMCell": nn.lstm_cell}[name]
    zero = oc.tensor(np.zeros((*x.shape[:-1], module.hidden_size)), batch_axes=x.ndim - 1)
    given = [
        trial.leaf(s) for s in (state if isinstance(state, tuple) else (state,)) if s is not None
    ]
    pair = name == "LSTMCell"
    first = (tuple(given) if pair else given[0]) if given else ((zero, zero) if pair else zero)
    _, output = block(first, trial.leaf(x), **width)
    change = gates({"RNNCell": 1, "GRUCell": 3, "LSTMCell": 4}[name])
    trial.tie_by_order(
        output, **dict.fromkeys(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), change)
    )
    return output, same


@adapter("RNN", "GRU", "LSTM")
def recurrent(trial: Trial, xs: Any, state: Any = None) -> Any:
    module = trial.module
    name = type(module).__name__
    if getattr(module, "proj_size", 0):
        raise Missing("proj_size: a product with the output of each step, by oc.scan of a cell")
    swap = (lambda c: np.swapaxes(c, 0, 1)) if module.batch_first and xs.ndim == 3 else same
    ours = trial.leaf(xs, convert=swap)
    count = module.num_layers * (2 if module.bidirectional else 1)
    states = None
    if state is not None:
        both = [trial.leaf(s) for s in (state if isinstance(state, tuple) else (state,))]
        each = [tuple(s[k] for s in both) for k in range(count)]
        states = each if name == "LSTM" else [one for (one,) in each]
    options: dict[str, Any] = (
        {"activation": getattr(oc, module.nonlinearity)} if name == "RNN" else {}
    )
    block = {"RNN": nn.rnn, "GRU": nn.gru, "LSTM": nn.lstm}[name]
    outputs, _ = block(
        ours,
        states,
        width=module.hidden_size,
        layers=module.num_layers,
        bidirectional=module.bidirectional,
        **options,
    )
    own = dict(module.named_parameters())
    change = gates({"RNN": 1, "GRU": 3, "LSTM": 4}[name])
    for path, tensor in outputs.params.items():
        *_, layer, leaf = path.split(".")
        theirs = own.get(f"{leaf}_{layer}")
        if theirs is not None:
            trial.tie(tensor, theirs, change)
    return outputs, swap


def allowed(mask: Any, padding: Any, heads: int, queries: int) -> oc.Tensor | None:
    """Return the mask of allowed pairs for PyTorch's masks of hidden ones."""
    if mask is None and padding is None:
        return None

    def is_seen(given: Any) -> Any:
        cells = given.numpy()
        if given.dtype == torch.bool:
            return ~cells
        if not np.isin(cells, (0.0, -np.inf)).all():
            raise Missing("a mask that is added to scores")
        return cells == 0.0

    seen: Any = np.ones((), bool)
    if mask is not None:
        seen = is_seen(mask)
        if seen.ndim == 3:
            seen = seen.reshape(-1, heads, *seen.shape[1:])
            seen = np.moveaxis(seen, 1, 2)  # batch, queries, heads, keys
    if padding is not None:
        kept = is_seen(padding)
        seen = np.broadcast_to(seen, (queries, kept.shape[-1])) if seen.ndim < 3 else seen
        seen = seen & (kept[..., None, :] if seen.ndim < 4 else kept[..., None, None, :])
    if not seen.any(-1).all():
        raise Missing("a query without keys, whose result is NaN there")
    if mask is not None and mask.ndim == 3:
        if padding is None or padding.ndim == 1:
            seen = seen if seen.shape[0] > 1 else seen[0]
        return oc.tensor(seen.astype(np.uint8), batch_axes=seen.ndim - 2, input_axes=1)
    return oc.tensor(seen.astype(np.uint8), batch_axes=seen.ndim - 1, input_axes=1)


def tie_attention(trial: Trial, params: Any, modules: list[Any], prefix: str) -> None:
    """Tie the products of an attention to PyTorch's stacked ones, those of all layers."""
    heads, width = modules[0].num_heads, modules[0].embed_dim
    if modules[0].in_proj_weight is None:
        raise Missing("kdim and vdim: keys and values of other sizes than queries")

    def tie(name: str, theirs: list[Any], change: Any) -> None:
        if theirs[0] is not None:
            trial.tie(params[prefix + name], theirs if len(theirs) > 1 else theirs[0], change)

    for number, each in enumerate("qkv"):
        part = slice(number * width, (number + 1) * width)

        def change(cells: Any, part: slice = part) -> Any:
            cells = cells[part]
            return cells.reshape(heads, -1, *cells.shape[1:])

        tie(f"w_{each}", [module.in_proj_weight for module in modules], change)
        tie(f"b_{each}", [module.in_proj_bias for module in modules], change)
    split = lambda cells: cells.reshape(cells.shape[0], heads, -1)  # noqa: E731
    tie("w_o", [module.out_proj.weight for module in modules], split)
    tie("b_o", [module.out_proj.bias for module in modules], same)


def batch_first(module: Any, x: Any) -> Any:
    is_first = getattr(module, "batch_first", True)
    return same if is_first or x.ndim < 3 else (lambda cells: np.swapaxes(cells, 0, 1))


@adapter("MultiheadAttention")
def attention(
    trial: Trial,
    q: Any,
    k: Any,
    v: Any,
    key_padding_mask: Any = None,
    attn_mask: Any = None,
    **_: Any,
) -> Any:
    module = trial.module
    if module.bias_k is not None or module.add_zero_attn:
        raise Missing("add_bias_kv, add_zero_attn: a key and a value more; oc.concat adds them")
    change = batch_first(module, q)
    x, memory, values = (trial.leaf(each, convert=change) for each in (q, k, v))
    mask = allowed(attn_mask, key_padding_mask, module.num_heads, change(q.detach()).shape[-2])
    result = nn.multi_head_attention(
        x,
        mask,
        memory,
        None,
        None,
        values,
        heads=module.num_heads,
        output=[module.embed_dim],
        bias=module.in_proj_bias is not None,
        label="attention",
    )
    tie_attention(trial, result.params, [module], "attention.")
    return result, change


def layer_options(layer: Any) -> dict[str, Any]:
    activation = layer.activation
    return {
        "heads": layer.self_attn.num_heads,
        "hidden": layer.linear1.out_features,
        "norm_first": layer.norm_first,
        "bias": layer.linear1.bias is not None,
        "activation": oc.gelu if "gelu" in str(activation) else oc.relu,
        "norm": functools.partial(nn.layer_norm, epsilon=layer.norm1.eps),
    }


def tie_layers(trial: Trial, params: Any, layers: list[Any], prefix: str) -> None:
    """Tie the parameters of equal layers, which have a leading axis if there are several."""
    tie_attention(trial, params, [layer.self_attn for layer in layers], f"{prefix}attention.")
    if hasattr(layers[0], "multihead_attn"):
        memories = [layer.multihead_attn for layer in layers]
        tie_attention(trial, params, memories, f"{prefix}cross_attention.")
    for name, _ in layers[0].named_children():
        if name.startswith(("linear", "norm")):
            tie_parts(trial, params, [getattr(layer, name) for layer in layers], f"{prefix}{name}.")


def tie_parts(trial: Trial, params: Any, modules: list[Any], prefix: str) -> None:
    names = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
    for ours, theirs in names.items():
        values = [getattr(module, theirs) for module in modules]
        if f"{prefix}{ours}" in params and values[0] is not None:
            trial.tie(params[f"{prefix}{ours}"], values if len(values) > 1 else values[0])


@adapter("TransformerEncoderLayer")
def encoder_layer(
    trial: Trial,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    layer = trial.module
    change = batch_first(layer.self_attn, src)
    mask = allowed(
        src_mask, src_key_padding_mask, layer.self_attn.num_heads, change(src.detach()).shape[-2]
    )
    result = nn.transformer_layer(
        trial.leaf(src, convert=change), mask, **layer_options(layer), label="layer"
    )
    tie_layers(trial, result.params, [layer], "layer.")
    return result, change


@adapter("TransformerDecoderLayer")
def decoder_layer(
    trial: Trial,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    **_: Any,
) -> Any:
    layer = trial.module
    heads, change = layer.self_attn.num_heads, batch_first(layer.self_attn, tgt)
    queries = change(tgt.detach()).shape[-2]
    masks = [
        allowed(tgt_mask, tgt_key_padding_mask, heads, queries),
        allowed(memory_mask, memory_key_padding_mask, heads, queries),
    ]
    result = nn.transformer_layer(
        trial.leaf(tgt, convert=change),
        masks[0],
        trial.leaf(memory, convert=change),
        masks[1],
        **layer_options(layer),
        label="layer",
    )
    tie_layers(trial, result.params, [layer], "layer.")
    return result, change


@adapter("TransformerEncoder")
def encoder(
    trial: Trial,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: Any = None,
) -> Any:
    layers = list(trial.module.layers)
    change = batch_first(layers[0].self_attn, src)
    heads, queries = layers[0].self_attn.num_heads, change(src.detach()).shape[-2]
    result = nn.transformer_encoder(
        trial.leaf(src, convert=change),
        allowed(mask, src_key_padding_mask, heads, queries),
        layers=len(layers),
        final_norm=trial.module.norm is not None,
        **layer_options(layers[0]),
        label="stack",
    )
    tie_layers(trial, result.params, layers, "stack.transformer_layer.")
    return result, change


@adapter("Transformer")
def transformer(
    trial: Trial,
    src: Any,
    tgt: Any,
    src_mask: Any = None,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    src_key_padding_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    **_: Any,
) -> Any:
    module = trial.module
    first, second = list(module.encoder.layers), list(module.decoder.layers)
    change = batch_first(module, src)
    heads = first[0].self_attn.num_heads
    sizes = [change(each.detach()).shape[-2] for each in (src, tgt)]
    result = nn.transformer(
        trial.leaf(src, convert=change),
        trial.leaf(tgt, convert=change),
        allowed(src_mask, src_key_padding_mask, heads, sizes[0]),
        allowed(tgt_mask, tgt_key_padding_mask, heads, sizes[1]),
        allowed(memory_mask, memory_key_padding_mask, heads, sizes[1]),
        layers=len(first),
        decoder_layers=len(second),
        causal=False,
        **layer_options(first[0]),
        label="model",
    )
    params = result.params
    tie_layers(trial, params, first, "model.transformer_encoder.transformer_layer.")
    tie_layers(trial, params, second, "model.transformer_decoder.transformer_layer.")
    tie_parts(trial, params, [module.encoder.norm], "model.transformer_encoder.norm.")
    tie_parts(trial, params, [module.decoder.norm], "model.transformer_decoder.norm.")
    return result, change
