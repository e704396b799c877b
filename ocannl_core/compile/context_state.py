"""The facts about a context that code for it depends on, as they are when compilation begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.nodes import Definition
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """A definition by which later code computes a virtual node."""

    node: TensorNode
    info: NodeInfo
    definition: Definition
    routine: str

    @property
    def operands(self) -> tuple[TensorNode, ...]:
        """The nodes that the code reads, oldest first."""
        return tuple(sorted(self.definition.operands, key=lambda node: node.id))


@dataclass(frozen=True, slots=True)
class Unstored:
    """A node that some routine computes and does not keep."""

    routine: str
    placement: Placement
    """Its placement there, with the reason."""
    recipe: Recipe | None = None
    """A definition for later code; None if there is none."""

    def describe(self) -> str:
        """Return where the node is in place of memory, and why, for messages."""
        why = self.placement.why or "nothing requires it to be stored"
        return f"{self.placement.mode.value} in routine {self.routine}, because {why}"

    def fix(self, node: TensorNode) -> str:
        """Return how to make the routine store the node."""
        keep = f"keep=[{node.name}, ...]"
        return f"compile {self.routine} with {keep}, which replaces its results, and run it"


@dataclass(frozen=True, slots=True)
class ContextState:
    """A device, and what the memory of a context on it holds."""

    backend: Backend
    target: Target
    stored: Mapping[TensorNode, NodeInfo]
    """The layout of each node that has memory."""
    unstored: Mapping[TensorNode, Unstored]
    """The nodes that earlier routines compute without storing them."""
    merged: tuple[TensorNode, str] | None = None
    """The node in the merge buffer, with its tensor's name; None while it is empty."""
    fallbacks: tuple[tuple[Backend, Target], ...] = ()
    """Other devices, for kernels that the device does not support."""

    @property
    def devices(self) -> tuple[tuple[Backend, Target], ...]:
        """The device, and the others."""
        return (self.backend, self.target), *self.fallbacks
