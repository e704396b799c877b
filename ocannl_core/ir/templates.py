"""Values as templates: a canonical form as a key, and copies under other names.

    canonical_form    key of a value    equal for values that are equal up to names
    Template          copies of it      `bind` puts other names in the place of its own

*Names* are what is compared by identity: tensor nodes, index variables, and scalars by number. What
a compiler finds out about code is true of all code of the same form, so a pass that depends on
nothing else runs once for each form, and its result is bound to the names of the others. Both walks
are linear: a microsecond for each record. Values are records of plain data (`record_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.identity import ById, IdentityMap
from ocannl_core.ir.indexing import LoopVar, StaticExtent, StaticIndex, fresh_var
from ocannl_core.ir.loops.nodes import Local, Remark
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.ir.serialization.schema import record_of

Label = tuple[str, ...]
Key = tuple[object, ...]


class CanonicalForm(NamedTuple):
    """A canonical form."""

    key: Key
    """Equal for values that are equal up to names."""
    names: tuple[Any, ...]
    """The nodes and index variables of the value, in the order of first use."""
    scalars: tuple[int, ...]
    """The numbers of its scalars."""


_shares: ContextVar[bool] = ContextVar("_shares", default=True)


def shares_forms() -> bool:
    """Return True if code that is equal up to names is compiled once."""
    return _shares.get()


@contextmanager
def separate_forms() -> Iterator[None]:
    """Compile each piece of code by itself, for tests: results are the same."""
    with scoped(_shares, False):
        yield


_NAMES = frozenset({TensorNode, LoopVar, StaticIndex, StaticExtent})
_PLAIN, _TUPLE, _RECORD, _NAME, _FIELD, _BOOL, _SYMBOL, _INFO = range(8)
_LOCAL, _FLOAT, _REMARK, _SET, _MAP = range(8, 13)
"""The walks over values of a class: records of several fields and of one, ..."""
_Walk = tuple[int, Callable[[Any], Any]]


def _nothing(value: object) -> tuple[()]:
    return ()


_walks: dict[type, _Walk] = {
    **dict.fromkeys(_NAMES, (_NAME, _nothing)),
    **dict.fromkeys((int, str, type(None), DType), (_PLAIN, _nothing)),
    tuple: (_TUPLE, _nothing),
    float: (_FLOAT, _nothing),
    bool: (_BOOL, _nothing),
    frozenset: (_SET, _nothing),
    dict: (_MAP, _nothing),
    Local: (_LOCAL, _nothing),
    Remark: (_REMARK, attrgetter("text", "origin")),
    NodeInfo: (_INFO, attrgetter("dtype", "dims", "padding", "extents")),
}


def _walk_of(kind: Any) -> _Walk:
    """Return the walk over values of a class, and keep it."""
    found: _Walk
    if issubclass(kind, Enum):
        found = _SYMBOL, _nothing
    else:
        record = record_of(kind) if hasattr(kind, "__dataclass_fields__") else None
        if record is None:
            raise NotDataError(f"a {kind.__qualname__} holds more than data")
        fields = tuple(record.fields)
        found = (
            (_FIELD, attrgetter(*fields))
            if len(fields) == 1
            else (_RECORD, attrgetter(*fields) if fields else _nothing)
        )
    _walks[kind] = found
    return found


def canonical_form(
    value: object, facts: Mapping[Any, object], *, names_remarks: bool = False
) -> CanonicalForm:
    """Return the canonical form of a record or of a tuple of records.

    Args:
        facts: Part of the form: the formats and extents of nodes. The extents of static indices are
            part of it, too.
        names_remarks: True if remarks are names; they have or do not have an origin.

    Raises:
        NotDataError: if the value contains more than data.
    """
    # The tokens of a value in preorder. Tokens of different kinds differ, and each determines how
    # many values follow it, so that equal sequences are sequences of equal values.
    key: list[object] = []
    numbers: dict[object, tuple[int, None]] = {}  # of names and of scalars
    pending: list[Any] = [value]
    emit, known = key.append, _walks
    checked = 0
    while True:
        while pending:
            each = pending.pop()
            kind = each.__class__
            walk, inside = known.get(kind) or _walk_of(kind)
            if walk == _PLAIN:
                emit(each)
            elif walk == _TUPLE:
                emit((len(each),))
                pending += each
            elif walk == _RECORD:
                emit(kind)
                pending += inside(each)
            elif walk == _NAME:
                emit(numbers.get(each) or numbers.setdefault(each, (len(numbers), None)))
            elif walk == _FIELD:
                emit(kind)
                pending.append(inside(each))
            elif walk == _BOOL:
                emit((kind, each))
            elif walk == _SYMBOL:
                emit(kind)
                emit(each._name_)
            elif walk == _INFO:
                dtype, dims, padding, extents = inside(each)
                emit((dtype, dims, padding, len(extents)))
                pending += extents
            elif walk == _LOCAL:
                emit(kind)
                name = kind, each.id
                emit(numbers.get(name) or numbers.setdefault(name, (len(numbers), None)))
                pending += each.dtype, each.node
            elif walk == _FLOAT:
                emit((each.hex(),))
            elif walk == _REMARK and names_remarks:
                each = ById(each)
                emit(numbers.get(each) or numbers.setdefault(each, (len(numbers), None)))
            elif walk == _REMARK:
                emit(kind)
                pending += inside(each)
            elif walk == _SET:
                emit(kind)
                members = sorted(each, key=lambda one: _place(one, numbers))
                emit((len(members),))
                pending += members
            else:
                emit(kind)
                emit((len(each),))
                for item in each.items():
                    pending += item
        # the facts about names, which may mention further names
        found: tuple[Any, ...] = tuple(numbers)
        if len(found) == checked:
            break
        for name in found[checked:]:
            if name.__class__ in _NAMES:
                emit(name.__class__)
                if isinstance(name, StaticIndex):
                    pending.append(name.extent)
                elif not isinstance(name, LoopVar):
                    pending.append(facts.get(name))
            elif isinstance(name, ById):
                remark: Any = name.value
                emit(remark.origin is None)
        checked = len(found)
    scalars = tuple([name[1] for name in found if name.__class__ is tuple])
    if names_remarks:
        found = tuple([name.value if name.__class__ is ById else name for name in found])
    names = tuple([name for name in found if name.__class__ is not tuple])
    return CanonicalForm(tuple(key), names, scalars)


def _place(name: Any, numbers: Mapping[object, tuple[int, None]]) -> tuple[int, str]:
    """Return a key that sorts known names by number, then other members by their text."""
    number = numbers.get(name)
    return (len(numbers), repr(name)) if number is None else (number[0], "")


_Make = Callable[..., Any]
_Reference = tuple[int, int]
"""A group of registers, and the position in it."""
_REPLACED, _NUMBERS, _CONSTANT, _MADE = range(4)
"""Groups of registers: names, numbers of scalars, what all copies share, results of calls."""


class Template:
    """A value whose names can be replaced.

    Parts without names are shared by all copies. Names that are not replaced are new in each copy.
    The copies of parts that are shared inside of the value are shared, too.

    Args:
        value: Records of plain data.
        names: The names to replace.
        shares_loops: True for copies with the value's loop variables, where not replaced.
    """

    __slots__ = ("_calls", "_constants", "_ids", "_names", "_result")

    def __init__(
        self, value: object, names: Sequence[object], *, shares_loops: bool = False
    ) -> None:
        writer = _Writer(names, _NAMES - {LoopVar} if shares_loops else _NAMES)
        result = writer.write(value)
        groups = (names, writer.numbers, writer.constants)
        starts = [0, *accumulate(map(len, groups))]
        self._names = len(names)
        self._ids = tuple(writer.numbers)
        self._constants = tuple(writer.constants)
        self._result = starts[result[0]] + result[1]
        self._calls: list[tuple[_Make | None, Callable[[Any], Any] | None, int]] = []
        for make, arguments in writer.calls:
            places = [starts[group] + at for group, at in arguments]
            if len(places) == 1:
                self._calls.append((make, None, places[0]))
            else:
                self._calls.append((make, itemgetter(*places), 0))

    @property
    def scalars(self) -> int:
        """The number of scalars."""
        return len(self._ids)

    def bind(
        self,
        names: Sequence[object],
        labels: Callable[[Label], Label] | None = None,
        first_scalar: int | None = None,
    ) -> Any:
        """Return the value with other names.

        Args:
            names: In the place of the names of the template, one for each.
            labels: Returns the label of a new node in the place of the node of the template.
            first_scalar: The number of the first scalar, the others follow; None to keep them.
        """
        if len(names) != self._names:
            raise ValueError(f"{len(names)} names for a template of {self._names}")
        ids = (
            self._ids if first_scalar is None else range(first_scalar, first_scalar + self.scalars)
        )
        registers: list[Any] = [*names, *ids, *self._constants]
        done = registers.append
        for make, arguments, only in self._calls:
            if arguments is None:
                assert make is not None
                done(make(registers[only]))
            elif make is _tuple:
                done(arguments(registers))
            elif make is not None:
                done(make(*arguments(registers)))
            else:
                ordinal, label, gradient_of = arguments(registers)
                done(TensorNode(ordinal, labels(label) if labels else label, gradient_of))
        return registers[self._result]


def _tuple(only: object) -> tuple[object, ...]:
    return (only,)


def _frozenset(*members: object) -> frozenset[object]:
    return frozenset(members)


def _mapping(*items: object) -> dict[object, object]:
    return dict(zip(items[::2], items[1::2], strict=True))


class _Number:
    """The number of a scalar."""

    __slots__ = ()


class _Writer:
    """The calls that make a value, operands first."""

    def __init__(self, names: Sequence[object], renewed: Collection[type]) -> None:
        self.renewed = renewed
        """The classes of names that are new in each copy."""
        self.numbers: dict[int, _Number] = {}
        self.constants: list[object] = []
        self.calls: list[tuple[_Make | None, list[_Reference]]] = []
        self.written: IdentityMap[object, _Reference] = IdentityMap()
        for at, name in enumerate(names):
            self.written[name] = _REPLACED, at

    def write(self, value: object) -> _Reference:
        find = self.written.find
        pending = [value]
        while pending:
            each = pending[-1]
            if find(each) is not None:
                pending.pop()
                continue
            make, parts = self.parts(each)
            found = [(part, find(part)) for part in parts]
            missing = [part for part, reference in found if reference is None]
            if missing:
                pending += missing
                continue
            pending.pop()
            known = [reference for _, reference in found if reference is not None]
            self.written[each] = self.made(each, make, known)
        return self.written[value]

    def number(self, scalar: int) -> _Number:
        """Return the number of a scalar, always the same object."""
        if scalar not in self.numbers:
            self.numbers[scalar] = number = _Number()
            self.written[number] = _NUMBERS, len(self.numbers) - 1
        return self.numbers[scalar]

    def parts(self, value: Any) -> tuple[_Make | None, Sequence[object]]:
        """Return a function that makes a value, and its arguments; none for a constant."""
        kind = value.__class__
        walk, inside = _walks.get(kind) or _walk_of(kind)
        if walk in (_RECORD, _REMARK, _INFO):
            return kind, inside(value)
        if walk == _FIELD:
            return kind, (inside(value),)
        if walk == _TUPLE:
            return _tuple, value
        if walk == _LOCAL:
            return kind, (self.number(value.id), value.dtype, value.node)
        if walk == _SET:
            return _frozenset, tuple(value)
        if walk == _MAP:
            return _mapping, [each for item in value.items() for each in item]
        if kind is TensorNode:
            return None, (value.id, value.label, value.gradient_of)
        if kind not in self.renewed:
            return None, ()
        if kind is LoopVar:
            return fresh_var, (value.hint, value.size)
        return kind, (value.name, value.extent)

    def made(self, value: object, make: _Make | None, references: list[_Reference]) -> _Reference:
        is_shared = all(group == _CONSTANT for group, _ in references)
        if is_shared and value.__class__ not in self.renewed:
            self.constants.append(value)
            return _CONSTANT, len(self.constants) - 1
        self.calls.append((make, references))
        return _MADE, len(self.calls) - 1
