"""The passes over the loop language, in the order in which they run.

accesses            which unit reads and writes what (`trace`); found by the pass that needs it
inline              definitions go where their nodes are read; what nothing depends on goes away
simplify            algebra, constants, comparisons decided by bounds
read one-hot        a reduction that selects one entry of a table becomes a load
forward fills, hoist invariants, share subexpressions
contract            multiply-adds are fused, unless the setting `contract` is off
allocate scratch    what only this routine uses becomes its own memory
remove dead stores
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ocannl_core import settings
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.passes.contract import contract
from ocannl_core.passes.cse import share_subexpressions
from ocannl_core.passes.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.findings import Findings
from ocannl_core.passes.hoist import hoist_invariants
from ocannl_core.passes.one_hot import read_one_hot


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
    algebra = (NamedPass("contract", contract),) if settings.current().contract else ()
    return (
        NamedPass("inline", findings.inline),
        NamedPass("simplify", findings.simplify),
        NamedPass("read one-hot", read_one_hot),
        NamedPass("forward fills", forward_fills),
        NamedPass("hoist invariants", hoist_invariants),
        NamedPass("share subexpressions", share_subexpressions),
        *algebra,
        NamedPass("allocate scratch", findings.allocate),
        NamedPass("remove dead stores", remove_dead_stores),
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
