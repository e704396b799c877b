"""Transformer layers and stacks of them: encoders, decoders, both, and language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ocannl_core.nn.attention import (
    KeysAndValues,
    KeyValueCache,
    multi_head_attention,
    width_of_heads,
)
from ocannl_core.nn.embeddings import Positions, embedding, learned_positions
from ocannl_core.nn.layers import dense, repeat_layers
from ocannl_core.nn.layers import dropout as drop
from ocannl_core.nn.normalization import layer_norm
from ocannl_core.nn.sizes import with_shape_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.operations.activations import gelu
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.random import normal
from ocannl_core.tensor.primitives.pointwise_operations import relu


@op
def transformer_layer(
    x: Tensor,
    mask: Tensor | None = None,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
    cache: KeysAndValues | None = None,
    position: Positions | None = None,
    memory_cache: KeysAndValues | None = None,
    *,
    heads: int,
    hidden: int,
    width: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    window: int | None = None,
    norm_first: bool = False,
    norm: Callable[..., Any] = layer_norm,
    activation: Callable[[Tensor], Tensor] = relu,
    gated: bool = False,
    bias: bool | Literal["qkv"] = True,
    rotary_base: float | None = None,
    interleaved: bool = False,
    dropout: float = 0.0,
) -> Any:
    """Return a sequence after attention to itself, attention to a memory if there is one, and a
    perceptron; each is added to its input.

    Shapes: `...,s|n` to `...,s|n`. Blocks inside: `attention`, `cross_attention`, `linear1` of
    shape `n->hidden`, `linear2`, and the norms `norm1`, `norm2` and, with a memory, `norm3`, in the
    order of their use.

    Args:
        memory: Another sequence, such as the output of an encoder.
        memory_mask: The mask of the attention to the memory.
        cache: Keys and values of other positions, as for `multi_head_attention`. The result is then
            a pair, with the keys and values of `x`.
        memory_cache: Keys and values of the memory, in place of the memory. Beside a memory, they
            are not read, and the result ends with the keys and values of the memory.
        hidden: The hidden width of the perceptron.
        norm_first: True to normalize the inputs of the three parts, False their sums.
        norm: The block that normalizes, as `rms_norm` or, configured, `rms_norm(epsilon=1e-5)`.
        activation: The activation of the perceptron.
        gated: True to multiply the hidden layer by a dense layer without activation, `linear3`.
        bias: True for biases in attention and perceptron, "qkv" for those of queries, keys and
            values alone.
        dropout: The rate of dropout of attention weights, of the hidden layer, and of each part.

    The other arguments are as for `multi_head_attention`; `mask` is for the attention to itself.
    """
    attend: dict[str, Any] = {"heads": heads, "bias": bias, "dropout": dropout}
    attend["width"] = width_of_heads(x, heads, width, "transformer_layer")
    has_bias = bias is True
    rows: list[KeysAndValues] = []
    memory_rows: list[KeysAndValues] = []

    def to_itself(x: Tensor) -> Tensor:
        rotation = {"rotary_base": rotary_base, "interleaved": interleaved}
        own = {**attend, **rotation, "kv_heads": kv_heads, "causal": causal, "window": window}
        block = multi_head_attention(**own, label="attention")
        result = block(x, mask, None, cache, position)
        if cache is None:
            return result
        rows.append(result[1])
        return result[0]

    def to_memory(x: Tensor) -> Tensor:
        block = multi_head_attention(**attend, label="cross_attention")
        if memory is None or memory_cache is None:
            read = memory_cache if memory is None else memory
            return block(x, memory_mask, read)
        result, found = block(x, memory_mask, memory, memory_cache)
        memory_rows.append(found)
        return result

    def perceptron(x: Tensor) -> Tensor:
        inner = activation(dense(x, output=[hidden], bias=has_bias, label="linear1"))
        if gated:
            inner = inner * dense(x, output=[hidden], bias=has_bias, label="linear3")
        return dense(drop(inner, rate=dropout), bias=has_bias, label="linear2")

    has_memory = memory is not None or memory_cache is not None
    parts = [to_itself, to_memory, perceptron] if has_memory else [to_itself, perceptron]
    for number, part in enumerate(parts, 1):
        normalize = norm(label=f"norm{number}")
        if norm_first:
            x = with_shape_of(x, x + drop(part(normalize(x)), rate=dropout))
        else:
            x = normalize(with_shape_of(x, x + drop(part(x), rate=dropout)))
    kept = rows + memory_rows
    return (x, *kept) if kept else x


@op
def transformer_encoder(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    layers: int,
    final_norm: bool = False,
    keep: str = "reductions",
    **layer: Any,
) -> Tensor:
    """Return a sequence after equal layers of attention to itself.

    Args:
        x: The sequence, `...,s|n`.
        mask: The mask of the attention, as for `multi_head_attention`.
        layers: The number of layers, which compile like one.
        final_norm: True to normalize the result, as is usual with `norm_first=True`.
        keep: The values of each layer that gradients read from memory, as in `oc.scan`.
        layer: The configuration of `transformer_layer`.
    """
    layer = _with_width(x, layer)
    x = repeat_layers(lambda x: transformer_layer(x, mask, **layer), x, layers=layers, keep=keep)
    return _normalized(x, final_norm, layer)


@op
def transformer_decoder(
    x: Tensor,
    memory: Tensor | None = None,
    mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    cache: KeyValueCache | None = None,
    position: Positions | None = None,
    *,
    layers: int,
    final_norm: bool = False,
    keep: str = "reductions",
    **layer: Any,
) -> Tensor:
    """Return a sequence after equal layers of causal attention to itself, and of attention to a
    memory if there is one.

    Args:
        x: The sequence, `...,s|n`.
        memory: The output of an encoder.
        mask: The mask of the attention to itself, in addition to its order.
        memory_mask: The mask of the attention to the memory.
        cache: Keys and values of earlier positions, to which recorded code adds the keys and values
            of `x`. If it has room for a memory, keys and values of the memory are computed where
            one is given, and read where not.
        position: The position of the first cell of `x` when decoding from a cache. Without one, `x`
            is the beginning of the sequence.

    The other arguments are as for `transformer_encoder`.
    """
    layer = {"causal": True, **_with_width(x, layer)}

    def step(x: Tensor, cached: Any = (None, None)) -> Any:
        own, of_memory = cached
        block = transformer_layer(**layer)
        found = block(x, mask, memory, memory_mask, own, position, of_memory)
        return (found[0], found[1:]) if isinstance(found, tuple) else found

    if cache is None:
        x = repeat_layers(step, x, layers=layers, keep=keep)
        return _normalized(x, final_norm, layer)
    each_layer = ((cache.keys, cache.values), cache.memory)
    x, rows = repeat_layers(step, x, each_layer, layers=layers, keep=keep)
    cache.write(rows[0], position)
    if len(rows) > 1:
        cache.write_memory(rows[1])
    return _normalized(x, final_norm, layer)


@op
def transformer(
    source: Tensor,
    target: Tensor,
    source_mask: Tensor | None = None,
    target_mask: Tensor | None = None,
    memory_mask: Tensor | None = None,
    *,
    layers: int,
    decoder_layers: int | None = None,
    final_norm: bool = True,
    keep: str = "reductions",
    **layer: Any,
) -> Tensor:
    """Return the output of a decoder for a target sequence, which attends to the output of an
    encoder for a source sequence.

    Shapes: source `...,s|n` and target `...,t|n` to `...,t|n`. A position of the target attends to
    itself and to earlier positions.

    Args:
        source: The embedded source.
        target: The embedded target.
        source_mask: The mask of the encoder.
        target_mask: The mask of the decoder's attention to itself.
        memory_mask: The mask of the decoder's attention to the source.
        layers: The number of layers of the encoder, and of the decoder.
        decoder_layers: The number of layers of the decoder, if it is another one.
        final_norm: True to normalize both results.

    The other arguments are as for `transformer_encoder`.
    """
    shared = {"final_norm": final_norm, "keep": keep, **layer}
    memory = transformer_encoder(source, source_mask, layers=layers, **shared)
    decode = transformer_decoder(layers=decoder_layers or layers, **shared)
    return decode(target, memory, target_mask, memory_mask)


def _with_width(x: Tensor, layer: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a layer with a width, which a step of a loop does not infer."""
    if layer.get("width") is not None or "heads" not in layer:
        return layer
    return {**layer, "width": width_of_heads(x, layer["heads"], None, "transformer_layer")}


