"""Everyday operations and blocks, each with its counterpart in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operation or a block.

    Attributes:
        name: Its title.
        covers: The public names that it measures, of `oc` or, with the prefix `nn.`, of `oc.nn`.
        arrays: Functions that create the arguments, by name, one for each shape. Floats are
            differentiated.
        own: The expression of this project.
        torch: The function in PyTorch: takes its module and the arguments; None for a block.
        module: The block in PyTorch, given its module and the arguments, whose parameters are as
            many as those of this project, with values of its own; None for an operation.
        batch_axes: The leading batch axes of the arguments that have others than one; the others
            are output axes.
        input_axes: The trailing input axes of the arguments that have some.
        gradients: False if it has none.
        is_random: True if results of contenders differ.
    """

    name: str
    covers: tuple[str, ...]
    arrays: tuple[Callable[[], Arrays], ...]
    own: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    module: Callable[..., Any] | None = None
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    input_axes: Mapping[str, int] = field(default_factory=dict)
    gradients: bool = True
    is_random: bool = False


def floats(*shape: int, seed: int = 0, low: float | None = None) -> Array:
    """Return normal numbers, or uniform ones from a bound up to the bound plus 1."""
    random = np.random.default_rng((seed, *shape))
    if low is None:
        return random.standard_normal(shape, dtype=np.float32)
    return low + random.random(shape, dtype=np.float32)


def distinct(*shape: int) -> Array:
    """Return numbers without equals in a row."""
    rows = np.tile(np.arange(shape[-1], dtype=np.float32), (*shape[:-1], 1))
    return np.random.default_rng(shape).permuted(rows, axis=-1) / np.float32(shape[-1])


def numbers(below: int, *shape: int) -> Array:
    """Return whole numbers from 0 to a limit."""
    return np.random.default_rng(shape).integers(0, below, shape, dtype=np.int32)


def title(arrays: Arrays) -> str:
    """Return the shapes of the arguments as text."""
    return ", ".join("x".join(map(str, each.shape)) for each in arrays.values())


def all_cases() -> Iterator[Case]:
    """Yield operations, then blocks."""
    from survey_cases import blocks, operations, products, sequences

    for module in (operations, products, blocks, sequences):
        yield from module.cases()
