"""Memory of devices with an address space of their own: an allocator, buffers, transfers, and the
addresses of a routine's arguments.
"""

from ocannl_core.runtime.arena import Arena
from ocannl_core.runtime.device_memory import (
    AddressableMemory,
    Allocator,
    DeviceBuffer,
    DeviceMemory,
    MemoryBlock,
    RoutineMemory,
    transfer,
)

# fmt: off
__all__ = [
    "AddressableMemory", "Allocator", "Arena", "DeviceBuffer", "DeviceMemory", "MemoryBlock",
    "RoutineMemory", "transfer",
]
# fmt: on
