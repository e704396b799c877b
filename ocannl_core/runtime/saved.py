"""Generated code on disk, found by the program it was generated from.

    <cache directory>/routines/<hash>    what passes, schedule and code generation made of a program

A later process that compiles the same program reads it and skips those stages; the backend keeps
what its compiler makes by itself. The hash covers all that the result depends on: the program, what
is stored and why, the target, the settings, and the source code of the core and of the backend.

An entry is as trustworthy as the directory, which belongs to the user alone: reading one can run
code, as loading a compiled kernel does. Files appear whole by renaming, and what cannot be read as
it was written is made again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ocannl_core import settings
from ocannl_core.loopir.nodes import CallExternal, LoopProgram
from ocannl_core.loopir.traverse import walk
from ocannl_core.node import Placement, TensorNode
from ocannl_core.passes.inline.decide import Definition
from ocannl_core.records import dataclass
from ocannl_core.renaming import NOT_PLAIN, Numbering, dumped, loaded
from ocannl_core.schedule.plan import Plan
from ocannl_core.schedule.searching.remembered import memory_of
from ocannl_core.target import Source, Target

if TYPE_CHECKING:
    from ocannl_core.hooks.manager import Backend

_MOST_ENTRIES = 1000
"""The least recently used half of the entries goes when there are more."""
_CORE = Path(__file__).parents[1]
_LOADED = time.time()
_NOT_WRITTEN = (OSError, *NOT_PLAIN)
"""Why something cannot be kept: no place for it, no plain data, or nested too deeply."""
_IRRELEVANT_SETTINGS = frozenset({"cache_dir", "dump_dir"})


@dataclass(frozen=True, slots=True)
class Generated:
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


def remembered(
    lowered: LoopProgram,
    stored: Mapping[TensorNode, Placement],
    requested: frozenset[TensorNode],
    backend: Backend,
    target: Target,
    make: Callable[[], Generated],
) -> Generated:
    """Returns what an earlier process made of a program, or else makes it now and keeps it.

    Nothing is kept of programs that call out of the loop language, for backends whose sources do
    not say that they can be stored, with wrapper plugins, or where nothing can be written.
    """
    code = _code_digest(backend)
    if code is None or any(isinstance(each, CallExternal) for each in walk(lowered.body)):
        return make()
    numbering = Numbering()
    requests = tuple(node for node in lowered.nodes if node in requested)
    question = (code, _circumstances(target), target, lowered, tuple(stored.items()), requests)
    try:
        key = hashlib.sha256(dumped(question, numbering)).hexdigest()
        path = _folder(settings.cache_directory()) / key
    except _NOT_WRITTEN:
        return make()
    numbering.close()
    found = _read(path, numbering.things)
    if found is not None:
        return found
    made = make()
    if getattr(made.source, "is_storable", False):
        with suppress(*_NOT_WRITTEN):
            _write(path, dumped(made, numbering))
    return made


def _circumstances(target: Target) -> str:
    """Returns what else results depend on."""
    chosen = settings.current()
    schedules = "" if chosen.tune == "off" else memory_of(target).state()
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
        for parent, inside, names in os.walk(folder):
            inside.sort()
            for name in sorted(names):
                if name.endswith((".py", ".c")):
                    file = Path(parent) / name
                    if file.stat().st_mtime > _LOADED:
                        return None
                    content = file.read_bytes()
                    place = file.relative_to(folder).as_posix()
                    digest.update(f"{place} {len(content)}\n".encode() + content)
    return digest.hexdigest()


# ----- files ------------------------------------------------------------------------------------


@cache
def _folder(directory: Path) -> Path:
    """Returns the directory of the entries, which only the user can use.

    Raises:
        OSError: if it belongs to somebody else, or cannot be made.
    """
    folder = directory / "routines"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {status.st_uid}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _read(path: Path, things: Sequence[object]) -> Generated | None:
    """Returns an entry; None if there is none, or not as it was written."""
    try:
        content = path.read_bytes()
        digest, payload = content[:32], content[32:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        os.utime(path)
    except OSError:
        return None
    try:
        found = loaded(payload, things)
    except Exception:  # intact, and still not readable here: made again
        return None
    return found if isinstance(found, Generated) else None


def _write(path: Path, payload: bytes) -> None:
    """Makes an entry appear with all its content at once; drops old ones when there are many."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    entries = list(os.scandir(path.parent))
    if len(entries) > _MOST_ENTRIES:
        for each in sorted(entries, key=_last_use)[: len(entries) // 2]:
            with suppress(OSError):
                os.unlink(each.path)


def _last_use(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:  # another process dropped it
        return 0.0
