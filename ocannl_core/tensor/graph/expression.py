"""The operators shared by tensors, recorded primitives and slots."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import caller_location
from ocannl_core.ir.indexing import IndexExpression, StaticIndex
from ocannl_core.tensor.graph.operator_bindings import operations


def _apply(operation: Callable[..., Any], left: Expression, right: Any) -> Any:
    """Return an operation applied to an expression and the operand on its right."""
    if not isinstance(right, Expression | Real):
        return refuse_operand(right)
    return operation(left, right)


def _apply_reflected(operation: Callable[..., Any], right: Expression, left: Any) -> Any:
    """Return an operation applied to an expression and the operand on its left."""
    if not isinstance(left, Expression | Real):
        return refuse_operand(left)
    return operation(left, right)


def refuse_operand(other: object) -> Any:
    """Refuse arrays, lists, indices and None, with advice; leave other objects to their own
    operators.
    """
    if isinstance(other, StaticIndex | IndexExpression):
        fix = f"oc.number({other}) is the tensor that holds the index"
    elif hasattr(other, "__array__"):
        fix = "wrap arrays with oc.tensor(array, batch_axes=...)"
    elif isinstance(other, list | tuple):
        fix = "wrap lists with oc.tensor(...)"
    elif isinstance(other, str | bytes):
        fix = "text is no operand: labels and specifications are arguments, as in label="
    elif isinstance(other, complex):
        fix = "there are no complex numbers: keep real and imaginary parts in two tensors"
    elif isinstance(other, dict | set):
        fix = "give its tensors one by one"
    elif other is None:
        fix = "a tensor that needs no gradient has None as its .grad"
    else:
        return NotImplemented
    raise UsageError(
        "Operands are tensors and numbers.",
        found=f"{type(other).__name__} beside a tensor",
        where=str(caller_location() or ""),
        fix=fix,
    )


class Expression:
    """A value built from tensors. Arithmetic is pointwise with broadcasting per kind of axis; `@`
    composes.

    `==` is pointwise, so expressions hash by identity and have no truth value.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return _apply(operations.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _apply_reflected(operations.add, self, other)

    def __sub__(self, other: Any) -> Any:
        return _apply(operations.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _apply_reflected(operations.sub, self, other)

    def __mul__(self, other: Any) -> Any:
        return _apply(operations.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _apply_reflected(operations.mul, self, other)

    def __truediv__(self, other: Any) -> Any:
        return _apply(operations.div, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _apply_reflected(operations.div, self, other)

    def __mod__(self, other: Any) -> Any:
        return _apply(operations.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _apply_reflected(operations.mod, self, other)

    def __pow__(self, other: Any) -> Any:
        return _apply(operations.power, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _apply_reflected(operations.power, self, other)

    def __matmul__(self, other: Any) -> Any:
        return _apply(operations.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _apply_reflected(operations.matmul, self, other)

    def __floordiv__(self, other: Any) -> Any:
        return _apply(operations.floor_divide, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _apply_reflected(operations.floor_divide, self, other)

    def __and__(self, other: Any) -> Any:
        return _apply(operations.bitwise_and, self, other)

    def __rand__(self, other: Any) -> Any:
        return _apply_reflected(operations.bitwise_and, self, other)

    def __or__(self, other: Any) -> Any:
        return _apply(operations.bitwise_or, self, other)

    def __ror__(self, other: Any) -> Any:
        return _apply_reflected(operations.bitwise_or, self, other)

    def __xor__(self, other: Any) -> Any:
        return _apply(operations.bitwise_xor, self, other)

    def __rxor__(self, other: Any) -> Any:
        return _apply_reflected(operations.bitwise_xor, self, other)

    def __invert__(self) -> Any:
        return operations.bitwise_not(self)

    def __abs__(self) -> Any:
        return operations.abs(self)

    def __lt__(self, other: Any) -> Any:
        return _apply(operations.less, self, other)

    def __le__(self, other: Any) -> Any:
        return _apply(operations.less_equal, self, other)

    def __gt__(self, other: Any) -> Any:
        return _apply_reflected(operations.less, self, other)

    def __ge__(self, other: Any) -> Any:
        return _apply_reflected(operations.less_equal, self, other)

    def __eq__(self, other: Any) -> Any:
        if other is None:
            return NotImplemented  # searches compare anything with anything
        return _apply(operations.equal, self, other)

    def __ne__(self, other: Any) -> Any:
        if other is None:
            return NotImplemented  # searches compare anything with anything
        return _apply(operations.not_equal, self, other)

    __hash__ = object.__hash__

    # NumPy must not iterate over expressions when an array stands on the left of an operator
    __array_ufunc__: Any = None
    __iter__: Any = None
    __contains__: Any = None

    def __neg__(self) -> Any:
        return operations.neg(self)

    def __pos__(self) -> Any:
        return self

    def __bool__(self) -> NoReturn:
        raise UsageError(
            "An expression has no truth value: its cells are computed when a routine runs.",
            found=repr(self),
            where=str(caller_location() or ""),
            fix="compare arrays on the host with ctx[x], or choose cell by cell with "
            "oc.where(condition, a, b)",
        )

    def __len__(self) -> int:
        raise _host_only("length", self)

    def __float__(self) -> NoReturn:
        raise _host_only("number", self)

    def __index__(self) -> NoReturn:
        raise _host_only("integer", self)

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise _host_only("array", self)


def _host_only(what: str, expression: Expression) -> UsageError:
    return UsageError(
        f"An expression is not a Python {what}: its cells live in a context.",
        found=repr(expression),
        where=str(caller_location() or ""),
        fix="read it with ctx[x] after a routine computed it, or ctx.item(x) for a single number",
    )


Operand = Expression | float
"""An operand of a pointwise function."""
