"""Tables whose entries live as long as their keys."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ocannl_core.base import ephemerons
from ocannl_core.base.ephemerons import EphemeronKey, drop_unreachable


class _Key(EphemeronKey):
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def _parts(key: _Key | tuple[_Key, ...]) -> tuple[_Key, ...]:
    return key if isinstance(key, tuple) else (key,)


def _keys(*names: str) -> list[_Key]:
    return [*map(_Key, names)]


def test_values_that_refer_to_keys_do_not_keep_them_alive() -> None:
    held, a, b, c = _keys("held", "a", "b", "c")
    chained = {held: [a], a: [b]}
    apart: dict[Any, Any] = {b: "of b", c: [c, held]}
    del a, b, c
    drop_unreachable([chained, apart], _parts)
    assert [*map(str, chained)] == ["held", "a"]
    assert [*map(str, apart)] == ["b"]
    assert not hasattr(held, "_entries")


def test_an_entry_of_several_keys_stays_with_any_of_them() -> None:
    a, b, c, d = _keys("a", "b", "c", "d")
    table: dict[Any, Any] = {(c, d): 1, (b, a): 2, (): 3, (b,): 4, (d,): 5}
    del b, c, d
    drop_unreachable([table], _parts)
    assert str(table) == "{(b, a): 2, (): 3, (b,): 4}"  # the first one keeps b


def test_the_order_of_entries_stays() -> None:
    keys = _keys(*"abcdefgh")
    table = {key: number for number, key in enumerate(keys)}
    keys = [keys[each] for each in (6, 1, 3)]
    drop_unreachable([table], _parts)
    assert [*table.values()] == [1, 3, 6]


@pytest.mark.parametrize("during", [1, 2])
def test_an_interrupted_run_loses_no_entry(during: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def collect() -> None:
        nonlocal calls
        calls += 1
        if calls == during:
            raise KeyboardInterrupt

    keys = _keys("a", "b")
    table = dict.fromkeys(keys, 0)
    with monkeypatch.context() as patched:
        patched.setattr(gc, "collect", collect)
        with pytest.raises(KeyboardInterrupt):
            drop_unreachable([table], _parts)
    assert [*table] == keys
    drop_unreachable([table], _parts)
    assert [*table] == keys


def test_an_interruption_before_tables_are_cleared_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = _keys("a", "b", "c")
    table = dict.fromkeys(keys, 0)

    def parts(key: _Key) -> tuple[_Key, ...]:
        if key.name == "b":
            raise KeyboardInterrupt
        return (key,)

    with pytest.raises(KeyboardInterrupt):
        drop_unreachable([table], parts)
    assert [*table] == keys
    assert not any(hasattr(key, "_entries") for key in keys)


def test_entries_that_an_interrupt_left_in_a_key_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def delete(key: _Key) -> None:
        raise KeyboardInterrupt

    keys = _keys("a", "b")
    table = dict.fromkeys(keys, 0)
    with monkeypatch.context() as patched:
        patched.setattr(ephemerons, "_delete_entries", delete)
        with pytest.raises(KeyboardInterrupt):
            drop_unreachable([table], _parts)
    table[keys[0]] = 1
    drop_unreachable([table], _parts)
    assert table == {keys[0]: 1, keys[1]: 0}
