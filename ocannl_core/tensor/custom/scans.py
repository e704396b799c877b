"""Running sums, products and extremes along an axis, in linear time on every backend.

Their gradients consist of such ops again, and so are differentiable any number of times:

    cumprod             c[i] = c[i-1] * x[i]
    its gradient        dx[i] = c[i-1] * s[i],  s[i] = g[i] + x[i+1] * s[i+1]

with `s` a linear recurrence, whose gradient is another one in the opposite direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ocannl_core.base.rounding import ceil_div
from ocannl_core.ir.numbers.dtypes import DType, dtype_of, float32
from ocannl_core.tensor.custom.along_axis import AlongAxis, c_type, line_of, widened
from ocannl_core.tensor.custom.op import Apply
from ocannl_core.tensor.custom.variables import Array, Storage
from ocannl_core.tensor.graph.precision import reduced_format
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives import pointwise_operations as pointwise
from ocannl_core.tensor.primitives.specifications import composite_operation

_TILE = 256
"""The neighboring lines whose state C code keeps in the first cache."""
_LINES = 4
"""The contiguous lines whose state C code keeps in registers: the cells of one wait for each
other.
"""


class _Loop(NamedTuple):
    """C statements for the cell `k` of a line, which is at `at`, in a loop over the lines `j`."""

    first: str
    """The statements for the first cell."""
    others: str
    is_backward: bool = False


class _Directed(AlongAxis):
    """The base of ops that run along an axis, from either end."""

    __props__: tuple[str, ...] | None = ("axis", "ranks", "is_reversed")

    def __init__(self, axis: int, ranks: tuple[int, int, int], is_reversed: bool = False) -> None:
        super().__init__(axis, ranks)
        self.is_reversed = is_reversed

    def _ordered(self, x: Array) -> Array:
        """Return a view with the axis in front, in the order of the run."""
        front = np.moveaxis(x, self.axis, 0)
        return front[::-1] if self.is_reversed else front

    @property
    def _start(self) -> str:
        """C declarations of a line's first cell in the order of the run, and of the step."""
        if self.is_reversed:
            return "const int64_t step = -inner, from = first + (n - 1) * inner;\n"
        return "const int64_t step = inner, from = first;\n"

    def _runs(self, state: Mapping[str, str], *loops: _Loop, end: str = "") -> str:
        """Return C code that runs loops over lines, over several ones cell by cell.

        Args:
            state: The variables of a line, arrays of one cell for each line, and their C types.
            end: The statements after the loops.
        """

        def over(most: int, width: str, distance: str) -> str:
            code = [f"{kind} {name}[{most}];\n" for name, kind in state.items()]
            each = f"for (int64_t j = 0; j < {width}; ++j) {{\n"
            for first, others, is_backward in loops:
                begin, toward = ("from + (n - 1) * step", "-") if is_backward else ("from", "+")
                code.append(f"{each}const int64_t at = {begin} + {distance} * (left + j);\n")
                code.append(f"{first}\n}}\nfor (int64_t k = 1, row = {begin} {toward} step; ")
                code.append(f"k < n; ++k, row {toward}= step)\n{each}")
                code.append(f"const int64_t at = row + {distance} * (left + j);\n{others}\n}}\n")
            return f"{''.join(code)}{each}{end}\n}}\n" if end else "".join(code)

        return (
            f"{self.counts()}const int64_t tiles = (inner + {_TILE - 1}) / {_TILE};\n"
            "if (n > 0 && inner > 1)\nfor (int64_t tile = begin; tile < end; ++tile) {\n"
            f"const int64_t first = tile / tiles * n * inner, left = tile % tiles * {_TILE};\n"
            f"const int64_t width = inner - left < {_TILE} ? inner - left : {_TILE};\n"
            f"{self._start}{over(_TILE, 'width', '1')}}}\n"
            f"else if (n > 0) {{\nconst int64_t first = 0;\n{self._start}"
            "int64_t left = begin;\n"
            f"for (; left + {_LINES} <= end; left += {_LINES}) {{\n"
            f"{over(_LINES, str(_LINES), 'n')}}}\n"
            f"for (; left < end; ++left) {{\n{over(1, '1', 'n')}}}\n}}"
        )

    def c_iterations(
        self, node: Apply, extents: Sequence[tuple[int, ...]]
    ) -> tuple[int, float] | None:
        """Return the number of tiles of neighboring lines, or of contiguous lines, and the cycles
        of each.
        """
        outer, n, inner = self.split(extents[0])
        width = min(max(inner, 1), _TILE)
        return outer * ceil_div(inner, _TILE), self.cycles * max(1, n * width)


