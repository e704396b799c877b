"""Convolutions and pooling against direct references, their gradients against differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PatchWindow:
    """A window that slides along one axis."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    padded: bool = False

    @property
    def span(self) -> int:
        return 1 + (self.kernel - 1) * self.dilation

    @property
    def left(self) -> int:
        return self.span - (self.span + 1) // 2 if self.padded else 0

    def positions(self, size: int) -> int | None:
        """The number of positions along an axis; None where the axis does not divide."""
        room = size if self.padded else size - self.span
        if room < 0 or room % self.stride:
            return None
        return room // self.stride + (0 if self.padded else 1)

    def axis(self, over: str, kernel: str) -> str:
        mark = "=" if self.padded else "<"
        return f"{self.stride}*{over}{mark}+{self.dilation}*{kernel}"


def patches(x: Array, windows: Sequence[PatchWindow], beyond: float) -> Array:
    """Cells under each window: the leading axes of `x` replaced by positions, then kernel axes."""
    counts = [w.positions(n) for w, n in zip(windows, x.shape, strict=False)]
    rest = x.shape[len(windows) :]
    found = np.full((*counts, *(w.kernel for w in windows), *rest), beyond)
    for cell in np.ndindex(found.shape[: 2 * len(windows)]):
        at = tuple(
            w.stride * o + w.dilation * k - w.left
            for w, o, k in zip(windows, cell[: len(windows)], cell[len(windows) :], strict=True)
        )
        if all(0 <= i < n for i, n in zip(at, x.shape, strict=False)):
            found[cell] = x[at]
    return found


def check(
    target: str, build: Callable[..., oc.Tensor], reference: Callable[..., Array], *arrays: Array
) -> None:
    """Compare an expression and its gradients, in float64, with a function of arrays."""
    expected = reference(*arrays)
    weights = np.random.default_rng(7).uniform(0.5, 1.5, expected.shape)
    with oc.Session():
        params = [
            oc.param(f"p{i}", init=oc.tensor(a, dtype=oc.float64), dtype=oc.float64)
            for i, a in enumerate(arrays)
        ]
        result = build(*params)
        loss = oc.einsum("... => 0", result * oc.tensor(weights, dtype=oc.float64))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[result, *(p.grad for p in params)])
        ctx.init_params(loss)
        for _ in range(2):  # old contents of margins must not matter
            step()
        np.testing.assert_allclose(ctx[result], expected, rtol=1e-12, atol=1e-12)
        for position, param in enumerate(params):
            gradient = np.zeros_like(arrays[position])
            for cell in np.ndindex(gradient.shape):
                ends = []
                for move in (1e-6, -1e-6):
                    moved = [a.copy() for a in arrays]
                    moved[position][cell] += move
                    ends.append(float(np.sum(reference(*moved) * weights)))
                gradient[cell] = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(ctx[param.grad], gradient, rtol=1e-5, atol=1e-6)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


LINES = [
    (9, PatchWindow(3, 2)),
    (7, PatchWindow(3)),
    (7, PatchWindow(3, 1, 2)),
    (8, PatchWindow(2, 3, 1)),
    (6, PatchWindow(3, 2, padded=True)),
    (5, PatchWindow(3, 1, 2, padded=True)),
    (6, PatchWindow(4, 3, 2, padded=True)),
    (3, PatchWindow(5, padded=True)),
]


@pytest.mark.parametrize(("size", "window"), LINES)
def test_convolution_of_a_line(target: str, size: int, window: PatchWindow) -> None:
    spec = f"{window.axis('o', 'k')}, c; k, c, d => o, d"
    check(
        target,
        lambda x, w: oc.einsum(spec, x, w),
        lambda x, w: np.einsum("okc,kcd->od", patches(x, [window], 0.0), w),
        normal(size, 2),
        normal(window.kernel, 2, 3),
    )


