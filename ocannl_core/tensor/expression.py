"""The operators that tensors, recorded applications and slots have in common."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn

from ocannl_core.errors import UsageError
from ocannl_core.indexing import StaticIndex
from ocannl_core.origin import caller_location
from ocannl_core.tensor.registry import operations

Operand = Any
"""What an operator accepts beside an expression: an expression or a Python number."""


def _binary(name: str) -> Callable[[Expression, Operand], Any]:
    def operator(self: Expression, other: Operand) -> Any:
        if not isinstance(other, Expression | Real):
            return _not_an_operand(other)
        return operations[name](self, other)

    return operator


def _equality(name: str) -> Callable[[Expression, Operand], Any]:
    def operator(self: Expression, other: Operand) -> Any:
        if other is None:
            return NotImplemented  # searches compare anything with anything
        return _binary(name)(self, other)

    return operator


def _reflected(name: str) -> Callable[[Expression, Operand], Any]:
    def operator(self: Expression, other: Operand) -> Any:
        if not isinstance(other, Expression | Real):
            return _not_an_operand(other)
        return operations[name](other, self)

    return operator


def _not_an_operand(other: object) -> Any:
    """Refuses arrays, lists, indices and None with advice; leaves other objects to their own
    operators.
    """
    if isinstance(other, StaticIndex):
        fix = f"oc.number({other.name}) is the tensor that holds the index"
    elif hasattr(other, "__array__"):
        fix = "wrap arrays with oc.tensor(array, batch_axes=...)"
    elif isinstance(other, list | tuple):
        fix = "wrap lists with oc.tensor(...)"
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

    __add__ = _binary("add")
    __radd__ = _reflected("add")
    __sub__ = _binary("sub")
    __rsub__ = _reflected("sub")
    __mul__ = _binary("mul")
    __rmul__ = _reflected("mul")
    __truediv__ = _binary("div")
    __rtruediv__ = _reflected("div")
    __mod__ = _binary("mod")
    __rmod__ = _reflected("mod")
    __pow__ = _binary("power")
    __rpow__ = _reflected("power")
    __matmul__ = _binary("matmul")
    __rmatmul__ = _reflected("matmul")
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _reflected("less")
    __ge__ = _reflected("less_equal")
    __eq__ = _equality("equal")
    __ne__ = _equality("not_equal")
    __hash__ = object.__hash__

    # NumPy must not take expressions apart when an array stands on the left of an operator
    __array_ufunc__ = None
    __iter__ = None
    __contains__ = None

    def __neg__(self) -> Any:
        return operations["neg"](self)

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

    def __len__(self) -> NoReturn:
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
