"""Linking of code and memory: stored nodes, required values, and errors for missing ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from weakref import WeakValueDictionary

from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.backend.queues import HostQueue
from ocannl_core.base.errors import LaunchLimitError, LinkError, UsageError, VerifyError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.compile.driver import Build, with_lines
from ocannl_core.compile.memory_plan import memory_plan, too_large
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.assignments.traverse import partial_targets
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.loops.usage import Usage
from ocannl_core.ir.node import STORED, MemoryMode, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.passes.loops.accesses import partly_assigned
from ocannl_core.passes.lower import lower
from ocannl_core.runtime import values
from ocannl_core.runtime.checks import description, fix_for_unstored, why
from ocannl_core.runtime.interfaces import Array, ComputationLike, TensorLike
from ocannl_core.runtime.observers.launching import observed
from ocannl_core.runtime.pauses import Pauses, launcher_with_pauses
from ocannl_core.runtime.recompute_nodes import Recomputed, recipes_of
from ocannl_core.runtime.store import BufferStore, NodeMemory, RunRecord, Unstored


@dataclass(frozen=True, slots=True)
class Unlinked:
    """Assignments with the literals and tensors of their nodes, before linking.

    Attributes:
        program: The assignments.
        literals: The cells of nodes made from host data; None where only the node is known.
        tensors: The tensor behind each node, where there is one.
    """

    program: AssignProgram
    literals: Mapping[TensorNode, Array | None]
    tensors: Mapping[TensorNode, TensorLike]

    def describe(self, node: TensorNode) -> str:
        """Return the name of a node in messages."""
        return description(node, self.tensors.get(node))

    def released(self) -> Unlinked:
        """Return the code without references that keep arrays or tensors alive."""
        tensors = WeakValueDictionary(self.tensors)
        return replace(self, literals=dict.fromkeys(self.literals), tensors=tensors)

    def comes_from_outside(self, node: TensorNode) -> bool:
        """Return True if the host, an initialisation or other code gives the node its value."""
        tensor = self.tensors.get(node)
        return tensor is not None and (
            tensor.is_parameter or tensor.is_placeholder or tensor.is_statistic
        )


@dataclass(frozen=True, slots=True, eq=False)
class Linkable:
    """Compiled code, and all that binding it to the memory of a context takes.

    Attributes:
        built: The compiled code.
        code: The assignments, with literals and tensors.
        nodes: The infos of all nodes of the lowered code.
        usage: The reads and writes of the code.
        bindings: The static indices of a call.
        kept: The nodes that outlive a call, with the reasons.
    """

    built: Build
    code: Unlinked
    nodes: Mapping[TensorNode, NodeInfo]
    usage: Usage
    bindings: tuple[StaticIndex, ...]
    kept: Mapping[TensorNode, Placement]


def relinked(unlinked: Linkable, recomputed: Sequence[Recomputed], store: BufferStore) -> Linkable:
    """Return compiled code for the device of another context.

    Raises:
        LinkError: if it was compiled for another kind of device, recomputes nodes of its context,
            or reads a node that this context does not store.
    """
    built, name = unlinked.built, unlinked.code.program.name
    own = built.target
    # the names of devices say nothing about their kind
    alike = replace(store.target, device=own.device, description=own.description)
    if built.backend is not store.backend or own != alike:
        raise LinkError(
            "Compiled code is linked on devices of the kind that it was compiled for.",
            found=f"{name} was compiled for {built.target}, and the context is on {store.target}",
            where=f"linking {name}",
            fix="compile the code in this context: ctx.compile(...)",
        )
    if recomputed:
        nodes = ", ".join(each.recipe.node.name for each in recomputed)
        raise LinkError(
            "Code that recomputes tensors of its context is not linked in another one.",
            found=f"{name} recomputes {nodes}",
            where=f"linking {name}",
            fix="compile the code in this context: ctx.compile(...)",
        )
    missing = missing_nodes(unlinked.code, unlinked.usage.reads_first, store)
    check_presence(unlinked.code, missing, store)
    executable = store.backend.compile(built.source, store.target)
    return replace(unlinked, built=replace(built, target=store.target, executable=executable))


# ----- stored nodes ------------------------------------------------------------------------------


def stored_nodes(
    code: Unlinked,
    store: BufferStore,
    keep: Sequence[TensorLike] | None,
    read_again: AbstractSet[TensorNode] = frozenset(),
    writes: AbstractSet[TensorNode] = frozenset(),
) -> dict[TensorNode, Placement]:
    """Return the nodes that outlive the calls of a routine, with the reasons.

    These are the results, or the nodes in `keep` instead; and in any case nodes that the context
    stores already, parameters, placeholders, literals and declared nodes.

    Args:
        code: The code.
        store: The memory of the context.
        keep: The tensors to store instead of the results.
        read_again: Operands from which the code recomputes virtual tensors of earlier routines.
        writes: The nodes that the code writes.

    Raises:
        UsageError: if `keep` names a tensor that the code does not mention and the context does not
            store.
    """
    program = code.program
    kept = program.results if keep is None else {tensor.node for tensor in keep}
    for tensor in keep or ():
        if tensor.node not in program.nodes and store.find(tensor.node) is None:
            raise UsageError(
                "keep= names tensors that the compiled code computes.",
                found=f"{tensor.describe()}, which it does not mention",
                where=f"compiling {program.name}",
                fix=f"add its code, such as oc.train.forward({tensor.node.name})",
            )
    reasons = {node: _reason_to_store(node, code, store, kept) for node in program.nodes}
    reasons.update(dict.fromkeys(read_again - reasons.keys(), Reason.USED_ELSEWHERE))
    constants = code.literals.keys() - writes
    return {
        node: _place_of(node, reason, is_constant=node in constants)
        for node, reason in reasons.items()
        if reason is not None
    }


def _place_of(node: TensorNode, reason: Reason, *, is_constant: bool) -> Placement:
    """Return the placement of a stored node; the array of a constant stays on the host, too."""
    if not is_constant:
        return Placement(MemoryMode.ON_DEVICE, reason)
    constant = Placement(MemoryMode.EFFECTIVELY_CONSTANT, reason)
    return constant.refine(Placement(MemoryMode.HOSTED, reason), node)


def requested_nodes(code: Unlinked, inline: Sequence[TensorLike]) -> frozenset[TensorNode]:
    """Return the nodes of tensors that are to be inlined.

    Raises:
        UsageError: if the code does not mention one of them.
    """
    for tensor in inline:
        if tensor.node not in code.program.nodes:
            raise UsageError(
                "inline= names tensors that the compiled code computes.",
                found=f"{tensor.describe()}, which it does not mention",
                where=f"compiling {code.program.name}",
                fix=f"leave it out, or add its code, such as oc.train.forward({tensor.node.name})",
            )
    return frozenset(tensor.node for tensor in inline)


def _reason_to_store(
    node: TensorNode, code: Unlinked, store: BufferStore, kept: AbstractSet[TensorNode]
) -> Reason | None:
    tensor = code.tensors.get(node)
    if tensor is not None and tensor.is_parameter:
        return Reason.PARAMETER
    if node in code.literals or (tensor is not None and tensor.is_placeholder):
        return Reason.HOST_DATA
    if node in code.program.fresh or (tensor is not None and tensor.is_statistic):
        return Reason.DECLARED
    if node in kept:
        return Reason.KEPT
    if store.find(node) is not None:
        return Reason.USED_ELSEWHERE
    return None


def used_indices(
    computation: ComputationLike, bindings: Sequence[StaticIndex]
) -> list[StaticIndex]:
    """Return those of some static indices that the code of a computation uses."""
    used = lower(computation.resolve()).indices
    return [index for index in bindings if index in used]


def mentioned(computation: ComputationLike, tensors: Sequence[TensorLike]) -> list[TensorLike]:
    """Return those of some tensors that a computation mentions."""
    nodes = computation.resolve().nodes
    return [tensor for tensor in tensors if tensor.node in nodes]


# ----- checks before anything is compiled -------------------------------------------------------


def with_extents(bindings: Sequence[StaticIndex], program: LoopProgram) -> Sequence[StaticIndex]:
    """Return bindings and the extents at run time that a program mentions, each once."""
    found = [index for index in program.indices if isinstance(index, StaticExtent)]
    found += [each for info in program.nodes.values() for each in info.extents if each is not None]
    return [*bindings, *dict.fromkeys(each for each in found if each not in bindings)]


def check_bindings(
    indices: Sequence[StaticIndex], bindings: Sequence[StaticIndex], name: str
) -> None:
    """Raise UsageError unless the bindings differ in name and include every index of the code."""
    names = [binding.name for binding in bindings]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise UsageError(
            "The static indices of a routine have different names: they are its keyword arguments.",
            found="several named " + ", ".join(repeated),
            where=f"compiling {name}",
            fix='give each its own name: oc.static_index("row"), oc.static_index("column")',
        )
    unbound = [index.name for index in indices if index not in bindings]
    if unbound:
        raise UsageError(
            "Every static index that code uses is bound when it is compiled.",
            found="unbound: " + ", ".join(unbound),
            where=f"compiling {name}",
            fix=f"ctx.compile(..., bindings=[{', '.join(unbound)}])",
        )


def partly_written(code: Unlinked, lowered: LoopProgram) -> frozenset[TensorNode]:
    """Return the nodes with cells that keep the values from outside while code writes others."""
    candidates = [
        node
        for node in partial_targets(code.program.body)
        if code.comes_from_outside(node) or _is_gradient(code.tensors.get(node))
    ]
    return frozenset(partly_assigned(lowered, candidates) if candidates else ())


def _is_gradient(tensor: TensorLike | None) -> bool:
    return tensor is not None and tensor.is_gradient


def missing_nodes(
    code: Unlinked, reads_first: AbstractSet[TensorNode], store: BufferStore
) -> AbstractSet[TensorNode]:
    """Return the nodes that the code reads and neither computes nor finds stored."""
    return frozenset(
        node
        for node in reads_first
        if (node not in code.program.fresh or store.find_unstored(node) is not None)
        and node not in code.literals
        and not code.comes_from_outside(node)
        and store.find(node) is None
    )


def check_presence(code: Unlinked, missing: AbstractSet[TensorNode], store: BufferStore) -> None:
    """Raise LinkError if nodes are missing, with the calls that would provide them."""
    if not missing:
        return
    found, fixes = [], []
    for node in sorted(missing, key=lambda each: each.id):
        unstored = store.find_unstored(node)
        if node in code.program.embedded:
            found.append(f"{code.describe(node)}: read first, and computed later in the same code")
            fixes.append(f"put the code that computes {node.name} before its reads")
            fixes.append(f"or give it a value from the host before: ctx[{node.name}] = array")
        elif unstored is None:
            found.append(f"{code.describe(node)}: not in the context, and not computed here")
            fixes += _fixes_for_absent(node, code.tensors.get(node))
        else:
            found.append(
                f"{code.describe(node)}: {unstored.placement.mode.value} in routine "
                f"{unstored.routine}, because {why(unstored.placement)}"
            )
            fixes.append(fix_for_unstored(node, unstored))
    raise LinkError(
        "Every node that code reads is computed by it or stored in the context.",
        found="\n".join(found),
        where=f"compiling {code.program.name}",
        fix="\n".join(dict.fromkeys(fixes)),
    )


def _fixes_for_absent(node: TensorNode, tensor: TensorLike | None) -> list[str]:
    """Return the calls that provide a node without a value."""
    if _is_gradient(tensor):
        return [
            "put oc.train.grad_update(loss) in front, or its pieces: loss.forward(), "
            "loss.zero_grads(), loss.grad[:] = 1, loss.backprop()",
            "or give gradients values from the host, as in ctx[p.grad] = array",
        ]
    return [
        f"add the code that computes {node.name} in front: oc.train.forward({node.name})",
        f"or give it a value from the host: ctx[{node.name}] = array",
    ]


# ----- memory -----------------------------------------------------------------------------------


def launcher_of(
    built: Build,
    memory: Mapping[TensorNode, NodeMemory],
    store: BufferStore,
    run: RunRecord,
    merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    pauses: Pauses | None = None,
) -> Launcher:
    """Link an executable with the memory of a context.

    Args:
        built: The compiled code.
        memory: The memory of its parameters.
        store: That of the context.
        run: The record of its runs.
        merge_buffers: The merge buffers that it reads.
        pauses: Actions between its steps; without effect on backends that launch whole routines.

    Raises:
        LinkError: if the device has too little memory for the routine's own nodes.
    """
    buffers = {node: stored.buffer for node, stored in memory.items()}
    scratch = memory_plan(built.plan).nbytes
    if scratch:
        store.device.account.reserve(scratch, f"scratch of {built.plan.name}", str(store.target))
    try:
        launch = None
        if pauses is not None:
            launch = launcher_with_pauses(built, buffers, merge_buffers, pauses)
        if launch is None:
            found = (buffers, merge_buffers) if merge_buffers else (buffers,)
            launch = built.backend.link(built.executable, *found)
    except LaunchLimitError as error:
        raise with_lines(error, built.optimised) from None
    except MemoryError as error:
        raise too_large(built.plan, f"{scratch:,} bytes") from error

    def find(node: TensorNode) -> Buffer | None:
        stored = store.find(node)
        return None if stored is None else stored.buffer

    launch = observed(launch, built, buffers, find)
    if store.queue is not None:
        return _queued(launch, store.queue, run, built)
    return launch if store.backend.is_synchronous else _observed(launch, run, built)


def _queued(launch: Launcher, queue: HostQueue, run: RunRecord, built: Build) -> Launcher:
    """Return a launcher that submits the work to a queue, and records the event of its end."""

    def work(values: Sequence[int]) -> None:
        try:
            launch(values)
        except BaseException as error:
            built.backend.raise_fault(f"the launcher of {built.plan.name}", error)

    def submit(values: Sequence[int]) -> None:
        run.event = queue.submit(partial(work, tuple(values)), run.routine)

    return submit


def _observed(launch: Launcher, run: RunRecord, built: Build) -> Launcher:
    """Return a launcher that records the event that the backend's own returns, if any."""
    hook, checked = f"the launcher of {built.plan.name}", built.backend.checked_event

    def start(values: Sequence[int]) -> None:
        event = launch(values)
        run.event = None if event is None else checked(hook, event)

    return start


