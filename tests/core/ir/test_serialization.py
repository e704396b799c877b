"""Encoding of records: equality, identity, sharing, and refusals."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import make_dataclass
from enum import Enum
from functools import cached_property
from types import ModuleType
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import Plan, StepReplacement
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.loops.nodes import (
    Binary,
    Block,
    CallExternal,
    Const,
    Definition,
    Expr,
    For,
    Load,
    Local,
    LocalRead,
    LoopProgram,
    SetLocal,
    Store,
    Unary,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.node import Placement, TensorNode
from ocannl_core.ir.numbers.dtypes import ALL, DType, float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.ir.serialization.columns import DecodingError
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import Form, NotDataError, Numbering, TupleForm
from ocannl_core.ir.serialization.schema import form_of, record_of
from ocannl_core.ir.target import Target
from ocannl_core.ir.templates import canonical_form
from ocannl_core.testing.programs import HAND_MADE, Example
from tests.support.loop_programs import loop_programs


def form_like(value: Any) -> Form | None:
    """Return the form of values like this one: of its class, and tuples of the same length."""
    if not isinstance(value, tuple):
        kind: Any = type(value)
        return form_of(kind)
    forms = [form_like(each) for each in value]
    known = [form for form in forms if form is not None]
    return TupleForm(known) if len(known) == len(forms) else None


def written(value: object, annotation: Any = None, things: tuple[object, ...] = ()) -> bytes:
    form = form_like(value) if annotation is None else form_of(annotation)
    return encode(value, form, Numbering.of(things))


def copied(value: object, annotation: Any = None) -> Any:
    form = form_like(value) if annotation is None else form_of(annotation)
    return decode(written(value, annotation), form, ())


def scaled(prefix: str, extent: int = 4, local: int = 0, factor: int = 1) -> For:
    """Return `t = x[factor * i + s]; y[i] = t + t` in a loop."""
    i, s = fresh_var(prefix + "i"), StaticIndex(prefix + "s", 8)
    x, y = TensorNode(0, (prefix, "x")), TensorNode(1, (prefix, "y"))
    t = Local(local, float32, x)
    read = Load(x, (affine([(factor, i), (1, s)]),), float32)
    twice = Binary(BinaryOp.ADD, LocalRead(t), LocalRead(t), float32)
    return For(i, 0, extent, Block((SetLocal(t, read), Store(y, (VarIndex(i),), twice))))


def test_a_copy_has_other_identities_in_the_same_places() -> None:
    first, second = scaled("a"), scaled("b")
    names = [canonical_form(each, {}).names for each in (first, second)]
    content = encode(first, form_of(For), Numbering.of(names[0]))
    copy = decode(content, form_of(For), names[1])
    assert copy == second
    assert copy.var is second.var


def test_identities_that_are_not_known_are_made_anew() -> None:
    made, known = TensorNode(0, ("q", "packed")), TensorNode(0, ("q",))
    other, var = TensorNode(5, ("k",)), fresh_var()
    value = (known, made, made, var)
    content = written(value, things=(known,))

    def renamed(label: tuple[str, ...]) -> tuple[str, ...]:
        return ("k", *label[1:])

    copies = [decode(content, form_like(value), [other], renamed) for _ in range(2)]
    (a, b, c, d), (_, again, _, e) = copies
    assert a is other
    assert b is c
    assert b is not made
    assert b.label == ("k", "packed")
    assert again is not b
    assert isinstance(d, LoopVar)
    assert len({d, e, var}) == 3


def test_gradients_are_called_after_their_values() -> None:
    value = TensorNode(3, ("w",))
    gradient = TensorNode(4, ("g",), TensorNode(5, ("h",), value))
    copy = copied(gradient)
    assert copy.gradient_of.gradient_of.label == ("w",)
    assert written(gradient) != written(TensorNode(4, ("g",), TensorNode(5, ("h",))))


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """One field of each form."""

    number: int
    ratio: float
    text: str
    is_so: bool
    nothing: None
    color: Color
    dtype: DType
    maybe: int | str | Color | None
    texts: tuple[str, ...]
    pair: tuple[int, tuple[float, str]]
    nested: tuple[KeptRecord, ...] | None
    table: Mapping[str, tuple[int, ...]]
    nodes: frozenset[TensorNode]
    numbers: frozenset[int]


def kept(draw: st.DrawFn, depth: int) -> KeptRecord:
    texts = st.text(st.characters(), max_size=4)
    numbers = st.integers() | st.integers(-3, 300)
    return KeptRecord(
        draw(numbers),
        draw(st.floats(allow_nan=False) | st.integers(-5, 5)),
        draw(texts),
        draw(st.booleans()),
        None,
        draw(st.sampled_from(Color)),
        draw(st.sampled_from(ALL)),
        draw(numbers | texts | st.sampled_from(Color) | st.none()),
        tuple(draw(st.lists(texts, max_size=3))),
        (draw(numbers), (draw(st.floats(allow_nan=False)), draw(texts))),
        tuple(kept(draw, depth - 1) for _ in range(draw(st.integers(0, 2)))) if depth else None,
        draw(st.dictionaries(texts, st.lists(numbers, max_size=3).map(tuple), max_size=3)),
        frozenset(),
        draw(st.frozensets(numbers, max_size=3)),
    )


@st.composite
def some_kept(draw: st.DrawFn) -> KeptRecord:
    return kept(draw, draw(st.integers(0, 2)))


def exact(value: Any) -> Any:
    """Return a value that distinguishes equal numbers: by class, and by the sign of zero."""
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, int | str | None):
        return type(value).__name__, value
    if isinstance(value, Mapping):
        return [(exact(key), exact(each)) for key, each in value.items()]
    if isinstance(value, tuple):
        return [exact(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, KeptRecord):
        return [exact(getattr(value, name)) for name in KeptRecord.__match_args__]
    return value


@given(some_kept())
def test_a_deserialized_copy_equals_the_value(value: KeptRecord) -> None:
    copy = copied(value, KeptRecord)
    assert exact(copy) == exact(value)
    assert written(copy, KeptRecord) == written(value, KeptRecord)


@given(some_kept(), some_kept())
def test_equal_bytes_mean_equal_values(one: KeptRecord, other: KeptRecord) -> None:
    assert (written(one, KeptRecord) == written(other, KeptRecord)) == (exact(one) == exact(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0.0,), (-0.0,)),
        ((1,), (True,)),
        ((1,), (1.0,)),
        (((), ("",)), (("",), ())),
        ((("a", "b"),), (("ab",),)),
        (("1",), (1,)),
    ],
)
def test_similar_values_have_different_serializations(one: object, other: object) -> None:
    assert written(one) != written(other)


def test_sharing_survives() -> None:
    leaf = Const(1.0, float32)
    copy = copied(Binary(BinaryOp.ADD, leaf, leaf, float32))
    assert copy.left is copy.right


def test_cached_properties_are_not_serialized() -> None:
    fresh, used = WithCache(4), WithCache(4)
    assert used.doubled == 8
    assert written(fresh) == written(used)
    assert copied(used) == fresh
    assert copied(used).doubled == 8


@dataclass(frozen=True)
class WithCache:
    """A value with a cache."""

    number: int

    @cached_property
    def doubled(self) -> int:
        return 2 * self.number


def test_depth_costs_no_stack() -> None:
    expr: Expr = Const(1.0, float32)
    for _ in range(20_000):
        expr = Unary(UnaryOp.NEG, expr, float32)
    copy = copied(expr, Expr)
    for _ in range(20_000):
        assert isinstance(copy, Unary)
        copy = copy.arg
    assert copy == Const(1.0, float32)


def data_only(program: LoopProgram) -> bool:
    return not any(isinstance(each, CallExternal) for each in program.body.stmts)


@pytest.mark.parametrize("make", HAND_MADE)
def test_programs_are_copied(make: Any) -> None:
    program = make().program
    if data_only(program):
        assert to_text(copied(program)) == to_text(program)
        assert written(copied(program)) == written(program)
    else:
        with pytest.raises(NotDataError):
            written(program)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(loop_programs())
def test_random_programs_are_copied(example: Example) -> None:
    program = example.program
    numbering = Numbering()
    content = encode(program, form_of(LoopProgram), numbering)
    assert decode(encode(program, form_of(LoopProgram), Numbering.of(numbering.things)),
                  form_of(LoopProgram), numbering.things) == program  # fmt: skip
    assert written(decode(content, form_of(LoopProgram), ())) == content


def test_sets_have_one_order() -> None:
    nodes = [TensorNode(number, (str(number),)) for number in range(20)]
    content = written(Set(frozenset(nodes)))
    assert content == written(Set(frozenset(reversed(nodes))))
    copy = copied(Set(frozenset(nodes)))
    assert sorted(node.id for node in copy.nodes) == [*range(20)]


@dataclass(frozen=True, slots=True)
class Set:
    """A set of nodes."""

    nodes: frozenset[TensorNode]


def test_all_that_is_kept_and_compared_is_data() -> None:
    roots = (LoopProgram, Plan, Target, Placement, Definition, StepReplacement, Nest, RowFusion)
    pending, seen, others = [*roots], set(), set()
    while pending:
        kind = pending.pop()
        if kind not in seen:
            seen.add(kind)
            record = record_of(kind)
            pending += record.mentioned if record is not None else ()
            others |= set() if record is not None else {kind}
    assert others == {CallExternal}


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        object(),
        [1],
        {1: object()},
        Const("text", float32),  # type: ignore[arg-type]
        Store(TensorNode(0), (), Const(1.0, float32), is_streamed=1),  # type: ignore[arg-type]
        For(fresh_var(), 0, 1, Const(1.0, float32)),  # type: ignore[arg-type]
    ],
)
def test_values_that_are_no_data_are_not_serialized(value: object) -> None:
    with pytest.raises(NotDataError):
        written(value)


def test_a_class_that_the_form_does_not_mention_is_not_made() -> None:
    content = written(KeptRecord(1, 1.0, "", True, None, Color.RED, float32, 1, (), (1, (1.0, "")), None,
                           {}, frozenset(), frozenset()))  # fmt: skip
    assert decode(content, form_of(KeptRecord), ())
    for other in (Const, For, int, tuple[KeptRecord, ...]):
        with pytest.raises(DecodingError):
            decode(content, form_of(other), ())


_EVALUATED = """
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from ocannl_core.ir.numbers.dtypes import DType

