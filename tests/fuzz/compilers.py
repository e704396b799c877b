"""Random reductions over axes that run in all directions, compared bit for bit between compilers.

    python -m tests.fuzz.run --compilers gcc-11 gcc-12 clang --count 1000 --seed 1

Views of small tensors are reversed, strided and transposed in all positions, combined, and reduced
along some of their axes. The interpreter has the right bits. Without schedules C has its order of
terms, so that numbers are any; with schedules they are integers, of which every sum is exact.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.train import forward

KNOWN = ("cc", "gcc-11", "gcc-12", "gcc-13", "gcc-14", "clang", "clang-14", "clang-19", "ziglang")
"""The compilers that a test looks for; the last one is a Python package."""
TOGETHER = 20
"""The expressions of one routine."""
EXTENTS = (1, 2, 2, 3, 4, 4, 7, 8, 8, 16, 17)
MOST_CELLS = 2048
FORMATS = (
    "float32",
    "float32",
    "float32",
    "float64",
    "float64",
    "int32",
    "int64",
    "int8",
    "float16",
    "bfloat16",
)


@dataclass(frozen=True)
class Expression:
    """A random expression.

    Attributes:
        text: It, as an author writes it, of `x` and `y`.
        dtype: The format.
        x: The first operand. y: The second one.
    """

    text: str
    dtype: str
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]

    def build(self) -> Any:
        """Return it as a tensor."""
        cells = {
            name: oc.cast(oc.tensor(each), self.dtype)
            for name, each in (("x", self.x), ("y", self.y))
        }
        return eval(self.text, {"oc": oc, **cells})

    def __str__(self) -> str:
        return f"{self.text}  # {self.dtype}, x {self.x.shape}, y {self.y.shape}"


def expression_of(random: Random, *, exact: bool) -> Expression:
    """Return a random expression, with integers as operands where sums are to be exact."""
    rank = random.choice((1, 2, 2, 2, 3, 3))
    extents: list[int] = []
    for _ in range(rank):
        room = MOST_CELLS // int(np.prod(extents, initial=1))
        extents.append(random.choice([each for each in EXTENTS if each <= room]))
    dtype = random.choice(FORMATS)
    views, arrays = [], []
    for name in ("x", "y"):
        view, array = _view(random, name, extents, is_integer=exact or "int" in dtype)
        views.append(view)
        arrays.append(array)
    x, y = views
    term = random.choice(
        (
            x,
            x,
            f"{x} * {y}",
            f"{x} + {y}",
            f"{x} * 2 - {y}",
            f"oc.where({x} < {y}, {x}, {y})",
            f"oc.relu({x})",
        )
    )
    axes = tuple(axis for axis in range(rank) if random.random() < 0.8) or (rank - 1,)
    over = "" if len(axes) == rank and random.random() < 0.5 else f", axis={axes}"
    reduced = random.choice(("sum", "sum", "sum", "max", "min"))
    return Expression(f"oc.{reduced}({term}{over})", dtype, arrays[0], arrays[1])


def _view(
    random: Random, name: str, extents: Sequence[int], *, is_integer: bool
) -> tuple[str, np.ndarray[Any, Any]]:
    """Return a view with some extents as text, and the array that it is of."""
    order = list(range(len(extents)))
    if random.random() < 0.3:
        random.shuffle(order)
    dims, subscripts = [], []
    for axis in order:
        step = random.choice((1, 1, 1, -1, -1, -1, -1, -1, 2, -2))
        dims.append((extents[axis] - 1) * abs(step) + 1)
        subscripts.append("" if step == 1 else f"::{step}")
    view = (
        name if not any(subscripts) else f"{name}[{', '.join(each or ':' for each in subscripts)}]"
    )
    if order != sorted(order):
        view = f"oc.permute({view}, {tuple(order.index(axis) for axis in range(len(order)))})"
    size = int(np.prod(dims))
    if is_integer:
        cells = [float(random.randint(-3, 3)) for _ in range(size)]
    else:
        cells = [random.uniform(-2, 2) for _ in range(size)]
    return view, np.array(cells, np.float32).reshape(dims)


def values_of(expressions: Sequence[Expression], backend: str) -> list[Any]:
    """Return the values of expressions on a backend, computed by one routine."""
    with oc.Session():
        tensors = [each.build() for each in expressions]

        @oc.cd
        def code() -> None:
            for each in tensors:
                forward(each)

        context = oc.Context(backend)
        context.compile(code(), keep=tensors)()
        return [np.asarray(context[each]) for each in tensors]


def differences(
    seed: int, count: int, compilers: Sequence[str], arch: str | None = None
) -> Iterator[tuple[str, Expression, str]]:
    """Yield the compiler, the expression, and both values, wherever they differ.

    Args:
        seed: The source of choices.
        count: The number of expressions.
        compilers: The commands.
        arch: The processor to compile for; None for this one.
    """
    for first in range(0, count, TOGETHER):
        for schedule in ("none", "default"):
            random = Random(f"compilers {seed} {first} {schedule}")
            chosen = [
                expression_of(random, exact=schedule == "default")
                for _ in range(min(TOGETHER, count - first))
            ]
            with settings.overrides(schedule=schedule, **({"cpu_c__arch": arch} if arch else {})):
                right = values_of(chosen, "interp")
                for compiler in compilers:
                    with settings.overrides(cpu_c__cc=compiler):
                        found = values_of(chosen, "cpu_c")
                    for expression, a, b in zip(chosen, right, found, strict=True):
                        if a.tobytes() != b.tobytes():
                            yield compiler, expression, f"{b.tolist()}\nright: {a.tolist()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line selects; return 1 if there were differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("compilers", nargs="*", help="commands; those of KNOWN that there are")
    parser.add_argument("--count", type=int, default=1000, help="how many expressions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arch", help="the processor to compile for")
    parser.add_argument("--stop-after", type=int, default=10, help="how many differences to report")
    given = parser.parse_args(arguments)
    compilers = given.compilers or [each for each in KNOWN if shutil.which(each)]
    started, failures = time.monotonic(), 0
    for compiler, expression, detail in differences(given.seed, given.count, compilers, given.arch):
        failures += 1
        print(f"# ----- {compiler}\n{expression}\n{detail}\n", flush=True)
        if failures >= given.stop_after:
            break
    print(
        f"{given.count} expressions, {', '.join(compilers)}: {failures} differences "
        f"in {time.monotonic() - started:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
