"""The files of the setting `dump_dir`: every stage of a compilation as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ocannl_core.base import settings, timeline
from ocannl_core.base.errors import SettingsError
from ocannl_core.base.files.new_files import write_new
from ocannl_core.ir.loops.nodes import LoopProgram
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode

if TYPE_CHECKING:
    from ocannl_core.ir.kernels.nest_plan import NestPlan

_EXTENSIONS = {"c": "c", "c++": "cpp", "cuda": "cu", "opencl": "cl", "python": "py"}


class Dump:
    """A folder with every stage of one compilation, numbered in the order of the stages.

    Beside the stages it has the generated code, the placement of every node with its reason, and
    seconds by stage. Without a folder nothing is written, and nothing printed.

    Args:
        create: Creates the folder; None for a dump without one.
        is_held: True to create and write nothing before `release`.
    """

    def __init__(self, create: Callable[[], Path] | None, *, is_held: bool = False) -> None:
        self._create = create
        self._held: list[tuple[str, str]] | None = [] if is_held else None
        self._folder = None if create is None or is_held else create()
        self._ordinals = count()
        self._seconds: dict[str, float] = {}

    @property
    def is_open(self) -> bool:
        """Return True if files are written."""
        return self._create is not None

    def restart(self) -> None:
        """Drop the stages after the first one from a dump that is held back."""
        if self._held is not None:
            del self._held[1:]
            self._ordinals = count(len(self._held))

    def release(self) -> None:
        """Write what has been held back, and from now on everything at once."""
        held, self._held = self._held, None
        if held is not None and self._create is not None:
            self._folder = self._create()
            for name, text in held:
                self._write(name, text)

    def text(self, stage: str, text: str) -> None:
        """Write a stage as text."""
        name = f"{next(self._ordinals):02d}_{_file_name(stage)}.txt"
        self._write(name, text.rstrip("\n") + "\n")

    def program(self, stage: str, program: LoopProgram) -> None:
        """Write a loop program after a pass."""
        if self.is_open:
            from ocannl_core.ir.loops.printer import to_text

            self.text(stage, to_text(program))

    def plan(self, stage: str, plan: NestPlan) -> None:
        """Write a plan after a pass."""
        if self.is_open:
            from ocannl_core.ir.kernels.printer import to_text

            self.text(stage, to_text(plan))

    def source(self, language: str, text: str) -> None:
        """Write generated code."""
        extension = _EXTENSIONS.get(language.lower(), "txt")
        self._write(f"source.{extension}", text)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Record how long a stage takes."""
        start = perf_counter()
        yield
        end = perf_counter()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + end - start
        timeline.record("compile", stage, start, end)

    def finish(
        self, nodes: Mapping[TensorNode, NodeInfo], placements: Mapping[TensorNode, Placement]
    ) -> None:
        """Write the placement of every node with its reason, and the seconds of each stage."""
        lines = [
            f"{node.name}: {nodes[node].dtype} {list(nodes[node].dims)}, {place}\n"
            for node, place in sorted(placements.items(), key=lambda item: item[0].id)
        ]
        self._write("memory.txt", "".join(lines))
        lines = [f"{seconds:.6f} {stage}\n" for stage, seconds in self._seconds.items()]
        self._write("seconds.txt", "".join(lines))

    def _write(self, name: str, text: str) -> None:
        if self._held is not None:
            self._held.append((name, text))
        if self._folder is None:
            return
        try:
            write_new(self._folder / name, text)
        except OSError as error:
            raise _unusable(self._folder.parent, str(error)) from error


def open_dump(name: str, *, is_held: bool = False) -> Dump:
    """Return a new folder for a routine under the setting `dump_dir`; without one if that is unset.

    Args:
        is_held: True to create and write nothing before `Dump.release`.

    Raises:
        SettingsError: if the directory cannot be written to.
    """
    chosen = settings.current()
    timeline.use(chosen.timeline)
    directory = chosen.dump_dir
    if directory is None:
        return Dump(None)
    return Dump(partial(_new_folder, Path(directory), _file_name(name)), is_held=is_held)


def _new_folder(directory: Path, name: str) -> Path:
    """Return the first of `name`, `name-2`, `name-3`, ... that does not exist yet, created."""
    for ordinal in count(1):
        folder = directory / (name if ordinal == 1 else f"{name}-{ordinal}")
        try:
            folder.mkdir(parents=True)
            return folder
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
