"""Random specs that mostly fit operands of given shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from .notation import Row, Rows, SpecContext

FORMULAS = frozenset({"stride", "window", "ternary", "parts"})
"""Elements of the notation beyond plain axes."""

_WORDS = ("height", "width", "channels", "k1", "row", "i", "j", "depth", "m", "out")
_LETTERS = "ijklmnpqrstuabcdeh"


class SpecAuthor:
    """Author of one spec that mostly fits operands of given shapes."""

    def __init__(self, random: Random, formulas: frozenset[str] = frozenset()) -> None:
        self._random = random
        self._formulas = formulas
        self._has_formulas = bool(formulas & {"stride", "window", "parts"}) and self._chance(0.4)
        self._words = self._has_formulas or self._chance(0.3)
        self._sizes: dict[str, int | None] = {}
        self._variables: list[str] = []
        self._coefficients: dict[str, int] = {}
        self._in_windows: list[str] = []
        self._parts: list[list[str]] = []
        self._padded: bool | None = None

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def spec(self, operands: Sequence[Rows | None]) -> tuple[str, SpecContext]:
        """Return the spec and its context."""
        left = [self._operand(rows) for rows in operands]
        spec = f"{self._space('; ', ';').join(left)}{self._space(' => ', '=>')}{self._result()}"
        values = {
            label: size
            for label, size in self._sizes.items()
            if size is not None and self._is_given(label)
        }
        stated = SpecContext(self._padded, tuple(sorted({**values, **self._coefficients}.items())))
        used = stated.used_in(spec)
        return spec, replace(stated, values=tuple(v for v in stated.values if v[0] in used))

    def _is_given(self, label: str) -> bool:
        """True to state the size of a label; windows and parts often need that."""
        in_formula = label in self._in_windows or any(label in parts for parts in self._parts)
        return self._chance(0.6 if in_formula else 0.02)

    def _space(self, wide: str, narrow: str) -> str:
        return wide if self._chance(0.6) else narrow

    def _operand(self, rows: Rows | None) -> str:
        batch, output, inputs = rows if rows is not None else self._guessed()
        texts = [self._row("batch", batch), self._row("input", inputs), self._row("output", output)]
        return self._shape(texts)

    def _guessed(self) -> Rows:
        """Return rows for a tensor of unknown shape."""
        batch, output, inputs = (
            tuple(self._random.choice([1, 2, 3]) for _ in range(self._random.choice(lengths)))
            for lengths in ([0, 0, 0, 1], [0, 1, 1, 2], [0, 0, 1])
        )
        return batch, output, inputs

    def _row(self, kind: str, row: Row) -> list[str] | None:
        """Return the axes of an operand's row; None to leave the row out."""
        if kind != "output" and self._chance(0.3 if row else 0.6):
            return None
        mentioned = len(row)
        variable = ""
        if self._chance(0.4):
            variable = self._variable(kind)
            mentioned = self._random.randint(0, len(row))
        elif row and self._chance(0.1):
            mentioned = self._random.randint(0, len(row))
        if self._chance(0.03):
            mentioned += 1
        leading = self._random.randint(0, mentioned) if variable else 0
        start = max(0, len(row) - (mentioned - leading))
        axes = [self._axis(n) for n in row[:leading]]
        axes += [self._axis(n) for n in row[start:]]
        axes += [self._axis(1) for _ in range(mentioned - len(axes))]
        if variable:
            axes.insert(leading, variable)
        return axes

    def _variable(self, kind: str) -> str:
        variable = "..." if self._chance(0.7) else self._random.choice(["..v..", "..rest.."])
        self._variables.append(f"{kind}:..." if variable == "..." else variable)
        return variable

    def _axis(self, size: int) -> str:
        if self._chance(0.05):
            return "_"
        if self._chance(0.08):
            return str(self._random.randrange(max(1, size)) + self._chance(0.1))
        if self._has_formulas and size and self._chance(0.5):
            text = self._formula(size)
            if text:
                return text
        return self._label(size)

    def _label(self, size: int | None) -> str:
        matching = [name for name, n in self._sizes.items() if n == size or 1 in (n, size)]
        if matching and self._chance(0.45):
            name = self._random.choice(matching)
        elif self._sizes and self._chance(0.02):
            name = self._random.choice(list(self._sizes))
        else:
            names = _WORDS if self._words else _LETTERS
            unused = [name for name in names if name not in self._sizes]
            if not unused:
                return "_"
            name = self._random.choice(unused)
        if self._sizes.get(name, 1) == 1:
            self._sizes[name] = size
        return name

    def _formula(self, size: int) -> str:
        stride = self._random.choice([1, 1, 2, 3])
        if "parts" in self._formulas and self._chance(0.35):
            return self._concatenated(size)
        if "window" in self._formulas and self._chance(0.7):
            return self._window(size, stride)
        if "stride" not in self._formulas or size % stride or size == 1:
            return ""
        over = self._label(size // stride)
        if over == "_" or self._sizes.get(over) != size // stride:
            return ""
        offset = self._random.randrange(stride)
        return f"{self._factor(stride)}*{over}" + (f"+{offset}" if offset else "")

    def _factor(self, number: int) -> str:
        """Return a coefficient, sometimes under a name."""
        if not self._chance(0.15):
            return str(number)
        name = f"f{number}"
        self._coefficients[name] = number
        return name

    def _concatenated(self, size: int) -> str:
        """Return an axis of concatenated parts of some sizes."""
        parts: list[str] = []
        labels: list[str] = []
        count = self._random.choice([2, 2, 3])
        for position in range(count):
            share = size if position == count - 1 else self._random.randint(1, max(1, size - 1))
            size -= share
            if size < 0 or share < 1:
                return ""
            label = "" if self._chance(0.25) else self._label(share)
            if label and (label == "_" or self._sizes.get(label) != share):
                return ""
            labels += [label] if label else []
            parts.append(label or str(share))
        if size or not labels:
            return ""
        self._parts.append(labels)
        return "^".join(parts)

    def _window(self, size: int, stride: int) -> str:
        kernels = [(name, n) for name, n in self._sizes.items() if n is not None and n <= size]
        if kernels and self._chance(0.6):
            kernel, length = self._random.choice(kernels)
        else:
            length = self._random.choice([1, 2, 3])
            kernel = self._label(length)
            if kernel == "_" or self._sizes.get(kernel) != length:
                return ""
        dilation = self._random.choice([1, 1, 1, 2])
        mark = self._random.choice("=<=<=<u")
        if mark == "u" and self._padded is None:
            self._padded = self._chance(0.5)
        padded = mark == "=" or (mark == "u" and bool(self._padded))
        span = 1 + (length - 1) * dilation
        over_size, rest = divmod(size if padded else size - span, stride)
        over_size += not padded
        if rest or over_size < 1:
            return ""
        over = self._label(over_size)
        if over in ("_", kernel) or self._sizes.get(over) != over_size:
            return ""
        self._in_windows += [over, kernel]
        return self._window_text(over, stride, mark.replace("u", ""), kernel, dilation)

    def _window_text(self, over: str, stride: int, mark: str, kernel: str, dilation: int) -> str:
        start = over if stride == 1 else f"{self._factor(stride)}*{over}"
        step = kernel if dilation == 1 else f"{self._factor(dilation)}*{kernel}"
        offset = self._random.randrange(1, stride) if stride > 1 and self._chance(0.25) else 0
        return f"{start}{mark}+{f'{offset}+' if offset else ''}{step}"

    def _result(self) -> str:
        labels = [label for label in self._sizes if self._chance(0.6)]
        self._random.shuffle(labels)
        wholes = self._wholes(labels)
        rows: list[list[str] | None] = []
        for kind in ("batch", "input", "output"):
            take = self._random.randint(0, len(labels))
            axes: list[str] = labels[:take] if kind != "output" else labels
            labels = labels[take:]
            axes = [self._result_axis(axis, labels) for axis in axes]
            if kind == "output" and wholes:
                axes.insert(self._random.randint(0, len(axes)), wholes.pop())
            if self._chance(0.08):
                axes.insert(self._random.randint(0, len(axes)), self._extra())
            own = "..." if f"{kind}:..." in self._variables else ""
            named = [v for v in self._variables if not v.endswith(":...")]
            if own and self._chance(0.7):
                axes.insert(self._random.choice([0, 0, len(axes)]), own)
            elif named and self._chance(0.3):
                axes.insert(self._random.choice([0, 0, len(axes)]), named[0])
            rows.append(axes if axes or kind == "output" or self._chance(0.2) else None)
        return self._shape(rows)

    def _wholes(self, labels: list[str]) -> list[str]:
        """Take parts of operands out of the labels; some come back as one axis."""
        wholes = []
        for parts in self._parts:
            kept = [label for label in dict.fromkeys(parts) if label in labels]
            for label in kept[self._chance(0.7) :]:
                labels.remove(label)
            if self._chance(0.3):
                for label in (each for each in dict.fromkeys(parts) if each in labels):
                    labels.remove(label)
                wholes.append("^".join(self._random.sample(parts, len(parts))))
        return wholes

    def _result_axis(self, label: str, others: list[str]) -> str:
        if self._has_formulas and "parts" in self._formulas and self._chance(0.08):
            skipped = str(self._random.choice([1, 1, 2]))
            return self._random.choice([f"{skipped}^{label}", f"{label}^{skipped}"])
        if self._has_formulas and "window" in self._formulas and self._chance(0.12):
            kernels = [k for k in self._sizes if k != label and k not in others]
            if kernels:
                stride = self._random.choice([1, 1, 2])
                dilation = self._random.choice([1, 1, 2])
                kernel = self._random.choice(kernels)
                return self._window_text(label, stride, self._random.choice("<="), kernel, dilation)
        if self._has_formulas and "stride" in self._formulas and self._chance(0.15):
            stride = self._random.choice([2, 3])
            offset = self._random.randrange(stride)
            return f"{stride}*{label}" + (f"+{offset}" if offset else "")
        return label

    def _extra(self) -> str:
        choice = self._random.choice(["0", "0", "1", "2", "_", "label", "new"])
        if choice == "label" and self._sizes:
            return self._random.choice(list(self._sizes))
        if choice in ("label", "new"):
            return self._label(None)
        return choice

    def _shape(self, rows: list[list[str] | None]) -> str:
        batch, inputs, output = rows
        text = self._text(output or [])
        if inputs is not None:
            text = f"{self._text(inputs)}{self._space(' -> ', '->')}{text}"
        if batch is not None:
            text = f"{self._text(batch)}{self._space(' | ', '|')}{text}"
        return text

    def _text(self, axes: list[str]) -> str:
        if self._words:
            return "".join(f"{axis}, " for axis in axes).removesuffix(" ") if axes else ""
        text = ""
        for axis in axes:
            text += " " + axis if text[-1:].isdigit() and axis.isdigit() else axis
        return text


def simpler_specs(spec: str) -> Iterator[str]:
    """Yield specs without spaces, with an axis less, with a row less, or with a plainer axis."""
    plain = re.sub(r"\s+", "", spec)
    if plain != spec:
        yield plain
    words = bool(re.search(r"[,*+^<]|=(?!>)", plain))
    pieces = re.split(r"(=>|->|;|\|)", plain)
    for position in range(0, len(pieces), 2):
        axes = _axes_in(pieces[position], words)
        for place, axis in enumerate(axes):
            shorter = axes[:place] + axes[place + 1 :]
            for row in (
                shorter,
                *([*axes[:place], each, *axes[place + 1 :]] for each in _plainer(axis)),
            ):
                changed = [*pieces[:position], _joined(row, words), *pieces[position + 1 :]]
                yield "".join(changed)
        if pieces[position] == "" and pieces[position + 1 : position + 2] in (["->"], ["|"]):
            yield "".join(pieces[:position] + pieces[position + 2 :])


def _axes_in(row: str, words: bool) -> list[str]:
    if words:
        spaced = re.sub(r"(\.\.\.|\.\.\w+\.\.)", r",\1,", row)
        return [axis for axis in spaced.split(",") if axis]
    return re.findall(r"\.\.\.|\.\.\w+\.\.|\d+|\w", row)


def _joined(axes: list[str], words: bool) -> str:
    if words:
        return ",".join(axes) + ("," if len(axes) == 1 and "." not in axes[0] else "")
    text = ""
    for axis in axes:
        text += " " + axis if text[-1:].isdigit() and axis.isdigit() else axis
    return text


def _plainer(axis: str) -> list[str]:
    found = []
    if re.search(r"[*+^]", axis):
        found += list(re.findall(r"[a-z]\w*", axis))
        found += [re.sub(r"\w+\*", "", axis), re.sub(r"\+\d+(?![\w*])", "", axis)]
        found += ["^".join(axis.split("^")[:-1]), "^".join(axis.split("^")[1:])]
    return [each for each in dict.fromkeys(found) if each and each != axis]
