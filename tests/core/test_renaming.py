"""Values under other names: equal bytes for what is equal but for names, and copies."""

from __future__ import annotations

from functools import cached_property

from ocannl_core.dtypes import float32
from ocannl_core.indexing import LoopVar, StaticIndex, VarIndex, affine, fresh_var
from ocannl_core.loopir.nodes import Binary, Block, For, Load, Local, LocalRead, SetLocal, Store
from ocannl_core.node import TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.records import dataclass
from ocannl_core.renaming import Numbering, dumped, loaded


def scaled(prefix: str, extent: int = 4, local: int = 0, factor: int = 1) -> For:
    """Returns `t = x[factor * i + s]; y[i] = t + t` in a loop."""
    i, s = fresh_var(prefix + "i"), StaticIndex(prefix + "s", 8)
    x, y = TensorNode(0, (prefix, "x")), TensorNode(1, (prefix, "y"))
    t = Local(local, float32, x)
    read = Load(x, (affine([(factor, i), (1, s)]),), float32)
    twice = Binary(BinaryOp.ADD, LocalRead(t), LocalRead(t), float32)
    return For(i, 0, extent, Block((SetLocal(t, read), Store(y, (VarIndex(i),), twice))))


def anonymous(value: object) -> bytes:
    return dumped(value, Numbering(), by_number=True)


def test_names_make_no_difference() -> None:
    assert anonymous(scaled("a")) == anonymous(scaled("b"))
    assert dumped(scaled("a"), Numbering()) != dumped(scaled("b"), Numbering())


def test_ids_of_variables_make_no_difference() -> None:
    assert anonymous(scaled("a", local=3)) == anonymous(scaled("a", local=7))


def test_everything_else_does() -> None:
    texts = {anonymous(scaled("a")), anonymous(scaled("a", 5)), anonymous(scaled("a", factor=2))}
    assert len(texts) == 3


def test_two_nodes_are_not_one() -> None:
    x, y = TensorNode(0), TensorNode(1)
    assert anonymous((x, y)) == anonymous((y, x))
    assert anonymous((x, y)) != anonymous((x, x))


def test_a_copy_has_other_things_in_the_same_places() -> None:
    first, second = scaled("a"), scaled("b")
    things = []
    for each in (first, second):
        numbering = Numbering()
        dumped(each, numbering, by_number=True)
        things.append([thing for thing in numbering.things if not isinstance(thing, tuple)])
    copy = loaded(dumped(first, Numbering.of(things[0])), things[1])
    assert copy == second
    assert copy.var is second.var


def test_things_that_are_not_known_are_made_anew() -> None:
    made, known = TensorNode(0, ("q", "packed")), TensorNode(0, ("q",))
    other, var = TensorNode(5, ("k",)), fresh_var()
    content = dumped((known, made, made, var), Numbering.of([known]))

    def renamed(label: tuple[str, ...]) -> tuple[str, ...]:
        return ("k", *label[1:])

    copies = [loaded(content, [other], renamed) for _ in range(2)]
    (a, b, c, d), (_, again, _, e) = copies
    assert a is other
    assert b is c
    assert b is not made
    assert b.label == ("k", "packed")
    assert again is not b
    assert isinstance(d, LoopVar)
    assert len({d, e, var}) == 3


@dataclass(frozen=True)
class Kept:
    """A value that keeps what it was asked for."""

    number: int

    @cached_property
    def doubled(self) -> int:
        return 2 * self.number


def test_what_is_kept_beside_the_fields_is_not_written() -> None:
    fresh, asked = Kept(4), Kept(4)
    assert asked.doubled == 8
    assert anonymous(fresh) == anonymous(asked)
    assert loaded(dumped(asked, Numbering()), ()) == fresh
