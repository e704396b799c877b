"""Operations of PyTorch cell by cell, and along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc
from tests.judges.torch_arguments import OPERATIONS, NotOurs, no, ours, rank, scalar_dim

_SAME = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "logical_not",
    "neg",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
for _name in _SAME:
    OPERATIONS[_name] = getattr(oc, _name)
_FUNCTIONAL = ["relu", "relu6", "hardsigmoid", "hardswish", "mish", "selu", "silu", "softsign"]
for _name in _FUNCTIONAL:
    OPERATIONS[f"nn.functional.{_name}"] = getattr(oc, _name)
_BINARY = ["logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum"]
for _name in _BINARY:
    OPERATIONS[_name] = getattr(oc, _name)
OPERATIONS |= {
    "atan2": oc.atan2,
    "mul": lambda a, b: a * b,
    "__radd__": lambda a, b: b + a,
    "__rmul__": lambda a, b: b * a,
    "__rsub__": lambda a, b: b - a,
    "__rdiv__": lambda a, b: b / a,
    "__rpow__": lambda a, b: b**a,
    "__rmod__": lambda a, b: b % a,
    "true_divide": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "pow": lambda a, b: a**b,
    "float_power": lambda a, b: a**b,
    "reciprocal": oc.reciprocal,
    "sgn": oc.sign,
    "positive": lambda x: +x,
    "clone": lambda x, **_: oc.primitives.identity(x),
    "deg2rad": lambda x: x * (np.pi / 180),
    "rad2deg": lambda x: x * (180 / np.pi),
    "zeros_like": lambda x, **_: np.zeros_like(x),
    "ones_like": lambda x, **_: np.ones_like(x),
    "full_like": lambda x, value, **_: np.full_like(x, value),
    "nn.functional.gelu": lambda x, approximate="none": oc.gelu(x, approximate=approximate),
    "nn.functional.leaky_relu": lambda x, negative_slope=0.01, **_: oc.leaky_relu(
        x, negative_slope
    ),
    "nn.functional.elu": lambda x, alpha=1.0, **_: oc.elu(x, alpha),
    "nn.functional.celu": lambda x, alpha=1.0, **_: alpha * oc.elu(x / alpha),
    "nn.functional.hardtanh": lambda x, min_val=-1.0, max_val=1.0, **_: oc.hardtanh(
        x, min_val, max_val
    ),
    "nn.functional.logsigmoid": oc.log_sigmoid,
    "nn.functional.tanhshrink": lambda x: x - oc.tanh(x),
    "nn.functional.threshold": lambda x, t, v, **_: oc.where(x > t, x, v),
    "nn.functional.softshrink": lambda x, lambd=0.5: oc.where(
        x > lambd, x - lambd, oc.where(x < -lambd, x + lambd, 0.0)
    ),
    "nn.functional.hardshrink": lambda x, lambd=0.5: oc.where(oc.abs(x) > lambd, x, 0.0),
    "isposinf": lambda x: (x > 0) & oc.isinf(x),
    "isneginf": lambda x: (x < 0) & oc.isinf(x),
    "lerp": lambda a, b, w: a + w * (b - a),
    "addcmul": lambda x, a, b, value=1: x + value * (a * b),
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "hypot": lambda a, b: oc.sqrt(a * a + b * b),
    "log10": lambda x: oc.log(x) * float(1 / np.log(10)),
    "erfc": lambda x: 1.0 - oc.erf(x),
    "asinh": lambda x: oc.sign(x) * oc.log1p(oc.abs(x) + x * x / (1 + oc.sqrt(x * x + 1))),
    "acosh": lambda x: oc.log(x + oc.sqrt(x * x - 1)),
    "atanh": lambda x: 0.5 * (oc.log1p(x) - oc.log1p(-x)),
    "frac": lambda x: x - oc.trunc(x),
    "logit": lambda x, eps=None: _logit(x if eps is None else oc.clip(x, eps, 1 - eps)),
}


def _logit(x: Any) -> Any:
    return oc.log(x) - oc.log1p(-x)


@ours("add")
def add(a: Any, b: Any, alpha: float = 1) -> Any:
    return a + (b if alpha == 1 else alpha * b)


@ours("sub")
def sub(a: Any, b: Any, alpha: float = 1) -> Any:
    return a - (b if alpha == 1 else alpha * b)


@ours("rsub")
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    return b - (a if alpha == 1 else alpha * a)


@ours("div")
def div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return a // b
    return oc.trunc(a / b) if rounding_mode == "trunc" else a / b


@ours("round")
def round_(x: Any, decimals: int = 0) -> Any:
    return round(x, decimals)


@ours("clamp")
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return oc.clip(x, min, max)


OPERATIONS |= {
    "clamp_min": lambda x, low: oc.clip(x, low, None),
    "clamp_max": lambda x, high: oc.clip(x, None, high),
}


@ours("where")
def where(a: Any, condition: Any, b: Any) -> Any:
    return oc.where(condition, a, b)


@ours("masked_fill")
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return oc.where(mask, value, x)


@ours("isclose")
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    no(equal_nan=equal_nan)
    return np.isclose(a, b, rtol=rtol, atol=atol)


@ours("nan_to_num")
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    most = float(np.finfo(np.float64).max)
    x = oc.where(oc.isnan(x), 0.0 if nan is None else nan, x)
    x = oc.where(oc.isinf(x) & (x > 0), most if posinf is None else posinf, x)
    return oc.where(oc.isinf(x) & (x < 0), -most if neginf is None else neginf, x)


@ours("nn.functional.softplus")
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return oc.where(beta * x > threshold, x, oc.softplus(beta * x) / beta)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None, **kwargs: Any
    ) -> Any:
        no(dtype=dtype)
        return function(x, scalar_dim(x, dim), keepdims=keepdim, **kwargs)

    return reduce


for _theirs, _here in {
    "sum": oc.sum,
    "mean": oc.mean,
    "prod": oc.prod,
    "amax": oc.max,
    "amin": oc.min,
    "all": oc.all,
    "any": oc.any,
    "argmax": oc.argmax,
    "argmin": oc.argmin,
    "logsumexp": oc.logsumexp,
    "count_nonzero": np.count_nonzero,
    "nansum": np.nansum,
    "nanmean": np.nanmean,
}.items():
    OPERATIONS[_theirs] = reduction(_here)


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = correction if correction is not None else 1 if unbiased in (None, True) else 0
        return function(x, scalar_dim(x, dim), ddof=ddof, keepdims=keepdim)

    return reduce


OPERATIONS |= {
    "var": spread(oc.var),
    "std": spread(oc.std),
    "var_mean": lambda x, *a, **k: (spread(oc.var)(x, *a, **k), _mean_of(x, *a, **k)),
    "std_mean": lambda x, *a, **k: (spread(oc.std)(x, *a, **k), _mean_of(x, *a, **k)),
}


def _mean_of(
    x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, correction: Any = None
) -> Any:
    return oc.mean(x, None if isinstance(dim, bool) else scalar_dim(x, dim), keepdims=keepdim)


def extreme(reduce: Any, position: Any, pair: Any) -> Callable[..., Any]:
    def apply(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return reduce(x)
        if isinstance(dim, oc.Tensor):
            return pair(x, dim)
        dim = scalar_dim(x, dim)
        return reduce(x, dim, keepdims=keepdim), position(x, dim, keepdims=keepdim)

    return apply


OPERATIONS |= {
    "max": extreme(oc.max, oc.argmax, oc.maximum),
    "min": extreme(oc.min, oc.argmin, oc.minimum),
}


def scan(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Any, dim: int, dtype: Any = None) -> Any:
        no(dtype=dtype)
        return function(x, scalar_dim(x, dim))

    return apply


OPERATIONS |= {
    "cumsum": scan(oc.cumsum),
    "cumprod": scan(oc.cumprod),
    "cummax": scan(oc.cummax),
    "cummin": scan(oc.cummin),
    "softmax": scan(oc.softmax),
    "log_softmax": scan(oc.log_softmax),
    "nn.functional.softmin": lambda x, dim, dtype=None: scan(oc.softmax)(-x, dim, dtype),
}


@ours("sort")
def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    dim = scalar_dim(x, dim)
    return oc.sort(x, dim, descending=descending), oc.argsort(x, dim, descending=descending)


@ours("argsort")
def argsort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return oc.argsort(x, scalar_dim(x, dim), descending=descending)


@ours("msort")
def msort(x: Any) -> Any:
    return oc.sort(x, 0)


@ours("topk")
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return oc.topk(x, k, scalar_dim(x, dim), largest=largest)


@ours("searchsorted")
def searchsorted(
    ordered: Any,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Any:
    no(sorter=sorter)
    if rank(ordered) != 1:
        raise NotOurs("rows in order, each with cells of its own")
    return oc.searchsorted(ordered, x, side=side or ("right" if right else "left"))


@ours("linalg.vector_norm")
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    no(dtype=dtype)
    if ord == 0:
        raise NotOurs("the number of cells that are not 0, as a norm")
    return oc.norm(x, ord, scalar_dim(x, dim), keepdims=keepdim)
