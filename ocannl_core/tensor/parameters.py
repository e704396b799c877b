"""Tensors that programs are made around: parameters, placeholders, declared state, static
indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from types import EllipsisType
from typing import Any

import numpy as np

from ocannl_core.dtypes import DType, dtype_of
from ocannl_core.errors import UsageError
from ocannl_core.indexing import StaticIndex
from ocannl_core.origin import Origin, caller_location
from ocannl_core.shape.logic import Pointwise
from ocannl_core.shape.terms import Shape, Size
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.blocks import shared_parameter
from ocannl_core.tensor.computation import initialization_of
from ocannl_core.tensor.leaves import constant
from ocannl_core.tensor.literals import tensor as literal
from ocannl_core.tensor.random import scaled_uniform
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.tensor import Declared, Parameter, Placeholder, Tensor

Axes = Sequence[int | Size]
OpenAxes = Sequence[int | Size | EllipsisType]
"""Sizes, and `...` for axes to be inferred."""


def param(
    name: str,
    *,
    output: OpenAxes | None = None,
    input: OpenAxes | None = None,
    init: Any = None,
    dtype: DType | str | None = None,
    requires_grad: bool = True,
) -> Tensor:
    """Returns a parameter: initialised once, trained by updates, shared by the applications of its
    block.

    Inside a block the same name means the same parameter in every application of the block.

    Args:
        name: The name; printed code and labels start with it.
        output: Sizes of the output axes; inferred when not given. `[3, ...]` states the first only.
        input: Sizes of the input axes, in the same way.
        init: A number for every cell; nested literals, an array or `oc.tensor(...)`, which also fix
            the shape (the trailing axes of an array are input axes as far as `input` states sizes);
            or a tensor expression. By default uniform, centred, scaled by fan-in.
        dtype: The number format; the session's default float when not given.
        requires_grad: False for parameters that are initialised but not trained by gradients.

    Raises:
        UsageError: if the block asks for the name twice in one application, or with other arguments
            than before.
    """
    session = sessions.current()
    arguments = (_hashable(output), _hashable(input), dtype, requires_grad)
    return shared_parameter(
        session,
        name,
        arguments,
        lambda label: _new(session, label, output, input, init, dtype, requires_grad),
    )


def _hashable(axes: OpenAxes | None) -> object:
    return tuple(axes) if isinstance(axes, list | tuple) else axes


def _new(
    session: Session,
    label: tuple[str, ...],
    output: OpenAxes | None,
    input: OpenAxes | None,
    init: Any,
    dtype: DType | str | None,
    requires_grad: bool,
) -> Tensor:
    origin = Origin(f"parameter {label[0]}", caller_location())
    environment = session.environment
    given = _as_literal(init, input) if _fixes_shape(init) else None
    if given is not None:
        shape = _checked(given.shape, output, input, origin)
    else:
        shape = environment.fresh_shape(batch=(), input=input, output=output, name=label[0])
    environment.leaf(shape, origin, parameter=True)
    recorder, session.recorder = (
        session.recorder,
        None,
    )  # an initialiser is no part of code being recorded
    try:
        initializer = _initializer(session, init, given, shape)
    finally:
        session.recorder = recorder
    if any(row.dims for _, row in initializer.shape.rows()):
        environment.relate(Pointwise(), shape, [initializer.terms], origin.at("initial value"))
    # an initialiser without axes of its own says nothing of the shape: it takes it, when it runs
    chosen = session.default_dtype if dtype is None else dtype_of(dtype)
    return Tensor(
        session,
        Parameter(initializer, initialization_of),
        shape,
        chosen,
        label,
        origin,
        requires_grad=requires_grad,
    )


def _fixes_shape(init: Any) -> bool:
    if isinstance(init, Tensor):
        return init.literal is not None
    return init is not None and not isinstance(init, Real)


def _as_literal(init: Any, input: OpenAxes | None) -> Tensor:
    """Returns the literal behind an initial array: its trailing axes are input axes as far as
    `input` states sizes.
    """
    if isinstance(init, Tensor):
        return init
    return literal(init, input_axes=len(input or ()) if isinstance(init, np.ndarray) else 0)


def _initializer(session: Session, init: Any, given: Tensor | None, shape: Shape) -> Tensor:
    if given is not None:
        return given
    if init is None:
        return scaled_uniform(shape)
    if isinstance(init, Tensor):
        return init
    return constant(float(init), session)


def _checked(
    shape: Shape, output: OpenAxes | None, input: OpenAxes | None, origin: Origin
) -> Shape:
    """Returns the shape of an initial array, which must agree with sizes stated beside it."""
    for kind, stated, found in (("output", output, shape.output), ("input", input, shape.input)):
        if stated is not None and not _agree(stated, found.sizes):
            raise UsageError(
                "An initial array fixes the shape of a parameter; sizes stated beside it must "
                "agree.",
                found=f"{kind}={list(stated)} with an array of shape {shape}",
                where=str(origin),
                fix=f"leave out {kind}=, or give an array of that shape",
            )
    return shape


def _agree(stated: OpenAxes, found: tuple[int, ...]) -> bool:
    """True if sizes are as stated, where `...` stands for any number of them."""
    sizes = [axis.n if isinstance(axis, Size) else axis for axis in stated]
    if ... not in sizes:
        return tuple(sizes) == found
    cut = sizes.index(...)
    before, after = sizes[:cut], sizes[cut + 1 :]
    fits = len(found) >= len(before) + len(after)
    return fits and [*found[:cut], *found[len(found) - len(after) :]] == [*before, *after]


def placeholder(
    name: str,
    *,
    batch: Axes = (),
    input: Axes = (),
    output: Axes = (),
    dtype: DType | str | None = None,
) -> Tensor:
    """Returns a tensor that the host fills between calls: `ctx[x] = array`.

    Args:
        name: The name in printed code and messages.
        batch: Sizes of the batch axes.
        input: Sizes of the input axes.
        output: Sizes of the output axes.
        dtype: The number format; the session's default float when not given.
    """
    session = sessions.current()
    origin = Origin(f"placeholder {name}", caller_location())
    shape = session.environment.fresh_shape(batch=batch, input=input, output=output, name=name)
    session.environment.leaf(shape, origin)
    chosen = session.default_dtype if dtype is None else dtype_of(dtype)
    return Tensor(session, Placeholder(), shape, chosen, (name,), origin)


def declare(
    name: str,
    *,
    batch: Axes | None = None,
    input: Axes | None = None,
    output: Axes | None = None,
    dtype: DType | str | None = None,
) -> Tensor:
    """Returns a tensor for recorded code to write: zero at first, kept between calls, without a
    gradient.

    The shape follows from what is assigned to it; rows can be stated.
    """
    session = sessions.current()
    origin = Origin(f"declaration {name}", caller_location())
    shape = session.environment.fresh_shape(batch=batch, input=input, output=output, name=name)
    chosen = session.default_dtype if dtype is None else dtype_of(dtype)
    result = Tensor(session, Declared(), shape, chosen, (name,), origin)
    if session.recorder is not None:
        session.recorder.declared(result)
    return result


def static_index(name: str, *, range: int | None = None) -> StaticIndex:
    """Returns an integer that a routine takes when it is called: `step(i=3)`.

    Args:
        name: The keyword of the call.
        range: Values lie in `range(range)`; calls outside are errors. An axis sliced by the index
            then has this size.
    """
    if not name.isidentifier():
        raise UsageError("A static index is a keyword of the routine's call.", found=repr(name))
    if range is not None and range < 1:
        raise UsageError("The range of a static index is positive.", found=f"range={range}")
    return StaticIndex(name, range)