class _OfKind(_Directed):
    """The base of running sums, products and extremes, and of the gradients of extremes."""

    __props__ = ("kind", "axis", "ranks", "is_reversed")

    def __init__(
        self, kind: str, axis: int, ranks: tuple[int, int, int], is_reversed: bool = False
    ) -> None:
        super().__init__(axis, ranks, is_reversed)
        self.kind = kind
        """One of "sum", "prod", "max" and "min"."""


class Scan(_OfKind):
    """A running sum, product, maximum or minimum.

    A running sum of floats begins again in each block of `MAX_BLOCK_TERMS` cells, to which the sum
    of the earlier blocks is added: one accumulator of float32 takes no more terms once it is
    `2**24` times as large as each term.
    """

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        from ocannl_core.schedule.machine_model import MAX_BLOCK_TERMS

        scans = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
        x = np.flip(inputs[0], self.axis) if self.is_reversed else inputs[0]
        wide = widened(x)
        with np.errstate(all="ignore"):
            found = np.empty_like(wide)
            cells, result = (np.moveaxis(each, self.axis, 0) for each in (wide, found))
            size = MAX_BLOCK_TERMS if self._has_blocks(dtype_of(wide.dtype)) else max(1, len(cells))
            for start in range(0, len(cells), size):
                block = result[start : start + size]
                scans[self.kind].accumulate(
                    cells[start : start + size], dtype=wide.dtype, out=block
                )
                if start:
                    block += result[start - 1]
            found = found.astype(inputs[0].dtype)
        output_storage[0][0] = np.flip(found, self.axis) if self.is_reversed else found

    def _has_blocks(self, dtype: DType) -> bool:
        return self.kind == "sum" and dtype is float32

    def c_code(self, node: Apply) -> str:
        dtype = node.inputs[0].dtype
        kind = c_type(dtype)
        if self._has_blocks(dtype):
            return self._sums_in_blocks()
        step = {
            "sum": f"({kind})(last[j] + x)",
            "prod": f"({kind})(last[j] * x)",
            "max": "last[j] != last[j] || last[j] >= x ? last[j] : x",
            "min": "last[j] != last[j] || last[j] <= x ? last[j] : x",
        }[self.kind]
        wraps = dtype.is_integer and self.kind in ("sum", "prod")
        symbol = {"sum": "+", "prod": "*"}.get(self.kind, "")
        if wraps:  # signed integers wrap around, as unsigned ones do in C
            step = f"({kind})((uint64_t)last[j] {symbol} (uint64_t)x)"
        others = f"const {kind} x = in0[at];\nout0[at] = last[j] = {step};"
        return self._runs({"last": kind}, _Loop("out0[at] = last[j] = in0[at];", others))

    def _sums_in_blocks(self) -> str:
        from ocannl_core.schedule.machine_model import MAX_BLOCK_TERMS

        others = (
            f"if (k % {MAX_BLOCK_TERMS}) last[j] += in0[at];\n"
            "else {\nbefore[j] = out0[at - step];\nlast[j] = in0[at];\n}\n"
            f"out0[at] = k < {MAX_BLOCK_TERMS} ? last[j] : before[j] + last[j];"
        )
        first = "before[j] = 0;\nout0[at] = last[j] = in0[at];"
        return self._runs({"last": "float", "before": "float"}, _Loop(first, others))

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        (x,), (g,) = inputs, output_gradients
        where = (self.axis, self.ranks, self.is_reversed)
        match self.kind:
            case "sum":
                return [Scan("sum", self.axis, self.ranks, not self.is_reversed)(g)]
            case "prod":
                return [RunningProductGradient(*where)(x, g)]
            case _:
                return [RunningExtremeGradient(self.kind, *where)(x, g)]


