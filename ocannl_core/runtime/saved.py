"""Generated code on disk, found by the program it was generated from.

    <cache directory>/routines/<hash>    what passes, schedule and code generation made of a program

A later process that compiles the same program reads it and skips those stages; the backend keeps
what its compiler makes by itself. The hash covers all that the result depends on: the program, what
is stored and why, the target, the settings, and the source code of the core and of the backend.

An entry is data with a digest: what is not as it was written, or is no data of the expected
classes, is made again.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core import settings
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.kernels.nodes import Plan
from ocannl_core.loopir.nodes import LoopProgram
from ocannl_core.node import Placement, TensorNode
from ocannl_core.passes.inline.decide import Definition
from ocannl_core.schedule.tuning.tuning_cache import tuning_cache
from ocannl_core.serialization.columns import DecodingError
from ocannl_core.serialization.decode import decode
from ocannl_core.serialization.encode import NotDataError, encode
from ocannl_core.serialization.numbering import Numbering
from ocannl_core.serialization.schema import Form, form_of
from ocannl_core.storage.digests import add_digest, strip_digest
from ocannl_core.storage.directory import PrivateDirectory, private_directory
from ocannl_core.target import Source, Target

if TYPE_CHECKING:
    from ocannl_core.hooks.manager import Backend

_MOST_ENTRIES = 1000
"""The least recently used half of the entries goes when there are more."""
_CORE = Path(__file__).parents[1]
_LOADED = time.time()
_IRRELEVANT_SETTINGS = frozenset({"cache_dir", "dump_dir", "trusted_directories"})
_PLACEMENTS = tuple[tuple[TensorNode, Placement], ...]
_QUESTION = tuple[str, str, Target, LoopProgram, _PLACEMENTS, tuple[TensorNode, ...]]


@dataclass(frozen=True, slots=True)
class GeneratedCode:
    """What becomes of a lowered program before a backend compiles it.

    Attributes:
        optimised: The loop program after all passes.
        plan: Its kernels and the order in which they run.
        source: The generated code.
        placements: Where each node is, and why.
        definitions: How later routines compute the nodes that this one computes and does not store.
    """

    optimised: LoopProgram
    plan: Plan
    source: Source
    placements: Mapping[TensorNode, Placement]
    definitions: Mapping[TensorNode, Definition]


def load_or_generate(
    lowered: LoopProgram,
    stored: Mapping[TensorNode, Placement],
    requested: frozenset[TensorNode],
    backend: Backend,
    target: Target,
    make: Callable[[], GeneratedCode],
) -> GeneratedCode:
    """Returns what an earlier process made of a program, or else makes it now and keeps it.

    Nothing is kept of programs that call out of the loop language, for backends that do not say of
    what data their sources consist, with wrapper plugins, or where nothing can be written.
    """
    form = _form(backend)
    code = None if form is None else _code_digest(backend)
    if form is None or code is None:
        return make()
    numbering = Numbering()
    requests = tuple(node for node in lowered.nodes if node in requested)
    question = (code, _circumstances(target), target, lowered, tuple(stored.items()), requests)
    try:
        key = hashlib.sha256(encode(question, form_of(_QUESTION), numbering)).hexdigest()
        directory = private_directory(settings.cache_directory(), "routines")
    except (NotDataError, OSError):
        return make()
    numbering.close()
    found = _read(directory, key, form, numbering.things)
    if found is not None:
        return found
    made = make()
    with suppress(NotDataError, OSError):
        _write(directory, key, encode(_parts(made), form, numbering))
    return made


def _form(backend: Backend) -> Form | None:
    """Returns what is kept of a program; None if the sources of a backend are more than data."""
    source = backend.source_class()
    if source is None:
        return None
    tables = Mapping[TensorNode, Placement], Mapping[TensorNode, Definition]
    parts: Any = GenericAlias(tuple, (LoopProgram, Plan, source, *tables))
    return form_of(parts)


def _parts(made: GeneratedCode) -> tuple[object, ...]:
    return tuple(getattr(made, each.name) for each in fields(GeneratedCode))


def _circumstances(target: Target) -> str:
    """Returns what else results depend on."""
    chosen = settings.current()
    schedules = "" if chosen.tune == "off" else tuning_cache(target).state()
    relevant = {
        each.name: getattr(chosen, each.name)
        for each in fields(chosen)
        if each.name not in _IRRELEVANT_SETTINGS
    }
    return f"{sys.version} {np.__version__} {sorted(relevant.items())} {schedules}"


def _code_digest(backend: Backend) -> str | None:
    """Returns a hash of the core's and a backend's source code; None if other code takes part."""
    folders = [_CORE]
    for name, plugin in backend.manager.list_name_plugin():
        if name.startswith("wrapper "):
            return None
        if (getattr(plugin, "__package__", None) or "").startswith("ocannl_core"):
            continue  # part of the core
        file = getattr(plugin, "__file__", None)
        if file is None or Path(file).name != "__init__.py":
            return None
        folders.append(Path(file).parent)
    return _digest_of(tuple(folders))


@cache
def _digest_of(folders: tuple[Path, ...]) -> str | None:
    """Returns a hash of source files; None if one was edited after this process had read it."""
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
    """Yields the source files in a folder, and where they are."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for each in found:
        if each.name.endswith((".py", ".c", ".h", ".in")):
            yield place + each.name, each.path
        elif each.name != "__pycache__" and each.is_dir():
            yield from _source_files(each.path, f"{place}{each.name}/")


# ----- files ------------------------------------------------------------------------------------


def _read(
    directory: PrivateDirectory, name: str, form: Form, things: Sequence[object]
) -> GeneratedCode | None:
    """Returns an entry; None if there is none, or not as it was written."""
    content = directory.read(name, is_use=True)
    payload = None if content is None else strip_digest(name, content)
    if payload is None:
        return None
    try:
        return GeneratedCode(*decode(payload, form, things))
    except DecodingError:  # of a plugin that was changed without its source code, say
        return None


def _write(directory: PrivateDirectory, name: str, payload: bytes) -> None:
    """Writes an entry; drops old ones when there are many."""
    directory.write(name, add_digest(name, payload))
    names = directory.names()
    if len(names) > _MOST_ENTRIES:
        for each in sorted(names, key=directory.last_use)[: len(names) // 2]:
            directory.remove(each)
