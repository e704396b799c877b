"""Specs of output axes agree with NumPy's einsum, from expressions to cells, on the interpreter.

Cells are small integers in float64, so that sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings as project
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
LABELS = "ijklm"


@dataclass(frozen=True)
class EinsumExample:
    """Operands of a contraction; each label has one size."""

    operands: tuple[str, ...]
    result: str
    sizes: tuple[tuple[str, int], ...]
    seed: int

    def arrays(self) -> list[Array]:
        sizes = dict(self.sizes)
        random = np.random.default_rng(self.seed)
        return [
            random.integers(-3, 4, [sizes[label] for label in labels]).astype(np.float64)
            for labels in self.operands
        ]

    def numpy(self) -> Array:
        """Return the result of NumPy."""
        return np.asarray(np.einsum(f"{','.join(self.operands)}->{self.result}", *self.arrays()))


@st.composite
def _examples(
    draw: st.DrawFn, most_operands: int = 3, *, is_diagonal: bool = True
) -> EinsumExample:
    """Operands of at most three axes; the result has some of their labels, each once."""
    sizes = {label: draw(st.sampled_from([1, 2, 3, 4])) for label in LABELS}
    axes = st.lists(st.sampled_from(LABELS), max_size=3, unique=not is_diagonal).map("".join)
    operands = tuple(draw(axes) for _ in range(draw(st.integers(1, most_operands))))
    used = sorted(set("".join(operands)))
    order = draw(st.permutations(used)) if used else []
    result = "".join(order[: draw(st.integers(0, len(order)))])
    known = tuple((label, sizes[label]) for label in used)
    return EinsumExample(operands, result, known, draw(st.integers(0, 999)))


def _value(build: Any) -> Array:
    """Return the cells of a tensor that is built in a session of its own."""
    with project.overrides(warn_summed_once=False), oc.Session(seed=1, dtype="float64"):
        tensor = build()
        context = oc.Context("interp")
        context.compile(oc.train.forward(tensor))()
        cells: Array = context[tensor]
        return cells


@settings(max_examples=example_count(75), deadline=None)
@given(_examples())
def test_specifications_in_letters_agree_with_numpy(example: EinsumExample) -> None:
    spec = f"{';'.join(example.operands)}=>{example.result}"
    arrays = example.arrays()
    found = _value(lambda: oc.einsum(spec, *map(oc.tensor, arrays)))
    np.testing.assert_array_equal(found, example.numpy())


@settings(max_examples=60, deadline=None)
@given(_examples())
def test_specifications_in_words_agree_with_numpys_letters(example: EinsumExample) -> None:
    def words(labels: str) -> str:
        return "".join(f"axis_{label}, " for label in labels)

    spec = f"{'; '.join(map(words, example.operands))} => {words(example.result)},"
    spec = spec.replace(", ,", ",") if example.result else spec.removesuffix(",")
    arrays = example.arrays()
    if "," in spec:
        found = _value(lambda: oc.einsum(spec, *map(oc.tensor, arrays)))
        np.testing.assert_array_equal(found, example.numpy())


@settings(max_examples=60, deadline=None)
@given(_examples(1))
def test_maxima_are_those_of_numpy(example: EinsumExample) -> None:
    (labels,), (array,) = example.operands, example.arrays()
    found = _value(lambda: oc.einmax(f"{labels}=>{example.result}", oc.tensor(array)))
    kept = "".join(dict.fromkeys(labels))
    diagonal = np.einsum(f"{labels}->{kept}", array)
    order = [kept.index(label) for label in example.result]
    rest = [axis for axis in range(len(kept)) if axis not in order]
    moved = diagonal.transpose(order + rest)
    right = moved.max(axis=tuple(range(len(order), len(kept)))) if rest else moved
    np.testing.assert_array_equal(found, right)


@settings(max_examples=60, deadline=None)
@given(_examples(2, is_diagonal=False), st.lists(st.sampled_from([1, 2, 3]), max_size=2), st.data())
def test_ellipses_broadcast_like_those_of_numpy(
    example: EinsumExample, more: list[int], data: st.DataObject
) -> None:
    random = np.random.default_rng(example.seed)
    sizes = dict(example.sizes)
    arrays = []
    for labels in example.operands:
        own = more[data.draw(st.integers(0, len(more))) :]
        own = [n if data.draw(st.booleans()) else 1 for n in own]
        arrays.append(
            random.integers(-3, 4, own + [sizes[label] for label in labels]).astype(np.float64)
        )
    spec = ";".join(f"...{labels}" for labels in example.operands) + f"=>...{example.result}"
    found = _value(lambda: oc.einsum(spec, *map(oc.tensor, arrays)))
    right = np.einsum(spec.replace(";", ",").replace("=>", "->"), *arrays)
    np.testing.assert_array_equal(found, right)


@settings(max_examples=60, deadline=None)
@given(_examples(2), st.data())
def test_the_rows_that_axes_are_in_do_not_matter(
    example: EinsumExample, data: st.DataObject
) -> None:
    """`batch|input->output` only assigns axes to rows: buffers hold batch, output, input."""

    def split(labels: str) -> tuple[str, str, str]:
        first, last = sorted(data.draw(st.integers(0, len(labels))) for _ in range(2))
        return labels[:first], labels[first:last], labels[last:]

    def text(rows: tuple[str, str, str]) -> str:
        batch, output, inputs = rows
        return f"{batch}|{inputs}->{output}"

    rows = [split(labels) for labels in example.operands]
    spec = f"{';'.join(map(text, rows))}=>{text(split(example.result))}"
    pairs = list(zip(example.arrays(), rows, strict=True))
    found = _value(
        lambda: oc.einsum(
            spec,
            *(
                oc.tensor(array, batch_axes=len(batch), input_axes=len(inputs))
                for array, (batch, _, inputs) in pairs
            ),
        )
    )
    np.testing.assert_array_equal(found, example.numpy())


@pytest.mark.parametrize("spec", ["ii=>i", "ii=>", "i=>ii", "ij=>ji", "iij=>j"])
def test_diagonals_are_those_of_numpy(spec: str) -> None:
    left, right = spec.split("=>")
    array = np.arange(float(prod([3] * len(left)))).reshape([3] * len(left))
    found = _value(lambda: oc.einsum(spec, oc.tensor(array)))
    expected = np.diag(array) if right == "ii" else np.einsum(f"{left}->{right}", array)
    np.testing.assert_array_equal(found, expected)


@dataclass(frozen=True)
class Slide:
    """Windows along one axis."""

    positions: int
    kernel: int
    stride: int
    dilation: int
    offset: int
    padded: bool
    marked: bool

    @property
    def size(self) -> int:
        span = 1 + (self.kernel - 1) * self.dilation
        return self.stride * (self.positions if self.padded else self.positions - 1) + (
            0 if self.padded else span
        )

    def axis(self, over: str, kernel: str) -> str:
        mark = ("=" if self.padded else "<") if self.marked else ""
        shift = f"{self.offset}+" if self.offset else ""
        return f"{self.stride}*{over}{mark}+{shift}{self.dilation}*{kernel}"

    def touched(self) -> Array:
        """Return which cell each position and window cell touch: `position, kernel, size`, 0 or 1."""
        span = 1 + (self.kernel - 1) * self.dilation
        left = span - (span + 1) // 2 if self.padded else 0
        found = np.zeros((self.positions, self.kernel, self.size))
        for i, k in np.ndindex(self.positions, self.kernel):
            at = self.stride * i + self.dilation * k + self.offset - left
            if 0 <= at < self.size:
                found[i, k, at] = 1.0
        return found


@st.composite
def _slides(draw: st.DrawFn) -> Slide:
    stride = draw(st.integers(1, 3))
    return Slide(
        positions=draw(st.integers(1, 4)),
        kernel=draw(st.integers(1, 3)),
        stride=stride,
        dilation=draw(st.integers(1, 3)),
        offset=draw(st.integers(0, stride - 1)),
        padded=draw(st.booleans()),
        marked=draw(st.booleans()),
    )


@settings(max_examples=example_count(30), deadline=None)
@given(st.lists(_slides(), min_size=1, max_size=2))
def test_convolutions_are_contractions_with_the_cells_that_windows_touch(
    slides: list[Slide],
) -> None:
    """`image, touched.., kernel -> result`, with 1 where a window touches a cell, and 0 elsewhere;
    gradients are the same contraction with the weights in another place.
    """
    padded = slides[0].padded
    slides = [replace(each, padded=each.padded if each.marked else padded) for each in slides]
    random = np.random.default_rng(len(str(slides)))
    image = random.integers(-3, 4, [2, *(each.size for each in slides), 2]).astype(np.float64)
    kernel = random.integers(-3, 4, [*(each.kernel for each in slides), 2, 3]).astype(np.float64)
    touched = [each.touched() for each in slides]
    whole, places, cells = "xy"[: len(slides)], "ij"[: len(slides)], "kl"[: len(slides)]
    axes = [each.axis(*pair) for each, *pair in zip(slides, places, cells, strict=True)]
    spec = f"n | {', '.join(axes)}, c; {', '.join(cells)}, c, d => n | {', '.join(places)}, d"
    parts = [f"n{whole}c", *map("".join, zip(places, cells, whole, strict=True)), f"{cells}cd"]
    result = f"n{places}d"
    factors = [image, *touched, kernel]
    right = np.einsum(f"{','.join(parts)}->{result}", *factors)
    weights = random.integers(-3, 4, right.shape).astype(np.float64)
    with oc.Session(seed=1, dtype="float64"):
        x, k = oc.param("x", init=oc.tensor(image)), oc.param("k", init=oc.tensor(kernel))
        batched = oc.einsum("n...=>n|...", x)
        value = oc.einsum(spec, batched, k, padded=padded)
        loss = oc.einsum("...|... => 0", value * oc.tensor(weights, batch_axes=1))
        context = oc.Context("interp")
        step = context.compile(oc.train.grad_update(loss), keep=[value, x.grad, k.grad])
        context.init_params(loss)
        step()
        np.testing.assert_array_equal(context[value], right)
        for place, parameter in ((0, x), (len(parts) - 1, k)):
            others = [*parts[:place], *parts[place + 1 :], result]
            rest = [*factors[:place], *factors[place + 1 :], weights]
            slope = np.einsum(f"{','.join(others)}->{parts[place]}", *rest)
            np.testing.assert_array_equal(context[parameter.grad], slope)
