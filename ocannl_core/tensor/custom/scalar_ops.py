"""Ops made from functions of numbers: cell by cell, or as reductions."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.ir.numbers.dtypes import promote
from ocannl_core.shape.language.constraints import Constraint, RowEqual
from ocannl_core.shape.language.shape_terms import FreshVariables, Shape
from ocannl_core.shape.translation.logic import Pointwise, relation_of
from ocannl_core.tensor.custom.op import Apply, Op
from ocannl_core.tensor.custom.variables import Aliases, Array, Storage, TensorType, as_variables
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import check_fields

Gradient = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Any]]
"""As `grad` of an op: from inputs and gradients of outputs to gradients of inputs."""


def parameters_of_function(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    """Return the parameters of a function."""
    try:
        return tuple(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        raise UsageError.at_caller(
            "The function of an operation states its parameters.",
            found=repr(function),
            fix="lambda x: ...",
        ) from None


class PointwiseOp(Op):
    """Base class of ops that treat each cell by itself: operands broadcast."""

    gradient: Gradient | None = None
    inplace: bool = False
    broadcasts = True

    @property
    def grad(self) -> Gradient | None:
        """The gradient function; None means an op without `grad`."""
        return self.gradient

    @property
    def destroy_map(self) -> Aliases:  # type: ignore[override]
        return {0: [0]} if self.inplace else {}

    def apply(self, count: int, inputs: Sequence[Any]) -> Apply:
        """Return the op applied to `count` inputs of any shapes that broadcast."""
        self.check_count(count, inputs)
        variables = as_variables(inputs)
        return Apply(self, variables, [TensorType(promote(*(x.dtype for x in variables)))])

    def check_count(self, count: int, inputs: Sequence[Any]) -> None:
        """Raise UsageError unless `count` inputs are given."""
        if len(inputs) != count:
            raise UsageError.at_caller(
                f"{self!r} takes {count} inputs.", found=f"{len(inputs)} are given"
            )

    def constraints(
        self,
        inputs: Sequence[Shape],
        outputs: Sequence[Shape],
        origin: Origin,
        fresh: FreshVariables,
    ) -> Sequence[Constraint]:
        said = relation_of(Pointwise(), outputs[0], inputs, origin, fresh).constraints
        if self.inplace:
            for kind, row in outputs[0].rows():
                said.append(RowEqual(row, inputs[0].row(kind), origin))
        return said

    def arrays(self, node: Apply, inputs: Sequence[Array]) -> list[Array]:
        """Return the inputs with the axes of the output, of size 1 where they are repeated."""
        (result,) = node.results
        found = []
        for array, variable in zip(inputs, node.inputs, strict=True):
            dims: tuple[int, ...] = ()
            for kind, row in result.shape.rows():
                sizes = variable.shape.row(kind).sizes
                dims += (1,) * (len(row.sizes) - len(sizes)) + sizes
            found.append(array.reshape(dims))
        return found


@dataclass(frozen=True)
class Broadcast(PointwiseOp):
    """A function of numbers, applied to every cell of tensors that broadcast.

    Attributes:
        scalar: The function: a NumPy ufunc, or any function of Python numbers.
        inplace: The result takes over the memory of the first input.
        gradient: As `grad` of an op; without it no gradient can flow.
    """

    scalar: Callable[..., Any]
    inplace: bool = False
    gradient: Gradient | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def make_node(self, *inputs: Any) -> Apply:
        if isinstance(self.scalar, np.ufunc):
            return self.apply(self.scalar.nin, inputs)
        return self.apply(len(parameters_of_function(self.scalar)), inputs)

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        arrays = self.arrays(node, inputs)
        dtype = node.results[0].dtype.numpy
        function = self.scalar
        if not isinstance(function, np.ufunc):
            function = np.vectorize(function, otypes=[dtype])
        if self.inplace:
            inputs[0][...] = np.asarray(function(*arrays), dtype)
            output_storage[0][0] = inputs[0]
        else:
            found = np.asarray(function(*arrays), dtype)
            shape = np.broadcast_shapes(*(array.shape for array in arrays))
            output_storage[0][0] = found.reshape(shape)


@dataclass(frozen=True)
class Reduce(Op):
    """A reduction over output axes with a function of two numbers.

    Attributes:
        scalar: The function: a NumPy ufunc, or any function of two Python numbers.
        axes: The reduced output axes, as in NumPy: 0 is the first, -1 the last. One, or several, of
            which the first is the slowest; kept as a tuple.
        gradient: As `grad` of an op; without it no gradient can flow.
    """

    scalar: Callable[..., Any]
    axes: int | Sequence[int]
    gradient: Gradient | None = None

    def __post_init__(self) -> None:
        if not callable(self.scalar):
            raise UsageError.at_caller(
                "Reduce applies a function of two numbers.",
                found=f"{self.scalar!r}",
                fix="custom.Reduce(np.add, -1)",
            )
        object.__setattr__(self, "axes", _positions(self.axes))

    @property
    def _axes(self) -> tuple[int, ...]:
        assert isinstance(self.axes, tuple)
        return self.axes

    @property
    def spec(self) -> str:  # type: ignore[override]
        first = range(max(self._axes) + 1)
        last = range(min((0, *self._axes)), 0)
        rows = []
        for dropped in ((), self._axes):
            left = [f"b{axis}" for axis in first if axis not in dropped]
            right = [f"a{-axis}" for axis in last if axis not in dropped]
            rows.append(", ".join([*left, "...", *right]))
        return f"...|... -> {rows[0]} => ...|... -> {rows[1]}"

    @property
    def grad(self) -> Gradient | None:
        return self.gradient

    def perform(self, node: Apply, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        shape = node.inputs[0].shape
        start = len(shape.batch.sizes)
        end = start + len(shape.output.sizes)
        array = inputs[0]
        axes = tuple(axis + (start if axis >= 0 else end) for axis in self._axes)
        if isinstance(self.scalar, np.ufunc):
            found = self.scalar.reduce(array, axis=axes)
        else:
            moved = np.moveaxis(array, axes, range(len(axes)))
            cells = moved.reshape(-1, *moved.shape[len(axes) :])
            found = functools.reduce(np.vectorize(self.scalar, otypes=[array.dtype]), cells)
        output_storage[0][0] = np.asarray(found, array.dtype)


def _positions(axes: int | Sequence[int]) -> tuple[int, ...]:
    """Return positions of axes, in the order given; refuse anything but distinct integers."""
    found: list[int] = []
    with suppress(TypeError):
        found = [operator.index(axis) for axis in np.atleast_1d(np.asarray(axes, object))]
    if not found or len(set(found)) < len(found):
        raise UsageError.at_caller(
            "Reduce lists output axes by their positions, each once.",
            found=f"axes={axes!r}",
            fix="axes=-1 for the last one, axes=0 for the first, axes=[-2, -1] for the last two",
        )
    return tuple(found)