PLANES = [
    ((5, 4), (PatchWindow(3), PatchWindow(2))),
    ((7, 4), (PatchWindow(3, 2), PatchWindow(2, 2))),
    ((7, 3), (PatchWindow(3, 1, 3), PatchWindow(1))),
    ((4, 4), (PatchWindow(3, padded=True), PatchWindow(3, padded=True))),
    ((4, 6), (PatchWindow(3, 2, padded=True), PatchWindow(2, 3, 2, padded=True))),
    ((4, 5), (PatchWindow(3, padded=True), PatchWindow(3, 2))),
]


@pytest.mark.parametrize(("sizes", "windows"), PLANES)
def test_convolution_of_a_plane(
    target: str, sizes: tuple[int, int], windows: tuple[PatchWindow, PatchWindow]
) -> None:
    high, wide = windows
    spec = f"{high.axis('oh', 'kh')}, {wide.axis('ow', 'kw')}, c; kh, kw, c, d => oh, ow, d"
    check(
        target,
        lambda x, w: oc.einsum(spec, x, w),
        lambda x, w: np.einsum("hwklc,klcd->hwd", patches(x, windows, 0.0), w),
        normal(*sizes, 2),
        normal(high.kernel, wide.kernel, 2, 1),
    )


@pytest.mark.parametrize(
    ("size", "window"),
    [
        (6, PatchWindow(2, 2)),
        (7, PatchWindow(3, 2)),
        (6, PatchWindow(3, 2, padded=True)),
        (4, PatchWindow(3, 1, 2, True)),
    ],
)
def test_greatest_sums_along_a_line(target: str, size: int, window: PatchWindow) -> None:
    check(
        target,
        lambda x, w: oc.primitives.tropical(f"{window.axis('o', 'k')}; k => o", x, w),
        lambda x, w: (patches(x, [window], -np.inf) + w).max(axis=1),
        normal(size),
        normal(window.kernel),
    )


def test_max_pooling_of_a_plane(target: str) -> None:
    window = PatchWindow(2, 2)
    check(
        target,
        lambda x: oc.primitives.tropical(
            "2*oh<+kh, 2*ow<+kw, ...; kh, kw => oh, ow, ...",
            x,
            oc.tensor(np.zeros((2, 2)), dtype=oc.float64),
        ),
        lambda x: patches(x, [window, window], -np.inf).max(axis=(2, 3)),
        normal(4, 6, 2),
    )


def test_max_pooling_with_a_window_of_stated_size(target: str) -> None:
    inside, beyond = PatchWindow(2, 2), PatchWindow(3, 2, padded=True)
    for window in (inside, beyond):
        spec = f"{window.axis('i', 'k').replace('2*', 'stride*', 1)}, ... => i, ..."
        check(
            target,
            lambda x, spec=spec, k=window.kernel: oc.einmax(spec, x, values={"k": k, "stride": 2}),
            lambda x, window=window: patches(x, [window], -np.inf).max(axis=1),
            normal(6, 2),
        )


def test_a_padded_maximum_finds_cells_that_exist_and_gives_the_gradient_to_the_greatest(
    target: str,
) -> None:
    cells = -np.array([3.0, 1.0, 2.0, 4.0])
    with oc.Session():
        x = oc.param("x", init=cells)
        pooled = oc.primitives.tropical("i=+k; k => i", x, oc.tensor([0.0, 0.0, 0.0]))
        loss = oc.einsum("... => 0", pooled * oc.tensor([1.0, 10.0, 100.0, 1000.0]))
        ctx = oc.Context(target)
        step = ctx.compile(oc.train.grad_update(loss), keep=[pooled, x.grad])
        ctx.init_params(loss)
        step()
        np.testing.assert_array_equal(ctx[pooled], [-1, -1, -1, -2])
        np.testing.assert_array_equal(ctx[x.grad], [0, 111, 1000, 0])