@dataclass(frozen=True)
class Kernel:
    name: str
    format: DType

@dataclass(frozen=True)
class Source:
    text: str
    kernels: tuple[Kernel, ...]
    others: tuple["Kernel", ...]
    first: "Kernel | None"
    last: typing.Optional[Kernel]
    sizes: Mapping[str, int]
"""


@pytest.fixture
def evaluated() -> Iterator[Any]:
    """Return a module whose annotations are types, not texts."""
    module = ModuleType("ocannl_test_evaluated")
    sys.modules[module.__name__] = module
    exec(compile(_EVALUATED, module.__name__, "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules[module.__name__]


def test_annotations_may_be_types(evaluated: Any) -> None:
    kernel = evaluated.Kernel("k", float32)
    source = evaluated.Source("code", (kernel,), (kernel, kernel), None, kernel, {"k": 3})
    assert copied(source) == source
    assert copied(evaluated.Source("", (), (), kernel, None, {})).first == kernel


def test_a_record_whose_annotation_has_undefined_names_is_no_data(evaluated: Any) -> None:
    for stated in ("Missing", "Missing[int", "tuple[Missing, ...]", ["Missing"]):
        names = {"__module__": evaluated.__name__}
        kind = make_dataclass("Bad", [("field", stated)], frozen=True, namespace=names)
        with pytest.raises(NotDataError):
            written(kind(1))


T = TypeVar("T")


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T


def test_a_record_with_a_type_variable_without_bound_is_no_data() -> None:
    with pytest.raises(NotDataError):
        written(Box(1))


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "builtins.eval", "x"])
def test_names_in_the_bytes_import_nothing(name: str) -> None:
    content = written(Const(1.0, float32))
    known = b"ocannl_core.ir.loops.nodes.Const"
    length = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + length].replace(b'["' + known, b'["' + name.encode())
    assert head != content[8 : 8 + length]
    changed = len(head).to_bytes(8, "little") + head + content[8 + length :]
    with pytest.raises(DecodingError, match="is no class"):
        decode(changed, form_of(Const), ())


@given(st.data())
def test_no_change_of_the_bytes_does_more_than_fail(data: st.DataObject) -> None:
    content = bytearray(written(scaled("a"), For))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        value = decode(bytes(content), form_of(For), ())
    except DecodingError:
        return
    # readable bytes give the right classes in all places
    assert isinstance(value, For)
    assert isinstance(value.body, Block)
    written(value, For)


def test_nothing_after_the_end_is_ignored() -> None:
    content = written(Const(1.0, float32))
    with pytest.raises(DecodingError):
        decode(content + b"x", form_of(Const), ())
    with pytest.raises(DecodingError):
        decode(b"", form_of(Const), ())


def test_changed_records_of_one_program_have_other_bytes() -> None:
    loop = scaled("a")
    contents = {
        written(replace(loop, **change))  # type: ignore[arg-type]
        for change in ({}, {"stop": 5}, {"start": 1}, {"traced": False}, {"body": Block()})
    }
    assert len(contents) == 5
