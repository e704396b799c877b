"""Blocks of sequences, and losses, beside the modules of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ocannl_core import nn
from survey_cases import Arrays, Case, floats, numbers
from survey_cases.blocks import _applied, _block


def cases() -> Iterator[Case]:
    """Yield all blocks."""
    yield from _attention()
    yield from _recurrent()
    yield from _losses()


def _attention() -> Iterator[Case]:
    def heads(batch: int, length: int, heads: int, width: int) -> Callable[[], Arrays]:
        shape = (batch, length, heads, width)
        return lambda: {name: floats(*shape, seed=at) for at, name in enumerate("qkv")}

    for causal in (False, True):
        title = ", causal" if causal else ""
        yield Case(
            name=f"attention{title}",
            covers=("nn.attention",),
            arrays=(heads(1, 512, 8, 64), heads(3, 77, 2, 24), heads(1, 2048, 8, 64)),
            own=lambda q, k, v, causal=causal: nn.attention(
                q * q.shape.output.sizes[-1] ** -0.5, k, v, causal=causal
            ),
            torch=partial(_their_attention, causal),
            batch_axes=dict.fromkeys("qkv", 2),
        )
        yield _block(
            f"multi_head_attention{title}",
            lambda x, causal=causal: nn.multi_head_attention(
                x, heads=4, output=x.shape.output.sizes, bias=True, causal=causal
            ),
            lambda t, x, causal=causal: _MultiHead.of(t, x, causal),
            (2, 256, 256),
            (3, 77, 24),
            covers=("nn.multi_head_attention",),
            batch=2,
        )
        yield _block(
            f"transformer_layer{title}",
            lambda x, causal=causal: nn.transformer_layer(x, heads=4, hidden=1024, causal=causal),
            lambda t, x, causal=causal: _Encoder.of(t, x, causal, 1),
            (2, 128, 256),
            (3, 77, 24),
            covers=("nn.transformer_layer",),
            batch=2,
        )
    yield Case(
        name="attention with a mask",
        covers=("nn.attention", "nn.causal_mask"),
        arrays=(heads(1, 512, 8, 64), heads(3, 77, 2, 24)),
        own=lambda q, k, v: nn.attention(
            q * q.shape.output.sizes[-1] ** -0.5, k, v, nn.causal_mask(q.shape.batch.sizes[-1])
        ),
        torch=partial(_their_attention, True),
        batch_axes=dict.fromkeys("qkv", 2),
    )
    yield _block(
        "transformer_encoder",
        lambda x: nn.transformer_encoder(x, layers=2, heads=4, hidden=512),
        lambda t, x: _Encoder.of(t, x, False, 2),
        (2, 128, 128),
        (3, 33, 24),
        batch=2,
    )
    yield Case(
        name="transformer_decoder",
        covers=("nn.transformer_decoder",),
        arrays=(
            lambda: {"x": floats(2, 128, 128), "memory": floats(2, 64, 128)},
            lambda: {"x": floats(3, 33, 24), "memory": floats(3, 21, 24)},
        ),
        own=lambda x, memory: nn.transformer_decoder(x, memory, layers=1, heads=4, hidden=512),
        module=lambda t, x, memory: _decoder(t, x),
        batch_axes={"x": 2, "memory": 2},
    )
    yield Case(
        name="transformer",
        covers=("nn.transformer",),
        arrays=(
            lambda: {"source": floats(2, 64, 128), "target": floats(2, 64, 128, seed=1)},
            lambda: {"source": floats(3, 21, 24), "target": floats(3, 33, 24)},
        ),
        own=lambda source, target: nn.transformer(
            source, target, layers=1, heads=4, hidden=256, final_norm=True
        ),
        module=lambda t, source, target: _whole(t, target),
        batch_axes={"source": 2, "target": 2},
    )
    yield _block(
        "rotary",
        lambda x: nn.rotary(x),
        lambda t, x: _applied(t, partial(_rotated, t)),
        (2, 256, 4, 64),
        (3, 77, 2, 24),
        batch=2,
    )


def _their_attention(causal: bool, t: Any, q: Any, k: Any, v: Any) -> Any:
    turned = [each.transpose(1, 2) for each in (q, k, v)]
    found = t.nn.functional.scaled_dot_product_attention(*turned, is_causal=causal)
    return found.transpose(1, 2).contiguous()


def _rotated(t: Any, x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = t.arange(x.shape[1])[:, None] * 10000.0 ** (-t.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return t.cat([first * cos - second * sin, first * sin + second * cos], -1)


class _MultiHead:
    """Attention of a sequence to itself."""

    @staticmethod
    def of(t: Any, x: Any, causal: bool) -> Any:
        inner = t.nn.MultiheadAttention(x.shape[-1], 4, batch_first=True)
        hidden = t.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        options: dict[str, Any] = {"need_weights": False}
        if causal:
            options |= {"attn_mask": hidden, "is_causal": True}

        class MultiHead(t.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                return self.inner(x, x, x, **options)[0]

        return MultiHead()


class _Encoder:
    """Layers of attention and perceptrons."""

    @staticmethod
    def of(t: Any, x: Any, causal: bool, layers: int) -> Any:
        hidden = 1024 if layers == 1 else 512
        parts = [
            t.nn.TransformerEncoderLayer(x.shape[-1], 4, hidden, dropout=0.0, batch_first=True)
            for _ in range(layers)
        ]
        mask = t.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        options = {"src_mask": mask, "is_causal": True} if causal else {}

        class Encoder(t.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = t.nn.ModuleList(parts)

            def forward(self, x: Any) -> Any:
                for each in self.parts:
                    x = each(x, **options)
                return x

        return Encoder()


def _decoder(t: Any, x: Any) -> Any:
    inner = t.nn.TransformerDecoderLayer(x.shape[-1], 4, 512, dropout=0.0, batch_first=True)
    mask = t.nn.Transformer.generate_square_subsequent_mask(x.shape[1])

    class Decoder(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any, memory: Any) -> Any:
            return self.inner(x, memory, tgt_mask=mask, tgt_is_causal=True)

    return Decoder()


def _whole(t: Any, target: Any) -> Any:
    inner = t.nn.Transformer(target.shape[-1], 4, 1, 1, 256, dropout=0.0, batch_first=True)
    mask = t.nn.Transformer.generate_square_subsequent_mask(target.shape[1])

    class Whole(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, source: Any, target: Any) -> Any:
            return self.inner(source, target, tgt_mask=mask, tgt_is_causal=True)

    return Whole()


def _recurrent() -> Iterator[Case]:
    for name in ("rnn", "gru", "lstm"):
        yield _block(
            name,
            lambda x, name=name: getattr(nn, name)(x, width=128)[0],
            lambda t, x, name=name: _outputs(t, getattr(t.nn, name.upper())(x.shape[-1], 128)),
            (64, 16, 64),
            (13, 3, 24),
            batch=2,
        )
        states = ("h", "c") if name == "lstm" else ("h",)
        yield Case(
            name=f"{name}_cell",
            covers=(f"nn.{name}_cell",),
            arrays=tuple(partial(_one_step, states, *each) for each in ((64, 64), (13, 24))),
            own=partial(_step, name),
            module=partial(_their_step, name),
        )


def _one_step(states: Sequence[str], rows: int, width: int) -> Arrays:
    """Return states and an input."""
    return {"x": floats(rows, width), **{name: floats(rows, 128) for name in states}}


def _step(name: str, x: Any, h: Any, c: Any = None) -> Any:
    state = h if c is None else (h, c)
    return getattr(nn, f"{name}_cell")(state, x, width=128)[1]


def _their_step(name: str, t: Any, x: Any, *states: Any) -> Any:
    class Step(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(t.nn, f"{name.upper()}Cell")(x.shape[-1], 128)

        def forward(self, x: Any, *states: Any) -> Any:
            return self.inner(x, states)[0] if name == "lstm" else self.inner(x, *states)

    return Step()


def _outputs(t: Any, inner: Any) -> Any:
    class Outputs(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0]

    return Outputs()


def _losses() -> Iterator[Case]:
    shapes = ((1024, 1000), (77, 33))

    def classes(rows: int, count: int) -> Arrays:
        return {"x": floats(rows, count), "ids": numbers(count, rows)}

    yield Case(
        name="cross_entropy",
        covers=("nn.cross_entropy",),
        arrays=tuple(partial(classes, *each) for each in shapes),
        own=nn.cross_entropy,
        torch=lambda t, x, ids: t.nn.functional.cross_entropy(x, ids.long()),
    )
    yield Case(
        name="perplexity",
        covers=("nn.perplexity",),
        arrays=tuple(partial(classes, *each) for each in shapes),
        own=nn.perplexity,
        torch=lambda t, x, ids: t.exp(t.nn.functional.cross_entropy(x, ids.long())),
    )

    def steps(length: int, batch: int, count: int, targets: int) -> Arrays:
        ids = 1 + numbers(count - 1, batch, targets)
        return {"x": floats(length, batch, count), "ids": ids}

    yield Case(
        name="ctc_loss",
        covers=("nn.ctc_loss",),
        arrays=(partial(steps, 100, 32, 80, 20), partial(steps, 33, 3, 21, 7)),
        own=partial(nn.ctc_loss, reduction="sum"),
        torch=_their_ctc_loss,
        batch_axes={"x": 2, "ids": 2},
    )
    yield Case(
        name="confusion",
        covers=("nn.confusion",),
        arrays=tuple(partial(classes, *each) for each in ((1024, 100), (77, 33))),
        own=nn.confusion,
        torch=_their_confusion,
        gradients=False,
    )
    yield Case(
        name="accuracy",
        covers=("nn.accuracy",),
        arrays=tuple(partial(classes, *each) for each in shapes),
        own=nn.accuracy,
        torch=lambda t, x, ids: (x.argmax(-1) == ids).float().mean(),
        gradients=False,
    )
    for name, theirs, low in (
        ("mean_squared_error", "mse_loss", None),
        ("huber", "huber_loss", None),
        ("binary_cross_entropy", "binary_cross_entropy_with_logits", 0.0),
        ("kl_divergence", "kl_div", 0.01),
    ):

        def pair(rows: int, count: int, low: float | None = low) -> Arrays:
            return {"x": floats(rows, count), "y": floats(rows, count, seed=1, low=low)}

        yield Case(
            name=name,
            covers=(f"nn.{name}",),
            arrays=tuple(partial(pair, *each) for each in ((512, 512), (77, 1001))),
            own=getattr(nn, name),
            torch=partial(_their_loss, theirs),
        )
    yield Case(
        name="hinge",
        covers=("nn.hinge",),
        arrays=tuple(partial(_signs, *each) for each in ((512, 512), (77, 1001))),
        own=lambda x, y: nn.hinge(x, y),
        torch=lambda t, x, y: t.relu(1 - x * y).mean(),
    )


def _their_ctc_loss(t: Any, x: Any, ids: Any) -> Any:
    steps, sequences, _ = x.shape
    lengths = [t.full((sequences,), n) for n in (steps, ids.shape[1])]
    scores = t.nn.functional.log_softmax(x, -1)
    return t.nn.functional.ctc_loss(scores, ids.long(), *lengths, reduction="sum")


def _their_confusion(t: Any, x: Any, ids: Any) -> Any:
    count = x.shape[-1]
    cells = ids.long() * count + x.argmax(-1)
    return t.bincount(cells, minlength=count * count).reshape(count, count)


def _their_loss(name: str, t: Any, x: Any, y: Any) -> Any:
    options = {"reduction": "batchmean"} if name == "kl_div" else {}
    return getattr(t.nn.functional, name)(x, y, **options)


def _signs(rows: int, count: int) -> Arrays:
    return {"x": floats(rows, count), "y": np.sign(floats(rows, count, seed=1))}
