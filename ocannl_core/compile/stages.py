"""The values that the stages of the driver pass on, in the order in which they come into being.

    ResolvedCode        assignments, with the host data and the tensors of their nodes
    LoweredCode         loops, or facts about them where an earlier process has lowered the code
    CheckedProgram      code that fits the context, with all that calls and memory need to know
    CompileRequest      the part of it that generated code depends on
    OptimizedProgram    loops after all passes
    GeneratedCode       kernels and their source
    Build               the executable, with all before it
    Linkable            the same, with all that binding it to the memory of a context takes

All are frozen. None refers to the memory of a context, so that one value can be bound to several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from ocannl_core.backend.protocols import Buffer, Executable, Launcher, Source
from ocannl_core.base.errors import LinkError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.compile.context_state import Recipe
from ocannl_core.compile.lowered_code import LoweredCode
from ocannl_core.compile.tuned_placements import TunedPlacements
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import Definition, LoopProgram
from ocannl_core.ir.loops.usage import Usage
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.tensor.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The arguments of `Context.compile` beside the code."""

    bindings: tuple[StaticIndex, ...] = ()
    keep: tuple[Tensor, ...] | None = None
    """The tensors to store instead of the results; None to store the results."""
    name: str | None = None
    """The name of the routine; None to take the computation's."""
    inline: tuple[Tensor, ...] = ()
    """The tensors to compute wherever they are read."""
    are_shared: bool = False
    """True if `bindings` and `keep` are for several computations, each of which takes those that it
    mentions.
    """


@dataclass(frozen=True, slots=True)
class ResolvedCode:
    """Assignments with the literals and tensors of their nodes."""

    program: AssignProgram
    literals: Mapping[TensorNode, Array | None]
    """The cells of nodes made from host data; None where only the node is known."""
    tensors: Mapping[TensorNode, Tensor]
    """The tensor behind each node, where there is one."""

    def describe(self, node: TensorNode) -> str:
        """Return the name of a node in messages."""
        tensor = self.tensors.get(node)
        return node.name if tensor is None else tensor.describe()

    def released(self) -> ResolvedCode:
        """Return the code without references that keep the arrays of tensors, or these, alive."""
        tensors = WeakValueDictionary(self.tensors)
        literals = {n: None if n in self.tensors else a for n, a in self.literals.items()}
        return replace(self, literals=literals, tensors=tensors)

    def comes_from_outside(self, node: TensorNode) -> bool:
        """Return True if the host, an initialization or other code gives the node its value."""
        tensor = self.tensors.get(node)
        return tensor is not None and (
            tensor.is_parameter or tensor.is_placeholder or tensor.is_statistic
        )

    def is_gradient(self, node: TensorNode) -> bool:
        """Return True if backpropagation computes the node."""
        tensor = self.tensors.get(node)
        return tensor is not None and tensor.is_gradient


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A lowered program, with all that its generated code depends on beside the settings."""

    code: LoweredCode
    """The program, perhaps with definitions of nodes that earlier routines left virtual."""
    stored: Mapping[TensorNode, Placement]
    """The nodes that outlive each call, with the reasons."""
    inlined: frozenset[TensorNode]
    """The nodes that the user wants inlined."""
    backend: Backend
    target: Target
    tuned: TunedPlacements | None = None
    """The placements that a search on this machine has chosen; None without a search."""
    fallbacks: tuple[tuple[Backend, Target], ...] = ()
    """Other devices, for kernels that the target does not support."""

    @property
    def lowered(self) -> LoopProgram:
        """The loops, which are lowered now unless they have been read before."""
        return self.code.program

    @property
    def device(self) -> tuple[Backend, Target]:
        """The backend and the device of the context."""
        return self.backend, self.target

    @property
    def tuned_places(self) -> Mapping[TensorNode, Placement]:
        """The placements that a search has chosen."""
        return {} if self.tuned is None else self.tuned.places


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program that fits the context that it is compiled for."""

    request: CompileRequest
    bindings: tuple[StaticIndex, ...]
    """The static indices of a call, extents of axes among them."""


@dataclass(frozen=True, slots=True)
class AbsentDevice:
    """The executable of code for a described device: it cannot be linked."""

    target: Target

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        raise LinkError(
            "A routine runs on a device of this machine.",
            found=f"code for {self.target.description or self.target}, which is described only",
            fix="compile it in a context: oc.Context(...).compile(code)",
        )


@dataclass(frozen=True, slots=True)
class OptimizedProgram:
    """A program after the passes over loops."""

    loops: LoopProgram
    placements: Mapping[TensorNode, Placement]
    """The placement of each node, with its reason."""
    definitions: Mapping[TensorNode, Definition]
    """Definitions of nodes that the routine computes and does not store, for later routines to
    inline.
    """
    usage: Usage
    """The reads and writes of the program."""


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """A program after scheduling and code generation, before a backend compiles it."""

    program: OptimizedProgram
    plan: Plan
    source: Source


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled routine that is not bound to memory."""

    program: OptimizedProgram
    plan: Plan
    source: Source
    assignments: AssignProgram
    executable: Executable
    request: CompileRequest
    """The program before any pass, with all that its code depends on."""

    @property
    def backend(self) -> Backend:
        return self.request.backend

    @property
    def target(self) -> Target:
        return self.request.target

    @property
    def text(self) -> str:
        """The generated code."""
        return self.backend.text(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class Linkable:
    """Compiled code, and all that binding it to the memory of a context takes."""

    built: Build
    code: ResolvedCode
    """The assignments, with literals and tensors."""
    nodes: Mapping[TensorNode, NodeInfo]
    """The infos of all nodes of the lowered code."""
    usage: Usage
    """The reads and writes of the code."""
    bindings: tuple[StaticIndex, ...]
    kept: Mapping[TensorNode, Placement]
    """The nodes that outlive a call, with the reasons."""
    recipes: tuple[Recipe, ...] = ()
    """The definitions of nodes of earlier routines that the code recomputes."""
