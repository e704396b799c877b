"""A loaded backend: one typed method for each hook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import pluggy

from ocannl_core.errors import CodegenError, CompileError, LinkError, OcannlError, TransferError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.hooks.host_staging import stage
from ocannl_core.hooks.plugins import describe
from ocannl_core.kernels.nodes import Plan
from ocannl_core.kernels.stream import KernelStream
from ocannl_core.node import MemoryMode, NodeInfo, TensorNode
from ocannl_core.target import Buffer, Event, Executable, Source, Target, TargetReport

if TYPE_CHECKING:
    from ocannl_core.passes.pipeline import NamedPass


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """A loaded backend.

    Attributes:
        name: The name of its entry point.
        distribution: The installed distribution.
        version: The version of that distribution.
        manager: The pluggy manager of its plugin, the fallbacks and the wrappers.
    """

    name: str
    distribution: str
    version: str
    manager: pluggy.PluginManager = field(repr=False)

    @property
    def plugin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()

    @property
    def is_synchronous(self) -> bool:
        """True if work is finished when the call that submits it returns: the plugin has no
        `ocannl_synchronize`.
        """
        return len(self.manager.hook.ocannl_synchronize.get_hookimpls()) == 1

    def targets(self) -> TargetReport:
        """Return the usable devices; an exception of the hook becomes the reason of the report."""
        try:
            report: object = self.manager.hook.ocannl_targets()
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, OcannlError) else describe(error)
            return TargetReport(
                reason=f"looking for devices failed: {reason}", fix=self._defect_fix()
            )
        if not isinstance(report, TargetReport):
            reason = f"ocannl_targets must return a TargetReport, and returned {report!r}"
            return TargetReport(reason=reason, fix=self._defect_fix())
        foreign = [str(target) for target in report.targets if target.backend != self.name]
        if foreign:
            reason = f"it reports devices of another backend: {', '.join(foreign)}"
            return TargetReport(reason=reason, fix=self._defect_fix())
        if not report.targets and not report.reason:
            return TargetReport(
                reason="it reports no device and no reason", fix=report.fix, details=report.details
            )
        return report

    def passes(self, target: Target) -> list[NamedPass]:
        """Return the passes that the backend adds after the core's own."""
        answers: list[list[NamedPass]] = self.manager.hook.ocannl_passes(target=target)
        return [each for answer in answers for each in answer]

    def generate(self, kernels: KernelStream | Plan, target: Target) -> Source:
        """Return the code of a routine.

        Raises:
            CodegenError: if the backend cannot express it.
        """
        stream = KernelStream.of(kernels) if isinstance(kernels, Plan) else kernels
        source: Source | None = self.manager.hook.ocannl_generate(kernels=stream, target=target)
        if source is None:
            raise CodegenError(**self._missing("generates no code", "ocannl_generate"))
        return source

    def source_class(self) -> type[Any] | None:
        """Return the class of sources that can be kept on disk; None if the backend states none."""
        stated: object = getattr(self.manager.get_plugin(self.name), "OCANNL_SOURCE", None)
        return stated if isinstance(stated, type) else None

    def compile(self, source: Source, target: Target) -> Executable:
        """Return the compiled form of generated code.

        Raises:
            CompileError: if the compiler is missing or rejects the code.
        """
        executable: Executable | None = self.manager.hook.ocannl_compile(
            source=source, target=target
        )
        if executable is None:
            raise CompileError(**self._missing("compiles no code", "ocannl_compile"))
        return executable

    def resolve_mode(
        self,
        node: TensorNode,
        info: NodeInfo,
        candidates: tuple[MemoryMode, ...],
        target: Target,
    ) -> MemoryMode:
        """Return the memory mode that the backend chooses; without a choice, the first candidate.

        Raises:
            CodegenError: if the backend returns none of the candidates.
        """
        chosen: MemoryMode | None = self.manager.hook.ocannl_resolve_mode(
            node=node, info=info, candidates=candidates, target=target
        )
        if chosen is None:
            return candidates[0]
        if chosen not in candidates:
            raise CodegenError(
                "A backend may only choose among the memory modes that are still open.",
                found=f"{chosen} for {node.name}; open: {[each.value for each in candidates]}",
                where=f"backend {self.name}, plugin {self.plugin}",
                fix=self._defect_fix(),
            )
        return chosen

    def allocate(self, info: NodeInfo, target: Target) -> Buffer:
        """Return new memory for the cells of a node, all zero."""
        buffer: Buffer | None = self.manager.hook.ocannl_allocate(info=info, target=target)
        if buffer is None:
            raise LinkError(**self._missing("allocates no memory", "ocannl_allocate"))
        return buffer

    def transfer(self, destination: Buffer, source: Buffer) -> Event:
        """Copy cells to or from a device of this backend, or between two of them.

        Raises:
            TransferError: if the buffers differ in format or extents, or the backend does not serve
                them.
        """
        return transfer(self, self, destination, source)

    def try_transfer(self, destination: Buffer, source: Buffer) -> Event | None:
        """Copy cells if this backend serves the pair; return None if it does not."""
        event: Event | None = self.manager.hook.ocannl_transfer(
            destination=destination, source=source
        )
        return event

    def synchronize(self, target: Target) -> None:
        """Return when all work of the device has finished."""
        self.manager.hook.ocannl_synchronize(target=target)

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
    destination_backend: Backend | None,
    source_backend: Backend | None,
    destination: Buffer,
    source: Buffer,
) -> Event:
    """Copy cells between buffers of equal format and extents.

    The hook of the destination's backend runs first, then that of the source's; a pair that neither
    serves is copied through the host.

    Args:
        destination_backend: The owner of the destination; None for an array of this process.
        source_backend: The owner of the source; None for an array of this process.

    Raises:
        TransferError: if the buffers differ, or no backend connects them.
    """
    _check_equal(destination, source)
    asked: list[Backend] = []
    for backend in (destination_backend, source_backend):
        if backend is not None and backend not in asked:
            asked.append(backend)
            event = backend.try_transfer(destination, source)
            if event is not None:
                return event
    if destination_backend is not None and source_backend is not None:
        event = stage(
            destination,
            source,
            to_destination=destination_backend.try_transfer,
            from_source=source_backend.try_transfer,
        )
        if event is not None:
            return event
    raise _no_way(destination, source, asked)


def _check_equal(destination: Buffer, source: Buffer) -> None:
    wanted, given = destination.info, source.info
    if wanted.dtype is not given.dtype or wanted.buffer_dims != given.buffer_dims:
        formats = [f"{info.dtype} {list(info.buffer_dims)}" for info in (given, wanted)]
        raise TransferError(
            "A transfer must connect buffers of equal number format and extents.",
            found=f"{formats[0]} to {formats[1]}",
            where=f"from {source.target} to {destination.target}",
            fix="convert the values before copying them",
        )


def _no_way(destination: Buffer, source: Buffer, asked: Sequence[Backend]) -> TransferError:
    plugins = ", ".join(f"{backend.name} ({backend.plugin})" for backend in asked)
    return TransferError(
        "A backend must copy between its devices and the host.",
        found=f"no way from {source.target} to {destination.target}, not even by way of the host",
        where=f"called: {plugins}" if plugins else "no backend was called",
        fix="this is a defect of the plugin: report it to its authors"
        if asked
        else "name the backends",
    )
