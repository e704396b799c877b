"""Maps keyed by identity, and the rule that no other module calls `id`."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.base.identity import ById, IdentityMap, IdentityNumbers, exact_key

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [*(ROOT / "ocannl_core").rglob("*.py"), *(ROOT / "plugins").glob("*/src/**/*.py")]
ADDRESSES = {"ocannl_core/base/identity.py", "plugins/ocannl_cpu_c/src/ocannl_cpu_c/calling.py"}
"""The map itself, and the code that hands the address of `None` to C."""


def test_no_other_module_takes_the_address_of_an_object() -> None:
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and node.id == "id" and isinstance(node.ctx, ast.Load):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == ADDRESSES


@given(st.lists(st.tuples(st.integers(0, 9), st.integers())))
def test_a_map_has_the_last_value_of_every_object(entries: list[tuple[int, int]]) -> None:
    objects = [(k, k) for k in range(10)]
    found: IdentityMap[tuple[int, int], int] = IdentityMap()
    for at, value in entries:
        found[objects[at]] = value
    assert [found.find(each) for each in objects] == [dict(entries).get(k) for k in range(10)]
    assert len(found) == len(dict(entries))
    assert {each[0] for each in found} == dict(entries).keys()
    assert all(each in found for each in found)


def test_equal_objects_are_different_keys() -> None:
    found: IdentityMap[list[int], str] = IdentityMap()
    one, other = [1], [1]
    found[one] = "one"
    assert other not in found
    assert found.find(other) is None
    del found[one]
    assert not found
    assert ById(one) != ById(other)
    assert ById(one) == ById(one)
    assert len({ById(one), ById(one), ById(other)}) == 2


def test_keys_live_as_long_as_the_map() -> None:
    found: IdentityMap[list[int], int] = IdentityMap()
    for value in range(1000):
        found[[value]] = value
    assert [(key, value) for key, value in found.items() if key != [value]] == []
    assert len(found) == 1000


def test_numbers_are_those_of_the_first_use() -> None:
    numbers: IdentityNumbers[tuple[object, ...]] = IdentityNumbers()
    one, equal, other = (1, *range(3)), (1, *range(3)), (2,)
    assert numbers.number([one, equal, one]) == ([0, 1, 0], [one, equal])
    assert numbers.number([other, equal]) == ([2, 1], [other])
    for k in range(100):  # freed by the caller, and kept alive by the numbers
        assert numbers.number([(k, k)])[0] == [3 + k]


def test_exact_keys_are_equal_for_equal_bits_of_one_class() -> None:
    values = [0.0, -0.0, 0, False, 1.0, 1, True, math.nan, np.float32(0.0), np.float32(-0.0), 0j]
    values += [(0.0,), (-0.0,), "0.0", 2**53, 2**53 + 1]
    assert len({exact_key(each) for each in values}) == len(values)
    assert exact_key((1, (float("nan"), "a"))) == exact_key((1, (float("nan"), "a")))
