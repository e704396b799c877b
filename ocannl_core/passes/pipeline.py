"""The passes over the loop language, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.node import Placement, TensorNode
from ocannl_core.passes.memory import allocate_scratch
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
    return (
        NamedPass("simplify", simplify),
        NamedPass("allocate scratch", partial(allocate_scratch, stored=stored)),
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
