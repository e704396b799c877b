"""Pass pipeline of the loop language, in order.

inline                 inline definitions into their readers, remove dead statements
simplify               algebraic rules, constant folding, comparisons decided by ranges
read one-hot           replace a reduction that selects one entry of a table by a load
forward fills          forward initial values to the first update of a node, or sink the fill
split at guards        index-set splitting at the conditions of `where`
hoist invariants       loop-invariant code motion
share subexpressions   common subexpression elimination
contract               FMA contraction if the target has it, unless `contract` is off
allocate scratch       allocate the nodes that are local to the routine
remove dead stores     dead store elimination

Inlining comes first, since it decides which expressions there are to simplify, and uses the
accesses of the naive program (`analyze_accesses`). Fills are forwarded, and loops split, before
invariants move, while a nest is still one store under its loops and has its conditions inside;
products and sums are contracted when nothing is left to share between them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.passes.loops.cse import eliminate_common_subexpressions
from ocannl_core.passes.loops.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.fma_contraction import contract_to_fma
from ocannl_core.passes.loops.index_set_splitting import split_index_sets
from ocannl_core.passes.loops.licm import hoist_invariants
from ocannl_core.passes.loops.once_per_form import LocalPass, no_fact, run_local


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A function from programs to programs, and the name under which its result is shown.

    Attributes:
        local: The local passes that it consists of; none if it looks across statements.
    """

    name: str
    run: Callable[[LoopProgram], LoopProgram]
    local: tuple[LocalPass, ...] = ()


def _local(
    name: str,
    run: Callable[[LoopProgram], LoopProgram],
    options: Hashable = None,
    fact: Callable[[TensorNode], Hashable] = no_fact,
) -> NamedPass:
    """Return a local pass as a pass."""
    return _joined([LocalPass(name, run, options, fact)])


def _joined(local: Sequence[LocalPass]) -> NamedPass:
    name = ", ".join(each.name for each in local)
    return NamedPass(name, partial(run_local, passes=local), tuple(local))


def join_local(passes: Sequence[NamedPass]) -> tuple[NamedPass, ...]:
    """Return passes with neighbors that are local as one, which has the same result."""
    found: list[NamedPass] = []
    for each in passes:
        if each.local and found and found[-1].local:
            found[-1] = _joined((*found[-1].local, *each.local))
        else:
            found.append(each)
    return tuple(found)


def core_passes(decisions: Decisions, *, has_fma: bool = True) -> tuple[NamedPass, ...]:
    """Return the passes that every backend shares, in order.

    Args:
        decisions: Holds the nodes that the context keeps; the passes store their decisions in it.
        has_fma: True if the target multiplies and adds with one rounding.
    """
    chosen = settings.current()
    # the cells that loops accumulate in are left alone in other statements, too
    contraction = NamedPass("contract", partial(contract_to_fma, has_fma=has_fma))
    algebra = (contraction,) if chosen.contract else ()
    return (
        NamedPass("inline", decisions.inline),
        _local("simplify", decisions.simplify, fact=decisions.is_positive),
        _local(
            "read one-hot", decisions.read_one_hot, chosen.tables_are_finite, decisions.is_positive
        ),
        NamedPass("forward fills", forward_fills),
        _local("split at guards", split_index_sets),
        _local("hoist invariants", hoist_invariants),
        _local("share subexpressions", eliminate_common_subexpressions),
        *algebra,
        NamedPass("allocate scratch", decisions.allocate),
        NamedPass("remove dead stores", remove_dead_stores),
    )


Observer = Callable[[str, LoopProgram], None]
"""Called with the name of a pass and its result; `"lower"` denotes the program before any pass."""


def run_passes(
    program: LoopProgram, passes: Sequence[NamedPass], observers: Sequence[Observer] = ()
) -> LoopProgram:
    """Run passes in order, and call every observer with each intermediate program."""
    for observer in observers:
        observer("lower", program)
    for each in passes:
        program = each.run(program)
        for observer in observers:
            observer(each.name, program)
    return program
