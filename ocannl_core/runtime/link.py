"""Linking of compiled code with the memory of a context, under the observers in force.

The settings `log_runs`, `guard_values`, `check_bounds` and `timeline` install observers for
routines linked while they are on; `observing` adds others. Without any, launchers are left as they
are, so that observation costs nothing when it is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NoReturn

from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.backend.queues import HostQueue
from ocannl_core.base import settings
from ocannl_core.base.errors import LaunchLimitError, LinkError, VerifyError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile.check_program import check_merge_buffer, check_presence, missing_nodes
from ocannl_core.compile.context_state import Unstored
from ocannl_core.compile.driver import compile_generated, with_lines
from ocannl_core.compile.memory_plan import memory_plan, too_large
from ocannl_core.compile.stages import Build, Linkable, ResolvedCode
from ocannl_core.ir.assignments.traverse import leaves, targets
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.usage import Usage
from ocannl_core.ir.node import STORED, NodeInfo, Placement, Reason, TensorNode
from ocannl_core.runtime import values
from ocannl_core.runtime.observers.observers import FindBuffer, LinkedRoutine, RunObserver, added
from ocannl_core.runtime.pauses import Pauses, launcher_with_pauses
from ocannl_core.runtime.recompute_nodes import Recomputed, recipes_of
from ocannl_core.runtime.store import BufferStore, NodeMemory, RunRecord


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
    context = store.state()
    missing = missing_nodes(unlinked.code, unlinked.usage.reads_first, context)
    check_presence(unlinked.code, missing, context)
    check_merge_buffer(unlinked.usage.merged, context, built.plan.name)
    executable = compile_generated(built.source, (store.backend, store.target))
    request = replace(built.request, target=store.target)
    return replace(unlinked, built=replace(built, request=request, executable=executable))


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
        raise with_lines(error, built.program.loops) from None
    except MemoryError as error:
        raise too_large(built.plan, f"{scratch:,} bytes") from error

    def find(node: TensorNode) -> Buffer | None:
        stored = store.find(node)
        return None if stored is None else stored.buffer

    launch = observed(launch, built, buffers, find)
    if store.queue is not None:
        return _queued(launch, store.queue, run, built, store)
    return launch if store.backend.is_synchronous else _observed(launch, run, built)


def raise_launch_fault(built: Build, store: BufferStore, error: BaseException) -> NoReturn:
    """Raise the error of a launcher.

    Raises:
        LinkError: for a lack of memory, with the largest nodes.
        DeviceError: for a failure of the device.
        HookError: for an exception of the plugin.
    """
    try:
        if isinstance(error, MemoryError):
            raise store.device.account.exhausted_by_run(built.plan, str(store.target)) from error
        built.backend.raise_fault(f"the launcher of {built.plan.name}", error, store.target)
    finally:
        del error  # no cycle with its traceback


def _queued(
    launch: Launcher, queue: HostQueue, run: RunRecord, built: Build, store: BufferStore
) -> Launcher:
    """Return a launcher that submits the work to a queue, and records the event of its end."""

    def work(values: Sequence[int]) -> None:
        try:
            launch(values)
        except BaseException as error:
            raise_launch_fault(built, store, error)

    def submit(values: Sequence[int]) -> None:
        store.device.check_usable()  # the thread of the queue may have recorded a failure
        run.event = queue.submit(partial(work, tuple(values)), run.routine)

    return submit


def _observed(launch: Launcher, run: RunRecord, built: Build) -> Launcher:
    """Return a launcher that records the event that the backend's own returns, if any."""
    hook, checked = f"the launcher of {built.plan.name}", built.backend.checked_event
    target = built.target

    def start(values: Sequence[int]) -> None:
        event = launch(values)
        run.event = None if event is None else checked(hook, event, target)

    return start


def bind(
    code: ResolvedCode,
    plan: Plan,
    store: BufferStore,
    writes: AbstractSet[TensorNode],
    origin: Mapping[TensorNode, NodeMemory] | None = None,
) -> dict[TensorNode, NodeMemory]:
    """Return the memory of a routine's parameters: the context's, or new.

    New memory is not part of the context until `store.add`, so that a compilation that fails leaves
    no trace.

    Args:
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
    code: ResolvedCode,
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
    # data without a tensor
    is_key = tensor is None and code.literals.get(node) is not None
    stored = store.new(node, info, name, tensor, "key" if is_key else "")
    stored.has_value = 0 in info.dims
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
        is_given = stored.tensor is None or not stored.tensor.is_statistic
        stored.has_value = stored.has_value or is_given
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
    code: ResolvedCode,
    lasting: Mapping[TensorNode, Placement],
    plan: Plan,
    store: BufferStore,
    run: RunRecord,
) -> None:
    """Enter into a context nodes that a routine stores but does not access as compiled.

    Accumulations of the neutral element are removed, and so are assignments to no cells, which
    decide extents at run time nevertheless.
    """
    touched = set(plan.params)
    for node, placement in lasting.items():
        info = code.program.nodes.get(node)
        is_requested = placement.reason in (Reason.KEPT, Reason.DECLARED)
        if info is None or node in touched or not is_requested:
            continue
        stored = store.find(node)
        if stored is None:
            stored = _bind_node(code, node, info, store)
            store.add(stored)
        if 0 in info.dims and any(node in targets(each) for each in leaves(code.program.body)):
            stored.add_run(run)


def _shape_text(stored: NodeMemory, info: NodeInfo) -> str:
    return str(stored.tensor.shape if stored.tensor is not None else info.dims)


def _relayout(
    code: ResolvedCode, stored: NodeMemory, info: NodeInfo, store: BufferStore
) -> NodeMemory:
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
    """Enter a linked routine into the context: its new memory, and its private nodes."""
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
    recipes = recipes_of(built.program.definitions, nodes, routine)
    for node, placement in built.program.placements.items():
        if placement.mode not in STORED:
            store.add_unstored(node, Unstored(routine, placement, recipes.get(node)), run)


def observed(
    launch: Launcher, build: Build, buffers: Mapping[TensorNode, Buffer], find: FindBuffer
) -> Launcher:
    """Return the launcher of a routine under the observers in force; the same without any."""
    observers = (*_from_settings(), *added())
    if not observers:
        return launch
    routine = LinkedRoutine(build, buffers, find)
    for each in observers:
        each.linked(routine)
        launch = each.launcher(routine, launch)
    return launch


def _from_settings() -> Iterator[RunObserver]:
    chosen = settings.current()
    if chosen.timeline is not None:
        from ocannl_core.runtime.observers.kernel_timeline import KernelTimeline

        yield KernelTimeline()
    if chosen.check_bounds:
        from ocannl_core.runtime.observers.run_checks import BoundsCheck

        yield BoundsCheck()
    if chosen.guard_values != "off":
        from ocannl_core.runtime.observers.run_checks import ValueGuard

        yield ValueGuard(infinite=chosen.guard_values == "infinite")
    if chosen.log_runs:
        from ocannl_core.runtime.observers.run_log import RunLog

        yield RunLog(chosen.log_runs)
