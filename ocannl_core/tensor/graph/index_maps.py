"""Index maps that users state for one assignment, in place of a logic.

    c[oc.neutral] += oc.multiply(x, w, projections="2*o + k; k => o over o<3, k<2")

One index for each axis of each operand, in buffer order (batch, output, input), then the indices of
the result, then the domain with the outermost variable first. No shapes are inferred from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ocannl_core.base.errors import ShapeError, SpecError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir import indexing

_RANGE = r"([A-Za-z_]\w*)\s*<\s*([0-9]+)"
_TERM = r"([+-]?)\s*(?:(?:([0-9]+)\s*\*\s*)?([A-Za-z_]\w*)|([0-9]+))\s*"


@dataclass(frozen=True, slots=True)
class IndexMaps:
    """Stated index maps of an assignment."""

    text: str
    domain: tuple[tuple[indexing.LoopVar, int], ...]
    """The loop variables with their extents, outermost first."""
    result: indexing.IndexMap
    operands: tuple[indexing.IndexMap, ...]

    def projections(
        self, result: tuple[int, ...], operands: Sequence[tuple[int, ...]], origin: Origin
    ) -> indexing.Projections:
        """Return the index maps as projections over tensors of these extents."""
        for position, (maps, dims) in enumerate(
            zip((*self.operands, self.result), (*operands, result), strict=True), start=1
        ):
            name = f"operand {position}" if position <= len(operands) else "the result"
            self._check(maps, dims, name, origin)
        return indexing.Projections(
            self.domain, self.result, self.operands, result, tuple(operands)
        )

    def _check(
        self, maps: indexing.IndexMap, dims: tuple[int, ...], name: str, origin: Origin
    ) -> None:
        if len(maps) != len(dims):
            raise ShapeError(
                "Stated projections have one index for each axis.",
                found=f"{len(maps)} for the {len(dims)} axes of {name} in {self.text!r}",
                where=str(origin),
            )
        extents = dict(self.domain)
        for axis, (index, extent) in enumerate(zip(maps, dims, strict=True)):
            terms, low = indexing.as_affine(index)
            high = low
            for coefficient, var in terms:
                assert isinstance(var, indexing.LoopVar)
                reach = coefficient * (extents[var] - 1)
                low, high = low + min(reach, 0), high + max(reach, 0)
            if low < 0 or high >= extent:
                raise ShapeError(
                    "Stated projections stay inside the axes.",
                    found=f"positions {low} to {high} of axis {axis} of {name}, whose size is "
                    f"{extent}, in {self.text!r}",
                    where=str(origin),
                )


def index_maps(text: str, operands: int, where: str) -> IndexMaps:
    """Return the index maps of a text.

    Args:
        text: `operand; operand => result over variable<extent, ...`.
    """
    maps, _, ranges = text.partition(" over ")
    *left, right = maps.split("=>")
    sources = left[0].split(";") if left else []
    if len(left) != 1 or len(sources) != operands:
        raise _malformed(text, f"{len(sources)} operands of {operands}", where)
    variables: dict[str, tuple[indexing.LoopVar, int]] = {}
    for part in filter(None, map(str.strip, ranges.split(","))):
        if not (match := re.fullmatch(_RANGE, part)) or match[1] in variables or match[2] == "0":
            raise _malformed(text, part, where)
        variables[match[1]] = (indexing.fresh_var(match[1]), int(match[2]))

    def index_map(side: str) -> indexing.IndexMap:
        axes = side.split(",") if side.strip() else []
        return tuple(_index(axis.strip(), variables, text, where) for axis in axes)

    return IndexMaps(
        text,
        tuple(variables.values()),
        index_map(right),
        tuple(index_map(source) for source in sources),
    )


def _index(
    axis: str, variables: dict[str, tuple[indexing.LoopVar, int]], text: str, where: str
) -> indexing.AxisIndex:
    terms: list[tuple[int, indexing.LoopVar]] = []
    offset = position = 0
    while position < len(axis):
        match = re.compile(_TERM).match(axis, position)
        if not match or (position and not match[1]):
            raise _malformed(text, axis, where)
        sign = -1 if match[1] == "-" else 1
        if match[3] is None:
            offset += sign * int(match[4])
        elif match[3] in variables:
            terms.append((sign * int(match[2] or 1), variables[match[3]][0]))
        else:
            raise _malformed(text, f"{match[3]}, which has no range", where)
        position = match.end()
    if not axis:
        raise _malformed(text, "an axis without an index", where)
    return indexing.affine(terms, offset)


def _malformed(text: str, found: str, where: str) -> SpecError:
    return SpecError(
        "Projections state an index for each axis, and the range of each variable.",
        found=f"{found} in {text!r}",
        where=where,
        fix='write them as in projections="2*o + k; k => o over o<3, k<2"',
    )
