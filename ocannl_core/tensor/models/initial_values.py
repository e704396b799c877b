"""Initial values of parameters: conversion of `init=`, and constraints on shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from types import EllipsisType
from typing import Any

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.host_arrays import check_number, plain_number
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.constraints import RowEqual
from ocannl_core.shape.language.shape_terms import Dim, Row, RowKind, Shape, Size, closed_row
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.graph.definitions import Filled, Literal
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.literals import tensor as literal
from ocannl_core.tensor.operations.nested_literals import as_array, is_array
from ocannl_core.tensor.operations.random import default_initializer
from ocannl_core.tensor.primitives.operands import constant

OpenAxes = Sequence[int | Size | EllipsisType]
"""Sizes, and `...` for axes to be inferred."""


@dataclass(frozen=True, slots=True)
class StatedShape:
    """The stated shape of a parameter."""

    shape: Shape
    """The shape, with variables for axes that are not stated."""
    input: OpenAxes | None
    output: OpenAxes | None
    origin: Origin


def initial_value(
    session: Session, init: Any, stated: StatedShape, dtype: DType
) -> tuple[Tensor, Shape]:
    """Return the tensor that initializes a parameter, and the parameter's shape."""
    if _is_function(init):
        init = _call_initializer(init, stated)
    if init is None:
        return default_initializer(), stated.shape
    if isinstance(init, Real):
        number = plain_number(init, stated.origin)
        check_number(number, dtype, stated.origin)
        return constant(float(number), session), stated.shape
    if isinstance(init, Tensor):
        return init, _shape_with(session, init, stated)
    if is_array(init):
        return _from_array(init, stated)
    given = literal(init)
    return given, _shape_with(session, given, stated)


def _is_function(init: object) -> bool:
    return callable(init) and not isinstance(init, Tensor) and not is_array(init)


def _call_initializer(function: Callable[..., Any], stated: StatedShape) -> Any:
    """Return the value of an initializer function of nothing or of the parameter's shape."""
    try:
        positional = [
            each
            for each in signature_of(function).parameters.values()
            if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            and each.default is each.empty
        ]
    except ValueError:  # a function of an extension module may have no signature
        positional = []
    value = function(stated.shape) if positional else function()
    if value is None or _is_function(value):
        raise UsageError(
            "An initializer function returns a tensor, a number or an array.",
            found=f"{getattr(function, '__name__', function)!s} returned {value!r}",
            where=str(stated.origin),
        )
    return value


def _shape_with(session: Session, initial: Tensor, stated: StatedShape) -> Shape:
    """Return the shape of a parameter that starts as a tensor.

    A leaf with axes of its own has the parameter's shape. A leaf without axes, and open axes of an
    expression, are unified with that shape when the first value is computed.
    """
    environment = session.environment
    is_leaf = isinstance(initial.definition, Literal | Filled)
    if isinstance(initial.definition, Literal) and initial.shape.is_closed:
        return _unify_shape(initial.shape, stated)
    if is_leaf and not initial.shape.is_closed:
        where = stated.origin.at("initial value")
        environment.constrain(
            [RowEqual(stated.shape.row(kind), row, where) for kind, row in initial.terms.rows()]
        )
    elif any(row.dims for _, row in initial.shape.rows()):
        where = stated.origin.at("initial value")
        environment.relate(Pointwise(), stated.shape, [initial.terms], where)
    return stated.shape


def _from_array(init: Any, stated: StatedShape) -> tuple[Tensor, Shape]:
    """Return an initial array and the shape that it fixes.

    Its trailing axes are input axes as far as `input` states sizes. Where `input` has `...`, the
    number of input axes is the one with which all stated sizes agree.
    """
    array = as_array(init, str(stated.origin))
    fitting = [0] if stated.input is None else list(_fitting_counts(array.shape, stated))
    if len(fitting) > 1:
        raise UsageError(
            "An initial array fixes the shape of a parameter: which of its axes are input axes "
            "follows from the stated sizes.",
            found=f"the last {' or '.join(map(str, fitting))} of an array of shape {array.shape}, "
            f"with input={_axes_text(stated.input)}",
            where=str(stated.origin),
            fix="state all of output= or input=, or give oc.tensor(array, input_axes=...)",
        )
    wanted = sum(axis is not ... for axis in stated.input or ())
    given = literal(array, input_axes=fitting[0] if fitting else min(wanted, array.ndim))
    return given, _unify_shape(given.shape, stated)


