"""Patterns of einops in the notation, from expressions to cells, on the interpreter.

A group `(a b)` is an axis whose fast part is `b`: a window of `b` cells at positions `a` that are
its length apart, `3*a<+b`. The notation is the same for reading and writing, so that merging,
splitting, pooling and repeating are one form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base import settings as project
from tests.support.example_count import example_count

Array = np.ndarray[Any, Any]
Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class EinopsPattern:
    """Axes of one or two labels, before and after."""

    left: Groups
    right: Groups
    sizes: tuple[tuple[str, int], ...]

    @property
    def einops(self) -> str:
        return f"{_grouped(self.left)} -> {_grouped(self.right)}"

    @property
    def lengths(self) -> dict[str, int]:
        """The sizes that do not follow from the operand."""
        known = {group[0] for group in self.left if len(group) == 1}
        return {label: n for label, n in self.sizes if label not in known}

    @property
    def spec(self) -> str:
        return f"{self._row(self.left)} => {self._row(self.right)}"

    def _row(self, groups: Groups) -> str:
        sizes = dict(self.sizes)
        axes = (
            group[0] if len(group) == 1 else f"{sizes[group[1]]}*{group[0]}<+{group[1]}"
            for group in groups
        )
        return "".join(f"{axis}, " for axis in axes)

    def array(self) -> Array:
        sizes = dict(self.sizes)
        dims = [int(np.prod([sizes[label] for label in group])) for group in self.left]
        cells = np.random.default_rng(len(self.einops)).permutation(int(np.prod(dims)))
        return cells.astype(np.float64).reshape(dims)


def _grouped(groups: Groups) -> str:
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else group[0] for group in groups)


@st.composite
def _patterns(draw: st.DrawFn, *, drops: bool = False, adds: bool = False) -> EinopsPattern:
    labels = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    sizes = {label: draw(st.integers(1, 3)) for label in "abcdefgh"}

    def groups(names: list[str]) -> Groups:
        found: list[tuple[str, ...]] = []
        for name in names:
            if found and len(found[-1]) == 1 and draw(st.booleans()):
                found[-1] += (name,)
            else:
                found.append((name,))
        return tuple(found)

    left = groups(list(labels))
    kept = draw(st.permutations(labels))
    if drops:
        kept = kept[: draw(st.integers(0, len(kept)))]
    if adds:
        kept = draw(st.permutations([*kept, *"ef"[: draw(st.integers(1, 2))]]))
    used = {*labels, *kept}
    return EinopsPattern(
        left, groups(list(kept)), tuple((k, n) for k, n in sizes.items() if k in used)
    )


def computed(build: Any) -> Array:
    """Return the cells of a tensor that is built in a session of its own."""
    with project.overrides(warn_summed_once=False), oc.Session(seed=1, dtype="float64"):
        tensor = build()
        context = oc.Context("interp")
        context.compile(oc.train.forward(tensor))()
        cells: Array = context[tensor]
        return cells


def check(pattern: EinopsPattern, operation: Any, right: Array) -> None:
    array = pattern.array()
    found = computed(lambda: operation(pattern.spec, oc.tensor(array), values=pattern.lengths))
    np.testing.assert_array_equal(found, right)


@settings(max_examples=80, deadline=None)
@given(_patterns())
def test_axes_are_rearranged_merged_and_split(pattern: EinopsPattern) -> None:
    right = einops.rearrange(pattern.array(), pattern.einops, **dict(pattern.sizes))
    check(pattern, oc.einsum, right)


@settings(max_examples=80, deadline=None)
@given(_patterns(drops=True), st.sampled_from(["sum", "max"]))
def test_axes_are_reduced(pattern: EinopsPattern, reduction: str) -> None:
    right = einops.reduce(pattern.array(), pattern.einops, reduction, **dict(pattern.sizes))
    check(pattern, oc.einsum if reduction == "sum" else oc.einmax, right)


@settings(max_examples=80, deadline=None)
@given(_patterns(adds=True))
def test_cells_are_repeated_along_new_axes(pattern: EinopsPattern) -> None:
    right = einops.repeat(pattern.array(), pattern.einops, **dict(pattern.sizes))
    check(pattern, oc.einsum, right)


@settings(max_examples=50, deadline=None)
@given(_patterns(), st.data())
def test_the_gradient_of_a_rearrangement_is_the_rearrangement_back(
    pattern: EinopsPattern, data: st.DataObject
) -> None:
    array = pattern.array()
    there = einops.rearrange(array, pattern.einops, **dict(pattern.sizes))
    weights = data.draw(st.permutations(range(there.size)))
    cells = np.asarray(weights, dtype=np.float64).reshape(there.shape)
    with oc.Session(seed=1, dtype="float64"):
        x = oc.param("x", init=oc.tensor(array))
        moved = oc.einsum(pattern.spec, x, values=pattern.lengths)
        loss = oc.einsum("... => 0", moved * oc.tensor(cells))
        context = oc.Context("interp")
        step = context.compile(oc.train.grad_update(loss), keep=[x.grad])
        context.init_params(loss)
        step()
        found = context[x.grad]
    back = f"{_grouped(pattern.right)} -> {_grouped(pattern.left)}"
    np.testing.assert_array_equal(found, einops.rearrange(cells, back, **dict(pattern.sizes)))


@settings(max_examples=example_count(20), deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_tensors_are_packed_along_an_axis_and_unpacked(
    lengths: list[int], before: int, after: int
) -> None:
    random = np.random.default_rng(sum(lengths))
    arrays = [random.integers(-5, 5, (before, n, after)).astype(np.float64) for n in lengths]
    packed, _ = einops.pack(arrays, "i * j")
    labels = "abc"[: len(arrays)]
    whole = f"i, {'^'.join(labels)}, j"
    spec = f"{'; '.join(f'i, {label}, j' for label in labels)} => {whole}"
    found = computed(lambda: oc.concat(spec, *map(oc.tensor, arrays)))
    np.testing.assert_array_equal(found, packed)
    values = dict(zip(labels, lengths, strict=True))
    for label, array in zip(labels, arrays, strict=True):
        part = computed(
            lambda label=label: oc.einsum(
                f"{whole} => i, {label}, j", oc.tensor(packed), values=values
            )
        )
        np.testing.assert_array_equal(part, array)


@pytest.mark.parametrize("axis", ["output", "input", "batch"])
def test_a_list_of_tensors_is_stacked(axis: str) -> None:
    arrays = [np.arange(6.0).reshape(2, 3) + 10 * k for k in range(3)]
    found = computed(lambda: oc.stack(*map(oc.tensor, arrays), axis=axis))
    order = "a b n" if axis == "input" else "n a b"
    np.testing.assert_array_equal(found, einops.rearrange(arrays, f"n a b -> {order}"))


def test_patches_of_an_image_become_rows_of_features() -> None:
    image = np.arange(4 * 6 * 3.0).reshape(4, 6, 3)
    patches = computed(
        lambda: oc.einsum(
            "2*h<+p, 3*w<+q, c => h, w, p, q, c", oc.tensor(image), values={"p": 2, "q": 3}
        )
    )
    right = einops.rearrange(image, "(h p) (w q) c -> h w p q c", p=2, q=3)
    np.testing.assert_array_equal(patches, right)
