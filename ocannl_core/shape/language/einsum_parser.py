"""Parser of the einsum notation: a lexer, and one method per rule of the grammar."""

from __future__ import annotations

import re
from functools import lru_cache

from ocannl_core.base.errors import SpecError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.shape.language.einsum_ast import (
    Affine,
    Anything,
    AxisSpec,
    Coefficient,
    Concat,
    Fixed,
    Label,
    RowSpec,
    ShapeSpec,
    Spec,
    WindowSpec,
    axis_names,
)
from ocannl_core.shape.language.shape_terms import RowKind

__all__ = ["RowSpec", "ShapeSpec", "Spec", "parse_spec", "spec_error"]

_WORD_TOKEN = (
    r"(?P<space>\s+)|(?P<mark>=>|->|\.\.\.|…|\.\.|[;|,*+^<=]|_(?!\w))"
    r"|(?P<number>[0-9]+)|(?P<name>[^\W\d]\w*)"
)
_LETTER_TOKEN = (
    r"(?P<space>\s+)|(?P<mark>=>|->|\.\.\.|…|\.\.|[;|_])|(?P<number>[0-9]+)|(?P<name>[^\W\d_])"
)
_VARIABLE = r"\s*([^\W\d]\w*)\s*\.\."
_WORDS = r"[,*+^&<]|=(?!>)"


@lru_cache(maxsize=4096)
def parse_spec(text: str) -> Spec:
    """Parse a spec.

    The notation, spaces ignored:

        spec   := shape {";" shape} "=>" shape
        shape  := [row "|"] [row "->"] row
        row    := axes [rowvar axes]
        rowvar := "..." | ".." name ".."
        axis   := number | name | "_" | affine | part "^" part {"^" part}
        affine := [factor "*"] name ["=" | "<"] ["+" number] "+" [factor "*"] name
                | factor "*" name ["+" number]

    If there is any of `, * + ^ <` or a lone `=`, names are words and axes are separated by commas;
    otherwise each letter is an axis, and a run of digits is one number.

    Raises:
        SpecError: if the text does not follow the notation; it points at the place.
    """
    return _Parser(text).spec()


def _from_numpy(text: str) -> str:
    """Return the translation of a spec in the notation of `numpy.einsum`.

    ij,jk->ik  -->  in this notation: ij; jk => ik
    """
    operands, arrow, result = text.replace(" ", "").replace(";", ",").partition("->")
    letters = operands.replace(",", "").replace("...", "")
    if "=>" in text or not letters.isalpha():
        return ""
    if not arrow:  # in NumPy, the result then has every label that occurs once
        result = "".join(label for label in sorted(letters) if letters.count(label) == 1)
    wanted = " => ".join([operands.replace(",", "; "), result])
    return (
        f"in this notation: {wanted}\n"
        "(`;` separates operands, `=>` precedes the result, `->` follows input axes)"
    )


