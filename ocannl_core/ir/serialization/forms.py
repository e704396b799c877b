"""Forms of encoded values: their classes, the columns that they are written in, and reading them.

annotation                     form
int, float, str, bool, None    ScalarForm
an Enum, DType                 SymbolForm, by name
TensorNode, LoopVar, ...       IdentityForm, by number
a record                       RecordForm, by reference
tuple[X, ...], frozenset[X]    SequenceForm
Mapping[K, V]                  SequenceForm, of pairs
tuple[X, Y]                    TupleForm
X | Y                          UnionForm
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from functools import cache
from itertools import accumulate, chain, repeat
from operator import attrgetter, itemgetter
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.serialization.columns import ColumnReader, ColumnWriter, DecodingError

Values = Sequence[Any]


class NotDataError(TypeError):
    """A value contains more than the data that its annotations declare."""


@dataclass(slots=True)
class Numbering:
    """Numbers of objects that are compared by identity, shared by the values that mention them:
    tensor nodes, loop variables, static indices.
    """

    numbers: dict[object, int] = field(default_factory=dict)
    """The objects in order."""
    known: int = 0
    """The number of objects that a reader has; it creates the others."""

    @classmethod
    def of(cls, things: Iterable[object]) -> Numbering:
        """Return the numbers of objects that a reader has."""
        numbers = {thing: number for number, thing in enumerate(things)}
        return cls(numbers, len(numbers))

    @property
    def things(self) -> tuple[Any, ...]:
        """The objects in order."""
        return tuple(self.numbers)

    def number(self, thing: object) -> int:
        """Return the number of an object, the next one if it is new."""
        return self.numbers.setdefault(thing, len(self.numbers))

    def numbers_of(self, things: Values) -> list[int]:
        """Return the numbers of objects."""
        for thing in dict.fromkeys(things):
            self.number(thing)
        return list(map(self.numbers.__getitem__, things))

    def close(self) -> None:
        """Mark all objects so far as known to a reader."""
        self.known = len(self.numbers)

    def order(self, thing: object) -> tuple[int, str]:
        """Return a key that sorts numbered objects by number, then the others by label."""
        number = self.numbers.get(thing)
        return (number, "") if number is not None else (len(self.numbers), repr(thing))


@dataclass(slots=True)
class Encoding:
    """The identities and records that encoded values mention, by number."""

    numbering: Numbering
    numbers_of: Callable[[Values], list[int]]


@dataclass(slots=True)
class Decoding:
    """The columns to read, and the identities and records that they mention by number."""

    reader: ColumnReader
    things: list[Any]
    records: list[Any] = field(default_factory=list)


class Form(ABC):
    """The form of some values."""

    def __init__(self, kinds: Iterable[type], text: str, *parts: Form) -> None:
        self.kinds = frozenset(kinds)
        self.text = text
        """A text that identifies the form."""
        self.parts = parts
        """The forms of their elements."""
        self.records: frozenset[type] = frozenset().union(*(each.records for each in parts))
        """The classes of the records among them and their elements."""

    @abstractmethod
    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        """Return the column of values; add their elements to the columns of the parts."""

    def write(self, column: Values, out: ColumnWriter) -> None:
        """Write the column."""
        out.integers(column)

    def values(self, decoding: Decoding, count: int) -> Values:
        """Return the next values."""
        return self.read(decoding, count) if count else []

    @abstractmethod
    def read(self, decoding: Decoding, count: int) -> Values:
        """Return the next values, at least one."""


class Column:
    """The values of one field, or of a part of it, in the order of their records."""

    def __init__(self, form: Form, encoding: Encoding) -> None:
        self._form = form
        self._encoding = encoding
        self._columns = [Column(each, encoding) for each in form.parts]
        self._values: list[Any] = []

    def add(self, values: Values) -> None:
        """Add values, at least one.

        Raises:
            NotDataError: if they do not have the form of the column.
        """
        found, kinds = set(map(type, values)), self._form.kinds
        if not found <= kinds:
            wrong, right = (sorted(each.__qualname__ for each in s) for s in (found - kinds, kinds))
            raise NotDataError(f"{', '.join(wrong)} in place of {', '.join(right)}")
        self._values += self._form.split(values, self._encoding, self._columns)

    def write(self, out: ColumnWriter) -> None:
        """Write the added values; nothing if there are none."""
        if self._values:
            self._form.write(self._values, out)
        for each in self._columns:
            each.write(out)


class ScalarForm(Form):
    """Numbers, strings, truth values or None, all of one class."""

    def __init__(self, kind: type) -> None:
        super().__init__({kind}, name_of(kind))
        self._kind = kind

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        return values

    def write(self, column: Values, out: ColumnWriter) -> None:
        if self._kind is float:
            out.floats(column)
        elif self._kind is str:
            out.strings(column)
        elif self._kind is not type(None):
            out.integers(column)

    def read(self, decoding: Decoding, count: int) -> Values:
        kind, reader = self._kind, decoding.reader
        if kind is str:
            return reader.strings(count)
        if kind is float:
            return reader.floats(count)
        if kind is bool:
            return list(map(bool, reader.positions(count, 2)))
        return list(repeat(None, count)) if kind is type(None) else reader.integers(count)


class SymbolForm(Form):
    """Objects of one class with unique names, such as the members of an enumeration."""

    def __init__(self, kind: type) -> None:
        super().__init__({kind}, name_of(kind))
        self._kind = kind
        self._name = attrgetter("_name_" if issubclass(kind, Enum) else "name")

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        return list(map(self._name, values))

    def write(self, column: Values, out: ColumnWriter) -> None:
        out.strings(column)

    def read(self, decoding: Decoding, count: int) -> Values:
        return list(map(_by_name(self._kind).__getitem__, decoding.reader.strings(count)))


@cache
def _by_name(kind: type) -> Mapping[str, Any]:
    """Return the objects of a class by their unique names."""
    every: Iterable[Any] = kind if issubclass(kind, Enum) else (*dtypes.ALL, *dtypes.PACKED)
    return {each.name: each for each in every}


class ReferenceForm(Form):
    """Objects of some classes, by number."""

    def __init__(self, kinds: Iterable[type]) -> None:
        super().__init__(kinds, f"<{' '.join(sorted(map(name_of, kinds)))}>")

    def _select(self, every: Values, decoding: Decoding, count: int) -> Values:
        """Select the next objects; check that all are of the classes."""
        positions = decoding.reader.positions(count, len(every))
        found = list(map(every.__getitem__, positions))
        wrong = set(map(type, found)) - self.kinds
        if wrong:
            raise DecodingError(f"{next(iter(wrong)).__qualname__} in place of another class")
        return found


class IdentityForm(ReferenceForm):
    """Objects that are compared by identity."""

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        return encoding.numbering.numbers_of(values)

    def read(self, decoding: Decoding, count: int) -> Values:
        return self._select(decoding.things, decoding, count)


class RecordForm(ReferenceForm):
    """Frozen dataclasses."""

    def __init__(self, kinds: Iterable[type]) -> None:
        super().__init__(kinds)
        self.records = self.kinds

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        return encoding.numbers_of(values)

    def read(self, decoding: Decoding, count: int) -> Values:
        return self._select(decoding.records, decoding, count)


class SequenceForm(Form):
    """Tuples of any length with elements of one form; sets, and dictionaries as tuples of pairs.

    The order of a set does not depend on addresses.
    """

    def __init__(self, element: Form, kind: type = tuple) -> None:
        super().__init__({kind}, f"{kind.__name__}({element.text} ...)", element)
        self._kind: Callable[[Values], Any] = kind
        self._has_numbers = isinstance(element, IdentityForm)

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        if self._kind is dict:
            values = [each.items() for each in values]
        elif self._kind is frozenset:
            key = encoding.numbering.order if self._has_numbers else None
            values = [sorted(each, key=key) for each in values]
        elements = list(chain.from_iterable(values))
        if elements:
            columns[0].add(elements)
        return list(map(len, values))

    def read(self, decoding: Decoding, count: int) -> Values:
        lengths = decoding.reader.integers(count)
        if min(lengths) < 0:
            raise DecodingError("a tuple has less than no elements")
        ends = list(accumulate(lengths))
        elements = tuple(self.parts[0].values(decoding, ends[-1]))
        starts = chain((0,), ends)
        found = [elements[start:end] for start, end in zip(starts, ends)]  # noqa: B905
        return found if self._kind is tuple else list(map(self._kind, found))


class TupleForm(Form):
    """Tuples of a fixed length: their elements by position."""

    def __init__(self, elements: Iterable[Form]) -> None:
        parts = tuple(elements)
        super().__init__({tuple}, f"({' '.join(each.text for each in parts)})", *parts)

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        if set(map(len, values)) - {len(columns)}:
            raise NotDataError(f"a tuple has another length than {len(columns)}")
        for position, each in enumerate(columns):
            each.add(list(map(itemgetter(position), values)))
        return ()

    def read(self, decoding: Decoding, count: int) -> Values:
        return list(zip(*(each.values(decoding, count) for each in self.parts), strict=True))


class UnionForm(Form):
    """Values of one of several forms, which their classes distinguish."""

    def __init__(self, *forms: Form) -> None:
        self._codes = {kind: code for code, form in enumerate(forms) for kind in form.kinds}
        super().__init__(self._codes, f"[{' '.join(each.text for each in forms)}]", *forms)

    def split(self, values: Values, encoding: Encoding, columns: Sequence[Column]) -> Values:
        found = list(map(self._codes.__getitem__, map(type, values)))
        for code in set(found):
            columns[code].add([v for v, c in zip(values, found, strict=True) if c == code])
        return found

    def read(self, decoding: Decoding, count: int) -> Values:
        codes = decoding.reader.positions(count, len(self.parts))
        each = [iter(form.values(decoding, codes.count(c))) for c, form in enumerate(self.parts)]
        return [next(each[code]) for code in codes]


def name_of(kind: type) -> str:
    """Return the name of a class in encoded values."""
    return f"{kind.__module__}.{kind.__qualname__}"
