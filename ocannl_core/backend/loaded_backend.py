"""A loaded backend: one typed method for each hook."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pluggy

from ocannl_core.backend.device_failures import DeviceFailures, failure_in
from ocannl_core.backend.host_staging import stage
from ocannl_core.backend.plugins import describe, describe_hang
from ocannl_core.backend.protocols import (
    BACKEND_API,
    Buffer,
    DivisibleExecutable,
    Done,
    Event,
    Executable,
    Launcher,
    MemoryStatistics,
    Source,
    TargetReport,
)
from ocannl_core.backend.results import (
    shown,
    text_of,
    violation_of_buffer,
    violation_of_described,
    violation_of_event,
    violation_of_executable,
    violation_of_import,
    violation_of_launcher,
    violation_of_library_call,
    violation_of_passes,
    violation_of_report,
    violation_of_source,
    violation_of_statistics,
)
from ocannl_core.backend.time_limit import call_within
from ocannl_core.backend.watched_event import WatchedEvent, unwatched
from ocannl_core.base import errors, settings, timeline
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.ir.kernels.library_product import OfferProduct
from ocannl_core.ir.kernels.nodes import LeafStep, NodeInfos, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.node import MemoryMode, ModeChoice, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE, primitives_of
from ocannl_core.ir.target import Capability, Target

if TYPE_CHECKING:
    from ocannl_core.passes.loops.pipeline import NamedPass

T = TypeVar("T")

_WITHOUT_DEVICE = frozenset(
    {"ocannl_targets", "ocannl_generate", "ocannl_compile", "ocannl_passes", "ocannl_resolve_mode"}
)
"""Hooks whose errors of the system are about files and compilers."""
_WORK = frozenset(
    {
        "ocannl_allocate",
        "ocannl_import",
        "ocannl_record_event",
        "ocannl_share",
        "ocannl_synchronize",
        "ocannl_time_launch",
        "ocannl_transfer",
        "ocannl_wait_event",
    }
)
"""Hooks that are not called for an unusable device."""
_NEEDED = ("ocannl_generate", "ocannl_compile", "ocannl_allocate", "ocannl_transfer")
"""The hooks that running a program needs, beside `ocannl_targets`."""
_PATIENCE = "repair the driver that it waits for, or raise the setting plugin_timeout"


def _printable(report: TargetReport) -> TargetReport:
    """Return a report whose texts have no effect on a terminal."""
    return replace(
        report,
        targets=tuple(
            replace(t, description=errors.printable(t.description)) for t in report.targets
        ),
        reason=errors.printable(report.reason),
        fix=errors.printable(report.fix),
        details=tuple(map(errors.printable, report.details)),
    )


@dataclass(frozen=True, slots=True)
class DefectReport(TargetReport):
    """A report in the place of one that a defective plugin did not make."""


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """A loaded backend."""

    name: str
    """The name of its entry point."""
    distribution: str
    version: str
    manager: pluggy.PluginManager = field(repr=False)
    """The pluggy manager of its plugin, the fallbacks and the wrappers."""
    key: str
    """The key in the registry: its name, followed by `@` and its distribution if another plugin of
    that name comes first.
    """
    failures: DeviceFailures = field(default_factory=DeviceFailures, repr=False)
    """Its devices that are unusable."""
    hung: dict[float, TargetReport] = field(default_factory=dict, repr=False)
    """The report on a search for devices that hung, by its time limit."""

    @property
    def plugin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def stated_api(self) -> tuple[int, int]:
        """The version of the interface for which its plugin was written."""
        stated: tuple[int, int] = getattr(
            self.manager.get_plugin(self.name), "OCANNL_API", BACKEND_API
        )
        return stated

    @property
    def is_synchronous(self) -> bool:
        """True if submitted work is finished at once: the plugin has no `ocannl_synchronize`."""
        plugin = self.manager.get_plugin(self.name)
        return not callable(getattr(plugin, "ocannl_synchronize", None))

    @property
    def stages_uploads(self) -> bool:
        """True if a copy from the host takes the cells at once, and takes effect after the earlier
        work of the device: the plugin states `OCANNL_STAGES_UPLOADS`.
        """
        plugin = self.manager.get_plugin(self.name)
        return getattr(plugin, "OCANNL_STAGES_UPLOADS", False) is True

    @property
    def orders_copies(self) -> bool:
        """True if a device begins a copy after the earlier work of its own: the plugin has
        `ocannl_wait_event`, or states that it stages copies from the host.
        """
        plugin = self.manager.get_plugin(self.name)
        return self.stages_uploads or callable(getattr(plugin, "ocannl_wait_event", None))

    def lacking(self) -> tuple[str, ...]:
        """Return the hooks that running a program needs and that the plugin does not implement."""
        plugin, hooks = self.manager.get_plugin(self.name), self.manager.hook
        return tuple(
            hook
            for hook in _NEEDED
            if not any(each.plugin is plugin for each in getattr(hooks, hook).get_hookimpls())
        )

    def targets(self) -> TargetReport:
        """Return the usable devices; an exception of the hook becomes the reason of the report. A
        search that hung is not repeated with the same time limit.
        """
        limit = settings.current().plugin_timeout
        if limit in self.hung:
            return self.hung[limit]
        try:
            report: object = call_within(limit, self.manager.hook.ocannl_targets)
            violation = violation_of_report(report, self.name)
        except TimeoutError as error:
            reason = f"looking for devices hangs: {describe_hang(error)}"
            return self.hung.setdefault(limit, self._defect(reason, _PATIENCE))
        except errors.HookError as error:
            return self._defect(f"looking for devices failed: {error.found}", error.fix)
        except BaseException as error:
            reraise_interruption(error)
            reason = text_of(error) if isinstance(error, errors.OcannlError) else describe(error)
            return self._defect(f"looking for devices failed: {reason}")
        if violation:
            return self._defect(violation)
        assert isinstance(report, TargetReport)
        report = self._with_primitives(_printable(report))
        if not report.targets and not report.reason:
            return self._defect("it reports no device and no reason")
        self.failures.note_listed(report.targets)
        return report

    def _with_primitives(self, report: TargetReport) -> TargetReport:
        """Return a report whose targets have the primitives of the version of the interface that
        the plugin states, where they state none.
        """
        known = primitives_of(self.stated_api)
        if len(known) == len(EVERY_PRIMITIVE):
            return report
        targets = (
            each if each.primitives is not None else replace(each, primitives=known)
            for each in report.targets
        )
        return replace(report, targets=tuple(targets))

    def passes(self, target: Target) -> list[NamedPass]:
        """Return the passes that the backend adds after the core's own; their results are
        verified, so that defects show where they arise.
        """
        hook = "ocannl_passes"
        answers: Any = self._call(hook, target=target)
        for answer in answers:
            if violation := violation_of_passes(answer):
                raise self.fault(hook, violation)
        return [self._watched(each) for answer in answers for each in answer]

    def described(self) -> Mapping[str, Target]:
        """Return the devices that the plugin describes by name, of which none need be here."""
        found: Mapping[str, Target] | None = self._answer(
            "ocannl_described", lambda each: violation_of_described(each, self.name)
        )
        return {} if found is None else found

    def library(self, target: Target) -> OfferProduct | None:
        """Return the backend's choice of library calls for products; None if it has none, or the
        settings exclude them.
        """
        chosen = settings.current()
        is_allowed = chosen.libraries and chosen.accumulation != "exact"
        is_allowed = is_allowed and Capability.EXTERNAL_CALLS in target.capabilities
        if not is_allowed or not self.manager.hook.ocannl_library.get_hookimpls():
            return None
        return lambda product: self._answer(
            "ocannl_library", violation_of_library_call, product=product, target=target
        )

    @property
    def may_refuse(self) -> bool:
        """True if the plugin has `ocannl_refuse`, or a wrapper observes it."""
        return bool(self.manager.hook.ocannl_refuse.get_hookimpls())

    def refuse(self, step: LeafStep, nodes: NodeInfos, target: Target) -> str | None:
        """Return why the backend cannot compile a step; None if it can."""
        hook = "ocannl_refuse"
        reason: object = self._call(hook, step=step, nodes=nodes, target=target)
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise self.fault(hook, f"it must return a reason or None, and returned {shown(reason)}")
        return None if reason is None else errors.printable(reason)

    def generate(self, kernels: KernelStream | Plan, target: Target) -> Source:
        """Return the code of a routine.

        Raises:
            CodegenError: if the backend cannot express it.
        """
        hook = "ocannl_generate"
        stream = KernelStream.of(kernels) if isinstance(kernels, Plan) else kernels
        try:
            source: Source | None = self.manager.hook.ocannl_generate(kernels=stream, target=target)
        except BaseException as error:
            if stream.error is not None:  # of the scheduler
                raise stream.error from None
            self.raise_fault(hook, error)
        if source is None:
            raise errors.CodegenError(**self._missing("generates no code", hook))
        return self._checked(hook, source, violation_of_source(source))

    def text(self, source: Source) -> str:
        """Return the text of generated code, which a source may compute when it is read."""
        hook = "text of a Source"
        try:
            text: object = source.text
        except BaseException as error:
            self.raise_fault(hook, error)
        if not isinstance(text, str):
            raise self.fault(hook, f"it must be a text, and is {shown(text)}")
        return text

    def source_class(self) -> type[Any] | None:
        """Return the class of sources that can be kept on disk; None if the backend states none."""
        stated: object = getattr(self.manager.get_plugin(self.name), "OCANNL_SOURCE", None)
        return stated if isinstance(stated, type) else None

    def compile(self, source: Source, target: Target) -> Executable:
        """Return the compiled form of generated code.

        Raises:
            CompileError: if the compiler is missing or rejects the code.
        """
        hook = "ocannl_compile"
        executable: Executable | None = self._call(hook, source=source, target=target)
        if executable is None:
            raise errors.CompileError(**self._missing("compiles no code", hook))
        return self._checked(hook, executable, violation_of_executable(executable))

    def link(self, executable: Executable, *buffers: Mapping[TensorNode, Buffer]) -> Launcher:
        """Return a function that runs compiled code over memory.

        Args:
            buffers: The memory of its parameters, and of merge buffers if it reads any.

        Raises:
            MemoryError: if the device has too little memory for the routine's own nodes.
        """
        hook = "Executable.link"
        try:
            launcher: Launcher = executable.link(*buffers)
        except BaseException as error:
            self.raise_fault(hook, error, *self._devices_of(*buffers[0].values()))
        return self._checked(hook, launcher, violation_of_launcher(launcher))

    def link_parts(
        self,
        executable: DivisibleExecutable,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None,
        ends: Sequence[int],
    ) -> Sequence[Launcher]:
        """Return functions that run parts of compiled code over memory.

        Args:
            ends: The number of steps before the end of each part.

        Raises:
            MemoryError: if the device has too little memory for the routine's own nodes.
        """
        hook = "DivisibleExecutable.link_parts"
        try:
            parts = executable.link_parts(buffers, merge_buffers, ends)
        except BaseException as error:
            self.raise_fault(hook, error, *self._devices_of(*buffers.values()))
        if not isinstance(parts, Sequence) or len(parts) != len(ends):
            raise self.fault(hook, f"it must return {len(ends)} launchers, not {shown(parts)}")
        return [self._checked(hook, each, violation_of_launcher(each)) for each in parts]

    @property
    def places_nodes(self) -> bool:
        """Return True if the plugin chooses memory modes, or a wrapper observes choices."""
        return bool(self.manager.hook.ocannl_resolve_mode.get_hookimpls())

    def resolve_mode(
        self, node: TensorNode, info: NodeInfo, candidates: tuple[MemoryMode, ...], target: Target
    ) -> Placement | None:
        """Return the memory mode that the backend chooses, with its reason; None without a choice.

        Args:
            candidates: The modes that are open; the first one holds without a choice.

        Raises:
            HookError: if the backend returns none of the candidates.
        """
        hook = "ocannl_resolve_mode"
        answer: MemoryMode | ModeChoice | None = self._call(
            hook, node=node, info=info, candidates=candidates, target=target
        )
        if answer is None or answer is candidates[0]:
            return None
        choice = answer if isinstance(answer, ModeChoice) else ModeChoice(answer)
        if not any(choice.mode is each for each in candidates):
            still_open = ", ".join(each.value for each in candidates)
            found = f"it returned {shown(choice.mode)} for {node.name}; open are {still_open}"
            raise self.fault(hook, found)
        if not isinstance(choice.reason, str):
            raise self.fault(hook, f"the reason of a choice is a text, not {shown(choice.reason)}")
        reason = errors.printable(" ".join(choice.reason.split()))
        return Placement(choice.mode, Reason.BACKEND_CHOICE, reason)

    def allocate(self, info: NodeInfo, target: Target) -> Buffer:
        """Return new memory for the cells of a node, all zero.

        Raises:
            MemoryError: if the device has too little.
        """
        hook = "ocannl_allocate"
        buffer: Buffer | None = self._call(hook, info=info, target=target)
        if buffer is None:
            raise errors.LinkError(**self._missing("allocates no memory", hook))
        return self._checked(hook, buffer, violation_of_buffer(buffer, info, target))

    def import_array(self, array: object, target: Target) -> Buffer | None:
        """Return memory of another library on a device as a buffer; None if it has no access."""
        return self._answer(
            "ocannl_import",
            lambda buffer: violation_of_import(buffer, target),
            array=array,
            target=target,
        )

    def share(self, buffer: Buffer, target: Target) -> Buffer | None:
        """Return another backend's buffer as memory of a device; None if not addressable."""
        return self._answer(
            "ocannl_share",
            lambda found: violation_of_buffer(found, buffer.info, target),
            buffer=buffer,
            target=target,
        )

    def transfer(self, destination: Buffer, source: Buffer) -> Event:
        """Copy cells to or from a device of this backend, or between two of them.

        Raises:
            TransferError: if the buffers differ in format or extents, or are not served.
        """
        return transfer(self, self, destination, source)

    def try_transfer(self, destination: Buffer, source: Buffer) -> Event | None:
        """Copy cells if this backend serves the pair; return None if it does not."""
        hook = "ocannl_transfer"
        if timeline.is_on():
            name = f"{source.info.nbytes} bytes from {source.target} to {destination.target}"
            with timeline.span("transfer", name):
                timed: Event | None = self._call(hook, destination=destination, source=source)
                if timed is not None:
                    timed = self.checked_event(hook, timed, *self._devices_of(destination, source))
                if timed is not None:
                    timed.wait()
                return timed
        event: Event | None = self._call(hook, destination=destination, source=source)
        if event is None or type(event) is Done:
            return event
        return self.checked_event(hook, event, *self._devices_of(destination, source))

    def synchronize(self, target: Target) -> None:
        """Return when all work of the device has finished."""
        hook = "ocannl_synchronize"
        answer: object = self._call(hook, target=target)
        if answer is not True:
            raise self.fault(hook, f"it must return True, and returned {shown(answer)}")

    def record_event(self, target: Target) -> Event | None:
        """Return the event after all work submitted so far; None if the backend has no events."""
        hook = "ocannl_record_event"
        event: Event | None = self._call(hook, target=target)
        return None if event is None else self.checked_event(hook, event, target)

    def wait_event(self, event: Event, target: Target) -> bool:
        """Let the work submitted to the device from now on begin after an event; return False if
        the device cannot wait for it, so that the host must.
        """
        hook = "ocannl_wait_event"
        answer: object = self._call(hook, event=unwatched(event), target=target)
        if answer is not None and answer is not True:
            raise self.fault(hook, f"it must return True or None, and returned {shown(answer)}")
        return answer is True

    def checked_event(self, hook: str, event: Event, *targets: Target) -> Event:
        """Return the event that a hook has returned; waiting for it names the plugin in errors.

        Args:
            targets: The devices whose work it is, the first one foremost.
        """
        if type(event) is Done:
            return event
        found = self._checked(hook, event, violation_of_event(event))
        return WatchedEvent(found, hook, partial(self._raise_fault_of, targets))

    def launch(self, launcher: Launcher, values: Sequence[int], target: Target) -> Event | None:
        """Call a launcher of a device, outside of the routines of a context."""
        try:
            return launcher(values)
        except BaseException as error:
            self.raise_fault("a launcher", error, target)

    def fault(self, hook: str, found: str) -> errors.HookError:
        """Return the error of a hook that breaks its specification."""
        return errors.HookError(
            "A hook of a plugin works and returns what its specification states.",
            found=f"{hook}: {found}",
            where=f"backend {self.name}, plugin {self.plugin}",
            fix=self._defect_fix(),
        )

    def raise_fault(self, hook: str, error: BaseException, *targets: Target) -> NoReturn:
        """Raise the error of a hook: errors of the project and of memory unchanged, failures of a
        device as a `DeviceError`, others as a `HookError` that names the plugin.

        Args:
            targets: The devices whose work it was. The first one is unusable after a failure that
                states no other device, if it states that its device is unusable.
        """
        failure: errors.DeviceError | None = None
        placed: errors.DeviceError | None = None
        try:
            reraise_interruption(error)
            failure = error if isinstance(error, errors.DeviceError) else None
            if failure is None:
                if isinstance(error, errors.OcannlError | MemoryError):
                    raise error
                failure = self._failure_of(error, hook)
            if failure is None:
                raise self.fault(hook, f"it raised {describe(error)}") from error
            device = next((str(each) for each in targets if each.has_device), "")
            placed = failure.at(f"{hook}, backend {self.name}", device)
            if placed.device:
                self.failures.record(placed)
            if failure is error and failure.where and failure.device:
                raise error
            raise placed from error
        finally:
            # in a cycle with its traceback an error would keep memory of the device alive
            del error, failure, placed

    def _raise_fault_of(
        self, targets: Sequence[Target], hook: str, error: BaseException
    ) -> NoReturn:
        try:
            self.raise_fault(hook, error, *targets)
        finally:
            del error

    def _devices_of(self, *buffers: Buffer | None) -> tuple[Target, ...]:
        """Return the devices of this backend among those of buffers, the destination's first."""
        found = (each.target for each in buffers if each is not None)
        return tuple(each for each in found if each.backend == self.name)

    def _failure_of(self, error: BaseException, hook: str) -> errors.DeviceError | None:
        """Return the failure of a device that an exception of a plugin reports, or None."""
        name = "ocannl_device_error"
        if self.manager.hook.ocannl_device_error.get_hookimpls():
            try:
                found: object = self.manager.hook.ocannl_device_error(error=error)
            except BaseException as raised:
                reraise_interruption(raised)
                raise self.fault(name, f"it raised {describe(raised)}") from error
            if isinstance(found, errors.DeviceError):
                return found
            if found is not None:
                violation = f"it must return a DeviceError or None, and returned {shown(found)}"
                raise self.fault(name, violation) from error
        failure = None if hook in _WITHOUT_DEVICE else failure_in(error)
        return None if failure is None else errors.DeviceError(failure, found=describe(error))

    def memory_statistics(self, target: Target) -> MemoryStatistics | None:
        """Return the memory of a device as its driver counts it; None if nothing states it."""
        return self._answer("ocannl_memory_statistics", violation_of_statistics, target=target)

    def time_launch(self, launcher: Launcher, values: Sequence[int], target: Target) -> float:
        """Call a launcher, wait for its work, and return the seconds that it took: by the clock of
        the device, if the plugin reads it.
        """
        hook = "ocannl_time_launch"
        if self.manager.hook.ocannl_time_launch.get_hookimpls():
            found: object = self._call(hook, launcher=launcher, values=values, target=target)
            if found is not None:
                if not isinstance(found, float) or not 0 <= found < float("inf"):
                    violation = f"it must return a time in seconds, and returned {shown(found)}"
                    raise self.fault(hook, violation)
                return found
        before = time.perf_counter()
        self.launch(launcher, values, target)
        self.synchronize(target)
        return time.perf_counter() - before

    def _call(self, hook: str, **arguments: Any) -> Any:
        if self.failures and hook in _WORK:
            self.failures.check(*self._targets_of(arguments))
        try:
            return getattr(self.manager.hook, hook)(**arguments)
        except BaseException as error:
            self.raise_fault(hook, error, *self._targets_of(arguments))

    def _answer(self, hook: str, violation: Callable[[T], str], **arguments: Any) -> T | None:
        """Return the checked answer of a hook; None if the plugin has none, or it returns None."""
        if not getattr(self.manager.hook, hook).get_hookimpls():
            return None
        found: T | None = self._call(hook, **arguments)
        return None if found is None else self._checked(hook, found, violation(found))

    def _targets_of(self, arguments: Mapping[str, Any]) -> tuple[Target, ...]:
        """Return the devices that a call of a hook is for."""
        target = arguments.get("target")
        if target is not None:
            return (target,)
        return self._devices_of(arguments.get("destination"), arguments.get("source"))

    def _checked(self, hook: str, result: T, violation: str) -> T:
        if violation:
            raise self.fault(hook, violation)
        return result

    def _watched(self, each: NamedPass) -> NamedPass:
        """Return a pass that names the plugin if it fails or breaks the program."""
        from ocannl_core.ir.loops.nodes import LoopProgram
        from ocannl_core.ir.loops.verify import verify
        from ocannl_core.passes.loops.pipeline import NamedPass

        hook = f"ocannl_passes, pass '{each.name}'"

        def run(program: LoopProgram) -> LoopProgram:
            try:
                result: object = each.run(program)
            except BaseException as error:
                self.raise_fault(hook, error)
            if not isinstance(result, LoopProgram):
                raise self.fault(
                    hook, f"it must return a LoopProgram, and returned {shown(result)}"
                )
            try:
                verify(result)
            except errors.VerifyError as error:
                raise self.fault(hook, f"its result is no valid program: {error}") from error
            return result

        return NamedPass(each.name, run)

    def _defect(self, reason: str, fix: str = "") -> TargetReport:
        return DefectReport(reason=reason, fix=fix or self._defect_fix())

    def _missing(self, lack: str, hook: str) -> dict[str, str]:
        return {
            "rule": f"Backend '{self.name}' {lack}.",
            "found": f"no answer to {hook}",
            "where": f"plugin {self.plugin}",
            "fix": "choose another backend; `ocannl backends` lists them",
        }

    def _defect_fix(self) -> str:
        return f"this is a defect of the plugin {self.plugin}: report it to its authors"


