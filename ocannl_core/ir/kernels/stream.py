"""Kernels of a plan as a stream, so that code generation overlaps with scheduling."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from ocannl_core.ir.kernels import nodes as kernel_ir


class KernelStream:
    """The steps of a plan in the order of execution; the next one is computed on demand.

    A code generator that iterates over the stream renders the first kernels, and may start a
    compiler on them, before the others are scheduled. One that needs the whole plan calls `plan`.
    Steps are computed once: iterating again yields the same objects, which the plan has as well.

    Attributes:
        error: The error that ended scheduling, if one did.
    """

    def __init__(self, steps: Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]) -> None:
        self.error: BaseException | None = None
        self._steps = steps
        self._finished: list[kernel_ir.FinishedStep] = []
        self._plan: kernel_ir.Plan | None = None

    @classmethod
    def of(cls, plan: kernel_ir.Plan) -> KernelStream:
        """Return the steps of a plan."""
        return cls(kernel_ir.rewrite_steps(plan, kernel_ir.unchanged))

    def __iter__(self) -> Iterator[kernel_ir.FinishedStep]:
        position = 0
        while position < len(self._finished) or self._advance():
            yield self._finished[position]
            position += 1

    def plan(self) -> kernel_ir.Plan:
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


def map_steps(
    plan: kernel_ir.Plan, rewrite: kernel_ir.StepRewrite[kernel_ir.LeafStep]
) -> kernel_ir.Plan:
    """Rewrite every step of a plan."""
    return KernelStream(kernel_ir.rewrite_steps(plan, rewrite)).plan()
