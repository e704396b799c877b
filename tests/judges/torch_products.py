"""Products, convolutions, pools and losses of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ocannl_core as oc
from tests.judges.torch_arguments import OPERATIONS, NotOurs, no, ours, rank

OPERATIONS |= {
    "mm": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "bmm": lambda a, b: np.einsum("bij,bjk->bik", a, b),
    "mv": lambda a, b: np.einsum("ij,j->i", a, b),
    "dot": np.dot,
    "vdot": np.vdot,
    "inner": np.inner,
    "outer": np.outer,
    "tensordot": lambda a, b, dims=2: np.tensordot(a, b, dims),
    "einsum": lambda tensors, equation: np.einsum(equation, *tensors),
    "addmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("ij,jk->ik", a, b),
    "addmv": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("ij,j->i", a, b),
    "addr": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("i,j->ij", a, b),
    "addbmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("bij,bjk->ik", a, b),
    "baddbmm": lambda c, a, b, beta=1, alpha=1: beta * c + alpha * np.einsum("bij,bjk->bik", a, b),
}


@ours("matmul", "__rmatmul__")
def matmul(a: Any, b: Any) -> Any:
    one, other = rank(a), rank(b)
    left = "j" if one == 1 else "...ij"
    right = "j" if other == 1 else "...jk"
    result = "..." + "i" * (one > 1) + "k" * (other > 1)
    return np.einsum(f"{left},{right}->{result}", a, b)


OPERATIONS["__rmatmul__"] = lambda a, b: matmul(b, a)


@ours("nn.functional.linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    made = np.einsum("...i,oi->...o" if rank(weight) == 2 else "...i,i->...", x, weight)
    return made if bias is None else made + bias


def pool(x: Any, kernel: Any, stride: Any, padding: Any, count: int, reduce: Any) -> Any:
    size = (
        [kernel] * count
        if isinstance(kernel, int)
        else list(kernel) * (count if len(kernel) == 1 else 1)
    )
    steps = (
        size
        if stride in (None, ())
        else [stride] * count
        if isinstance(stride, int)
        else list(stride) * (count if len(stride) == 1 else 1)
    )
    pads = (
        [padding] * count
        if isinstance(padding, int)
        else list(padding) * (count if len(padding) == 1 else 1)
    )
    if any(pads):
        beyond = 0.0 if reduce is oc.einsum else -np.inf
        x = oc.pad(x, [(n, n) for n in pads], value=beyond, axis=tuple(range(-count, 0)))
    spare = [(n - k) % s for n, k, s in zip(tuple(x.shape)[-count:], size, steps, strict=True)]
    x = x[(..., *(slice(0, n - r) for n, r in zip(tuple(x.shape)[-count:], spare, strict=True)))]
    slid = ", ".join(f"{s}*o{k}<+k{k}" for k, s in enumerate(steps))
    spec = f"..., {slid} => ..., {', '.join(f'o{k}' for k in range(count))}"
    return reduce(spec, x, values={f"k{k}": n for k, n in enumerate(size)}), int(np.prod(size))


def average_pool(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Any:
        no(ceil_mode=ceil_mode)
        if not count_include_pad and np.any(padding):
            raise NotOurs("a mean without the padding")
        total, cells = pool(x, kernel_size, stride, padding, count, oc.einsum)
        return total / float(divisor_override or cells)

    return apply


def maximum_pool(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        no(ceil_mode=ceil_mode, return_indices=return_indices)
        if any(d != 1 for d in np.ravel(dilation)):
            raise NotOurs("dilation of a pool")
        return pool(x, kernel_size, stride, padding, count, oc.einmax)[0]

    return apply


for _count in (1, 2, 3):
    OPERATIONS[f"nn.functional.avg_pool{_count}d"] = average_pool(_count)
    OPERATIONS[f"nn.functional.max_pool{_count}d"] = maximum_pool(_count)


def convolution(count: int) -> Callable[..., Any]:
    def apply(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        def each(value: Any) -> list[int]:
            return (
                [value] * count
                if isinstance(value, int)
                else list(value) * (count if len(value) == 1 else 1)
            )

        steps, apart = each(stride), each(dilation)
        sizes = tuple(weight.shape)[2:]
        if isinstance(padding, str):
            reach = [
                d * (k - 1) if padding == "same" else 0 for d, k in zip(apart, sizes, strict=True)
            ]
            pads = [(r // 2, r - r // 2) for r in reach]
        else:
            pads = [(p, p) for p in each(padding)]
        if any(p != (0, 0) for p in pads):
            x = oc.pad(x, pads, axis=tuple(range(-count, 0)))
        spare = [
            (n - d * (k - 1) - 1) % s
            for n, d, k, s in zip(tuple(x.shape)[-count:], apart, sizes, steps, strict=True)
        ]
        x = x[
            (..., *(slice(0, n - r) for n, r in zip(tuple(x.shape)[-count:], spare, strict=True)))
        ]
        batch = tuple(x.shape)[: -count - 1]
        x = oc.reshape(x, (*batch, groups, -1, *tuple(x.shape)[-count:]))
        weight = oc.reshape(weight, (groups, -1, *tuple(weight.shape)[1:]))
        slid = ", ".join(
            f"{s}*o{k}<+{d}*k{k}" for k, (s, d) in enumerate(zip(steps, apart, strict=True))
        )
        kernel = ", ".join(f"k{k}" for k in range(count))
        made = oc.einsum(
            f"..., g, c, {slid}; g, m, c, {kernel} => ..., g, m, {', '.join(f'o{k}' for k in range(count))}",
            x,
            weight,
        )
        made = oc.reshape(made, (*batch, -1, *tuple(made.shape)[-count:]))
        return made if bias is None else made + oc.reshape(bias, (-1, *[1] * count))

    return apply


for _count in (1, 2, 3):
    OPERATIONS[f"nn.functional.conv{_count}d"] = convolution(_count)


@ours("nn.functional.layer_norm")
def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    across = tuple(range(rank(x) - len(shape), rank(x)))
    found = (x - x.mean(axis=across, keepdims=True)) * oc.rsqrt(
        x.var(axis=across, keepdims=True) + eps
    )
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


@ours("nn.functional.mse_loss")
def mse_loss(x: Any, y: Any, reduction: str = "mean", weight: Any = None) -> Any:
    no(weight=weight)
    squares = (x - y) ** 2
    return (
        squares
        if reduction == "none"
        else oc.mean(squares)
        if reduction == "mean"
        else oc.sum(squares)
    )


@ours("nn.functional.l1_loss")
def l1_loss(x: Any, y: Any, reduction: str = "mean") -> Any:
    sizes = oc.abs(x - y)
    return (
        sizes if reduction == "none" else oc.mean(sizes) if reduction == "mean" else oc.sum(sizes)
    )
