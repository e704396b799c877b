"""The way of a program: assignments, loops, kernels, source, executable.

    assignments
       | lower               lower, called by the context, which decides from the loops
       |                     which nodes are stored
    loop program
       | optimise            passes/, then the passes of the backend
    loop program, optimised
       | plan_kernels        passes/kernels/
    kernels, a stream
       | Backend.generate    ocannl_generate of a plugin
    source
       | Backend.compile     ocannl_compile of a plugin
    executable

A program that an earlier process has compiled starts at its source: `saved_code`. The context links
the executable to memory.

Passes and scheduler are imported by the functions that run them: a start from disk does without.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ocannl_core.backend.protocols import Buffer, Executable, Source
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError, LaunchLimitError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.origin import caller_location
from ocannl_core.compile.dump_folder import Dump, open_dump
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.compile.saved_code import CompileRequest, GeneratedCode, load_or_generate
from ocannl_core.ir.assignments import printer as assign_printer
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import LoopProgram, Remark, Repeat
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import MemoryMode, NodeInfo, Placement, TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.passes.loops.inline.decide import Definition

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.compile.placements.placement_candidates import ObserveModes
    from ocannl_core.compile.placements.report import PlacementTuning
    from ocannl_core.passes.loops.decisions import ChooseMode, Decisions
    from ocannl_core.passes.loops.pipeline import NamedPass
    from ocannl_core.passes.loops.repetitions import OptimisedRepetitions

_WRITTEN = re.compile(r" \(writes [^()]*\)$")
"""The end of a title, behind the remarks of its kernel."""


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled routine that is not bound to memory.

    Attributes:
        assignments: The program before lowering.
        optimised: The loop program after all passes.
        plan: Its kernels, in the order of execution.
        source: The generated code.
        executable: The compiled code.
        placements: The placement of each node, with its reason.
        definitions: Definitions of nodes that the routine computes and does not store, for later
            routines to inline.
        backend: The backend that compiled it.
        target: The device it was compiled for.
        request: The program before any pass, with all that its code depends on.
    """

    assignments: AssignProgram
    optimised: LoopProgram
    plan: Plan
    source: Source
    executable: Executable
    placements: Mapping[TensorNode, Placement]
    definitions: Mapping[TensorNode, Definition]
    backend: Backend
    target: Target
    request: CompileRequest


def compile_program(assignments: AssignProgram, request: CompileRequest) -> Build:
    """Return the compiled form of a lowered program.

    Args:
        assignments: The program before lowering.
        request: The lowered program, with all that its code depends on.

    Raises:
        LinkError: if a node that is to be inlined needs memory.
        CodegenError: if the backend cannot express the program.
        LaunchLimitError: if the device does not run the launch of some kernel.
        CompileError: if the backend's compiler rejects the code.
    """
    dump = open_dump(assignments.name)
    if dump.is_open:
        dump.text("assignments", assign_printer.to_text(assignments))
    # a dump shows every stage, so all of them run; a search is one of them
    if dump.is_open or settings.current().tune == "search":
        if settings.current().tune == "search" and settings.current().tune_placements:
            with dump.timing("search for placements"):
                request = _with_searched_placements(request)
        code = generate(request, dump)
    else:
        code = load_or_generate(request, lambda: generate(request, dump))
    with dump.timing("compile generated code"):
        try:
            executable = request.backend.compile(code.source, request.target)
        except LaunchLimitError as error:
            raise with_lines(error, request.lowered) from None
    _warn_over_budget(code.plan)
    if dump.is_open:
        dump.finish({**assignments.nodes, **request.lowered.nodes}, code.placements)
    return Build(
        assignments,
        code.optimised,
        code.plan,
        code.source,
        executable,
        code.placements,
        code.definitions,
        request.backend,
        request.target,
        request,
    )


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


def with_lines(error: LaunchLimitError, program: LoopProgram) -> LaunchLimitError:
    """Return an error about a kernel with the user's lines that the kernel executes.

    Args:
        error: The error; the title of a kernel consists of the remarks on its statements.
        program: The program of the kernel, as lowered.
    """
    titles = frozenset(_WRITTEN.sub("", each) for each in error.title.split("; "))
    remarks = (each for each in walk(program.body) if isinstance(each, Remark))
    return error.with_lines(
        str(each.origin) for each in remarks if each.origin is not None and each.text in titles
    )


def _with_searched_placements(request: CompileRequest) -> CompileRequest:
    from ocannl_core.compile.placements.search import search_placements

    winner, _ = search_placements(request, generate_arm, settings.current().tune_budget)
    return request if winner is None else winner.request


def generate_arm(request: CompileRequest, observe: ObserveModes | None = None) -> GeneratedCode:
    """Return the generated code of a program without a search of any kind.

    Args:
        request: The program.
        observe: Called with every node whose memory mode is open.
    """
    with settings.overrides(tune="off" if settings.current().tune == "off" else "cached"):
        return generate(request, Dump(None), observe)


