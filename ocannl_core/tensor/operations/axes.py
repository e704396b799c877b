"""Axes by position: the tensors of `axis=` arguments, and specifications made from them;
requirements on shapes, stated as text.

Axes are counted in buffer order (batch, output, input), as in `ctx[x]`; negative ones count from
the end. So their number must be known; sizes may be open.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import field
from numbers import Real
from typing import SupportsIndex

import numpy as np

from ocannl_core.base.errors import ShapeError, SpecError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.identity import ById
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.shape_terms import Dim, Size, rows_in_buffer_order
from ocannl_core.shape.language.statement import parse_statement, statement_constraints
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Declared
from ocannl_core.tensor.graph.expression import Expression, no_operand
from ocannl_core.tensor.graph.shape_previews import implied_ranks
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.operands import as_tensor, session_of
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.specifications import composite_operation, stated_logic


def require_shape(tensor: Tensor, shape: str | Sequence[int | StaticExtent]) -> Tensor:
    """Require that a tensor has the shape that a text or sizes denote, and return it.

        oc.require_shape(x, (32, 64))           # two axes, of the kinds that the tensor has
        oc.require_shape(x, "32|64")            # a batch of 32, one output axis of 64
        oc.require_shape(w, "n->n")             # as many inputs as outputs
        oc.require_shape(w, "..v..->..v..")     # the input axes are the output axes
        oc.require_shape(y, str(x.shape))       # the printed form of a known shape is accepted

    Sizes in buffer order (batch, output, input) leave the kinds of the axes as they are, so that
    open kinds still follow from other uses, and are output axes without any; a text states them. In
    a text, a number is a size, equal names are equal sizes or axes, `_` is any size, and a row that
    is not written has no axes. Entries are separated as in specifications: without commas, every
    letter is an axis. Parentheses separate, too. Information flows in every direction.

    Raises:
        ShapeError: if this contradicts known shapes; then nothing changes.
        SpecError: if the text denotes no shape.
        UsageError: for anything but a text or sizes.
    """
    origin = Origin(f"the shape {shape} required of {_name(tensor)}", caller_location())
    if not isinstance(shape, str):
        tensor.session.environment.exact(tensor.terms, _sizes(shape, origin), origin)
        tensor.note_stated_shape()
        return tensor
    readable = shape.replace("(", " ").replace(")", " ")
    if ";" in readable:
        raise _no_shape(shape, origin)
    _require(readable, [tensor], origin)
    return tensor


def require_shapes(text: str, *tensors: Tensor) -> None:
    """Require that tensors have the shapes that a text denotes, `;` between them.

        oc.require_shapes("...|..n..; ..n..", x, gamma)    # gamma has the output axes of x
        oc.require_shapes("n->m; m->n", encoder, decoder)

    The notation is as for `require_shape`; a name means the same in all shapes. Unlike operands of
    an operation, which broadcast, the tensors have exactly these axes.

    Raises:
        ShapeError: if this contradicts known shapes; then nothing changes.
        SpecError: if the text does not denote one shape for each tensor.
        UsageError: if there are no tensors, or they belong to different sessions.
    """
    names = ", ".join(map(_name, tensors))
    origin = Origin(f"the shapes {text} required of {names}", caller_location())
    if len({ById(tensor.session) for tensor in tensors}) != 1:
        raise UsageError(
            "Shapes are required of tensors of one session.",
            found=names or "no tensors",
            where=str(origin),
        )
    _require(text, tensors, origin)


def _require(text: str, tensors: Sequence[Tensor], origin: Origin) -> None:
    if "=>" in text:
        raise _no_shape(text, origin)
    statement = parse_statement(f"=>{text}")
    for tensor in tensors:
        tensor.note_stated_shape()
    shapes = [tensor.terms for tensor in tensors]
    environment = tensors[0].session.environment
    environment.derive(
        [], [], lambda fresh: statement_constraints(statement, [], shapes, origin, fresh)
    )


def _sizes(given: object, origin: Origin) -> Sequence[int | StaticExtent]:
    """Return sizes, checked to be numbers and extents."""
    is_number = (int, np.integer)
    if not isinstance(given, Sequence) or not all(
        isinstance(each, StaticExtent)
        or (isinstance(each, is_number) and not isinstance(each, bool) and each >= 0)
        for each in given
    ):
        raise UsageError(
            "A shape is a text or the sizes of all axes in buffer order.",
            found=repr(given),
            where=str(origin),
            fix='oc.require_shape(x, (32, 64)), or oc.require_shape(x, "32|64")',
        )
    return given


def _no_shape(text: str, origin: Origin) -> SpecError:
    return SpecError(
        "A shape is `batch|input->output`, where the parts on the left may be left out.",
        found=repr(text),
        where=str(origin),
    )


def _name(tensor: Tensor) -> str:
    return tensor.label[0] if tensor.label else "a tensor"


AxisArgument = int | Sequence[int] | None
"""An axis, several, or all."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a tensor."""

    ranks: tuple[int, int, int]
    """The numbers of batch, output and input axes."""
    sizes: tuple[Dim, ...]
    """The sizes in buffer order, as far as they are known."""
    operation: str
    tensor: Tensor = field(compare=False)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """Labels for a specification, in buffer order."""
        return tuple(f"a{position}" for position in range(len(self)))

    def position(self, axis: SupportsIndex, extra: int = 0) -> int:
        """Return the position of an axis, from the left, where an operation adds `extra` axes."""
        count = len(self) + extra
        try:
            number = operator.index(axis)
        except TypeError:
            number = count
        if isinstance(axis, bool) or not -count <= number < count:
            raise UsageError.at_caller(
                "An axis is an integer that counts the axes from the left, or, if it is negative, "
                "from the right.",
                found=f"axis={axis!r} of {count} ax{'i' if count == 1 else 'e'}s in "
                f"{self.operation}",
                fix="axes are ordered as in ctx[x]: batch, output, input",
            )
        return number % count

    def positions(self, axis: AxisArgument) -> tuple[int, ...]:
        """Return the positions of an axis, of several, or of all."""
        if axis is None:
            return tuple(range(len(self)))
        given = tuple(axis) if isinstance(axis, Sequence) else (axis,)
        found = tuple(self.position(each) for each in given)
        if len(set(found)) < len(found):
            raise UsageError.at_caller(
                "An axis is given once.",
                found=f"axis={axis!r} of {len(self)} axes in {self.operation}",
                fix=f"{', '.join(map(str, range(len(self))))} are the axes",
            )
        return found

    def size(self, position: int) -> int | None:
        """Return the size of an axis; None if it is not known yet."""
        dim = self.sizes[position]
        return dim.n if isinstance(dim, Size) else None

    def extent(self, position: int) -> StaticExtent | None:
        """Return the extent at run time of an axis; None if it is not known to have one."""
        dim = self.sizes[position]
        return dim.extent if isinstance(dim, Size) else None

    def known_size(self, position: int) -> int:
        """Return the size of an axis."""
        size = self.size(position)
        if size is None:
            raise ShapeError.at_caller(
                f"{self.operation} takes sizes that are known where it is written.",
                found=f"axis {position} of {len(self)}, of a size to be inferred, of "
                f"{self.tensor.describe()}",
                fix="state the size where the tensor is made, output=[...], or here: "
                "oc.require_shape(x, (3, 5)), the sizes of all axes",
            )
        return size

    @property
    def known_sizes(self) -> tuple[int, ...]:
        """The sizes of all axes."""
        return tuple(self.known_size(position) for position in range(len(self)))

    @property
    def lengths(self) -> tuple[int | StaticExtent, ...]:
        """The sizes of all axes, extents at run time among them."""
        return tuple(self.extent(at) or size for at, size in enumerate(self.known_sizes))

    @property
    def spec(self) -> str:
        """The axes as an operand of a specification."""
        return write_shape(self.names, self.ranks)

    def kind(self, position: int) -> int:
        """Return the row of an axis: 0 for batch, 1 for output, 2 for input."""
        batch, output, _ = self.ranks
        return 0 if position < batch else 1 if position < batch + output else 2

    def replaced(self, changes: Mapping[int, str | None]) -> str:
        """Return the axes, some replaced by other text or removed, as part of a specification."""
        names: list[str] = []
        ranks = [0, 0, 0]
        for position, name in enumerate(self.names):
            text = changes.get(position, name)
            if text is not None:
                names.append(text)
                ranks[self.kind(position)] += 1
        return write_shape(names, ranks)

    def inserted(self, positions: Sequence[int]) -> tuple[tuple[str | None, ...], tuple[int, ...]]:
        """Return the names with None for new axes at positions of the result, and the numbers of
        axes with them. A new axis is of the kind of its right neighbor, or of the last axis.
        """
        names: list[str | None] = []
        ranks = list(self.ranks) if len(self) else [0, 0, 0]
        old = 0
        for position in range(len(self) + len(positions)):
            if position in positions:
                names.append(None)
                ranks[self.kind(min(old, len(self) - 1)) if len(self) else 1] += 1
            else:
                names.append(self.names[old])
                old += 1
        return tuple(names), tuple(ranks)


