"""Write random programs of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from .captures import Require, capturable, is_row, required_size
from .chains import links_of, rounds_of
from .contraction import ExpectedRow, Undetermined
from .notation import Invalid, Row, Rows, SpecContext
from .parts import is_reachable
from .programs import Axes, Index, Leaf, Program, Statement, Step, pool_spec, used_operands
from .reference import CONTRACTIONS, Call, expected_rows
from .specs import FORMULAS, SpecAuthor

UNARY = ("neg", "relu", "sat01", "trunc", "logical_not", "twice")
BINARY = (
    "add", "sub", "mul", "maximum", "minimum", "maximum", "minimum", "less", "less_equal", "equal", "not_equal",
    "logical_and", "logical_or", "relu_gate", "sat01_gate",
)  # fmt: skip
CHAINS = 0.02
"""The share of programs with a chain."""


@dataclass(frozen=True)
class ProgramLimits:
    """The limits of programs.

    Attributes:
        formulas: The forms of axes in specifications, of `FORMULAS`.
        longest: The greatest number of pointwise operations in a chain.
    """

    formulas: frozenset[str] = FORMULAS
    longest: int = 300


@dataclass
class ProgramAuthor:
    """Author of programs.

    Attributes:
        random: The source of choices.
        scope: The limits of programs.
    """

    random: Random
    scope: ProgramLimits = ProgramLimits()
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
        count = self.random.randint(1, most_steps)
        chain = self.random.randrange(count) if self._chance(CHAINS) else count
        for position in range(count):
            if self.random.random() < 0.15:
                self._leaf()
            if position == chain:
                self._chain()
            self._step()
        return Program(tuple(self.statements)).pruned

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

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
        if step.operation not in ("einsum", "outer_sum") or not self._chance(0.15):
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
                "concat", "stack", "pool",
            ],
            [2, 5, 1, 3, 1, 1, 6, 6, 2, 1, 1, 2],
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
                operation = self.random.choice(["einsum", "einmax"])
                return self._contraction(name, operation, (operand,))
            case "two":
                operands: tuple[str, ...] = (self._pick(), self._pick())
                operation = self.random.choice(
                    ["einsum"] * 4 + ["outer_sum", "tropical", "tropical"]
                )
                if (
                    operation == "einsum"
                    and "ternary" in self.scope.formulas
                    and self._chance(0.15)
                ):
                    operands += (self._pick(),)
                return self._contraction(name, operation, operands)
            case "concat" if "parts" in self.scope.formulas:
                return self._concat()
            case "stack" | "concat":
                return self._stack()
            case "pool":
                return self._pool()
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

    def _chain(self) -> None:
        """Add a chain of pointwise operations."""
        operands = [self._pick()]
        for _ in range(self.random.choice([0, 1, 1, 2])):
            fitting = [each for each in self.shapes if self._fits("add", *operands, each)]
            operands += [self.random.choice(fitting)] if fitting else []
        links = links_of(self.random, len(operands) - 1, widens=self._chance(0.2))
        operands, links = used_operands(operands, links)
        rounds = rounds_of(self.random, len(links), self.scope.longest)
        name = f"x{len(self.statements)}"
        self._add(Step(name, "chain", operands, links=links, rounds=rounds))

    def _pool(self) -> Step:
        """Return the greatest cells of windows of an image, mostly of windows that fit."""
        images = [each for each, rows in self.shapes.items() if rows and len(rows[1]) >= 2]
        if images and self._chance(0.9):
            operand = self.random.choice(images)
            rows = self.shapes[operand]
            assert rows is not None
        else:
            batch, channels = self._row(1), self.random.choice([1, 2])
            rows = (batch, (*(self.random.choice([2, 3, 4, 5]) for _ in "hw"), channels), ())
            operand = self._leaf_of(rows)
        padded = self._chance(0.4)
        strides, windows = [], []
        for size in rows[1][:2]:
            stride, window = self.random.choice([1, 1, 2]), self.random.choice([1, 2, 2, 3])
            if not self._chance(0.1):
                window = min(window, max(1, size))
                stride = 1 if (size if padded else size - window) % stride else stride
            strides.append(stride)
            windows.append(window)
        context = SpecContext(values=(("kh", windows[0]), ("kw", windows[1])))
        spec = pool_spec((strides[0], strides[1]), (windows[0], windows[1]), padded=padded)
        return Step(f"x{len(self.statements)}", "max_pool2d", (operand,), spec, context=context)

    def _slice(self, name: str) -> Step:
        with_axes = [
            each
            for each, rows in self.shapes.items()
            if rows is not None and any(rows) and not any(0 in row for row in rows)
        ]
        if not with_axes and self._chance(0.9):
            return Step(name, self.random.choice(UNARY), (self._pick(),))
        operand = self.random.choice(with_axes) if with_axes else self._pick()
        rows = self.shapes[operand]
        axes = [size for row in rows for size in row] if rows is not None else []
        number = self.random.randint(1, max(1, len(axes)))
        indices = []
        for axis in range(number):
            size = axes[axis] if axis < len(axes) else None
            if size is not None and self._chance(0.4):
                indices.append(Index(bounds=self._bounds(size)))
                continue
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

    def _bounds(self, size: int) -> tuple[int | None, int | None, int | None]:
        """Return the bounds and the step of a part of an axis that has a position at least."""
        while True:
            start, stop = (
                self.random.choice([None, self.random.randint(-size, size)]) for _ in range(2)
            )
            step = self.random.choice([None, 1, 2, -1, -2])
            if range(*slice(start, stop, step).indices(size)):
                return start, stop, step

    def _contraction(self, name: str, operation: str, operands: tuple[str, ...]) -> Step:
        """Return a step with a spec for which all parts of concatenated axes have a place."""
        shapes = [self.shapes[each] for each in operands]
        while True:
            spec, context = SpecAuthor(self.random, self.scope.formulas).spec(shapes)
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
        return self._leaf_of(shape)

    def _leaf_of(self, shape: Rows) -> str:
        """Add a parameter of a shape, or a tensor where parameters cannot have it."""
        name = f"x{len(self.statements)}"
        seed = self.random.randint(0, 10**6)
        is_param = not shape[0] and 0 not in shape[1] + shape[2]
        self.statements.append(Leaf(name, "param" if is_param else "tensor", shape, seed))
        self.shapes[name] = shape
        return name


def _certain(expected: Sequence[ExpectedRow]) -> Rows | None:
    if not all(row.is_certain for row in expected):
        return None
    batch, output, inputs = (row.sizes for row in expected)
    return batch, output, inputs
