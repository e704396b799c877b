"""A compiled routine, and its link to memory."""

from __future__ import annotations

import hashlib
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, assert_never

import numpy as np

from ocannl_core.backend_api import (
    Buffer,
    CallExternal,
    CompileError,
    HostBuffer,
    Launcher,
    LinkError,
    RepeatedSteps,
    StaticIndex,
    Target,
    TensorNode,
    allocate_pieces,
    check_launch,
    interior,
    linked_buffer,
    make_exclusive,
)
from ocannl_core.backend_api.host_calls import host_call
from ocannl_core.backend_api.launches import Launch, RoutineSource, RunStep
from ocannl_core.backend_api.loops import raise_failed_check
from ocannl_opencl.devices import OpenCLDevice, device_of, programs
from ocannl_opencl.dialect import DIALECT
from ocannl_opencl.driver import cl
from ocannl_opencl.memory import OpenCLBuffer, transfer, zeroed
from ocannl_opencl.source import computes_with_doubles, needs_of, shape_of

Buffers = Mapping[TensorNode, Buffer]
Values = dict[StaticIndex, int]
Action = Callable[[Values], None]

_LAST_POCL_WITH_LD = 3
"""The last major version that is known to run `ld`."""


class OpenCLExecutable:
    """The compiled code of one routine, not bound to memory.

    Args:
        source: The code.
        target: The device.

    Raises:
        LaunchLimitError: if the device does not run some launch.
        CompileError: if the driver rejects the code.
    """

    def __init__(self, source: RoutineSource, target: Target) -> None:
        _check_launches(source, target)
        self._source = source
        self._target = target
        self._program = _built(source, target) if source.kernels else None

    def link(self, buffers: Buffers, merge_buffers: Buffers | None = None) -> Launcher:
        """Return a callable that enqueues the routine over these buffers.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: The merge buffers of the nodes of which the routine reads one.

        Raises:
            LinkError: if a buffer is missing, belongs to another device, or does not fit its node.
        """
        linker = _Linker(self._source, self._program, self._target, buffers, merge_buffers or {})
        return linker.launcher()


def _check_launches(source: RoutineSource, target: Target) -> None:
    """Check that a device runs all launches."""
    limits = None if target.thread_blocks is None else target.thread_blocks.limits
    for launch in source.launches:
        if isinstance(launch, Launch):
            where = f"kernel {launch.text.symbol}, {launch.title}"
            check_launch(needs_of(launch.text), limits, str(target), where, launch.title)


def _built(source: RoutineSource, target: Target) -> Any:
    """Return the program of a source, compiled by the driver now or in an earlier process."""
    found, text = device_of(target), DIALECT.unit(source.kernels)
    if not found.has_doubles:
        _check_doubles(source, target)
    _check_linker(found)
    key = hashlib.sha256("\n".join([*found.options, text]).encode()).hexdigest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program = _stored(found, key)
            if program is None:
                program = cl.Program(found.context, text)
                program.build(options=found.options, devices=[found.device])
                _store(found, key, program)
            return program
    except cl.RuntimeError as error:
        raise CompileError(
            "The compiler of the OpenCL driver rejects generated code.",
            found=str(error),
            where=f"routine {source.plan.name}",
            fix="report this as a defect, with the text of `routine.source`",
        ) from None


def _check_linker(found: OpenCLDevice) -> None:
    """Check that PoCL finds a linker, without which it ends the process."""
    pocl = re.search(r"PoCL (\d+)", found.device.platform.version)
    if pocl is not None and int(pocl[1]) <= _LAST_POCL_WITH_LD and shutil.which("ld") is None:
        raise CompileError(
            "PoCL links the code of kernels by the program `ld`.",
            found=f"no `ld` in PATH, and {found.device.platform.version.strip()}",
            fix="install it, for example by apt install binutils",
        )


def _check_doubles(source: RoutineSource, target: Target) -> None:
    """Check that no kernel computes with numbers of float64, which a device has not."""
    refused = [each.symbol for each in source.kernels if computes_with_doubles(each)]
    if refused:
        raise CompileError(
            "Kernels that compute with float64 run on a device that has it.",
            found=f"{', '.join(refused)}, and {target}, {target.description}, which has not",
            where=f"routine {source.plan.name}",
            fix="float32 in place of float64; some functions of float32, as sin, need it, too",
        )


def _stored(found: OpenCLDevice, key: str) -> Any:
    """Return a program that an earlier process compiled; None if the driver does not take it."""
    with suppress(OSError, cl.Error):
        kept = programs(found.device).find(key)
        if kept is not None:
            program = cl.Program(found.context, [found.device], [kept.content])
            return program.build(options=found.options, devices=[found.device])
    return None


def _store(found: OpenCLDevice, key: str, program: Any) -> None:
    with suppress(OSError, cl.Error):
        compiled = [each for each in program.binaries if each]
        if len(compiled) == 1:  # as for the one device that it was built for
            cache = programs(found.device)
            cache.add([key], compiled[0])
            cache.drop_old()


