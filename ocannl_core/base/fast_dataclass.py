"""`dataclass` as in the standard library, with cheaper class creation.

The standard library compiles six functions for each class, one by one: with some three hundred
classes, that was half of the time from starting Python to a first result. Here `__init__`, `__eq__`
and `__hash__` are made when they are first looked up, from code that is compiled once for all
classes with the same pattern of fields, whatever their names and defaults. The other methods are
not compiled at all. Values of frozen classes are stored through the slots, in half the time.
`fields`, `replace` and pickling work as usual; classes with `InitVar` or `KW_ONLY` are passed to
the standard library.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import CellType, CodeType, FunctionType, MappingProxyType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

from ocannl_core.base.deferred_annotations import annotations_of

_FILE = f"{__file__}, generated"
"""The file name of compiled functions, so that errors pass over their frames to the user's line."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def replace(value, /, **changes):
        """Return a value with other fields, as `dataclasses.replace`, but twice as fast."""
        cls = value.__class__
        for name in _init_fields(cls):
            if name not in changes:
                changes[name] = getattr(value, name)
        return cls(**changes)

    def dataclass(*, frozen=False, slots=False, eq=True, repr=True, kw_only=False):
        """Return a decorator that creates dataclasses, as `dataclasses.dataclass` does."""
        options = {"frozen": frozen, "slots": slots, "eq": eq, "repr": repr, "kw_only": kw_only}

        def make(cls):
            if _is_plain(cls):
                return _plain_class(cls, **options)
            return dataclasses.dataclass(**options)(cls)

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
    """Return True for a class whose annotations are fields or constants."""
    types = annotations_of(cls).values()
    return all(
        isinstance(each, str) and not each.startswith(("InitVar", "KW_ONLY")) for each in types
    )


def _plain_class(
    cls: type, *, frozen: bool, slots: bool, eq: bool, repr: bool, kw_only: bool
) -> type:
    """Return `cls`, or a class like it with slots, with the methods of a dataclass."""
    fields = _fields_of(cls, kw_only)
    model = _model(frozen, eq, repr)
    content: dict[str, Any] = {"__dataclass_params__": _params(frozen, eq, repr, slots, kw_only)}
    content["__dataclass_fields__"] = fields
    positional = [n for n, each in fields.items() if each.init and not each.kw_only]
    content["__match_args__"] = tuple(positional)
    own = vars(cls)
    if own.get("__doc__") is None:
        content["__doc__"] = _signature(cls, fields)
    if repr and "__repr__" not in own:
        content["__repr__"] = _repr_method([n for n, each in fields.items() if each.repr])
    if slots:
        made = _with_slots(cls, fields, content)
        if frozen:
            for name in ("__getstate__", "__setstate__"):
                if name not in own:
                    setattr(made, name, vars(model)[name])
            if not {"__init__", "__post_init__", "__reduce__"} & own.keys():
                _add_reduction(made, fields)
    else:
        made = cls
        described = [each for name, each in fields.items() if own.get(name) is each]
        for each in described:  # these are defaults of attributes
            delattr(made, each.name)
            if each.default is not MISSING:
                setattr(made, each.name, each.default)
        for name, value in content.items():
            setattr(made, name, value)
    if "__init__" not in own:
        make_initializer = partial(_initializer, made, fields, frozen, slots)
        made.__init__ = OnFirstUse(made, "__init__", make_initializer)  # type: ignore[misc]
    if frozen:
        _freeze(made, fields)
    if eq:
        _add_comparison(made, fields, frozen, own)
    return made


def _with_slots(cls: type, fields: dict[str, Field[Any]], content: dict[str, Any]) -> type:
    """Return a class like `cls`, and with `content`, that has slots for all fields."""
    left = {*fields, "__dict__", "__weakref__"}
    inherited = {slot for base in cls.__mro__[1:] for slot in getattr(base, "__slots__", ())}
    kept = {name: value for name, value in vars(cls).items() if name not in left}
    slots = tuple([name for name in fields if name not in inherited])
    made = type(cls)(cls.__name__, cls.__bases__, {**kept, **content, "__slots__": slots})
    made.__qualname__ = cls.__qualname__
    return made


def _fields_of(cls: type, kw_only: bool) -> dict[str, Field[Any]]:
    """Return the fields of a class, inherited ones first."""
    found: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        found.update(getattr(base, "__dataclass_fields__", {}))
    plain = next(iter(dataclasses.fields(_model(False, True, True))))
    for name, annotation in annotations_of(cls).items():
        if annotation.startswith("ClassVar"):
            continue
        default: Any = getattr(cls, name, MISSING)
        if isinstance(default, MemberDescriptorType):  # the slot of an inherited field
            default = MISSING
        each: Field[Any] = (
            default if isinstance(default, Field) else dataclasses.field(default=default)
        )
        each.name, each.type = name, annotation
        if each.kw_only is MISSING:
            each.kw_only = kw_only
        each._field_type = plain._field_type  # type: ignore[attr-defined]
        found[name] = each
    last = None
    for each in _arguments(found):
        if each.kw_only:
            break
        if each.default is not MISSING or each.default_factory is not MISSING:
            last = each.name
        elif last is not None:
            raise TypeError(f"non-default argument {each.name!r} follows default argument {last!r}")
    return found


def _arguments(fields: Mapping[str, Field[Any]]) -> list[Field[Any]]:
    """Return the fields in the order of the arguments of a class."""
    return sorted([each for each in fields.values() if each.init], key=_is_keyword)


_is_keyword: Callable[[Field[Any]], bool] = attrgetter("kw_only")
_is_compared: Callable[[Field[Any]], bool] = attrgetter("compare")