def write_shape(names: Sequence[str], ranks: Sequence[int]) -> str:
    """Return axes in buffer order as a shape of a specification in words."""
    batch, output, _ = ranks
    rows = (names[:batch], names[batch + output :], names[batch : batch + output])
    before, inputs, outputs = ("".join(f"{name}, " for name in row).rstrip(" ") for row in rows)
    return f"{before}|{inputs}->{outputs}"


def operand(x: object, name: str) -> Tensor:
    """Return the tensor for an operand; a number becomes a constant."""
    if not isinstance(x, Expression | Real):
        raise no_operand(x, f"as an operand of {name}")
    return as_tensor(x, sessions.current())


def axes_of(x: Tensor, name: str) -> Axes:
    """Return the axes of a tensor, whose number must be known; later uses do not change it."""
    environment = x.session.environment
    ranks = implied_ranks(x)
    if ranks is None:
        fix = (
            "state the axes of the parameters and random numbers that it depends on, as in "
            'oc.param("w", output=[...], input=[...]) and oc.require_shape(oc.normal(), "32|64"), '
            "a batch of 32 and one output axis of 64, or those of this tensor in the same way"
        )
        if isinstance(x.definition, Declared):  # a row that is not stated has axes of other uses
            fix = "state all its rows where it is declared, as in batch=[], output=[64], input=[]"
        raise ShapeError(
            "An axis is counted where the number of axes is known.",
            found=f"{name} of a tensor whose axes are to be inferred: {x.shape}",
            where=f"{x.describe()}, at {caller_location()}",
            fix=f"{fix}, or name axes instead of counting them: "
            'oc.einsum("...|... => ...|0", x) sums over all output axes',
        )
    sizes = environment.set_ranks(x.terms, ranks, Origin(name, caller_location()))
    return Axes(ranks, sizes, name, x)