class _Linker:
    """The memory of one link, and the launches over it."""

    def __init__(
        self, source: RoutineSource, program: Any, target: Target, buffers: Buffers, merges: Buffers
    ) -> None:
        plan = source.plan
        self._source = source
        self._program = program
        self._target = target
        self._queue = device_of(target).queue
        self._merges = merges
        self._memory: dict[TensorNode, OpenCLBuffer] = {
            node: self._buffer(node, buffers, "buffer") for node in plan.params
        }
        self._allocate_scratch()

    def _allocate_scratch(self) -> None:
        """Allocate the nodes of the routine.

        Parts of one allocation would have to be aligned as the device demands, some to 512 bytes.
        """
        plan, target = self._source.plan, self._target
        found = allocate_pieces(plan, lambda nbytes: zeroed(nbytes, target))
        for node, memory in found.items():
            self._memory[node] = OpenCLBuffer(memory, plan.nodes[node], target)

    def launcher(self) -> Launcher:
        plan = self._source.plan
        actions = [self._action(step) for step in self._source.steps]

        def launch(values: Sequence[int]) -> None:
            if len(values) != len(plan.indices):
                raise LinkError(
                    f"The routine takes {len(plan.indices)} static indices.",
                    found=f"{len(values)} given",
                )
            known = dict(zip(plan.indices, values, strict=True))
            for action in actions:
                action(known)
            self._queue.flush()

        return make_exclusive(launch, plan.name)

    def _action(self, step: RunStep | RepeatedSteps[RunStep]) -> Action:
        match step:
            case Launch():
                return self._launch(step)
            case CallExternal():
                memory = {n: self._memory[n] for n in (*step.inputs, *step.outputs)}
                call = host_call(step, memory, transfer)
                return lambda values: call()
            case RepeatedSteps():
                return self._repetition(step)
            case _:
                assert_never(step)

    def _repetition(self, repeated: RepeatedSteps[RunStep]) -> Action:
        actions = [self._action(step) for step in repeated.steps]

        def run(values: Values) -> None:
            for number in repeated.iterations:
                values[repeated.index] = number
                for action in actions:
                    action(values)

        return run

    def _launch(self, launch: Launch) -> Action:
        """Return an action that enqueues a kernel, whose memory is bound here."""
        kernel = cl.Kernel(self._program, launch.text.symbol)
        given = [self._memory[node].memory for node in launch.arguments]
        given += [self._buffer(node, self._merges, "merge buffer").memory for node in launch.merges]
        for position, memory in enumerate(given):
            kernel.set_arg(position, memory)
        first = len(given)
        flag = zeroed(8, self._target) if launch.checks else None
        if flag is not None:
            kernel.set_arg(first + len(launch.indices), flag)
        queue, indices = self._queue, tuple(enumerate(launch.indices, first))
        grid, threads = shape_of(launch.text)
        first_axis, *others = grid
        extents = (first_axis * threads, *others), (threads, *(1 for _ in others))
        if 0 in (*grid, threads):
            return lambda values: None

        def run(values: Values) -> None:
            for position, index in indices:
                kernel.set_arg(position, np.int64(values[index]))
            try:
                cl.enqueue_nd_range_kernel(queue, kernel, *extents)
            except cl.MemoryError as error:  # drivers allocate late
                raise MemoryError(str(error)) from error
            if flag is not None:
                self._raise_failure(launch, flag, values)

        return run

    def _raise_failure(self, launch: Launch, flag: Any, values: Values) -> None:
        """Raise the error of a check that has set its flag, and clear the flag."""
        failed = np.zeros(1, np.int64)
        cl.enqueue_copy(self._queue, failed, flag, is_blocking=True)
        if not failed[0]:
            return
        cl.enqueue_fill_buffer(self._queue, flag, np.zeros(1, np.uint8), 0, 8)

        def cells_of(node: TensorNode) -> np.ndarray[Any, Any]:
            buffer = self._memory[node]
            cells = np.empty(buffer.info.buffer_dims, buffer.info.dtype.numpy)
            transfer(HostBuffer(cells, buffer.info), buffer)
            return interior(cells, buffer.info)

        raise_failed_check(launch.checks, cells_of, values.__getitem__, self._source.plan.name)

    def _reaches(self, buffer: OpenCLBuffer, buffers: Buffers) -> bool:
        """Return True if kernels can use memory: it belongs to this device, or to another device of
        the platform and is a merge buffer, which may be streamed.
        """
        if buffer.target == self._target:
            return True
        context = device_of(self._target).context
        return buffers is self._merges and device_of(buffer.target).context == context

    def _buffer(self, node: TensorNode, buffers: Buffers, what: str) -> OpenCLBuffer:
        return linked_buffer(
            buffers,
            node,
            self._source.plan.nodes[node],
            OpenCLBuffer,
            what,
            is_reached=lambda buffer: self._reaches(buffer, buffers),
        )
