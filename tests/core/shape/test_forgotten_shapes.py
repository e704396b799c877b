"""The state of inference for shapes that nothing refers to."""

from __future__ import annotations

import sys
from itertools import product
from threading import Event, Thread

import pytest

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin
from ocannl_core.shape import environment as environment_module
from ocannl_core.shape.environment import Axes, Environment
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.language.subscripts import StaticSlice
from ocannl_core.shape.translation.logic import Einsum, Logic, Pointwise, Slice
from tests.support.forgetting import forgetting, freeze_heap

_LOGICS: list[Logic] = [
    *(Einsum(parse_spec(text)) for text in ("2*i, => i", "i => 0", "..., 2*i => ..., i")),
    *(Einsum(parse_spec(text)) for text in ("a^b, ... => a, ...", "2*i,2*j => i,j")),
    Slice((StaticSlice(0, 2),)),
    Slice((StaticSlice(None, None, -2),)),
    Pointwise(),
]


def _outcome(logics: tuple[Logic, ...], held: int, results: Axes) -> str:
    """Return one of the shapes of a chain of operations, closed after the others have been
    dropped, or the error.
    """
    environment = Environment()
    shapes = [environment.fresh_shape(batch=[], input=[])]
    environment.leaf(shapes[0], Origin("parameter p"), parameter=True)
    try:
        for logic in logics:
            shapes.append(environment.fresh_shape(batch=[], input=[], output=results))
            environment.relate(logic, shapes[-1], shapes[-2:-1], Origin("operation"))
        shape = shapes[held]
        del shapes
        environment.close([shape])
    except ShapeError as error:
        return str(error)
    return str(environment.view(shape))


@pytest.mark.filterwarnings("ignore::ocannl_core.base.errors.SpecWarning")
@pytest.mark.parametrize("results", [None, [], [1]], ids=["open", "scalars", "of one cell"])
def test_dropped_shapes_still_decide_others(results: Axes) -> None:
    programs = [*product(product(_LOGICS, repeat=2), range(3))]
    expected = [_outcome(logics, held, results) for logics, held in programs]
    with forgetting():
        for (logics, held), shape in zip(programs, expected, strict=True):
            assert _outcome(logics, held, results) == shape, (logics, held)
    assert len({*expected}) >= 5


def _chain(environment: Environment, length: int) -> Shape:
    shape = environment.fresh_shape(output=[3])
    for _ in range(length):
        operand, shape = shape, environment.fresh_shape()
        environment.relate(Pointwise(), shape, [operand], Origin("operation"))
    environment.close([shape])
    return shape


def test_memory_does_not_grow_with_the_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_module, "LEAST_GARBAGE", 500)
    entries = []
    freeze_heap()
    environment = Environment()
    held = _chain(environment, 5)
    for _ in range(40):
        assert str(environment.view(_chain(environment, 10))) == "3"
        entries.append(sum(map(len, environment._state.tables)))
    assert max(entries[20:]) < 1.2 * max(entries[:20])
    assert str(environment.view(held)) == "3"


def test_other_threads_read_shapes_meanwhile() -> None:
    interval = sys.getswitchinterval()
    environment = Environment()
    held, stopped, wrong = _chain(environment, 5), Event(), []

    def read() -> None:
        while not stopped.is_set():
            if (found := str(environment.view(held))) != "3":
                wrong.append(found)

    thread = Thread(target=read)
    thread.start()
    try:
        sys.setswitchinterval(1e-6)
        with forgetting():
            _chain(environment, 30)
    finally:
        sys.setswitchinterval(interval)
        stopped.set()
        thread.join()
    assert not wrong
