"""Operations of PyTorch that move cells, and read and write at positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ocannl_core as oc
from tests.judges.torch_arguments import OPERATIONS, NotOurs, axes, no, ours, rank, scalar_dim


def shape_of(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else tuple(args)


@ours("reshape", "view")
def reshape(x: Any, *shape: Any) -> Any:
    if len(shape) == 1 and not isinstance(shape[0], int | list | tuple):
        raise NotOurs("a view of the bits in another format")
    return oc.reshape(x, shape_of(shape))


OPERATIONS |= {
    "reshape_as": lambda x, y: oc.reshape(x, tuple(y.shape)),
    "view_as": lambda x, y: oc.reshape(x, tuple(y.shape)),
    "permute": lambda x, dims: oc.permute(x, *dims) if dims else x,
    "transpose": lambda x, a, b: oc.swapaxes(x, a, b) if rank(x) else x,
    "t": lambda x: oc.swapaxes(x, 0, 1) if rank(x) == 2 else x,
    "mT": lambda x: oc.swapaxes(x, -1, -2),
    "movedim": oc.moveaxis,
    "unsqueeze": oc.expand_dims,
    "broadcast_to": lambda x, shape: oc.broadcast_to(x, *shape),
    "expand_as": lambda x, y: oc.broadcast_to(x, *y.shape),
    "ravel": oc.flatten,
    "flip": lambda x, dims: oc.flip(x, axes(dims)) if dims else x,
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "tile": lambda x, reps: oc.tile(x, tuple(reps)) if reps else x,
    "tril": lambda x, diagonal=0: oc.tril(x, diagonal),
    "triu": lambda x, diagonal=0: oc.triu(x, diagonal),
    "stack": lambda parts, dim=0: np.stack(list(parts), axis=dim),
    "hstack": lambda parts: np.hstack([oc.reshape(x, 1) if rank(x) == 0 else x for x in parts]),
    "vstack": lambda parts: np.vstack([oc.reshape(x, 1, -1) if rank(x) < 2 else x for x in parts]),
    "unbind": lambda x, dim=0: np.unstack(x, axis=dim),
    "diff": lambda x, n=1, dim=-1, prepend=None, append=None: np.diff(
        _joined(x, dim, prepend, append), n, dim
    ),
    "trace": np.trace,
    "select": lambda x, dim, index: x[(*(slice(None),) * (dim % rank(x)), index)],
}


@ours("narrow")
def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    if isinstance(start, oc.Tensor):
        raise NotOurs("a start from a tensor")
    size = x.shape[dim % rank(x)]
    first = start + size if start < 0 else start
    return x[(*(slice(None),) * (dim % rank(x)), slice(first, first + length))]


def _joined(x: Any, dim: int, *others: Any) -> Any:
    before, after = others
    parts = [part for part in (before, x, after) if part is not None]
    return oc.concat(parts, axis=dim) if len(parts) > 1 else x


@ours("expand")
def expand(x: Any, *shape: Any) -> Any:
    sizes = shape_of(shape)
    own = (1,) * (len(sizes) - rank(x)) + tuple(x.shape)
    return oc.broadcast_to(x, *(o if s == -1 else s for s, o in zip(sizes, own, strict=True)))


@ours("flatten")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    n = rank(x)
    if n == 0:
        return oc.reshape(x, 1)
    first, last, sizes = start_dim % n, end_dim % n, tuple(x.shape)
    return oc.reshape(
        x, (*sizes[:first], int(np.prod(sizes[first : last + 1])), *sizes[last + 1 :])
    )


@ours("squeeze")
def squeeze(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return oc.squeeze(x)
    wanted = dim if isinstance(dim, list | tuple) else (dim,)
    if rank(x) == 0:
        return x
    chosen = tuple(d % rank(x) for d in wanted if x.shape[d % rank(x)] == 1)
    return oc.squeeze(x, chosen) if chosen else x


@ours("cat")
def cat(parts: Sequence[Any], dim: int = 0) -> Any:
    kept = [x for x in parts if tuple(x.shape) != (0,)] or list(parts[:1])
    return oc.concat(kept, axis=dim) if len(kept) > 1 else kept[0] * 1.0


@ours("roll")
def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    return np.roll(x, tuple(shifts) if isinstance(shifts, list) else shifts, axis=axes(dims))


@ours("repeat")
def repeat(x: Any, *counts: Any) -> Any:
    return oc.tile(x, shape_of(counts)) if shape_of(counts) else x


@ours("repeat_interleave")
def repeat_interleave(x: Any, repeats: Any, dim: Any = None, output_size: Any = None) -> Any:
    if not isinstance(repeats, int):
        raise NotOurs("a number of copies for each cell")
    return np.repeat(x, repeats, axis=dim) if rank(x) else oc.broadcast_to(x, repeats)


@ours("chunk")
def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    size = -(-x.shape[dim % rank(x)] // chunks)
    return split(x, size, dim)


@ours("split", "split_with_sizes")
def split(x: Any, sizes: Any, dim: int = 0) -> Any:
    n = x.shape[dim % rank(x)]
    edges = (
        list(range(sizes, n, sizes)) if isinstance(sizes, int) else np.cumsum(sizes)[:-1].tolist()
    )
    whole, stops = (slice(None),) * (dim % rank(x)), [*edges, n]
    return tuple(x[(*whole, slice(a, b))] for a, b in zip([0, *edges], stops, strict=True))


@ours("diagonal")
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return np.diagonal(x, offset, dim1, dim2)


@ours("constant_pad_nd")
def constant_pad(x: Any, widths: Any, value: float = 0.0) -> Any:
    return pad(x, widths, value=value)


@ours("nn.functional.pad")
def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    if mode not in names or any(n < 0 for n in pad):
        raise NotOurs(f"padding of mode {mode} and widths {min(pad, default=0)}")
    widths = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)][::-1]
    across = tuple(range(rank(x) - len(widths), rank(x)))
    return oc.pad(x, widths, mode=names[mode], value=value or 0.0, axis=across) if across else x


@ours("__getitem__")
def getitem(x: Any, key: Any) -> Any:
    parts = key if isinstance(key, tuple) else (key,)
    if (
        any(isinstance(p, bool | list) for p in parts)
        or sum(isinstance(p, oc.Tensor) for p in parts) > 1
    ):
        raise NotOurs("subscripts by several tensors, lists or truth values")
    return x[key]


@ours("index_select")
def index_select(x: Any, dim: int, ids: Any) -> Any:
    return oc.take(x, ids, scalar_dim(x, dim)) if rank(ids) else oc.take(x, oc.reshape(ids, 1), dim)


@ours("take")
def take(x: Any, ids: Any) -> Any:
    return np.take(x, ids)


@ours("gather")
def gather(x: Any, dim: int, ids: Any, sparse_grad: bool = False) -> Any:
    return _along(oc.take_along, x, dim, ids)


@ours("take_along_dim")
def take_along_dim(x: Any, ids: Any, dim: Any = None) -> Any:
    return np.take(x, oc.flatten(ids)) if dim is None else oc.take_along(x, ids, dim)


def _along(function: Any, x: Any, dim: int, ids: Any, *values: Any) -> Any:
    scalar_dim(x, dim)
    position = dim % rank(x)
    mine, theirs = list(x.shape), list(ids.shape)
    if [n for k, n in enumerate(mine) if k != position] != [
        n for k, n in enumerate(theirs) if k != position
    ]:
        raise NotOurs("positions for a part of the tensor")
    return function(x, ids, *values, dim)


@ours("scatter")
def scatter(
    x: Any, dim: int, ids: Any, src: Any = None, reduce: Any = None, value: Any = None
) -> Any:
    no(reduce=reduce)
    return _along(oc.put_along, x, dim, ids, value if src is None else src)


@ours("index_copy")
def index_copy(x: Any, dim: int, ids: Any, source: Any) -> Any:
    return oc.put(x, oc.reshape(ids, -1), source, scalar_dim(x, dim))


@ours("index_fill")
def index_fill(x: Any, dim: int, ids: Any, value: Any) -> Any:
    if isinstance(value, oc.Tensor):
        raise NotOurs("a value from a tensor")
    return oc.put(x, oc.reshape(ids, -1), value, scalar_dim(x, dim))


@ours("index_add")
def index_add(x: Any, dim: int, ids: Any, source: Any, alpha: float = 1) -> Any:
    scalar_dim(x, dim)
    added = oc.scatter(oc.reshape(ids, -1), source, size=x.shape[dim % rank(x)], axis=dim)
    return x + alpha * added


@ours("put")
def put(x: Any, ids: Any, source: Any, accumulate: bool = False) -> Any:
    no(accumulate=accumulate)
    if not rank(x):
        raise NotOurs("a tensor without axes")
    return oc.put(oc.flatten(x), oc.reshape(ids, -1), oc.reshape(source, -1), 0).reshape(
        tuple(x.shape)
    )


@ours("nn.functional.embedding")
def embedding(
    table: Any,
    ids: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    scale_grad_by_freq: bool = False,
    **_: Any,
) -> Any:
    no(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq)
    if padding_idx is not None:
        raise NotOurs("a row without a gradient")
    return oc.take(table, ids)


@ours("nn.functional.one_hot")
def one_hot(ids: Any, classes: int = -1) -> Any:
    if classes < 1:
        raise NotOurs("a number of classes that depends on cells")
    return oc.one_hot(ids, classes)
