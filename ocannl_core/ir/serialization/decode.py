"""Decoding of values from bytes.

All records of a class are created at once, then their fields are set, column by column. Every field
is checked against its annotation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization import schema
from ocannl_core.ir.serialization.columns import ColumnReader, DecodingError
from ocannl_core.ir.serialization.forms import Decoding, Form, Values, name_of

Labels = Callable[[schema.Label], schema.Label]


def decode(content: bytes, form: Form | None, things: Values, labels: Labels | None = None) -> Any:
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
        decoding = Decoding(ColumnReader(content), list(things))
        return _decode(decoding, form, labels)
    except DecodingError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise DecodingError(f"{type(error).__name__}: {error}") from error


def _decode(decoding: Decoding, form: Form, labels: Labels | None) -> Any:
    reader = decoding.reader
    if reader.header["form"] != form.text:
        raise DecodingError("it is a value of another form")
    _make_identities(decoding, _natural(reader.header["new"]), labels)
    count = _natural(reader.header["records"])
    classes = list(_records(reader.header["classes"], form))
    kinds = reader.positions(count, len(classes)) if count else []
    decoding.records = list(map(object.__new__, map([e.kind for e in classes].__getitem__, kinds)))
    members: list[list[Any]] = [[] for _ in classes]
    for code, record in zip(kinds, decoding.records, strict=True):
        members[code].append(record)
    (value,) = form.values(decoding, 1)
    for each, records in zip(classes, members, strict=True):
        for name, held in each.fields.items():
            _set_all(each.kind, name, records, held.values(decoding, len(records)))
    reader.close()
    return value


def _make_identities(decoding: Decoding, count: int, labels: Labels | None) -> None:
    """Create the identities that the reader does not have."""
    names = decoding.reader.strings(count) if count else []
    made: dict[str, list[Any]] = {}
    for kind, forms in schema.IDENTITY_FIELDS.items():
        alike = names.count(kind.__qualname__)
        fields = [form.values(decoding, alike) for form in forms.values()]
        made[kind.__qualname__] = list(map(_maker(kind, labels), *fields))
    each = {name: iter(alike) for name, alike in made.items()}
    decoding.things += [next(each[name]) for name in names]
    nodes = made[TensorNode.__qualname__]
    _set_all(TensorNode, "gradient_of", nodes, schema.GRADIENT_OF.values(decoding, len(nodes)))


def _maker(kind: type, labels: Labels | None) -> Callable[..., object]:
    if kind is LoopVar:
        return fresh_var
    if kind is TensorNode and labels is not None:
        return lambda ordinal, label: TensorNode(ordinal, labels(label))
    return kind


def _records(names: Sequence[str], form: Form) -> Iterator[schema.Record]:
    """Yield the classes of these names, each of which the form or earlier ones mention."""
    permitted = {name_of(kind): kind for kind in form.records}
    for name in names:
        kind = permitted.get(name)
        record = None if kind is None else schema.record_of(kind)
        if record is None:
            raise DecodingError(f"{name} is no class of such a value")
        permitted |= {name_of(kind): kind for kind in record.mentioned}
        yield record


def _set_all(kind: type, name: str, records: Values, values: Values) -> None:
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
