"""Inputs and state of programs: parameters, their initial values, placeholders, static indices."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from types import EllipsisType
from typing import Any

import numpy as np

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import Origin, caller_location, is_inside
from ocannl_core.ir.assignments.nodes import Constant
from ocannl_core.ir.host_arrays import check_number, plain_number
from ocannl_core.ir.indexing import StaticExtent, StaticIndex, is_whole
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.constraints import RowEqual
from ocannl_core.shape.language.shape_terms import Dim, Row, RowKind, Shape, Size, closed_row
from ocannl_core.shape.translation.logic import Pointwise
from ocannl_core.tensor.computations.computation import initialize, initialize_statistic
from ocannl_core.tensor.graph import definitions
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Filled, Literal
from ocannl_core.tensor.graph.precision import Precision, Why, choose_precision
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock, shared_parameter
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
    if isinstance(init, str):
        raise UsageError.at_caller(
            "A parameter starts as a number, an array, an expression or the result of a function.",
            found=f"init={init!r}",
            fix="init=oc.xavier(), oc.kaiming(), 0.02 * oc.normal()",
        )
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
    result = kept_between_calls(name, batch=batch, input=input, output=output, dtype=dtype)
    if result.session.recorder is not None:
        result.session.recorder.add_declaration(result)
    return result


def kept_between_calls(
    name: str,
    *,
    batch: Axes | None = None,
    input: Axes | None = None,
    output: Axes | None = None,
    dtype: DType | str | None = None,
) -> Tensor:
    """Return a declared tensor that routines store even if recorded code declares it and writes it
    first.
    """
    session = sessions.current()
    _check_name("declared tensor", name)
    origin = Origin(f"declaration {name}", caller_location())
    shape = session.environment.fresh_shape(
        batch=_row(batch), input=_row(input), output=_row(output), name=name
    )
    precision = choose_precision(dtype, session.default_dtype)
    return Tensor(session, definitions.Declared(), shape, precision, (name,), origin)


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
    found = sessions.shared(
        session, name, lambda: _new_statistic(session, (name,), 0.0, dtype, True, ())
    )
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
    if range is not None and (not is_whole(range) or range < 1):
        raise UsageError.at_caller(
            "The range of a static index is the number of values that it can have.",
            found=f"range={range!r}",
            fix="range=n for the values 0, 1, ..., n-1",
        )
    return StaticIndex(name, None if range is None else int(range))


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
    if not is_whole(max) or max < 2:
        raise UsageError.at_caller(
            "The maximum of an extent is the room for its axes in memory: at least 2, because axes "
            "of size 1 are repeated.",
            found=f"max={max!r}",
            fix="max=n for the values 0, 1, ..., n",
        )
    return StaticExtent(name, int(max) + 1)
