"""Encoding of values as bytes.

Columns are written class by class and field by field, so that the inner loops are built-in
functions of Python: a record of the loop language takes less than a microsecond.

    Add(left=Const(1.0), right=Const(2.0))    -->    kinds   Add Const Const
                                                     Add.left    1
                                                     Add.right   2
                                                     Const.value 1.0 2.0

Records are numbered in the order in which they are reached, a shared one once. Equal bytes mean
equal values. Equal values have equal bytes if they share the same parts, as the values of one
program in two processes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Values
from collections.abc import Set as Kinds
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Any, Protocol, assert_never

from ocannl_core.base.identity import IdentityNumbers
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.columns import ColumnWriter
from ocannl_core.ir.serialization.schema import (
    GRADIENT_OF,
    IDENTITY_FIELDS,
    Form,
    IdentityForm,
    MappingForm,
    Numbering,
    Record,
    RecordForm,
    ScalarForm,
    SequenceForm,
    SetForm,
    SymbolForm,
    TupleForm,
    UnionForm,
    record_of,
    text_of,
)


class NotDataError(TypeError):
    """A value contains more than the data that its annotations declare."""


def encode(
    value: object, form: Form | None, numbering: Numbering, *, by_number: bool = False
) -> bytes:
    """Return a value as bytes; add the identities that it mentions to a numbering.

    Args:
        form: Its form; None if it contains more than data.
        numbering: The numbers of identities.
        by_number: True to write only the numbers of identities, not their labels, and for records
            with ids of their own the result of their method `numbered`; such bytes cannot be
            decoded.

    Raises:
        NotDataError: if the value contains more than data.
    """
    if form is None:
        raise NotDataError(f"{type(value).__qualname__} holds more than data")
    return _Encoder(numbering, by_number).encode_all(value, form)


class _Encoder:
    """Encoder of one value: its records by class, and their columns so far."""

    def __init__(self, numbering: Numbering, by_number: bool) -> None:
        self.numbering = numbering
        self._by_number = by_number
        self._numbers: IdentityNumbers[Any] = IdentityNumbers()
        self._pending: dict[type, list[Any]] = {}
        self._classes: dict[type, _Class] = {}
        self._kinds: list[int] = []
        self._new = 0

    def encode_all(self, value: object, form: Form) -> bytes:
        """Return a value as bytes."""
        root = column(form, self)
        root.add([value])
        while self._pending:
            kind = next(iter(self._pending))
            self._classes[kind].add(self._pending.pop(kind))
        out = ColumnWriter()
        self._write_identities(out)
        if self._kinds:
            out.integers(self._kinds)
        root.write(out)
        for each in self._classes.values():
            each.write(out)
        header = {
            "form": text_of(form),
            "classes": [each.record.name for each in self._classes.values()],
            "records": len(self._kinds),
            "new": self._new,
        }
        return out.content(header)

    def numbers_of(self, records: Values[Any]) -> list[int]:
        """Return the numbers of records; the fields of new ones are added later."""
        pending = self._pending
        numbers, new = self._numbers.number(records)
        for record in new:
            kind = record.__class__
            self._kinds.append(self._code(kind))
            if kind in pending:
                pending[kind].append(record)
            else:
                pending[kind] = [record]
        return numbers

    def _code(self, kind: type) -> int:
        found = self._classes.get(kind)
        if found is None:
            record = record_of(kind)
            if record is None:
                raise NotDataError(f"a {kind.__qualname__} holds more than data")
            found = _Class(record, len(self._classes), self, self._by_number)
            self._classes[kind] = found
        return found.code

    def _write_identities(self, out: ColumnWriter) -> None:
        """Write the new identities, in the order of their numbers."""
        numbers = self.numbering.numbers
        if not self._by_number:
            _add_values_of_gradients(self.numbering)
        new = list(islice(numbers, self.numbering.known, None))
        self._new = len(new)
        if new:
            out.strings([type(each).__qualname__ for each in new])
        if self._by_number:
            return
        for kind, forms in IDENTITY_FIELDS.items():
            alike = [each for each in new if type(each) is kind]
            for name, form in forms.items():
                self._write_field(name, form, alike, out)
        nodes = [each for each in new if type(each) is TensorNode]
        self._write_field("gradient_of", GRADIENT_OF, nodes, out)

    def _write_field(
        self, name: str, form: Form, identities: Values[object], out: ColumnWriter
    ) -> None:
        if identities:
            values = column(form, self)
            values.add(list(map(attrgetter(name), identities)))
            values.write(out)


def _add_values_of_gradients(numbering: Numbering) -> None:
    """Number the nodes whose gradients are numbered."""
    things = list(islice(numbering.numbers, numbering.known, None))
    while things:
        found = [each.gradient_of for each in things if isinstance(each, TensorNode)]
        things = [each for each in found if each is not None and each not in numbering.numbers]
        for each in things:
            numbering.number(each)


class _Class:
    """The fields of all records of one class.

    Attributes:
        code: The position among the classes of the value.
    """

    def __init__(self, record: Record, code: int, encoder: _Encoder, by_number: bool) -> None:
        self.record = record
        self.code = code
        self._columns = [column(form, encoder) for form in record.fields.values()]
        self._getters = record.getters
        self._number = encoder.numbering.number
        self._is_numbered = by_number and hasattr(record.kind, "numbered")

    def add(self, records: Values[Any]) -> None:
        """Add the fields of records."""
        if self._is_numbered:
            rows = [each.numbered(self._number) for each in records]
            for values, each in zip(zip(*rows, strict=True), self._columns, strict=True):
                each.add(values)
        else:
            for get, each in zip(self._getters, self._columns, strict=True):
                each.add(list(map(get, records)))

    def write(self, out: ColumnWriter) -> None:
        """Write the columns, in the order of the fields."""
        for each in self._columns:
            each.write(out)


class Column(Protocol):
    """The values of one field, or of a part of it, in the order of their records."""

    def add(self, values: Values[Any]) -> None:
        """Add values.

        Raises:
            NotDataError: if they do not have the form of the column.
        """
        ...

    def write(self, out: ColumnWriter) -> None:
        """Write the added values; nothing if there are none."""
        ...


def column(form: Form, encoder: _Encoder) -> Column:
    """Return an empty column for values of a form."""
    match form:
        case ScalarForm(kind):
            return _ScalarColumn(kind)
        case SymbolForm(kind):
            return _SymbolColumn(kind)
        case IdentityForm(kinds):
            return _IdentityColumn(kinds, encoder.numbering)
        case RecordForm(kinds):
            return _RecordColumn(kinds, encoder)
        case SequenceForm(element):
            return _SequenceColumn(column(element, encoder))
        case TupleForm(elements):
            return _TupleColumn([column(each, encoder) for each in elements])
        case SetForm(element):
            order = _MappingOrder(encoder.numbering) if isinstance(element, IdentityForm) else None
            return _SetColumn(column(element, encoder), order)
        case MappingForm(key, value):
            return _MappingColumn(column(key, encoder), column(value, encoder))
        case UnionForm(forms, codes):
            return _UnionColumn(codes, [column(each, encoder) for each in forms])
        case _:
            assert_never(form)


def _check(values: Values[Any], kinds: Kinds[type]) -> None:
    found = set(map(type, values))
    if not found <= kinds:
        wrong = ", ".join(sorted(each.__qualname__ for each in found - kinds))
        right = ", ".join(sorted(each.__qualname__ for each in kinds))
        raise NotDataError(f"{wrong} in place of {right}")


class _ScalarColumn:
    """Column of numbers, strings or truth values; a column of Nones is not written."""

    def __init__(self, kind: type) -> None:
        self._kinds = frozenset({kind})
        self._values: list[Any] = []

    def add(self, values: Values[Any]) -> None:
        _check(values, self._kinds)
        self._values += values

    def write(self, out: ColumnWriter) -> None:
        if self._values:
            (kind,) = self._kinds
            if kind is float:
                out.floats(self._values)
            elif kind is str:
                out.strings(self._values)
            elif kind is not type(None):
                out.integers(self._values)


class _SymbolColumn:
    """Column of objects with unique names."""

    def __init__(self, kind: type) -> None:
        self._kinds = frozenset({kind})
        self._names: list[str] = []

    def add(self, values: Values[Any]) -> None:
        _check(values, self._kinds)
        self._names += map(attrgetter("name"), values)

    def write(self, out: ColumnWriter) -> None:
        if self._names:
            out.strings(self._names)


class _IdentityColumn:
    """Column of objects that are compared by identity, as numbers."""

    def __init__(self, kinds: frozenset[type], numbering: Numbering) -> None:
        self._kinds = kinds
        self._number = numbering.number
        self._numbers: list[int] = []

    def add(self, values: Values[Any]) -> None:
        _check(values, self._kinds)
        self._numbers += map(self._number, values)

    def write(self, out: ColumnWriter) -> None:
        if self._numbers:
            out.integers(self._numbers)


class _RecordColumn:
    """Column of records, as numbers."""

    def __init__(self, kinds: frozenset[type], encoder: _Encoder) -> None:
        self._kinds = kinds
        self._encoder = encoder
        self._numbers: list[int] = []

    def add(self, values: Values[Any]) -> None:
        _check(values, self._kinds)
        self._numbers += self._encoder.numbers_of(values)

    def write(self, out: ColumnWriter) -> None:
        if self._numbers:
            out.integers(self._numbers)


_TUPLE = frozenset({tuple})


class _SequenceColumn:
    """Column of tuples: their lengths, and all elements."""

    def __init__(self, elements: Column) -> None:
        self._lengths: list[int] = []
        self._elements = elements

    def add(self, values: Values[Any]) -> None:
        _check(values, _TUPLE)
        self._lengths += map(len, values)
        elements = list(chain.from_iterable(values))
        if elements:
            self._elements.add(elements)

    def write(self, out: ColumnWriter) -> None:
        if self._lengths:
            out.integers(self._lengths)
        self._elements.write(out)


class _TupleColumn:
    """Column of tuples of one length: their elements by position."""

    def __init__(self, columns: Values[Column]) -> None:
        self._columns = columns

    def add(self, values: Values[Any]) -> None:
        _check(values, _TUPLE)
        if set(map(len, values)) - {len(self._columns)}:
            raise NotDataError(f"a tuple has another length than {len(self._columns)}")
        for position, each in enumerate(self._columns):
            each.add(list(map(itemgetter(position), values)))

    def write(self, out: ColumnWriter) -> None:
        for each in self._columns:
            each.write(out)


class _SetColumn:
    """Column of sets, in an order that does not depend on addresses."""

    def __init__(self, elements: Column, order: _MappingOrder | None) -> None:
        self._elements = _SequenceColumn(elements)
        self._order = order

    def add(self, values: Values[Any]) -> None:
        _check(values, frozenset({frozenset}))
        self._elements.add([tuple(sorted(each, key=self._order)) for each in values])

    def write(self, out: ColumnWriter) -> None:
        self._elements.write(out)


class _MappingOrder:
    """Sort key of identities: numbered ones by number, then the others by label."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbers = numbering.numbers

    def __call__(self, thing: Any) -> tuple[int, str]:
        number = self._numbers.get(thing)
        return (number, "") if number is not None else (len(self._numbers), repr(thing))


class _MappingColumn:
    """Column of dictionaries: their lengths, all keys and all values."""

    def __init__(self, keys: Column, values: Column) -> None:
        self._keys = _SequenceColumn(keys)
        self._values = values

    def add(self, values: Values[Any]) -> None:
        _check(values, frozenset({dict}))
        self._keys.add(list(map(tuple, values)))
        found = list(chain.from_iterable(each.values() for each in values))
        if found:
            self._values.add(found)

    def write(self, out: ColumnWriter) -> None:
        self._keys.write(out)
        self._values.write(out)


class _UnionColumn:
    """Column of values of several forms: the form of each, and the values of each form."""

    def __init__(self, codes: Mapping[type, int], columns: Values[Column]) -> None:
        self._codes = codes
        self._columns = columns
        self._found: list[int] = []

    def add(self, values: Values[Any]) -> None:
        kinds = list(map(type, values))
        _check(values, self._codes.keys())
        found = list(map(self._codes.__getitem__, kinds))
        self._found += found
        for code in set(found):
            self._columns[code].add([v for v, c in zip(values, found, strict=True) if c == code])

    def write(self, out: ColumnWriter) -> None:
        if self._found:
            out.integers(self._found)
        for each in self._columns:
            each.write(out)