class RunningProductGradient(_Directed):
    """The gradient of a running product.

    `dx[i] = (x[0] * ... * x[i-1]) * s[i]` with `s[i] = g[i] + x[i+1] * s[i+1]`: nothing is divided,
    so that zeros have their gradient, too.
    """

    sizes = "n; n => n"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        wide_inputs = list(map(widened, inputs))
        found = np.zeros_like(wide_inputs[0])
        x, g, result = map(self._ordered, (*wide_inputs, found))
        with np.errstate(all="ignore"):
            rest = np.zeros_like(x[:1].sum(axis=0))
            for k in range(len(x))[::-1]:
                rest = g[k] + (x[k + 1] * rest if k + 1 < len(x) else 0)
                result[k] = rest
            before = np.ones_like(rest)
            for k in range(len(x)):
                result[k] *= before
                before = before * x[k]
            output_storage[0][0] = found.astype(inputs[0].dtype)

    def c_code(self, node: Apply) -> str:
        kind = c_type(node.inputs[0].dtype)
        rest = _Loop(
            "out0[at] = rest[j] = in1[at] + 0;",
            "out0[at] = rest[j] = in1[at] + in0[at + step] * rest[j];",
            is_backward=True,
        )
        before = _Loop("before[j] = in0[at];", "out0[at] *= before[j];\nbefore[j] *= in0[at];")
        return self._runs({"rest": kind, "before": kind}, rest, before)

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        (x, g), (h,) = inputs, output_gradients
        where = (self.axis, self.ranks)
        before = Shifted(*where, self.is_reversed, 1.0)(Scan("prod", *where, self.is_reversed)(x))
        rest = LinearRecurrence(*where, not self.is_reversed, lags=True)
        of_before = Shifted(*where, not self.is_reversed)(h * rest(x, g))
        of_factors, of_terms = rest.grad([x, g], [h * before])
        return [
            RunningProductGradient(*where, self.is_reversed)(x, of_before) + of_factors,
            of_terms,
        ]


class LinearRecurrence(_Directed):
    """The linear recurrence `s[i] = b[i] + a[i] * s[i-1]`, with 0 before the first cell."""

    __props__ = ("axis", "ranks", "is_reversed", "lags")
    sizes = "n; n => n"

    def __init__(
        self, axis: int, ranks: tuple[int, int, int], is_reversed: bool, *, lags: bool
    ) -> None:
        super().__init__(axis, ranks, is_reversed)
        self.lags = lags
        """True for `a[i-1]` in place of `a[i]`."""

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        wide_inputs = list(map(widened, inputs))
        found = np.zeros_like(wide_inputs[1])
        a, b, s = map(self._ordered, (*wide_inputs, found))
        with np.errstate(all="ignore"):
            for k in range(len(b)):
                s[k] = b[k] + (a[k - self.lags] * s[k - 1] if k else 0)
            output_storage[0][0] = found.astype(inputs[0].dtype)

    def c_code(self, node: Apply) -> str:
        kind = c_type(node.inputs[0].dtype)
        factor = "in0[at - step]" if self.lags else "in0[at]"
        others = f"out0[at] = last[j] = in1[at] + {factor} * last[j];"
        return self._runs({"last": kind}, _Loop("out0[at] = last[j] = in1[at] + 0;", others))

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        (a, b), (g,) = inputs, output_gradients
        where = (self.axis, self.ranks)
        of_terms = LinearRecurrence(*where, not self.is_reversed, lags=not self.lags)(a, g)
        sums = self(a, b)
        if self.lags:
            return [Shifted(*where, not self.is_reversed)(of_terms) * sums, of_terms]
        return [of_terms * Shifted(*where, self.is_reversed)(sums), of_terms]


class Shifted(_Directed):
    """The cells moved by one position: `y[i] = x[i-1]`."""

    __props__ = ("axis", "ranks", "is_reversed", "first")

    def __init__(
        self, axis: int, ranks: tuple[int, int, int], is_reversed: bool = False, first: float = 0.0
    ) -> None:
        super().__init__(axis, ranks, is_reversed)
        self.first = first
        """The number in the first cell."""

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        found = np.full_like(inputs[0], self.first)
        self._ordered(found)[1:] = self._ordered(inputs[0])[:-1]
        output_storage[0][0] = found

    def c_code(self, node: Apply) -> str:
        c_type(node.inputs[0].dtype)
        return self._runs({}, _Loop(f"out0[at] = {self.first!r};", "out0[at] = in0[at - step];"))

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        return [Shifted(self.axis, self.ranks, not self.is_reversed)(output_gradients[0])]


class _OfExtremes(_OfKind):
    """Base of ops over the places of running extremes: the first cells that equal them."""

    sizes = "n; n => n"

    def _places(self, x: Array) -> Array:
        """Return the places for an array in the order of the run."""
        found = np.zeros(x.shape, np.int64)
        place = np.zeros(x.shape[1:], np.int64)
        for k in range(len(x)):
            last = np.take_along_axis(x, place[None], axis=0)[0]
            stays = last >= x[k] if self.kind == "max" else last <= x[k]
            place = np.where(np.isnan(last) | stays, place, k)
            found[k] = place
        return found

    @property
    def _changes(self) -> str:
        """The C condition of a cell that is greater than the extreme before it."""
        return f"last[j] == last[j] && !(last[j] {'>=' if self.kind == 'max' else '<='} in0[at])"

    def _state(self, node: Apply) -> dict[str, str]:
        """Return the last extreme, and a value of its place."""
        last, value = (c_type(each.dtype) for each in node.inputs)
        return {"last": last, "value": value}


