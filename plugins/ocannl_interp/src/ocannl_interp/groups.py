"""Iterations of BLOCK loops in lockstep: generators that pause where all of them meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ocannl_core.backend_api import VerifyError
from ocannl_core.backend_api.arithmetic import Number
from ocannl_core.backend_api.loops import Barrier, Block, For, Stmt, SubgroupReduce, Verbatim
from ocannl_interp.python_code import Action, Frame

Meeting = Barrier | SubgroupReduce
Steps = Callable[[Frame], Iterator[Meeting]]
"""An action that can be paused: yields the statement at which it waits for other iterations."""


def lockstep(members: Sequence[Iterator[Meeting]]) -> Iterator[Meeting]:
    """Yield each barrier, or reduction across iterations, once all members have reached it.

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
        case Barrier() | SubgroupReduce():
            return True
        case Block(stmts):
            return any(map(contains_barrier, stmts))
        case For(body=body) | Verbatim(body=body):
            return contains_barrier(body)
        case _:
            return False


def butterfly(
    values: Sequence[Number], own: int, combine: Callable[[Number, Number], Number]
) -> Number:
    """Return the result of one of some iterations: each step combines it with the result of the
    iteration whose number differs in one bit, the most significant one first.
    """
    results = list(values)
    apart = len(results) // 2
    while apart:
        results = [combine(each, results[at ^ apart]) for at, each in enumerate(results)]
        apart //= 2
    return results[own]


def no_subgroup(stmt: SubgroupReduce, count: int) -> VerifyError:
    return VerifyError(
        "The lanes of a reduction across iterations divide the number of BLOCK iterations.",
        found=f"{stmt.lanes} lanes, and {count} iterations",
    )


def unpaused(action: Action) -> Steps:
    def run(frame: Frame) -> Iterator[Meeting]:
        action(frame)
        return iter(())

    return run


def paused_loop(frame: Frame, slot: int, positions: range, body: Steps) -> Iterator[Meeting]:
    for position in positions:
        frame[slot] = position
        yield from body(frame)