def generate(
    request: CompileRequest, dump: Dump, observe: ObserveModes | None = None
) -> GeneratedCode:
    """Return the generated code of a program, after all passes and scheduling."""
    from ocannl_core.passes.kernels.pipeline import plan_kernels

    backend, target = request.backend, request.target
    decisions = _decisions(request, observe)
    found = optimise(request, decisions, dump)
    optimised = found.program
    placements = {**found.placements, **decisions.placements(request.lowered.nodes, optimised)}
    _check_formats(optimised, backend, target)
    chosen = settings.current()
    if chosen.tune == "search":
        from ocannl_core.compile.schedule_search import search_schedules

        with dump.timing("search for schedules"):
            search_schedules(optimised, backend, target, chosen.tune_budget)
    with dump.timing("split and generate"):
        kernels = plan_kernels(optimised, target, [dump.plan] if dump.is_open else ())
        source = backend.generate(kernels, target)
    dump.plan("schedule kernels", kernels.plan())
    dump.source(source)
    return GeneratedCode(optimised, kernels.plan(), source, placements, decisions.definitions)


def bytes_over_budget(request: CompileRequest) -> int:
    """Return the bytes by which a program needs more memory of its own than the setting
    `memory_budget` allows, after recomputation; 0 without such a setting.
    """
    budget = settings.current().memory_budget
    if budget is None or not any(isinstance(s, Repeat) for s in request.lowered.body.stmts):
        return 0
    from ocannl_core.passes.loops.recompute_in_budget import needed_bytes

    return needed_bytes(optimise(request, _decisions(request), Dump(None)).program) - budget


def optimise(request: CompileRequest, decisions: Decisions, dump: Dump) -> OptimisedRepetitions:
    """Return a program after the passes of the core and of the backend; the iterations of its
    repetitions come first, each as a program.
    """
    from ocannl_core.passes.loops.pipeline import core_passes, run_passes
    from ocannl_core.passes.loops.repetitions import optimise_repetitions

    own = request.backend.passes(request.target)

    def run(program: LoopProgram, decided: Decisions) -> LoopProgram:
        passes = [
            _timed(each, dump)
            for each in (*core_passes(decided, has_fma=request.target.has_fma), *own)
        ]
        return run_passes(program, passes, [dump.program])

    found = optimise_repetitions(
        request.lowered, request.stored.keys(), run, decisions.choose_mode, request.tuned_places
    )
    program = run(found.program, decisions)
    budget = settings.current().memory_budget
    if budget is not None:
        program = _within_budget(program, budget, dump)
    return replace(found, program=program)


def _within_budget(program: LoopProgram, budget: int, dump: Dump) -> LoopProgram:
    from ocannl_core.passes.loops.pipeline import NamedPass, run_passes
    from ocannl_core.passes.loops.recompute_in_budget import recompute_within_budget

    recompute = NamedPass("recompute", lambda program: recompute_within_budget(program, budget))
    return (
        recompute.run(program)
        if not dump.is_open
        else run_passes(program, [_timed(recompute, dump)], [dump.program])
    )


def compile_again(built: Build, schedules: Mapping[int, str] | None = None) -> Build:
    """Return a routine compiled again, with the schedules that the tuning cache has now.

    Args:
        built: The routine.
        schedules: Stated schedules of some kernels, by number.
    """
    from ocannl_core.compile.stated_schedules import stated_rule
    from ocannl_core.passes.kernels.pipeline import plan_kernels

    rule = stated_rule(built.optimised, built.plan, built.target, schedules) if schedules else None
    kernels = plan_kernels(built.optimised, built.target, rule=rule)
    source = built.backend.generate(kernels, built.target)
    executable = built.backend.compile(source, built.target)
    return replace(built, plan=kernels.plan(), source=source, executable=executable)


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
        built: The routine.
        budget: The seconds to spend, about.
        memory: The memory of its parameters, which is copied; None if it has no values yet.
        in_use: The bytes of the device that memory of all kinds takes.
        again: True to repeat a complete search.
    """
    from ocannl_core.compile.placements.search import search_placements

    request = replace(built.request, target=built.target)
    winner, found = search_placements(
        request, generate_arm, budget, memory=memory, in_use=in_use, again=again
    )
    if winner is None or settings.current().tune == "off":
        return built, found
    code = winner.code
    made = replace(
        built,
        optimised=code.optimised,
        plan=code.plan,
        source=code.source,
        executable=winner.executable,
        placements=code.placements,
        definitions=code.definitions,
        request=winner.request,
    )
    return made, found


def _check_formats(program: LoopProgram, backend: Backend, target: Target) -> None:
    """Raise CodegenError if a device lacks the number format of a node in memory."""
    formats = target.formats
    if formats is None:
        return
    lacking = {
        node: info.dtype for node, info in program.nodes.items() if info.dtype not in formats
    }
    if lacking:
        raise CodegenError(
            "A device has the number formats of all tensors in memory.",
            found="\n".join(f"{node.name} in {dtype}" for node, dtype in lacking.items()),
            where=f"compiling {program.name} for {target} ({backend.plugin})",
            fix=f"give them a format of this device: {', '.join(map(str, formats))}",
        )


def _decisions(request: CompileRequest, observe: ObserveModes | None = None) -> Decisions:
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
