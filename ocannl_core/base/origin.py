"""Origins: the user's operations and source lines, for messages."""

from __future__ import annotations

import contextlib
import copy
import dis
import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from types import CodeType, FrameType

from ocannl_core.base.fast_dataclass import dataclass

_skipped: tuple[str, ...] = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",
    contextlib.__file__,  # calls functions that a context manager decorates
    copy.__file__,
    "<frozen",
)
"""Beginnings of the names of source files whose lines are not the user's."""


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a source file."""

    file: str
    line: int

    @property
    def text(self) -> str:
        """The line itself, stripped; empty when the source is not available."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        name = Path(self.file).name
        return f"{name}:{self.line}: {self.text}" if self.text else f"{name}:{self.line}"


@dataclass(frozen=True, slots=True)
class BlockUse:
    """The user's line that applies a block, around the operations of its body."""

    title: str
    location: Location | None
    outer: BlockUse | None
    """The use whose body applies the block."""


running_use: ContextVar[BlockUse | None] = ContextVar("ocannl_use", default=None)
"""The innermost use of a block whose body is running."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The operation and the user's line that an object or a constraint comes from."""

    operation: str
    """The operation for readers: `matmul`, `einsum "ij;jk=>ik"`, `parameter w`."""
    location: Location | None = None
    """The user's line, where there is one."""
    detail: str = ""
    """The part of the operation: `output axis -1 of the first operand`."""
    use: BlockUse | None = field(default_factory=running_use.get)
    """The use of the block in whose body the operation is."""

    def at(self, detail: str) -> Origin:
        """Return this origin with a part of the operation."""
        return Origin(self.operation, self.location, detail, self.use)

    @property
    def place(self) -> str:
        """The text, and the line of each block use around it that is not still running."""
        return ", in ".join([str(self), *self._uses()])

    def _uses(self) -> Iterator[str]:
        running = list(_around(running_use.get()))
        line = self.location
        for use in _around(self.use):
            if use in running:
                return
            if use.location != line:  # a block of ours has no line of its own in its body
                yield f"{use.title}, at {use.location}"
            line = use.location

    def __str__(self) -> str:
        what = f"{self.detail} of {self.operation}" if self.detail else self.operation
        return f"{what}, at {self.location}" if self.location else what


def _around(use: BlockUse | None) -> Iterator[BlockUse]:
    """Yield a use and those around it, innermost first."""
    while use is not None:
        yield use
        use = use.outer


def caller_depth() -> int:
    """Return the `stacklevel` of a warning that names the innermost line outside this package."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and is_inside(frame.f_code):
        frame = frame.f_back
        depth += 1
    return depth


def skip_lines_of(file: str) -> None:
    """Let messages name the lines that call a package, and not its own.

    A library that makes tensors for its users, such as a reader of models, calls
    `oc.custom.skip_lines_of(__file__)` in its `__init__.py`.

    Args:
        file: The file of a package; all files in its folder are skipped.
    """
    _skip(f"{Path(file).parent}{os.sep}")


def skip_lines_of_script(frame: FrameType) -> None:
    """Skip the lines of the script that an installer writes for a command, in its frame."""
    _skip(frame.f_code.co_filename)


def _skip(beginning: str) -> None:
    global _skipped
    if beginning not in _skipped:
        _skipped += (beginning,)


def is_inside(code: CodeType) -> bool:
    """True of the core, of `skip_lines_of`, imports, and functions that `dataclasses` compiles."""
    return code.co_filename.startswith(_skipped) or (
        code.co_filename == "<string>" and code.co_qualname.startswith("__create_fn__.")
    )


def caller_location() -> Location | None:
    """Return the innermost line on the call stack that lies outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # a call of `is_inside` for each frame would be most of the time of an operation
        file = code.co_filename
        if not file.startswith(_skipped) and (file != "<string>" or not is_inside(code)):
            return Location(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def returns_of(function: Callable[..., object]) -> tuple[Location, ...]:
    """Return the lines of a function's `return` statements with a value.

    Callables without byte code, such as classes, have no lines.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ()
    lines: dict[int, None] = {}
    line = code.co_firstlineno
    loads_none = False
    for instruction in dis.get_instructions(code):
        line = (instruction.positions and instruction.positions.lineno) or line
        is_none = (
            instruction.opname in ("LOAD_CONST", "RETURN_CONST") and instruction.argval is None
        )
        if instruction.opname == "RETURN_VALUE" and not loads_none:
            lines[line] = None
        if instruction.opname == "RETURN_CONST" and not is_none:
            lines[line] = None
        loads_none = is_none
    return tuple(Location(code.co_filename, line) for line in lines)
