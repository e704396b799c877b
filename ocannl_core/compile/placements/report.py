"""The report of a search over placements, and listeners to the results of searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.compile.profile import duration
from ocannl_core.compile.tuned_placements import Flip


@dataclass(frozen=True, slots=True)
class Arm:
    """Placements that a search has tried."""

    title: str
    """Their difference from the fastest ones so far."""
    seconds: float | None
    """The least time of a run; None if it was not timed."""
    fastest: float | None
    """The least time of the fastest placements before, sampled in turn with it."""
    problem: str = ""
    """The reason why it lost without being timed; empty if it was timed."""

    def __str__(self) -> str:
        if self.seconds is None or self.fastest is None:
            return f"{self.title}: {self.problem}"
        return f"{self.title}: {duration(self.seconds)} beside {duration(self.fastest)}"


@dataclass(frozen=True, slots=True)
class PlacementTuning:
    """The result of a search over the placements of a routine; printable."""

    name: str
    """The routine's name."""
    candidates: int
    """The number of nodes that may be virtual and may be local."""
    default_seconds: float
    """The least time of a run with the default placements."""
    seconds: float
    """The time of the fastest placements."""
    kept: tuple[Flip, ...]
    """The differences of the fastest placements from the default."""
    arms: tuple[Arm, ...]
    """All that was tried beside the default, in order."""
    left: int
    """The number of candidates that were not flipped in the end, for lack of time."""
    budget: float
    """The seconds that the search might spend."""
    spent: float
    """The seconds that it spent."""
    is_known: bool = False
    """True if an earlier search was complete, so that nothing was tried."""
    problem: str = ""
    """The reason why nothing could be tried; empty otherwise."""

    @property
    def is_faster(self) -> bool:
        """Return True if other placements than the default are in force."""
        return bool(self.kept)

    @property
    def failed(self) -> tuple[Arm, ...]:
        """The arms that lost without being timed."""
        return tuple(arm for arm in self.arms if arm.problem)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        counts = [f"{self.candidates} nodes may be virtual or local"]
        counts += ["known already"] if self.is_known else [f"{len(self.arms)} arms tried"]
        counts += [f"{self.left} flips left for the next time"] if self.left else []
        spent = f"{self.spent:.1f} of {self.budget:g} s"
        yield f"placements of {self.name}: {', '.join(counts)}; {spent}"
        if self.problem:
            yield f"  nothing was tried: {self.problem}"
            return
        if self.is_faster:
            gain = 100 * (1 - self.seconds / self.default_seconds)
            yield (
                f"  {duration(self.default_seconds)} by default, {duration(self.seconds)} now "
                f"({gain:.0f} % less)"
            )
            yield from (f"  {flip}" for flip in self.kept)
        elif self.arms or self.is_known:
            yield f"  {duration(self.default_seconds)} by default; none faster"
        yield from (f"  arm {arm}" for arm in self.arms)


Listener = Callable[[object], None]
"""Called with the printable result for a kernel, or for the placements of a routine."""

_listener: ContextVar[Listener | None] = ContextVar("listener to searches", default=None)


@contextmanager
def report_searches(listener: Listener) -> Iterator[None]:
    """Pass every result of searches inside to a function."""
    with scoped(_listener, listener):
        yield


def report(found: object) -> None:
    """Pass a result to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(found)
