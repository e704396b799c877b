"""Keys of random numbers as data: the cells, and the code that is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.assignments.constant_keys import keys_as_data
from ocannl_core.ir.assignments.nodes import (
    AssignProgram,
    ConstantBits,
    Fetch,
    NodeOperand,
    RepeatedAssignments,
)
from ocannl_core.ir.assignments.printer import to_text
from ocannl_core.ir.assignments.traverse import leaves, nodes_of, repeat_inputs
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.threefry import threefry4x32

Keys = Mapping[TensorNode, np.ndarray[Any, Any]]


def program_of(*numbers: oc.Tensor) -> AssignProgram:
    total = sum(numbers[1:], numbers[0]) + oc.tensor([1.0, 2.0, 3.0])
    return oc.train.forward(total).resolve()


def words(keys: Keys) -> list[tuple[int, ...]]:
    return [tuple(cell.item()) for cell in keys.values()]


def hashed(*constants: int, rounds: int = 20) -> tuple[int, ...]:
    word = (constants[0], 0, 0, 0)
    for each in constants[1:]:
        word = threefry4x32(word, (each & 0xFFFFFFFF, each >> 32, 0, 0), rounds)
    return word


def bits(program: AssignProgram) -> list[int]:
    """Return the constant words in code."""
    fills = (each.source for each in leaves(program.body) if isinstance(each, Fetch))
    return [source.bits for source in fills if isinstance(source, ConstantBits)]


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3, -1])
def test_keys_are_hashes_of_identities_under_the_seed(seed: int) -> None:
    with oc.Session(seed=seed):
        one, other = oc.uniform(), oc.uniform()
        before = program_of(one, other)
    identity, seeded, second = bits(before)
    assert seeded == seed % 2**64
    after, keys = keys_as_data(before)
    assert words(keys) == [hashed(identity, seeded), hashed(second, seeded)]
    assert bits(after) == []
    assert after.nodes.keys() >= {node for each in leaves(after.body) for node in nodes_of(each)}
    assert after.embedded <= after.nodes.keys()
    assert not keys.keys() & after.embedded


def test_twelve_rounds_give_other_keys() -> None:
    with settings.overrides(threefry_rounds=12), oc.Session(seed=4):
        before = program_of(oc.uniform())
    _, keys = keys_as_data(before)
    assert words(keys) == [hashed(*bits(before), rounds=12)]


def test_code_does_not_depend_on_identities_and_seeds() -> None:
    def text(seed: int, earlier: int) -> str:
        with oc.Session(seed=seed):
            for _ in range(earlier):
                oc.tensor(1.0)
            return to_text(keys_as_data(program_of(oc.uniform(), oc.normal()))[0])

    assert text(0, 0) == text(5, 3)


def test_a_counter_at_run_time_is_hashed_with_the_key() -> None:
    with oc.Session(seed=2):
        step = oc.placeholder("step", output=[], dtype="int64")
        before = program_of(oc.uniform(counter=step))
    _, keys = keys_as_data(before)
    assert words(keys) == [hashed(*bits(before))]


def test_keys_that_only_constants_are_hashed_with_stay_code() -> None:
    with oc.Session(seed=2):
        before = program_of(oc.uniform(counter=7))
        assert keys_as_data(before) == (before, {})
        both = program_of(oc.uniform(counter=7), oc.uniform())
    after, keys = keys_as_data(both)
    (identity,) = set(bits(both)) - set(bits(after))
    assert words(keys) == [hashed(identity, 2)]


def test_equal_keys_are_one_node() -> None:
    with oc.Session(seed=2):
        first, second = (oc.random.word(value) for value in (3, 4))
        again = oc.random.word(3)
        drawn = [
            oc.random.uniform_of(
                oc.random.threefry4x32(key, oc.random.word(oc.primitives.offsets()))
            )
            for key in (
                oc.random.threefry4x32(first, second),
                oc.random.threefry4x32(again, second),
            )
        ]
        _, keys = keys_as_data(program_of(*drawn))
    assert words(keys) == [hashed(3, 4)]


def test_words_that_are_kept_stay_code() -> None:
    with oc.Session(seed=2):
        key = oc.random.threefry4x32(oc.random.word(3), oc.random.word(4))
        before = oc.train.forward(key).resolve()
    assert keys_as_data(before) == (before, {})
    with oc.Session(seed=2):
        numbers = oc.uniform()
        before = program_of(numbers)
    kept = {each.target for each in leaves(before.body) if isinstance(each, Fetch)}
    after, keys = keys_as_data(before, kept)
    assert bits(after) == bits(before)
    assert len(keys) == 1


def test_keys_in_a_repetition_are_inputs_of_it() -> None:
    with oc.Session(seed=2):
        xs = oc.tensor(np.ones((4, 3), np.float32), batch_axes=1)
        total, _ = oc.scan(lambda h, x: (h + x * oc.uniform(),) * 2, 0.0, xs)
        before = oc.train.forward(total).resolve()
    after, keys = keys_as_data(before)
    (repeat,) = (each for each in leaves(after.body) if isinstance(each, RepeatedAssignments))
    outside = {
        each.target: arg.node
        for each in leaves(after.body)
        for arg in getattr(each, "args", ())
        if isinstance(arg, NodeOperand) and arg.node in keys
    }
    read = {outside.get(node, node) for node in repeat_inputs(repeat)}
    assert read >= keys.keys()
    assert len(keys) == 1
