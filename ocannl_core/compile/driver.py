"""The driver: the way of a computation from recorded code to a routine of a context.

    recorded code
       | resolve             Computation.resolve: shapes are closed
    assignments
       | lower               passes/lower; a start from disk reads facts about the loops
    lowered code
       | check               compile/check_program: the code fits the context
    lowered code, with the nodes that outlive a call
       | optimize            passes/loops/, then the passes of the backend
    loops, optimized
       | plan                passes/kernels/, schedule/
    kernels, a stream
       | admit               compile/admission: the device has all that each kernel needs
       | generate            ocannl_generate of a plugin
    source
       | compile             ocannl_compile of a plugin
    executable
       | bind                the context: memory, and a launcher
    routine

`compile_computation` is this picture from top to bottom; the stages follow it in the same order,
and `compile.stages` has the values between them. The invariants:

- A stage is a function of the values before it, the settings, and the caches on disk. Facts about
  the context are a value, `ContextState`, taken when compilation begins. Binding alone changes the
  context: code that is not bound leaves no memory there.
- Compilation is a sequence of attempts, the last of which is bound. Another attempt follows for
  three reasons. The program as it is without a budget exceeds the setting `memory_budget`: passes
  and schedules observe it. It still does: loops keep fewer values for gradients, which changes the
  assignments. Nothing of these attempts is dumped. Or an error arises with placements that an
  earlier search has chosen: the default placements take their place.
- An attempt runs the passes over loops once; a second time only if a search for placements, which
  the setting `tune_placements` asks for, finds others. It does not run them for a program that an
  earlier process has compiled: that starts at its source (`compile.saved_code`). Passes and
  scheduler are imported by the functions that run them, so that a start from disk does without.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

from ocannl_core.backend.protocols import Buffer, Executable, Source
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError, LaunchLimitError, UnsupportedError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import caller_location
from ocannl_core.compile.admission import admitted, lines_of
from ocannl_core.compile.check_program import check_program, partial_candidates
from ocannl_core.compile.context_state import ContextState
from ocannl_core.compile.dump_folder import Dump, open_dump
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.compile.parts import Device, PartitionedSource
from ocannl_core.compile.placements.placement_cache import with_tuned_placements
from ocannl_core.compile.saved_code import find_kernels, find_lowered, find_saved, program_key
from ocannl_core.compile.stages import (
    AbsentDevice,
    Build,
    CheckedProgram,
    CompileOptions,
    CompileRequest,
    GeneratedCode,
    Linkable,
    OptimizedProgram,
    ResolvedCode,
)
from ocannl_core.compile.tuned_placements import describe_in_line
from ocannl_core.ir.assignments.constant_keys import keys_as_data
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import LoopProgram, Repeat
from ocannl_core.ir.loops.usage import usage_of
from ocannl_core.ir.node import MemoryMode, NodeInfo, Placement, TensorNode
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.compile.placements.placement_candidates import ObserveModes
    from ocannl_core.compile.placements.report import PlacementTuning
    from ocannl_core.compile.saved_kernels import SavedKernels
    from ocannl_core.ir.kernels.stream import KernelStream
    from ocannl_core.passes.kernels.pipeline import PlanObserver
    from ocannl_core.passes.loops.decisions import ChooseMode, Decisions
    from ocannl_core.passes.loops.pipeline import NamedPass
    from ocannl_core.schedule.rules.decision import Rule
    from ocannl_core.tensor.computations.computation import Computation

Bound = TypeVar("Bound")
"""Compiled code with memory: a routine."""


def compile_computation(
    computation: Computation,
    options: CompileOptions,
    context: ContextState,
    bind: Callable[[Linkable], Bound],
) -> Bound:
    """Return a computation compiled for a context, and bound to its memory.

    Args:
        options: The arguments of `Context.compile`.
        bind: The last stage: binds compiled code to the memory of the context.

    Raises:
        ShapeError: if shapes contradict each other or leave a size open.
        UsageError: if an index is not bound, or an option names a tensor outside of the code.
        LinkError: if the code reads a node that nothing gives a value, a node that is to be inlined
            needs memory, or the device has too little.
        CodegenError: if the backend cannot express the program.
        LaunchLimitError: if the device does not run the launch of some kernel.
        CompileError: if the backend's compiler rejects the code.
    """
    budget = settings.current().memory_budget
    if budget:
        with settings.overrides(memory_budget=None):
            found = _attempts(computation, options, context, bind, within=budget)
        if found is not None:
            return found
    bound = _attempts(computation, options, context, bind)
    assert bound is not None  # without a limit, the last attempt is bound
    return bound


def _attempts(
    computation: Computation,
    options: CompileOptions,
    context: ContextState,
    bind: Callable[[Linkable], Bound],
    within: int | None = None,
) -> Bound | None:
    """Return a computation compiled; None if it needs more own memory than `within` bytes."""
    problem = ""  # with the placements that an earlier search has chosen
    while True:
        code = resolve(computation, options)
        candidates = partial_candidates(code)
        key = None
        chosen = settings.current()
        if chosen.dump_dir is None and chosen.tune != "search":  # which run every stage
            key = program_key(code.program, candidates, context.devices)
        lowered = find_lowered(code.program, candidates, key)
        checked = check_program(code, lowered, options, context)
        request = with_tuned_placements(checked.request, problem)
        try:
            dump = _dump_of(code, request, is_held=within is not None)
            saved = find_saved(key, request)
            generated = saved.code
            program = optimize(request, dump) if generated is None else generated.program
            excess = _bytes_over_budget(request, program)
            if excess > 0 and computation.keep_less(excess):
                problem = ""
                continue
            final = _with_searched_placements(request, dump)
            if final is not request:
                dump.restart()
                program = optimize(final, dump)
            if generated is None:
                generated = generate(final, program, dump, find_kernels(key))
                saved.save(generated)
            if within is not None and memory_plan(generated.plan).nbytes > within:
                return None
            dump.release()
            built = compile_source(code.program, final, generated, dump)
            return bind(_linkable(code, checked, built))
        except Exception as error:
            if not request.tuned_places:
                raise
            problem = describe_in_line(error)


def resolve(computation: Computation, options: CompileOptions) -> ResolvedCode:
    """Return the assignments of a computation, under a name of their own if one is given, with the
    keys of random numbers as data.
    """
    program, name = computation.resolve(), options.name
    if name is not None:
        if not name.isidentifier():
            raise UsageError("The name of a routine is an identifier.", found=f"name={name!r}")
        program = replace(program, name=name)
    named = {tensor.node for tensor in (*(options.keep or ()), *options.inline)}
    program, keys = keys_as_data(program, named)
    return ResolvedCode(program, {**computation.literals(), **keys}, computation.tensors())


def _dump_of(code: ResolvedCode, request: CompileRequest, *, is_held: bool) -> Dump:
    """Return the dump of an attempt, which begins with the assignments. It is held back while the
    program may still be replaced by another one.
    """
    is_held = is_held or _has_budget(request) or _searches_placements()
    dump = open_dump(code.program.name, is_held=is_held)
    if dump.is_open:
        from ocannl_core.ir.assignments.printer import to_text

        dump.text("assignments", to_text(code.program))
    return dump


def _searches_placements() -> bool:
    chosen = settings.current()
    return chosen.tune == "search" and chosen.tune_placements


def _with_searched_placements(request: CompileRequest, dump: Dump) -> CompileRequest:
    """Return a request with the placements that a search finds fastest, if one is wanted; the same
    object if they are in force.
    """
    if not _searches_placements() or not request.target.has_device or request.fallbacks:
        return request
    from ocannl_core.compile.placements.search import search_placements

    with dump.timing("search for placements"):
        winner, _ = search_placements(request, generate_arm, settings.current().tune_budget)
    return request if winner is None else winner.request


def optimize(
    request: CompileRequest, dump: Dump, observe: ObserveModes | None = None
) -> OptimizedProgram:
    """Return a program after the passes of the core and of the backend; the iterations of its
    repetitions come first, each as a program.

    Args:
        observe: Called with every node whose memory mode is open.
    """
    from ocannl_core.passes.loops.pipeline import core_passes, join_local, run_passes
    from ocannl_core.passes.loops.repetitions import optimize_repetitions

    decisions = _decisions(request, observe)
    own = request.backend.passes(request.target)

    def run(program: LoopProgram, decided: Decisions) -> LoopProgram:
        passes = (*core_passes(decided, has_fma=request.target.has_fma), *own)
        # a dump has the program after each pass
        joined = passes if dump.is_open else join_local(passes)
        return run_passes(program, [_timed(each, dump) for each in joined], [dump.program])

    found = optimize_repetitions(
        request.lowered, request.stored.keys(), run, decisions.choose_mode, request.tuned_places
    )
    program = run(found.program, decisions)
    budget = settings.current().memory_budget
    if budget is not None:
        program = _within_budget(program, budget, dump)
    placements = {**found.placements, **decisions.placements(request.lowered.nodes, program)}
    return OptimizedProgram(program, placements, decisions.definitions, usage_of(program))


def _within_budget(program: LoopProgram, budget: int, dump: Dump) -> LoopProgram:
    from ocannl_core.passes.loops.pipeline import NamedPass, run_passes
    from ocannl_core.passes.loops.recompute_in_budget import recompute_within_budget

    recompute = NamedPass("recompute", lambda program: recompute_within_budget(program, budget))
    return (
        recompute.run(program)
        if not dump.is_open
        else run_passes(program, [_timed(recompute, dump)], [dump.program])
    )


def _decisions(request: CompileRequest, observe: ObserveModes | None) -> Decisions:
    """Return the decisions about a program that are made before any pass."""
    from ocannl_core.passes.loops.decisions import Decisions

    choose = _chooser(request.backend, request.target)
    if observe is not None:
        choose = _observed(choose, observe)
    return Decisions(request.stored, choose, request.inlined, request.tuned_places)


def _chooser(backend: Backend, target: Target) -> ChooseMode | None:
    """Return the choice of memory modes by a backend; None if it makes none."""
    if not backend.places_nodes:
        return None
    return lambda node, info, candidates: backend.resolve_mode(node, info, candidates, target)


def _observed(choose: ChooseMode | None, observe: ObserveModes) -> ChooseMode:
    """Return a choice of memory modes that reports the nodes it leaves to the core."""

    def chosen(node: TensorNode, info: NodeInfo, modes: tuple[MemoryMode, ...]) -> Placement | None:
        found = None if choose is None else choose(node, info, modes)
        if found is None:
            observe(node, info, modes)
        return found

    return chosen


def _timed(each: NamedPass, dump: Dump) -> NamedPass:
    """Return a pass that records its time."""

    from ocannl_core.passes.loops.pipeline import NamedPass

    def run(program: LoopProgram) -> LoopProgram:
        with dump.timing(each.name):
            return each.run(program)

    return NamedPass(each.name, run)


def _has_budget(request: CompileRequest) -> bool:
    """Return True if loops may have to keep fewer values."""
    return settings.current().memory_budget is not None and any(
        isinstance(stmt, Repeat) for stmt in request.lowered.body.stmts
    )


def _bytes_over_budget(request: CompileRequest, program: OptimizedProgram) -> int:
    """Return the bytes by which a program with loops needs more memory of its own, after
    recomputation, than the setting `memory_budget` allows; 0 without such a setting.
    """
    budget = settings.current().memory_budget
    if budget is None or not _has_budget(request):
        return 0
    from ocannl_core.passes.loops.recompute_in_budget import needed_bytes

    return needed_bytes(program.loops) - budget


def generate(
    request: CompileRequest,
    program: OptimizedProgram,
    dump: Dump,
    saved: SavedKernels | None = None,
) -> GeneratedCode:
    """Return the generated code of an optimized program, after scheduling.

    Args:
        saved: Kernels of earlier programs, which are neither scheduled nor rendered again.
    """
    backend, target, optimized = request.backend, request.target, program.loops
    chosen = settings.current()
    if chosen.tune == "search" and target.has_device and not request.fallbacks:
        from ocannl_core.compile.schedule_search import search_schedules

        with dump.timing("search for schedules"):
            search_schedules(optimized, backend, target, chosen.tune_budget)
    with dump.timing("split and generate"):
        observers = [dump.plan] if dump.is_open else ()
        kernels = _plan(request, optimized, observers)
        try:
            with nullcontext() if saved is None else saved.used():
                if request.fallbacks:
                    kernels.plan()  # no code of a program that the device does not support
                source: Source = backend.generate(kernels, target)
        except CodegenError as error:
            if not request.fallbacks:
                raise
            source = _parts(request, optimized, error)
    plan = source.plan if isinstance(source, PartitionedSource) else kernels.plan()
    dump.plan("schedule kernels", plan)
    if dump.is_open:
        dump.source(source.language, backend.text(source))
    return GeneratedCode(program, plan, source)


def _plan(
    request: CompileRequest,
    optimized: LoopProgram,
    observers: Sequence[PlanObserver] = (),
    rule: Rule | None = None,
) -> KernelStream:
    """Return the kernels of a program, each admitted when it is scheduled.

    Args:
        observers: Called with the plan after each pass before scheduling.
        rule: Chooses the schedules; by default the rule for the target.
    """
    from ocannl_core.passes.kernels.pipeline import plan_kernels

    backend, target = request.backend, request.target
    kernels = plan_kernels(optimized, target, observers, rule, backend.library(target))
    return admitted(kernels, optimized, request.lowered, backend, target)


def _parts(
    request: CompileRequest, optimized: LoopProgram, error: CodegenError
) -> PartitionedSource:
    """Return the code of a program on several devices.

    Args:
        error: Of the first device: a kernel that it or its backend does not support.
    """
    from ocannl_core.compile.partition import partition

    devices = request.device, *request.fallbacks
    tries_each = not isinstance(error, UnsupportedError)
    return partition(optimized, request.lowered, devices, tries_each=tries_each)


def generate_arm(request: CompileRequest, observe: ObserveModes | None = None) -> GeneratedCode:
    """Return the generated code of a program without a search of any kind.

    Args:
        observe: Called with every node whose memory mode is open.
    """
    with settings.overrides(tune="off" if settings.current().tune == "off" else "cached"):
        return generate(request, optimize(request, Dump(None), observe), Dump(None))


def compile_source(
    assignments: AssignProgram, request: CompileRequest, code: GeneratedCode, dump: Dump
) -> Build:
    """Return generated code compiled by the backend.

    Args:
        dump: Ends with the placements and the seconds of each stage.
    """
    with dump.timing("compile generated code"):
        try:
            executable = (
                compile_generated(code.source, request.device)
                if request.target.has_device
                else AbsentDevice(request.target)
            )
        except LaunchLimitError as error:
            raise with_lines(error, request.lowered) from None
    _warn_over_budget(code.plan)
    if dump.is_open:
        dump.finish({**assignments.nodes, **request.lowered.nodes}, code.program.placements)
    return Build(code.program, code.plan, code.source, assignments, executable, request)


def compile_generated(source: Source, device: Device) -> Executable:
    """Return generated code compiled for a device, or its parts for theirs.

    Args:
        device: The device of the context; the others of a partition stay.
    """
    backend, target = device
    if not isinstance(source, PartitionedSource):
        return backend.compile(source, target)
    from ocannl_core.compile.partitioned_executable import PartitionedExecutable

    return PartitionedExecutable(replace(source, devices=(device, *source.devices[1:])))


def with_lines(error: LaunchLimitError, program: LoopProgram) -> LaunchLimitError:
    """Return an error about a kernel with the user's lines that the kernel executes.

    Args:
        error: The error; the title of a kernel consists of the remarks on its statements.
        program: The program of the kernel, as lowered.
    """
    return error.with_lines(lines_of(error.title, program))


def _warn_over_budget(plan: Plan) -> None:
    """Warn if a routine needs more memory of its own than a budget; 0 is the least possible one."""
    budget = settings.current().memory_budget
    if budget and (needed := memory_plan(plan).nbytes) > budget:
        warnings.warn(
            f"A routine fits its memory budget if enough values can be computed again.\n"
            f"  found  {plan.name} needs {needed:,} bytes for values of its own, and memory_budget "
            f"allows {budget:,}\n"
            f"  where  {caller_location() or plan.name}\n"
            "  try    smaller batches; routine.memory_plan lists the values",
            RuntimeWarning,
            stacklevel=2,
        )


def _linkable(code: ResolvedCode, checked: CheckedProgram, built: Build) -> Linkable:
    """Return compiled code with all that binding it takes."""
    # optimization may have removed reads, never an access that bounds an index
    usage, lowered = built.program.usage, checked.request.code
    needed = usage.reads_first | (lowered.facts.partly_written & usage.writes)
    usage = replace(usage, limits=lowered.facts.usage.limits, reads_first=needed)
    stored = checked.request.stored
    return Linkable(built, code, lowered.nodes, usage, checked.bindings, stored, lowered.recipes)


def compile_again(built: Build, schedules: Mapping[int, str] | None = None) -> Build:
    """Return a routine compiled again, with the schedules that the tuning cache has now.

    Args:
        schedules: Stated schedules of some kernels, by number.
    """
    from ocannl_core.compile.stated_schedules import stated_rule

    refuse_partition(built)
    optimized, backend, target = built.program.loops, built.backend, built.target
    rule = None
    if schedules:
        offer = backend.library(target)
        rule = stated_rule(optimized, built.plan, target, schedules, offer)
    kernels = _plan(built.request, optimized, rule=rule)
    source = backend.generate(kernels, target)
    executable = backend.compile(source, target)
    return replace(built, plan=kernels.plan(), source=source, executable=executable)


def refuse_partition(built: Build) -> None:
    """Raise UsageError for a routine on several devices, whose schedules are those of rules."""
    if isinstance(built.source, PartitionedSource):
        raise UsageError.at_caller(
            "The schedules of a routine are chosen again if it runs on one device.",
            found=f"{built.plan.name} runs on {', '.join(str(t) for _, t in built.source.devices)}",
            fix="compile it without fallback=",
        )


def plan_for(request: CompileRequest, target: Target) -> Plan:
    """Return the kernels of a program for another device, which need not exist."""
    from ocannl_core.passes.kernels.pipeline import plan_kernels

    found = optimize(replace(request, target=target), Dump(None))
    return plan_kernels(found.loops, target).plan()


def search_placements_again(
    built: Build,
    budget: float,
    memory: Mapping[TensorNode, Buffer] | None,
    in_use: int,
    *,
    again: bool,
) -> tuple[Build, PlacementTuning]:
    """Return a routine with the placements that a search finds fastest, and the report.

    Args:
        budget: The seconds to spend, about.
        memory: The memory of its parameters, which is copied; None if it has no values yet.
        in_use: The bytes of the device that memory of all kinds takes.
        again: True to repeat a complete search.
    """
    from ocannl_core.compile.placements.search import search_placements

    winner, found = search_placements(
        built.request, generate_arm, budget, memory=memory, in_use=in_use, again=again
    )
    if winner is None or settings.current().tune == "off":
        return built, found
    code, request = winner.code, winner.request
    parts = code.program, code.plan, code.source
    return Build(*parts, built.assignments, winner.executable, request), found
