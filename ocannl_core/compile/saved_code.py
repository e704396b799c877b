"""Lowered and generated code on disk, found by the assignments of a program.

    <cache directory>/routines/<hash>    facts about the loops of a program
    <cache directory>/routines/<hash>    its optimized loops, plan and source

A later process that compiles the same program reads them and skips those stages; the backend caches
the output of its compiler itself. The hash of the facts covers the assignments, the target, the
settings, and the source code of the core and of the backend. With the facts the driver decides
which nodes are stored; the hash of the generated code covers these, too.

An entry is data with a digest. One that was altered, or that does not decode to the expected
classes, is generated again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ocannl_core.backend.plugins import package_of
from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.digests import add_digest, strip_digest
from ocannl_core.base.files.directory import PrivateDirectory, private_directory
from ocannl_core.compile.lowered_code import LoweredCode, LoweredFacts, lower_code
from ocannl_core.compile.parts import Device, Item, Part, PartitionedSource
from ocannl_core.compile.relevant_settings import relevant_settings
from ocannl_core.compile.stages import CompileRequest, GeneratedCode, OptimizedProgram
from ocannl_core.ir.assignments.nodes import AssignProgram
from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps, repeat_as
from ocannl_core.ir.loops.nodes import Definition
from ocannl_core.ir.node import NodeInfo, Placement, TensorNode
from ocannl_core.ir.serialization.columns import DecodingError
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import Form, NotDataError, Numbering
from ocannl_core.ir.serialization.schema import form_of, violation_of_data
from ocannl_core.ir.target import Target
from ocannl_core.schedule.tuning.tuning_cache import tuning_cache

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.compile.saved_kernels import SavedKernels

_MOST_ENTRIES = 1000
_CORE = Path(__file__).parents[1]
_LOADED = time.time()
_PLACEMENTS = tuple[tuple[TensorNode, Placement], ...]
_DEVICE = tuple[str, str, Target]
_ASSIGNMENTS = tuple[tuple[_DEVICE, ...], AssignProgram, tuple[TensorNode, ...]]
_REQUEST = tuple[
    str,
    tuple[tuple[TensorNode, Definition], ...],
    tuple[tuple[TensorNode, NodeInfo], ...],
    _PLACEMENTS,
    tuple[TensorNode, ...],
    _PLACEMENTS,
]
_PART = -1
"""A part in the structure of a partitioned source; other numbers are repetitions."""


@dataclass(frozen=True, slots=True)
class SavedCode:
    """The entry of a program."""

    code: GeneratedCode | None = None
    """The code that an earlier process generated; None if there is none."""
    _write: Callable[[GeneratedCode], None] | None = None

    def save(self, made: GeneratedCode) -> None:
        """Write code to the entry, if it can be written."""
        if self._write is not None:
            self._write(made)


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """The key of a program in the cache."""

    digest: str
    """A hash of its assignments and of all else that the facts about it depend on."""
    circumstances: str
    """A hash of all that the code of the device depends on beside the program."""
    directory: PrivateDirectory
    numbering: Numbering
    """The nodes and variables that the assignments mention."""
    form: Form
    """The schema of generated code."""
    devices: tuple[Device, ...]


def program_key(
    program: AssignProgram, candidates: tuple[TensorNode, ...], devices: tuple[Device, ...]
) -> ProgramKey | None:
    """Return the key of a program; None if its code is not saved.

    Code is saved only if the program stays in the languages of the core, each backend states the
    class of its sources (`OCANNL_SOURCE`), no wrapper plugin is installed, and the cache can be
    written.

    Args:
        candidates: Nodes that may be written in part.
        devices: The device, and those for kernels that it does not support.
    """
    form = _form([backend for backend, _ in devices])
    code = [_code_digest(backend) for backend, _ in devices]
    if form is None or None in code:
        return None
    numbering = Numbering()
    described = tuple(
        (digest, _circumstances(target), target)
        for digest, (_, target) in zip(code, devices, strict=True)
    )
    try:
        circumstances = _hash(described[0], form_of(_DEVICE), Numbering())
        digest = _hash((described, program, candidates), form_of(_ASSIGNMENTS), numbering)
        directory = private_directory(settings.cache_directory(), "routines")
    except (NotDataError, OSError):
        return None
    return ProgramKey(digest, circumstances, directory, numbering, form, devices)


def _hash(value: object, form: Form | None, numbering: Numbering) -> str:
    """Return the hash of a value, and of the identities in it that are new in a numbering."""
    found = hashlib.sha256(encode(value, form, numbering)).hexdigest()
    numbering.close()
    return found


def find_lowered(
    program: AssignProgram, candidates: tuple[TensorNode, ...], key: ProgramKey | None
) -> LoweredCode:
    """Return lowered code with the facts that an earlier process has saved; else lower it, and save
    them.

    Args:
        candidates: Nodes that may be written in part.
        key: The key of the program; None to save and read nothing.

    Raises:
        LoweringError: if an assignment is inconsistent.
    """
    if key is None:
        return lower_code(program, candidates)
    form, things = form_of(LoweredFacts), key.numbering.things
    found = _read(key.directory, key.digest, form, things)
    if isinstance(found, LoweredFacts):
        return LoweredCode.of(program, found)
    code = lower_code(program, candidates)
    with suppress(NotDataError, OSError):
        _write(key.directory, key.digest, encode(code.facts, form, Numbering.of(things)))
    return code


def find_saved(key: ProgramKey | None, request: CompileRequest) -> SavedCode:
    """Return the entry of a program.

    Args:
        key: The key of its assignments; None to save and read nothing.
    """
    if key is None:
        return SavedCode()
    recipes, nodes = request.code.recipes, request.code.nodes
    operands = dict.fromkeys(node for each in recipes for node in each.operands)
    question = (
        key.digest,
        tuple((each.node, each.definition) for each in recipes),
        tuple((node, nodes[node]) for node in (*(r.node for r in recipes), *operands)),
        tuple(request.stored.items()),
        tuple(node for node in nodes if node in request.inlined),
        tuple(request.tuned_places.items()),
    )
    numbering, form = key.numbering, key.form
    try:
        name = _hash(question, form_of(_REQUEST), numbering)
    except NotDataError:
        return SavedCode()

    def write(made: GeneratedCode) -> None:
        with suppress(NotDataError, OSError):
            _write(key.directory, name, encode(_as_data(made), form, numbering))

    entry = _read(key.directory, name, form, numbering.things)
    return SavedCode(None if entry is None else _from_data(entry, key.devices), write)


def find_kernels(key: ProgramKey | None) -> SavedKernels | None:
    """Return the kernels of earlier programs for the device; None if code is not saved.

    Args:
        key: The key of the program; None to save and read nothing.
    """
    if key is None:
        return None
    from ocannl_core.compile.saved_kernels import SavedKernels

    with suppress(OSError):
        directory = private_directory(settings.cache_directory(), "kernels")
        return SavedKernels(directory, key.circumstances)
    return None


def _form(backends: Sequence[Backend]) -> Form | None:
    """Return the schema of an entry; None if a backend states no class for its sources."""
    sources = [backend.source_class() for backend in backends]
    if None in sources:
        return None
    part = GenericAlias(tuple, (int, Plan, Union[tuple(sources)]))  # noqa: UP007
    parts, numbers = (GenericAlias(tuple, (each, ...)) for each in (part, int))
    entry: Any = (OptimizedProgram, Plan, parts, tuple[RepeatedSteps, ...], numbers)
    return form_of(GenericAlias(tuple, entry))


def _as_data(made: GeneratedCode) -> tuple[object, ...]:
    """Return code as an entry: the parts of its source in order, the repetitions around them, and
    the structure, which has `_PART` for a part, and for a repetition the number of its items. A
    source for one device is a part without a structure.
    """
    parts: list[object] = []
    repetitions: list[RepeatedSteps] = []
    structure: list[int] = []

    def add(items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Part):
                structure.append(_PART)
                parts.append((item.device, item.plan, item.source))
            else:
                structure.append(len(item.steps))
                repetitions.append(repeat_as(item, (), item.scratch))
                add(item.steps)

    if isinstance(made.source, PartitionedSource):
        add(made.source.items)
    else:
        parts.append((0, made.plan, made.source))
    return made.program, made.plan, tuple(parts), tuple(repetitions), tuple(structure)


def _from_data(entry: Any, devices: tuple[Device, ...]) -> GeneratedCode:
    program, plan, parts, repetitions, structure = entry
    if not structure:
        ((_, _, source),) = parts
        return GeneratedCode(program, plan, source)
    next_part, next_repetition, numbers = iter(parts), iter(repetitions), iter(structure)

    def items(count: int) -> tuple[Item, ...]:
        return tuple(item(next(numbers)) for _ in range(count))

    def item(number: int) -> Item:
        if number == _PART:
            return Part(*next(next_part))
        repeated = next(next_repetition)
        return repeat_as(repeated, items(number), repeated.scratch)

    found = tuple(item(number) for number in numbers)
    return GeneratedCode(program, plan, PartitionedSource(devices, found, plan))


def _circumstances(target: Target) -> str:
    """Return the versions and settings that results depend on."""
    chosen = settings.current()
    schedules = "" if chosen.tune == "off" else tuning_cache(target).state()
    relevant = relevant_settings(target.backend)
    return f"{sys.version} {np.__version__} {relevant} {schedules}"


def _code_digest(backend: Backend) -> str | None:
    """Return a hash of the core's and a backend's source code; None if a wrapper takes part."""
    folders = [_CORE]
    for name, plugin in backend.manager.list_name_plugin():
        if name.startswith("wrapper "):
            return None
        if (getattr(plugin, "__package__", None) or "").startswith("ocannl_core"):
            continue  # part of the core
        folder = package_of(plugin)
        if folder is None:
            return None
        folders.append(folder)
    return _digest_of(tuple(folders))


def why_not_saved(backend: Backend) -> str:
    """Return why the sources of a backend are not saved, as a clause, although its plugin states
    their class; an empty text if they are.
    """
    plugin = backend.manager.get_plugin(backend.name)
    if getattr(plugin, "OCANNL_SOURCE", None) is None:
        return ""
    kind = backend.source_class()
    if kind is None:
        return "it is no class"
    found = violation_of_data(kind)
    return "the plugin is no package" if not found and package_of(plugin) is None else found


@cache
def _digest_of(folders: tuple[Path, ...]) -> str | None:
    """Return a hash of source files; None if one was edited after this process had loaded it."""
    digest = hashlib.sha256()
    for folder in folders:
        for place, path in _source_files(str(folder), ""):
            with open(path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if status.st_mtime > _LOADED:
                    return None
                content = file.read()
            digest.update(f"{place} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _source_files(folder: str, place: str) -> Iterator[tuple[str, str]]:
    """Yield the source files in a folder with their paths."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for each in found:
        if each.is_dir():
            if each.name != "__pycache__":
                yield from _source_files(each.path, f"{place}{each.name}/")
        elif each.is_file() and not each.name.endswith(".pyc"):  # also templates, or a library
            yield place + each.name, each.path


def _read(
    directory: PrivateDirectory, name: str, form: Form | None, things: Sequence[object]
) -> Any:
    """Return an entry; None if there is none, or its digest differs."""
    content = directory.read(name, is_use=True)
    payload = None if content is None else strip_digest(name, content)
    if payload is None or form is None:
        return None
    try:
        return decode(payload, form, things)
    except DecodingError:  # from a plugin that changed and has the same source code, for instance
        return None


def _write(directory: PrivateDirectory, name: str, payload: bytes) -> None:
    """Write an entry; drop old ones when there are many."""
    directory.write(name, add_digest(name, payload))
    directory.drop_old(_MOST_ENTRIES)