def bind(
    code: Unlinked,
    plan: Plan,
    store: BufferStore,
    writes: AbstractSet[TensorNode],
    origin: Mapping[TensorNode, NodeMemory] | None = None,
) -> dict[TensorNode, NodeMemory]:
    """Return the memory of a routine's parameters: the context's, or new.

    New memory is not part of the context until `store.add`, so that a compilation that fails leaves
    no trace.

    Args:
        code: The code.
        plan: The compiled code.
        store: The memory of the context.
        writes: The parameters that the routine writes.
        origin: The memory of a routine with the same code, for literals whose array is gone.
    """
    memory = {}
    for node in plan.params:
        is_constant = node in code.literals and node not in writes
        info, source = plan.nodes[node], (origin or {}).get(node)
        memory[node] = _bind_node(code, node, info, store, source, is_constant=is_constant)
        if memory[node].shared is not None and not is_constant:
            unshare(memory[node], store, code.describe(node))
    return memory


def _bind_node(
    code: Unlinked,
    node: TensorNode,
    info: NodeInfo,
    store: BufferStore,
    source: NodeMemory | None = None,
    *,
    is_constant: bool = False,
) -> NodeMemory:
    stored = store.find(node)
    if stored is not None:
        return stored if stored.info == info else _relayout(code, stored, info, store)
    name, tensor = code.describe(node), code.tensors.get(node)
    shared = store.device.literal(node, info) if is_constant else None
    if shared is not None:
        stored = NodeMemory(node, shared.buffer, tensor)
        stored.shared, stored.has_value = shared, True
        return stored
    stored = store.new(node, info, name, tensor)
    if node in code.literals:
        array = code.literals[node]
        if array is None and tensor is not None:
            array = tensor.literal
        if array is not None:
            cells = values.cells_of(array, info, name, _shape_text(stored, info))
        else:
            assert source is not None  # the routine that was compiled has its cells
            cells = values.read(store.backend, source.buffer)
        values.write(store.backend, stored.buffer, cells)
        stored.has_value = True
        if is_constant:
            stored.shared = store.device.share_literal(stored)
    elif node in code.program.fresh:
        stored.has_value = stored.tensor is None or not stored.tensor.is_statistic
    return stored


