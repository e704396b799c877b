"""Random programs of tensors, as data and as the Python source that builds them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Self

import numpy as np

from ocannl_core.base.renamings import NAMES

from .captures import Captures, Require, with_sizes
from .notation import ALONE, SpecContext
from .reference import CONTRACTIONS, Array, Call, Slice
from .specs import FORMULAS

__all__ = ["FORMULAS", "Index", "Leaf", "Link", "Program", "Step", "pool_spec", "used_operands"]

Axes = tuple[int, ...] | None
"""The sizes of a row; None when inference is to find them."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that no operation computes.

    Attributes:
        kind: `tensor`, `param` or `placeholder`.
        rows: Batch, output and input axes; None only for the rows of parameters.
        seed: The seed of the cells.
        basis: A size and a basis: axes of this size have this basis.
    """

    name: str
    kind: str
    rows: tuple[Axes, Axes, Axes]
    seed: int
    basis: tuple[int, str] | None = None

    def cells(self, dims: Sequence[int]) -> Array:
        """Return small integers."""
        return np.random.default_rng(self.seed).integers(*self.limits, dims).astype(np.float64)

    @property
    def limits(self) -> tuple[int, int]:
        """The least cell, and one more than the greatest; of a third of all leaves most are equal."""
        return (0, 2) if self.seed % 3 == 0 else (-2, 4)

    def source(self) -> str:
        batch, output, inputs = self.rows
        if self.kind == "tensor":
            assert batch is not None
            assert output is not None
            assert inputs is not None
            dims = (*batch, *output, *inputs)
            numbers = self.cells(dims).astype(int).ravel().tolist()
            axes = f", batch_axes={len(batch)}" if batch else ""
            axes += f", input_axes={len(inputs)}" if inputs else ""
            bases = [self.basis[1] if self.basis and n == self.basis[0] else None for n in dims]
            axes += f", basis={bases}" if any(bases) else ""
            return f"{self.name} = oc.tensor(np.reshape({numbers}, {dims}){axes}, dtype='float64')"
        stated = zip(("batch", "output", "input"), self.rows, strict=True)
        rows = "".join(
            f", {kind}=[{', '.join(map(self._axis, row))}]"
            for kind, row in stated
            if row is not None and (kind, self.kind) != ("batch", "param")
        )
        start = ", init=1" if self.kind == "param" else ""
        return f"{self.name} = oc.{self.kind}({self.name!r}{rows}{start})"

    def _axis(self, size: int) -> str:
        if self.basis is None or size != self.basis[0]:
            return str(size)
        return f"oc.Size({size}, {self.basis[1]!r})"


@dataclass(frozen=True)
class Index:
    """A key of a slice: an integer, a static index with a value, or a part of an axis."""

    value: int = 0
    name: str = ""
    extent: int | None = None
    bounds: tuple[int | None, int | None, int | None] | None = None

    @property
    def slice(self) -> Slice:
        return Slice(self.value, self.extent, self.bounds)

    def __str__(self) -> str:
        if self.bounds is not None:
            return ":".join("" if bound is None else str(bound) for bound in self.bounds)
        return self.name or str(self.value)

    def declaration(self) -> str:
        given = "" if self.extent is None else f", range={self.extent}"
        return f"{self.name} = oc.static_index({self.name!r}{given})"


RUNNING, BEFORE = -1, -2


@dataclass(frozen=True)
class Link:
    """A pointwise operation of a chain.

    Attributes:
        operation: Its name.
        operands: Operands of the chain by position, `RUNNING` for the value of the link before, and
            `BEFORE` for the one before that.
    """

    operation: str
    operands: tuple[int, ...] = (RUNNING,)


@dataclass(frozen=True)
class Step:
    """An operation on earlier tensors.

    Attributes:
        name: The name of the result.
        operation: The name of the operation; `chain` for pointwise operations in a loop.
        operands: The names of the operands; the first one of a chain is its start.
        spec: A specification, or the kind of the new axis of a stack.
        indices: The indices of a slice.
        context: Values stated beside the specification.
        capture: The names of the specification that are captured.
        links: One round of a chain.
        rounds: The number of rounds of a chain.
    """

    name: str
    operation: str
    operands: tuple[str, ...]
    spec: str = ""
    indices: tuple[Index, ...] = ()
    context: SpecContext = ALONE
    capture: Captures = ()
    links: tuple[Link, ...] = ()
    rounds: int = 0

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operation, or of those of a chain."""
        return tuple(link.operation for link in self.links) or (self.operation,)

    def expanded(self) -> Iterator[Self]:
        """Yield the step, or the links of a chain as steps of their own."""
        if not self.links:
            yield self
            return
        running = before = self.operands[0]
        last = self.rounds * len(self.links) - 1
        for number, link in enumerate(self.links * self.rounds):
            name = self.name if number == last else f"{self.name}.{number}"
            yield self._linked(link, name, running, before)
            running, before = name, running

    def _linked(self, link: Link, name: str, running: str, before: str) -> Self:
        values = {RUNNING: running, BEFORE: before}
        names = tuple(values[k] if k in values else self.operands[k] for k in link.operands)
        return replace(
            self, name=name, operation=link.operation, operands=names, links=(), rounds=0
        )

    @property
    def call(self) -> Call:
        """The operation without the names of its operands."""
        slices = tuple(index.slice for index in self.indices)
        return Call(self.operation, self.spec, slices, self.context)

    def sized(self, sizes: dict[str, int]) -> Call:
        """Return the operation with the sizes of the dimensions that it captures."""
        if not self.capture:
            return self.call
        context = with_sizes(self.context, self.capture, self.spec, sizes)
        return replace(self.call, context=context)

    def source(self) -> str:
        """Return the statements that compute the result."""
        if not self.links:
            return f"{self.name} = {self.expression()}"
        lines = [f"{self.name} = before = {self.operands[0]}", f"for _ in range({self.rounds}):"]
        for link in self.links:
            value = self._linked(link, self.name, self.name, "before").expression()
            lines.append(f"    before, {self.name} = {self.name}, {value}")
        return "\n".join(lines)

    def expression(self) -> str:
        """Return the operation as Python source."""
        first, *_ = self.operands
        arguments = ", ".join(self.operands)
        match self.operation:
            case "max_pool2d":
                return f"oc.nn.max_pool2d({first}, {_pool_arguments(self.spec, self.context)})"
            case operation if operation in CONTRACTIONS:
                more = "" if self.context.padded is None else f", padded={self.context.padded}"
                if self.context.values:
                    more += f", values={dict(self.context.values)}"
                if self.capture:
                    names = ", ".join(f"{name!r}: {dim}" for name, dim in self.capture)
                    more += f", capture={{{names}}}"
                return f"{public_name(operation)}({self.spec!r}, {arguments}{more})"
            case "stack":
                return f"oc.stack({arguments}, axis={self.spec!r})"
            case "matmul":
                return " @ ".join(self.operands)
            case "transpose":
                return f"{first}.T"
            case "slice":
                inside = ", ".join(map(str, self.indices))
                return f"{first}[{inside}]"
            case "clamp":
                return f"oc.minimum(oc.maximum({first}, -3), 3)"
            case "twice":
                return f"{first} * 2"
            case _:
                return f"{public_name(self.operation)}({arguments})"


