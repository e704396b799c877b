"""From assignments to an executable: the stages of a compilation, and the files that show them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ocannl_core import settings
from ocannl_core.assign import printer as assign_printer
from ocannl_core.assign.nodes import AssignProgram
from ocannl_core.errors import SettingsError
from ocannl_core.fast_dataclass import dataclass, replace
from ocannl_core.kernel_passes.pipeline import plan_kernels
from ocannl_core.kernels.nodes import Plan
from ocannl_core.loopir import printer as loop_printer
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.loopir.verify import verify
from ocannl_core.node import MemoryMode, NodeInfo, Placement, TensorNode
from ocannl_core.passes.decisions import Decisions
from ocannl_core.passes.inline.decide import Definition
from ocannl_core.passes.pipeline import NamedPass, core_passes, run_passes
from ocannl_core.runtime.saved import GeneratedCode, load_or_generate
from ocannl_core.runtime.tuning import tune
from ocannl_core.storage.new_files import NewDirectory
from ocannl_core.target import Executable, Source, Target

if TYPE_CHECKING:
    from ocannl_core.hooks.manager import Backend


@dataclass(frozen=True, slots=True)
class Build:
    """A compiled routine that is not bound to memory.

    Attributes:
        assignments: What was compiled.
        optimised: The loop program after all passes.
        plan: Its kernels and the order in which they run.
        source: The generated code.
        executable: The compiled code.
        placements: Where each node is, and why.
        definitions: How later routines compute the nodes that this one computes and does not store.
        backend: What compiled it.
        target: What it was compiled for.
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


def build(
    assignments: AssignProgram,
    lowered: LoopProgram,
    stored: Mapping[TensorNode, Placement],
    backend: Backend,
    target: Target,
    requested: frozenset[TensorNode] = frozenset(),
) -> Build:
    """Returns the compiled form of a lowered program.

    Args:
        assignments: What was lowered.
        lowered: The loop program before any pass.
        stored: The nodes that outlive each call, and why.
        backend: Gives its passes, generates and compiles.
        target: What to compile for.
        requested: The nodes that are to be inlined.

    Raises:
        LinkError: if one of those needs memory.
    """
    dump = _open_dump(assignments)

    def make() -> GeneratedCode:
        return _generated(lowered, stored, backend, target, requested, dump)

    # a dump shows every stage, so it runs them all; a search is one of them
    if dump or settings.current().tune == "search":
        generated = make()
    else:
        generated = load_or_generate(lowered, stored, requested, backend, target, make)
    with dump.timing("compile generated code") if dump else nullcontext():
        executable = backend.compile(generated.source, target)
    if dump:
        dump.finish(lowered.nodes, generated.placements)
    return Build(
        assignments,
        generated.optimised,
        generated.plan,
        generated.source,
        executable,
        generated.placements,
        generated.definitions,
        backend,
        target,
    )


def _generated(
    lowered: LoopProgram,
    stored: Mapping[TensorNode, Placement],
    backend: Backend,
    target: Target,
    requested: frozenset[TensorNode],
    dump: Dump | None,
) -> GeneratedCode:
    """Returns what passes, schedule and code generation make of a program."""
    own = tuple(_verified(each) for each in backend.passes(target))
    decisions = Decisions(stored, partial(_prefers_device, backend, target), requested)
    passes: tuple[NamedPass, ...] = (*core_passes(decisions), *own)
    if dump:
        passes = tuple(map(dump.timed, passes))
    optimised = run_passes(lowered, passes, [dump.program] if dump else [])
    placements = decisions.placements(lowered.nodes, optimised)
    chosen = settings.current()
    if chosen.tune == "search":
        with dump.timing("search for schedules") if dump else nullcontext():
            tune(optimised, backend, target, chosen.tune_budget)
    with dump.timing("split and generate") if dump else nullcontext():
        kernels = plan_kernels(optimised, target)
        source = backend.generate(kernels, target)
        plan = kernels.plan()
    if dump:
        dump.source(source)
    return GeneratedCode(optimised, plan, source, placements, decisions.definitions)


