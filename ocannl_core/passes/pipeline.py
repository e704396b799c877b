"""The passes over the loop language, in the order in which they run.

inline                 definitions go where their nodes are read; what nothing depends on goes away
simplify               algebra, constants, comparisons decided by bounds
read one-hot           a reduction that selects one entry of a table becomes a load
forward fills          initial values go into the first update of a node, or right in front of it
hoist invariants       what every iteration computes alike is computed before the loop
share subexpressions   what is computed twice with the same result is computed once
split at guards        loops are cut where conditions on their variables change
contract               multiply-adds are fused, unless the setting `contract_to_fma` is off
allocate scratch       what only this routine uses becomes its own memory
remove dead stores     what is overwritten before it is read is not written

Inlining comes first, since it decides what there is to simplify, and rests on the accesses of the
naive program (`accesses.trace`). Fills are forwarded before invariants move, while a nest is still
one store under its loops; products and sums are fused when nothing is left to share between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ocannl_core import settings
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.passes.cse import share_subexpressions
from ocannl_core.passes.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.decisions import Decisions
from ocannl_core.passes.fma_contraction import contract_to_fma
from ocannl_core.passes.index_set_splitting import split_index_sets
from ocannl_core.passes.licm import hoist_invariants
from ocannl_core.passes.one_hot import read_one_hot


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A function from programs to programs, and the name under which its result is shown."""

    name: str
    run: Callable[[LoopProgram], LoopProgram]


def core_passes(findings: Decisions) -> tuple[NamedPass, ...]:
    """Returns the passes that every backend shares, in the order in which they run.

    Args:
        findings: What the context keeps; takes what the passes decide.
    """
    chosen = settings.current()
    one_hot = partial(read_one_hot, tables_are_finite=chosen.tables_are_finite)
    algebra = (NamedPass("contract", contract_to_fma),) if chosen.contract else ()
    return (
        NamedPass("inline", findings.inline),
        NamedPass("simplify", findings.simplify),
        NamedPass("read one-hot", one_hot),
        NamedPass("forward fills", forward_fills),
        NamedPass("hoist invariants", hoist_invariants),
        NamedPass("share subexpressions", share_subexpressions),
        NamedPass("split at guards", split_index_sets),
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
