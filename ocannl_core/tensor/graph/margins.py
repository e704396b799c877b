"""Margins: the cells around a tensor that padded windows access.

A padded window addresses positions before the first and after the last cell of an axis. The buffer
of the addressed tensor has room for them: its *margins*. On either side of every axis they are as
wide as the widest window of the operations that exist when code first needs the buffer's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Location, Origin
from ocannl_core.ir.indexing import Margin, Projections
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.einsum_ast import Affine, AxisSpec, ShapeSpec
from ocannl_core.shape.language.shape_terms import Shape, exceeds_address_space
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.solving.messages import too_many_cells
from ocannl_core.shape.translation.logic import Einsum, Logic, SliceUpdate

Margins = tuple[Margin, ...]
"""Margins of each axis in buffer order; empty when there are none."""


@dataclass(frozen=True, slots=True, eq=False)
class WindowAccess:
    """An access through padded windows, by shapes: it keeps no tensor alive."""

    logic: Logic
    result: Shape
    operands: tuple[Shape, ...]
    position: int | None
    """The operand that the tensor is; None for the result."""
    origin: Origin
    capture: Mapping[str, DimRef]

    def margins(self, environment: Environment) -> Margins:
        """Return the margins of the access from known shapes or their defaults, deciding none.

        An operation whose shapes cannot be completed yet needs none.
        """
        stated = [self.result, *self.operands]
        shapes = [environment.view(shape) for shape in stated]
        try:
            if not all(shape.is_closed for shape in shapes):
                shapes = environment.preview(stated)
            logic = environment.with_known_sizes(self.logic, self.capture)
            projections = project(logic, shapes[0], shapes[1:], self.origin)
        except ShapeError:
            return ()
        return margins_of(projections, self.position)


def window_accesses(
    logic: Logic,
    result: Shape,
    operands: Sequence[Shape],
    origin: Origin,
    capture: Mapping[str, DimRef],
) -> Iterator[WindowAccess]:
    """Yield the accesses of an operation that may leave the tensor they address."""
    inner = logic.logic if isinstance(logic, SliceUpdate) else logic
    if not isinstance(inner, Einsum):
        return
    specs: list[tuple[int | None, ShapeSpec]] = [*enumerate(inner.spec.operands)]
    if inner is logic:  # slices are not written through windows
        specs.insert(0, (None, inner.spec.result))
    for position, spec in specs:
        if any(_may_leave(axis, inner.padded) for axis in spec.axes):
            yield WindowAccess(logic, result, tuple(operands), position, origin, capture)


def _may_leave(axis: AxisSpec, padded: bool | None) -> bool:
    """Return True unless the positions of an axis of a specification are surely inside."""
    if not isinstance(axis, Affine):
        return False
    window = axis.window
    is_padded = window is not None and (padded if window.padded is None else window.padded)
    return bool(is_padded) or axis.offset > 0


def margins_of(projections: Projections, position: int | None) -> Margins:
    """Return the margins that an operation needs around an operand, or (None) its result."""
    if position is None:
        found = projections.lhs_margins
    else:
        found = projections.margins[position] if projections.margins else ()
    return widest([found]) if found else ()


def has_margins(projections: Projections) -> tuple[bool, ...]:
    """Return, for each operand, whether it is read beyond its axes."""
    if not projections.margins:
        return (False,) * len(projections.rhs)
    return tuple(bool(margins_of(projections, i)) for i in range(len(projections.rhs)))


def widest(margins: Iterable[Margins]) -> Margins:
    """Return the maximum per axis and side; empty when no axis has a margin."""
    result: Margins = ()
    for each in margins:
        result = (
            tuple(
                Margin(max(one.left, other.left), max(one.right, other.right))
                for one, other in zip(result, each, strict=True)
            )
            if result and each
            else result or each
        )
    return result if any(margin.left or margin.right for margin in result) else ()


def node_info(
    dtype: DType, shape: Shape, margins: Margins, describe: Callable[[], str], *, is_parameter: bool
) -> NodeInfo:
    """Return the format and the extents of a tensor of closed shape."""
    info = NodeInfo(dtype, shape.dims, margins, shape.extents)
    if is_parameter and info.extents:
        raise ShapeError(
            "The sizes of a parameter are constant: its cells outlast every call.",
            found=f"the shape {shape}",
            where=describe(),
            fix="reduce the axis, or multiply by the parameter along another one",
        )
    if exceeds_address_space(info.buffer_dims, dtype.nbytes):
        raise too_many_cells(str(shape), dtype.nbytes, describe())
    return info


@dataclass(frozen=True, slots=True)
class MarginLayout:
    """The final margins of a tensor's buffers."""

    margins: Margins
    decided_at: Location | None
    """The user's line that needed them."""

    def check(self, needed: Margins, name: str, origin: Origin) -> None:
        """Raise ShapeError if an operation needs wider margins."""
        have = self.margins or (Margin(),) * len(needed)
        for axis, (wanted, found) in enumerate(zip(needed, have, strict=True)):
            if wanted.left > found.left or wanted.right > found.right:
                raise ShapeError(
                    f"Operation padding ({_text(wanted)}) exceeds resolved padding "
                    f"({_text(found)}).",
                    found=f"axis {axis} of {name}, in buffer order"
                    + (f"; laid out for code at {self.decided_at}" if self.decided_at else ""),
                    where=str(origin),
                    fix="create the operation that reads through padded windows before compiling "
                    f"code that mentions {name}\nor let it read a copy: oc.primitives.identity(x)",
                )


def _text(margin: Margin) -> str:
    return f"left={margin.left}, right={margin.right}"