def unshare(stored: NodeMemory, store: BufferStore, name: str) -> None:
    """Give a context a copy of its own of a literal's cells; its routines are linked again."""
    own = store.new(stored.node, stored.info, name, stored.tensor)
    store.backend.transfer(own.buffer, stored.buffer).wait()
    store.device.account.move(own, stored)
    stored.buffer, stored.shared = own.buffer, None
    for routine in list(store.history.routines):
        routine.link_again(stored)
    store.history.last = None


def bind_untouched(
    code: Unlinked, lasting: Mapping[TensorNode, Placement], plan: Plan, store: BufferStore
) -> None:
    """Enter into a context nodes that a routine stores but does not access as compiled.

    Accumulations of the neutral element are removed, and so are assignments to no cells.
    """
    touched = set(plan.params)
    for node, placement in lasting.items():
        info = code.program.nodes.get(node)
        is_requested = placement.reason in (Reason.KEPT, Reason.DECLARED)
        if info is None or node in touched or not is_requested or store.find(node) is not None:
            continue
        stored = _bind_node(code, node, info, store)
        stored.has_value = stored.has_value or 0 in info.dims
        store.add(stored)


def _shape_text(stored: NodeMemory, info: NodeInfo) -> str:
    return str(stored.tensor.shape if stored.tensor is not None else info.dims)


