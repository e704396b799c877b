"""The passes over the loop language, in the order in which they run.

accesses            which unit reads and writes what (`trace`); found by the pass that needs it
inline              definitions go where their nodes are read; what nothing depends on goes away
simplify            algebra, constants, comparisons decided by bounds
allocate scratch    what only this routine uses becomes its own memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.passes.findings import Findings
from ocannl_core.passes.simplify import simplify


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A function from programs to programs, and the name under which its result is shown."""

    name: str
    run: Callable[[LoopProgram], LoopProgram]


def core_passes(findings: Findings) -> tuple[NamedPass, ...]:
    """Returns the passes that every backend shares, in the order in which they run.

    Args:
        findings: What the context keeps; takes what the passes decide.
    """
    return (
        NamedPass("inline", findings.inline),
        NamedPass("simplify", simplify),
        NamedPass("allocate scratch", findings.allocate),
    )


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
