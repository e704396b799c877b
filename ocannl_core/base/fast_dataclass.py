"""`dataclass` as in the standard library, with cheaper class creation.

The standard library compiles six functions for each class, one by one: with some three hundred
classes, that was half of the time from starting Python to a first result. Here the `__init__` of a
class with slots is made with the class, its `__eq__` and `__hash__` at their first call, from code
that is compiled once for all classes with the same pattern of fields, and the other methods are not
compiled at all. Values are stored through the slots, in half the time. `fields`,
`replace` and pickling work as usual; other classes are passed to the standard library.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from ocannl_core.base.deferred_annotations import annotations_of

_FILE = f"{__file__}, generated"
"""The file name of compiled functions, so that errors pass over their frames to the user's line."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def replace(value, /, **changes):
        """Return a value with some fields changed, as `dataclasses.replace` does, but twice as
        fast.
        """
        cls = value.__class__
        for name in _init_fields(cls):
            if name not in changes:
                changes[name] = getattr(value, name)
        return cls(**changes)

    def dataclass(*, frozen=False, slots=False, eq=True, repr=True, kw_only=False):
        """Return a decorator that creates dataclasses, as `dataclasses.dataclass` does."""

        def make(cls):
            if slots and not kw_only and _is_plain(cls):
                return _slotted_class(cls, frozen=frozen, eq=eq, shown=repr)
            return dataclasses.dataclass(
                frozen=frozen, slots=slots, eq=eq, repr=repr, kw_only=kw_only
            )(cls)

        return make


@cache
def _init_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the fields that are arguments of a class."""
    return tuple(each.name for each in dataclasses.fields(cls) if each.init)


class _Factory:
    """The default in signatures of fields with a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _is_plain(cls: type) -> bool:
    """Return True for a class without inherited fields, whose annotations are fields or
    constants.
    """
    types = annotations_of(cls).values()
    return all(
        isinstance(each, str) and not each.startswith(("InitVar", "KW_ONLY")) for each in types
    ) and not any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__)


def _slotted_class(cls: type, *, frozen: bool, eq: bool, shown: bool) -> type:
    """Return a class like `cls` with slots for its fields, and the methods of a dataclass."""
    fields = _fields_of(cls)
    content = {key: value for key, value in vars(cls).items() if key not in fields}
    for inherent in ("__dict__", "__weakref__"):
        content.pop(inherent, None)
    inherited = {slot for base in cls.__mro__[1:] for slot in getattr(base, "__slots__", ())}
    model = _model(frozen, eq, shown)
    content["__slots__"] = tuple(name for name in fields if name not in inherited)
    content["__match_args__"] = tuple(name for name, each in fields.items() if each.init)
    content["__dataclass_fields__"] = fields
    if content.get("__doc__") is None:
        given = [_parameter(each) for each in fields.values() if each.init]
        content["__doc__"] = f"{cls.__name__}({', '.join(given)})"
    content["__dataclass_params__"] = vars(model)["__dataclass_params__"]
    if shown:
        content.setdefault("__repr__", _repr_method([n for n, each in fields.items() if each.repr]))
    if frozen:
        content.setdefault("__getstate__", vars(model)["__getstate__"])
        content.setdefault("__setstate__", vars(model)["__setstate__"])
    made = type(cls)(cls.__name__, cls.__bases__, content)
    made.__qualname__ = cls.__qualname__
    if frozen and not {"__init__", "__post_init__", "__reduce__"} & content.keys():
        _add_reduction(made, fields)
    if "__init__" not in content:
        _add_initializer(made, fields, frozen)
    if frozen:
        _freeze(made, fields)
    if eq:
        _add_comparison(made, fields, frozen, content)
    return made


def _fields_of(cls: type) -> dict[str, Field[Any]]:
    found: dict[str, Field[Any]] = {}
    plain = next(iter(dataclasses.fields(_model(False, True, True))))
    for name, annotation in annotations_of(cls).items():
        if annotation.startswith("ClassVar"):
            continue
        default = vars(cls).get(name, MISSING)
        each: Field[Any] = (
            default if isinstance(default, Field) else dataclasses.field(default=default)
        )
        each.name, each.type, each.kw_only = name, annotation, False
        each._field_type = plain._field_type  # type: ignore[attr-defined]
        found[name] = each
    return found


@cache
def _model(frozen: bool, eq: bool, shown: bool) -> type[Any]:
    """Return a dataclass of the standard library, the source of all that does not depend on
    fields.
    """

    return dataclasses.make_dataclass(
        "Model", [("field", "None", None)], frozen=frozen, eq=eq, repr=shown, slots=True
    )


def _parameter(each: Field[Any]) -> str:
    """Return the text of an argument in the signature of a class."""
    text = f"{each.name}: {each.type!r}"
    if each.default_factory is not MISSING:
        return f"{text} = {_FACTORY!r}"
    return text if each.default is MISSING else f"{text} = {each.default!r}"


