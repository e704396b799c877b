"""Random numbers: of the library's generator, if the caller wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx.formats import format_numbered
from ocannl_onnx.registry import operator
from ocannl_onnx.values import Sizes, Value

if TYPE_CHECKING:
    from ocannl_onnx.graphs import Node


def allow(node: Node) -> None:
    """Refuse random numbers that the caller has not asked for: no two implementations agree."""
    if not node.importer.random:
        node.refuse(
            "no two implementations draw the same random numbers",
            "load(..., random=True) draws them from the seed of the session",
        )


def _filled(node: Node, kind: str, shape: Sizes, default: int = 1) -> Tensor:
    allow(node)
    found = format_numbered(node.attr("dtype", default))
    if found is None or not found.is_float or not found.carrier:
        node.invalid("Random numbers are floats.", str(node.attr("dtype", default)))
    zeros = (
        oc.broadcast_to(oc.number(0.0, dtype="float32"), *shape)
        if shape
        else oc.number(0.0, dtype="float32")
    )
    if kind == "uniform":
        low, high = node.attr("low", 0.0), node.attr("high", 1.0)
        cells: Any = (oc.uniform(dtype="float32") + zeros) * (high - low) + low
    else:
        cells = (oc.normal(dtype="float32") + zeros) * node.attr("scale", 1.0) + node.attr(
            "mean", 0.0
        )
    return oc.cast(cells, found.carrier)


@operator("RandomUniform")
def random_uniform(node: Node) -> Tensor:
    return _filled(node, "uniform", tuple(node.attr("shape", ())))


@operator("RandomNormal")
def random_normal(node: Node) -> Tensor:
    return _filled(node, "normal", tuple(node.attr("shape", ())))


@operator("RandomUniformLike")
def random_uniform_like(node: Node, x: Value) -> Tensor:
    return _filled(node, "uniform", x.shape, x.format.number)


@operator("RandomNormalLike")
def random_normal_like(node: Node, x: Value) -> Tensor:
    return _filled(node, "normal", x.shape, x.format.number)


@operator("Multinomial", since=7)
def multinomial(node: Node, x: Value) -> Tensor:
    node.refuse(
        "samples of categories are drawn by `oc.categorical`, from the outputs of the model"
    )
