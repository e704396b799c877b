"""Generated code compiled by its backend, or by the backends of its parts."""

from __future__ import annotations

from ocannl_core.backend.protocols import Executable, Source
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile.parts import Device, PartitionedSource


def compile_generated(source: Source, device: Device) -> Executable:
    """Return generated code compiled for a device, or its parts for theirs.

    Args:
        device: The device of the context; the others of a partition stay.
    """
    backend, target = device
    if not isinstance(source, PartitionedSource):
        return backend.compile(source, target)
    from ocannl_core.compile.partitioned_executable import PartitionedExecutable

    return PartitionedExecutable(replace(source, devices=(device, *source.devices[1:])))
