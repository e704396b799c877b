"""Write specifications of contractions, with operands that fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from ..notation import Rows, SpecContext

if TYPE_CHECKING:
    from .author import CaseAuthor

LABELS = "abcdefghijklmnopqrstuvwxyz"


def text_of(rows: Sequence[Sequence[str]]) -> str:
    batch, output, inputs = (", ".join(row) for row in rows)
    return f"{batch}|{inputs}->{output}"


@dataclass
class CaseDraft:
    """One specification, with operands that fit it."""

    author: CaseAuthor
    operation: str
    sizes: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    padded: bool | None = None
    terms: int = 1

    def written(self) -> tuple[list[str], str, SpecContext] | None:
        """Return the operands, the specification, and its context."""
        author, random = self.author, self.author.random
        count = random.choice([1, 2, 2, 2, 3]) if self.operation == "einsum" else 1
        if self.operation in ("outer_sum", "tropical"):
            count = 2
        first = author._pick()
        operands = [first]
        texts = [self._given(author.shapes[first])]
        windows = set(self.values)
        for position in range(1, count):
            earlier = author._pick()
            if random.random() < 0.3:
                operands.append(earlier)
                texts.append(self._given(author.shapes[earlier], may_window=False))
                continue
            rows = self._other(windows if position == 1 else set())
            sizes = [tuple(self.sizes[label] for label in row) for row in rows]
            if prod(n for row in sizes for n in row) > author.most_cells:
                return None
            if self._has_no_formulas(texts) and random.random() < 0.2:
                sizes = [tuple(1 if random.random() < 0.3 else n for n in row) for row in sizes]
            operands.append(author._leaf((sizes[0], sizes[1], sizes[2])))
            texts.append(text_of(rows))
        work = prod(self.sizes.values())
        if work > author.most_work:
            return None
        result = self._result(texts)
        spec = f"{'; '.join(texts)} => {text_of(result)}"
        context = SpecContext(self.padded, tuple(sorted(self.values.items())))
        used = context.used_in(spec)
        return (
            operands,
            spec,
            replace(context, values=tuple(v for v in context.values if v[0] in used)),
        )

    def _has_no_formulas(self, texts: Sequence[str]) -> bool:
        return not any(mark in text for text in texts for mark in "*+<=^")

    def _label(self, size: int) -> str:
        label = LABELS[len(self.sizes)]
        self.sizes[label] = size
        return label

    def _given(self, rows: Rows, *, may_window: bool = True) -> str:
        """Return how an operand with a shape is written."""
        own: set[str] = set()
        return text_of([[self._axis(n, own, may_window=may_window) for n in row] for row in rows])

    def _axis(self, size: int, own: set[str], *, may_window: bool) -> str:
        random = self.author.random
        known = [k for k, n in self.sizes.items() if n == size and size > 1 and k not in own]
        if known and random.random() < 0.6:
            label = random.choice(known)
        elif (
            own
            and size > 1
            and random.random() < 0.08
            and any(self.sizes.get(k) == size for k in own)
        ):
            label = random.choice([k for k in sorted(own) if self.sizes.get(k) == size])
        elif may_window and size > 3 and random.random() < 0.3:
            return self._formula(size)
        elif random.random() < 0.03:
            return str(random.randrange(size))
        else:
            label = self._label(size)
        own.add(label)
        return label

    def _formula(self, size: int) -> str:
        """Return a window or a stride over an axis."""
        random = self.author.random
        stride = random.choice([1, 1, 1, 2, 3])
        dilation = random.choice([1, 1, 2])
        over_axis = f"{stride}*" if stride > 1 else ""
        shape = random.choice(["valid", "valid", "padded", "stride"])
        if shape == "stride" and stride > 1 and size % stride == 0:
            label = self._label(size // stride)
            offset = random.randrange(stride)
            return f"{over_axis}{label}" + (f"+{offset}" if offset else "")
        kernels = [k for k in (1, 2, 2, 3, 4, 5, 7, 16, 33) if dilation * (k - 1) < size]
        kernel = random.choice(kernels)
        if shape == "padded" and size % stride == 0:
            over, mark = size // stride, "="
            offset = random.choice([0, 0, 1, stride])
            if offset:
                over_axis, mark = f"{stride}*", f"=+{offset}"
        else:
            left = size - 1 - (kernel - 1) * dilation
            if left % stride:
                stride, over_axis = 1, ""
            over, mark = left // stride + 1, "<"
        label, window = self._label(over), self._label(kernel)
        self.values[window] = kernel
        return f"{over_axis}{label}{mark}+{f'{dilation}*' if dilation > 1 else ''}{window}"

    def _other(self, windows: set[str]) -> list[list[str]]:
        """Return the rows of a new operand: some labels, and perhaps new ones."""
        author, random = self.author, self.author.random
        labels = [k for k in self.sizes if k in windows or random.random() < 0.5]
        work = prod(self.sizes.values())
        for _ in range(random.choice([0, 1, 1, 2])):
            most = min(
                author.most_work // max(1, work),
                author.most_cells // max(1, prod(self.sizes[k] for k in labels)),
            )
            label = self._label(author._size(most))
            work *= self.sizes[label]
            labels.append(label)
        random.shuffle(labels)
        return [list(row) for row in author._dealt(labels)]

    def _result(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the rows of the result; labels that it does not mention are summed."""
        author, random = self.author, self.author.random
        seen = {k: sum(k in text for text in texts) for k in self.sizes}
        kept = [k for k in self.sizes if random.random() < (0.8 if seen[k] == 1 else 0.4)]
        kept = [k for k in kept if k not in self.values or random.random() < 0.2]
        while kept and prod(self.sizes[k] for k in kept) > author.most_cells:
            kept.pop(random.randrange(len(kept)))
        self.terms = prod(self.sizes.values()) // max(1, prod(self.sizes[k] for k in kept))
        random.shuffle(kept)
        axes = list(kept)
        if self.operation in ("einsum", "outer_sum") and random.random() < 0.15:
            axes = self._scattered(axes)
        if not axes:
            axes = ["0"]
            return [[], axes, []]
        return [list(row) for row in author._dealt(axes)]

    def _scattered(self, axes: list[str]) -> list[str]:
        """Return the axes of a result that is written with strides, on a diagonal or in windows."""
        random = self.author.random
        if not axes:
            return axes
        place = random.randrange(len(axes))
        label = axes[place]
        match random.choice(["stride", "diagonal", "window"]):
            case "stride":
                return [*axes[:place], f"2*{label}+1", *axes[place + 1 :]]
            case "diagonal" if self.sizes[label] <= 64:
                return [*axes, label]
            case "window" if len(axes) > 1:
                other = next(each for each in axes if each != label)
                rest = [each for each in axes if each not in (label, other)]
                return [*rest, f"{label}{random.choice('<=')}+{other}"]
            case _:
                return axes