def _fitting_counts(dims: tuple[int, ...], stated: StatedShape) -> Iterator[int]:
    """Yield the numbers of trailing axes that can be the input axes."""
    for count in range(len(dims) + 1):
        cut = len(dims) - count
        rows = ((closed_row(*dims[:cut]), stated.output), (closed_row(*dims[cut:]), stated.input))
        if all(_unify_row(row, axes) is not None for row, axes in rows):
            yield count


def _unify_shape(shape: Shape, stated: StatedShape) -> Shape:
    """Return the shape of an initial array, unified with the sizes stated beside it."""
    given = ((RowKind.OUTPUT, stated.output), (RowKind.INPUT, stated.input))
    for kind, axes in given:
        row = _unify_row(shape.row(kind), axes)
        if row is None:
            raise UsageError(
                "An initial array fixes the shape of a parameter; sizes stated beside it must "
                "agree.",
                found=f"{kind.value}={_axes_text(axes)} with an array of shape {shape}",
                where=str(stated.origin),
                fix=_other_axes_as_input(shape, stated)
                or f"leave out {kind.value}=, or give an array of that shape",
            )
        shape = shape.with_row(kind, row)
    layers = stated.shape.batch.trailing
    if shape.batch.trailing not in ((), layers):
        rule, place = "A parameter has no batch axes.", ""
        fix = "write lists and tuples, or an array without batch_axes"
        if layers:
            rule = "A parameter of repeated layers has the layers as its batch axis."
            place = f", in {layers[0]} layers"
            fix = f"give {layers[0]} values, or one for all layers without batch_axes"
        raise UsageError(
            rule,
            found=f"an initial value of shape {shape}{place}",
            where=str(stated.origin),
            fix=fix,
        )
    return shape


def _other_axes_as_input(shape: Shape, stated: StatedShape) -> str:
    """Return the advice to state the input axes, where `output` has the sizes of the first axes."""
    dims = tuple(dim.n for dim in shape.output.trailing if isinstance(dim, Size))
    counts = [] if stated.input is not None else list(_fitting_counts(dims, stated))
    if len(counts) != 1 or len(dims) != len(shape.output.trailing):
        return ""
    sizes = ", ".join(map(str, dims[-counts[0] :]))
    return f"state the input axes, too: input=[{sizes}]"


def _axes_text(axes: OpenAxes | None) -> str:
    texts = ("..." if axis is ... else str(axis) for axis in axes or ())
    return f"[{', '.join(texts)}]"


def _unify_row(found: Row, axes: OpenAxes | None) -> Row | None:
    """Return a row with stated bases added; None if sizes are not as stated.

    `...` stands for any number of axes.
    """
    if axes is None:
        return found
    cut = axes.index(...) if ... in axes else len(axes)
    before, after = axes[:cut], axes[cut + 1 :]
    number = len(found.trailing)
    if number < len(before) + len(after) or (... not in axes and number != len(axes)):
        return None
    between: list[Any] = [None] * (number - len(before) - len(after))
    merged = [
        _merge_sizes(one, other)
        for one, other in zip(found.trailing, [*before, *between, *after], strict=True)
    ]
    return None if None in merged else Row(trailing=tuple(d for d in merged if d is not None))


def _merge_sizes(found: Dim, stated: int | Size | None) -> Dim | None:
    """Return an axis with the basis stated on either side; None if the two disagree."""
    if stated is None or not isinstance(found, Size):
        return found
    wanted = stated if isinstance(stated, Size) else Size(stated)
    if (
        wanted.n != found.n
        or wanted.extent is not found.extent
        or (wanted.basis and found.basis and wanted.basis != found.basis)
    ):
        return None
    return replace(found, basis=found.basis or wanted.basis)
