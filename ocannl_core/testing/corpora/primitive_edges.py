"""Every primitive in every declared format, at the edges of the format, beside the interpreter.

The operands take all pairs of NaN, infinities, signed zeros, subnormals, extremes, powers of two,
neighbors of all of these, arguments at which elementary functions change, and random patterns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ocannl_core.base.errors import CodegenError
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, Kind, from_bits, round_to
from ocannl_core.ir.numbers.primitives import Op
from ocannl_core.testing import number_programs
from ocannl_core.testing.allowances import Allowances, CaseResult, Outcome
from ocannl_core.testing.compare import Array, ulp_distances, wrong_cells
from ocannl_core.testing.primitive_tables import primitives, special_values, tolerance
from ocannl_core.testing.subject import Subject

_RANDOM_PATTERNS = 12
_TURNS = (0.5, 1.5, 2.5, 1e-3, math.pi / 2, math.log(2), 20.0, 88.7, 89.0, 103.9, 709.7, 745.2, 1e5)
"""Arguments where functions round to even, overflow, underflow, or reduce their argument."""


def results(
    subject: Subject, oracle: Subject, allowances: Allowances, wanted: str = ""
) -> Iterator[CaseResult]:
    """Yield the result of each primitive in each format, of those that the device declares.

    Args:
        wanted: A part of the names of the cases that run.
    """
    formats = subject.target.formats
    for dtype in dtypes.ALL:
        if formats is not None and dtype not in formats:
            continue
        ops = [op for op in primitives(dtype) if wanted in _name(op, dtype)]
        for op in ops:
            if not subject.has_primitive(op):
                text = f"{subject} does not declare {op.value.name}"
                yield CaseResult(_name(op, dtype), Outcome.SKIPPED, str(dtype), text)
        declared = tuple(op for op in ops if subject.has_primitive(op))
        if declared:
            yield from _of_format(subject, oracle, dtype, declared, allowances)


def _of_format(
    subject: Subject, oracle: Subject, dtype: DType, ops: tuple[Op, ...], allowances: Allowances
) -> Iterator[CaseResult]:
    try:
        yield from _compare(subject, oracle, dtype, ops, allowances)
    except Exception:  # which of them cannot be compiled or run?
        for op in ops:
            try:
                yield from _compare(subject, oracle, dtype, (op,), allowances)
            except CodegenError as error:
                yield CaseResult(_name(op, dtype), Outcome.FAILED, str(dtype), _line(error))
            except Exception as error:
                text = f"{type(error).__name__}: {_line(error)}"
                yield CaseResult(_name(op, dtype), Outcome.FAILED, str(dtype), text)


def _compare(
    subject: Subject, oracle: Subject, dtype: DType, ops: tuple[Op, ...], allowances: Allowances
) -> list[CaseResult]:
    program, arrays, outputs = number_programs.every_primitive(dtype, ops, edges(dtype))
    found, expected = subject.run(program, arrays), oracle.run(program, arrays)
    return [
        _result(op, dtype, found[node], expected[node], arrays, allowances)
        for op, node in outputs.items()
    ]


def _result(
    op: Op,
    dtype: DType,
    found: Array,
    expected: Array,
    arrays: dict[TensorNode, Array],
    allowances: Allowances,
) -> CaseResult:
    name, default = _name(op, dtype), tolerance(op, dtype)
    allowed = allowances.ulps(name, default)
    error = float(max(ulp_distances(found, expected, dtype)))
    wrong = wrong_cells(found, expected, dtype, allowed)
    if not wrong:
        needed = bool(wrong_cells(found, expected, dtype, default))
        return CaseResult(name, Outcome.PASSED, str(dtype), "", error, needed)
    _, worst = wrong[0]
    operands = ", ".join(f"{n.name} = {a[worst]!s}" for n, a in arrays.items())
    text = (
        f"{len(wrong)} of {found.size} results differ by more than {allowed.ulps} ulp; "
        f"at {operands}: {found[worst]!s} instead of {expected[worst]!s}"
    )
    return CaseResult(name, Outcome.FAILED, str(dtype), text, error)


def edges(dtype: DType) -> tuple[Any, ...]:
    """Return the edge values of a format."""
    if dtype.kind is Kind.WORD:
        return special_values(dtype)
    values = dict.fromkeys(map(_key, special_values(dtype)))
    if dtype.kind is not Kind.BOOL:
        random = np.random.default_rng(7)
        patterns = random.integers(0, 256, (_RANDOM_PATTERNS, 16), np.uint8)
        values |= dict.fromkeys(
            _key(from_bits(int.from_bytes(each.tobytes(), "little"), dtype)) for each in patterns
        )
    if dtype.is_float:
        turns = [round_to(sign * each, dtype) for each in _TURNS for sign in (1, -1)]
        powers = [round_to(2.0**k, dtype) for k in (-126, -24, -11, -8, 8, 11, 24, 53, 62, 63, 64)]
        values |= dict.fromkeys(map(_key, [*turns, *powers]))
    elif dtype.kind is not Kind.BOOL:
        powers = [1 << k for k in range(1, dtype.bits, 5)]
        near = [round_to(each + step, dtype) for each in powers for step in (-1, 1)]
        values |= dict.fromkeys(map(_key, near))
    return tuple(value for value, _ in values)


def _key(value: Any) -> tuple[Any, str]:
    """Return a number as a key that tells zeros apart."""
    return (math.nan, "nan") if value != value else (value, repr(value))


def _name(op: Op, dtype: DType) -> str:
    return f"primitives/{op.value.name}/{dtype}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
