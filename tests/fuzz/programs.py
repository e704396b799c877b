"""Random programs of tensors, as data and as the Python source that builds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from .captures import Captures, Require, capturable, is_row, required_size, with_sizes
from .contraction import Expected, Undetermined
from .notation import ALONE, Context, Invalid, Row, Rows
from .parts import is_reachable
from .reference import CONTRACTIONS, Array, Call, Slice, expected_rows
from .specs import FORMULAS, SpecAuthor

__all__ = ["FORMULAS", "Author", "Index", "Leaf", "Program", "Step"]

Axes = tuple[int, ...] | None
"""The sizes of a row; None when inference is to find them."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that no operation computes.

    Attributes:
        name: Its name.
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
        return np.random.default_rng(self.seed).integers(-2, 4, dims).astype(np.float64)

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
    """An index of a slice: an integer, or a static index with a value."""

    value: int
    name: str = ""
    extent: int | None = None

    @property
    def slice(self) -> Slice:
        return Slice(self.value, self.extent)

    def declaration(self) -> str:
        given = "" if self.extent is None else f", range={self.extent}"
        return f"{self.name} = oc.static_index({self.name!r}{given})"


@dataclass(frozen=True)
class Step:
    """An operation on earlier tensors."""

    name: str
    operation: str
    operands: tuple[str, ...]
    spec: str = ""
    indices: tuple[Index, ...] = ()
    context: Context = ALONE
    capture: Captures = ()

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
        first, *_ = self.operands
        arguments = ", ".join(self.operands)
        match self.operation:
            case operation if operation in CONTRACTIONS:
                more = "" if self.context.padded is None else f", padded={self.context.padded}"
                if self.context.values:
                    more += f", values={dict(self.context.values)}"
                if self.capture:
                    names = ", ".join(f"{name!r}: {dim}" for name, dim in self.capture)
                    more += f", capture={{{names}}}"
                value = f"oc.{operation}({self.spec!r}, {arguments}{more})"
            case "stack":
                value = f"oc.stack({arguments}, axis={self.spec!r})"
            case "matmul":
                value = " @ ".join(self.operands)
            case "transpose":
                value = f"{first}.T"
            case "slice":
                inside = ", ".join(index.name or str(index.value) for index in self.indices)
                value = f"{first}[{inside}]"
            case "clamp":
                value = f"oc.minimum(oc.maximum({first}, -3), 3)"
            case "twice":
                value = f"{first} * 2"
            case _:
                value = f"oc.{self.operation}({arguments})"
        return f"{self.name} = {value}"


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

        Slices require a batch axis, windows the axes of the spec, and inputs of products the axes
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

    def script(self, backend: str = "interp", root: str | None = None) -> str:
        """Return a whole program that builds, runs and prints.

        Args:
            backend: Where it runs.
            root: A result whose gradients are computed.
        """
        fills = [
            f"    ctx[{leaf.name}] = np.random.default_rng({leaf.seed})"
            f".integers(-2, 4, {leaf.name}.shape.dims)"
            for leaf in self.leaves
            if leaf.kind != "tensor"
        ]
        codes = [
            f"oc.train.{'grad_update' if each == root else 'forward'}({each})"
            for each in self.roots
        ]
        params = [leaf.name for leaf in self.leaves if leaf.kind == "param"] if root else []
        names = ", ".join(index.name for index in self.indices)
        call = ", ".join(f"{index.name}={index.value}" for index in self.indices)
        lines = [
            "import numpy as np",
            "import ocannl_core as oc",
            "with oc.Session(dtype='float64'):",
            *(f"    {line}" for line in self.source().splitlines()),
            f"    ctx = oc.Context({backend!r})",
            f"    step = ctx.compile({' + '.join(codes)}, bindings=[{names}])",
            *fills,
            f"    step({call})",
            *(f"    print({name!r}, {name}.shape, ctx[{name}].tolist())" for name in self.roots),
            *(f"    print('{name}.grad', ctx[{name}.grad].tolist())" for name in params),
        ]
        return "\n".join(lines)

    def reordered(self, random: Random) -> Program:
        """Return the same program with independent statements in another order."""
        pending = list(self.statements)
        done: list[Statement] = []
        names: set[str] = set()
        while pending:
            ready = [s for s in pending if isinstance(s, Leaf) or names.issuperset(s.operands)]
            chosen = random.choice(ready)
            pending.remove(chosen)
            done.append(chosen)
            names.add(chosen.name)
            if isinstance(chosen, Step):
                names.update(dim for _, dim in chosen.capture)
        return Program(tuple(done))