def transfer(
    destination_backend: Backend, source_backend: Backend, destination: Buffer, source: Buffer
) -> Event:
    """Copy cells between buffers of equal format and extents.

    The hook of the destination's backend runs first, then the source's; a pair that neither serves
    is copied through the host.

    Args:
        destination_backend: The owner of the destination, or of the source of an array's cells.
        source_backend: The owner of the source, or of the destination of cells for an array.

    Raises:
        TransferError: if the buffers differ, or no backend connects them.
    """
    _check_equal(destination, source)
    asked = list(dict.fromkeys((destination_backend, source_backend)))
    for backend in asked:
        event = backend.try_transfer(destination, source)
        if event is not None:
            return event
    event = stage(
        destination,
        source,
        to_destination=destination_backend.try_transfer,
        from_source=source_backend.try_transfer,
    )
    if event is not None:
        return event
    plugins = ", ".join(f"{backend.name} ({backend.plugin})" for backend in asked)
    raise errors.TransferError(
        "A backend must copy between its devices and the host.",
        found=f"no way from {source.target} to {destination.target}, not even by way of the host",
        where=f"called: {plugins}",
        fix="this is a defect of the plugin: report it to its authors",
    )


def _check_equal(destination: Buffer, source: Buffer) -> None:
    wanted, given = destination.info, source.info
    if wanted.dtype is not given.dtype or wanted.buffer_dims != given.buffer_dims:
        formats = [f"{info.dtype} {list(info.buffer_dims)}" for info in (given, wanted)]
        raise errors.TransferError(
            "A transfer must connect buffers of equal number format and extents.",
            found=f"{formats[0]} to {formats[1]}",
            where=f"from {source.target} to {destination.target}",
            fix="convert the values before copying them",
        )