def rebuild(built: Build) -> Build:
    """Returns a routine compiled again, with the schedules that are remembered now."""
    kernels = plan_kernels(built.optimised, built.target)
    source = built.backend.generate(kernels, built.target)
    executable = built.backend.compile(source, built.target)
    return replace(built, plan=kernels.plan(), source=source, executable=executable)


def _prefers_device(backend: Backend, target: Target, node: TensorNode, info: NodeInfo) -> bool:
    candidates = (MemoryMode.LOCAL, MemoryMode.ON_DEVICE)
    return backend.resolve_mode(node, info, candidates, target) is MemoryMode.ON_DEVICE


def _verified(each: NamedPass) -> NamedPass:
    """Returns a backend's pass that checks what it gives: defects are told where they arise."""

    def run(program: LoopProgram) -> LoopProgram:
        result = each.run(program)
        verify(result)
        return result

    return NamedPass(each.name, run)


_EXTENSIONS = {"c": "c", "c++": "cpp", "cuda": "cu", "opencl": "cl", "python": "py"}


class Dump:
    """A folder with every stage of one compilation, numbered in the order of the stages.

    Beside the stages: the generated code, where every node is and why, and seconds by stage.
    """

    def __init__(self, folder: NewDirectory) -> None:
        self._folder = folder
        self._ordinals = count()
        self._seconds: dict[str, float] = {}

    def text(self, stage: str, text: str) -> None:
        name = f"{next(self._ordinals):02d}_{_file_name(stage)}.txt"
        self._write(name, text.rstrip("\n") + "\n")

    def program(self, stage: str, program: LoopProgram) -> None:
        self.text(stage, loop_printer.to_text(program))

    def timed(self, each: NamedPass) -> NamedPass:
        """Returns a pass whose time is noted."""

        def run(program: LoopProgram) -> LoopProgram:
            with self.timing(each.name):
                return each.run(program)

        return NamedPass(each.name, run)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Notes how long a stage takes."""
        start = perf_counter()
        yield
        self._seconds[stage] = perf_counter() - start

    def finish(
        self, nodes: Mapping[TensorNode, NodeInfo], placements: Mapping[TensorNode, Placement]
    ) -> None:
        """Writes where every node is and why, and how long each stage took."""
        lines = [
            f"{node.name}: {nodes[node].dtype} {list(nodes[node].dims)}, {place}\n"
            for node, place in sorted(placements.items(), key=lambda item: item[0].id)
        ]
        self._write("memory.txt", "".join(lines))
        lines = [f"{seconds:.6f} {stage}\n" for stage, seconds in self._seconds.items()]
        self._write("seconds.txt", "".join(lines))

    def source(self, source: Source) -> None:
        extension = _EXTENSIONS.get(source.language.lower(), "txt")
        self._write(f"source.{extension}", source.text)

    def _write(self, name: str, text: str) -> None:
        try:
            self._folder.write(name, text)
        except OSError as error:
            raise _unusable(self._folder.path.parent, str(error)) from error


def _open_dump(assignments: AssignProgram) -> Dump | None:
    """Returns a new folder under the setting `dump_dir`, or None if that is unset."""
    directory = settings.current().dump_dir
    if directory is None:
        return None
    dump = Dump(_new_folder(Path(directory), _file_name(assignments.name)))
    dump.text("assignments", assign_printer.to_text(assignments))
    return dump


def _new_folder(directory: Path, name: str) -> NewDirectory:
    """Returns the first of `name`, `name-2`, `name-3`, ... that does not exist yet, created."""
    for ordinal in count(1):
        folder = directory / (name if ordinal == 1 else f"{name}-{ordinal}")
        try:
            return NewDirectory(folder)
        except FileExistsError:
            if folder.is_dir():
                continue
            raise _unusable(directory, f"{folder} is a file") from None
        except OSError as error:
            raise _unusable(directory, str(error)) from error
    raise AssertionError("count never ends")


def _unusable(directory: Path, found: str) -> SettingsError:
    return SettingsError(
        "The setting dump_dir names a directory that can be written to.",
        found=found,
        where=f"dump_dir = {str(directory)!r}",
        fix="choose another directory, or unset dump_dir",
    )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name) or "routine"