def _normalized(x: Tensor, is_normalized: bool, layer: dict[str, Any]) -> Tensor:
    return layer.get("norm", layer_norm)(x, label="norm") if is_normalized else x


@op
def gpt(
    ids: Tensor,
    cache: KeyValueCache | None = None,
    position: Positions | None = None,
    *,
    vocabulary: int,
    layers: int,
    heads: int,
    width: int,
    length: int | None = None,
    hidden: int | None = None,
    tied: bool = True,
    embedding_scale: float = 1.0,
    dropout: float = 0.0,
    **layer: Any,
) -> Tensor:
    """Return the scores of the next token at every position; by default in the layout of GPT-2.

        model = oc.nn.gpt(vocabulary=50257, layers=12, heads=12, width=64, length=1024)

    Shapes: `...,s|` to `...,s|vocabulary`. With rotary positions, RMS norm, gates and groups of
    queries, it is Llama:

        oc.nn.gpt(..., rotary_base=10000.0, norm=oc.nn.rms_norm, gated=True, activation=oc.silu,
                  kv_heads=8, bias=False, tied=False)

    `window=4096` makes it Mistral, and `bias="qkv"` Qwen 2.

    Args:
        ids: The tokens, integers.
        cache: Keys and values of earlier positions, to which recorded code adds its rows.
        position: The position of the first id when decoding from a cache. Without one, the ids are
            the beginning of the sequence.
        vocabulary: The number of tokens.
        layers: The number of layers, which compile like one.
        heads: The number of heads.
        width: The length of each head's vectors. A token has `heads * width` features.
        length: The greatest number of trained positions; not with rotary positions.
        hidden: The hidden width of the perceptrons; by default four times the features.
        tied: True to compute the scores with the table of the embedding.
        embedding_scale: A factor of the embedded tokens: for Gemma, the root of their features. Its
            checkpoints have the weights of norms less 1.
        dropout: The rate of dropout.
        layer: The configuration of `transformer_layer`, and of `transformer_decoder`.
    """
    features = heads * width
    table = embedding(
        entries=vocabulary, width=features, init=lambda: 0.02 * normal(), label="tokens"
    )
    x = table(ids)
    if embedding_scale != 1:
        x = x * embedding_scale
    if layer.get("rotary_base") is None:
        x = learned_positions(x, position, length=length or 1024, label="positions")
    x = transformer_decoder(
        layers=layers,
        heads=heads,
        width=width,
        hidden=hidden or 4 * features,
        final_norm=True,
        dropout=dropout,
        **{"norm_first": True, "activation": _tanh_gelu, **layer},
        label="decoder",
    )(drop(x, rate=dropout), None, None, None, cache, position)
    if not tied:
        return dense(x, output=[vocabulary], bias=False, label="scores")
    return einsum("...|n; |v, n => ...|v", x, table.own_parameters["table"][0])


def _tanh_gelu(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")
