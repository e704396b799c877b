"""Blocks of networks beside the modules of PyTorch, whose images have channels first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ocannl_core import nn
from survey_cases import Arrays, Case, floats, numbers


def cases() -> Iterator[Case]:
    """Yield all blocks."""
    yield from _dense()
    yield from _normalization()
    yield from _images()


def _x(*shapes: tuple[int, ...]) -> tuple[Callable[[], Arrays], ...]:
    """Return functions that create an argument of some shapes."""
    return tuple((lambda shape=shape: {"x": floats(*shape)}) for shape in shapes)


def _block(
    name: str,
    own: Callable[..., Any],
    module: Callable[..., Any],
    *shapes: tuple[int, ...],
    covers: Sequence[str] = (),
    batch: int = 1,
) -> Case:
    """Return a case of one argument."""
    names = tuple(covers) or (f"nn.{name}",)
    return Case(
        name=name, covers=names, arrays=_x(*shapes), own=own, module=module, batch_axes={"x": batch}
    )


def _dense() -> Iterator[Case]:
    yield _block(
        "dense",
        lambda x: nn.dense(x, output=[512]),
        lambda t, x: t.nn.Linear(x.shape[-1], 512),
        (256, 256),
        (37, 101),
    )
    yield _block(
        "mlp",
        lambda x: nn.mlp(x, hidden=[256, 128], output=[10]),
        lambda t, x: t.nn.Sequential(
            t.nn.Linear(x.shape[-1], 256),
            t.nn.ReLU(),
            t.nn.Linear(256, 128),
            t.nn.ReLU(),
            t.nn.Linear(128, 10),
        ),
        (128, 784),
        (33, 100),
    )
    yield _block(
        "dropout",
        lambda x: nn.dropout(x, rate=0.1),
        lambda t, x: t.nn.Dropout(0.1),
        (512, 512),
        (77, 1001),
    )
    for entries, width, count in ((10000, 128, 2048), (101, 33, 500)):
        yield Case(
            name=f"embedding of {entries} entries",
            covers=("nn.embedding",),
            arrays=((lambda entries=entries, count=count: {"ids": numbers(entries, count)}),),
            own=partial(_embedding, entries, width),
            module=partial(_their_embedding, entries, width),
        )


def _embedding(entries: int, width: int, ids: Any) -> Any:
    return nn.embedding(ids, entries=entries, width=width)


def _their_embedding(entries: int, width: int, t: Any, ids: Any) -> Any:
    return t.nn.Embedding(entries, width)


def _normalization() -> Iterator[Case]:
    rows = ((1024, 256), (77, 1001))
    images = ((8, 28, 28, 32), (3, 13, 17, 12))
    yield _block("layer_norm", nn.layer_norm, lambda t, x: t.nn.LayerNorm(x.shape[-1]), *rows)
    yield _block("rms_norm", nn.rms_norm, lambda t, x: t.nn.RMSNorm(x.shape[-1]), *rows)
    yield _block(
        "batch_norm", lambda x: nn.batch_norm(x), lambda t, x: t.nn.BatchNorm1d(x.shape[-1]), *rows
    )
    yield _block(
        "batch_norm of images",
        lambda x: nn.batch_norm(x, shape="...|h, w, ..c..", features="..c.."),
        lambda t, x: _first(t, t.nn.BatchNorm2d(x.shape[-1])),
        *images,
        covers=("nn.batch_norm",),
    )
    yield _block(
        "group_norm",
        lambda x: nn.group_norm(x, groups=4),
        lambda t, x: _first(t, t.nn.GroupNorm(4, x.shape[-1])),
        *images,
    )
    yield _block(
        "instance_norm",
        nn.instance_norm,
        lambda t, x: _first(t, t.nn.InstanceNorm2d(x.shape[-1], affine=True)),
        *images,
    )


def _first(t: Any, inner: Any) -> Any:
    """Return a module for images with channels first, which takes the argument as such."""

    class First(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.is_last = True

        def prepare(self, x: Any) -> Any:
            return x.detach().movedim(-1, 1).contiguous().requires_grad_(x.requires_grad)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    return First()


def _images() -> Iterator[Case]:
    images = ((8, 28, 28, 32), (3, 13, 17, 12))
    odd = ((8, 29, 29, 32), (3, 13, 17, 12))
    for name, options in (
        ("conv2d 3x3", {}),
        ("conv2d 3x3, stride 2, valid", {"stride": 2, "padded": False}),
        ("conv2d 1x1", {"kernel": 1}),
    ):
        theirs = {
            "kernel_size": options.get("kernel", 3),
            "stride": options.get("stride", 1),
            "padding": options.get("kernel", 3) // 2 if options.get("padded", True) else 0,
        }
        yield _block(
            name,
            lambda x, options=options: nn.conv2d(x, channels=[48], **options),
            lambda t, x, theirs=theirs: _first(t, t.nn.Conv2d(x.shape[-1], 48, **theirs)),
            *odd,
            covers=("nn.conv2d",),
        )
    yield _block(
        "conv along one axis",
        lambda x: nn.conv(x, axes=1, kernel=3, channels=64),
        lambda t, x: _first(t, t.nn.Conv1d(x.shape[-1], 64, 3, padding=1)),
        (8, 256, 32),
        (3, 77, 12),
        covers=("nn.conv",),
    )
    yield _block(
        "conv in groups",
        lambda x: nn.conv(x, axes=2, kernel=3, channels=x.shape.output.sizes[-1], groups=4),
        lambda t, x: _first(t, t.nn.Conv2d(x.shape[-1], x.shape[-1], 3, padding=1, groups=4)),
        *images,
        covers=("nn.conv",),
    )
    yield _block(
        "conv, depthwise",
        lambda x: nn.conv(
            x, axes=2, channels=x.shape.output.sizes[-1], groups=x.shape.output.sizes[-1]
        ),
        lambda t, x: _first(
            t, t.nn.Conv2d(x.shape[-1], x.shape[-1], 3, padding=1, groups=x.shape[-1])
        ),
        *images,
        covers=("nn.conv",),
    )
    yield _block(
        "conv, transposed",
        lambda x: nn.conv(x, axes=2, kernel=2, stride=2, channels=16, transposed=True),
        lambda t, x: _first(t, t.nn.ConvTranspose2d(x.shape[-1], 16, 2, 2)),
        *images,
        covers=("nn.conv",),
    )
    even = ((8, 28, 28, 32), (3, 14, 18, 12))
    for kind in ("avg", "max"):
        yield _block(
            f"{kind}_pool",
            getattr(nn, f"{kind}_pool"),
            lambda t, x, kind=kind: _first(t, getattr(t.nn, f"{kind.title()}Pool2d")(2)),
            *even,
        )
    yield _block("max_pool2d", nn.max_pool2d, lambda t, x: _first(t, t.nn.MaxPool2d(2)), *even)
    yield _block(
        "global_avg_pool",
        nn.global_avg_pool,
        lambda t, x: _first(t, _applied(t, lambda y: y.mean((2, 3)))),
        *even,
    )
    for mode in ("nearest", "bilinear"):
        yield _block(
            f"resize, {mode}",
            lambda x, mode=mode: nn.resize(
                x, [2 * n for n in x.shape.output.sizes[:2]], axis=(1, 2), mode=mode
            ),
            lambda t, x, mode=mode: _first(t, t.nn.Upsample(scale_factor=2, mode=mode)),
            *even,
            covers=("nn.resize",),
        )
    yield _block(
        "lenet",
        lambda x: nn.lenet(x, classes=10),
        lambda t, x: _first(t, _lenet(t)),
        (32, 28, 28, 1),
        (5, 28, 28, 1),
    )
    for name in ("basic_block", "bottleneck_block"):
        yield _block(
            name,
            lambda x, name=name: (
                getattr(nn, name)(x, channels=x.shape.output.sizes[-1])
                if name == "basic_block"
                else nn.bottleneck_block(x, channels=x.shape.output.sizes[-1] // 4)
            ),
            lambda t, x, name=name: _first(
                t,
                _residual(t, x.shape[-1], 1)
                if name == "basic_block"
                else _bottleneck(t, x.shape[-1]),
            ),
            (4, 28, 28, 32),
            (2, 13, 15, 16),
        )
    yield _block(
        "vgg_block",
        lambda x: nn.vgg_block(x, channels=32),
        lambda t, x: _first(
            t,
            t.nn.Sequential(
                t.nn.Conv2d(x.shape[-1], 32, 3, padding=1),
                t.nn.ReLU(),
                t.nn.Conv2d(32, 32, 3, padding=1),
                t.nn.ReLU(),
                t.nn.MaxPool2d(2),
            ),
        ),
        *even,
    )
    yield _block(
        "separable_conv",
        lambda x: nn.separable_conv(x, channels=48),
        lambda t, x: _first(t, _separable(t, x.shape[-1], 48)),
        *even,
    )
    yield _block(
        "mobilenet",
        lambda x: nn.mobilenet(x, classes=10, first=16, channels=(32, 64)),
        lambda t, x: _first(
            t,
            t.nn.Sequential(
                t.nn.Conv2d(3, 16, 3, 2, 1, bias=False),
                t.nn.BatchNorm2d(16),
                t.nn.ReLU(),
                _separable(t, 16, 32),
                _separable(t, 32, 64, 2),
                t.nn.AdaptiveAvgPool2d(1),
                t.nn.Flatten(),
                t.nn.Linear(64, 10),
            ),
        ),
        (8, 32, 32, 3),
        (3, 20, 24, 3),
    )
    yield _block(
        "resnet",
        lambda x: nn.resnet(x, classes=10, blocks=(1, 1), channels=(32, 64), stem="small"),
        lambda t, x: _first(
            t,
            t.nn.Sequential(
                t.nn.Conv2d(3, 32, 3, padding=1, bias=False),
                t.nn.BatchNorm2d(32),
                t.nn.ReLU(),
                _residual(t, 32, 1),
                _residual(t, 64, 2),
                t.nn.AdaptiveAvgPool2d(1),
                t.nn.Flatten(),
                t.nn.Linear(64, 10),
            ),
        ),
        (8, 32, 32, 3),
        (3, 20, 24, 3),
    )


def _applied(t: Any, function: Callable[[Any], Any]) -> Any:
    class Applied(t.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x)

    return Applied()


def _lenet(t: Any) -> Any:
    return t.nn.Sequential(
        t.nn.Conv2d(1, 6, 5, padding=2),
        t.nn.ReLU(),
        t.nn.MaxPool2d(2),
        t.nn.Conv2d(6, 16, 5),
        t.nn.ReLU(),
        t.nn.MaxPool2d(2),
        t.nn.Flatten(),
        t.nn.Linear(400, 120),
        t.nn.ReLU(),
        t.nn.Linear(120, 84),
        t.nn.ReLU(),
        t.nn.Linear(84, 10),
    )


def _sum_of(t: Any, inner: Any, around: Any) -> Any:
    class Sum(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.around = inner, around

        def forward(self, x: Any) -> Any:
            return t.relu(self.inner(x) + self.around(x))

    return Sum()


def _separable(t: Any, before: int, channels: int, stride: int = 1) -> Any:
    return t.nn.Sequential(
        t.nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
        t.nn.BatchNorm2d(before),
        t.nn.ReLU(),
        t.nn.Conv2d(before, channels, 1, bias=False),
        t.nn.BatchNorm2d(channels),
        t.nn.ReLU(),
    )


def _residual(t: Any, channels: int, stride: int) -> Any:
    before = channels // stride
    inner = t.nn.Sequential(
        t.nn.Conv2d(before, channels, 3, stride, 1, bias=False),
        t.nn.BatchNorm2d(channels),
        t.nn.ReLU(),
        t.nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
        t.nn.BatchNorm2d(channels),
    )
    shortcut = t.nn.Sequential(
        t.nn.Conv2d(before, channels, 1, stride, bias=False), t.nn.BatchNorm2d(channels)
    )
    return _sum_of(t, inner, shortcut if stride > 1 else t.nn.Identity())


def _bottleneck(t: Any, channels: int) -> Any:
    narrow = channels // 4
    inner = t.nn.Sequential(
        t.nn.Conv2d(channels, narrow, 1, bias=False),
        t.nn.BatchNorm2d(narrow),
        t.nn.ReLU(),
        t.nn.Conv2d(narrow, narrow, 3, padding=1, bias=False),
        t.nn.BatchNorm2d(narrow),
        t.nn.ReLU(),
        t.nn.Conv2d(narrow, channels, 1, bias=False),
        t.nn.BatchNorm2d(channels),
    )
    return _sum_of(t, inner, t.nn.Identity())
