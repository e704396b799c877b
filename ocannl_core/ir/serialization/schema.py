"""Forms of encoded values: the records, enumerations and containers that they may contain.

The classes of a value are the classes that the annotation of the whole value mentions, the classes
that the annotations of their fields mention, and so on. Encoding refuses other classes, and
decoding creates no others: the content of a file selects among these classes and imports none.

    annotation                     form
    int, float, str, bool, None    ScalarForm
    an Enum, DType                 SymbolForm, by name
    TensorNode, LoopVar, ...       IdentityForm, by number
    a record                       RecordForm, by reference
    tuple[X, ...]                  SequenceForm
    tuple[X, Y]                    TupleForm
    frozenset[X]                   SetForm
    Mapping[K, V]                  MappingForm
    X | Y                          UnionForm
"""

from __future__ import annotations

import builtins
import sys
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, assert_never

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.indexing import LoopVar, StaticExtent, StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers import dtypes


@dataclass(frozen=True, slots=True, eq=False)
class ScalarForm:
    """Numbers, strings, truth values or None.

    Attributes:
        kind: The one class of its values.
    """

    kind: type


@dataclass(frozen=True, slots=True, eq=False)
class SymbolForm:
    """Objects with unique names, such as the members of an enumeration.

    Attributes:
        kind: The one class of its values.
    """

    kind: type


@dataclass(frozen=True, slots=True, eq=False)
class IdentityForm:
    """Objects that are compared by identity."""

    kinds: frozenset[type]


@dataclass(frozen=True, slots=True, eq=False)
class RecordForm:
    """Frozen dataclasses."""

    kinds: frozenset[type]


@dataclass(frozen=True, slots=True, eq=False)
class SequenceForm:
    """Tuples of any length with elements of one form."""

    element: Form


