"""The passes over the loop language, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ocannl_core import settings
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.node import Placement, TensorNode
from ocannl_core.passes.contract import contract
from ocannl_core.passes.cse import share_subexpressions
from ocannl_core.passes.dead_stores import forward_fills, remove_dead_stores
from ocannl_core.passes.hoist import hoist_invariants
from ocannl_core.passes.memory import allocate_scratch
from ocannl_core.passes.one_hot import read_one_hot
from ocannl_core.passes.simplify import simplify


@dataclass(frozen=True, slots=True)
class NamedPass:
    """A function from programs to programs, and the name under which its result is shown."""

    name: str
    run: Callable[[LoopProgram], LoopProgram]


def core_passes(stored: Mapping[TensorNode, Placement]) -> tuple[NamedPass, ...]:
    """Returns the passes that every backend shares, in the order in which they run.

    Args:
        stored: Nodes that the context keeps from one routine to the next.
    """
    algebra = (NamedPass("contract", contract),) if settings.current().contract else ()
    return (
        NamedPass("simplify", simplify),
        NamedPass("read one-hot", read_one_hot),
        NamedPass("forward fills", forward_fills),
        NamedPass("hoist invariants", hoist_invariants),
        NamedPass("share subexpressions", share_subexpressions),
        *algebra,
        NamedPass("allocate scratch", partial(allocate_scratch, stored=stored)),
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
