"""Random specs that mostly fit operands of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from .notation import Row, Rows

FORMULAS = frozenset({"stride", "window", "ternary"})
"""What the notation offers beyond plain axes."""

_WORDS = ("height", "width", "channels", "k1", "row", "i", "j", "depth", "m", "out")
_LETTERS = "ijklmnpqrstuabcdeh"


class SpecAuthor:
    """Writes one spec that mostly fits operands of given shapes."""

    def __init__(self, random: Random, formulas: frozenset[str] = frozenset()) -> None:
        self._random = random
        self._formulas = formulas
        self._has_formulas = bool(formulas & {"stride", "window"}) and self._chance(0.35)
        self._words = self._has_formulas or self._chance(0.3)
        self._sizes: dict[str, int | None] = {}
        self._variables: list[str] = []

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def spec(self, operands: Sequence[Rows | None]) -> str:
        """Returns the spec."""
        left = [self._operand(rows) for rows in operands]
        return f"{self._space('; ', ';').join(left)}{self._space(' => ', '=>')}{self._result()}"

    def _space(self, wide: str, narrow: str) -> str:
        return wide if self._chance(0.6) else narrow

    # ----- operands -------------------------------------------------------------------------------

    def _operand(self, rows: Rows | None) -> str:
        batch, output, inputs = rows if rows is not None else self._guessed()
        texts = [self._row("batch", batch), self._row("input", inputs), self._row("output", output)]
        return self._shape(texts)

    def _guessed(self) -> Rows:
        """Returns rows for a tensor of unknown shape."""
        batch, output, inputs = (
            tuple(self._random.choice([1, 2, 3]) for _ in range(self._random.choice(lengths)))
            for lengths in ([0, 0, 0, 1], [0, 1, 1, 2], [0, 0, 1])
        )
        return batch, output, inputs

    def _row(self, kind: str, row: Row) -> list[str] | None:
        """Returns the axes of an operand's row; None to leave the row out."""
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
            return str(self._random.randrange(size) + (size == 1 or self._chance(0.05)))
        if self._has_formulas and self._chance(0.5):
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
        if "window" in self._formulas and self._chance(0.7):
            return self._window(size, stride)
        if "stride" not in self._formulas or size % stride or size == 1:
            return ""
        over = self._label(size // stride)
        if over == "_" or self._sizes.get(over) != size // stride:
            return ""
        offset = self._random.randrange(stride)
        return f"{stride}*{over}" + (f"+{offset}" if offset else "")

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
        padded = self._chance(0.5)
        span = 1 + (length - 1) * dilation
        over_size, rest = divmod(size if padded else size - span, stride)
        over_size += not padded
        if rest or over_size < 1:
            return ""
        over = self._label(over_size)
        if over in ("_", kernel) or self._sizes.get(over) != over_size:
            return ""
        start = over if stride == 1 else f"{stride}*{over}"
        step = kernel if dilation == 1 else f"{dilation}*{kernel}"
        return f"{start}{'=' if padded else '<'}+{step}"

    # ----- the result -----------------------------------------------------------------------------

    def _result(self) -> str:
        labels = [label for label in self._sizes if self._chance(0.6)]
        self._random.shuffle(labels)
        rows: list[list[str] | None] = []
        for kind in ("batch", "input", "output"):
            take = self._random.randint(0, len(labels))
            axes: list[str] = labels[:take] if kind != "output" else labels
            labels = labels[take:]
            axes = [self._result_axis(axis) for axis in axes]
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

    def _result_axis(self, label: str) -> str:
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

    # ----- texts ----------------------------------------------------------------------------------

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
