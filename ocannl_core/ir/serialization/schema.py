"""Forms of encoded values: the records, enumerations and containers that they may contain.

The classes of a value are the classes that the annotation of the whole value mentions, the classes
that the annotations of their fields mention, and so on. Encoding refuses other classes, and
decoding creates no others: the content of a file selects among these classes and imports none.
"""

from __future__ import annotations

import builtins
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import LoopVar, StaticExtent, StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.serialization.forms import (
    Form,
    IdentityForm,
    RecordForm,
    ReferenceForm,
    ScalarForm,
    SequenceForm,
    SymbolForm,
    TupleForm,
    UnionForm,
    name_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A class of records."""

    kind: type
    name: str
    """The name in encoded values."""
    fields: Mapping[str, Form]
    """The forms of its fields, by name."""
    getters: tuple[Callable[[Any], Any], ...]
    """Functions that read them."""
    mentioned: frozenset[type]
    """The classes of the records that fields may hold."""


@cache
def record_of(kind: type) -> Record | None:
    """Return the record of a frozen dataclass; None if it contains more than data."""
    found = _field_forms(kind)
    if isinstance(found, str):
        return None
    mentioned = frozenset().union(*(each.records for each in found.values()))
    return Record(kind, name_of(kind), found, tuple(map(attrgetter, found)), mentioned)


def violation_of_data(kind: type, seen: frozenset[type] = frozenset()) -> str:
    """Return why a class, or one that it holds, contains more than data, as a clause; an empty text
    if it does not. Classes of the core are data, but for calls of operations in Python.
    """
    found = _field_forms(kind)
    if isinstance(found, str):
        return found
    for form in found.values():
        for inner in sorted(form.records - seen - {kind}, key=name_of):
            is_core = inner.__module__.startswith("ocannl_core.")
            if not is_core and (violation := violation_of_data(inner, seen | {kind})):
                return violation
    return ""


def _field_forms(kind: type) -> dict[str, Form] | str:
    """Return the forms of the fields of a dataclass by name, or why it contains more than data."""
    if not is_dataclass(kind):
        return f"{kind.__qualname__} is no dataclass"
    if hasattr(kind, "__post_init__"):
        return f"{kind.__qualname__} has a __post_init__"
    found: dict[str, Form] = {}
    for each in fields(kind):
        form = form_of(_annotation(kind, each.name, each.type))
        if form is None or not each.init:
            return f"the field {each.name} of {kind.__qualname__} holds more than data"
        found[each.name] = form
    return found


@cache
def form_of(annotation: Any) -> Form | None:
    """Return the form of the values of an annotation; None if they contain more than data."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, typing.TypeVar):
        bound = annotation.__bound__
        if isinstance(bound, typing.ForwardRef):
            bound = _evaluate(bound.__forward_arg__, annotation.__module__)
        return None if bound is None else form_of(bound)
    if origin is None or is_dataclass(origin):
        return _plain(origin or annotation)
    forms = [form_of(each) for each in arguments if each is not Ellipsis]
    known = [form for form in forms if form is not None]
    if origin in (types.UnionType, typing.Union):
        return _unite(known)
    if len(known) < len(forms):
        return None
    if origin is tuple:
        return SequenceForm(known[0]) if Ellipsis in arguments else TupleForm(known)
    # other classes would be hashed before they are complete
    if origin is frozenset and isinstance(known[0], IdentityForm | ScalarForm):
        return SequenceForm(known[0], frozenset)
    if origin in (Mapping, dict) and isinstance(known[0], IdentityForm | ScalarForm | SymbolForm):
        return SequenceForm(TupleForm(known), dict)
    return None


def _plain(kind: Any) -> Form | None:
    if kind in _LEAVES:
        return _LEAVES[kind]
    if not isinstance(kind, type):
        return None
    if kind in IDENTITY_FIELDS:
        # an extent may stand wherever an index may
        return IdentityForm({kind, StaticExtent} if kind is StaticIndex else {kind})
    if kind is DType or issubclass(kind, Enum):
        return SymbolForm(kind)
    return RecordForm({kind}) if is_dataclass(kind) else None


def _unite(forms: Iterable[Form]) -> Form | None:
    """Return one form for several: merge records, and merge identities."""
    every = [e for form in forms for e in (form.parts if isinstance(form, UnionForm) else (form,))]
    found = [*dict.fromkeys(form for form in every if not isinstance(form, ReferenceForm))]
    for merged in (IdentityForm, RecordForm):
        kinds = {kind for form in every if isinstance(form, merged) for kind in form.kinds}
        found += [merged(kinds)] if kinds else []
    return found[0] if len(found) == 1 else UnionForm(*found) if found else None


def _annotation(kind: type, field: str, stated: object) -> Any:
    """Return the type that a field is annotated with; `object` if its names are not defined."""
    try:
        if isinstance(stated, str):
            return _evaluate(stated, kind.__module__)
        if isinstance(stated, type):  # in a module without `from __future__ import annotations`
            return stated
        found = typing.get_type_hints(kind)[field]  # parts of which may be quoted
        return found if isinstance(found, Hashable) else object
    except (NameError, AttributeError, SyntaxError, TypeError):  # such as imports for type checkers
        return object


@cache
def _evaluate(annotation: str, module: str) -> Any:
    """Return the value of an annotation in the source code of a module."""
    names = vars(sys.modules[module])
    if annotation.isidentifier():
        return names[annotation] if annotation in names else getattr(builtins, annotation)
    return eval(annotation, names)  # as `typing.get_type_hints` does, once per text


_INT, _NONE = ScalarForm(int), ScalarForm(type(None))
_LEAVES: dict[Any, Form] = {
    int: _INT,
    float: UnionForm(ScalarForm(float), _INT),  # annotations of float accept int
    str: ScalarForm(str),
    bool: ScalarForm(bool),
    type(None): _NONE,
    None: _NONE,
}
IDENTITY_FIELDS: Mapping[type, Mapping[str, Form]] = {
    TensorNode: {"id": _INT, "label": SequenceForm(ScalarForm(str))},
    LoopVar: {"hint": ScalarForm(str)},
    StaticIndex: {"name": ScalarForm(str), "extent": UnionForm(_NONE, _INT)},
    StaticExtent: {"name": ScalarForm(str), "extent": UnionForm(_NONE, _INT)},
}
"""The forms of the fields of a new identity, other identities excepted."""

GRADIENT_OF: Form = UnionForm(_NONE, IdentityForm({TensorNode}))
"""The form of the field of a node that is an identity."""


Label = tuple[str, ...]
