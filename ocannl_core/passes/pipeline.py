"""The passes over the loop language, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ocannl_core.loopir.nodes import LoopProgram


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A function from programs to programs, and the name under which dumps and observers show its result."""

    name: str
    run: Callable[[LoopProgram], LoopProgram]


Observer = Callable[[str, LoopProgram], None]
"""Called with a pass's name and its result; `"lower"` stands for the program before any pass."""


def run_passes(
    program: LoopProgram, passes: Sequence[NamedPass], observers: Sequence[Observer] = ()
) -> LoopProgram:
    """Returns the program after all passes; every observer sees every intermediate program."""
    for observer in observers:
        observer("lower", program)
    for each in passes:
        program = each.run(program)
        for observer in observers:
            observer(each.name, program)
    return program
