"""Tensor puzzles: functions of NumPy, each in one expression (after the puzzles of Sasha Rush).

`python examples/puzzles.py` prints them, and compares each with NumPy. The rules: positions
(`oc.arange`), comparisons, `oc.where`, arithmetic, and specifications of axes; nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

T = oc.Tensor
at = oc.arange


def ones(n: int) -> T:
    return oc.where(at(n) >= 0, 1.0, 0.0)


def total(a: T) -> T:
    return oc.einsum("i => 0", a)


def outer(a: T, b: T) -> T:
    return oc.einsum("i; j => ij", a, b)


def diagonal(m: T) -> T:
    return oc.einsum("ii => i", m)


def identity(n: int) -> T:
    return oc.einsum("i => ii", ones(n))


def upper(n: int) -> T:
    return oc.less_equal(at(n), at(n), logic="i; j => ij")


def running_sum(a: T, n: int) -> T:
    return oc.einsum("i; ij => j", a, upper(n))


def differences(a: T) -> T:
    return oc.einsum("i<+k; k => i", a, oc.tensor([-1.0, 1.0]))


def stacked(a: T, b: T) -> T:
    return oc.where(at(2) == 0, a, b, logic="r; c; c => rc")


def distance(n: int) -> T:
    return oc.subtract(at(n), at(n), logic="j; i => ij")


def rolled(a: T, n: int) -> T:
    return oc.einsum("i; ij => j", a, distance(n) % n == 1)


def reversed_order(a: T, n: int) -> T:
    return oc.einsum("i; ij => j", a, oc.equal(at(n), n - 1 - at(n), logic="i; j => ij"))


def masked(m: T, lengths: T, n: int) -> T:
    return oc.where(oc.less(at(n), lengths, logic="c; r => rc"), m, 0.0)


def counted(ids: T, classes: int) -> T:
    return oc.einsum("ic => c", oc.equal(ids, at(classes), logic="i; c => ic"))


def scattered(values: T, ids: T, size: int) -> T:
    return oc.einsum("i; ic => c", values, oc.equal(ids, at(size), logic="i; c => ic"))


def flattened(m: T, columns: int) -> T:
    return oc.einsum(f"r, c => {columns}*r<+c", m)


def repeated(a: T, times: int) -> T:
    return oc.einsum("j; i => ij", a, ones(times))


def bucketed(a: T, bounds: T) -> T:
    return oc.einsum("ij => i", oc.less_equal(bounds, a, logic="j; i => ij"))


def halved(a: T) -> T:
    return oc.einsum("2*i<+k => i", a, values={"k": 2}) / 2.0


def distances(a: T, b: T) -> T:
    return oc.einsum("ijd => ij", oc.subtract(a, b, logic="id; jd => ijd") ** 2)


class Puzzle(NamedTuple):
    """A function, the same in NumPy, and arguments: arrays become tensors, numbers stay."""

    function: Callable[..., T]
    expected: Callable[..., Any]
    arguments: tuple[Any, ...]


def random_array(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(len(shape)).normal(size=shape).round(2).astype(np.float32)


A, B, M = random_array(6), random_array(6)[::-1].copy(), random_array(5, 4)
IDS, LENGTHS = np.array([2, 0, 2, 1, 2, 3], np.int32), np.array([0, 2, 4, 1, 3], np.int32)
BOUNDS = np.array([-1, 0, 1], np.float32)

PUZZLES = [
    Puzzle(ones, np.ones, (4,)),
    Puzzle(total, lambda a: a.sum(keepdims=True), (A,)),
    Puzzle(outer, np.outer, (A, B)),
    Puzzle(diagonal, np.diagonal, (M[:4],)),
    Puzzle(identity, np.eye, (4,)),
    Puzzle(upper, lambda n: np.triu(np.ones((n, n))), (4,)),
    Puzzle(running_sum, lambda a, n: np.cumsum(a), (A, 6)),
    Puzzle(differences, np.diff, (A,)),
    Puzzle(stacked, lambda a, b: np.stack([a, b]), (A, B)),
    Puzzle(distance, lambda n: np.arange(n) - np.arange(n)[:, None], (4,)),
    Puzzle(rolled, lambda a, n: np.roll(a, 1), (A, 6)),
    Puzzle(reversed_order, lambda a, n: a[::-1], (A, 6)),
    Puzzle(masked, lambda m, lengths, n: m * (np.arange(n) < lengths[:, None]), (M, LENGTHS, 4)),
    Puzzle(counted, lambda ids, n: np.bincount(ids, minlength=n), (IDS, 5)),
    Puzzle(scattered, lambda v, ids, n: np.bincount(ids, v, minlength=n), (A, IDS, 5)),
    Puzzle(flattened, lambda m, n: m.ravel(), (M, 4)),
    Puzzle(repeated, lambda a, n: np.tile(a, (n, 1)), (A, 3)),
    Puzzle(bucketed, lambda a, bounds: np.digitize(a, bounds), (A, BOUNDS)),
    Puzzle(halved, lambda a: a.reshape(-1, 2).mean(axis=1), (A,)),
    Puzzle(distances, lambda a, b: ((a[:, None] - b) ** 2).sum(axis=-1), (M, M[:3])),
]


def solve(puzzle: Puzzle) -> npt.NDArray[Any]:
    """Return the result of a puzzle's expression."""
    tensors = [oc.tensor(a) if isinstance(a, np.ndarray) else a for a in puzzle.arguments]
    result, ctx = puzzle.function(*tensors), oc.Context()
    ctx.compile(oc.train.forward(result))()
    return ctx[result]


def main() -> int:
    """Return the number of puzzles whose result is NumPy's."""
    right = 0
    for puzzle in PUZZLES:
        is_right = np.allclose(solve(puzzle), puzzle.expected(*puzzle.arguments), atol=1e-5)
        right += is_right
        line = inspect.getsource(puzzle.function).splitlines()[-1].strip().removeprefix("return ")
        print(f"{puzzle.function.__name__:>14}  {'ok' if is_right else 'WRONG'}  {line}")
    print(f"{right} of {len(PUZZLES)} agree with NumPy")
    return right


if __name__ == "__main__":
    main()