def spec_error(text: str, at: int, rule: str, fix: str = "") -> SpecError:
    """Return an error that points at a position of a spec."""
    return SpecError(rule, found=f"{text}\n{' ' * at}^", fix=fix)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token of a spec: `kind` is `name`, `number`, `rowvar` or `end`, or the mark itself."""

    kind: str
    text: str
    at: int


class _Parser:
    """A recursive-descent parser of one spec."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = re.search(_WORDS, text) is not None
        self._tokens = self._lex()
        self._position = 0

    def spec(self) -> Spec:
        """Parse the whole text."""
        operands = [self._shape()]
        while self._accept(";"):
            operands.append(self._shape())
        if self._next.kind != "=>":
            rule = "Expected `=>` and the axes of the result, or `;` and another"
            raise self._error(self._next.at, f"{rule} operand.", _from_numpy(self._text))
        self._take()
        result = self._shape()
        self._expect("end", "the end of the spec")
        spec = Spec(tuple(operands), result, self._text)
        self._check_names(spec)
        return spec

    def _lex(self) -> list[_Token]:
        tokens: list[_Token] = []
        pattern = re.compile(_WORD_TOKEN if self._words else _LETTER_TOKEN)
        at = 0
        while at < len(self._text):
            match = pattern.match(self._text, at)
            if match is None:
                raise self._bad_character(at)
            kind, text = match.lastgroup, match.group()
            end = match.end()
            if text == "..":
                variable = re.compile(_VARIABLE).match(self._text, end)
                if variable is None:
                    raise self._error(at, "A row variable is written `..name..`, or `...`.")
                tokens.append(_Token("rowvar", variable[1], at))
                end = variable.end()
            elif text in ("...", "…"):
                tokens.append(_Token("rowvar", "", at))
            elif kind != "space":
                tokens.append(_Token(text if kind == "mark" else str(kind), text, at))
            at = end
        tokens.append(_Token("end", "", len(self._text)))
        return tokens

    def _bad_character(self, at: int) -> SpecError:
        if self._text[at] == "&":
            return self._error(at, "`&` has no meaning in a spec; it is reserved.")
        return self._error(
            at,
            f"The character {self._text[at]!r} has no meaning in a spec.",
            "axes are named by letters, or by words between commas: `ij => ji`, `row, column =>`",
        )

    @property
    def _next(self) -> _Token:
        return self._tokens[self._position]

    def _take(self) -> _Token:
        token = self._next
        self._position += 1
        return token

    def _accept(self, kind: str) -> bool:
        if self._next.kind != kind:
            return False
        self._position += 1
        return True

    def _expect(self, kind: str, expected: str) -> _Token:
        if self._next.kind != kind:
            raise self._error(self._next.at, f"Expected {expected}.")
        return self._take()

    def _error(self, at: int, rule: str, fix: str = "") -> SpecError:
        return spec_error(self._text, at, rule, fix)

    def _shape(self) -> ShapeSpec:
        batch: RowSpec | None = None
        inputs: RowSpec | None = None
        row = self._row()
        if self._accept("|"):
            batch = _named(row, RowKind.BATCH)
            row = self._row()
        if self._accept("->"):
            inputs = _named(row, RowKind.INPUT)
            row = self._row()
        if self._next.kind in ("|", "->"):
            raise self._error(
                self._next.at,
                "A shape is written `batch|input->output`, each mark at most once, in this order.",
            )
        return ShapeSpec(batch, inputs, _named(row, RowKind.OUTPUT))

    def _row(self) -> RowSpec:
        leading = self._axes()
        if self._next.kind != "rowvar":
            return RowSpec(trailing=leading)
        variable = self._take().text
        self._accept(",")
        trailing = self._axes()
        if self._next.kind == "rowvar":
            raise self._error(self._next.at, "A row has at most one row variable.")
        return RowSpec(leading, variable, trailing)

    def _axes(self) -> tuple[AxisSpec, ...]:
        axes: list[AxisSpec] = []
        while self._next.kind in ("name", "number", "_"):
            axes.append(self._axis())
            if self._words and not self._accept(","):
                break
        if self._words and self._next.kind in ("name", "number", "_"):
            raise self._error(
                self._next.at,
                "Axes are separated by commas in a spec that has a comma or a formula anywhere.",
            )
        return tuple(axes)

    def _axis(self) -> AxisSpec:
        first = self._take()
        if first.kind == "_":
            return Anything(first.at)
        if self._next.kind == "^":
            return self._concat(first)
        if self._next.kind == "*":
            self._take()
            over = self._expect("name", "the name of an axis after `*`")
            return self._affine(_coefficient(first), over.text, first.at, scaled=True)
        if first.kind == "number":
            return Fixed(int(first.text), first.at)
        if self._next.kind in ("=", "<", "+"):
            return self._affine(1, first.text, first.at, scaled=False)
        return Label(first.text, first.at)

    def _concat(self, first: _Token) -> Concat:
        parts = [_coefficient(first)]
        while self._accept("^"):
            if self._next.kind not in ("name", "number"):
                raise self._error(self._next.at, "Expected a part of the axis after `^`.")
            parts.append(_coefficient(self._take()))
        return Concat(tuple(parts), first.at)

    def _affine(self, stride: Coefficient, over: str, at: int, *, scaled: bool) -> Affine:
        self._check_factor(stride, at)
        marker = self._take() if self._next.kind in ("=", "<") else None
        padded = None if marker is None else marker.kind == "="
        offset = 0
        kernel: WindowSpec | None = None
        while kernel is None and self._accept("+"):
            if self._next.kind not in ("number", "name"):
                raise self._error(self._next.at, "Expected a number or a name after `+`.")
            term = self._take()
            if self._accept("*"):
                self._check_factor(_coefficient(term), term.at)
                name = self._expect("name", "the name of an axis after `*`")
                kernel = WindowSpec(name.text, _coefficient(term), padded)
            elif term.kind == "name":
                kernel = WindowSpec(term.text, 1, padded)
            elif offset:
                raise self._error(term.at, "A strided axis has at most one offset.")
            else:
                offset = int(term.text)
        if marker is not None and kernel is None:
            raise self._error(
                marker.at,
                f"`{marker.kind}` belongs to a window: `+` and a kernel axis must follow.",
            )
        if kernel is None and not scaled:
            raise self._error(at, "An offset needs a coefficient.", fix=f"write 1*{over}+{offset}")
        return Affine(stride, over, offset, kernel, at)

    def _check_factor(self, factor: Coefficient, at: int) -> None:
        if factor == 0:
            raise self._error(at, "A coefficient must be positive.")

    def _check_names(self, spec: Spec) -> None:
        """Refuse a name of both an axis and a row variable."""
        variables = {row.variable for shape in spec.shapes for row in shape.rows}
        for axis in spec.axes:
            for name in axis_names(axis):
                if name in variables:
                    raise self._error(
                        axis.at, f"The name {name!r} is used for an axis and for a row variable."
                    )


def _named(row: RowSpec, kind: RowKind) -> RowSpec:
    """Return the row with `...` replaced by the variable of its kind."""
    if row.variable == "":
        return replace(row, variable=kind.value, ellipsis=True)
    return row


def _coefficient(token: _Token) -> Coefficient:
    return int(token.text) if token.kind == "number" else token.text