def public_name(operation: str) -> str:
    """Return the name of an operation in programs of users."""
    return NAMES.get(f"oc.{operation}", f"oc.{operation}")


def used_operands(
    operands: Sequence[str], links: Sequence[Link]
) -> tuple[tuple[str, ...], tuple[Link, ...]]:
    """Return the operands of a chain that its links use, and the links with their new positions."""
    used = sorted({0} | {k for link in links for k in link.operands if k >= 0})
    places = {k: place for place, k in enumerate(used)}
    moved = (
        replace(link, operands=tuple(places.get(k, k) for k in link.operands)) for link in links
    )
    return tuple(operands[k] for k in used), tuple(moved)


def pool_spec(strides: tuple[int, int], sizes: tuple[int, int], *, padded: bool) -> str:
    """Return the specification of `oc.nn.max_pool2d`."""
    marks = [("=+" if size % 2 else "=+1+") if padded else "<+" for size in sizes]
    windows = ", ".join(
        f"{step}*o{axis}{mark}1*k{axis}"
        for axis, step, mark in zip("hw", strides, marks, strict=True)
    )
    return f"...|{windows}, ..c.. => ...|oh, ow, ..c.."


def _pool_arguments(spec: str, context: SpecContext) -> str:
    """Return the arguments of `oc.nn.max_pool2d` that a specification stands for."""
    height, width = re.findall(r"(\d+)\*o", spec)
    values = dict(context.values)
    window = f"({values['kh']}, {values['kw']})"
    return f"window={window}, stride=({height}, {width}), padded={'=+' in spec}"


Statement = Leaf | Step | Require


