"""The methods of tensors that are functions of `oc`, and the protocols of Python and NumPy.

`x.sum(axis=-1)` is `oc.sum(x, axis=-1)`. The functions are defined on top of tensors and bound late
(`expression.functions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ocannl_core.base.errors import UsageError
from ocannl_core.tensor.graph.expression import Expression, functions, refusal
from ocannl_core.tensor.messages.call_errors import called
from ocannl_core.tensor.messages.foreign_names import missing_method


def _method(name: str) -> Callable[..., Any]:
    """Return the method that calls a function with the tensor as its first argument."""

    def method(self: Expression, *args: Any, **kwargs: Any) -> Any:
        return called(f"x.{name}", functions[name], (self, *args), kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Return `oc.{name}` of the tensor; other arguments are passed on."
    return method


class TensorMethods(Expression):
    """Methods for functions of `oc` with a tensor as their first argument."""

    __slots__ = ()

    # reductions
    sum = _method("sum")
    mean = _method("mean")
    var = _method("var")
    std = _method("std")
    max = _method("max")
    min = _method("min")
    prod = _method("prod")
    any = _method("any")
    all = _method("all")
    argmax = _method("argmax")
    argmin = _method("argmin")
    logsumexp = _method("logsumexp")
    softmax = _method("softmax")
    log_softmax = _method("log_softmax")
    norm = _method("norm")

    # scans and order
    cumsum = _method("cumsum")
    cumprod = _method("cumprod")
    cummax = _method("cummax")
    cummin = _method("cummin")
    sort = _method("sort")
    argsort = _method("argsort")
    topk = _method("topk")
    median = _method("median")
    searchsorted = _method("searchsorted")
    diff = _method("diff")

    # positions
    take = _method("take")
    take_along = _method("take_along")
    put = _method("put")
    put_along = _method("put_along")
    trace = _method("trace")
    diagonal = _method("diagonal")
    split = _method("split")

    # rearrangements
    reshape = _method("reshape")
    flatten = _method("flatten")
    ravel = _method("flatten")
    permute = _method("permute")
    transpose = _method("permute")
    moveaxis = _method("moveaxis")
    swapaxes = _method("swapaxes")
    expand_dims = _method("expand_dims")
    unsqueeze = _method("expand_dims")
    squeeze = _method("squeeze")
    broadcast_to = _method("broadcast_to")
    flip = _method("flip")
    roll = _method("roll")
    repeat = _method("repeat")
    tile = _method("tile")
    tril = _method("tril")
    triu = _method("triu")

    # cell by cell
    abs = _method("abs")
    sign = _method("sign")
    square = _method("square")
    sqrt = _method("sqrt")
    rsqrt = _method("rsqrt")
    exp = _method("exp")
    expm1 = _method("expm1")
    log = _method("log")
    log1p = _method("log1p")
    log2 = _method("log2")
    sin = _method("sin")
    cos = _method("cos")
    tan = _method("tan")
    tanh = _method("tanh")
    erf = _method("erf")
    floor = _method("floor")
    ceil = _method("ceil")
    round = _method("round")
    trunc = _method("trunc")
    clip = _method("clip")
    clamp = _method("clip")
    relu = _method("relu")
    sigmoid = _method("sigmoid")
    isnan = _method("isnan")
    isinf = _method("isinf")
    isfinite = _method("isfinite")
    astype = _method("cast")
    pow = _method("power")
    maximum = _method("maximum")
    minimum = _method("minimum")

    def __iter__(self) -> Iterator[Any]:
        """Yield the slices along the first axis, whose size is known."""
        slices: Iterator[Any] = functions["slices_of"](self)
        return slices

    __contains__ = refusal(
        "A tensor has no cells to search before a routine runs.",
        "`in` before {}",
        "oc.any(x == value) is 1 where a cell has the value",
    )

    def __len__(self) -> int:
        """Return the size of the first axis.

        Raises:
            ShapeError: if it is not known.
        """
        length: int = functions["length_of"](self)
        return length

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    __call__ = refusal(
        "A tensor is a value and takes no arguments.",
        "{} called like a function",
        "x[0] is a part of it; a network is a function, oc.nn.dense(x), or a block, @oc.op",
    )

    def __round__(self, digits: int | None = None) -> Any:
        if not digits or (digits > 0 and self.dtype.holds_integers):
            return functions["round"](self)
        return functions["round"](self * 10.0**digits) / 10.0**digits

    def __floor__(self) -> Any:
        return functions["floor"](self)

    def __ceil__(self) -> Any:
        return functions["ceil"](self)

    def __trunc__(self) -> Any:
        return functions["trunc"](self)

    __delitem__ = refusal(
        "A tensor keeps its axes: no cells are removed.",
        "del of a part of {}",
        "x[1:] is the tensor without its first slice; oc.concat joins parts",
    )
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = refusal(
        "There are no shifts of bits.",
        "<< or >> of {}",
        "x * 2**n, and x // 2**n for the other direction",
    )
    __enter__ = refusal(
        "A tensor is no context manager.",
        "with {}",
        "`with oc.Session():` opens a program, `with oc.evaluation():` ends training",
    )

    def __exit__(self, *error: object) -> None:
        """Do nothing: `__enter__` refuses."""

    def __copy__(self) -> Any:
        return self

    __deepcopy__ = refusal(
        "A tensor is a value of a program, which copies share.",
        "copy.deepcopy of {}",
        "call the function that makes the parameters again, for others of the same shapes; "
        "other.copy_from(ctx, [w]) copies cells between contexts",
    )
    __reduce_ex__ = refusal(
        "A tensor is a value of a program, and its cells live in contexts: it is not pickled.",
        "pickle of {}",
        'oc.save("model.safetensors", ctx, tensors) writes cells; ctx[x] is an array',
    )

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        raise UsageError.at_caller(
            "A tensor has no number to format: its cells live in a context.",
            found=f"format {spec!r} of {self!r}",
            fix=f"format what a routine computed: f'{{ctx.item(x):{spec}}}'",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing_method(name, [each for each in dir(type(self)) if each[0] != "_"])
