"""Functions of the driver that PyCUDA does not wrap: graphs, events of any stream, copies of peers.

They take the handles that PyCUDA's objects state, and structures of `cuda.h` of CUDA 12 and later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    POINTER,
    byref,
    c_int,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_ulonglong,
    c_void_p,
)
from typing import Any

from ocannl_cuda.driver_probe import LIBRARY

LEGACY_STREAM = 1
"""The stream that waits for all streams that are not marked as independent of it."""
_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED: calls of other libraries during a capture are allowed."""
_REPLACE = 1
"""CU_STREAM_SET_CAPTURE_DEPENDENCIES: replace the dependences of the next node."""
_DISABLE_TIMING = 2
_NOT_READY = 600
"""CUDA_ERROR_NOT_READY: the work before an event has not finished."""
_PARAMETER_BUFFER, _PARAMETER_SIZE = 1, 2
"""CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE; 0 ends the list."""


class DriverCallError(Exception):
    """A call of the driver failed; the text has the function and the driver's explanation."""


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2.

    Attributes:
        kept: The memory of the arguments.
    """

    kept: object
    _fields_ = (
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("parameters", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


def with_arguments(params: KernelNodeParams, given: bytearray) -> KernelNodeParams:
    """Return the parameters of a launch with arguments in memory that may change afterwards.

    Args:
        params: The parameters.
        given: The arguments, packed; the result keeps them alive.
    """
    size = c_size_t(len(given))
    cells = (ctypes.c_char * len(given)).from_buffer(given)
    params.extra = (c_void_p * 5)(
        _PARAMETER_BUFFER, ctypes.addressof(cells), _PARAMETER_SIZE, ctypes.addressof(size), None
    )
    params.parameters = None
    params.kept = (cells, size)
    return params


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventQuery": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphExecKernelNodeSetParams_v2": (c_void_p, c_void_p, POINTER(KernelNodeParams)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_ulonglong),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, POINTER(KernelNodeParams)),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuStreamGetCaptureInfo_v2": (
        c_void_p,
        POINTER(c_int),
        POINTER(c_uint64),
        POINTER(c_void_p),
        POINTER(POINTER(c_void_p)),
        POINTER(c_size_t),
    ),
    "cuStreamGetCtx": (c_void_p, POINTER(c_void_p)),
    "cuStreamUpdateCaptureDependencies": (c_void_p, POINTER(c_void_p), c_size_t, c_uint),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuTensorMapEncodeTiled": (
        c_void_p,
        c_int,
        c_uint32,
        c_void_p,
        *(POINTER(each) for each in (c_uint64, c_uint64, c_uint32, c_uint32)),
        *(c_int,) * 4,
    ),
}
"""The parameters of the functions, all of which return a `CUresult`."""


class DriverCalls:
    """The functions of a driver library."""

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        self._text = library.cuGetErrorString
        self._functions: dict[str, Any] = {}
        for name, parameters in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = parameters
            self._functions[name] = function
        # the functions of every launch, copy and wait
        self._launch = self._functions["cuGraphLaunch"]
        self._record = self._functions["cuEventRecord"]
        self._wait = self._functions["cuStreamWaitEvent"]

    def release(self, name: str, handle: int) -> None:
        """Return an object to the driver; a lost context refuses, and has lost the object, too."""
        self._functions[name](handle)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            DriverCallError: if it fails.
        """
        code = self._functions[name](*arguments)
        if code:
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> DriverCallError:
        text = ctypes.c_char_p()
        self._text(code, byref(text))
        meaning = (text.value or b"an error without a text").decode(errors="replace")
        return DriverCallError(f"{name} failed: {meaning} ({code})")

    def current_context(self) -> int:
        """Return the handle of the context of this thread; 0 for none."""
        context = c_void_p()
        self.call("cuCtxGetCurrent", byref(context))
        return context.value or 0

    def context_of(self, stream: int) -> int:
        """Return the handle of the context of a stream."""
        context = c_void_p()
        self.call("cuStreamGetCtx", stream, byref(context))
        return context.value or 0

    def create_event(self) -> int:
        """Return an event without times, of the current context."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), _DISABLE_TIMING)
        return event.value or 0

    def record_event(self, event: int, stream: int) -> None:
        """Move an event behind all work so far of a stream."""
        code = self._record(event, stream)
        if code:
            raise self._error("cuEventRecord", code)

    def let_stream_wait(self, stream: int, event: int) -> None:
        """Let later work of a stream wait for an event."""
        code = self._wait(stream, event, 0)
        if code:
            raise self._error("cuStreamWaitEvent", code)

    def wait_for_event(self, event: int) -> None:
        """Return when the work before an event has finished."""
        self.call("cuEventSynchronize", event)

    def has_happened(self, event: int) -> bool:
        """Return True if the work before an event has finished."""
        code = self._functions["cuEventQuery"](event)
        if code and code != _NOT_READY:
            raise self._error("cuEventQuery", code)
        return not code

    def destroy_event(self, event: int) -> None:
        """Return an event to the driver."""
        self.release("cuEventDestroy_v2", event)

    def copy_from_peer(
        self, to: int, there: int, start: int, here: int, nbytes: int, stream: int
    ) -> None:
        """Enqueue a copy between devices.

        Args:
            to: The address of the destination.
            there: The handle of its context.
            start: The address of the source.
            here: The handle of its context.
            nbytes: The size.
        """
        self.call("cuMemcpyPeerAsync", to, there, start, here, nbytes, stream)

    def begin_capture(self, stream: int) -> None:
        """Let a stream record its work in place of running it."""
        self.call("cuStreamBeginCapture_v2", stream, _RELAXED)

    def capture_after(self, stream: int, nodes: Sequence[int]) -> None:
        """Let the work that a stream records next follow these nodes of its graph alone."""
        given = (c_void_p * len(nodes))(*nodes)
        self.call("cuStreamUpdateCaptureDependencies", stream, given, len(nodes), _REPLACE)

    def last_captured(self, stream: int) -> int:
        """Return the node of the work that a stream has recorded last."""
        status, count = c_int(), c_size_t()
        number, graph, nodes = c_uint64(), c_void_p(), POINTER(c_void_p)()
        places = byref(number), byref(graph), byref(nodes)
        self.call("cuStreamGetCaptureInfo_v2", stream, byref(status), *places, byref(count))
        if status.value != 1 or count.value != 1:
            raise DriverCallError(
                f"the capture of a stream has status {status.value} and {count.value} last nodes"
            )
        return nodes[0] or 0

    def end_capture(self, stream: int) -> int:
        """Return the graph that a stream has recorded."""
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """Return a graph made ready for launches."""
        ready = c_void_p()
        self.call("cuGraphInstantiateWithFlags", byref(ready), graph, 0)
        return ready.value or 0

    def launch_graph(self, ready: int, stream: int) -> None:
        """Enqueue all work of a graph."""
        code = self._launch(ready, stream)
        if code:
            raise self._error("cuGraphLaunch", code)

    def kernel_params(self, node: int) -> KernelNodeParams:
        """Return the parameters of a launch in a graph."""
        params = KernelNodeParams()
        self.call("cuGraphKernelNodeGetParams_v2", node, byref(params))
        return params

    def set_params(self, ready: int, node: int, params: KernelNodeParams) -> None:
        """Let later launches of a graph pass other arguments to a kernel.

        Args:
            ready: The graph, ready for launches.
            node: The launch of the kernel.
            params: Its parameters, with the arguments that `with_arguments` has set.
        """
        self.call("cuGraphExecKernelNodeSetParams_v2", ready, node, byref(params))

    def destroy_graph(self, graph: int, ready: int) -> None:
        """Release a graph, and its form that is ready for launches."""
        if ready:
            self.release("cuGraphExecDestroy", ready)
        if graph:
            self.release("cuGraphDestroy", graph)
