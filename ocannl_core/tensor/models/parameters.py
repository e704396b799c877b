"""Inputs and state of programs: parameters, placeholders, declared tensors, static indices."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import Origin, caller_location, is_inside
from ocannl_core.ir.assignments.nodes import Constant
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.shape_terms import RowKind, Size
from ocannl_core.tensor.computations.computation import initialize, initialize_statistic
from ocannl_core.tensor.graph import definitions
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.precision import Precision, Why, choose_precision
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.initial_values import OpenAxes, StatedShape, initial_value
from ocannl_core.tensor.models.network_blocks import NetworkBlock, shared_parameter

Axes = int | Size | StaticExtent | Sequence[int | Size | StaticExtent]
"""The sizes of the axes of a row; a number is the size of the only axis."""


def _row(axes: Any) -> Any:
    """Return the axes of a row as a list, if one size is given."""
    is_size = isinstance(axes, int | np.integer | Size | StaticExtent) and not isinstance(
        axes, bool
    )
    return [axes] if is_size else axes


def param(
    name: str,
    *,
    output: int | OpenAxes | None = None,
    input: int | OpenAxes | None = None,
    init: Any = None,
    dtype: DType | str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Return a parameter: initialized once, trained by updates, shared by the applications of its
    block.

    Inside a block the same name means the same parameter in every application of the block.

    Args:
        name: The name, an identifier; printed code and labels start with it.
        output: Sizes of the output axes; inferred when not given. `[3, ...]` states the first only.
        input: Sizes of the input axes, in the same way.
        init: A number for every cell; nested literals, an array or `oc.tensor(...)`, which also fix
            the shape (the trailing axes of an array are input axes as far as `input` states sizes);
            `oc.reshape(...)`, which fixes the number of cells; a tensor expression; or a function
            without arguments, or of the parameter's shape, that returns one of these. No gradient
            flows into it. By default uniform, centered, scaled by fan-in. In `oc.nn.repeat_layers`,
            `oc.tensor(array, batch_axes=1)` has a value for each layer.
        dtype: The number format. Without it the parameter is stored in the session's `param_dtype`;
            without that, in the format of its uses, or else in the session's default float.
        requires_grad: False for parameters that are initialized but not trained by gradients, which
            is the default for integers.

    Raises:
        UsageError: for an invalid name, sizes that are not positive, an initial value that does not
            have the stated shape; or if the block uses the name twice in one application, or with
            other arguments than before.
    """
    session = sessions.current()
    _check_name("parameter", name)
    rows: tuple[OpenAxes | None, OpenAxes | None] = (_row(output), _row(input))
    _check_cells(name, output=rows[0], input=rows[1])
    layers = _layers_around(session)
    count = None if layers is None else layers.length
    arguments = (_hashable(rows[0]), _hashable(rows[1]), dtype, requires_grad, count)
    with session.atomic():
        found = shared_parameter(
            session,
            name,
            arguments,
            lambda label: _new(session, label, *rows, init, dtype, requires_grad, count),
        )
        return found if layers is None else _entry_of_layer(found, layers)


def _layers_around(session: Session) -> definitions.Loop | None:
    """Return the innermost loop whose steps have parameters of their own; None outside of any."""
    loop: definitions.Loop | None = session.loop
    while loop is not None and loop.layers is None:
        loop = loop.outer
    return loop


def _entry_of_layer(parameter: Tensor, loop: definitions.Loop) -> Tensor:
    """Return the entry of a parameter with a layer axis for the step of a loop over layers."""
    assert loop.layers is not None
    if parameter not in loop.layers:
        entry: Tensor = parameter[loop.index]
        undo_log = parameter.session.undo_log
        undo_log.put(loop.layers, parameter, entry)
        undo_log.set(loop, "over", (*loop.over, parameter))
        undo_log.set(loop, "entries", (*loop.entries, entry))
    return loop.layers[parameter]


def _hashable(axes: OpenAxes | None) -> object:
    return tuple(axes) if isinstance(axes, list | tuple) else axes


def _check_name(kind: str, name: object) -> None:
    if isinstance(name, str) and name.isidentifier():
        return
    raise UsageError.at_caller(
        f"The name of a {kind} is an identifier: files and printed code use it.",
        found=repr(name),
        fix='a name made of letters, digits and underscores, as in "w"',
    )


def _check_cells(name: str, **rows: OpenAxes | None) -> None:
    """Refuse parameters without cells; other mistakes are reported where shapes are made."""
    for kind, axes in rows.items():
        sizes = axes if isinstance(axes, list | tuple) else ()
        if any((axis.n if isinstance(axis, Size) else axis) == 0 for axis in sizes):
            raise UsageError.at_caller(
                "A parameter has cells: the sizes of its axes are positive.",
                found=f"{kind}={list(sizes)} for {name}",
            )