@dataclass(frozen=True, slots=True, eq=False)
class TupleForm:
    """Tuples of a fixed length."""

    elements: tuple[Form, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SetForm:
    """Frozen sets of identities, of numbers or of strings."""

    element: IdentityForm | ScalarForm


@dataclass(frozen=True, slots=True, eq=False)
class MappingForm:
    """Dictionaries, in their order."""

    key: Form
    value: Form


@dataclass(frozen=True, slots=True, eq=False)
class UnionForm:
    """Values of one of several forms, which their classes distinguish.

    Attributes:
        codes: The position of the form of each class.
    """

    forms: tuple[Form, ...]
    codes: Mapping[type, int]


Form = (
    ScalarForm
    | SymbolForm
    | IdentityForm
    | RecordForm
    | SequenceForm
    | TupleForm
    | SetForm
    | MappingForm
    | UnionForm
)


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A class of records.

    Attributes:
        name: The name in encoded values.
        fields: The forms of its fields, by name.
        getters: Functions that read them.
        mentioned: The classes of the records that fields may hold.
    """

    kind: type
    name: str
    fields: Mapping[str, Form]
    getters: tuple[Callable[[Any], Any], ...]
    mentioned: frozenset[type]


def name_of(kind: type) -> str:
    """Return the name of a class in encoded values."""
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def record_of(kind: type) -> Record | None:
    """Return the record of a frozen dataclass; None if it contains more than data."""
    found: dict[str, Form] = {}
    if hasattr(kind, "__post_init__"):
        return None
    for each in fields(kind):
        form = form_of(_annotation(kind, each.name, each.type))
        if form is None or not each.init:
            return None
        found[each.name] = form
    mentioned = frozenset().union(*map(records_in, found.values()))
    return Record(kind, name_of(kind), found, tuple(map(attrgetter, found)), mentioned)


def records_in(form: Form) -> frozenset[type]:
    """Return the classes of the records that are values of a form, or elements of these."""
    match form:
        case ScalarForm() | SymbolForm() | IdentityForm() | SetForm():
            return frozenset()
        case RecordForm(kinds):
            return kinds
        case SequenceForm(element):
            return records_in(element)
        case MappingForm(key, value):
            return records_in(key) | records_in(value)
        case TupleForm(forms) | UnionForm(forms):
            return frozenset().union(*map(records_in, forms))
        case _:
            assert_never(form)


@lru_cache(maxsize=256)
def text_of(form: Form) -> str:
    """Return a text that identifies a form."""
    match form:
        case ScalarForm(kind) | SymbolForm(kind):
            return name_of(kind)
        case IdentityForm(kinds) | RecordForm(kinds):
            return f"<{' '.join(sorted(map(name_of, kinds)))}>"
        case SequenceForm(element):
            return f"({text_of(element)} ...)"
        case SetForm(element):
            return f"{{{text_of(element)}}}"
        case MappingForm(key, value):
            return f"{{{text_of(key)}: {text_of(value)}}}"
        case TupleForm(forms):
            return f"({' '.join(map(text_of, forms))})"
        case UnionForm(forms):
            return f"[{' '.join(map(text_of, forms))}]"
        case _:
            assert_never(form)


@cache
def by_name(kind: type) -> Mapping[str, Any]:
    """Return the objects of a class by their unique names."""
    if issubclass(kind, Enum):
        return {each.name: each for each in kind}
    return {each.name: each for each in (*dtypes.ALL, *dtypes.PACKED)}


@cache
def form_of(annotation: Any) -> Form | None:
    """Return the form of the values of an annotation; None if they contain more than data."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None:
        return _plain(annotation)
    forms = [form_of(each) for each in arguments if each is not Ellipsis]
    known = [form for form in forms if form is not None]
    if origin in (types.UnionType, typing.Union):
        return _unite(known)
    if len(known) < len(forms):
        return None
    if origin is tuple:
        return SequenceForm(known[0]) if Ellipsis in arguments else TupleForm(tuple(known))
    # other classes would be hashed before they are complete
    if origin is frozenset and isinstance(known[0], IdentityForm | ScalarForm):
        return SetForm(known[0])
    if origin in (Mapping, dict) and isinstance(known[0], IdentityForm | ScalarForm | SymbolForm):
        return MappingForm(known[0], known[1])
    return None


def form_like(value: Any) -> Form | None:
    """Return the form of values like this one: of its class, and tuples of the same length."""
    if not isinstance(value, tuple):
        kind: Any = type(value)
        return form_of(kind)
    forms = [form_like(each) for each in value]
    known = [form for form in forms if form is not None]
    return TupleForm(tuple(known)) if len(known) == len(forms) else None


def _plain(kind: Any) -> Form | None:
    if kind in _LEAVES:
        return _LEAVES[kind]
    if not isinstance(kind, type):
        return None
    if kind in IDENTITY_FIELDS:
        # an extent may stand wherever an index may
        return IdentityForm(frozenset({kind, StaticExtent} if kind is StaticIndex else {kind}))
    if kind is dtypes.DType or issubclass(kind, Enum):
        return SymbolForm(kind)
    return RecordForm(frozenset({kind})) if is_dataclass(kind) else None


def _unite(forms: Iterable[Form]) -> Form | None:
    """Return one form for several: merge records, and merge identities."""
    records: set[type] = set()
    identities: set[type] = set()
    others: dict[Form, None] = {}
    for form in forms:
        for each in form.forms if isinstance(form, UnionForm) else (form,):
            if isinstance(each, RecordForm):
                records |= each.kinds
            elif isinstance(each, IdentityForm):
                identities |= each.kinds
            else:
                others[each] = None
    found: list[Form] = [*others]
    if identities:
        found.append(IdentityForm(frozenset(identities)))
    if records:
        found.append(RecordForm(frozenset(records)))
    if not found:
        return None
    return found[0] if len(found) == 1 else _union(*found)


def _union(*forms: Form) -> UnionForm:
    codes = {kind: code for code, form in enumerate(forms) for kind in _classes_of(form)}
    return UnionForm(forms, codes)


def _classes_of(form: Form) -> frozenset[type]:
    """Return the classes of the values of a form."""
    match form:
        case ScalarForm(kind) | SymbolForm(kind):
            return frozenset({kind})
        case IdentityForm(kinds) | RecordForm(kinds):
            return kinds
        case SequenceForm() | TupleForm():
            return frozenset({tuple})
        case SetForm():
            return frozenset({frozenset})
        case MappingForm():
            return frozenset({dict})
        case UnionForm(forms):
            return frozenset().union(*map(_classes_of, forms))
        case _:
            assert_never(form)


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
    float: _union(ScalarForm(float), _INT),  # annotations of float accept int
    str: ScalarForm(str),
    bool: ScalarForm(bool),
    type(None): _NONE,
    None: _NONE,
}
IDENTITY_FIELDS: Mapping[type, Mapping[str, Form]] = {
    TensorNode: {"id": _INT, "label": SequenceForm(ScalarForm(str))},
    LoopVar: {"hint": ScalarForm(str)},
    StaticIndex: {"name": ScalarForm(str), "extent": _union(_NONE, _INT)},
    StaticExtent: {"name": ScalarForm(str), "extent": _union(_NONE, _INT)},
}
"""The forms of the fields of a new identity, other identities excepted."""

GRADIENT_OF: Form = _union(_NONE, IdentityForm(frozenset({TensorNode})))
"""The form of the field of a node that is an identity."""


Label = tuple[str, ...]


@dataclass(slots=True)
class Numbering:
    """Numbers of objects that are compared by identity, shared by the values that mention them:
    tensor nodes, loop variables, static indices.

    Attributes:
        numbers: The objects in order.
        known: The number of objects that a reader has; it creates the others.
    """

    numbers: dict[object, int] = field(default_factory=dict)
    known: int = 0

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

    def close(self) -> None:
        """Mark all objects so far as known to a reader."""
        self.known = len(self.numbers)
