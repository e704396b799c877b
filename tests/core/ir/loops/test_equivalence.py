"""Keys of alpha-equivalent code: numbers, free names, and versions."""

from __future__ import annotations

import pytest

from ocannl_core.ir.indexing import FixedIndex, fresh_var
from ocannl_core.ir.loops.equivalence import Storage, alpha_key
from ocannl_core.ir.loops.nodes import (
    Block,
    DeclareLocal,
    Fill,
    Gather,
    Local,
    LocalRead,
    Remark,
    Scoped,
    SetLocal,
)
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.testing.drafts import Draft, loop

D = Draft("p")
A, B = D.node("a", float32, 4), D.node("b", float32, 4)
I, J = fresh_var("i"), fresh_var("j")  # noqa: E741


def test_nodes_and_free_variables_keep_their_identity() -> None:
    assert alpha_key(D.load(A, I)) == alpha_key(D.load(A, I))
    assert alpha_key(D.load(A, I)) != alpha_key(D.load(B, I))
    assert alpha_key(D.load(A, I)) != alpha_key(D.load(A, J))
    x, y = Local(0, float32), Local(1, float32)
    assert alpha_key(LocalRead(x)) != alpha_key(LocalRead(y))


def test_bound_variables_are_numbers_with_a_format() -> None:
    def copy(local: Local) -> Scoped:
        return Scoped(local, Block((SetLocal(local, D.load(A, 0)),)))

    assert alpha_key(copy(Local(0, float32))) == alpha_key(copy(Local(7, float32)))
    assert alpha_key(copy(Local(0, float32))) != alpha_key(copy(Local(0, float64)))
    assert alpha_key(DeclareLocal(Local(0, float32))) == alpha_key(DeclareLocal(Local(7, float32)))


def test_versions_of_loaded_nodes_are_part_of_a_key() -> None:
    def version(storage: Storage) -> int:
        return 1 if storage is A else 0

    assert alpha_key(D.load(A, 0)) != alpha_key(D.load(A, 0), version)
    assert alpha_key(D.load(B, 0)) == alpha_key(D.load(B, 0), version)


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (3, 3.0, True),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (float("inf"), float("-inf"), False),
        (0.1, 0.2, False),
    ],
)
def test_numbers_compare_by_value_and_sign(one: float, other: float, is_equal: bool) -> None:
    assert (alpha_key(Fill(A, one)) == alpha_key(Fill(A, other))) is is_equal
    gathers = (Gather(A, (FixedIndex(0),), 0, D.load(B, 0), float32, n) for n in (one, other))
    keys = [alpha_key(each) for each in gathers]
    assert (keys[0] == keys[1]) is is_equal


def test_remarks_are_no_part_of_code() -> None:
    store = D.store(A, I, value=D.load(B, I))
    assert alpha_key(loop(I, 4, Remark("copies"), store)) == alpha_key(loop(I, 4, store))
