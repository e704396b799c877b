"""Products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ocannl_core as oc
from survey_cases import Case, floats


def cases() -> Iterator[Case]:
    """Yield all products."""
    yield from _products()


def _products() -> Iterator[Case]:
    def pairs(*sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> Any:
        return tuple(
            (lambda a=a, b=b: {"a": floats(*a), "b": floats(*b, seed=1)}) for a, b in sizes
        )

    yield Case(
        name="matmul",
        covers=("matmul",),
        arrays=pairs(((512, 512), (512, 512)), ((100, 37), (37, 61))),
        own=oc.matmul,
        torch=lambda t, a, b: a @ b,
        batch_axes={"a": 0, "b": 0},
        input_axes={"a": 1, "b": 1},
    )
    yield Case(
        name="matmul, batched",
        covers=("matmul",),
        arrays=pairs(((16, 128, 64), (16, 64, 128)), ((5, 33, 17), (5, 17, 29))),
        own=oc.matmul,
        torch=lambda t, a, b: a @ b,
        batch_axes={"a": 1, "b": 1},
        input_axes={"a": 1, "b": 1},
    )
    yield Case(
        name="matrix and vector",
        covers=("matmul",),
        arrays=pairs(((1024, 1024), (1024,)), ((333, 77), (77,))),
        own=oc.matmul,
        torch=lambda t, a, b: a @ b,
        batch_axes={"a": 0, "b": 0},
        input_axes={"a": 1},
    )
    yield Case(
        name="einsum with the second operand transposed",
        covers=("einsum",),
        arrays=pairs(((256, 512), (384, 512)), ((100, 37), (61, 37))),
        own=lambda a, b: oc.einsum("i|k; j|k => i|j", a, b),
        torch=lambda t, a, b: t.einsum("ik,jk->ij", a, b),
    )
    yield Case(
        name="outer_sum",
        covers=("primitives.outer_sum",),
        arrays=pairs(((512,), (512,)), ((77,), (1001,))),
        own=lambda a, b: oc.primitives.outer_sum("i; j => i, j", a, b),
        torch=lambda t, a, b: a[:, None] + b,
        batch_axes={"a": 0, "b": 0},
    )
    yield Case(
        name="tropical",
        covers=("primitives.tropical",),
        arrays=pairs(((64, 64), (64, 64)), ((33, 17), (17, 29))),
        own=lambda a, b: oc.primitives.tropical("i, k; k, j => i, j", a, b),
        torch=lambda t, a, b: (a[:, :, None] + b).amax(1),
        batch_axes={"a": 0, "b": 0},
    )
