"""Kernels of a plan as a stream, so that code generation overlaps with scheduling."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ocannl_core.ir.kernels.nodes import (
    FinishedStep,
    LeafStep,
    Plan,
    StepRule,
    rewrite_steps,
    unchanged,
)


class KernelStream:
    """The steps of a plan in the order of execution; the next one is computed on demand.

    A code generator that iterates over the stream renders the first kernels, and may start a
    compiler on them, before the others are scheduled. One that needs the whole plan calls `plan`.
    Steps are computed once: iterating again yields the same objects, which the plan has as well.

    Attributes:
        error: The error that ended scheduling, if one did.
    """

    def __init__(self, steps: Generator[FinishedStep, None, Plan]) -> None:
        self.error: BaseException | None = None
        self._steps = steps
        self._finished: list[FinishedStep] = []
        self._plan: Plan | None = None

    @classmethod
    def of(cls, plan: Plan) -> KernelStream:
        """Return the steps of a plan."""
        return cls(rewrite_steps(plan, unchanged))

    def __iter__(self) -> Iterator[FinishedStep]:
        position = 0
        while position < len(self._finished) or self._advance():
            yield self._finished[position]
            position += 1

    def plan(self) -> Plan:
        """Return the whole plan, after computing the steps that are still missing."""
        while self._advance():
            pass
        assert self._plan is not None
        return self._plan

    def _advance(self) -> bool:
        if self._plan is not None:
            return False
        try:
            self._finished.append(next(self._steps))
        except StopIteration as end:
            if end.value is None:  # a generator that has raised is exhausted
                raise RuntimeError("scheduling has failed before") from None
            self._plan = end.value
            return False
        except BaseException as error:
            self.error = error
            raise
        return True


def map_steps(plan: Plan, rule: StepRule[LeafStep]) -> Plan:
    """Apply a rule to every step of a plan."""
    return KernelStream(rewrite_steps(plan, rule)).plan()