def sized_axes_of(x: Tensor, name: str) -> Axes:
    """Return the axes of a tensor; sizes that compiling would decide now become known."""
    own = axes_of(x, name)
    if all(own.size(position) is not None for position in range(len(own))) or not x.is_determined:
        return own
    sizes = [dim for row in rows_in_buffer_order(x.shape) for dim in row.trailing]
    origin = Origin(f"the shape of {name}'s operand", caller_location())
    x.session.environment.exact(x.terms, [d for d in sizes if isinstance(d, Size)], origin)
    return axes_of(x, name)


def settle_axes(x: Tensor, name: str) -> None:
    """State the number of axes of a tensor if its operands determine it; uses then add none."""
    environment = x.session.environment
    ranks = environment.implied_ranks(x.terms)
    if ranks is not None:
        environment.set_ranks(x.terms, ranks, Origin(name, caller_location()))


def known_axes(x: Tensor, name: str) -> Axes | None:
    """Return the axes of a tensor as `axes_of` does; None while their number is not known."""
    return None if implied_ranks(x) is None else axes_of(x, name)


def share_shape(x: Tensor, other: Tensor, name: str) -> None:
    """Give a tensor whose shape follows from its uses the shape of another tensor, so that an
    expression of both has the other tensor's known sizes.

    Args:
        x: The tensor that has the shape; it does not grow with later uses then.
        other: The tensor that gets it.
        name: The operation, for errors.
    """
    if implied_ranks(x) is not None:
        sized_axes_of(x, name)
    require_shapes("; ".join(["..b..|..n..->..i.."] * 2), x, other)


def apply(
    operation: Operation,
    operands: Sequence[Tensor],
    spec: str,
    *,
    name: str,
    values: Mapping[str, int] | None = None,
    dtype: DType | str | None = None,
) -> Tensor:
    """Return an operation applied along a specification, under a name for messages; also in
    recorded code, where it makes a tensor.
    """
    given = tuple(operands)
    session_of(given, name)
    with composite_operation(name, given):
        logic = stated_logic(name, spec, len(given), None, values)
        return operation.tensor(given, logic, dtype=dtype)