def _add_initializer(made: Any, fields: dict[str, Field[Any]], frozen: bool) -> None:
    given: dict[str, object] = {"FACTORY": _FACTORY}
    parameters, lines, defaults = ["self"], [], list[object]()
    for name, each in zip(_places(fields), fields.values(), strict=True):
        value = name
        if each.default is not MISSING:
            if each.init:
                parameters.append(f"{name}=None")
                defaults.append(each.default)
            else:
                value = f"default_{name}"
                given[value] = each.default
        elif each.default_factory is not MISSING:
            given[f"make_{name}"] = each.default_factory
            value = f"make_{name}()"
            if each.init:
                parameters.append(f"{name}=None")
                defaults.append(_FACTORY)
                value = f"{value} if {name} is FACTORY else {name}"
        elif each.init:
            parameters.append(name)
        else:
            continue
        if frozen:
            given[f"set_{name}"] = getattr(made, each.name).__set__
            lines.append(f"set_{name}(self, {value})")
        else:
            lines.append(f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    function = _make_method("__init__", parameters, lines, made, fields, given, defaults)
    function.__annotations__ = {n: each.type for n, each in fields.items() if each.init}
    function.__annotations__["return"] = None
    made.__init__ = function


def _places(fields: Collection[str]) -> list[str]:
    """Return the names of fields in the source of methods."""
    return [f"field{at}" for at in range(len(fields))]


def _make_method(
    name: str,
    parameters: Sequence[str],
    lines: Sequence[str],
    made: type,
    fields: Collection[str],
    given: Mapping[str, object] = MappingProxyType({}),
    defaults: Sequence[object] = (),
) -> Callable[..., Any]:
    """Return a method from source in which fields have the names of `_places`."""
    names = dict(zip(_places(fields), fields, strict=True))
    code = _compile(name, tuple(parameters), tuple(lines), tuple(given))
    code = code.replace(
        co_varnames=tuple([names.get(each, each) for each in code.co_varnames]),
        co_names=tuple([names.get(each, each) for each in code.co_names]),
    )
    cells = tuple([CellType(given[each]) for each in code.co_freevars])
    module = sys.modules.get(made.__module__)
    function = FunctionType(code, vars(module) if module else {}, name, tuple(defaults), cells)
    function.__qualname__ = f"{made.__qualname__}.{name}"
    return function


@cache
def _compile(
    name: str, parameters: tuple[str, ...], lines: tuple[str, ...], given: tuple[str, ...]
) -> CodeType:
    """Return the code of a method, one for all classes that differ in the names of fields."""
    body = "\n  ".join(lines or ["pass"])
    text = f"def make({', '.join(given)}):\n def {name}({', '.join(parameters)}):\n  {body}\n"
    found: dict[str, Any] = {}
    exec(compile(f"{text} return {name}", _FILE, "exec"), {}, found)
    code: CodeType = found["make"](*given).__code__
    return code


def _repr_method(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return __repr__


def _freeze(made: Any, fields: dict[str, Field[Any]]) -> None:
    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is made or name in fields:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is made or name in fields:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__, made.__delattr__ = __setattr__, __delattr__


def _add_reduction(made: Any, fields: dict[str, Field[Any]]) -> None:
    """Define `__reduce__` as a call of the class: the default builds lists of states in Python."""
    if not fields or not all(each.init for each in fields.values()):
        return
    values: Callable[[Any], Any] = attrgetter(*fields)
    is_one = len(fields) == 1

    def __reduce__(self: Any) -> tuple[type[Any], tuple[Any, ...]]:
        found = values(self)
        return self.__class__, (found,) if is_one else found

    made.__reduce__ = __reduce__


def _add_comparison(
    made: Any, fields: dict[str, Field[Any]], frozen: bool, content: dict[str, Any]
) -> None:
    """Add methods that replace themselves by compiled ones at their first call."""
    places = dict(zip(_places(fields), fields.values(), strict=True))
    compared = [name for name, each in places.items() if each.compare]
    hashed = [n for n, each in places.items() if (each.compare if each.hash is None else each.hash)]

    def key(of: str, names: Sequence[str]) -> str:
        return f"({''.join(f'{of}.{name},' for name in names)})"

    def __eq__(self: Any, other: object) -> Any:
        lines = [
            "if other.__class__ is self.__class__:",
            f" return {key('self', compared)} == {key('other', compared)}",
            "return NotImplemented",
        ]
        made.__eq__ = _make_method("__eq__", ["self", "other"], lines, made, fields)
        return made.__eq__(self, other)

    def __hash__(self: Any) -> int:
        lines = [f"return hash({key('self', hashed)})"]
        made.__hash__ = _make_method("__hash__", ["self"], lines, made, fields)
        value: int = made.__hash__(self)
        return value

    has_own_hash = content.get("__hash__") is not None
    if "__eq__" not in content:
        made.__eq__ = __eq__
    if not has_own_hash:
        made.__hash__ = __hash__ if frozen else None
