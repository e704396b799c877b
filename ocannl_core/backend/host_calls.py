"""External operations on backends whose memory this process cannot address.

The inputs are copied to arrays of this process, the operation runs on these arrays, and the outputs
are copied back. A backend runs the function that `host_call` returns between two kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ocannl_core.backend.protocols import Buffer, Event, HostBuffer
from ocannl_core.base.errors import TransferError
from ocannl_core.ir.host_arrays import interior
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.node import TensorNode


def host_call(
    call: CallExternal,
    buffers: Mapping[TensorNode, Buffer],
    transfer: Callable[[Buffer, Buffer], Event | None],
) -> Callable[[], None]:
    """Return a function that runs an external operation over memory of a device.

    A transfer from the device must not finish before the kernels that compute the inputs. If the
    operation fails, the device's memory stays as it was.

    Args:
        transfer: Copies to the first buffer from the second, as the hook `ocannl_transfer` does.
    """
    hosts = {
        node: HostBuffer(
            np.zeros(buffers[node].info.buffer_dims, buffers[node].info.dtype.numpy),
            buffers[node].info,
        )
        for node in dict.fromkeys((*call.inputs, *call.outputs))
    }
    arrays = {node: interior(host.array, host.info) for node, host in hosts.items()}
    # margins of an output are copied too, so that copying it back preserves them
    fetched = [n for n in hosts if n in call.inputs or hosts[n].info.padding]
    inputs = [arrays[node] for node in call.inputs]
    outputs = [arrays[node] for node in call.outputs]

    def copy(destination: Buffer, source: Buffer) -> None:
        event = transfer(destination, source)
        if event is None:
            raise TransferError(
                "A backend copies between its memory and that of this process.",
                found=f"no transfer from {source.target} to {destination.target}",
                where=f"calling {call.op.name}",
            )
        event.wait()

    def run() -> None:
        for node in fetched:
            copy(hosts[node], buffers[node])
        call.op.perform(inputs, outputs)
        for node in dict.fromkeys(call.outputs):
            copy(buffers[node], hosts[node])

    return run
