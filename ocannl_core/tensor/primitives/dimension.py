"""Dimensions: sizes of axes of a specification as numbers in expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.assignments.nodes import Constant, EmbedIndex
from ocannl_core.ir.indexing import StaticExtent, VarIndex, affine, is_whole
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.shape_terms import closed_shape
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Filled
from ocannl_core.tensor.graph.precision import Precision, choose_precision
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor


class Dimension(Tensor):
    """The size of an axis that some specification names, as a tensor of one cell.

    For a row variable it is the product of its axes. The cell is a constant of the compiled
    program; for an axis whose extent is known at run time, it is the value in each call.

    Attributes:
        reference: The reference to the named axis or row.
    """

    __slots__ = ("reference",)

    def __init__(self, name: str, session: Session, dtype: Precision) -> None:
        self.reference = DimRef(name)
        origin = Origin(f"dim {name}", caller_location())
        terms = closed_shape()
        session.environment.leaf(terms, origin)
        super().__init__(session, Filled(self._value), terms, dtype, (name,), origin)

    @property
    def name(self) -> str:
        """The name in specifications."""
        return self.reference.label

    @property
    def is_captured(self) -> bool:
        return self.reference.term is not None

    @property
    def size(self) -> int | None:  # type: ignore[override]  # of the captured axis
        """The size, or None while it is not inferred; reading it never influences inference.

        For an extent at run time it is the maximum.
        """
        if not self.is_captured:
            return None
        return self.session.environment.size_of(self.reference)

    def require(self, size: int | Dimension, *, times: int = 1) -> None:
        """Require a size: a number, the size of another dimension, or a multiple of it.

            d.require(64)                # d == 64
            d.require(e)                 # d == e
            d.require(e, times=4)        # d == 4 * e

        The equation is solved in every direction.

        Raises:
            ShapeError: if the size is another one; then nothing changes.
            UsageError: if no operation has captured a dimension, or the argument is no size.
        """
        environment = self.session.environment
        self._check_captured()
        self._check(times)
        if isinstance(size, Dimension):
            size._check_captured()
            if size.session is not self.session:
                raise UsageError.at_caller(
                    "Dimensions of different sessions do not mix.", found=f"{self!r} and {size!r}"
                )
            factor = "" if times == 1 else f"{times} * "
            origin = Origin(f"{self.name} required to be {factor}{size.name}", caller_location())
            environment.set_scale(self.reference, int(times), size.reference, origin)
            return
        self._check(size)
        origin = Origin(f"{self.name} required to be {times * size}", caller_location())
        environment.set_dim(self.reference, int(times * size), origin)

    def _check(self, number: object) -> None:
        if not is_whole(number) or number < 1:
            raise UsageError.at_caller(
                "A size is a positive number, or a positive multiple of another dimension.",
                found=f"{number!r} for {self.name}",
            )

    def _check_captured(self) -> None:
        if not self.is_captured:
            raise UsageError(
                "A dimension stands for a label of an operation.",
                found=f"{self.name}, which no operation has captured",
                where=str(self.origin),
                fix=f"give it to the operation whose specification mentions {self.name}: "
                "oc.einsum(..., capture=[d])",
            )

    def _value(self) -> Constant | EmbedIndex:
        self._check_captured()
        size = self.size
        if size is None:
            raise ShapeError(
                "Code that mentions a dimension needs its size.",
                found=f"{self.name}, which nothing decides",
                where=str(self.origin),
                fix=f"state it with {self.name}.require(...), or compile the code that decides it",
            )
        extents = self.session.environment.extents_of(self.reference)
        return count(size, extents)

    def __repr__(self) -> str:
        return f"<dimension {self.name}: {self.size or '?'}>"


def count(size: int, extents: Sequence[StaticExtent]) -> Constant | EmbedIndex:
    """Return a product of sizes, `size` with the maxima of extents, as it is at run time."""
    if not extents:
        return Constant(float(size))
    first, *others = extents
    constant = size // math.prod(extent.maximum for extent in extents)
    return EmbedIndex(affine([(constant, first)]), tuple(map(VarIndex, others)))


Capture = Sequence[Dimension] | Mapping[str, Dimension]
"""Dimensions by their own names, or by names of a specification."""


def dim(name: str, *, dtype: DType | str | None = None) -> Dimension:
    """Return the size of an axis, or of a row of axes, as a number to calculate with.

    The operation whose specification names the axis captures it:

        d = oc.dim("d")
        scores = oc.einsum("s|h d; t|h d => s|t->h", queries, keys, capture=[d])
        weights = oc.softmax(scores / oc.sqrt(d), logic="s|t->h => s|0->h")

    `capture={"label": d}` captures under another name. A dimension that several operations capture
    is one size in all of them: they must agree.

    Args:
        name: The label of an axis, or the name of a row variable, in a specification.
        dtype: The number format of the cell; by default the format of its uses, else the session's
            default float.
    """
    session = sessions.current()
    return Dimension(name, session, choose_precision(dtype, session.default_dtype))


def captured_names(capture: Capture, session: Session, operation: str) -> dict[str, DimRef]:
    """Return the references that an operation resolves, by names of its specification."""
    pairs = (
        list(capture.items())
        if isinstance(capture, Mapping)
        else [(getattr(each, "name", ""), each) for each in capture]
    )
    found: dict[str, DimRef] = {}
    for name, each in pairs:
        if not isinstance(each, Dimension) or each.session is not session or name in found:
            raise UsageError.at_caller(
                "An operation captures dimensions of its session, each name once.",
                found=f"{each!r} in {operation}",
                fix="d = oc.dim('d'), then capture=[d] or capture={'label': d}",
            )
        found[name] = each.reference
    return found
