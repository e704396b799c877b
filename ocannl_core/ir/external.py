"""External operations: computations outside of the loop language that loop programs call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass


class ExternalOp(Protocol):
    """A computation outside the loop language that loop programs call.

    `perform` reads `inputs` and overwrites `outputs`, both as arrays without margins; it must not
    keep them. An input that is an output too is the same memory, which `perform` changes in place.
    """

    @property
    def name(self) -> str: ...

    @property
    def line_axis(self) -> int | None:
        """The axis whose lines are computed each by itself: cells beyond an extent at run time of
        another axis affect no others. None if an output cell may follow from all input cells.
        """
        ...

    def perform(
        self, inputs: Sequence[np.ndarray[Any, Any]], outputs: Sequence[np.ndarray[Any, Any]]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Code of an external operation in the language of a backend.

    In scope of the body is an array for every input and output, under the names below, and nothing
    else of the surrounding code. For an array `x` it may also use `x_size` (its number of cells),
    `x_shape` (an array of its extents) and `x_type` (the type of its cells). `$name`, in the body
    and in the support code, is a name private to this operation.

    Attributes:
        body: Statements.
        inputs: The names of the inputs.
        outputs: The names of the outputs.
        support: Declarations and functions in front of it.
        headers: Header files, such as `<math.h>`.
        grid: Extents of the grid of thread blocks, for devices that have one.
        block: Extents of a thread block, for devices that have one.
        workspace: The bytes of memory that the body finds under the name `workspace`, aligned for
            all types and of any content; a function of the extents of the inputs.
        origin: The operation and the user's line that applied it, for messages.
        iterations: The number of iterations that threads may share, and the cycles of each; a
            function of the extents of the inputs. The body runs those from `begin` to `end`, which
            are integers in its scope. No iteration accesses a cell that another one writes, and
            each thread has a workspace of its own. None for one thread.
    """

    body: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    support: str = ""
    headers: tuple[str, ...] = ()
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    workspace: Callable[[Sequence[tuple[int, ...]]], int] | None = None
    origin: str = ""
    iterations: Callable[[Sequence[tuple[int, ...]]], tuple[int, float] | None] | None = None


@runtime_checkable
class NativeOp(Protocol):
    """An external operation that may have code in the language of a backend."""

    def native(self, language: str) -> NativeCode | None:
        """Return the code in a language such as `c`, or None without any."""
        ...
