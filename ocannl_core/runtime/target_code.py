"""Compiled code to read, and compilation for a described device, which need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.suggestions import did_you_mean
from ocannl_core.compile.context_state import ContextState
from ocannl_core.compile.driver import compile_computation
from ocannl_core.compile.memory_plan import MemoryPlan, memory_plan
from ocannl_core.compile.stages import Build, Linkable
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.runtime import checks

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.tensor.computations.computation import Computation
    from ocannl_core.tensor.graph.tensor import Tensor


class CompiledCode:
    """The forms of compiled code that can be read."""

    __slots__ = ("_build",)

    _build: Build

    @property
    def source(self) -> str:
        """The generated code."""
        return self._build.text

    @property
    def language(self) -> str:
        """The language of the generated code, such as `c`."""
        return self._build.source.language

    @property
    def plan(self) -> Plan:
        """The kernels and the order in which they run."""
        return self._build.plan

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory of the routine's own nodes, some of which share it; printable."""
        return memory_plan(self._build.plan)

    @property
    def loop_ir(self) -> str:
        """The optimized loop program as text."""
        from ocannl_core.ir.loops.printer import to_text

        return to_text(self._build.program.loops)

    @property
    def assignments(self) -> str:
        """The assignments that were compiled, as text."""
        from ocannl_core.ir.assignments.printer import to_text

        return to_text(self._build.assignments)


class TargetCode(CompiledCode):
    """The code of a routine for a target without a device: it can be read and not run.

    Attributes:
        name: The name of the routine.
        target: The device that the code is for.
        bindings: The static indices that the routine takes.
    """

    __slots__ = ("_usage", "bindings", "name", "target")

    def __init__(self, linkable: Linkable) -> None:
        self._build = linkable.built
        self._usage = linkable.usage
        self.name = linkable.built.plan.name
        self.target = linkable.built.target
        self.bindings = linkable.bindings

    @property
    def code(self) -> Any:
        """The object that `ocannl_generate` of the backend returned: a `RoutineSource` for
        languages of the C family, with the launches of all kernels.
        """
        return self._build.source

    @property
    def memory(self) -> Mapping[TensorNode, NodeInfo]:
        """The layouts of the nodes whose memory the caller of the code supplies, in the order of
        `plan.params`.
        """
        return {node: self.plan.nodes[node] for node in self.plan.params}

    @property
    def reads(self) -> frozenset[TensorNode]:
        """The nodes of the caller that the code reads before it writes them."""
        return frozenset(self._usage.reads_first) & self.memory.keys()

    @property
    def writes(self) -> frozenset[TensorNode]:
        """The nodes of the caller that the code writes."""
        return frozenset(self._usage.writes) & self.memory.keys()

    @property
    def placements(self) -> Mapping[TensorNode, Placement]:
        """The placement of each node that the code mentions, with its reason."""
        return self._build.program.placements

    def __call__(self, /, *positional: object, **indices: object) -> NoReturn:
        """Raise the error of a call without a device."""
        raise UsageError.at_caller(
            "A routine runs on a device of this machine.",
            found=f"{self.name} is code for {self._shown_target()}, which is described only",
            fix="oc.Context(...).compile(code)() compiles it for a device that is here",
        )

    def __repr__(self) -> str:
        return f"TargetCode({self.name}, {self.language} for {self._shown_target()})"

    def _shown_target(self) -> str:
        backend, description = self.target.backend, self.target.description
        return f"{backend} ({description})" if description else backend


def compile_for(
    computation: Computation,
    backend: str,
    target: str | Target,
    bindings: Sequence[StaticIndex] = (),
    keep: Sequence[Tensor] | None = None,
    name: str | None = None,
    *,
    inline: Sequence[Tensor] = (),
) -> TargetCode:
    """Return the code of a computation for a described device, which need not be here.

    Code on disk, and schedules of earlier searches, are those of the described device. Nothing is
    measured: with `tune="search"` earlier results are used, too.

    Args:
        computation: The code, with shapes that its tensors fix.
        backend: The name of a backend.
        target: A name that the backend has for a device, such as `aarch64`, or a `Target`.
        bindings: As for `Context.compile`, and so are the other arguments.

    Raises:
        BackendNotFoundError: if there is no such backend, or it has no target of this name.
        CodegenError: if the backend cannot express the code for this device.
    """
    checks.check_code(computation)
    options = checks.checked_options(bindings, keep, name, inline)
    with settings.held():
        chosen = manager.backend(backend)
        context = ContextState(chosen, described_target(chosen, target), {}, {})
        return compile_computation(computation, options, context, TargetCode)


def described_target(backend: Backend, target: str | Target) -> Target:
    """Return the description of a device, by its name or as it is given.

    Raises:
        BackendNotFoundError: if the backend has no target of this name.
        UsageError: if it is a target of another backend.
    """
    if isinstance(target, Target):
        if target.backend != backend.name:
            raise UsageError(
                "A target belongs to the backend that generates code for it.",
                found=f"a target of {target.backend}, and the backend {backend.name}",
                fix=f"Target({backend.name!r}, ...)",
            )
        return replace(target, has_device=False)
    known = backend.described()
    if target in known:
        return known[target]
    raise BackendNotFoundError(
        "A described device has a name that its backend knows, or is a Target.",
        found=f"{target!r}; {backend.name} knows {', '.join(known) or 'no names'}",
        where=f"plugin {backend.plugin}",
        fix=did_you_mean(str(target), known) or f"Target({backend.name!r}, ...)",
    )
