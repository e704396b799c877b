"""Actions of the host between the steps of a routine: results leave while later ones are computed.

    kernels -> action -> kernels -> action -> ...

A call without actions runs the same kernels in the same order, so that the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ocannl_core.backend.protocols import Buffer, DivisibleExecutable, Launcher
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.stages import Build
from ocannl_core.ir.kernels.nodes import Plan, nodes_written
from ocannl_core.ir.node import TensorNode

Action = Callable[[Sequence[int]], None]
"""An action between two steps. It gets the numbers of the results that have become complete since
the last one.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Pauses:
    """The pauses of a routine: one after each step from the first complete result on."""

    results: tuple[AbstractSet[TensorNode], ...]
    """Groups of nodes; a group is complete after the last step that writes one of them."""
    action: Action


def completion(plan: Plan, results: Sequence[AbstractSet[TensorNode]]) -> list[int]:
    """Return the number of steps of a plan after which each group of nodes is complete."""
    last = {
        node: number for number, step in enumerate(plan.steps, 1) for node in nodes_written(step)
    }
    return [max((last.get(node, 0) for node in group), default=0) for group in results]


def launcher_with_pauses(
    built: Build,
    buffers: Mapping[TensorNode, Buffer],
    merge_buffers: Mapping[TensorNode, Buffer] | None,
    pauses: Pauses,
) -> Launcher | None:
    """Return a launcher that pauses between steps; None where routines launch as a whole."""
    executable, count = built.executable, len(built.plan.steps)
    if not isinstance(executable, DivisibleExecutable) or count == 0:
        return None
    at = [max(1, number) for number in completion(built.plan, pauses.results)]
    ends = sorted({*range(min(at, default=count), count), count})
    launchers = built.backend.link_parts(executable, buffers, merge_buffers, ends)
    parts = [
        (launch, tuple(k for k, number in enumerate(at) if number == end))
        for launch, end in zip(launchers, ends, strict=True)
    ]
    action = pauses.action

    def launch(values: Sequence[int]) -> None:
        for part, complete in parts:
            part(values)
            action(complete)

    return launch
