"""A decoder-only transformer of any number of layers, which benchmarks of the compiler build."""

from __future__ import annotations

import ocannl_core as oc
from ocannl_core import nn

LENGTH, WIDTH, HEADS, BATCH, CLASSES = 32, 64, 4, 2, 50


@oc.op
def layer(x: oc.Tensor, mask: oc.Tensor) -> oc.Tensor:
    """Return one layer's output: attention, then a perceptron, each normalized first and added."""
    width = WIDTH // HEADS
    attended = x + nn.multi_head_attention(nn.layer_norm(x), mask, heads=HEADS, width=width)
    return attended + nn.mlp(nn.layer_norm(attended), hidden=[4 * WIDTH])


@oc.op
def transformer(x: oc.Tensor, mask: oc.Tensor, *, layers: int) -> oc.Tensor:
    """Return scores of classes for every position."""
    for _ in range(layers):
        x = layer(x, mask)
    return nn.dense(nn.layer_norm(x), output=[CLASSES])


def loss(layers: int) -> oc.Tensor:
    """Return the mean cross-entropy of a new transformer.

    Only data and hidden widths have sizes.
    """
    tokens = oc.placeholder("tokens", batch=[BATCH, LENGTH], output=[WIDTH])
    targets = oc.placeholder("targets", batch=[BATCH, LENGTH], output=[CLASSES])
    scores = transformer(tokens, nn.causal_mask(LENGTH), layers=layers)
    largest = oc.stop_gradient(oc.einmax("...|... => ...|0", scores))
    shifted = scores - largest
    log_total = oc.log(oc.einsum("...|... => ...|0", oc.exp(shifted)))
    return oc.mean(targets * (log_total - shifted), logic="...|... => 0")