def _new(
    session: Session,
    label: tuple[str, ...],
    output: OpenAxes | None,
    input: OpenAxes | None,
    init: Any,
    dtype: DType | str | None,
    requires_grad: bool | None,
    layers: int | None,
) -> Tensor:
    origin = Origin(f"parameter {label[0]}{_of_block(session)}", caller_location())
    environment = session.environment
    batch = () if layers is None else (layers,)
    rows = environment.fresh_shape(batch=batch, input=input, output=output, name=label[0])
    environment.leaf(rows, origin, parameter=True)
    precision = _stored_precision(session, dtype)
    said = StatedShape(rows, input, output, origin)
    with session.outside_of_code():
        initial, shape = initial_value(session, init, said, precision.dtype)
    if session.loop is not None:
        _take_out(session, initial, session.loop, origin)
    shape = shape.with_row(RowKind.BATCH, rows.batch)  # arrays have none
    # the sizes of a parameter with a layer axis are stated for its entries
    is_unstated_number = (
        isinstance(init, Real) and output is None and input is None and layers is None
    )
    scopes = session.block.blocks if session.block is not None else ()
    return Tensor(
        session,
        definitions.Parameter(initial, initialize, scopes, is_unstated_number),
        shape,
        precision,
        label,
        origin,
        requires_grad=precision.dtype.is_float if requires_grad is None else requires_grad,
    )


def _of_block(session: Session) -> str:
    """Return the block of a library that makes a parameter, for messages about its sizes: the
    user's line calls the block.
    """
    if session.block is None:
        return ""
    block = session.block.blocks[-1]
    code = getattr(inspect.unwrap(block.function), "__code__", None)
    return f" of {block.name}" if code is not None and is_inside(code) else ""


def _take_out(session: Session, initial: Tensor, loop: definitions.Loop, origin: Origin) -> None:
    """Take an initializer out of the step of a loop that was being traced when it was made.

    Its random numbers are the same as for the first step.
    """
    for tensor in definitions.ancestors([initial]):
        around = tensor.loop
        if around is None:
            continue
        if tensor in around.positions:
            around.positions.remove(tensor)
            session.undo_log.set(tensor, "definition", definitions.Filled(lambda: Constant(0.0), 0))
        elif isinstance(tensor.definition, definitions.CarriedValue) or tensor in set(
            around.entries
        ):
            raise UsageError(
                "The initial value of a parameter is computed once, before any step of a loop.",
                found=f"an initializer that reads {tensor!r} of a step of {loop.name}",
                where=str(origin),
                fix="make the parameter outside of the loop, or give it another init=",
            )
        session.undo_log.set(tensor, "loop", None)