# ----- random programs ----------------------------------------------------------------------------

UNARY = ("neg", "relu", "sat01", "trunc", "logical_not", "twice")
BINARY = (
    "add", "sub", "mul", "maximum", "minimum", "less", "less_equal", "equal", "not_equal",
    "logical_and", "logical_or", "relu_gate", "sat01_gate",
)  # fmt: skip


@dataclass
class Author:
    """Author of programs.

    Attributes:
        random: The source of choices.
        formulas: The elements of `FORMULAS` that specs may use.
    """

    random: Random
    formulas: frozenset[str] = frozenset()
    statements: list[Statement] = field(default_factory=list)
    has_bases: bool = False
    dims: dict[str, bool] = field(default_factory=dict)
    """The dimensions; True for those of rows."""
    shapes: dict[str, Rows | None] = field(default_factory=dict)
    """The shapes of tensors; None for those that are inferred."""

    def program(self, most_steps: int = 12) -> Program:
        """Return a program of leaves and at most so many operations."""
        self.has_bases = self._chance(0.1)
        for _ in range(self.random.randint(1, 3)):
            self._leaf()
        for _ in range(self.random.randint(1, most_steps)):
            if self.random.random() < 0.15:
                self._leaf()
            self._step()
        return Program(tuple(self.statements)).pruned

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # ----- leaves ---------------------------------------------------------------------------------

    def _row(self, most: int = 2) -> Row:
        length = self.random.choice([0, 1, 1, 2, most])
        return tuple(self._size() for _ in range(length))

    def _size(self) -> int:
        return 0 if self._chance(0.015) else self.random.choice([1, 2, 2, 3, 3, 4])

    def _leaf(self, row: Row | None = None) -> str:
        name = f"x{len(self.statements)}"
        kind = self.random.choice(["tensor", "tensor", "placeholder", "param", "param"])
        output: Axes = row if row is not None else self._row()
        inputs: Axes = self._row() if self._chance(0.4) else ()
        batch: Axes = () if kind == "param" or self._chance(0.5) else self._row()
        if kind == "param":  # parameters have cells
            output, inputs = (tuple(max(1, n) for n in each or ()) for each in (output, inputs))
            output = None if self._chance(0.2) else output
            inputs = None if self._chance(0.2) else inputs
        self.statements.append(
            Leaf(name, kind, (batch, output, inputs), self.random.randint(0, 10**6), self._basis())
        )
        if batch is None or output is None or inputs is None:
            self.shapes[name] = None
        else:
            self.shapes[name] = (batch, output, inputs)
        return name

    def _basis(self) -> tuple[int, str] | None:
        """Return the basis of axes of some size, mostly the same in all tensors."""
        if not self.has_bases or self._chance(0.5):
            return None
        size = self.random.choice([1, 2, 3])
        return size, "other" if self._chance(0.1) else f"of{size}"

    # ----- steps ----------------------------------------------------------------------------------

    def _pick(self) -> str:
        """Return an operand, a late one rather than an early one."""
        names = list(self.shapes)
        return self.random.choice(names[-4:] if self._chance(0.7) else names)

    def _step(self) -> None:
        step = self._operation(f"x{len(self.statements)}")
        self._add(step)
        if step.operation in ("mul", "matmul", "fma", *CONTRACTIONS) and self._chance(0.7):
            self._add(Step(f"x{len(self.statements)}", "clamp", (step.name,)))

    def _add(self, step: Step) -> None:
        step = self._capturing(step)
        self.statements.append(step)
        self.shapes[step.name] = None if step.capture else self._shape(step)
        for name, dim in step.capture:
            shapes = [self.shapes[each] for each in step.operands]
            if self._chance(0.7):
                size = required_size(self.random, step.spec, step.context, shapes, name)
                self.statements.append(Require(dim, size))
            if self.dims and self._chance(0.25):
                times = self.random.choice([1, 1, 1, 2])
                self.statements.append(Require(dim, times, self.random.choice(list(self.dims))))
            self.dims[dim] = is_row(name, step.spec)

    def _capturing(self, step: Step) -> Step:
        """Return the step, sometimes with names of its spec captured."""
        if step.operation not in ("einsum", "outer_sum") or not self._chance(0.12):
            return step
        names = capturable(step.spec, step.context)
        chosen = self.random.sample(names, min(len(names), self.random.choice([1, 1, 2])))
        first = len(self.dims)
        made = [(name, f"n{first + position}") for position, name in enumerate(chosen)]
        if made and self._chance(0.1):
            kind = is_row(made[0][0], step.spec)
            alike = [dim for dim, each in self.dims.items() if each is kind]
            made[0] = (made[0][0], self.random.choice(alike)) if alike else made[0]
        return replace(step, capture=tuple(made))

    def _shape(self, step: Step) -> Rows | None:
        known = [rows for name in step.operands if (rows := self.shapes[name]) is not None]
        if len(known) < len(step.operands):
            return None
        try:
            expected = expected_rows(step.call, known)
        except (Invalid, Undetermined):
            return None
        return _certain(expected)

    def _operation(self, name: str) -> Step:
        kind = self.random.choices(
            [
                "unary", "binary", "where", "matmul", "fma", "transpose", "one", "two", "slice",
                "concat", "stack",
            ],
            [2, 4, 1, 3, 1, 1, 6, 6, 2, 1, 1],
        )[0]  # fmt: skip
        match kind:
            case "unary":
                return Step(name, self.random.choice(UNARY), (self._pick(),))
            case "binary":
                pair = self._fitting(self._pick())
                return Step(name, self.random.choice(BINARY), pair)
            case "where":
                first, second = self._fitting(self._pick())
                thirds = [each for each in self.shapes if self._fits("add", first, second, each)]
                third = self.random.choice(thirds) if thirds else self._pick()
                return Step(name, "where", (first, second, third))
            case "matmul" | "fma":
                return self._product(name, kind)
            case "transpose":
                return Step(name, "transpose", (self._pick(),))
            case "one":
                operand = self._pick()
                operation = self.random.choice(["einsum", "einsum", "einmax"])
                return self._contraction(name, operation, (operand,))
            case "two":
                operands: tuple[str, ...] = (self._pick(), self._pick())
                operation = self.random.choice(["einsum"] * 4 + ["outer_sum", "tropical"])
                if operation == "einsum" and "ternary" in self.formulas and self._chance(0.15):
                    operands += (self._pick(),)
                return self._contraction(name, operation, operands)
            case "concat" if "parts" in self.formulas:
                return self._concat()
            case "stack" | "concat":
                return self._stack()
            case _:
                return self._slice(name)

    def _fitting(self, name: str) -> tuple[str, str]:
        """Return the tensor and another one that it probably broadcasts with."""
        candidates = [other for other in self.shapes if self._fits("add", name, other)]
        other = (
            self.random.choice(candidates) if candidates and self._chance(0.95) else self._pick()
        )
        pair = (name, other)
        return pair if self._chance(0.5) else (other, name)

    def _fits(self, operation: str, *operands: str) -> bool:
        known = [rows for each in operands if (rows := self.shapes[each]) is not None]
        if len(known) < len(operands):
            return True
        try:
            expected_rows(Call(operation), known)
        except Invalid:
            return False
        return True

    def _product(self, name: str, operation: str) -> Step:
        right = self._pick()
        candidates = [left for left in self.shapes if self._fits("matmul", left, right)]
        if not candidates or self._chance(0.4):
            # a parameter whose inputs follow from the other operand
            left = f"x{len(self.statements)}"
            output: Axes = None
            if not self._chance(0.2):
                output = tuple(max(1, n) for n in self._row())
            leaf = Leaf(left, "param", ((), output, None), self.random.randint(0, 10**6))
            self.statements.append(leaf)
            self.shapes[left] = None
            name = f"x{len(self.statements)}"
        else:
            left = self.random.choice(candidates)
        if operation == "matmul":
            return Step(name, "matmul", (left, right))
        addends = [each for each in self.shapes if self._fits("fma", left, right, each)]
        addend = self.random.choice(addends) if addends and self._chance(0.95) else self._pick()
        return Step(name, "fma", (left, right, addend))

    def _slice(self, name: str) -> Step:
        with_batch = [
            each
            for each, rows in self.shapes.items()
            if rows is not None and rows[0] and 0 not in rows[0]
        ]
        if not with_batch and self._chance(0.9):
            return Step(name, self.random.choice(UNARY), (self._pick(),))
        operand = self.random.choice(with_batch) if with_batch else self._pick()
        rows = self.shapes[operand]
        batch = rows[0] if rows is not None else ()
        number = self.random.randint(1, max(1, len(batch)))
        indices = []
        for axis in range(number):
            size = batch[axis] if axis < len(batch) else None
            most = size if size is not None else 1
            value = self.random.randrange(max(1, most))
            if self._chance(0.03):
                value += 1
            if self._chance(0.5):
                indices.append(Index(value))
            else:
                extent = size if self._chance(0.5) else None
                indices.append(Index(min(value, most - 1), f"{name}_{axis}", extent))
        return Step(name, "slice", (operand,), indices=tuple(indices))

    # ----- specs ----------------------------------------------------------------------------------

    def _contraction(self, name: str, operation: str, operands: tuple[str, ...]) -> Step:
        """Return a step with a spec for which all parts of concatenated axes have a place."""
        shapes = [self.shapes[each] for each in operands]
        while True:
            spec, context = SpecAuthor(self.random, self.formulas).spec(shapes)
            try:
                if is_reachable(spec, context):
                    return Step(name, operation, operands, spec, context=context)
            except Invalid:
                continue

    def _stack(self) -> Step:
        """Return a stack of one to three tensors, mostly of one shape."""
        first = self._pick()
        rows = self.shapes[first]
        more = self.random.choice([0, 1, 1, 2])
        if rows is None or self._chance(0.1):
            operands = [first, *(self._pick() for _ in range(more))]
        else:
            operands = [first, *(self._resized(first, rows, []) for _ in range(more))]
        kind = self.random.choice(["batch", "input", "output"])
        return Step(f"x{len(self.statements)}", "stack", tuple(operands), kind)

    def _concat(self) -> Step:
        """Return a concatenation of two or three tensors, or of up to four blocks."""
        operand = self._pick()
        rows = self.shapes[operand]
        kind = self.random.randrange(3)
        is_block = rows is not None and len(rows[1]) >= 2 and self._chance(0.3)
        if is_block:
            places = [(i, j) for i in "ab" for j in "cd"]
            kept = self.random.sample(places, self.random.randint(1, 4))
            texts = [f"...|...->...,{i},{j}" for i, j in kept]
            result = "...|...->...,a^b,c^d"
            axes = [(1, -2), (1, -1)]
        else:
            count = self.random.choice([2, 2, 3])
            labels = ["a", "b", "c"][:count]
            forms = ["...,{}|...->...", "...|...->...,{}", "...|{},...->..."]
            texts = [forms[kind].format(label) for label in labels]
            result = forms[kind].format("^".join(labels))
            axes = [(kind, 0 if kind == 2 else -1)]
        if rows is None or (not is_block and not rows[kind]):
            operands = [self._pick() for _ in texts]
        else:
            operands = [self._resized(operand, rows, axes) for _ in texts]
        name = f"x{len(self.statements)}"
        return Step(name, "concat", tuple(operands), f"{'; '.join(texts)} => {result}")

    def _resized(self, operand: str, rows: Rows, axes: Sequence[tuple[int, int]]) -> str:
        """Return the tensor, or a new one that differs in the sizes of some axes."""
        if self._chance(0.3):
            return operand
        changed = [list(row) for row in rows]
        for kind, axis in axes:
            changed[kind][axis] = self.random.choice([1, 2, 3])
        shape = (tuple(changed[0]), tuple(changed[1]), tuple(changed[2]))
        name = f"x{len(self.statements)}"
        seed = self.random.randint(0, 10**6)
        is_param = not shape[0] and 0 not in shape[1] + shape[2]
        self.statements.append(Leaf(name, "param" if is_param else "tensor", shape, seed))
        self.shapes[name] = shape
        return name


def _certain(expected: Sequence[Expected]) -> Rows | None:
    if not all(row.is_certain for row in expected):
        return None
    batch, output, inputs = (row.sizes for row in expected)
    return batch, output, inputs
