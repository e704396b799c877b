"""Hook specifications of a backend, grouped by purpose.

A backend is a module (or object) whose functions carry `hookimpl` and the names below, registered
under the entry-point group `ocannl.backends`; the entry point's name is the backend's name. The
module states `OCANNL_API = (1, 0)`. The classes are protocols, so a type checker can check a plugin
against them. Hooks run on cold paths only: compiling, allocating, copying. Running a compiled
routine calls the `Launcher` that `Executable.link` returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pluggy

from ocannl_core.backend import protocols
from ocannl_core.base.errors import DeviceError
from ocannl_core.ir.kernels.library_product import LibraryCall, LibraryProduct
from ocannl_core.ir.kernels.nodes import LeafStep, NodeInfos
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.node import MemoryMode, ModeChoice, NodeInfo, TensorNode
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.passes.loops.pipeline import NamedPass

PROJECT = "ocannl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class DeviceHooks(Protocol):
    """Hooks that list the devices of this machine."""

    @hookspec(firstresult=True)
    def ocannl_targets(self) -> protocols.TargetReport:
        """Return the devices that can be used now, or the reason why there are none.

        Called without any driver loaded; must not raise for a missing driver, compiler or device,
        and must import no more than detection needs.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_device_error(self, error: BaseException) -> DeviceError | None:
        """Return the failure of a device that an exception of the plugin or its libraries reports;
        None for exceptions that report none.

        Called with exceptions of hooks, launchers and events that are no errors of the project.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_memory_statistics(self, target: Target) -> protocols.MemoryStatistics | None:
        """Return the memory of a device as its driver counts it; None if it states nothing."""
        ...

    @hookspec(firstresult=True)
    def ocannl_time_launch(
        self, launcher: protocols.Launcher, values: Sequence[int], target: Target
    ) -> float | None:
        """Call a launcher once, wait for its work, and return the seconds that the device took by
        its own clock. Without this hook, the time on the host is measured, that of the call
        included. A hook that returns None must not have called the launcher.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_described(self) -> Mapping[str, Target]:
        """Return devices that this machine need not have, by names for users such as `aarch64`:
        code is generated for them, and never run.

        Each has `has_device=False`. No driver, compiler or device is needed.
        """
        ...


class CodegenHooks(Protocol):
    """Hooks that generate and compile code."""

    @hookspec
    def ocannl_passes(self, target: Target) -> list[NamedPass]:
        """Return passes to run after the core's own, in order."""
        ...

    @hookspec(firstresult=True)
    def ocannl_refuse(self, step: LeafStep, nodes: NodeInfos, target: Target) -> str | None:
        """Return why the backend cannot compile a step, as a clause; None if it can.

        Called for each finished step, before `ocannl_generate` gets it. All parts of the language
        that the step needs are declared in the target.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_library(self, product: LibraryProduct, target: Target) -> LibraryCall | None:
        """Return the call of a library that computes a product; None to generate a kernel.

        Called for each product of two tensors before its schedule is chosen, with the setting
        `libraries` only. The answer depends on the arguments alone, since generated code is cached.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_generate(self, kernels: KernelStream, target: Target) -> protocols.Source:
        """Return the code of a routine. Needs no device.

        `kernels.plan()` is the whole routine. Iterating over `kernels` yields its steps in order,
        each with the nodes that it mentions, as soon as the step is scheduled; a backend may
        start to compile a kernel while the next ones are scheduled. Errors of the scheduler
        propagate from the stream.

        Raises:
            CodegenError: for a statement or number format that the backend cannot express.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_compile(self, source: protocols.Source, target: Target) -> protocols.Executable:
        """Return the compiled form of a source that `ocannl_generate` of the same backend returned.

        Raises:
            CompileError: with the command, its output and the path of the source.
        """
        ...


class MemoryHooks(Protocol):
    """Hooks that place and allocate memory."""

    @hookspec(firstresult=True)
    def ocannl_resolve_mode(
        self, node: TensorNode, info: NodeInfo, candidates: tuple[MemoryMode, ...], target: Target
    ) -> MemoryMode | ModeChoice | None:
        """Return one of `candidates`, the modes that the core left open, perhaps with a reason; or
        None for the first one.

        Called for each node that neither the context stores nor the user has placed, at each
        compilation: *virtual* inlines it, *local* is memory of the routine, *on device* memory of
        the context.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_allocate(self, info: NodeInfo, target: Target) -> protocols.Buffer:
        """Return new memory of `info.nbytes` zero bytes, released with the buffer."""
        ...


class TransferHooks(Protocol):
    """Hooks that copy cells."""

    @hookspec(firstresult=True)
    def ocannl_import(self, array: object, target: Target) -> protocols.Buffer | None:
        """Return memory of the device that an object of another library describes, without a copy;
        None if it describes no memory of such devices.

        The buffer keeps the object alive, and later work of the device comes after the work that
        fills the memory. Its info has the format and the extents of the object, and no margins.

        Raises:
            TransferError: if the memory is of another device, in no format of the project, or not
                in row-major order without gaps.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_share(self, buffer: protocols.Buffer, target: Target) -> protocols.Buffer | None:
        """Return memory of the device that is the memory of another backend's buffer, with its
        info; None if the device cannot address it.

        Memory of this process has an attribute `array`, a NumPy array of `info.memory_dims`. A
        routine that runs on both devices then copies nothing between them.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_transfer(
        self, destination: protocols.Buffer, source: protocols.Buffer
    ) -> protocols.Event | None:
        """Copy cells between buffers of equal format and extents.

        Return None for a pair that the backend does not serve. A backend must serve host to device
        and device to host (`HostBuffer`). A transfer calls the hook of the destination's backend
        first, then the source's; pairs that neither serves are copied through the host.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_synchronize(self, target: Target) -> bool:
        """Wait for all work of the device; return True. Without this hook, all work is finished
        when the call that submits it returns.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_record_event(self, target: Target) -> protocols.Event | None:
        """Return the event after all work submitted to the device so far, without waiting for it.

        Another device, or the host, waits for it before it uses the results. Without this hook, or
        with None, `ocannl_synchronize` is called in the place of waiting for the event.
        """
        ...

    @hookspec(firstresult=True)
    def ocannl_wait_event(self, event: protocols.Event, target: Target) -> bool | None:
        """Let the work submitted to the device from now on begin after an event, without waiting
        for it; return True.

        The event is one that a launcher, `ocannl_transfer` or `ocannl_record_event` of any backend
        returned. Return None for one that the device cannot wait for: then the host waits.
        """
        ...


ALL_SPECS: tuple[type, ...] = (DeviceHooks, CodegenHooks, MemoryHooks, TransferHooks)
