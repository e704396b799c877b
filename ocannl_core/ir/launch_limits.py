"""Limits of the launches of a device, and the needs of a launch.

A backend states the limits of a device as `ThreadBlocks.limits`, from its driver. `check_launch`
compares the two before the driver is called, whose own error would name neither the limit nor the
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod

from ocannl_core.base.errors import LaunchLimitError
from ocannl_core.base.fast_dataclass import dataclass

Extents = tuple[int, int, int]


class Limit(Enum):
    """A quantity of a launch that a device limits; the value is its name for people."""

    THREADS = "threads of a block"
    BLOCK_X = "threads along axis x of a block"
    BLOCK_Y = "threads along axis y of a block"
    BLOCK_Z = "threads along axis z of a block"
    GRID_X = "blocks along axis x of the grid"
    GRID_Y = "blocks along axis y of the grid"
    GRID_Z = "blocks along axis z of the grid"
    DECLARED_BYTES = "bytes of shared memory that a kernel declares"
    SHARED_BYTES = "bytes of shared memory of a block"
    REGISTERS = "registers of a block"


_FIXES = {
    Limit.THREADS: "launch fewer threads in a block, and more blocks",
    Limit.BLOCK_X: "launch fewer threads in a block, and more blocks",
    Limit.BLOCK_Y: "launch the threads of a block along axis x",
    Limit.BLOCK_Z: "launch the threads of a block along axis x",
    Limit.GRID_X: "distribute the blocks over axes x and y of the grid, or let each compute more",
    Limit.GRID_Y: "distribute the blocks along axis x of the grid",
    Limit.GRID_Z: "distribute the blocks along axis x of the grid",
    Limit.DECLARED_BYTES: "declare smaller arrays, or state their size at the launch",
    Limit.SHARED_BYTES: "share fewer cells in a block",
    Limit.REGISTERS: "launch fewer threads in a block",
}

_OTHERWISE = "compute the tensor in parts; `OCANNL_SCHEDULE=none` chooses other launches"


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """The largest launch of a device in each quantity.

    Attributes:
        threads: The threads of a block.
        block: The threads along the axes x, y and z of a block.
        grid: The blocks along the axes x, y and z of the grid.
        declared_bytes: The shared memory that a kernel may declare; it opts in to more.
        shared_bytes: The shared memory of a block.
        registers: The registers of all threads of a block together; 0 if unknown.
    """

    threads: int
    block: Extents
    grid: Extents
    declared_bytes: int
    shared_bytes: int
    registers: int = 0

    def table(self) -> tuple[tuple[Limit, int], ...]:
        """Return every known limit with its value."""
        values = (self.threads, *self.block, *self.grid, self.declared_bytes, self.shared_bytes)
        rows = tuple(zip(Limit, (*values, self.registers), strict=True))
        return rows if self.registers else rows[:-1]

    def __str__(self) -> str:
        block, grid = (" x ".join(map(str, each)) for each in (self.block, self.grid))
        registers = f", {self.registers} registers" if self.registers else ""
        return (
            f"at most {self.threads} threads in a block ({block}), {grid} blocks, "
            f"{self.shared_bytes} bytes of shared memory in a block ({self.declared_bytes} "
            f"declared){registers}"
        )


@dataclass(frozen=True, slots=True)
class LaunchNeeds:
    """The quantities of a launch that devices limit.

    Attributes:
        grid: The extents of the grid, x first; axes that are left out have one block.
        block: The extents of a block, x first; axes that are left out have one thread.
        declared_bytes: The shared memory that the kernel declares.
        shared_bytes: All shared memory of a block.
        registers: The registers of a thread; 0 if unknown.
    """

    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    declared_bytes: int = 0
    shared_bytes: int = 0
    registers: int = 0

    def table(self) -> tuple[tuple[Limit, int], ...]:
        """Return every quantity with its value."""
        threads = prod(self.block)
        values = (
            threads,
            *_three(self.block),
            *_three(self.grid),
            self.declared_bytes,
            self.shared_bytes,
            self.registers * threads,
        )
        return tuple(zip(Limit, values, strict=True))


def _three(extents: Sequence[int]) -> Extents:
    """Return the extents of three axes; further axes are a factor of the last one."""
    x, y, z, *more = (*extents, 1, 1, 1)
    return x, y, z * prod(more)


def exceeded(needs: LaunchNeeds, limits: LaunchLimits) -> list[tuple[Limit, int, int]]:
    """Return the limits that a launch exceeds, with its need and the limit."""
    most = dict(limits.table())
    return [(limit, n, most[limit]) for limit, n in needs.table() if n > most.get(limit, n)]


def check_launch(
    needs: LaunchNeeds,
    limits: LaunchLimits | None,
    device: str,
    where: str,
    title: str = "",
    *,
    is_stated: bool = False,
) -> None:
    """Check that a device runs a launch; without limits it does.

    Args:
        limits: The limits of the device.
        device: The device for messages.
        where: The kernel for messages.
        title: The title of the kernel in its plan.
        is_stated: True if an operation of the user, and no schedule, states the launch.

    Raises:
        LaunchLimitError: if it exceeds some limit; it names all of them.
    """
    found = [] if limits is None else exceeded(needs, limits)
    if not found:
        return
    fixes = dict.fromkeys(_FIXES[limit] for limit, *_ in found) if is_stated else (_OTHERWISE,)
    raise LaunchLimitError(
        "A launch of a kernel stays within the limits of its device.",
        found="\n".join(
            f"{need} {limit.value}, of which {device} has at most {most}"
            for limit, need, most in found
        ),
        where=where,
        fix="; ".join(fixes),
        title=title,
    )
