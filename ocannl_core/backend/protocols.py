"""Objects that cross the boundary between the core and a backend.

A backend generates code for a plan (`Source`), compiles it (`Executable`), and owns memory
(`Buffer`). A backend brings its own classes.

`ocannl doctor` prints checks of an installation. A distribution that is no backend has checks of
its own: an entry point of the group `ocannl.checks`, whose name follows `ocannl doctor`, refers to
a function that returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ocannl_core.base.errors import printable
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.target import Target

BACKEND_API = (1, 1)
"""The version of this boundary: a new major version for each breaking change, a new minor one for
new primitives and features. A plugin states the version that it needs as `OCANNL_API`. The versions
and the period for which each is accepted are in `docs/reference/backend_versions.md`.
"""

# fmt: off
NAMES_SINCE = {
    (1, 1): frozenset((
        "DeviceError", "DeviceFailure", "MemoryStatistics", "OCANNL_SETTINGS", "Target.has_device",
        "Target.primitives", "Target.survives_forks", "UnsupportedError", "allocate_pieces",
        "arithmetic.EVERY_PRIMITIVE", "arithmetic.Primitives", "arithmetic.UnaryOp.BITCAST",
        "arithmetic.primitives_of", "files.PackagedCompiler", "files.cache_variables",
        "files.packaged_compiler", "files.replacement", "host_memory_statistics", "instructions",
        "launches.CompilerVectorization", "libraries", "linked_buffer", "loops.AxisKind.DOT",
        "loops.Verbatim", "loops.raise_failed_check", "memory", "ocannl_described",
        "ocannl_device_error", "ocannl_library", "ocannl_memory_statistics", "ocannl_refuse",
        "ocannl_share", "ocannl_time_launch", "queues.process_lock", "refresh", "register",
        "rendering.NotVectorizedError", "settings.of_plugin", "settings.setting",
    ))
}
# fmt: on
"""The names that each version after 1.0 has added: of `backend_api` and, with a point, of its
modules, fields of `Target`, hooks, and constants of plugins. The name of a module stands for all of
it.
"""

VERSIONS_PAGE = "docs/reference/backend_versions.md"
"""The page on versions of this boundary, for messages."""


HOST = Target("host", description="memory of this Python process", priority=-1)


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The devices of a backend on this machine, or the reason why there are none.

    Attributes:
        targets: The devices that can be used now.
        reason: The reason why there are none, as one sentence; empty when there are some.
        fix: A repair by the user.
        details: Facts worth showing in a report: compiler, driver, versions.
        priority: The priority that the missing devices would have; choosing a backend of lower
            priority in their place warns with the reason.
    """

    targets: tuple[Target, ...] = ()
    reason: str = ""
    fix: str = ""
    details: tuple[str, ...] = ()
    priority: int = 0


@runtime_checkable
class Source(Protocol):
    """Generated code: the result of `Routine.source`. A backend's own class may hold more.

    A plugin whose sources are frozen dataclasses of nothing but data states their class as
    `OCANNL_SOURCE`: generated code is then cached on disk, and later processes that compile the
    same program do not generate it again.
    """

    @property
    def language(self) -> str: ...

    @property
    def text(self) -> str: ...


@runtime_checkable
class Buffer(Protocol):
    """Memory of a device holding the cells of one node, margins included, in row-major order.

    Memory of another library may have an attribute `is_read_only`, which is True if no routine may
    write it.
    """

    @property
    def target(self) -> Target: ...

    @property
    def info(self) -> NodeInfo: ...


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """An array of this process as a buffer: one end of every transfer with the host."""

    array: np.ndarray[Any, Any]
    info: NodeInfo

    @property
    def target(self) -> Target:
        return HOST


class Event(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Return when all earlier work has finished."""
        ...


@dataclass(frozen=True, slots=True)
class Done:
    """The event of work that was finished when it was submitted."""

    def wait(self) -> None:
        return


Launcher = Callable[[Sequence[int]], Event | None]
"""A routine bound to its memory: a function of the values of its static indices, in the order of
the plan's `indices`.

On an asynchronous device it returns before the work is finished: with the event of its end, or
with None where `ocannl_synchronize` waits for it. Work of one device takes effect in the order of
submission.
"""


class Executable(Protocol):
    """The compiled code of one routine, not bound to memory."""

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        """Return a callable that runs the routine over these buffers; all addresses are resolved
        here.

        Args:
            buffers: The memory of the plan's `params`; scratch nodes belong to the executable.
            merge_buffers: The merge buffers that the routine reads, by node.
        """
        ...


@runtime_checkable
class DivisibleExecutable(Executable, Protocol):
    """An executable whose steps can run in several launches, so that a caller may act in between:
    it sends the first results of a routine while later ones are computed.
    """

    def link_parts(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None,
        ends: Sequence[int],
    ) -> Sequence[Launcher]:
        """Return a launcher for each of consecutive parts of the plan's `steps`, over common
        memory. Run one after the other they are the routine.

        Args:
            buffers: The memory of the plan's `params`.
            merge_buffers: The merge buffers that the routine reads, by node.
            ends: The number of steps before the end of each part, ascending; the last is the number
                of all steps.
        """
        ...


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """The memory of a device as its driver counts it, in bytes.

    Attributes:
        total: The size of the memory.
        free: The bytes that can be allocated; other processes may take them.
        in_use: The bytes that this process holds, memory kept for reuse included; None if unknown.
        peak: The greatest number of bytes that it has held; None if unknown.
    """

    total: int
    free: int
    in_use: int | None = None
    peak: int | None = None


class CheckOutcome(Enum):
    """The outcome of a check."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        what: The subject of the check.
    """

    what: str
    outcome: CheckOutcome
    found: str = ""
    fix: str = ""

    def __str__(self) -> str:
        first, *details = self.found.splitlines() or [""]
        lines = [f"{self.outcome.value:<5} {self.what}" + (f": {first}" if first else "")]
        lines += [f"      {line}" for line in details]
        lines += [f"      try  {line}" for line in self.fix.splitlines()]
        return printable("\n".join(lines))
