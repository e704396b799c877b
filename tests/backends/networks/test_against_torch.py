"""The same networks in PyTorch: values, and gradients by its own differentiation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn

from .conftest import Compare

torch = pytest.importorskip("torch")

POINTS = np.random.default_rng(0).normal(size=(4, 3))
IMAGES = np.random.default_rng(1).normal(size=(2, 8, 8, 3))
TOKENS = np.random.default_rng(2).normal(size=(2, 5, 6))


def test_a_perceptron_of_three_layers(compare: Compare) -> None:
    output = nn.mlp(oc.tensor(POINTS, batch_axes=1), hidden=[5, 4], output=[2])

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        x = torch.tensor(POINTS)
        for w, b in ((w1, b1), (w2, b2)):
            x = torch.nn.functional.relu(torch.nn.functional.linear(x, w, b))
        return torch.nn.functional.linear(x, w3, b3)

    assert compare(output, reference) == ["3->5", "5", "5->4", "4", "4->2", "2"]


def test_a_perceptron_written_out_with_a_softmax(compare: Compare) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        first = oc.tanh(oc.param("w1") @ x + oc.param("b1", output=[6]))
        second = oc.primitives.sat01(oc.param("w2") @ first + oc.param("b2", output=[5]))
        return oc.softmax(
            oc.param("w3") @ second + oc.param("b3", output=[3]), logic="...|... => ...|0"
        )

    output = network(oc.tensor(POINTS, batch_axes=1))

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        first = torch.tanh(torch.tensor(POINTS) @ w1.T + b1)
        second = (first @ w2.T + b2).clamp(0.0, 1.0)
        return torch.softmax(second @ w3.T + b3, dim=-1)

    assert compare(output, reference) == ["3->6", "6", "6->5", "5", "5->3", "3"]


def test_a_convolutional_network_with_padding_and_pooling(compare: Compare) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        for channels in (4, 5):
            x = nn.max_pool2d(oc.relu(nn.conv2d(x, kernel=3, channels=[channels])))
        return nn.dense(x, output=[3])

    output = network(oc.tensor(IMAGES, batch_axes=1))

    def reference(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
        x = torch.tensor(IMAGES).permute(0, 3, 1, 2)
        for w, b in ((w1, b1), (w2, b2)):
            x = torch.nn.functional.conv2d(x, w.permute(0, 3, 1, 2), b, padding=1)
            x = torch.nn.functional.max_pool2d(torch.relu(x), 2)
        return torch.einsum("nchw,mhwc->nm", x, w3) + b3

    shapes = compare(output, reference)
    assert shapes == ["3,3,3->4", "4", "3,3,4->5", "5", "2,2,5->3", "3"]


@pytest.mark.parametrize(
    ("stride", "dilation", "kernel"), [(2, 1, 2), (1, 2, 3), (2, 1, 4), (1, 1, 5), (1, 3, 2)]
)
def test_a_valid_convolution_with_strides_and_dilations(
    compare: Compare, stride: int, dilation: int, kernel: int
) -> None:
    output = nn.conv2d(
        oc.tensor(IMAGES, batch_axes=1),
        kernel=kernel,
        channels=[2],
        stride=stride,
        dilation=dilation,
        padded=False,
    )

    def reference(w: Any, b: Any) -> Any:
        x = torch.tensor(IMAGES).permute(0, 3, 1, 2)
        x = torch.nn.functional.conv2d(
            x, w.permute(0, 3, 1, 2), b, stride=stride, dilation=dilation
        )
        return x.permute(0, 2, 3, 1)

    compare(output, reference)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_with_several_heads(compare: Compare, is_causal: bool) -> None:
    x = oc.tensor(TOKENS, batch_axes=2)
    mask = nn.causal_mask(5) if is_causal else None
    output = x + nn.multi_head_attention(x, mask, heads=2, width=3)

    def reference(w_q: Any, w_k: Any, w_v: Any, w_o: Any) -> Any:
        x = torch.tensor(TOKENS)
        q, k, v = (torch.einsum("bsn,hdn->bhsd", x, w) for w in (w_q, w_k, w_v))
        gathered = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return x + torch.einsum("bhsd,nhd->bsn", gathered, w_o)

    assert compare(output, reference) == ["6->2,3", "6->2,3", "6->2,3", "2,3->6"]


def test_attention_whose_width_is_captured(compare: Compare) -> None:
    x, d = oc.tensor(TOKENS, batch_axes=2), oc.dim("d")
    q, k, v = (oc.param(f"w_{name}", output=[2, 3]) @ x for name in "qkv")
    scores = oc.einsum("... s | h d; ... t | h d => ... s | t -> h", q, k, capture=[d])
    weights = oc.softmax(scores / oc.sqrt(d), logic="... s | t -> h => ... s | 0 -> h")
    output = oc.einsum("... s | t -> h; ... t | h e => ... s | h e", weights, v)

    def reference(w_q: Any, w_k: Any, w_v: Any) -> Any:
        x = torch.tensor(TOKENS)
        q, k, v = (torch.einsum("bsn,hdn->bhsd", x, w) for w in (w_q, w_k, w_v))
        gathered = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return gathered.permute(0, 2, 1, 3)

    assert compare(output, reference) == ["6->2,3"] * 3


def test_batch_normalization_of_a_layer(compare: Compare) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return nn.batch_norm(nn.dense(x, output=[4]))

    output = network(oc.tensor(POINTS, batch_axes=1))

    def reference(w: Any, b: Any, gamma: Any, beta: Any) -> Any:
        x = torch.tensor(POINTS) @ w.T + b
        return torch.nn.functional.batch_norm(x, None, None, gamma, beta, training=True)

    assert compare(output, reference) == ["3->4", "4", "4", "4"]


def test_batch_normalization_of_images(compare: Compare) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        hidden = nn.conv2d(x, channels=[2])
        return nn.batch_norm(hidden, shape="...|h, w, ..c..", features="..c..")

    output = network(oc.tensor(IMAGES[:, :4, :4], batch_axes=1))

    def reference(w: Any, b: Any, gamma: Any, beta: Any) -> Any:
        x = torch.tensor(IMAGES[:, :4, :4]).permute(0, 3, 1, 2)
        x = torch.nn.functional.conv2d(x, w.permute(0, 3, 1, 2), b, padding=1)
        x = torch.nn.functional.batch_norm(x, None, None, gamma, beta, training=True)
        return x.permute(0, 2, 3, 1)

    assert compare(output, reference) == ["3,3,3->2", "2", "2", "2"]


def test_layer_normalization(compare: Compare) -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return nn.layer_norm(nn.dense(x, output=[4]))

    output = network(oc.tensor(POINTS, batch_axes=1))

    def reference(w: Any, b: Any, gamma: Any, beta: Any) -> Any:
        return torch.nn.functional.layer_norm(torch.tensor(POINTS) @ w.T + b, (4,), gamma, beta)

    assert compare(output, reference) == ["3->4", "4", "4", "4"]
