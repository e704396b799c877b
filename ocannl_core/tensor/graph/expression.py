"""The operators shared by tensors, recorded primitives and slots."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, NoReturn

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.indexing import IndexExpression, StaticIndex
from ocannl_core.tensor.messages.call_errors import called, import_names
from ocannl_core.tensor.messages.foreign_names import FUNCTIONS, IN_PLACE, UFUNC_METHODS, UFUNCS

Function = Callable[..., Any]


class LateFunctions(dict[str, Function]):
    """Functions by name, some of which are imported at their first use."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}
        """The modules of functions that may not be imported yet."""
        self.prepare: Callable[[dict[str, Function], list[str]], None] = lambda found, names: None
        """A change to the functions of some names, made when they are imported."""

    def __missing__(self, name: str) -> Function:
        function: Function = import_names(self, self.places, name, self.prepare)
        return function


functions = LateFunctions()
"""The functions behind the operators and methods of tensors, by name. Operations make tensors, and
tensors apply operations: `tensor.operations.operators` binds them when the package is imported.
Calls have the name in quotes, `functions["store_rows"]`, or are methods of `TensorMethods`.
"""


def _apply(operation: Function, left: Expression, right: Any) -> Any:
    """Return an operation applied to an expression and the operand on its right."""
    if not isinstance(right, (Expression, Real)):
        return refuse_operand(right)
    return operation(left, right)


def _operators(name: str) -> tuple[Callable[[Expression, Any], Any], ...]:
    """Return the operator of a function of two operands, and the one for an operand on the left."""

    def operator(self: Expression, other: Any) -> Any:
        return _apply(functions[name], self, other)

    def reflected(self: Expression, other: Any) -> Any:
        if not isinstance(other, (Expression, Real)):
            return refuse_operand(other)
        return functions[name](other, self)

    return operator, reflected


def refuse_operand(other: object) -> Any:
    """Refuse arrays, lists, indices and None, with advice; other objects have own operators."""
    if not suggest_operand(other, ""):
        return NotImplemented
    raise no_operand(other, "beside a tensor")


def no_operand(other: object, place: str) -> UsageError:
    """Return the error of something else in the place of an operand."""
    return UsageError.at_caller(
        "Operands are tensors and numbers.",
        found=f"{type(other).__name__} {place}",
        fix=suggest_operand(other),
    )


def suggest_operand(
    other: object, otherwise: str = "wrap arrays and lists with oc.tensor(...)"
) -> str:
    """Return the fix for something that is no operand."""
    match other:
        case StaticIndex() | IndexExpression():
            index = other.name if isinstance(other, StaticIndex) else other
            return f"oc.number({index}) is the tensor that holds the index"
        case Real():
            return "oc.full_like(x, 0.5) has a number in every cell"
        case _ if hasattr(other, "__array__"):
            return "wrap arrays with oc.tensor(array, batch_axes=...)"
        case list() | tuple() if any(isinstance(each, Expression) for each in other):
            return "give tensors one by one: oc.stack(a, b), or oc.stack(*tensors)"
        case list() | tuple():
            return "wrap lists with oc.tensor(...)"
        case str() if "=>" in other:
            return 'a specification comes first, as in oc.einsum("ij => i", x)'
        case str() | bytes():
            return "text is no operand: labels and specifications are arguments, as in label="
        case complex():
            return "there are no complex numbers: keep real and imaginary parts in two tensors"
        case dict() | set():
            return "give its tensors one by one"
        case None:
            return (
                "a tensor that needs no gradient has None as its .grad; oc.scan returns the values "
                "of the steps, None if they return none, and then the last carry"
            )
        case _:
            return otherwise


def refusal(rule: str, found: str, fix: str) -> Callable[..., NoReturn]:
    """Return a special method that refuses; `{}` in `found` stands for the object."""

    def method(self: Expression, *args: object, **kwargs: object) -> NoReturn:
        raise UsageError.at_caller(rule, found=found.format(repr(self)), fix=fix)

    return method


