"""The call generated for the indices of a routine equals the general one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core
import ocannl_core as oc
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.runtime.context import Context
from ocannl_core.runtime.routine import Routine
from ocannl_core.runtime.routine_calls import Accepted, callable_class

if TYPE_CHECKING:
    from conftest import Toy

NAMES = ["i", "self", "type", "int", "others", "missing", "_i", "__i", "_self", "__type", "class"]
NAMES += ["range", "\N{LATIN SMALL LIGATURE FI}", "None"]


class CallRecorder:
    """Recorder of the arguments of a call."""

    __slots__ = ("_history", "_run", "found", "last")

    def __init__(self, *, ran_last: bool) -> None:
        self._history, self._run = self, object()
        self.last = self._run if ran_last else None
        self.found: list[object] = []

    def __call__(self, /, **indices: Any) -> None:
        """Accept any arguments."""
        self.found.append(("general", indices))

    def _launch(self, values: Sequence[int]) -> None:
        self.found.append(("launch", values))

    def _start(self, values: Sequence[int]) -> None:
        self.found.append(("start", values))


BOUNDS = st.one_of(st.none(), st.builds(range, st.integers(-3, 3), st.integers(0, 6)))
ACCEPTED = st.dictionaries(st.sampled_from(NAMES), BOUNDS, max_size=4)
VALUES = st.one_of(
    st.integers(-4, 7), st.booleans(), st.none(), st.just(1.0), st.just("1"), st.just(np.int64(1))
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Accepted, tuple[str, ...], dict[str, Any]]:
    """Return indices, the order of those that the code uses, and the arguments of a call."""
    accepted = draw(ACCEPTED)
    used = draw(st.sets(st.sampled_from(sorted(accepted)))) if accepted else set()
    order = tuple(draw(st.permutations(sorted(used))))
    if draw(st.booleans()):
        given = {name: draw(st.one_of(st.integers(0, 2), VALUES)) for name in accepted}
    else:
        given = draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
    return tuple(accepted.items()), order, given


@given(calls(), st.booleans())
def test_calls_take_the_short_way_or_are_the_general_one(
    call: tuple[Accepted, tuple[str, ...], dict[str, Any]], ran_last: bool
) -> None:
    accepted, order, indices = call
    routine = callable_class(CallRecorder, accepted, order)(ran_last=ran_last)
    routine(**indices)
    is_plain = indices.keys() == dict(accepted).keys() and all(
        type(indices[name]) is int and (bounds is None or indices[name] in bounds)
        for name, bounds in accepted
    )
    (found,) = routine.found
    if type(routine) is CallRecorder:
        assert not {"class", "None", "\N{LATIN SMALL LIGATURE FI}"}.isdisjoint(dict(accepted))
    elif is_plain:
        assert found == ("launch" if ran_last else "start", tuple(indices[name] for name in order))
        return
    assert found == ("general", indices)


class SizedCallRecorder(CallRecorder):
    """Recorder of the arguments of a call with extents, after a run with some values."""

    __slots__ = ("values",)

    def __init__(self, *values: int) -> None:
        super().__init__(ran_last=True)
        self.values = values
        self._run = self.last = self

    def _start(self, values: Sequence[int], extents: tuple[int, ...] = ()) -> None:
        self.found.append(("start", values, extents))


def test_extents_have_defaults_and_other_values_take_the_long_way() -> None:
    accepted = (("i", range(3)), ("n", range(9)), ("m", range(5)))
    made = callable_class(SizedCallRecorder, accepted, ("n", "i"), (("n", 8), ("m", 4)))
    routine = made(8, 2)
    routine(i=1, m=2)
    routine(i=1, m=3)
    routine(i=2, n=8, m=2)
    routine(i=2, n=9)
    assert routine.found == [
        ("launch", (8, 1)),
        ("start", (8, 1), (8, 3)),
        ("launch", (8, 2)),
        ("general", {"i": 2, "n": 9, "m": 4}),
    ]
    assert str(inspect.signature(routine)) == (
        "(*, i: 'SupportsIndex', n: 'SupportsIndex' = 8, m: 'SupportsIndex' = 4) -> 'None'"
    )


def test_readers_see_the_class_and_the_indices() -> None:
    made = callable_class(
        CallRecorder, (("first", range(3)), ("second", None)), ("second", "first")
    )
    assert issubclass(made, CallRecorder)
    assert repr(made) == repr(CallRecorder)
    assert made.__doc__ == CallRecorder.__doc__
    assert made.__call__.__doc__ == CallRecorder.__call__.__doc__
    signature = inspect.signature(made(ran_last=True))
    assert str(signature) == "(*, first: 'SupportsIndex', second: 'SupportsIndex') -> 'None'"
    with pytest.raises(TypeError, match=r"CallRecorder.__call__\(\) takes 1 positional argument"):
        made(ran_last=True)(3)


def test_its_frame_is_one_of_the_package() -> None:
    class Failing(CallRecorder):
        __slots__ = ()

        def _start(self, values: Sequence[int]) -> None:
            raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        callable_class(Failing, (("i", range(4)),), ("i",))(ran_last=False)(i=1)
    _, between, _ = caught.traceback
    # the search for the user's line skips this file
    assert Path(ocannl_core.__file__).parent in Path(between.path).parents


def test_a_routine_runs_again_after_any_other(context: Context, toy: Toy) -> None:
    table, row = np.arange(12, dtype=np.float32).reshape(4, 3), toy.tensor("row", 3)
    rows, index = toy.literal("table", table), StaticIndex("self", 4)
    statement = toy.statement("si->i", row, UnaryOp.IDENTITY, rows, s=index)
    pick = context.compile(toy.code(statement, uses=[rows], defines=[row]), [index])
    other = context.compile(toy.code(toy.fill(row, 7.0), uses=[], defines=[row]))
    assert isinstance(pick, Routine)
    assert type(pick) is not Routine
    for at in (0, 1, 3, np.int8(2), 1):
        pick(**{"self": at})
        assert context[row].tolist() == table[at].tolist()
        other()
        assert context[row].tolist() == [7.0] * 3
        other()
        for again in (2, 0):
            pick(**{"self": again})
            assert context[row].tolist() == table[again].tolist()


@pytest.mark.parametrize("range", [3, None])
@pytest.mark.parametrize("given", [(1,), (np.zeros(2), 1)])
def test_a_call_with_positional_arguments_names_the_keywords(
    range: int | None, given: tuple[object, ...]
) -> None:
    i = oc.static_index("i", range=range)
    total = oc.tensor(oc.batch([1.0], [2.0], [3.0]))[i] if range else oc.number(i)
    step = oc.Context("interp").compile(oc.train.forward(total + 1.0), bindings=[i], name="step")
    call: Any = step
    with pytest.raises(oc.UsageError, match=r"step\(i=\.\.\.\)") as caught:
        call(*given)
    assert "ctx[x] = array in front of the call" in str(caught.value)
    step(i=2)  # the failed call leaves the routine as it was


def test_a_call_with_data_of_a_routine_without_indices_says_where_data_go() -> None:
    x = oc.placeholder("x", output=[2])
    step: Any = oc.Context("interp").compile(oc.train.forward(x + 1.0))
    with pytest.raises(oc.UsageError, match=r"ctx\[x\] = array"):
        step(np.zeros(2))
