"""Classes of `fast_dataclass.dataclass` behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest

from ocannl_core.base import fast_dataclass, origin

Decorator = Callable[..., Callable[[type], Any]]


def frozen(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True)
    class Frozen:
        """One of everything."""

        first: int
        second: tuple[object, ...] = ()
        ignored: str = field(default="x", compare=False)
        hidden: str = field(default="y", repr=False)
        unhashed: dict[str, int] = field(default_factory=dict, hash=False)
        made: list[int] = field(init=False, default_factory=list, compare=False)
        constant: ClassVar[int] = 7

        @property
        def double(self) -> int:
            return 2 * self.first

    return Frozen


def mutable(decorator: Decorator) -> Any:
    @decorator(slots=True)
    class Mutable:
        """Mutable values."""

        first: int
        others: list[object] = field(default_factory=list)
        last: int = field(init=False)

        def __post_init__(self) -> None:
            self.last = self.first + 1

    return Mutable


def with_own(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True)
    class WithOwn:
        """Explicit methods are kept."""

        first: int

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return "<own>"

    return WithOwn


def unequal(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True, eq=False)
    class Unequal:
        """Compared by identity."""

        first: int

    return Unequal


def empty(decorator: Decorator) -> Any:
    @decorator(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    return Empty


def unslotted(decorator: Decorator) -> Any:
    @decorator(frozen=True)
    class Unslotted:
        """Without slots, so that values are kept in a dictionary."""

        first: int
        second: tuple[object, ...] = ()
        hidden: str = field(default="y", repr=False)
        made: list[int] = field(init=False, default_factory=list, compare=False)
        fixed: int = field(init=False, default=3)

    return Unslotted


def unslotted_mutable(decorator: Decorator) -> Any:
    @decorator()
    class UnslottedMutable:
        first: int
        others: list[object] = field(default_factory=list)
        last: int = field(init=False)

        def __post_init__(self) -> None:
            self.last = self.first + 1

    return UnslottedMutable


def keywords(decorator: Decorator) -> Any:
    @decorator(frozen=True, eq=False, kw_only=True)
    class Keywords:
        first: int = 1
        second: str
        third: float = 1.0

    return Keywords


def wider(decorator: Decorator, slots: bool) -> Any:
    @decorator(frozen=True, slots=slots)
    class Narrow:
        """With two fields."""

        first: int
        second: str = "a"

    @decorator(frozen=True, slots=slots)
    class Wider(Narrow):
        """Two more fields, and another default of an inherited one."""

        second: str = "b"
        third: float = 1.0
        fourth: int = field(kw_only=True, default=4)

    return Wider


def wider_slotted(decorator: Decorator) -> Any:
    return wider(decorator, True)


def wider_unslotted(decorator: Decorator) -> Any:
    return wider(decorator, False)


KINDS = [frozen, mutable, with_own, unequal, empty, unslotted, unslotted_mutable, keywords]
KINDS += [wider_slotted, wider_unslotted]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same class by the core's decorator and by the standard library's."""
    return request.param(fast_dataclass.dataclass), request.param(dataclasses.dataclass)


def example(made: Any, first: int = 1) -> Any:
    fields = made.__dataclass_fields__
    if "first" not in fields:
        return made()
    return made(first=first, second="s") if fields["first"].kw_only else made(first)


def test_classes_look_the_same(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert (ours.__doc__, ours.__qualname__) == (theirs.__doc__, theirs.__qualname__)
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert [str(each) for each in dataclasses.fields(ours)] == [
        str(each) for each in dataclasses.fields(theirs)
    ]
    for each in dataclasses.fields(theirs):
        assert hasattr(ours, each.name) == hasattr(theirs, each.name)
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


def test_values_behave_the_same(pair: tuple[Any, Any]) -> None:
    def behavior(made: Any) -> list[object]:
        one, same, other = example(made), example(made), example(made, 2)
        seen: list[object] = [repr(one), repr(other), one == same, one == other, one != same]
        seen += [one == "something else", repr(copy.copy(other)), dataclasses.asdict(one)]
        for _ in range(2):  # methods are compiled when they are first called
            try:
                seen.append(hash(one) == hash(same))
            except TypeError as error:
                seen.append(str(error))
        if "first" in made.__dataclass_fields__:
            seen += [repr(dataclasses.replace(one, first=3)), one.first]
            for change in (lambda: setattr(other, "first", 4), lambda: delattr(other, "first")):
                try:
                    seen.append(change())
                except dataclasses.FrozenInstanceError as error:
                    seen.append(str(error))
        return seen

    ours, theirs = pair
    assert behavior(ours) == behavior(theirs)


def test_fields_that_are_not_compared_do_not_matter() -> None:
    made = frozen(fast_dataclass.dataclass)
    one, other = made(1, ignored="a"), made(1, ignored="b")
    assert one == other
    assert hash(one) == hash(other)
    assert hash(made(1, (), unhashed={"k": 1})) == hash(made(1))
    assert made(1, (), unhashed={"k": 1}) != made(1)
    assert made(1).made is not made(1).made


def test_missing_arguments_raise_the_error_of_dataclasses() -> None:
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument"):
        frozen(fast_dataclass.dataclass)()


def test_a_value_that_contains_itself_can_be_printed() -> None:
    value = mutable(fast_dataclass.dataclass)(1)
    value.others.append(value)
    assert "..." in repr(value)


def test_equal_fields_of_different_classes_are_not_equal() -> None:
    one, other = frozen(fast_dataclass.dataclass)(1), frozen(fast_dataclass.dataclass)(1)
    assert one != other


@fast_dataclass.dataclass(frozen=True, slots=True)
class Kept:
    """At the top of a module, where pickle finds it."""

    first: int
    second: tuple[int, ...] = ()


def test_values_can_be_pickled() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Kept(1, (2,)), protocol)) == Kept(1, (2,))
    assert copy.deepcopy(Kept(1, (2,))) == Kept(1, (2,))


