"""Number formats of tensors: state, and propagation along operations (see `precision`)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.host_arrays import convert
from ocannl_core.ir.numbers.dtypes import DType, dtype_of, float16, float32, promote
from ocannl_core.ir.numbers.primitives import TernaryOp
from ocannl_core.tensor.graph.assignment import Assignable
from ocannl_core.tensor.graph.definitions import (
    Applied,
    Definition,
    Filled,
    GradientOf,
    Literal,
    is_unpacked,
)
from ocannl_core.tensor.graph.precision import (
    Precision,
    Why,
    is_reduction,
    operand_precisions,
    result_precision,
    widen_for_range,
)
from ocannl_core.tensor.graph.session import Session


class TypedTensor(Assignable):
    """The number format of a tensor, and its dependents; the base class of `Tensor`."""

    __slots__ = ("_dependents", "_first_use", "_is_settled", "_precision", "definition")

    session: Session
    origin: Origin
    definition: Definition[Self]
    _grad: Self | None

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._first_use: Origin | None = None
        self._is_settled = False
        self._dependents: list[Self] = []

    @property
    @abstractmethod
    def operands(self) -> tuple[Self, ...]:
        """The tensors it is computed from."""

    @property
    def dtype(self) -> DType:
        """The number format of the cells, as decided by the program so far.

        It can be stated until something uses the tensor.

        Raises:
            UsageError: when it is stated later, or for a gradient, which has its tensor's format.
        """
        return self.precision.dtype

    @dtype.setter
    def dtype(self, value: DType | str) -> None:
        wanted = dtype_of(value)
        if wanted is self.dtype:
            return
        if isinstance(self.definition, Applied | GradientOf) or self._first_use is not None:
            raise UsageError(
                "The number format of a tensor is stated before anything uses it, and that of a "
                "result with dtype= where it is made.",
                found=f"{wanted} for {self!r}, which is {self.dtype}",
                where=str(self._first_use or self.origin),
                fix=f'convert it: oc.cast(x, "{wanted}")',
            )
        self._precision = Precision.stated(wanted)

    @property
    def precision(self) -> Precision:
        """The number format and its source. A gradient has the format of its tensor."""
        if (model := self._model) is None:
            return self._precision
        found = model.precision
        rests = found.rests_on_default or found.why is Why.DEFAULT
        return replace(found, why=Why.OPERANDS, positions=(), rests_on_default=rests)

    @property
    def _model(self) -> Self | None:
        """The tensor whose format a gradient has; None for other tensors."""
        match self.definition:
            case GradientOf(tensor):
                return tensor
            case Applied(like=tensor):
                return tensor
            case _:
                return None

    @property
    def free_number(self) -> float | None:
        """The number of a constant without a stated format; None for other tensors."""
        match self.definition:
            case Filled(_, number) if self._precision.follows:
                return number
            case _:
                return None

    def note_use(self, origin: Origin, dtype: DType | None = None) -> None:
        """Record an operation that uses the tensor.

        Args:
            origin: The operation.
            dtype: The format in which the operation computes, if the tensor follows it.
        """
        self._first_use = self._first_use or origin
        if dtype is not None and self._take_format(dtype, origin):
            self._propagate_format()

    def _take_format(self, dtype: DType, origin: Origin) -> bool:
        """Take the format of a use, if nothing else decides; return True if that changed it."""
        if self._is_settled:
            return False
        match self.definition:
            case Literal(array):
                dtype = widen_for_range(dtype, array)
            case _ if is_unpacked(self.definition):
                dtype = promote(dtype, float16)  # shorter floats are random patterns, NaN included
        before, self._precision = self._precision, self._precision.after_use(dtype, origin)
        return self._precision.dtype is not before.dtype

    def add_dependent(self, result: Self) -> None:
        """Record a result whose format rests on default formats, this tensor's among them."""
        if not self._is_settled and (self.precision.follows or self.precision.rests_on_default):
            self._dependents.append(result)

    def _propagate_format(self: Self) -> None:
        """Decide dependent formats that rested on the default anew, after a change of this tensor's
        format.
        """
        pending: list[Self] = [self]
        while pending:
            changed = pending.pop()
            if changed._grad is not None:
                pending.append(changed._grad)
            for result in changed._dependents:
                if not result._is_settled:
                    pending += result._update_format()

    def _update_format(self) -> list[Self]:
        """Derive the format of a result from its operands again, and pass it on to operands whose
        format follows from this use; return the tensors whose formats have changed.
        """
        assert isinstance(self.definition, Applied)
        if self.definition.like is not None:
            return [self]  # after a change of the tensor whose format it has
        operation = self.definition.operation
        primitive = operation.primitive
        values = self.operands[: len(self.operands) - operation.positions]
        found = result_precision(
            primitive,
            operand_precisions(primitive, values),
            self.session.default_dtype,
            is_reduction=is_reduction(operation.combine, self.definition.logic),
            moves_cells=operation.moves_cells,
        )
        before = self._precision
        if before.why is not Why.STATED:
            self._precision = found
        changed: list[Self] = [self] if self._precision.dtype is not before.dtype else []
        for operand in values[primitive is TernaryOp.WHERE :]:
            if found.positions and operand._take_format(found.dtype, self.origin):
                changed.append(operand)
        return changed

    def adopt(self, dtype: DType) -> None:
        """Give the tensor, and its dependencies, the format of its purpose, unless another source
        decided theirs.

        Intermediate arithmetic happens in float32 at least, so that a narrow format rounds once.
        """
        if self.operands and not is_unpacked(self.definition):
            dtype = promote(dtype, float32)
        pending = [self]
        while pending:
            tensor = pending.pop()
            if tensor.precision.is_free and tensor.dtype.is_float and not tensor._is_settled:
                tensor._precision = Precision.by_default(tensor.dtype)
                tensor.note_use(self.origin, dtype)
                pending += tensor.operands

    def settle(self) -> None:
        """Make the number format final: code has been made for it."""
        if self._is_settled:
            return
        self._is_settled = True
        if (model := self._model) is not None:
            model.settle()
        self._dependents.clear()
        self._first_use = self._first_use or self.origin
        if isinstance(self.definition, Literal):
            self.definition = Literal(self._converted(self.definition.array))

    def _converted(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array of a literal in the tensor's format; arrays in files are not
        converted.
        """
        if array.dtype == self.dtype.numpy or isinstance(array, np.memmap):
            return array
        cells = convert(array, self.dtype, str(self.origin))
        cells.flags.writeable = False
        return cells
