"""The code of a routine on several devices: parts, each for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocannl_core.backend.protocols import Source
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps, leaf_steps
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend

Device = tuple["Backend", Target]
"""A backend and one of its devices."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive steps that run on one device."""

    device: int
    """The number of the device; 0 is the context's own."""
    plan: Plan
    """The steps, scheduled; its parameters are nodes of the context and of other parts."""
    source: Source


Item = Part | RepeatedSteps[Part]
"""A part, or a repetition whose iterations the host runs."""


@dataclass(frozen=True, slots=True)
class PartitionedSource:
    """The code of a routine on several devices."""

    devices: tuple[Device, ...]
    """The devices, the context's own first."""
    items: tuple[Item, ...]
    """The parts in the order of execution."""
    plan: Plan
    """All steps, as scheduled."""

    @property
    def language(self) -> str:
        """The languages of all parts."""
        return ", ".join(dict.fromkeys(part.source.language for part in leaf_steps(self.items)))

    @property
    def text(self) -> str:
        """The texts of all parts, in order."""
        texts = []
        for number, part in enumerate(leaf_steps(self.items), 1):
            backend, target = self.devices[part.device]
            texts.append(f"// part {number}, on {target}\n{backend.text(part.source)}")
        return "\n".join(texts)
