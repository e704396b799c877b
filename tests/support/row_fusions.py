"""Row fusions that a schedule in text states, for tests of the loops that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.kernels.row_fusion import Member, RowFusion, nodes_written_by_rows
from ocannl_core.ir.kernels.transforms import (
    FoldStorage,
    FuseRows,
    GroupTransform,
    Inline,
    KernelSchedule,
    Schedule,
    StreamStores,
    schedule_text,
)
from ocannl_core.ir.loops.nodes import Block
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.kernels.rows.apply import FusedLoops


@dataclass(frozen=True)
class FusedNests:
    """The loops of fused nests, and the nests that combine their partial results."""

    body: Block
    sums: tuple[Nest, ...]
    partial: tuple[TensorNode, ...]
    nodes: NodeInfos


def fuse_rows(nests: Sequence[Nest], schedule: KernelSchedule, nodes: NodeInfos) -> FusedNests:
    """Fuse nests that run one after the other into loops over rows.

    Args:
        schedule: Their schedule. Folded and inlined nodes must not be read by anything else.

    Raises:
        UsageError: for a schedule that does not fit the nests, or not their dependences.
    """
    fusion, schedules = row_fusion_of(nests, schedule)
    loops = FusedLoops(fusion, nodes)
    body = loops.build(schedules)
    return FusedNests(body, loops.sums(), loops.partial, loops.new_nodes)


def row_fusion_of(
    nests: Sequence[Nest], schedule: KernelSchedule
) -> tuple[RowFusion, tuple[Schedule, ...]]:
    """Return the fusion that a schedule states, and the schedules inside of rows.

    Raises:
        UsageError: if the schedule is not one of so many nests.
    """
    starts = [at for at, each in enumerate(schedule) if isinstance(each, FuseRows)]
    if len(starts) != len(nests) or starts[:1] != [0]:
        raise UsageError(
            f"A schedule of {len(nests)} nests that run together has the rows of each.",
            found=schedule_text(schedule),
        )
    members: list[Member] = []
    schedules: list[Schedule] = []
    along: set[int] = set()
    ends = [*starts[1:], len(schedule)]
    for at, (nest, start, end) in enumerate(zip(nests, starts, ends, strict=True)):
        rows = schedule[start]
        assert isinstance(rows, FuseRows)
        members.append(Member(nest, rows.axes))
        tail = schedule[start + 1 : end]
        inner = tuple(each for each in tail if not isinstance(each, GroupTransform))
        if not rows.is_along:
            schedules.append(inner)
        elif at == 0 or inner:
            raise UsageError(
                "A nest that runs along has the schedule of the one before.",
                found=schedule_text(schedule),
            )
        else:
            along.add(at)
    written = nodes_written_by_rows(members)
    storage = [each for each in schedule if isinstance(each, FoldStorage | Inline | StreamStores)]
    if any(each.written >= len(written) for each in storage):
        raise UsageError(
            f"These nests write {len(written)} nodes row by row, which are numbered from 0.",
            found=schedule_text(schedule),
        )
    first = schedule[0]
    assert isinstance(first, FuseRows)
    folded, inlined, streamed = (
        tuple(written[each.written] for each in storage if isinstance(each, kind))
        for kind in (FoldStorage, Inline, StreamStores)
    )
    storages = folded, inlined, streamed, first.threads
    found = RowFusion(tuple(members), first.size, first.groups, frozenset(along), *storages)
    return found, tuple(schedules)