@dataclass(frozen=True)
class Program:
    """Statements, each using only earlier ones."""

    statements: tuple[Statement, ...]

    @property
    def leaves(self) -> list[Leaf]:
        return [s for s in self.statements if isinstance(s, Leaf)]

    @property
    def steps(self) -> list[Step]:
        return [s for s in self.statements if isinstance(s, Step)]

    @property
    def expanded(self) -> list[Step]:
        """The steps, with those of chains one by one."""
        return [each for step in self.steps for each in step.expanded()]

    @property
    def requires(self) -> list[Require]:
        return [s for s in self.statements if isinstance(s, Require)]

    @property
    def dims(self) -> list[str]:
        """The captured dimensions."""
        return list(dict.fromkeys(dim for step in self.steps for _, dim in step.capture))

    @property
    def roots(self) -> list[str]:
        """The results that no step uses, in an order that does not depend on the creation order."""
        used = {operand for step in self.steps for operand in step.operands}
        return sorted(step.name for step in self.steps if step.name not in used)

    @property
    def pruned(self) -> Program:
        """The program without leaves that no step uses."""
        used = {operand for step in self.steps for operand in step.operands}
        dims = set(self.dims)
        kept = (
            s
            for s in self.statements
            if isinstance(s, Step)
            or (dims.issuperset(s.operands) if isinstance(s, Require) else s.name in used)
        )
        return Program(tuple(kept))

    def without(self, root: str) -> Program:
        """Return the program without a result and all that only this result uses; without
        demands on dimensions that nothing captures then.
        """
        needed: set[str] = set(self.roots) - {root}
        for step in reversed(self.steps):
            if step.name in needed:
                needed.update(step.operands)
        kept = (s for s in self.statements if s.name in needed or isinstance(s, Require))
        return Program(tuple(kept)).pruned

    @property
    def lengthened(self) -> set[tuple[str, int]]:
        """The rows of results, by name and position, of which uses can require more axes.

        Slices require their axes, windows the axes of the spec, and inputs of products the axes
        of their operands. The result of an operation may be larger than its operands make it.
        """
        found = set()
        for step in self.steps:
            has_equations = re.search(r"\^|\+(\w+\*)?[a-z]", step.spec)
            if has_equations or step.operation in ("slice", "concat", "stack"):
                found |= {(name, kind) for name in step.operands for kind in range(3)}
            elif step.operation in ("matmul", "fma"):
                found.add((step.operands[0], 2))
            if step.capture:
                found |= {(step.name, kind) for kind in range(3)}
        return found

    @property
    def indices(self) -> list[Index]:
        """The static indices."""
        return [index for step in self.steps for index in step.indices if index.name]

    def source(self) -> str:
        """Return the statements that build the tensors."""
        lines = [index.declaration() for index in self.indices]
        lines += self.declarations()
        lines += [statement.source() for statement in self.statements]
        return "\n".join(lines)

    def declarations(self) -> list[str]:
        """Return the statements that define the dimensions."""
        return [f"{dim} = oc.dim({dim!r})" for dim in self.dims]

    def script(
        self, backend: str = "interp", losses: Sequence[str] = (), *, apart: bool = False
    ) -> str:
        """Return a whole program that builds, runs and prints.

        Args:
            backend: The device.
            losses: The results whose gradients are computed.
            apart: Something is assigned between the losses.
        """
        fills = [
            f"    ctx[{leaf.name}] = np.random.default_rng({leaf.seed})"
            f".integers(*{leaf.limits}, {leaf.name}.shape.dims)"
            for leaf in self.leaves
            if leaf.kind != "tensor"
        ]
        params = [leaf.name for leaf in self.leaves if leaf.kind == "param"] if losses else []
        names = ", ".join(index.name for index in self.indices)
        call = ", ".join(f"{index.name}={index.value}" for index in self.indices)
        lines = [
            "import numpy as np",
            "import ocannl_core as oc",
            "with oc.Session(dtype='float64'):",
            *(f"    {line}" for line in self.source().splitlines()),
            *(f"    {line}" for line in self.code(losses, apart=apart).splitlines()),
            f"    ctx = oc.Context({backend!r})",
            f"    step = ctx.compile(code, bindings=[{names}])",
            *fills,
            f"    step({call})",
            *(f"    print({name!r}, {name}.shape, ctx[{name}].tolist())" for name in self.roots),
            *(f"    print('{name}.grad', ctx[{name}.grad].tolist())" for name in params),
        ]
        return "\n".join(lines)

    def code(self, losses: Sequence[str] = (), *, apart: bool = False) -> str:
        """Return the statements that make `code`: forward code, and gradients of losses.

        Args:
            losses: Results; a result that occurs twice counts twice.
            apart: True to assign to a tensor between the losses, so that each has its own
                backpropagation.
        """
        codes = [f"oc.train.forward({each})" for each in self.roots if each not in losses]
        more = [f"oc.train.grad_update({each})" for each in losses]
        lines = []
        if apart and len(losses) > 1:
            lines = ["note = oc.declare('note')", "@oc.cd", "def noted():", "    note[:] = 1.0"]
            more = [each for code in more for each in ("noted()", code)][1:]
        return "\n".join([*lines, f"code = {' + '.join([*codes, *more])}"])

    def reordered(self, random: Random) -> Program:
        """Return the same program with independent statements in another order.

        Keys count the axes of a computed tensor where they are written: other operations stay on
        their side of such a slice.
        """
        leaves = {leaf.name for leaf in self.leaves}
        pending = list(self.statements)
        done: list[Statement] = []
        names: set[str] = set()
        while pending:
            ready = [s for s in pending if isinstance(s, Leaf)]
            others = [s for s in pending if not isinstance(s, Leaf)]
            is_slice = [isinstance(s, Step) and s.operation == "slice" for s in others]
            counts = [
                k for k, s in enumerate(others) if is_slice[k] and s.operands[0] not in leaves
            ]
            ahead = others[: counts[0] or 1] if counts else others
            ready += [s for s in ahead if names.issuperset(s.operands)]
            chosen = random.choice(ready)
            pending.remove(chosen)
            done.append(chosen)
            names.add(chosen.name)
            if isinstance(chosen, Step):
                names.update(dim for _, dim in chosen.capture)
        return Program(tuple(done))
