"""Dependences between routines of a lineage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session():
        yield


@oc.cd
def set_to(target: oc.Tensor, value: oc.Tensor) -> None:
    target.assign(value * 1.0)


def tensors(names: str) -> list[oc.Tensor]:
    return [oc.placeholder(name, output=[2]) for name in names]


def test_each_kind_of_dependence_names_node_and_routine() -> None:
    a, b, c = tensors("abc")
    ctx = oc.Context("interp")
    first = ctx.compile(set_to(b, a), name="first")
    reader = ctx.compile(set_to(c, b), name="reader")
    writer = ctx.compile(set_to(b, a), name="writer")
    before = ctx.compile(set_to(a, c), name="before")
    assert first.dependences == ()
    assert list(map(str, reader.dependences)) == ["read after write of b: first"]
    assert list(map(str, writer.dependences)) == [
        "write after write of b: first",
        "write after read of b: reader",
    ]
    assert list(map(str, before.dependences)) == [
        "write after read of a: first",
        "read after write of c: reader",
        "write after read of a: writer",
    ]


def test_routines_of_two_children_are_independent() -> None:
    a, b = tensors("ab")
    ctx = oc.Context("interp")
    one, other = ctx.child(), ctx.child()
    kept = one.compile(set_to(b, a))
    assert other.compile(set_to(b, a)).dependences == ()
    assert kept.dependences == ()


def test_a_routine_can_run_once_its_inputs_have_values() -> None:
    a, b, c = tensors("abc")
    ctx = oc.Context("interp")
    first, second = ctx.compile(set_to(b, a), name="first"), ctx.compile(set_to(c, b))
    assert (first.can_run, second.can_run) == (False, False)
    ctx[a] = 1.0
    assert (first.can_run, second.can_run) == (True, False)
    with pytest.raises(oc.LinkError, match=r"placeholder b .* has none"):
        second()
    first()
    assert second.can_run
    second()
    assert ctx[c].tolist() == [1.0, 1.0]
