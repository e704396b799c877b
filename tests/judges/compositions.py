"""Random compositions of operations, beside PyTorch in float64.

    python -m tests.judges.compositions [--count 500] [--seed 0] [--backend cpu_c] [--cells 600]

Each program applies some operations to tensors with batch, output and input axes, and to results of
earlier ones. Its values and the gradients of a weighted sum of some of them are compared, by
`oc.train.grad_update` or by `oc.gradients`, sometimes within a memory budget. Programs whose number is
even are in float64 and agree to 1e-8, the others in float32, to 2e-3 of the greatest cell. A program
that differs is printed, and runs again by `--seed NUMBER --count 1`.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import ocannl_core as oc

SIZES = (1, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33)
Rows = tuple[int, int, int]
"""The numbers of batch, output and input axes: cells are in this order."""


@dataclass(frozen=True)
class Pair:
    """A tensor here and there.

    Attributes:
        name: The name in the printed program.
        has_ties: Whether equal cells are likely, among which the greatest is not defined.
    """

    ours: Any
    theirs: Any
    name: str
    has_ties: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.theirs.shape)

    @property
    def rows(self) -> Rows:
        shape = self.ours.shape
        return len(shape.batch.trailing), len(shape.output.trailing), len(shape.input.trailing)


@dataclass(frozen=True)
class Leaf:
    """An input of a program: a parameter, or data."""

    pair: Pair
    cells: Any
    is_param: bool


class Author:
    """Writes one program.

    Attributes:
        pairs: The tensors so far.
        lines: The program so far, as it is printed.
    """

    def __init__(self, seed: int, most_cells: int) -> None:
        self.random, self.cells = Random(seed), np.random.default_rng(seed)
        self.most_cells = most_cells
        self.dtype = "float32" if seed % 2 else "float64"
        self.pairs: list[Pair] = []
        self.leaves: list[Leaf] = []
        self.lines: list[str] = []

    def leaf(self, shape: Sequence[int], rows: Rows) -> Pair:
        """Return a new input; batch axes are those of data."""
        name = f"x{len(self.leaves)}"
        is_param = not rows[0] and self.random.random() < 0.75
        batch, output, input = np.split(np.array(shape, int), np.cumsum(rows[:2]))
        cells = self.cells.standard_normal(tuple(shape)).astype(self.dtype)
        theirs = torch.tensor(cells, dtype=torch.float64, requires_grad=is_param)
        if is_param:
            ours = oc.param(name, output=output.tolist(), input=input.tolist())
        else:
            ours = oc.placeholder(
                name, batch=batch.tolist(), output=output.tolist(), input=input.tolist()
            )
        pair = Pair(ours, theirs, name)
        self.leaves.append(Leaf(pair, cells, is_param))
        self.lines.append(f"{name} = {'param' if is_param else 'data'} of {ours.shape}")
        return pair

    def like(self, x: Pair, shape: Sequence[int]) -> Pair:
        """Return a new input with the rows of a tensor."""
        return self.leaf(shape, x.rows)

    def matrix(self, *shape: int) -> Pair:
        """Return a new input with output axes."""
        return self.leaf(shape, (0, len(shape), 0))

    def size(self) -> int:
        return self.random.choice(SIZES)

    def axis(self, x: Pair) -> int:
        """Return the position of an axis, from either end."""
        return self.random.randrange(-len(x.shape), len(x.shape))

    def partner(self, x: Pair) -> Pair:
        """Return a tensor that broadcasts with another one."""
        fitting = [
            y
            for y in self.pairs
            if y.rows == x.rows
            and all(m == n or 1 in (m, n) for m, n in zip(x.shape, y.shape, strict=True))
        ]
        if fitting and self.random.random() < 0.7:
            return self.random.choice(fitting)
        return self.like(x, [1 if self.random.random() < 0.25 else n for n in x.shape])

    def begin(self) -> None:
        for _ in range(self.random.choice((1, 2, 2, 3))):
            while True:
                shape = [self.size() for _ in range(self.random.choice((1, 2, 2, 3, 3, 4)))]
                if math.prod(shape) <= self.most_cells:
                    break
            batch = self.random.randint(0, len(shape))
            input = self.random.randint(0, len(shape) - batch) if self.random.random() < 0.4 else 0
            self.pairs.append(self.leaf(shape, (batch, len(shape) - batch - input, input)))

    def extend(self) -> bool:
        """Apply an operation; return False if the one drawn does not fit."""
        x = self.pairs[-1] if self.random.random() < 0.6 else self.random.choice(self.pairs)
        kind = self.random.choice(KINDS) if x.shape else pointwise
        y = kind(self, x)
        if y is None or len(y.shape) > 4 or y.theirs.numel() > 5 * self.most_cells:
            return False
        if not bool(torch.isfinite(y.theirs).all()) or float(y.theirs.abs().max()) > 1e4:
            return False
        name = f"y{len(self.pairs)}"
        self.lines.append(f"{name} = {y.name}   # {y.ours.shape}")
        self.pairs.append(Pair(y.ours, y.theirs, name, y.has_ties))
        return True


Kind = Callable[[Author, Pair], Pair | None]


UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (oc.tanh, torch.tanh),
    "sigmoid": (oc.sigmoid, torch.sigmoid),
    "silu": (oc.silu, F.silu),
    "gelu": (oc.gelu, F.gelu),
    "mish": (oc.mish, F.mish),
    "leaky_relu": (oc.leaky_relu, F.leaky_relu),
    "softplus": (oc.softplus, lambda x: F.softplus(x, threshold=60)),
    "abs": (oc.abs, torch.abs),
    "sin": (oc.sin, torch.sin),
    "cos": (oc.cos, torch.cos),
    "erf": (oc.erf, torch.erf),
    "exp of sin": (lambda x: oc.exp(oc.sin(x)), lambda x: x.sin().exp()),
    "expm1 of tanh": (lambda x: oc.expm1(oc.tanh(x)), lambda x: x.tanh().expm1()),
    "root": (lambda x: oc.sqrt(oc.abs(x) + 1.0), lambda x: (x.abs() + 1).sqrt()),
    "logarithm": (lambda x: oc.log(x * x + 0.5), lambda x: (x * x + 0.5).log()),
    "reciprocal": (lambda x: 1.0 / (x * x + 1.0), lambda x: 1 / (x * x + 1)),
    "cube": (lambda x: oc.sin(x) ** 3, lambda x: x.sin() ** 3),
    "line": (lambda x: 2.5 * x - 0.25, lambda x: 2.5 * x - 0.25),
    "where": (
        lambda x: oc.where(x > 0.1, 2.0 * x, x - 1.0),
        lambda x: torch.where(x > 0.1, 2 * x, x - 1),
    ),
    "stopped": (lambda x: oc.stop_gradient(x) * x, lambda x: x.detach() * x),
}

BINARY: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "subtract": (lambda x, y: x - y, lambda x, y: x - y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "divide": (lambda x, y: x / (y * y + 1.0), lambda x, y: x / (y * y + 1)),
    "maximum": (
        lambda x, y: oc.maximum(x, 0.9 * y + 0.01),
        lambda x, y: torch.maximum(x, 0.9 * y + 0.01),
    ),
    "minimum": (
        lambda x, y: oc.minimum(x, 0.9 * y + 0.01),
        lambda x, y: torch.minimum(x, 0.9 * y + 0.01),
    ),
    "lesser": (
        lambda x, y: oc.where(x < y + 0.013, x, y),
        lambda x, y: torch.where(x < y + 0.013, x, y),
    ),
    "atan2": (lambda x, y: oc.atan2(x, y * y + 0.5), lambda x, y: torch.atan2(x, y * y + 0.5)),
}

REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (oc.sum, lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "mean": (oc.mean, lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "max": (oc.max, lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "min": (oc.min, lambda x, axes, keep: x.amin(axes, keepdim=keep)),
    "var": (oc.var, lambda x, axes, keep: x.var(axes, keepdim=keep, correction=0)),
    "logsumexp": (oc.logsumexp, lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep)),
    "norm": (
        lambda x, axis, keepdims: oc.norm(x * x + 0.1, axis=axis, keepdims=keepdims),
        lambda x, axes, keep: torch.linalg.vector_norm(x * x + 0.1, dim=axes, keepdim=keep),
    ),
}

ALONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (oc.softmax, lambda x, at: x.softmax(at)),
    "log_softmax": (oc.log_softmax, lambda x, at: x.log_softmax(at)),
    "cumsum": (oc.cumsum, lambda x, at: x.cumsum(at)),
    "cumprod": (lambda x, axis: oc.cumprod(oc.cos(x), axis), lambda x, at: x.cos().cumprod(at)),
    "cummax": (oc.cummax, lambda x, at: x.cummax(at).values),
    "sort": (oc.sort, lambda x, at: x.sort(at).values),
    "topk": (lambda x, axis: oc.topk(x, 1, axis)[0], lambda x, at: x.topk(1, at).values),
    "sorted by positions": (
        lambda x, axis: oc.take_along(x, oc.argsort(x, axis), axis),
        lambda x, at: torch.take_along_dim(x, x.argsort(at), at),
    ),
    "flip": (oc.flip, lambda x, at: x.flip(at)),
    "roll": (lambda x, axis: oc.roll(x, 2, axis), lambda x, at: x.roll(2, at)),
    "normalized": (
        lambda x, axis: (
            (x - oc.mean(x, axis=axis, keepdims=True))
            / oc.sqrt(oc.var(x, axis=axis, keepdims=True) + 0.1)
        ),
        lambda x, at: (
            (x - x.mean(at, keepdim=True)) / (x.var(at, keepdim=True, correction=0) + 0.1).sqrt()
        ),
    ),
    "repeat": (lambda x, axis: oc.repeat(x, 2, axis), lambda x, at: x.repeat_interleave(2, at)),
}
ORDERING = {"max", "min", "cummax", "sort", "topk", "sorted by positions"}
"""Operations whose gradient is not defined at equal cells."""


def pointwise(author: Author, x: Pair) -> Pair:
    name, (ours, theirs) = author.random.choice([*UNARY.items()])
    return Pair(ours(x.ours), theirs(x.theirs), f"{name}({x.name})", x.has_ties)


def of_two(author: Author, x: Pair) -> Pair:
    pair = [x, author.partner(x)]
    author.random.shuffle(pair)
    x, y = pair
    name, (ours, theirs) = author.random.choice([*BINARY.items()])
    return Pair(
        ours(x.ours, y.ours), theirs(x.theirs, y.theirs), f"{name}({x.name}, {y.name})", True
    )


def reduction(author: Author, x: Pair) -> Pair | None:
    name, (ours, theirs) = author.random.choice([*REDUCTIONS.items()])
    if x.has_ties and name in ORDERING:
        return None
    count = author.random.randint(1, len(x.shape))
    axes = tuple(author.random.sample(range(len(x.shape)), count))
    axis = axes[0] - len(x.shape) if len(axes) == 1 else axes
    keep = author.random.random() < 0.5
    return Pair(
        ours(x.ours, axis=axis, keepdims=keep),
        theirs(x.theirs, axes, keep),
        f"{name}({x.name}, axis={axis}, keepdims={keep})",
        x.has_ties,
    )


def along_axis(author: Author, x: Pair) -> Pair | None:
    name, (ours, theirs) = author.random.choice([*ALONG.items()])
    if x.has_ties and name in ORDERING:
        return None
    axis = author.axis(x)
    return Pair(
        ours(x.ours, axis=axis),
        theirs(x.theirs, axis),
        f"{name}({x.name}, axis={axis})",
        x.has_ties or name in ("cummax", "repeat"),
    )


def sliced(author: Author, x: Pair) -> Pair:
    keys: list[slice | int] = []
    for size in x.shape:
        drawn = author.random.random()
        first = author.random.randrange(size)
        if drawn < 0.4:
            keys.append(slice(None))
        elif drawn < 0.55:
            keys.append(first)
        else:
            last = author.random.randint(first + 1, size)
            keys.append(slice(first, last, author.random.choice((1, 1, 2, 3))))
    if all(isinstance(key, int) for key in keys):
        keys[0] = slice(None)
    key = tuple(keys)
    return Pair(x.ours[key], x.theirs[key], f"{x.name}[{key}]", x.has_ties)


def rearranged(author: Author, x: Pair) -> Pair | None:
    ours, theirs, name, ties = x.ours, x.theirs, x.name, x.has_ties
    axis, rank, draw = author.axis(x), len(x.shape), author.random
    match draw.randrange(9):
        case 0:
            total = math.prod(x.shape)
            first = draw.choice([n for n in range(1, total + 1) if total % n == 0])
            shape = (first, total // first)
            return Pair(
                oc.reshape(ours, *shape), theirs.reshape(shape), f"reshape({name}, {shape})", ties
            )
        case 1:
            order = draw.sample(range(rank), rank)
            return Pair(
                oc.permute(ours, *order), theirs.permute(order), f"permute({name}, {order})", ties
            )
        case 2:
            return Pair(
                oc.expand_dims(ours, axis),
                theirs.unsqueeze(axis),
                f"expand_dims({name}, {axis})",
                ties,
            )
        case 3 if rank > 1 and x.shape[axis] == 1:
            return Pair(
                oc.squeeze(ours, axis), theirs.squeeze(axis), f"squeeze({name}, {axis})", ties
            )
        case 4:
            times = tuple(draw.choice((1, 1, 2, 3)) for _ in x.shape)
            return Pair(oc.tile(ours, times), theirs.tile(times), f"tile({name}, {times})", True)
        case 5:
            widths = [(draw.choice((0, 1, 2)), draw.choice((0, 0, 1, 3))) for _ in x.shape]
            flat = [n for pair in reversed(widths) for n in pair]
            return Pair(oc.pad(ours, widths), F.pad(theirs, flat), f"pad({name}, {widths})", True)
        case 6 if x.shape[axis] > 1:
            cut = draw.randrange(1, x.shape[axis])
            a, b = ours.split([cut], axis=axis)
            c, d = theirs.tensor_split([cut], axis)
            return Pair(
                oc.concat([b, 2.0 * a], axis=axis),
                torch.cat([d, 2 * c], axis),
                f"swapped parts({name}, {cut}, axis={axis})",
                True,
            )
        case 7 if rank > 1:
            k = draw.choice((-1, 0, 1))
            return Pair(oc.tril(ours, k), theirs.tril(k), f"tril({name}, {k})", True)
        case 8:
            other = author.like(x, x.shape)
            return Pair(
                oc.concat([ours, other.ours], axis=axis),
                torch.cat([theirs, other.theirs], axis),
                f"concat({name}, {other.name}, axis={axis})",
                True,
            )
    return None


def taken(author: Author, x: Pair) -> Pair:
    axis = author.axis(x) % len(x.shape)
    ids = author.cells.integers(0, x.shape[axis], author.random.choice((1, 2, 5, 9)))
    batch, output, _ = x.rows
    positions = oc.tensor(  # of the kind of the axis, whose place they take
        ids.astype(np.int32), batch_axes=int(axis < batch), input_axes=int(axis >= batch + output)
    )
    return Pair(
        oc.take(x.ours, positions, axis),
        x.theirs.index_select(axis, torch.tensor(ids)),
        f"take({x.name}, {ids.tolist()}, axis={axis})",
        True,
    )


def product(author: Author, x: Pair) -> Pair | None:
    """Return a product, an update by position or a loop over time of output axes."""
    if x.rows != (0, len(x.shape), 0):
        return None
    ours, theirs, name, draw = x.ours, x.theirs, x.name, author.random
    match len(x.shape), draw.randrange(5):
        case 1, _:
            y = author.matrix(author.size())
            found = oc.einsum("i; j => i,j", ours, y.ours), torch.outer(theirs, y.theirs)
            return Pair(*found, f"outer({name}, {y.name})", True)
        case 2, 0:
            y = author.matrix(x.shape[1], author.size())
            return Pair(
                oc.einsum("i,j; j,k => i,k", ours, y.ours), theirs @ y.theirs, f"{name} @ {y.name}"
            )
        case 2, 1 if x.shape[1] >= 3:
            y = author.matrix(draw.choice((1, 2, 4)), x.shape[0], draw.choice((1, 2, 3)))
            stride = draw.choice((1, 2)) if (x.shape[1] - y.shape[2]) % 2 == 0 else 1
            return Pair(
                oc.einsum(f"c,{stride}*i<+k; d,c,k => d,i", ours, y.ours),
                F.conv1d(theirs[None], y.theirs, stride=stride)[0],
                f"convolution({name}, {y.name}, stride={stride})",
            )
        case 2, 2:
            keys = author.matrix(author.size(), x.shape[1])
            values = author.matrix(keys.shape[0], author.size())
            weights = oc.softmax(0.5 * oc.einsum("i,d; j,d => i,j", ours, keys.ours), axis=-1)
            return Pair(
                oc.einsum("i,j; j,e => i,e", weights, values.ours),
                (0.5 * theirs @ keys.theirs.T).softmax(-1) @ values.theirs,
                f"attention({name}, {keys.name}, {values.name})",
            )
        case 2, 3:
            ids = author.cells.integers(0, 6, x.shape[0])
            positions = torch.tensor(ids)
            return Pair(
                oc.scatter(oc.tensor(ids.astype(np.int32)), ours, size=6),
                torch.zeros(6, x.shape[1]).double().index_add(0, positions, theirs),
                f"scatter({ids.tolist()}, {name})",
                True,
            )
        case 2, 4:
            return _recurrent(x, is_reversed=draw.random() < 0.5)
        case 3, drawn if drawn < 3:
            y = author.matrix(x.shape[0], x.shape[2], author.size())
            return Pair(
                oc.einsum("b,i,j; b,j,k => b,i,k", ours, y.ours),
                theirs @ y.theirs,
                f"{name} @ {y.name} for each of the first axis",
            )
        case 3, _:
            y = author.matrix(x.shape[1], x.shape[2], author.size())
            return Pair(
                oc.einsum("b,i,j; i,j,k => b,k", ours, y.ours),
                torch.einsum("bij,ijk->bk", theirs, y.theirs),
                f"tensordot({name}, {y.name}, 2)",
            )
    return None


def _recurrent(x: Pair, *, is_reversed: bool) -> Pair:
    def step(state: Any, row: Any) -> tuple[Any, Any]:
        state = oc.tanh(0.7 * state + row)
        return state, state

    rows = oc.einsum("t, n => t|n", x.ours)
    states, _ = oc.scan(step, oc.zeros((x.shape[1],)), rows, reverse=is_reversed)
    state, found = torch.zeros(x.shape[1]).double(), []
    for row in x.theirs.flip(0) if is_reversed else x.theirs:
        state = (0.7 * state + row).tanh()
        found.append(state)
    if is_reversed:
        found.reverse()
    name = f"states of a loop over {x.name}, reverse={is_reversed}"
    return Pair(oc.einsum("t|n => t, n", states), torch.stack(found), name)


KINDS: tuple[Kind, ...] = (
    *(pointwise, pointwise, of_two, of_two, reduction, along_axis, along_axis),
    *(sliced, rearranged, rearranged, taken, product, product),
)


class Differs(Exception):
    """Values that differ."""


def compare(name: str, ours: Any, theirs: Any, tolerance: float) -> None:
    expected = theirs.detach().numpy()
    if ours.shape != expected.shape:
        raise Differs(f"{name} has shape {ours.shape} in place of {expected.shape}")
    if ours.size == 0:
        return
    error = float(np.abs(ours - expected).max() / (np.abs(expected).max() + 0.01))
    if not error < tolerance:
        raise Differs(f"{name} differs by {error:.3g} of its greatest cell")


def judge(author: Author, backend: str) -> None:
    """Write a program, and run it here and there."""
    author.begin()
    wanted = author.random.randint(2, 14)
    for _ in range(8 * wanted):
        wanted -= author.extend()
        if not wanted:
            break
    results = [author.pairs[-1], author.random.choice(author.pairs)]
    ours: Any = 0.0
    theirs: Any = torch.zeros(()).double()
    for each in results:
        cells = author.cells.standard_normal(each.shape).astype(author.dtype)
        batch, _, input = each.rows
        weights = (
            oc.tensor(cells, batch_axes=batch, input_axes=input) if each.shape else float(cells)
        )
        ours = oc.sum(each.ours * weights) + ours
        theirs = theirs + (each.theirs * torch.tensor(cells)).sum()
    params = [leaf.pair for leaf in author.leaves if leaf.is_param]
    found = (
        torch.autograd.grad(theirs, [each.theirs for each in params], allow_unused=True)
        if params and theirs.requires_grad
        else ()
    )
    wanted_gradients = [(p, g) for p, g in zip(params, found, strict=False) if g is not None]
    kept = [each.ours for each in results] + [ours]
    budget = author.random.choice((None, None, None, 3000))
    ctx = oc.Context(backend)
    with oc.settings.overrides(memory_budget=budget):
        if not wanted_gradients:
            gradients: Sequence[Any] = ()
            step = ctx.compile(oc.train.forward(ours), keep=kept)
        elif author.random.random() < 0.5:
            gradients = oc.gradients(ours, [p.ours for p, _ in wanted_gradients])
            total = ours + 0.0 * sum(oc.sum(g) for g in gradients)
            step = ctx.compile(oc.train.forward(total), keep=[*kept, *gradients])
        else:
            code = oc.train.grad_update(ours)
            gradients = [p.ours.grad for p, _ in wanted_gradients]
            step = ctx.compile(code, keep=[*kept, *gradients])
    for leaf in author.leaves:
        if leaf.pair.ours in ctx:
            ctx[leaf.pair.ours] = leaf.cells
    for _ in range(2):
        step()
    tolerance = 2e-3 if author.dtype == "float32" else 1e-8
    for each in results:
        compare(each.name, ctx[each.ours], each.theirs, tolerance)
    compare("the loss", ctx[ours], theirs, tolerance)
    for (p, expected), gradient in zip(wanted_gradients, gradients, strict=True):
        compare(f"the gradient of {p.name}", ctx[gradient], expected, tolerance)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first program")
    parser.add_argument("--backend", default="cpu_c")
    parser.add_argument("--cells", type=int, default=600, help="of an input, at most")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failures = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        author = Author(seed, arguments.cells)
        try:
            with oc.Session(seed=seed, dtype=author.dtype):
                judge(author, arguments.backend)
        except Exception as error:
            failures += 1
            print(f"# program {seed}, {author.dtype}", *author.lines, sep="\n")
            print(f"# {type(error).__name__}: {error}\n", flush=True)
    print(f"{arguments.count - failures} programs agree, {failures} do not")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
