"""Compiled code bound to memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, ClassVar, Never, NoReturn, SupportsIndex

from ocannl_core.backend.protocols import Buffer, Launcher
from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.compile.driver import compile_again, refuse_partition, search_placements_again
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.compile.parts import PartitionedSource
from ocannl_core.compile.stages import Linkable
from ocannl_core.ir.indexing import StaticExtent, affine
from ocannl_core.ir.loops.usage import IndexBound, accepted_range
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode
from ocannl_core.runtime import checks, link, merge, recompute_nodes
from ocannl_core.runtime.memory import MemoryEntry
from ocannl_core.runtime.pauses import Action, Pauses
from ocannl_core.runtime.recompute_nodes import Recomputed
from ocannl_core.runtime.routine_calls import callable_class
from ocannl_core.runtime.store import (
    BufferStore,
    Dependence,
    MergeContent,
    NodeMemory,
    RunRecord,
    dependences,
    is_pending,
)
from ocannl_core.runtime.target_code import CompiledCode
from ocannl_core.tensor.graph.expression import refusal
from ocannl_core.tensor.messages.foreign_names import CONTEXT_ATTRIBUTES, missing_attribute

if TYPE_CHECKING:
    from ocannl_core.compile.placements.report import PlacementTuning
    from ocannl_core.compile.profile import Profile
    from ocannl_core.compile.schedule_search import Tuning
    from ocannl_core.compile.tuned_placements import TunedPlacements
    from ocannl_core.runtime.export.export_routines import ExportedRoutine


class Routine(CompiledCode):
    """Compiled code bound to the memory of a context; calling it runs it.

    Attributes:
        name: The name under which files and messages show it.
        bindings: The static indices that a call gives values to.
        context: The context that it was compiled in.
        reads: Nodes of the context that it reads.
        writes: Nodes of the context that it writes.
        merged: The node whose merge buffer it reads, or None.
        ordinal: Its place in the order of compilation in its lineage.
        placements: The placement of each node that it mentions, with its reason.
    """

    _of_the_core: ClassVar = frozenset(
        {"link_again", "merged", "ordinal", "pause", "recomputed", "unchecked", "unlink"}
    )
    """Members that other modules of the core use; `dir` and the public surface leave them out."""

    # fmt: off
    __slots__ = (
        "__weakref__", "_accepted", "_carried", "_extents", "_history", "_is_ready",
        "_is_repeatable", "_launch", "_limits", "_linkable", "_memory", "_merge_buffer", "_needed",
        "_order", "_pauses", "_recomputed", "_run", "_sized", "_store", "_used", "_written",
        "bindings", "context", "merged", "name", "ordinal", "placements", "reads", "writes",
    )
    # fmt: on

    __deepcopy__ = __reduce_ex__ = refusal(
        "A routine is bound to the memory of its context: it is not copied or pickled.",
        "a copy of {}",
        "other.link(step) binds its code to another context; ctx.export(step, path) writes it",
    )

    def __getattr__(self, name: str) -> NoReturn:
        rule = "A routine has no attribute"
        raise missing_attribute(self, name, rule, "a routine", CONTEXT_ATTRIBUTES)

    def __init__(
        self,
        linkable: Linkable,
        memory: Mapping[TensorNode, NodeMemory],
        launch: Launcher,
        run: RunRecord,
        store: BufferStore,
        recomputed: Sequence[Recomputed] = (),
        merged: TensorNode | None = None,
    ) -> None:
        build, usage, bindings = linkable.built, linkable.usage, linkable.bindings
        self.name = build.plan.name
        self.bindings = bindings
        self.context: Any = None
        self.reads = usage.reads
        self.writes = usage.writes
        self.placements: Mapping[TensorNode, Placement] = build.program.placements
        self._build = build
        self._run = run
        self._store = store
        self._history = store.history
        self.ordinal = next(store.history.ordinals)
        self.merged = merged
        self._merge_buffer: Buffer | None = None
        self._pauses: Pauses | None = None
        self._linkable = replace(linkable, code=linkable.code.released())
        self._recomputed = tuple(recomputed)
        # a run may overwrite operands of nodes that the next run recomputes
        self._is_repeatable = all(
            operand.node not in usage.writes for each in recomputed for operand in each.operands
        ) and not (build.assignments.carried & usage.writes or merged)
        self._launch = launch
        self._memory = dict(memory)
        by_id = sorted(memory.items(), key=lambda item: item[0].id)
        fresh = build.assignments.fresh
        self._needed = tuple(
            stored for node, stored in by_id if node in usage.reads_first and node not in fresh
        )
        self._written = tuple(stored for node, stored in by_id if node in usage.writes)
        self._used = tuple(stored for _, stored in by_id)
        carried = build.assignments.carried & usage.writes
        self._carried = tuple(stored for node, stored in by_id if node in carried)
        self._is_ready = False
        self._limits = tuple(
            sorted(usage.limits, key=lambda limit: (limit.node.id, limit.low, limit.high))
        )
        self._accepted = {
            binding.name: accepted_range(binding, self._limits) for binding in bindings
        }
        self._extents = tuple(each for each in bindings if isinstance(each, StaticExtent))
        run.values = tuple(each.maximum for each in self._extents)
        # the cells of what it writes itself may have come into being one call after the other
        self._sized = tuple(
            stored
            for node, stored in by_id
            if stored.info.extents and node in usage.reads_first - usage.writes
        )
        self._order = tuple(index.name for index in build.plan.indices)
        if all(len(limit.terms) == 1 for limit in self._limits):
            # equal but for the time of a call
            defaults = tuple((each.name, each.maximum) for each in self._extents)
            self.__class__ = callable_class(
                Routine, tuple(self._accepted.items()), self._order, defaults
            )

    def __call__(self, /, *positional: Never, **indices: SupportsIndex) -> None:
        """Run the routine; every static index is a required keyword argument, and an extent of
        axes an optional one: its maximum is the default.

        Returns when the work is submitted; reading results through the context waits for it.

        Raises:
            LinkError: if a node that it reads has no value yet, with the call that provides one.
            UsageError: if an index is missing, unknown or out of range, or an argument positional;
                if more cells of a tensor would be read than were written, or a gradient would be
                passed on to operands again together with a part passed on before.
        """
        if positional:
            checks.refuse_positional(positional, tuple(self._accepted), self.name)
        self._start(*self._values(indices))

    def profile(self, seconds: float = 1.0, **indices: SupportsIndex) -> Profile:
        """Measure the time of each kernel; printing the result shows a table.

        The kernels run on copies of their operands, so that no tensor changes.

        Args:
            seconds: How long to measure, at least some rounds.
            indices: The static indices, as for a call.

        Raises:
            LinkError: if a node that it reads has no value yet.
            UsageError: if an index is missing, unknown or out of range.
        """
        from ocannl_core.compile.profile import profile

        values, _ = self._values(indices)
        checks.check_values(self._needed, self.name, self._store)
        self._store.synchronize()
        memory = {node: stored.buffer for node, stored in self._memory.items()}
        build = self._build
        if isinstance(build.source, PartitionedSource):
            from ocannl_core.compile.partitioned_executable import (
                PartitionedExecutable,
                profile_parts,
            )

            assert isinstance(build.executable, PartitionedExecutable)
            return profile_parts(build.executable, values, memory, seconds)
        return profile(build.plan, build.backend, build.target, values, memory, seconds)

    def tune(
        self, budget: float = 30.0, *, again: bool = False, placements: bool = False
    ) -> Tuning:
        """Search for the fastest schedules of the kernels on this machine, and use them.

        The schedules found are kept in the tuning cache on disk: this routine uses them from now
        on, and so does every routine compiled later that has an equal kernel. Kernels run on memory
        of their own meanwhile; no tensor changes. Printing the result shows the schedules and
        times.

        Args:
            budget: How many seconds to spend, about. The kernels that take longest come first.
            again: Also searches where an earlier search came to its end.
            placements: Spends half of the budget on a search over placements first: which
                intermediate tensors are stored, and which are computed at each read. The result is
                kept and used in the same way, for routines of equal code.
        """
        from ocannl_core.compile.schedule_search import search_schedules

        refuse_partition(self._build)
        chosen = self._tune_placements(budget / 2, again=again) if placements else None
        left = budget if chosen is None else max(0.0, budget - chosen.spent)
        build = self._build
        found = search_schedules(
            build.program.loops, build.backend, build.target, left, again=again
        )
        self._build = compile_again(build)
        self._launch = self._linked()
        return replace(found, placements=chosen)

    def use_schedules(self, schedules: Mapping[int, str]) -> None:
        """Compile this routine again with stated schedules of some kernels.

        They are in force until `tune` or another call replaces all schedules, and are not kept on
        disk. No schedule changes a result, except for the rounding of reordered sums.

        Args:
            schedules: Schedules in the notation of `oc.explain`, by the number of the kernel there,
                from 1; an empty text stands for plain loops.

        Raises:
            UsageError: for a kernel that is missing or has no schedule, or a schedule that fails.
        """
        self._build = compile_again(self._build, schedules)
        self._launch = self._linked()

    def _tune_placements(self, budget: float, *, again: bool) -> PlacementTuning:
        """Search for the fastest placements, and use them."""
        self._store.synchronize()
        account = self._store.device.account
        memory = {node: stored.buffer for node, stored in self._memory.items()}
        built, found = search_placements_again(
            self._build, budget, memory if self.can_run else None, account.nbytes, again=again
        )
        if not memory.keys() >= set(built.plan.params):
            return found  # it reads more than this routine has memory of
        before, entry = self._build, account.remove(self)
        self._build = built
        try:
            self._launch = self._linked()
        except LinkError:
            self._build = before
            if entry is not None:
                account.add(self, entry)
            raise
        self.placements = built.program.placements
        scratch = memory_plan(built.plan).nbytes
        if scratch:
            account.add(self, MemoryEntry(self.name, "scratch", scratch, self._store.history))
        return found

    @property
    def linkable(self) -> Linkable:
        """The code, for another context to link."""
        return replace(self._linkable, built=self._build)

    @property
    def exported(self) -> ExportedRoutine:
        """The code with the facts about calls that exported code checks."""
        from ocannl_core.runtime.export.export_routines import ExportedRoutine

        needed = frozenset(stored.node for stored in self._needed)
        joint = tuple(limit for limit in self._limits if len(limit.terms) > 1)
        return ExportedRoutine(self.linkable, needed, self._accepted, joint)

    @property
    def memory(self) -> Mapping[TensorNode, NodeMemory]:
        """The memory of the nodes of its context that it uses."""
        return self._memory

    @property
    def recomputed(self) -> tuple[Recomputed, ...]:
        """The tensors of earlier routines that it recomputes."""
        return self._recomputed

    @property
    def dependences(self) -> tuple[Dependence, ...]:
        """The conflicts of its reads and writes with routines compiled before it in its
        lineage, as far as the program can reach those.

        They order work that is submitted and not finished. A routine may run first or again; it is
        refused only if a value that it reads is missing.
        """
        earlier = [each for each in self._history.routines if each.ordinal < self.ordinal]
        earlier.sort(key=lambda each: each.ordinal)
        return tuple(found for each in earlier for found in dependences(self, each))

    @property
    def can_run(self) -> bool:
        """True if every node that it reads before writing has a value."""
        return self._is_ready or all(stored.has_value for stored in self._needed)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of its kernels and the transfers between them, as lines in the order of
        execution; empty if all kernels run on the context's own device.
        """
        if not isinstance(self._build.source, PartitionedSource):
            return ()
        from ocannl_core.compile.partitioned_executable import PartitionedExecutable, described_flow

        executable = self._build.executable
        assert isinstance(executable, PartitionedExecutable)
        return tuple(described_flow(executable))

    @property
    def tuned_placements(self) -> TunedPlacements | None:
        """The result of a search over placements, with those that it chose; None without one."""
        return self._build.request.tuned

    @property
    def nodes(self) -> Mapping[TensorNode, NodeInfo]:
        """The infos of all compiled nodes, including those that were optimized away."""
        return {**self._build.assignments.nodes, **self._build.program.loops.nodes}

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._of_the_core]

    def __repr__(self) -> str:
        arguments = ", ".join(binding.name for binding in self.bindings)
        return f"<routine {self.name}({arguments}): {len(self._build.plan.kernels)} kernels>"

    def unchecked(self) -> Callable[[], object] | None:
        """Return the code as a function without checks and without a record of its runs, for nodes
        that nothing else writes; None before the first call, for code with arguments, and where
        calls return before the code has run.
        """
        is_plain = self._is_ready and not self.bindings and self.merged is None
        if not is_plain or self._run.event is not None:
            return None
        launch = self._launch

        def run() -> None:
            try:
                launch(())
            except BaseException as error:
                self._raise_fault(error)

        return run

    def pause(self, results: Sequence[AbstractSet[TensorNode]], action: Action) -> None:
        """Let calls run an action of the host between steps, from the step on that completes the
        first of some results.

        The launches of the steps stay the same. Calls run no action where work is queued, a run is
        observed (as by the setting `timeline`), or the backend launches routines as a whole.

        Args:
            results: Groups of nodes that the routine writes.
            action: Gets the numbers of the groups that have become complete since its last call.
        """
        is_immediate = self._store.queue is None and self._store.backend.is_synchronous
        if is_immediate:
            self._pauses = Pauses(tuple(results), action)
            self._launch = self._linked()

    def _start(self, values: Sequence[int], extents: tuple[int, ...] = ()) -> None:
        """Run the code with checked values after checking the state of the context.

        Args:
            extents: The extents at run time, in the order of the bindings.
        """
        if self._history.last is self._run and extents == self._run.values:
            self._run_launcher(values)
            return
        self._store.device.check_usable()
        sizes = dict(zip(self._extents, extents, strict=True))
        if self._sized:
            checks.check_sizes(self._sized, sizes, self.name)
        if self._recomputed:
            recompute_nodes.check_current(self._recomputed, self.name, sizes)
        if self._carried:
            checks.check_gradients(self._carried, self._run)
        if not self._is_ready:
            checks.check_values(self._needed, self.name, self._store)
        content = None
        if self.merged is not None:
            content = merge.check_at_run(self.merged, self._store, self.name)
            self._use_merge_buffer(content)
        self._wait_for_transfers()
        self._run_launcher(values)
        self._run.sizes, self._run.values = sizes, extents
        self._history.ran(self._run, is_repeatable=self._is_repeatable)
        if content is not None:
            content.has_run(self._run.event, self._store)
        if not self._is_ready:
            for stored in self._written:
                stored.has_value = True
            self._is_ready = True  # for good: a node that has a value never loses it

    def _wait_for_transfers(self) -> None:
        """Let the next launch follow copies to the nodes it uses, and from those it writes."""
        for stored in self._used:
            if stored.copied is not None:  # kept: a read by the host waits for it, too
                self._store.follow(stored.copied)
                if not is_pending(stored.copied):
                    stored.copied = None
        for stored in self._written:
            if stored.readers:
                for event in stored.readers:
                    self._store.follow(event)
                stored.readers.clear()

    def _use_merge_buffer(self, content: MergeContent) -> None:
        """Link the code with the present memory of the merge buffer."""
        assert self.merged is not None
        content.wait_to_read(self._store)
        buffer = merge.buffer_for(content, self._build.plan.nodes[self.merged], self._store)
        if buffer is not self._merge_buffer:
            self._merge_buffer = buffer
            self._launch = self._linked()

    def _linked(self) -> Launcher:
        found: dict[TensorNode, Buffer] = {}
        if self.merged is not None and self._merge_buffer is not None:
            found = {self.merged: self._merge_buffer}
        elif self.merged is not None:  # before the first call
            found = merge.present_memory((self.merged,), self._build.plan.nodes, self._store)
        return link.launcher_of(
            self._build, self._memory, self._store, self._run, found, self._pauses
        )

    def link_again(self, stored: NodeMemory) -> None:
        """Link the code anew if it uses this memory, whose buffer has changed."""
        if any(each is stored for each in self._used):
            self._launch = self._linked()

    def unlink(self, released: AbstractSet[NodeMemory]) -> None:
        """Drop the memory of the code if some of it has been released: it cannot run any more."""
        if released.isdisjoint(self._used):
            return
        self._launch, self._is_ready = self._refuse, True
        self._memory = {}
        self._needed = self._written = self._used = self._carried = self._sized = ()
        self._recomputed = ()
        self.merged = self._merge_buffer = None
        self._store.device.account.remove(self)

    def _refuse(self, values: Sequence[int]) -> NoReturn:
        raise LinkError(
            "A routine runs in the memory of its context.",
            found="the context has been released",
            where=f"running {self.name}",
            fix="compile the code again",
        )

    def _run_launcher(self, values: Sequence[int]) -> None:
        try:
            self._launch(values)
        except BaseException as error:
            self._raise_fault(error)

    def _raise_fault(self, error: BaseException) -> NoReturn:
        """Raise the error of a launcher, with its meaning for the context."""
        try:
            link.raise_launch_fault(self._build, self._store, error)
        finally:
            del error  # no cycle with its traceback

    def _values(
        self, indices: Mapping[str, SupportsIndex]
    ) -> tuple[Sequence[int], tuple[int, ...]]:
        """Return the checked values of the static indices in the order of the compiled code, and
        those of the extents at run time in the order of the bindings.
        """
        if self._extents:
            indices = {**{each.name: each.maximum for each in self._extents}, **indices}
        if indices.keys() != self._accepted.keys():
            raise self._wrong_names(indices)
        numbers: dict[str, int] = {}
        for name, accepted in self._accepted.items():
            try:
                number = operator.index(indices[name])
            except TypeError:
                raise UsageError(
                    "The value of a static index is an integer.",
                    found=f"{name} = {indices[name]!r}",
                    where=f"running {self.name}",
                ) from None
            if accepted is not None and number not in accepted:
                raise self._out_of_range(name, number, accepted)
            numbers[name] = number
        for limit in self._limits:
            if len(limit.terms) > 1:
                self._check_jointly(limit, numbers)
        extents = tuple(numbers[each.name] for each in self._extents)
        return tuple(numbers[name] for name in self._order), extents

    def _wrong_names(self, indices: Mapping[str, SupportsIndex]) -> UsageError:
        missing = [name for name in self._accepted if name not in indices]
        unknown = [name for name in indices if name not in self._accepted]
        found = [f"missing: {', '.join(missing)}"] if missing else []
        found += [f"unknown: {', '.join(unknown)}"] if unknown else []
        call = ", ".join(f"{name}=..." for name in self._accepted)
        return UsageError(
            "A call gives a value to every static index that the routine was compiled with.",
            found="; ".join(found),
            where=f"running {self.name}",
            fix=f"{self.name}({call})"
            + ("; ctx[x] = array gives data" if unknown else "")
            + ("" if self._accepted else "; indices are bound with ctx.compile(..., bindings=[i])"),
        )

    def _out_of_range(self, name: str, number: int, accepted: range) -> UsageError:
        limit = next(
            (
                limit
                for limit in self._limits
                if [var.name for _, var in limit.terms] == [name] and number not in limit.as_range()
            ),
            None,
        )
        binding = next(each for each in self.bindings if each.name == name)
        if isinstance(binding, StaticExtent) and number not in range(binding.maximum + 1):
            return UsageError(
                f"An extent is at most the size of its axes in memory: {name} from 0 to "
                f"{binding.maximum}.",
                found=f"{name} = {number}",
                where=f"running {self.name}",
                fix=f'oc.static_extent("{name}", max={number})' if number > 0 else "",
            )
        reason = (
            f"other values leave {limit.describe()}"
            if limit is not None
            else "its range is declared so"
        )
        return UsageError(
            f"A static index stays in its range: {name} in {_range_text(accepted)}.",
            found=f"{name} = {number}",
            where=f"running {self.name}; {reason}",
            fix=f"give {name} from {accepted.start} to {accepted.stop - 1}" if accepted else "",
        )

    def _check_jointly(self, limit: IndexBound, numbers: Mapping[str, int]) -> None:
        value = sum(coefficient * numbers[var.name] for coefficient, var in limit.terms)
        if limit.low <= value <= limit.high:
            return
        from ocannl_core.ir.text import PrintedNames

        terms = PrintedNames().index(affine(limit.terms))
        raise UsageError(
            f"Static indices that address an axis together stay inside it: "
            f"{terms} in range({limit.low}, {limit.high + 1}).",
            found=", ".join(f"{var.name} = {numbers[var.name]}" for _, var in limit.terms),
            where=f"running {self.name}; other values leave {limit.describe()}",
        )


def _range_text(accepted: range) -> str:
    start = f"{accepted.start}, " if accepted.start else ""
    return f"range({start}{accepted.stop})"