def _not_on_host(noun: str) -> Callable[..., NoReturn]:
    return refusal(
        f"An expression is not a Python {noun}: its cells live in a context.",
        "{}",
        "read it with ctx[x] after a routine computed it, or ctx.item(x) for a single number",
    )


class Expression:
    """A value built from tensors. Arithmetic is pointwise with broadcasting per kind of axis; `@`
    composes.

    `==` is pointwise, so expressions hash by identity and have no truth value.
    """

    __slots__ = ()

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __mod__, __rmod__ = _operators("mod")
    __pow__, __rpow__ = _operators("power")
    __matmul__, __rmatmul__ = _operators("matmul")
    __floordiv__, __rfloordiv__ = _operators("floor_divide")
    __and__, __rand__ = _operators("both")
    __or__, __ror__ = _operators("either")
    __xor__, __rxor__ = _operators("one_of")
    __lt__, __gt__ = _operators("less")
    __le__, __ge__ = _operators("less_equal")

    def __invert__(self) -> Any:
        return functions["inverted"](self)

    def __abs__(self) -> Any:
        return functions["abs"](self)

    def __eq__(self, other: Any) -> Any:
        if other is None:
            return NotImplemented  # searches compare anything with anything
        return _apply(functions["equal"], self, other)

    def __ne__(self, other: Any) -> Any:
        if other is None:
            return NotImplemented  # searches compare anything with anything
        return _apply(functions["not_equal"], self, other)

    __hash__ = object.__hash__

    __iter__: Any = None
    __contains__: Any = None

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Return the operation of the same meaning as a universal function of NumPy."""
        name = ufunc.__name__
        reduction = UFUNC_METHODS.get((name, method)) if inputs and inputs[0] is self else None
        if reduction is not None:
            kwargs.setdefault("axis", 0)
            return called(f"np.{name}.{method}", functions[reduction], inputs, kwargs)
        ours = UFUNCS.get(name) if method == "__call__" and not kwargs else None
        if ours is None:
            shown = name if method == "__call__" else f"{name}.{method}"
            raise _no_counterpart(shown, f"with {', '.join(kwargs)}=" if kwargs else "")
        for each in inputs:
            if not isinstance(each, Expression | Real):
                refuse_operand(each)
        return (functions["numpy_counterpart"](name) or functions[ours])(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return the operation of the same meaning as a function of NumPy."""
        name = function.__name__
        if function.__module__.endswith("linalg"):
            name = f"linalg.{name}"
        ours = functions["numpy_counterpart"](name)
        if ours is None and name in FUNCTIONS:
            ours = functions[FUNCTIONS[name]]
        if ours is None:
            raise _no_counterpart(name)
        return called(f"np.{name}", ours, args, kwargs)

    def __neg__(self) -> Any:
        return functions["neg"](self)

    def __pos__(self) -> Any:
        return self

    __bool__ = refusal(
        "An expression has no truth value: its cells are computed when a routine runs.",
        "{}",
        "compare arrays on the host with ctx[x], or choose cell by cell with "
        "oc.where(condition, a, b)",
    )

    __len__: Any = _not_on_host("length")
    __float__ = _not_on_host("number")
    __index__ = _not_on_host("integer")
    __array__ = _not_on_host("array")


def _no_counterpart(name: str, detail: str = "") -> UsageError:
    if name in IN_PLACE:
        return UsageError.at_caller(
            "Tensors are values: functions of NumPy that change an array change none.",
            found=f"numpy.{name}",
            fix=IN_PLACE[name],
        )
    return UsageError.at_caller(
        "A function of NumPy is applied to a tensor where it has a counterpart here.",
        found=f"numpy.{name} {detail}".rstrip(),
        fix="the operations on tensors are functions of oc, and oc.define_operation makes others; "
        "to compute on the host, read arrays with ctx[x]",
    )


Operand = Expression | float
"""An operand of a pointwise function."""
