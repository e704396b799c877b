"""Functions that run routines: arguments, rejected arguments, and references."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import ocannl_cpu_c as backend
from ocannl_core.base.errors import LinkError
from ocannl_core.ir.indexing import FixedIndex, StaticIndex, VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import Binary, Block, Const, For, IndexValue, Load, Stmt, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target

TARGET = Target("cpu_c")
OUT, TWO = TensorNode(0, ("out",)), NodeInfo(float32, (2,))


def linked(*stmts: Stmt, indices=()):
    """Return a launcher, and the cells that it writes."""
    steps = tuple(Kernel(Block((stmt,)), (OUT,), indices) for stmt in stmts)
    plan = Plan("calls", steps, (OUT,), (), indices, {OUT: TWO})
    executable = backend.ocannl_compile(
        backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET
    )
    buffer = backend.ocannl_allocate(TWO, TARGET)
    return executable.link({OUT: buffer}), buffer.array


@pytest.fixture
def pair():
    indices = StaticIndex("first"), StaticIndex("second")
    stores = [
        Store(OUT, (FixedIndex(position),), IndexValue(VarIndex(index), float32))
        for position, index in enumerate(indices)
    ]
    return linked(*stores, indices=indices)


class Number:
    def __index__(self) -> int:
        return -5


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_values_are_any_sequence(pair, kind):
    launch, out = pair
    launch(kind([3, -1]))
    assert out.tolist() == [3.0, -1.0]


def test_values_are_objects_with_index(pair):
    launch, out = pair
    launch([Number(), np.int16(-1)])
    assert out.tolist() == [-5.0, -1.0]
    launch([-(2**63), 2**62])
    assert out.tolist() == [-(2.0**63), 2.0**62]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ([1, 2, 3], LinkError),
        ([], LinkError),
        (["1", 2], TypeError),
        ([1, 2.0], TypeError),
        ([2**63, 0], OverflowError),
        (3, TypeError),
        ({1, 2}, TypeError),
    ],
)
def test_other_values_are_errors_and_nothing_runs(pair, values, error):
    launch, out = pair
    out[...] = 9
    with pytest.raises(error):
        launch(values)
    assert out.tolist() == [9.0, 9.0]
    launch([1, 2])
    assert out.tolist() == [1.0, 2.0]


def test_calls_neither_keep_nor_lose_references(pair):
    launch, _ = pair
    number, count = 10**15, 1000
    values = [number, number]
    before = [sys.getrefcount(each) for each in (number, values, None)]
    for _ in range(count):
        assert launch(values) is None
    after = [sys.getrefcount(each) for each in (number, values, None)]
    assert all(abs(new - old) < count // 2 for old, new in zip(before, after, strict=True))


def test_memory_lives_as_long_as_the_function():
    launch, out = linked(Store(OUT, (FixedIndex(0),), Const(1.0, float32)))
    memory = weakref.ref(out)
    del out
    gc.collect()
    assert memory() is not None
    launch(())
    del launch
    gc.collect()
    assert memory() is None


def test_other_threads_of_python_run_meanwhile():
    cell, outer, inner = (FixedIndex(0),), fresh_var(), fresh_var()
    # every sum needs the one before
    total = Binary(BinaryOp.ADD, Load(OUT, cell, float32), Const(1.0, float32), float32)
    loop = For(inner, 0, 10000, Block((Store(OUT, cell, total),)))
    launch, _ = linked(For(outer, 0, 10000, Block((loop,))))
    span: list[float] = []

    def run() -> None:
        span.append(time.perf_counter())
        launch(())
        span.append(time.perf_counter())

    thread = threading.Thread(target=run)
    times = []
    thread.start()
    while thread.is_alive():
        times.append(time.perf_counter())
        time.sleep(0.001)
    begin, end = span
    quarter = (end - begin) / 4
    assert any(begin + quarter < each < end - quarter for each in times)
