"""Curves of numbers over steps: in a terminal, as SVG, in notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import ceil_div
from ocannl_core.display.pictures.picture_formats import FAINT, Picture, svg_start, svg_text
from ocannl_core.ir.host_arrays import Array

LINES = ("#1f5fa8", "#d1601f", "#2b8a3e", "#8b3fa8", "#8a6d00", "#0b7a75")
"""The colors of curves, in order."""

_COLUMNS, _ROWS = 64, 16
_MARKS = "*o+x#@"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560.0, 300.0, 56.0, 34.0, 26.0
_TICKS = 5
_MOST_POINTS = 1200
"""The greatest number of points of a curve in a picture; more are merged."""


class HasHistory(Protocol):
    """The result of a training loop."""

    @property
    def losses(self) -> Array: ...

    @property
    def epoch_losses(self) -> list[float]: ...

    @property
    def evaluations(self) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one name, by rising positions."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]

    @property
    def points(self) -> Iterator[tuple[float, float]]:
        """The points with finite numbers."""
        pairs = zip(self.xs, self.ys, strict=True)
        return ((x, y) for x, y in pairs if math.isfinite(y))


@dataclass(frozen=True, slots=True, repr=False)
class Curves(Picture):
    """Curves to show together; `str` draws them with characters, notebooks show a picture."""

    curves: tuple[Curve, ...]
    log: bool = False
    """True for a logarithmic vertical axis."""
    title: str = ""
    x_name: str = ""

    def __str__(self) -> str:
        return "\n".join(_characters(self))

    def svg(self) -> str:
        return "\n".join(_svg(self))


def curves(
    series: Mapping[str, Any] | Sequence[float] | Array | HasHistory,
    *,
    log: bool = False,
    title: str = "",
    x_name: str = "",
) -> Curves:
    """Return curves to print, to show in a notebook, or to save as a picture.

        run = oc.train.fit(step, loader, [x, y], loss=loss, epochs=10)
        print(oc.curves(run))
        oc.curves({"train": first, "held out": second}, log=True).save("losses.svg")

    Args:
        series: Numbers by position; a mapping of names to such series, or to pairs of positions and
            numbers; or the result of `oc.train.fit`. Numbers that are not finite are gaps.
        log: True for a logarithmic vertical axis; numbers that are not positive are gaps then.
        x_name: The name of the horizontal axis.

    Raises:
        UsageError: if there are no numbers to draw, or positions and numbers do not pair up.
    """
    if isinstance(series, Mapping):
        named = {str(name): values for name, values in series.items()}
    elif hasattr(series, "epoch_losses"):
        named, x_name = _history(series), x_name or "epochs"
    else:
        named = {"": series}
    found = tuple(_curve(name, values, log) for name, values in named.items())
    if not any(True for curve in found for _ in curve.points):
        raise UsageError.at_caller(
            "Curves have numbers.",
            found="none that is " + ("positive and finite" if log else "finite"),
            fix='oc.curves({"loss": [3.0, 2.0, 1.5]})',
        )
    return Curves(found, log, title, x_name)


def _history(run: Any) -> dict[str, Any]:
    """Return the series of a training loop, over epochs."""
    losses, first = np.asarray(run.losses, np.float64), getattr(run, "first_epoch", 0)
    per_epoch = max(1.0, len(losses) / max(1, len(run.epoch_losses) - first))
    named: dict[str, Any] = {"loss": (first + np.arange(1, len(losses) + 1) / per_epoch, losses)}
    if run.evaluations:
        count = len(run.evaluations)
        named["evaluation"] = (np.arange(1, count + 1), run.evaluations)
    return named


def _curve(name: str, values: Any, log: bool) -> Curve:
    is_pair = isinstance(values, tuple) and len(values) == 2 and np.ndim(values[0]) == 1
    try:
        ys = np.asarray(values[1] if is_pair else values, np.float64)
        xs = np.asarray(values[0], np.float64) if is_pair else np.arange(ys.size, dtype=np.float64)
    except (TypeError, ValueError):
        raise _refusal(name, f"{type(values).__name__}: {values!r}") from None
    if ys.ndim != 1 or xs.shape != ys.shape or not np.isfinite(xs).all():
        raise _refusal(name, f"positions of shape {xs.shape}, numbers of shape {ys.shape}")
    if log:
        ys = np.where(ys > 0, ys, np.nan)
    order = np.argsort(xs, kind="stable")
    return Curve(name, tuple(xs[order].tolist()), tuple(ys[order].tolist()))


def _refusal(name: str, found: str) -> UsageError:
    return UsageError.at_caller(
        "A curve is a sequence of numbers, or a pair of positions and as many numbers.",
        found=f"{name}: {found}" if name else found,
        fix='oc.curves({"loss": [3.0, 2.0]}), or oc.curves({"loss": ([10, 20], [3.0, 2.0])})',
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """The range of an axis; `place` maps it to 0 to 1."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        return (self._inner(value) - self._inner(self.low)) / (
            self._inner(self.high) - self._inner(self.low)
        )

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1."""
        inner = self._inner(self.low) + place * (self._inner(self.high) - self._inner(self.low))
        return math.exp(inner) if self.log else inner

    def _inner(self, value: float) -> float:
        return math.log(value) if self.log else value


def _scales(shown: Curves) -> tuple[_Scale, _Scale]:
    points = [point for curve in shown.curves for point in curve.points]
    xs, ys = zip(*points, strict=True)
    low, high = min(ys), max(ys)
    if low == high:
        low, high = (low / 2, low * 2) if shown.log else (low - 0.5, low + 0.5)
    right = max(xs) if max(xs) > min(xs) else min(xs) + 1
    return _Scale(min(xs), right), _Scale(low, high, shown.log)


def _round_numbers(scale: _Scale) -> list[float]:
    """Return the multiples of 1, 2 or 5 times a power of ten on an axis, from 3 to 6 of them; whole
    numbers where the ends are.
    """
    extent = scale.high - scale.low
    power = 10.0 ** math.floor(math.log10(extent / _TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if extent / (factor * power) <= _TICKS)
    if float(scale.low).is_integer() and float(scale.high).is_integer():
        step = max(step, 1.0)
    first, last = math.ceil(scale.low / step), math.floor(scale.high / step)
    return [number * step for number in range(first, last + 1)]


def _marked(scale: _Scale) -> list[float]:
    """Return the numbers that an axis marks: round ones, of a logarithmic axis 1, 2 and 5 times
    powers of ten, or these powers alone; the ends where an axis has fewer than two of them.
    """
    if not scale.log:
        found = _round_numbers(scale)
    else:
        powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 3 else (1,)
        stride = ceil_div(len(powers), 2 * _TICKS)
        each = [float(f"{factor}e{power}") for power in powers[::stride] for factor in factors]
        found = [value for value in each if scale.low <= value <= scale.high]
    return found if len(found) > 1 else [scale.low, scale.high]


def _characters(shown: Curves) -> Iterator[str]:
    """Yield the lines of a drawing: the mean of each column, joined to the next one."""
    across, up = _scales(shown)
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for number, curve in enumerate(shown.curves):
        mark = _MARKS[number % len(_MARKS)]
        columns: dict[int, list[float]] = {}
        for x, y in curve.points:
            columns.setdefault(round(across.place(x) * (_COLUMNS - 1)), []).append(up.place(y))
        for column, places in columns.items():
            row = round((1 - sum(places) / len(places)) * (_ROWS - 1))
            cells[row][column] = mark
    if shown.title:
        yield shown.title
    labels = {row: f"{up.at(1 - row / (_ROWS - 1)):.4g}" for row in range(0, _ROWS, 5)}
    width = max(map(len, labels.values()))
    for row, line in enumerate(cells):
        yield f"{labels.get(row, ''):>{width}} ┤{''.join(line)}".rstrip()
    yield " " * (width + 1) + "└" + "─" * _COLUMNS
    left, right = f"{across.low:.4g}", f"{across.high:.4g}"
    middle = shown.x_name.center(_COLUMNS - len(left) - len(right))
    yield " " * (width + 2) + f"{left}{middle}{right}"
    names = [(c.name, _MARKS[k % len(_MARKS)]) for k, c in enumerate(shown.curves) if c.name]
    if names:
        yield " " * (width + 2) + "   ".join(f"{mark} {name}" for name, mark in names)


def _svg(shown: Curves) -> Iterator[str]:
    across, up = _scales(shown)
    inner_width, inner_height = _WIDTH - _LEFT - 16, _HEIGHT - _TOP - _BOTTOM

    def horizontal(place: float) -> float:
        return _LEFT + place * inner_width

    def vertical(place: float) -> float:
        return _TOP + (1 - place) * inner_height

    yield from svg_start(_WIDTH, _HEIGHT)
    for x in _round_numbers(across):
        label = f"{x:.10g}"
        yield svg_text(horizontal(across.place(x)), _HEIGHT - _BOTTOM + 15, label, "middle")
    for value in _marked(up):
        y = vertical(up.place(value))
        yield (
            f'<path d="M{_LEFT:.1f},{y:.1f} H{_WIDTH - 16:.1f}" stroke="{FAINT}" '
            f'stroke-width="0.4"/>'
        )
        yield svg_text(_LEFT - 6, y + 4, f"{value:.6g}", "end")
    for number, curve in enumerate(shown.curves):
        color = LINES[number % len(LINES)]
        for run in _runs(curve):
            path = " ".join(
                f"{horizontal(across.place(x)):.1f},{vertical(up.place(y)):.1f}" for x, y in run
            )
            if len(run) == 1:
                left, top = path.split(",")
                yield f'<circle cx="{left}" cy="{top}" r="2.5" fill="{color}"/>'
            else:
                yield (
                    f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                )
        if curve.name:
            yield svg_text(_LEFT + 8 + 110 * number, _TOP - 9, f"— {curve.name}", "start", color)
    if shown.title:
        yield svg_text(_WIDTH - 16, _TOP - 9, shown.title, "end")
    if shown.x_name:
        yield svg_text(_WIDTH / 2, _HEIGHT - 4, shown.x_name, "middle")
    yield "</svg>"


def _runs(curve: Curve) -> Iterator[list[tuple[float, float]]]:
    """Yield parts of a curve between gaps, with the mean of neighbors where points are many."""
    size = ceil_div(len(curve.xs), _MOST_POINTS)
    run: list[tuple[float, float]] = []
    for start in range(0, len(curve.xs), size):
        ys = [y for y in curve.ys[start : start + size] if math.isfinite(y)]
        if ys:
            xs = curve.xs[start : start + size]
            run.append((sum(xs) / len(xs), sum(ys) / len(ys)))
        elif run:
            yield run
            run = []
    if run:
        yield run
