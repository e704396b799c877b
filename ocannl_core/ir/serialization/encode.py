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

from collections import defaultdict
from itertools import islice
from operator import attrgetter
from typing import Any

from ocannl_core.base.identity import IdentityNumbers
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.columns import ColumnWriter
from ocannl_core.ir.serialization.forms import (
    Column,
    Encoding,
    Form,
    NotDataError,
    Numbering,
    Values,
)
from ocannl_core.ir.serialization.schema import GRADIENT_OF, IDENTITY_FIELDS, Record, record_of


def encode(value: object, form: Form | None, numbering: Numbering) -> bytes:
    """Return a value as bytes; add the identities that it mentions to a numbering.

    Args:
        form: Its form; None if it contains more than data.
        numbering: The numbers of identities.

    Raises:
        NotDataError: if the value contains more than data.
    """
    if form is None:
        raise NotDataError(f"{type(value).__qualname__} holds more than data")
    return _Encoder(numbering).encode_all(value, form)


class _Encoder:
    """Encoder of one value: its records by class, and their columns so far."""

    def __init__(self, numbering: Numbering) -> None:
        self._encoding = Encoding(numbering, self._numbers_of)
        self._numbers: IdentityNumbers[Any] = IdentityNumbers()
        self._pending: defaultdict[type, list[Any]] = defaultdict(list)
        self._codes: dict[type, int] = {}
        self._classes: dict[type, _Class] = {}
        self._kinds: list[int] = []
        self._new = 0

    def encode_all(self, value: object, form: Form) -> bytes:
        root = Column(form, self._encoding)
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
            "form": form.text,
            "classes": [each.record.name for each in self._classes.values()],
            "records": len(self._kinds),
            "new": self._new,
        }
        return out.content(header)

    def _numbers_of(self, records: Values) -> list[int]:
        """Return the numbers of records; the fields of new ones are added later."""
        numbers, new = self._numbers.number(records)
        kinds = list(map(type, new))
        for kind in dict.fromkeys(kinds):
            if kind not in self._classes:
                self._add_class(kind)
        self._kinds += map(self._codes.__getitem__, kinds)
        for kind, record in zip(kinds, new, strict=True):
            self._pending[kind].append(record)
        return numbers

    def _add_class(self, kind: type) -> None:
        record = record_of(kind)
        if record is None:
            raise NotDataError(f"a {kind.__qualname__} holds more than data")
        self._codes[kind] = len(self._codes)
        self._classes[kind] = _Class(record, self._encoding)

    def _write_identities(self, out: ColumnWriter) -> None:
        """Write the new identities, in the order of their numbers."""
        numbering = self._encoding.numbering
        _add_values_of_gradients(numbering)
        new = list(islice(numbering.numbers, numbering.known, None))
        self._new = len(new)
        if new:
            out.strings([type(each).__qualname__ for each in new])
        for kind, forms in (*IDENTITY_FIELDS.items(), (TensorNode, {"gradient_of": GRADIENT_OF})):
            alike = [each for each in new if type(each) is kind]
            for name, form in forms.items() if alike else ():
                values = Column(form, self._encoding)
                values.add(list(map(attrgetter(name), alike)))
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
    """The fields of all records of one class."""

    def __init__(self, record: Record, encoding: Encoding) -> None:
        self.record = record
        self._columns = [Column(form, encoding) for form in record.fields.values()]

    def add(self, records: Values) -> None:
        for get, each in zip(self.record.getters, self._columns, strict=True):
            each.add(list(map(get, records)))

    def write(self, out: ColumnWriter) -> None:
        """Write the columns, in the order of the fields."""
        for each in self._columns:
            each.write(out)