def test_values_match_by_position() -> None:
    match Kept(1, (2,)):
        case Kept(first, (second,)):
            assert (first, second) == (1, 2)
        case _:
            pytest.fail("no match")


@pytest.mark.parametrize("decorator", [fast_dataclass.dataclass, dataclasses.dataclass])
def test_subclasses_may_have_fields_of_their_own(decorator: Any) -> None:
    @decorator(frozen=True, slots=True)
    class Wider(Kept):
        """With one more field."""

        third: int = 3

    assert (repr(Wider(1)).rpartition(".")[2], Wider(1).third) == (
        "Wider(first=1, second=(), third=3)",
        3,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        Wider(1).third = 4


def test_values_are_replaced_as_in_the_standard_library() -> None:
    value = Kept(1, (2,))
    names = [each.name for each in dataclasses.fields(value)]
    for name in names:
        assert fast_dataclass.replace(value, **{name: 7}) == dataclasses.replace(value, **{name: 7})
    assert fast_dataclass.replace(value) == value
    with pytest.raises(TypeError):
        fast_dataclass.replace(value, missing=1)


def test_values_are_copied_and_pickled_by_their_class() -> None:
    value = Kept(1, (2,))
    made, parts = value.__reduce__()[:2]
    assert made is Kept
    assert Kept(*parts) == value == copy.copy(value) == copy.deepcopy(value)


PACKAGE_CLASS = """
@dataclass(frozen=True, slots=slots)
class Checked:
    x: int

    def __post_init__(self):
        found.append(caller_location())
"""


@pytest.mark.parametrize("decorator", [fast_dataclass.dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("slots", [True, False])
def test_compiled_methods_are_no_lines_of_the_user(decorator: Decorator, slots: bool) -> None:
    found: list[origin.Location | None] = []
    names: dict[str, Any] = {"found": found, "caller_location": origin.caller_location}
    names |= {"dataclass": decorator, "slots": slots, "__name__": __name__}
    exec(compile(PACKAGE_CLASS, origin.__file__, "exec"), names)
    names["Checked"](1)
    assert found[0] is not None
    assert found[0].text == 'names["Checked"](1)'


@pytest.mark.parametrize("is_frozen", [True, False])
def test_fields_may_have_the_names_that_generated_methods_use(is_frozen: bool) -> None:
    names = ("field1", "field0", "FACTORY", "set_field0", "make_field2", "found")
    annotations = dict.fromkeys(names, "object")
    decorate = fast_dataclass.dataclass(frozen=is_frozen, slots=True)
    content = {"__annotations__": annotations, "__doc__": "Odd names.", "__module__": __name__}
    made: Any = decorate(type("Odd", (), {**content, "found": field(default_factory=list)}))
    one = made(1, 2, 3, set_field0=4, make_field2=5)
    assert [getattr(one, name) for name in names] == [1, 2, 3, 4, 5, []]
    assert one == made(1, 2, 3, 4, 5) != made(2, 1, 3, 4, 5)
    assert str(inspect.signature(made)) == (
        "(field1: 'object', field0: 'object', FACTORY: 'object', set_field0: 'object', "
        "make_field2: 'object', found: 'object' = <factory>) -> None"
    )


def test_methods_of_equal_patterns_share_their_instructions() -> None:
    def made(name: str) -> Any:
        content = {"__annotations__": {name: "int"}, "__doc__": "A.", "__module__": __name__}
        return fast_dataclass.dataclass(frozen=True, slots=True)(type("One", (), content))

    one, other = made("first"), made("last")
    assert one.__init__.__code__.co_code == other.__init__.__code__.co_code
    with pytest.raises(TypeError, match="unexpected keyword argument 'last'"):
        one(last=1)
    assert (one(first=1).first, other(last=2).last) == (1, 2)


@pytest.mark.parametrize("decorator", [fast_dataclass.dataclass, dataclasses.dataclass])
def test_a_field_without_a_default_comes_before_those_with_one(decorator: Decorator) -> None:
    content = {"__annotations__": {"first": "int", "last": "int"}, "first": 1, "__doc__": "A."}
    with pytest.raises(TypeError, match="non-default argument 'last' follows default argument"):
        decorator(slots=True)(type("Wrong", (), content))


def test_methods_are_made_when_they_are_looked_up() -> None:
    @fast_dataclass.dataclass(frozen=True, slots=True)
    class Base:
        first: int

    class Derived(Base):
        def __init__(self, first: int) -> None:
            super().__init__(first + 1)

    assert not inspect.isfunction(vars(Base)["__init__"])
    assert Derived(1).first == 2
    assert inspect.isfunction(vars(Base)["__init__"])
    assert "__init__" in vars(Derived)
    assert Base.__init__ is vars(Base)["__init__"]


def test_a_class_without_a_docstring_has_its_signature_as_one() -> None:
    def documentation(decorator: Decorator) -> str | None:
        @decorator(frozen=True, slots=True)
        class Point:
            x: int
            y: str = "none"
            z: list[int] = field(default_factory=list)
            size: int = field(init=False, default=2)

        found: str | None = Point.__doc__
        return found

    assert documentation(fast_dataclass.dataclass) == documentation(dataclasses.dataclass)
