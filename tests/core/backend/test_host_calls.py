"""External operations over memory that this process cannot address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ocannl_core.backend.host_calls import host_call
from ocannl_core.backend.protocols import Buffer, Done, Event, HostBuffer
from ocannl_core.base.errors import TransferError
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target

X, Y = TensorNode(0, ("x",)), TensorNode(1, ("y",))
PLAIN, PADDED = NodeInfo(float32, (3,)), NodeInfo(float32, (3,), (Margin(1, 1),))
FAR = Target("far")


@dataclass
class Remote:
    """Memory that only transfers read and write."""

    secret: bytes
    info: NodeInfo
    target: Target = FAR


def remote(cells: Sequence[float], info: NodeInfo = PLAIN) -> Remote:
    return Remote(np.array(cells, np.float32).tobytes(), info)


def cells(buffer: Remote) -> list[float]:
    return np.frombuffer(buffer.secret, np.float32).tolist()


def transfer(destination: Buffer, source: Buffer) -> Event | None:
    match destination, source:
        case HostBuffer(array), Remote(secret):
            array[...] = np.frombuffer(secret, np.float32)
        case Remote(), HostBuffer(array):
            destination.secret = array.tobytes()
        case _:
            return None
    return Done()


@dataclass(frozen=True)
class Does:
    function: Callable[..., Any]
    name: str = "does"
    line_axis: int | None = None

    def perform(self, inputs: Any, outputs: Any) -> None:
        self.function(inputs, outputs)


def double(inputs: Any, outputs: Any) -> None:
    outputs[0][...] = 2 * inputs[0]


def test_inputs_arrive_and_outputs_return() -> None:
    buffers = {X: remote([1, 2, 3]), Y: remote([0, 0, 0])}
    run = host_call(CallExternal(Does(double), (X,), (Y,)), buffers, transfer)
    run()
    assert cells(buffers[Y]) == [2, 4, 6]
    buffers[X].secret = remote([5, 5, 5]).secret
    run()
    assert cells(buffers[Y]) == [10, 10, 10]
    assert cells(buffers[X]) == [5, 5, 5]


def test_margins_are_not_seen_and_stay() -> None:
    buffers = {X: remote([9, 1, 2, 3, 9], PADDED), Y: remote([8, 0, 0, 0, 8], PADDED)}
    host_call(CallExternal(Does(double), (X,), (Y,)), buffers, transfer)()
    assert cells(buffers[Y]) == [8, 2, 4, 6, 8]


def test_an_input_that_is_an_output_is_one_array() -> None:
    def increment(inputs: Any, outputs: Any) -> None:
        assert np.shares_memory(inputs[0], outputs[0])
        inputs[0][...] += 1

    buffers = {X: remote([1, 2, 3])}
    host_call(CallExternal(Does(increment), (X,), (X,)), buffers, transfer)()
    assert cells(buffers[X]) == [2, 3, 4]


def test_a_failure_leaves_the_device_as_it_was() -> None:
    def fail(inputs: Any, outputs: Any) -> None:
        inputs[0][...] = 0
        raise ArithmeticError

    buffers = {X: remote([1, 2, 3])}
    run = host_call(CallExternal(Does(fail), (X,), (X,)), buffers, transfer)
    with pytest.raises(ArithmeticError):
        run()
    assert cells(buffers[X]) == [1, 2, 3]


def test_a_backend_without_a_transfer_is_an_error() -> None:
    run = host_call(CallExternal(Does(double), (X,), (X,)), {X: remote([1, 2, 3])}, lambda *_: None)
    with pytest.raises(TransferError, match="no transfer from far:0 to host:0"):
        run()
