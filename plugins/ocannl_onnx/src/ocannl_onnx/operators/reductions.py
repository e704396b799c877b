"""Reductions, scans and orders along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import Format
from ocannl_onnx.operators.movement import axis_of, moved, positions_up_to, section
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


_UNCHANGED = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
"""Reductions that leave a cell as it is where no axis is reduced."""


def _reduction(
    name: str, function: Callable[[Any, tuple[int, ...], bool], Any], empty: Callable[[Format], Any]
) -> None:
    """Add the operator of a reduction.

    Args:
        function: Returns the reduction of a tensor along axes, which it keeps or not.
        empty: Returns the reduction of no cells of a format.
    """

    @operator(name)
    def reduce(node: Node, x: Value, axes: Value | None = None) -> Any:
        where = node.attr("axes") if axes is None else node.known_sizes(axes, "axes")
        if not where:
            where = () if node.attr("noop_with_empty_axes", 0) else range(x.rank)
        along = tuple(sorted({axis_of(node, int(each), x.rank) for each in where}))
        keep = bool(node.attr("keepdims", 1))
        if not along:
            return x if name in _UNCHANGED else moved(x, function(x.tensor, (), keep))
        shape = [
            1 if at in along else size for at, size in enumerate(x.shape) if keep or at not in along
        ]
        if 0 in x.shape:
            return Value.of_array(np.full(shape, empty(x.format), x.format.numpy), x.format)
        result = node.sized(function(x.tensor, along, keep), shape)
        return moved(x, node.sized(oc.cast(result, x.format.carrier), shape))


def _sum(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    if not axes:
        return x
    dtype = str(x.dtype)
    return oc.sum(
        x, axis=axes, keepdims=keep, dtype="float32" if dtype in ("float16", "bfloat16") else dtype
    )


def _log_sum_exp(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return oc.logsumexp(x, axis=axes, keepdims=keep) if axes else x


def _least(format: Format) -> Any:
    if format.is_float:
        return -np.inf
    return False if format.name == "bool" else format.range[0]


def _greatest(format: Format) -> Any:
    if format.is_float:
        return np.inf
    return True if format.name == "bool" else format.range[1]


_reduction("ReduceSum", _sum, lambda _: 0)
_reduction(
    "ReduceMean", lambda x, axes, keep: oc.mean(x, axis=axes, keepdims=keep), lambda _: np.nan
)
_reduction("ReduceProd", lambda x, axes, keep: oc.prod(x, axis=axes, keepdims=keep), lambda _: 1)
_reduction("ReduceMax", lambda x, axes, keep: oc.max(x, axis=axes, keepdims=keep), _least)
_reduction("ReduceMin", lambda x, axes, keep: oc.min(x, axis=axes, keepdims=keep), _greatest)
_reduction("ReduceSumSquare", lambda x, axes, keep: _sum(x * x, axes, keep), lambda _: 0)
_reduction("ReduceL1", lambda x, axes, keep: _sum(oc.abs(x), axes, keep), lambda _: 0)
_reduction("ReduceL2", lambda x, axes, keep: oc.sqrt(_sum(x * x, axes, keep)), lambda _: 0)
_reduction("ReduceLogSum", lambda x, axes, keep: oc.log(_sum(x, axes, keep)), lambda _: -np.inf)
_reduction("ReduceLogSumExp", _log_sum_exp, lambda _: -np.inf)


def _arg(name: str, find: Callable[..., Any]) -> None:
    @operator(name)
    def position(node: Node, x: Value) -> Tensor:
        axis = axis_of(node, node.attr("axis", 0), x.rank)
        keep = bool(node.attr("keepdims", 1))
        if node.attr("select_last_index", 0):
            if x.extent(axis) is not None:
                node.refuse("the last of equal cells is not known along an extent at run time")
            found = x.shape[axis] - 1 - find(oc.flip(x.tensor, axis), axis=axis, keepdims=keep)
        else:
            found = find(x.tensor, axis=axis, keepdims=keep)
        return oc.cast(found, "int64")


_arg("ArgMax", oc.argmax)
_arg("ArgMin", oc.argmin)


def _scan(
    name: str, function: Callable[..., Any], reduce: Callable[..., Any], neutral: int
) -> None:
    @operator(name)
    def scan(node: Node, x: Value, axis: Value) -> Tensor:
        along = axis_of(node, int(node.known(axis, "axis").reshape(())), x.rank)
        reverse, size = node.attr("reverse", 0), x.shape[along]
        if (extent := x.extent(along)) is not None:
            # scans take whole lines: each cell is reduced from those up to it
            places = positions_up_to(extent, "int64")
            read, written = (places[:, None], places) if reverse else (places, places[:, None])
            compare = oc.less if node.attr("exclusive", 0) else oc.less_equal
            cells = oc.moveaxis(x.tensor, along, -1)[..., None, :]
            cells = oc.where(compare(read, written, dtype="bool"), cells, neutral)
            found = reduce(cells, axis=-1)
            result: Tensor = oc.moveaxis(found, -1, along)
            return result
        tensor = oc.flip(x.tensor, along) if reverse else x.tensor
        if node.attr("exclusive", 0):
            widths = [(1, 0) if at == along else (0, 0) for at in range(x.rank)]
            start: Any = float(neutral) if x.format.is_float else neutral
            tensor = section(oc.pad(tensor, widths, value=start), along, 0, size)
        result = function(tensor, axis=along, dtype=x.format.carrier)
        return oc.flip(result, along) if reverse else result


_scan("CumSum", oc.cumsum, oc.sum, 0)
_scan("CumProd", oc.cumprod, oc.prod, 1)


@operator("TopK")
def topk(node: Node, x: Value, k: Value | None = None) -> Any:
    count = node.attr("k") if k is None else int(node.known(k, "k").reshape(-1)[0])
    axis = axis_of(node, node.attr("axis", -1), x.rank)
    if not 0 <= count <= x.shape[axis]:
        node.invalid("`K` is at most the size of the axis.", f"{count} of {x.shape[axis]}")
    values, places = oc.topk(x.tensor, count, axis=axis, largest=bool(node.attr("largest", 1)))
    return moved(x, values), oc.cast(places, "int64")


__all__ = ["math"]
