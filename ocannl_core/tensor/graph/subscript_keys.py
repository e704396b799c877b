"""Keys of subscripts as they are written: `x[0:2]`, `x[-1]`, `x[..., None]`, `x[i:i+n]`."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from types import EllipsisType
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.ir import indexing
from ocannl_core.shape.language import subscripts
from ocannl_core.tensor.graph.expression import Expression

_RULE = "A key is a position, a slice, `...` or None; positions are integers and static indices."


def key_text(key: object) -> str:
    """Return a key as it is written between brackets."""
    match key:
        case tuple() if key:
            return ", ".join(map(key_text, key))
        case slice():
            bounds = (key.start, key.stop) if key.step is None else (key.start, key.stop, key.step)
            return ":".join("" if bound is None else key_text(bound) for bound in bounds)
        case EllipsisType():
            return "..."
        case indexing.StaticIndex():
            return key.name
        case indexing.IndexExpression():
            return str(key)
        case np.ndarray():
            return f"an array of shape {key.shape}"
        case _:
            return repr(key)


def parts_of(key: object) -> tuple[Any, ...]:
    """Return the parts of a key, in order."""
    return key if isinstance(key, tuple) else (key,)


def is_everything(key: object) -> bool:
    """Return True for the key of `c[:]`."""
    return isinstance(key, slice) and key == slice(None)


def selected_rows(key: object) -> tuple[Any, int] | None:
    """Return the positions and the axis of `x[ids]` and `x[:, ids]`; None for other keys."""
    parts = key if isinstance(key, tuple) else (key,)
    places = [place for place, part in enumerate(parts) if isinstance(part, Expression)]
    if not places:
        return None
    others = [part for part in parts if not isinstance(part, Expression)]
    around = [place for place, part in enumerate(parts) if part is ...]
    if len(places) > 1 or len(around) > 1 or not all(p is ... or is_everything(p) for p in others):
        pairs = (
            "oc.take_along(x, ids[..., None], axis=-1) selects one cell of each row, "
            "oc.flatten(x)[i * 8 + j] cells of a matrix with 8 columns by pairs of positions; "
            "oc.take(oc.take(x, i, axis=0), j, axis=1) selects rows and columns"
        )
        raise UsageError.at_caller(
            "A tensor of positions selects along one axis, beside `:` and `...` for the others.",
            found=f"x[{key_text(key)}]",
            fix=pairs if len(places) > 1 else "give other keys first: x[1:][:, ids]",
        )
    (place,) = places
    is_from_end = bool(around) and around[0] < place
    return parts[place], place - len(parts) if is_from_end else place


def parse_keys(parts: Sequence[object], text: str) -> subscripts.Keys:
    """Return the keys of a subscript."""
    keys = tuple(_key(part, text) for part in parts)
    if sum(isinstance(key, subscripts.Rest) for key in keys) > 1:
        raise _error(
            "`...` stands once for the axes without a key.", text, "write : for each other axis"
        )
    return keys


def _key(part: object, text: str) -> subscripts.Key:
    match part:
        case None:
            return subscripts.NewAxis()
        case EllipsisType():
            return subscripts.Rest()
        case slice():
            return _slice(part, text)
        case bool() | np.bool_():
            raise _error(_RULE, text, "oc.where(condition, x, 0) chooses cell by cell")
        case list() | np.ndarray():
            raise _error(_RULE, text, "oc.take(x, ids) takes the positions in oc.tensor([...])")
        case Expression():
            raise _error(_RULE, text, "oc.take(x, ids) takes positions that a tensor holds")
    found = None if isinstance(part, indexing.StaticExtent) else indexing.static_terms(part)
    if found is None:
        fix = "x[0], x[1:3], x[..., -1]; oc.einsum names axes, and no axis of a tensor has a name"
        raise _error(
            _RULE, text, "convert the key with int(...)" if isinstance(part, Real) else fix
        )
    terms, offset = found
    return (
        subscripts.Position(offset) if not terms else subscripts.Position(_run_time(terms, offset))
    )


def _slice(part: slice, text: str) -> subscripts.StaticSlice | subscripts.DynamicSlice:
    bounds = [_bound(bound, text) for bound in (part.start, part.stop)]
    step = 1 if part.step is None else part.step
    if not isinstance(step, Integral) or isinstance(step, bool):
        raise _error("The step of a slice is an integer.", text)
    step = int(step)
    if not step:
        raise _error("The step of a slice is not 0.", text, "x[::-1] reverses an axis")
    start, stop = bounds
    if all(bound is None or not bound[0] for bound in bounds):
        first, last = (None if bound is None else bound[1] for bound in bounds)
        return subscripts.StaticSlice(first, last, step)
    if start is None or stop is None or (distance := _distance(start, stop)) is None:
        raise _error(
            "The length of a slice is known when code is compiled; static indices only move it.",
            text,
            "x[i:i+4] has 4 positions",
        )
    return subscripts.DynamicSlice(_run_time(*start), len(range(0, distance, step)), step)


_Bound = tuple[tuple[tuple[int, indexing.StaticIndex], ...], int]
"""The terms and the offset of a bound."""


def _distance(start: _Bound, stop: _Bound) -> int | None:
    """Return the difference of two bounds, or None if it depends on a static index."""
    terms = [*stop[0], *((-coefficient, index) for coefficient, index in start[0])]
    found = indexing.affine(terms, stop[1] - start[1])
    return found.value if isinstance(found, indexing.FixedIndex) else None


def _bound(bound: object, text: str) -> _Bound | None:
    if bound is None:
        return None
    found = indexing.static_terms(bound)
    if found is None:
        raise _error("The bounds of a slice are integers and static indices.", text)
    return found


def _run_time(
    terms: Sequence[tuple[int, indexing.StaticIndex]], offset: int
) -> indexing.VarIndex | indexing.AffineIndex:
    index = indexing.affine(terms, offset)
    assert isinstance(index, indexing.VarIndex | indexing.AffineIndex), (
        "indices that cancel are numbers"
    )
    return index


def _error(rule: str, text: str, fix: str = "") -> UsageError:
    return UsageError.at_caller(rule, found=text, fix=fix)