class RunningExtremeGradient(_OfExtremes):
    """The gradient of a running maximum or minimum: it goes to the first cell that equals it."""

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        wide_inputs = list(map(widened, inputs))
        found = np.zeros_like(wide_inputs[1])
        x, g, result = map(self._ordered, (*wide_inputs, found))
        with np.errstate(all="ignore"):
            for place, term in zip(self._places(x), g, strict=True):
                chosen = np.take_along_axis(result, place[None], axis=0) + term
                np.put_along_axis(result, place[None], chosen, axis=0)
            output_storage[0][0] = found.astype(inputs[0].dtype)

    def c_code(self, node: Apply) -> str:
        first = "last[j] = in0[at];\nvalue[j] = in1[at] + 0;\nplace[j] = at;\nout0[at] = 0;"
        others = (
            f"if ({self._changes}) {{\nout0[place[j]] = value[j];\n"
            "last[j] = in0[at];\nvalue[j] = 0;\nplace[j] = at;\n}\n"
            "value[j] += in1[at];\nout0[at] = 0;"
        )
        state = self._state(node) | {"place": "int64_t"}
        return self._runs(state, _Loop(first, others), end="out0[place[j]] = value[j];")

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        where = (self.kind, self.axis, self.ranks, self.is_reversed)
        return [0.0, RunningExtremeCells(*where)(inputs[0], output_gradients[0])]


class RunningExtremeCells(_OfExtremes):
    """The cells of the second operand at the places of running maxima or minima of the first."""

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        found = np.empty_like(inputs[1])
        x, cells, result = map(self._ordered, (widened(inputs[0]), inputs[1], found))
        with np.errstate(all="ignore"):
            result[...] = np.take_along_axis(cells, self._places(x), axis=0)
        output_storage[0][0] = found

    def c_code(self, node: Apply) -> str:
        first = "last[j] = in0[at];\nout0[at] = value[j] = in1[at];"
        changed = "last[j] = in0[at];\nvalue[j] = in1[at];"
        others = f"if ({self._changes}) {{\n{changed}\n}}\nout0[at] = value[j];"
        return self._runs(self._state(node), _Loop(first, others))

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        where = (self.kind, self.axis, self.ranks, self.is_reversed)
        return [0.0, RunningExtremeGradient(*where)(inputs[0], output_gradients[0])]


def products_of_others(x: Tensor, axis: int) -> Tensor:
    """Return, for each cell, the product of the other cells along an axis."""
    given, own, position = line_of("prod", x, axis)
    before, after = (
        Shifted(position, own.ranks, is_reversed, 1.0)(
            Scan("prod", position, own.ranks, is_reversed)(given)
        )
        for is_reversed in (False, True)
    )
    result: Tensor = before * after
    return result


def _scan(kind: str, x: Any, axis: int | None, dtype: DType | str | None = None) -> Any:
    given, own, position = line_of(f"cum{kind}", x, axis)
    wanted = given.dtype if dtype is None else dtype_of(dtype)
    if dtype is None and kind in ("sum", "prod"):
        wanted = reduced_format(wanted)
    if wanted is not given.dtype:
        given = pointwise.cast(given, wanted)
    with composite_operation(f"cum{kind}", (given,)):
        return Scan(kind, position, own.ranks)(given)


def cumsum(x: Any, axis: int | None = None, *, dtype: DType | str | None = None) -> Any:
    """Return the running sum along an axis, each cell included; of all cells in row-major order
    when no axis is given.

    Args:
        dtype: The number format of the sums; as for `oc.sum` when not given.
    """
    return _scan("sum", x, axis, dtype)


def cumprod(x: Any, axis: int | None = None, *, dtype: DType | str | None = None) -> Any:
    """Return the running product along an axis, each cell included; arguments as for `cumsum`."""
    return _scan("prod", x, axis, dtype)


def cummax(x: Any, axis: int | None = None) -> Any:
    """Return the running maximum along an axis, each cell included; NaN from the first NaN on."""
    return _scan("max", x, axis)


def cummin(x: Any, axis: int | None = None) -> Any:
    """Return the running minimum along an axis, each cell included; NaN from the first NaN on."""
    return _scan("min", x, axis)