@cache
def _model(frozen: bool, eq: bool, shown: bool) -> type[Any]:
    """Return a dataclass of the standard library: the source of all that depends on no field."""

    return dataclasses.make_dataclass(
        "Model", [("field", "None", None)], frozen=frozen, eq=eq, repr=shown, slots=True
    )


@cache
def _params(frozen: bool, eq: bool, shown: bool, slots: bool, kw_only: bool) -> object:
    """Return the options of a dataclass, which state slots as of Python 3.12."""
    found = copy(_model(frozen, eq, shown).__dataclass_params__)
    for name, value in (("slots", slots), ("kw_only", kw_only)):
        if hasattr(found, name):
            setattr(found, name, value)
    return found


def _signature(cls: type, fields: Mapping[str, Field[Any]]) -> str:
    """Return a class as it is called, its documentation if there is no other."""
    given = _arguments(fields)
    texts = [_parameter(each) for each in given]
    if any(each.kw_only for each in given):
        texts.insert(sum(not each.kw_only for each in given), "*")
    return f"{cls.__name__}({', '.join(texts)})"


def _parameter(each: Field[Any]) -> str:
    """Return the text of an argument in the signature of a class."""
    text = f"{each.name}: {each.type!r}"
    if each.default_factory is not MISSING:
        return f"{text} = {_FACTORY!r}"
    return text if each.default is MISSING else f"{text} = {each.default!r}"


class OnFirstUse:
    """A method that is made when it is first looked up, and then takes this place in its class."""

    __slots__ = ("_made", "_make", "_name")

    def __init__(self, made: type, name: str, make: Callable[[], Any]) -> None:
        self._made, self._name, self._make = made, name, make

    def wrap(self, wrapper: Callable[[Any], Any]) -> None:
        """Apply a function to the method when it is made."""
        make = self._make
        self._make = lambda: wrapper(make())

    def __get__(self, value: object, cls: type) -> Any:
        method = self._make()
        setattr(self._made, self._name, method)
        return method.__get__(value, cls)


def _initializer(
    made: type, fields: dict[str, Field[Any]], frozen: bool, slots: bool
) -> Callable[..., Any]:
    given: dict[str, object] = {"FACTORY": _FACTORY, "store": object.__setattr__}
    places = dict(zip(fields, _places(fields), strict=True))
    parameters = ["self"]
    defaults: dict[bool, dict[str, object]] = {False: {}, True: {}}
    for each in _arguments(fields):
        if each.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(places[each.name])
        if each.default is not MISSING:
            defaults[bool(each.kw_only)][each.name] = each.default
        elif each.default_factory is not MISSING:
            defaults[bool(each.kw_only)][each.name] = _FACTORY
    lines = list[str]()
    for name, each in fields.items():
        place = value = places[name]
        if each.default_factory is not MISSING:
            given[f"make_{place}"] = each.default_factory
            value = f"make_{place}()"
            if each.init:
                value = f"{value} if {place} is FACTORY else {place}"
        elif not each.init:
            if each.default is MISSING or not slots:  # then it is an attribute of the class
                continue
            given[f"default_{place}"] = each.default
            value = f"default_{place}"
        if not frozen:
            lines.append(f"self.{place} = {value}")
        elif slots:
            given[f"set_{place}"] = getattr(made, name).__set__
            lines.append(f"set_{place}(self, {value})")
        else:
            given[f"name_{place}"] = name
            lines.append(f"store(self, name_{place}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    function = _make_method("__init__", parameters, lines, made, fields, given)
    function.__defaults__ = tuple(defaults[False].values())
    function.__kwdefaults__ = defaults[True]
    function.__annotations__ = {each.name: each.type for each in _arguments(fields)}
    function.__annotations__["return"] = None
    return function


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
) -> FunctionType:
    """Return a method from source in which fields have the names of `_places`."""
    names = dict(zip(_places(fields), fields, strict=True))
    code = _compile(name, tuple(parameters), tuple(lines), tuple(given))
    code = code.replace(
        co_varnames=tuple([names.get(each, each) for each in code.co_varnames]),
        co_names=tuple([names.get(each, each) for each in code.co_names]),
    )
    cells = tuple([CellType(given[each]) for each in code.co_freevars])
    module = sys.modules.get(made.__module__)
    function = FunctionType(code, vars(module) if module else {}, name, closure=cells)
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
    if not fields or not all(each.init and not each.kw_only for each in fields.values()):
        return
    values: Callable[[Any], Any] = attrgetter(*fields)
    is_one = len(fields) == 1

    def __reduce__(self: Any) -> tuple[type[Any], tuple[Any, ...]]:
        found = values(self)
        return self.__class__, (found,) if is_one else found

    made.__reduce__ = __reduce__


def _add_comparison(
    made: Any, fields: dict[str, Field[Any]], frozen: bool, own: Mapping[str, Any]
) -> None:
    def is_hashed(each: Field[Any]) -> bool:
        return each.compare if each.hash is None else each.hash

    def key(of: str, is_used: Callable[[Field[Any]], bool]) -> str:
        places = zip(_places(fields), fields.values(), strict=True)
        return f"({''.join(f'{of}.{place},' for place, each in places if is_used(each))})"

    def equality() -> FunctionType:
        lines = [
            "if other.__class__ is self.__class__:",
            f" return {key('self', _is_compared)} == {key('other', _is_compared)}",
            "return NotImplemented",
        ]
        return _make_method("__eq__", ["self", "other"], lines, made, fields)

    def hashing() -> FunctionType:
        lines = [f"return hash({key('self', is_hashed)})"]
        return _make_method("__hash__", ["self"], lines, made, fields)

    if "__eq__" not in own:
        made.__eq__ = OnFirstUse(made, "__eq__", equality)
    if own.get("__hash__") is None:
        made.__hash__ = OnFirstUse(made, "__hash__", hashing) if frozen else None
