"""Small user-written operations, and helpers for tests of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

from ocannl_core.runtime.context import Context
from ocannl_core.tensor.custom.op import Apply, Op
from ocannl_core.tensor.custom.variables import Aliases, Storage
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.literals import tensor
from ocannl_core.testing.compare import Array
from ocannl_core.train import forward

SAME = "...|...->... => ...|...->..."
"""One input, and an output of its shape."""

TWO = "...|...->...; ...|...->... => ...|...->..."
"""Two inputs and an output of one shape."""


class Scale(Op):
    """Multiply by a number."""

    __props__ = ("factor",)
    spec = SAME

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * inputs[0].dtype.type(self.factor)


class Split(Op):
    """The first and the second half of a row."""

    __props__ = ()
    spec = "2*n => n; n"

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        half = len(inputs[0]) // 2
        output_storage[0][0], output_storage[1][0] = inputs[0][:half], inputs[0][half:]


class Square(Op):
    """The square of every cell, with a gradient and C code."""

    __props__ = ()
    spec = SAME

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        output_storage[0][0] = inputs[0] * inputs[0]

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        return [2.0 * inputs[0] * output_gradients[0]]

    def c_code(self, node: Apply) -> str:
        return "for (int64_t i = 0; i < in0_size; ++i) out0[i] = in0[i] * in0[i];"


class Product(Op):
    """The product of two tensors, with its gradients."""

    __props__ = ()
    spec = TWO

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        output_storage[0][0] = inputs[0] * inputs[1]

    def grad(self, inputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> Sequence[Any]:
        x, y = inputs
        (gz,) = output_gradients
        return gz * y, gz * x


@dataclass(frozen=True, repr=False)
class Calling(Op):
    """An op that calls a function of inputs and storage.

    Attributes:
        function: The function of `perform`.
        spec: The shapes.
        title: The name in messages.
    """

    function: Callable[..., Any]
    spec: str = SAME
    destroy_map: Aliases = field(default_factory=dict, hash=False)
    view_map: Aliases = field(default_factory=dict, hash=False)
    title: str = "Calling"

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> Any:
        return self.function(inputs, output_storage)

    def __repr__(self) -> str:
        return self.title


def storing(
    function: Callable[..., Any],
    spec: str = SAME,
    *,
    destroy_map: Mapping[int | None, Sequence[int]] | None = None,
    view_map: Mapping[int | None, Sequence[int]] | None = None,
    title: str = "Calling",
) -> Calling:
    """Return an op of one output that a function of arrays computes."""

    def perform(inputs: Sequence[Array], storage: list[Storage]) -> None:
        storage[0][0] = function(*inputs)

    return Calling(perform, spec, destroy_map or {}, view_map or {}, title)


def increment(x: Array, y: Array) -> Array:
    """Add to an array in place, and return it."""
    x += y
    return x


def in_place(function: Callable[..., Any] = increment, title: str = "Calling") -> Calling:
    """Return an op of two inputs whose output takes over the memory of the first."""
    return storing(function, TWO, destroy_map={0: [0]}, title=title)


def lines(*cells: float) -> Tensor:
    """Return a literal with one output axis."""
    return tensor(list(cells))


def total(y: Tensor) -> Tensor:
    """Return the sum of all cells."""
    result: Tensor = einsum("...|...->... => 0", y)
    return result


def values(ctx: Context, *tensors: Tensor) -> list[Array]:
    """Return the cells of tensors after computing them all in one routine."""
    ctx.compile(reduce(add, map(forward, tensors)))()
    return [ctx[each] for each in tensors]