def test_layers_of_padded_convolutions_pad_the_input_of_the_next_one(target: str) -> None:
    window = PatchWindow(3, padded=True)

    def reference(x: Array, v: Array, w: Array) -> Array:
        hidden = np.tanh(patches(x, [window], 0.0) @ v)
        return patches(hidden, [window], 0.0) @ w

    check(
        target,
        lambda x, v, w: oc.einsum("i=+k; k => i", oc.tanh(oc.einsum("i=+k; k => i", x, v)), w),
        reference,
        normal(5),
        normal(3),
        normal(3) + 1,
    )


def test_a_strided_convolution_runs_backwards(target: str) -> None:
    """The result is written through windows: a transposed convolution."""

    def reference(x: Array, w: Array) -> Array:
        y = np.zeros(2 * (len(x) - 1) + len(w))
        for i, k in np.ndindex(len(x), len(w)):
            y[2 * i + k] += x[i] * w[k]
        return y

    check(target, lambda x, w: oc.einsum("i; k => 2*i<+k", x, w), reference, normal(4), normal(3))


def test_the_parameter_padded_decides_for_windows_without_a_mark(target: str) -> None:
    x, w = normal(6).astype(np.float32), np.ones(3, np.float32)
    with oc.Session():
        a, b = oc.tensor(x), oc.tensor(w)
        inside = oc.einsum("o+k; k => o", a, b, padded=False)
        beyond = oc.einsum("o+k; k => o", a, b, padded=True)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(inside) + oc.train.forward(beyond))()
        np.testing.assert_allclose(ctx[inside], np.convolve(x, w, "valid"), rtol=1e-6)
        np.testing.assert_allclose(ctx[beyond], np.convolve(x, w, "same"), rtol=1e-6)
    with oc.Session(), pytest.raises(oc.ShapeError, match="padded"):
        oc.einsum("o+k; k => o", oc.tensor(x), oc.tensor(w))


SWEEP = list(product(range(1, 4), range(1, 4)))


@pytest.mark.parametrize(("stride", "dilation"), SWEEP)
@pytest.mark.parametrize("padded", [False, True])
def test_no_window_reads_outside_a_buffer(stride: int, dilation: int, padded: bool) -> None:
    """The interpreter checks every access."""
    for kernel, size in product(range(1, 6), range(1, 10)):
        window = PatchWindow(kernel, stride, dilation, padded)
        x, w = normal(size), normal(kernel)
        spec = f"{window.axis('o', 'k')}; k => o"
        with oc.Session():
            a, b = oc.tensor(x, dtype=oc.float64), oc.tensor(w, dtype=oc.float64)
            if window.positions(size) is None:
                with pytest.raises(oc.ShapeError):
                    oc.einsum(spec, a, b).info  # noqa: B018
                continue
            y = oc.einsum(spec, a, b)
            ctx = oc.Context("interp")
            ctx.compile(oc.train.forward(y))()
            expected = patches(x, [window], 0.0) @ w
            np.testing.assert_allclose(ctx[y], expected, atol=1e-12, err_msg=f"{window} {size}")


@pytest.mark.parametrize("seed", range(12))
def test_no_window_of_a_plane_reads_outside_a_buffer(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def draw() -> tuple[PatchWindow, int]:
        while True:
            kernel, stride, dilation = (int(n) for n in rng.integers(1, 4, 3))
            window = PatchWindow(kernel, stride, dilation, bool(rng.integers(2)))
            size = int(rng.integers(1, 8))
            if window.positions(size) is not None:
                return window, size

    (high, rows), (wide, columns) = draw(), draw()
    x, w = normal(rows, columns), normal(high.kernel, wide.kernel)
    with oc.Session():
        y = oc.einsum(
            f"{high.axis('a', 'k')}, {wide.axis('b', 'l')}; k, l => a, b",
            oc.tensor(x, dtype=oc.float64),
            oc.tensor(w, dtype=oc.float64),
        )
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(y))()
        expected = np.einsum("abkl,kl->ab", patches(x, [high, wide], 0.0), w)
        np.testing.assert_allclose(ctx[y], expected, atol=1e-12)
