"""Decoding of values from bytes.

All records of a class are created at once, then their fields are set, column by column. Every field
is checked against its annotation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Values
from itertools import accumulate, chain, repeat
from typing import Any, assert_never

from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.columns import ColumnReader, DecodingError
from ocannl_core.ir.serialization.schema import (
    GRADIENT_OF,
    IDENTITY_FIELDS,
    Form,
    IdentityForm,
    Label,
    MappingForm,
    Record,
    RecordForm,
    ScalarForm,
    SequenceForm,
    SetForm,
    SymbolForm,
    TupleForm,
    UnionForm,
    by_name,
    name_of,
    record_of,
    records_in,
    text_of,
)

Labels = Callable[[Label], Label]


def decode(
    content: bytes, form: Form | None, things: Values[object], labels: Labels | None = None
) -> Any:
    """Return the value that was encoded.

    Args:
        form: The form of the value; None if it contains more than data.
        things: The known identities, by number.
        labels: A function from the written label of a new node to its label.

    Raises:
        DecodingError: if the bytes encode no such value.
    """
    if form is None:
        raise DecodingError("the value holds more than data")
    try:
        reader = ColumnReader(content)
        return _Decoder(reader, things, labels).decode_all(form)
    except DecodingError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise DecodingError(f"{type(error).__name__}: {error}") from error


class _Decoder:
    """Decoder of one value and its records."""

    def __init__(self, reader: ColumnReader, things: Values[object], labels: Labels | None) -> None:
        self._reader = reader
        self._things = list(things)
        self._labels = labels
        self._records: list[Any] = []

    def decode_all(self, form: Form) -> Any:
        """Return the value."""
        reader = self._reader
        if reader.header["form"] != text_of(form):
            raise DecodingError("it is a value of another form")
        self._make_identities(_natural(reader.header["new"]))
        count = _natural(reader.header["records"])
        classes = list(_records(reader.header["classes"], form))
        kinds = reader.positions(count, len(classes)) if count else []
        self._records = list(map(object.__new__, map([e.kind for e in classes].__getitem__, kinds)))
        members: list[list[Any]] = [[] for _ in classes]
        for code, record in zip(kinds, self._records, strict=True):
            members[code].append(record)
        (value,) = self._values(form, 1)
        for each, records in zip(classes, members, strict=True):
            for name, held in each.fields.items():
                _set_all(each.kind, name, records, self._values(held, len(records)))
        reader.close()
        return value

    def _make_identities(self, count: int) -> None:
        """Create the identities that the reader does not have."""
        names = self._reader.strings(count) if count else []
        made: dict[str, list[Any]] = {}
        for kind, forms in IDENTITY_FIELDS.items():
            alike = names.count(kind.__qualname__)
            fields = [self._values(form, alike) for form in forms.values()]
            made[kind.__qualname__] = list(map(self._maker(kind), *fields))
        each = {name: iter(alike) for name, alike in made.items()}
        self._things += [next(each[name]) for name in names]
        nodes = made[TensorNode.__qualname__]
        _set_all(TensorNode, "gradient_of", nodes, self._values(GRADIENT_OF, len(nodes)))

    def _maker(self, kind: type) -> Callable[..., object]:
        if kind is LoopVar:
            return fresh_var
        rename = self._labels
        if kind is TensorNode and rename is not None:
            return lambda ordinal, label: TensorNode(ordinal, rename(label))
        return kind

    def _values(self, form: Form, count: int) -> Values[Any]:
        """Return the next values of a form."""
        if not count:
            return []
        reader = self._reader
        match form:
            case ScalarForm(kind):
                return self._leaves(kind, count)
            case SymbolForm(kind):
                return list(map(by_name(kind).__getitem__, reader.strings(count)))
            case IdentityForm(kinds):
                return _of(kinds, self._things, reader.positions(count, len(self._things)))
            case RecordForm(kinds):
                return _of(kinds, self._records, reader.positions(count, len(self._records)))
            case SequenceForm(element):
                return self._sequences(element, count)
            case TupleForm(elements):
                return list(zip(*(self._values(each, count) for each in elements), strict=True))
            case SetForm(element):
                return list(map(frozenset, self._sequences(element, count)))
            case MappingForm(key, value):
                keys = self._sequences(key, count)
                values = iter(self._values(value, sum(map(len, keys))))
                return [dict(zip(each, values)) for each in keys]  # noqa: B905
            case UnionForm(forms):
                codes = reader.positions(count, len(forms))
                each = [iter(self._values(f, codes.count(c))) for c, f in enumerate(forms)]
                return [next(each[code]) for code in codes]
            case _:
                assert_never(form)

    def _leaves(self, kind: type, count: int) -> Values[Any]:
        if kind is str:
            return self._reader.strings(count)
        if kind is float:
            return self._reader.floats(count)
        if kind is bool:
            return list(map(bool, self._reader.positions(count, 2)))
        return list(repeat(None, count)) if kind is type(None) else self._reader.integers(count)

    def _sequences(self, element: Form, count: int) -> Values[tuple[Any, ...]]:
        lengths = self._reader.integers(count)
        if min(lengths) < 0:
            raise DecodingError("a tuple has less than no elements")
        ends = list(accumulate(lengths))
        elements = tuple(self._values(element, ends[-1]))
        starts = chain((0,), ends)
        return [elements[start:end] for start, end in zip(starts, ends)]  # noqa: B905


def _records(names: Values[str], form: Form) -> Iterator[Record]:
    """Yield the classes of these names, each of which the form or earlier ones mention."""
    permitted = {name_of(kind): kind for kind in records_in(form)}
    for name in names:
        kind = permitted.get(name)
        record = None if kind is None else record_of(kind)
        if record is None:
            raise DecodingError(f"{name} is no class of such a value")
        permitted |= {name_of(kind): kind for kind in record.mentioned}
        yield record


def _of(kinds: frozenset[type], every: Values[Any], positions: Values[int]) -> list[Any]:
    """Select objects by position; check that all are of certain classes."""
    found = list(map(every.__getitem__, positions))
    wrong = set(map(type, found)) - kinds
    if wrong:
        raise DecodingError(f"{next(iter(wrong)).__qualname__} in place of another class")
    return found


def _set_all(kind: type, name: str, records: Values[Any], values: Values[Any]) -> None:
    """Set a field of frozen records, one value each."""
    slot: Any = getattr(kind, name, None)
    if hasattr(slot, "__set__"):
        deque(map(slot.__set__, records, values), maxlen=0)
    else:
        deque(map(object.__setattr__, records, repeat(name), values), maxlen=0)


def _natural(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise DecodingError(f"{value!r} is no count")
    return value
