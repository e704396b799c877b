"""Write random programs whose axes have sizes at which schedules cut, pack and share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import TypeVar

from ..chains import links_of, rounds_of
from ..contraction import Undetermined
from ..notation import ALONE, Invalid, Row, Rows, SpecContext
from ..programs import Program, Statement, pool_spec, used_operands
from ..reference import Call
from .bounds import FORMATS
from .drafts import LABELS, CaseDraft, text_of
from .formats import WIDER, result_format
from .programs import CaseOperation, Given, SizedCase, UpdateRule, cells_of, shape_of

T = TypeVar("T")

SIZES = (1, 2, 3, 7, 16, 17, 31, 64, 100, 129, 257, 513, 1000)
FLOATS = ("float32", "float64", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn")
MOST_CELLS_IN_CHAINS = 1 << 11
LONGEST_CHAIN = 120
SMOOTH = ("tanh", "sin", "cos", "relu", "sat01", "neg", "square", "exp")
STEPWISE = ("relu", "sat01", "neg", "square", "clamp", "times")
UNARY_OF_INTEGERS = ("neg", "square")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "relu_gate", "add", "mul")
WITH_FORMAT = ("add", "sub", "mul", "div", "exp", "matmul", "einsum", "outer_sum", "tropical")
"""Operations that round or wrap around, with a format for their results in some programs."""
COMPARISONS = ("less", "less_equal", "equal", "not_equal")


@dataclass
class CaseAuthor:
    """Author of one case.

    Attributes:
        random: The source of choices.
        most_cells: The largest number of cells of a tensor.
        most_work: The largest number of products of an operation.
    """

    random: Random
    most_cells: int
    most_work: int
    format: str = "float32"
    is_exact: bool = False
    """True for programs on whole numbers, in which nothing is rounded."""
    statements: list[Statement] = field(default_factory=list)
    shapes: dict[str, Rows] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)

    def case(self) -> SizedCase:
        """Return a program of a few operations, in many cases with gradients and updates."""
        formats = [*FLOATS, "int32", "int16", "int8", "uint8"]
        form = self.random.choices(formats, [12, 2, 2, 2, 2, 2, 1, 1, 1, 1])[0]
        self.format = form
        self.is_exact = self._chance(0.5) or FORMATS[form].is_integer
        self._leaf(self._shape(self.most_cells))
        for _ in range(self.random.randint(1, 8)):
            self._something()
        program = Program(tuple(self.statements)).pruned
        training = self._training(program)
        calls = self.random.choice([1, 2]) if training is not None else 1
        return SizedCase(program, training, calls)

    def _training(self, program: Program) -> UpdateRule | None:
        if FORMATS[self.format].is_integer or self._chance(0.25):
            return None
        rules = ["none", "sgd", "adam"]
        candidates = [
            step.name
            for step in program.steps
            if SizedCase(program, UpdateRule((step.name,))).params
            and not FORMATS[self.formats[step.name]].is_integer
        ]
        roots = [name for name in candidates if name in program.roots]
        if not roots:
            return None
        losses = [self.random.choice(roots)]
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2])):
            losses.append(self.random.choice(candidates))
        return UpdateRule(tuple(dict.fromkeys(losses)), self.random.choice(rules))

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _size(self, most: int) -> int:
        return self.random.choice([n for n in SIZES if n <= max(1, most)])

    def _shape(self, most: int) -> Rows:
        rank = self.random.choice([1, 2, 2, 3, 3, 4])
        sizes = []
        for _ in range(rank):
            sizes.append(self._size(most // prod(sizes)))
        self.random.shuffle(sizes)
        return self._dealt(sizes)

    def _dealt(self, axes: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...], tuple[T, ...]]:
        """Return axes dealt out to three rows, in their order."""
        first, second = sorted(self.random.randint(0, len(axes)) for _ in range(2))
        if self._chance(0.5):
            first = 0
        return tuple(axes[:first]), tuple(axes[first:second]), tuple(axes[second:])

    def _leaf(self, rows: Rows, data: str | None = None) -> str:
        name = f"x{len(self.statements)}"
        kinds = ["tensor", "placeholder"] if rows[0] else ["tensor", "param", "param", "param"]
        if FORMATS[self.format].is_integer:
            kinds = ["tensor", "placeholder"]
        if data is None:
            data = self._data()
        seed = self.random.randint(0, 10**6)
        leaf = Given(name, self.random.choice(kinds), rows, seed, format=self.format, data=data)
        return self._added(leaf, rows, self.format)

    def _data(self) -> str:
        if self.format == "uint8":
            return self.random.choice(["bits", "counts"])
        if FORMATS[self.format].is_integer:
            return self.random.choice(["small", "wide"])
        if self.is_exact:
            return self.random.choice(["small", "signs", "bits"])
        return self.random.choice(["normal", "normal", "positive", "small"])

    def _added(self, statement: Statement, rows: Rows, form: str) -> str:
        self.statements.append(statement)
        self.shapes[statement.name] = rows
        self.formats[statement.name] = form
        return statement.name

    def _apply(
        self, operation: str, operands: Sequence[str], spec: str = "", context: SpecContext = ALONE
    ) -> str | None:
        """Add an operation; return the name of its result, or None if it is not possible."""
        form = self._wider(operation, operands)
        call = Call(operation, spec, (), context, form)
        try:
            rows = shape_of(call, [self.shapes[name] for name in operands])
        except (Invalid, Undetermined):
            return None
        if cells_of(rows) > self.most_cells or sum(map(len, rows)) > 6:
            return None
        result = result_format(call, [FORMATS[self.formats[name]] for name in operands])
        name = f"x{len(self.statements)}"
        step = CaseOperation(name, operation, tuple(operands), spec, context=context, format=form)
        return self._added(step, rows, result.name)

    def _wider(self, operation: str, operands: Sequence[str]) -> str:
        """Return a format to state that holds the numbers of the operands, or none."""
        formats = {self.formats[name] for name in operands}
        wider = WIDER.get(formats.pop(), ()) if len(formats) == 1 else ()
        if operation not in WITH_FORMAT or not wider or self._chance(0.7):
            return ""
        return self.random.choice(wider)

    def _pick(self) -> str:
        names = list(self.shapes)
        return self.random.choice(names[-3:] if self._chance(0.8) else names)

    def _something(self) -> None:
        kinds = {
            self._unary: 2, self._binary: 4, self._mask: 2, self._contraction: 8, self._rows: 2,
            self._layer: 2, self._attention: 1, self._image: 2, self._rearranged: 2, self._parts: 1, self._cast: 1,
            self._chain: 0.5,
        }  # fmt: skip
        self.random.choices(list(kinds), list(kinds.values()))[0]()

    def _unary(self, name: str | None = None) -> None:
        name = name or self._pick()
        form = FORMATS[self.formats[name]]
        choices = STEPWISE if self.is_exact else SMOOTH
        if form.is_integer:
            choices = UNARY_OF_INTEGERS
        operation = self.random.choice(choices)
        if operation == "exp":
            found = self._apply("clamp", [name])
            name = found or name
        self._apply(operation, [name], "0.5" if operation == "times" else "")

    def _partner(self, name: str) -> str:
        """Return a tensor that broadcasts with another one: an earlier one, or a new one."""
        candidates = [
            each
            for each in self.shapes
            if self._fits(name, each) and (each != name or self._chance(0.2))
        ]
        if candidates and self._chance(0.6):
            return self.random.choice(candidates)
        rows = self.shapes[name]
        kept = self.random.choice(["all", "all", "some", "last"])
        if kept == "all":
            return self._leaf(rows)
        batch, output, inputs = (
            tuple(n if self._chance(0.5) else 1 for n in row) if kept == "some" else row
            for row in rows
        )
        return self._leaf((batch, output, inputs) if kept == "some" else ((), output, inputs))

    def _fits(self, *names: str) -> bool:
        try:
            rows = shape_of(Call("add"), [self.shapes[name] for name in names])
        except (Invalid, Undetermined):
            return False
        return cells_of(rows) <= self.most_cells

    def _binary(self) -> None:
        name = self._pick()
        pair = [name, self._partner(name)]
        self.random.shuffle(pair)
        found = self._apply(self.random.choice(BINARY), pair)
        if found and self.is_exact and self._chance(0.3) and not self._is_integer(found):
            self._apply("clamp", [found])

    def _is_integer(self, name: str) -> bool:
        return FORMATS[self.formats[name]].is_integer

    def _mask(self) -> None:
        """Add a comparison, of integers or of computed cells, and a choice by it."""
        name = self._pick()
        rows = self.shapes[name]
        if self._chance(0.6) and not self._is_integer(name):
            pair = [self._leaf(rows, "small"), self._leaf(rows, "small")]
        else:
            pair = [name, self._partner(name)]
        found = self._apply(self.random.choice(COMPARISONS), pair)
        if found and self._fits(found, name):
            other = self._partner(name)
            if self._fits(found, name, other):
                self._apply("where", [found, name, other])

    def _chain(self) -> None:
        """Many operations on single cells, one after the other."""
        name = self._pick()
        if cells_of(self.shapes[name]) > MOST_CELLS_IN_CHAINS:
            name = self._leaf(self._shape(MOST_CELLS_IN_CHAINS))
        if self._is_integer(name):
            return
        operands = [name]
        for _ in range(self.random.choice([0, 1, 2])):
            other = self._partner(name)
            same = self.formats[other] == self.formats[name] and self._fits(*operands, other)
            operands += [other] if same else []
        links = links_of(self.random, len(operands) - 1, widens=self._chance(0.1))
        used, links = used_operands(operands, links)
        rows = shape_of(Call("add"), [self.shapes[each] for each in used])
        rounds = rounds_of(self.random, len(links), LONGEST_CHAIN)
        name = f"x{len(self.statements)}"
        chain = CaseOperation(name, "chain", used, links=links, rounds=rounds)
        self._added(chain, rows, self.formats[used[0]])

    def _cast(self) -> None:
        name = self._pick()
        if not self._is_integer(name):
            wanted = self.random.choice([each for each in FLOATS if each != "float64"])
            if self.formats[name] != "float64":
                self._apply("cast", [name], wanted)

    def _rearranged(self) -> None:
        name = self._pick()
        if self._chance(0.5):
            self._apply("transpose", [name])
        else:
            self._apply("stack", [name, self._leaf(self.shapes[name])], self._kind())

    def _kind(self) -> str:
        return self.random.choice(["batch", "output", "input"])

    def _rows(self) -> None:
        """Add a softmax or a normalization of rows."""
        name = self._pick()
        if self._is_integer(name):
            return
        batch, output, inputs = self.shapes[name]
        which = self.random.choice(
            [k for k, row in enumerate((batch, output, inputs)) if row] or [1]
        )
        whole, kept = "...|...->...", ["...", "...", "..."]
        kept[which] = "0"
        spec = f"{whole} => {kept[0]}|{kept[2]}->{kept[1]}"
        if self._chance(0.6):
            self._softmax(name, spec)
        else:
            total = self._apply("einsum", [name], spec)
            if not total:
                return
            count = cells_of(self.shapes[name]) // max(1, cells_of(self.shapes[total]))
            mean = self._apply("times", [total], str(2.0 ** -(count.bit_length())))
            shifted = mean and self._apply("sub", [name, mean])
            squares = shifted and self._apply("mul", [shifted, shifted])
            variance = squares and self._apply("einsum", [squares], spec)
            scaled = variance and self._apply("times", [variance], str(2.0 ** -count.bit_length()))
            raised = scaled and self._apply("plus", [scaled], "1.0")
            root = raised and self._apply("sqrt", [raised])
            if shifted and root:
                self._apply("div", [shifted, root])

    def _layer(self) -> None:
        """A product with a matrix of parameters, a bias and a function of cells."""
        name = self._pick()
        _, output, _ = self.shapes[name]
        cells, meeting = cells_of(self.shapes[name]), prod(output)
        width = self._size(min(self.most_cells * max(1, meeting) // cells, self.most_work // cells))
        if not output or width * meeting > self.most_cells:
            return
        weights = self._leaf(((), (width,), output))
        result = self._apply("matmul", [weights, name])
        if result is None:
            return
        result = self._tamed(result, meeting)
        if self._chance(0.6):
            biased = self._apply("add", [result, self._leaf(((), (width,), ()))])
            result = biased or result
        if self._chance(0.6):
            self._unary(result)

    def _attention(self) -> None:
        """Add products with keys, a softmax and products with values, for one batch or more."""
        if FORMATS[self.format].is_integer:
            return
        heads, width = self.random.choice([1, 2, 7]), self.random.choice([3, 16, 17, 31])
        most = min(self.most_work // (heads * width), self.most_cells // heads)
        length = max(n for n in SIZES if n * n <= max(1, most))
        rows = ((), (length, heads, width), ())
        queries, keys, values = (self._leaf(rows) for _ in range(3))
        scores = self._apply("einsum", [queries, keys], "|->s, h, d; |->t, h, d => s|t->h")
        small = scores and self._apply("times", [scores], str(2.0 ** -(width.bit_length() // 2)))
        if small and self._chance(0.4):
            mask = self._leaf(((length,), (1,), (length,)), "bits")
            small = (
                self._apply("where", [mask, small, self._leaf(((), (1,), ()), "small")]) or small
            )
        self._softmax(small, "s|t->h => s|0->h")
        weights = next(reversed(self.shapes))
        if self.shapes[weights] == ((length,), (heads,), (length,)):
            self._apply("einsum", [weights, values], "s|t->h; |->t, h, e => s|->h, e")

    def _softmax(self, name: str | None, spec: str) -> None:
        scaled = name and (self._apply("clamp", [name]) or name)
        greatest = scaled and self._apply("einmax", [scaled], spec)
        if scaled and greatest and self._chance(0.5):
            greatest = self._apply("stop_gradient", [greatest])
        shifted = scaled and greatest and self._apply("sub", [scaled, greatest])
        powers = shifted and self._apply("exp", [shifted])
        total = powers and self._apply("einsum", [powers], spec)
        if powers and total:
            self._apply("div", [powers, total])

    def _image(self) -> None:
        """A convolution of images with channels, and perhaps the greatest cells of windows."""
        batch, height, width = (
            self.random.choice(each) for each in ((1, 2, 7), (6, 16, 18), (7, 16, 33))
        )
        inner, outer = self.random.choice([1, 3, 16]), self.random.choice([1, 7, 16, 17])
        size = self.random.choice([1, 2, 3, 5])
        mark = self.random.choice("<=")
        if batch * height * width * inner * outer * size * size > self.most_work:
            return
        image = self._leaf(((batch,), (height, width, inner), ()))
        kernel = self._leaf(((), (outer,), (size, size, inner)))
        spec = f"b|->y{mark}+k, x{mark}+l, c; |k, l, c->o => b|->y, x, o"
        result = self._apply("einsum", [image, kernel], spec)
        if not result:
            return
        result = self._tamed(result, size * size * inner)
        if self._chance(0.5):
            self._apply("relu", [result])
            result = next(reversed(self.shapes))
        _, (height, width, _), _ = self.shapes[result]
        if height % 2 == 0 and width % 2 == 0:
            if self._chance(0.7):
                values = SpecContext(None, (("kh", 2), ("kw", 2)))
                self._apply("max_pool2d", [result], pool_spec((2, 2), (2, 2), padded=False), values)
            else:
                values = SpecContext(None, (("k", 2), ("l", 2)))
                pooled = "b|->2*y<+k, 2*x<+l, c => b|->y, x, c"
                self._apply("einsum", [result], pooled, values)
        elif height > 2 and width > 2:
            values = SpecContext(None, (("kh", 3), ("kw", 2)))
            self._apply("max_pool2d", [result], pool_spec((1, 1), (3, 2), padded=True), values)

    def _tamed(self, name: str, terms: int) -> str:
        """Return a tensor whose cells are not much larger than the terms of the sums."""
        if self._is_integer(name):
            return name
        if self.is_exact:
            found = self._apply("clamp", [name]) if self._chance(0.7) else None
        else:
            found = self._apply("times", [name], str(2.0 ** -(terms.bit_length() // 2)))
        return found or name

    def _parts(self) -> None:
        """Add concatenations, slices of axes or a reversal of parts."""
        name = self._pick()
        rows = self.shapes[name]
        places = [(k, a) for k, row in enumerate(rows) for a, n in enumerate(row) if n > 2]
        if not places:
            return
        kind, axis = self.random.choice(places)
        size = rows[kind][axis]
        labels = iter(LABELS[2:])
        names = [[next(labels) for _ in row] for row in rows]

        def written(what: str) -> str:
            own = [list(row) for row in names]
            own[kind][axis] = what
            return text_of(own)

        cut = self.random.randint(1, size - 1)
        match self.random.choice(["concat", "concat", "turn", "first", "rest"]):
            case "concat":
                other = [list(row) for row in rows]
                other[kind][axis] = self._size(self.most_cells * size // cells_of(rows) - size)
                second = self._leaf((tuple(other[0]), tuple(other[1]), tuple(other[2])))
                spec = f"{written('a')}; {written('b')} => {written('a^b')}"
                self._apply("concat", [name, second], spec)
            case "turn":
                spec = f"{written('a^b')} => {written('b^a')}"
                self._apply("einsum", [name], spec, SpecContext(None, (("a", cut),)))
            case "first":
                self._apply("einsum", [name], f"{written(f'a^{cut}')} => {written('a')}")
            case _:
                self._apply("einsum", [name], f"{written(f'{cut}^a')} => {written('a')}")

    def _contraction(self) -> None:
        operation = self.random.choices(
            ["einsum", "einmax", "outer_sum", "tropical"], [9, 3, 1, 2]
        )[0]
        for _ in range(20):
            draft = CaseDraft(self, operation)
            statements, shapes, formats = (
                list(self.statements),
                dict(self.shapes),
                dict(self.formats),
            )
            made = draft.written()
            if made is not None:
                result = self._apply(operation, *made)
                if result is not None:
                    if operation == "einsum":
                        self._tamed(result, draft.terms)
                    return
            self.statements, self.shapes, self.formats = statements, shapes, formats


def case_of(seed: int, number: int) -> SizedCase:
    """Return one of the cases of a seed: most are small, some large."""
    random = Random(f"sized {seed} {number}")
    most_cells, most_work = random.choice(
        [
            (1 << 12, 1 << 14),
            (1 << 14, 1 << 17),
            (1 << 16, 1 << 19),
            (1 << 19, 1 << 20),
            (1 << 18, 1 << 21),
        ]
    )
    while True:
        case = CaseAuthor(random, most_cells, most_work).case()
        if case.program.steps:
            return case


__all__ = ["CaseAuthor", "Row", "case_of"]
