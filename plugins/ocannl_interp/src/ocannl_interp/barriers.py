"""Statements that pause at barriers, as generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ocannl_core.backend_api import VerifyError
from ocannl_core.backend_api.loops import Barrier, Block, For, Staged, Stmt
from ocannl_interp.python_code import Action, Frame

Steps = Callable[[Frame], Iterator[Barrier]]
"""An action that can be paused: yields the barrier at which it waits."""


def lockstep(members: Sequence[Iterator[Barrier]]) -> Iterator[Barrier]:
    """Yield each barrier once all members have reached it.

    Raises:
        VerifyError: if some members wait at a barrier that others do not reach.
    """
    while True:
        reached = [next(member, None) for member in members]
        first = reached[0] if reached else None
        if any(barrier is not first for barrier in reached):
            waiting = sum(barrier is not None for barrier in reached)
            raise VerifyError(
                "All BLOCK iterations come to the same barriers.",
                found=f"{waiting} of {len(reached)} iterations wait, not all at the same barrier",
            )
        if first is None:
            return
        yield first


def contains_barrier(stmt: Stmt) -> bool:
    """Return True if the statement, or one inside it, is a barrier."""
    match stmt:
        case Barrier():
            return True
        case Block(stmts):
            return any(map(contains_barrier, stmts))
        case For(body=body) | Staged(body=body):
            return contains_barrier(body)
        case _:
            return False


def unpaused(action: Action) -> Steps:
    def run(frame: Frame) -> Iterator[Barrier]:
        action(frame)
        return iter(())

    return run


def paused_loop(frame: Frame, slot: int, positions: range, body: Steps) -> Iterator[Barrier]:
    for position in positions:
        frame[slot] = position
        yield from body(frame)
