"""Language models: decoders over the identities of tokens."""

from __future__ import annotations

from typing import Any

from ocannl_core.nn.attention import KeyValueCache
from ocannl_core.nn.dropout import dropout as drop
from ocannl_core.nn.embeddings import Positions, embedding, learned_positions
from ocannl_core.nn.layers import dense
from ocannl_core.nn.transformers import transformer_decoder
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import op
from ocannl_core.tensor.operations.activations import gelu
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.random import normal


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
    dropout: float = 0.0,
    **layer: Any,
) -> Tensor:
    """Return the scores of the next token at every position; by default in the layout of GPT-2.

        model = oc.nn.gpt(vocabulary=50257, layers=12, heads=12, width=64, length=1024)

    Shapes: `...,s|` to `...,s|vocabulary`. With rotary positions, RMS norm, gates and groups of
    queries, it is Llama:

        oc.nn.gpt(..., rotary_base=10000.0, norm=oc.nn.rms_norm, gated=True, activation=oc.silu,
                  kv_heads=8, bias=False, tied=False)

    Args:
        ids: The tokens, integers.
        cache: Keys and values of earlier positions, to which recorded code adds the rows of the
            ids.
        position: The position of the first id when decoding from a cache. Without one, the ids are
            the beginning of the sequence.
        vocabulary: The number of tokens.
        layers: The number of layers, which compile like one.
        heads: The number of heads.
        width: The length of queries, keys and values, for each head. A token has `heads * width`
            features.
        length: The greatest number of positions, for a table of trained positions; not with rotary
            positions.
        hidden: The hidden width of the perceptrons; by default four times the features.
        tied: True to compute the scores with the table of the embedding.
        dropout: The rate of dropout.
        layer: The configuration of `transformer_layer`, and of `transformer_decoder`.
    """
    features = heads * width
    table = embedding(
        entries=vocabulary, width=features, init=lambda: 0.02 * normal(), label="tokens"
    )
    x = table(ids)
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
    return einsum("...|n; |v, n => ...|v", x, table.parameters["table"][0])


def _tanh_gelu(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")