def placeholder(
    name: str,
    *,
    batch: Axes = (),
    input: Axes = (),
    output: Axes = (),
    dtype: DType | str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor that the host fills between calls: `ctx[x] = array`.

    Args:
        name: The name in printed code and messages.
        batch: Sizes of the batch axes.
        input: Sizes of the input axes.
        output: Sizes of the output axes.
        dtype: The number format; by default that of its uses, else the session's default float.
        requires_grad: True to compute the gradient with respect to the placeholder, too:
            backpropagation computes it in `x.grad`, as for parameters.
    """
    session = sessions.current()
    _check_name("placeholder", name)
    origin = Origin(f"placeholder {name}", caller_location())
    shape = session.environment.fresh_shape(
        batch=_row(batch), input=_row(input), output=_row(output), name=name
    )
    session.environment.leaf(shape, origin)
    precision = choose_precision(dtype, session.default_dtype)
    definition = definitions.Placeholder()
    return Tensor(
        session, definition, shape, precision, (name,), origin, requires_grad=requires_grad
    )


def declare(
    name: str,
    *,
    batch: Axes | None = None,
    input: Axes | None = None,
    output: Axes | None = None,
    dtype: DType | str | None = None,
) -> Tensor:
    """Return a tensor for recorded code to write: zero at first, kept between calls, without a
    gradient.

    The shape is inferred from assignments to it; rows can be stated.
    """
    session = sessions.current()
    _check_name("declared tensor", name)
    origin = Origin(f"declaration {name}", caller_location())
    shape = session.environment.fresh_shape(
        batch=_row(batch), input=_row(input), output=_row(output), name=name
    )
    precision = choose_precision(dtype, session.default_dtype)
    result = Tensor(session, definitions.Declared(), shape, precision, (name,), origin)
    if session.recorder is not None:
        session.recorder.add_declaration(result)
    return result


def statistic(
    name: str, *, start: float = 0.0, dtype: DType | str | None = None, is_scalar: bool = False
) -> Tensor:
    """Return state of a model that training updates and evaluation reads, shared by the
    applications of its block, without a gradient.

    Its shape is inferred from assignments to it and from its uses, unless it is a scalar. Code that
    reads it and does not assign it runs once `init_params` or other code has assigned it.

    Args:
        start: The number that `init_params` gives it. Without a call it is 0 at first.
        dtype: The number format; without it, the one of parameters.
        is_scalar: True for one number.
    """
    session = sessions.current()
    _check_name("statistic", name)

    def make(label: tuple[str, ...]) -> Tensor:
        scopes = session.block.blocks if session.block is not None else ()
        return _new_statistic(session, label, start, dtype, is_scalar, scopes)

    return shared_parameter(session, name, (dtype, is_scalar), make)


def session_statistic(name: str, *, dtype: DType | str) -> Tensor:
    """Return a number that all models of the session share; see `statistic`.

    It belongs to the state of every block that uses it.
    """
    session = sessions.current()
    if name not in session.applications:
        made = _new_statistic(session, (name,), 0.0, dtype, True, ())
        session.undo_log.put(session.applications, name, made)
    found: Tensor = session.applications[name]
    if session.block is not None:
        key = f"{name} of the session"  # no identifier, as the names of parameters are
        parameters = session.block.block.own_parameters
        if key not in parameters:
            session.undo_log.put(parameters, key, (found, dtype))
    return found


def is_shared_by_models(statistic: Tensor) -> bool:
    """Return True for a statistic of the session, such as the count that selects random numbers."""
    shared: bool = statistic.session.applications.get(statistic.label[0]) is statistic
    return shared


def _stored_precision(session: Session, dtype: DType | str | None) -> Precision:
    """Return the format of what a model keeps: the stated one, or the session's for parameters."""
    if dtype is None and session.param_dtype is not None:
        return Precision(session.param_dtype, Why.STORED)
    return choose_precision(dtype, session.default_dtype)


def _new_statistic(
    session: Session,
    label: tuple[str, ...],
    start: float,
    dtype: DType | str | None,
    is_scalar: bool,
    scopes: tuple[NetworkBlock[Any], ...],
) -> Tensor:
    row = () if is_scalar else None
    shape = session.environment.fresh_shape(batch=(), input=row, output=row, name=label[0])
    origin = Origin(f"statistic {label[0]}", caller_location())
    precision = _stored_precision(session, dtype)
    definition = definitions.Declared(scopes, lambda found: initialize_statistic(found, start))
    return Tensor(session, definition, shape, precision, label, origin)


def _check_keyword(subject: str, name: object, fix: str) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        rule = f"{subject} is a keyword of the routine's call."
        raise UsageError.at_caller(rule, found=repr(name), fix=fix)


def static_index(name: str, *, range: int | None = None) -> StaticIndex:
    """Return an integer that a routine takes when it is called: `step(i=3)`.

    Args:
        name: The keyword of the call.
        range: Values lie in `range(range)`; calls outside are errors. An axis sliced by the index
            then has this size.
    """
    _check_keyword("A static index", name, 'an identifier, as in oc.static_index("i")')
    if range is not None and (not isinstance(range, int) or range < 1):
        raise UsageError.at_caller(
            "The range of a static index is the number of values that it can have.",
            found=f"range={range!r}",
            fix="range=n for the values 0, 1, ..., n-1",
        )
    return StaticIndex(name, range)


def static_extent(name: str, *, max: int) -> StaticExtent:
    """Return the size of axes that a routine takes when it is called: `step(n=17)`.

        n = oc.static_extent("n", max=256)
        x = oc.placeholder("x", batch=[n], output=[8])

    One routine serves every size from 0 to the maximum. Memory has room for the maximum; cells
    beyond the value of a call are undefined, sums and means run over the others, and the host reads
    and writes only the cells before it. The extent equals itself only, no number.

    Args:
        name: The keyword of the call; without it the call runs at the maximum.
        max: The greatest value, at least 2.
    """
    _check_keyword("An extent", name, 'an identifier, as in oc.static_extent("n", max=256)')
    if isinstance(max, bool) or not isinstance(max, int) or max < 2:
        raise UsageError.at_caller(
            "The maximum of an extent is the room for its axes in memory: at least 2, because axes "
            "of size 1 are repeated.",
            found=f"max={max!r}",
            fix="max=n for the values 0, 1, ..., n",
        )
    return StaticExtent(name, max + 1)