def _relayout(code: Unlinked, stored: NodeMemory, info: NodeInfo, store: BufferStore) -> NodeMemory:
    """Return the memory of a node in a new layout; no routine may hold the address of the old."""
    if (stored.info.dtype, stored.info.dims) != (info.dtype, info.dims):
        raise VerifyError(
            "A node has one number format and one shape.",
            found=f"{stored.info.dtype} {stored.info.dims} in the context, "
            f"{info.dtype} {info.dims} here",
            where=f"{code.describe(stored.node)}, compiling {code.program.name}",
        )
    if stored.is_linked or not store.owns(stored.node):
        raise LinkError(
            "All routines of a context agree on the margins around a node's cells.",
            found=f"{code.describe(stored.node)} is stored with extents {stored.info.buffer_dims}; "
            f"{info.buffer_dims} are needed here",
            where=f"compiling {code.program.name}",
            fix="compile the routine with the padded operation first, or compile this one in a "
            "context of its own",
        )
    moved = store.new(stored.node, info, code.describe(stored.node), stored.tensor)
    moved.has_value, moved.writers = stored.has_value, stored.writers
    if stored.has_value:
        store.wait_to_read(stored)
        values.write(store.backend, moved.buffer, values.read(store.backend, stored.buffer))
    return moved


def record(
    built: Build,
    nodes: Mapping[TensorNode, NodeInfo],
    usage: Usage,
    memory: Mapping[TensorNode, NodeMemory],
    run: RunRecord,
    store: BufferStore,
) -> None:
    """Enter a linked routine into the context: its new memory, and its private nodes.

    Args:
        built: The compiled code.
        nodes: The infos of all nodes of the lowered code.
        usage: The reads and writes of the code.
        memory: The memory of its parameters.
        run: The record of its runs.
        store: The memory of the context.
    """
    routine = built.plan.name
    for node, stored in memory.items():
        stored.is_linked = True
        if node in usage.writes:
            stored.add_run(run)
        if node in usage.reads:
            stored.add_reader(run)
        provides = node in usage.writes and node not in usage.reads_first
        if provides and routine not in stored.writers:
            stored.writers.append(routine)
        if store.find(node) is not stored:
            store.add(stored)
    recipes = recipes_of(built.definitions, nodes, routine, run)
    for node, placement in built.placements.items():
        if placement.mode not in STORED:
            store.add_unstored(node, Unstored(routine, placement, recipes.get(node)))
