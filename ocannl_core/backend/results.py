"""Checks of the results of hooks. Each returns the violation as a clause, or an empty text."""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from ocannl_core.backend.protocols import Buffer, MemoryStatistics, TargetReport
from ocannl_core.base.errors import printable
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.ir.kernels.library_product import LibraryCall
from ocannl_core.ir.node import NodeInfo
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp, VectorOp
from ocannl_core.ir.target import Capability, Target, ThreadBlocks

_ABSENT = object()


def shown(value: object) -> str:
    """Return a short representation of anything, also of objects whose own one fails."""
    try:
        if isinstance(value, Enum):
            return str(value)
        return printable(" ".join(reprlib.repr(value).split()))
    except BaseException as error:
        reraise_interruption(error)
        return f"an object of class {type(value).__name__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also of one that raises another."""
    try:
        return printable(str(error))
    except BaseException as raised:
        reraise_interruption(raised)
        return "no text"


def violation_of_report(report: object, backend: str) -> str:
    """Return why a result of `ocannl_targets` is no report of this backend's devices."""
    if not isinstance(report, TargetReport):
        return f"ocannl_targets must return a TargetReport, and returned {shown(report)}"
    for field in ("targets", "details"):
        value = getattr(report, field)
        if not isinstance(value, tuple):
            return f"TargetReport.{field} must be a tuple, and is {shown(value)}"
    if found := _wrong_field(report) or _wrong_element(report.details, str, "details"):
        return f"TargetReport.{found}"
    if found := _wrong_element(report.targets, Target, "targets"):
        return f"TargetReport.{found}"
    for target in report.targets:
        if not target.has_device:
            return f"Target.has_device must be True of a device that is listed: {target}"
        if found := _wrong_part(target):
            return f"Target.{found}"
    foreign = [str(target) for target in report.targets if target.backend != backend]
    if foreign:
        return f"it reports devices of another backend: {', '.join(foreign)}"
    twice = [ordinal for ordinal, n in Counter(t.device for t in report.targets).items() if n > 1]
    if twice:
        return f"it reports several devices of one number: {', '.join(map(str, twice))}"
    return ""


def violation_of_described(found: object, backend: str) -> str:
    """Return why a result of `ocannl_described` is no description of devices."""
    if not isinstance(found, Mapping):
        return f"it must return targets by name, and returned {shown(found)}"
    for name, target in found.items():
        if not isinstance(name, str) or not isinstance(target, Target):
            return f"it must return targets by name, with {shown(name)}: {shown(target)} in it"
        if target.backend != backend or target.has_device:
            return f"{name} must be a target of this backend with has_device=False"
        if wrong := _wrong_part(target):
            return f"Target.{wrong}, in {name}"
    return ""


def _wrong_part(target: Target) -> str:
    """Return the first field of another type, or with a number below the least one."""
    if found := _wrong_field(target):
        return found
    if target.vector_bytes and not target.vector_registers:
        return (
            f"vector_registers must be at least 1 beside vector_bytes={target.vector_bytes}, and "
            "is 0: state how many vectors the device holds, such as 16, or vector_bytes=0"
        )
    kinds: dict[str, type | tuple[type, ...]] = {
        "capabilities": Capability,
        "formats": DType,
        "primitives": (UnaryOp, BinaryOp, TernaryOp, VectorOp),
    }
    for name, kind in kinds.items():
        values: object = getattr(target, name)
        if values is not None and not isinstance(values, tuple):
            return f"{name} must be a tuple or None, and is {shown(values)}"
        for value in values or ():
            if not isinstance(value, kind):
                return f"{name} must hold objects of type {_name_of(kind)}, not {shown(value)}"
    blocks: object = target.thread_blocks
    if blocks is None:
        return ""
    if not isinstance(blocks, ThreadBlocks):
        return f"thread_blocks must be ThreadBlocks or None, and is {shown(blocks)}"
    found = _wrong_field(blocks)
    return f"thread_blocks.{found}" if found else ""


def _name_of(kind: type | tuple[type, ...]) -> str:
    return kind.__name__ if isinstance(kind, type) else " or ".join(each.__name__ for each in kind)


_LEAST = {
    "priority": -sys.maxsize,
    **dict.fromkeys(("cores", "max_threads", "threads", "subgroup", "processors"), 1),
}
"""The least numbers of fields of devices; of others, 0."""


def _wrong_field(value: Any) -> str:
    """Return the first field of another type than its default, or below the least number."""
    for field in fields(value):
        default, given = field.default, getattr(value, field.name)
        if default is MISSING:
            kind: type = int if field.name in _LEAST else str
        else:
            kind = type(default)
        is_right = isinstance(given, kind) and isinstance(given, bool) == (kind is bool)
        if not is_right and default is not None:
            return f"{field.name} must be of type {kind.__name__}, and is {shown(given)}"
        least = _LEAST.get(field.name, 0)
        numbers = given if isinstance(given, tuple) else (given,)
        if any(type(each) is int and each < least for each in numbers):
            return f"{field.name} must be at least {least}, and is {shown(given)}"
    return ""


def _wrong_element(values: tuple[object, ...], kind: type, name: str) -> str:
    for value in values:
        if not isinstance(value, kind):
            return f"{name} must hold objects of type {kind.__name__}, and holds {shown(value)}"
    return ""


def violation_of_passes(answer: object) -> str:
    """Return why a result of `ocannl_passes` is no list of passes."""
    if not isinstance(answer, list | tuple):
        return f"it must return a list of NamedPass, and returned {shown(answer)}"
    if not answer:
        return ""
    from ocannl_core.passes.loops.pipeline import NamedPass  # a backend without passes does without

    for each in answer:
        if not isinstance(each, NamedPass):
            return f"it must return a list of NamedPass, with {shown(each)} in it"
        if not isinstance(each.name, str) or not callable(each.run):
            return f"a NamedPass has a name and a function, and one is {shown(each)}"
    return ""


def violation_of_source(source: object) -> str:
    """Return why a result of `ocannl_generate` is no source."""
    for name in ("language", "text"):
        value = inspect.getattr_static(source, name, _ABSENT)
        if value is _ABSENT:
            return f"it must return a Source, with a language and a text, not {shown(source)}"
        # properties may have to compute their values
        if not hasattr(type(value), "__get__") and not isinstance(value, str):
            return f"the {name} of a Source must be a text, and is {shown(value)}"
    return ""


def violation_of_executable(executable: object) -> str:
    """Return why a result of `ocannl_compile` is no executable."""
    if callable(getattr(executable, "link", None)):
        return ""
    return f"it must return an Executable, with a method `link`, not {shown(executable)}"


def violation_of_launcher(launcher: object) -> str:
    """Return why a result of `Executable.link` is no launcher."""
    if callable(launcher):
        return ""
    return f"it must return a function of the static indices, and returned {shown(launcher)}"


def violation_of_library_call(found: LibraryCall) -> str:
    """Return why a result of `ocannl_library` is no call."""
    if not isinstance(found, LibraryCall):
        return f"it must return a LibraryCall or None, and returned {shown(found)}"
    name = getattr(found.op, "name", None)
    if not isinstance(name, str) or not callable(getattr(found.op, "perform", None)):
        return f"the op of a LibraryCall has a name and a method perform, unlike {shown(found.op)}"
    return ""


def violation_of_buffer(buffer: Buffer, info: NodeInfo, target: Target) -> str:
    """Return why a result of `ocannl_allocate` is no memory for these cells on this device."""
    for name, wanted in (("info", info), ("target", target)):
        found = getattr(buffer, name, _ABSENT)
        if found is _ABSENT:
            return f"it must return a Buffer, with a target and an info, not {shown(buffer)}"
        if type(found) is not type(wanted):
            return f"the {name} of the buffer must be {shown(wanted)}, and is {shown(found)}"
        for field in fields(wanted):
            ours, theirs = (getattr(each, field.name) for each in (wanted, found))
            if field.compare and theirs != ours:
                part = f"{name}.{field.name} of the buffer"
                return f"{part} must be {shown(ours)}, and is {shown(theirs)}"
    return ""


def violation_of_import(buffer: Buffer, target: Target) -> str:
    """Return why a result of `ocannl_import` is no memory of this device."""
    info = getattr(buffer, "info", None)
    if not isinstance(info, NodeInfo) or getattr(buffer, "target", None) != target:
        return f"it must return a Buffer of {target}, or None, and returned {shown(buffer)}"
    return "the memory of another library has no margins" if info.padding else ""


def violation_of_statistics(found: MemoryStatistics) -> str:
    """Return why a result of `ocannl_memory_statistics` counts no memory."""
    if not isinstance(found, MemoryStatistics):
        return f"it must return MemoryStatistics or None, and returned {shown(found)}"
    for field in fields(found):
        value = getattr(found, field.name)
        if value is None and field.default is None:
            continue
        if type(value) is not int or value < 0:
            return f"MemoryStatistics.{field.name} is a number of bytes, and is {shown(value)}"
    if found.free > found.total:
        return f"no more memory is free than there is, and it returned {shown(found)}"
    return ""


def violation_of_event(event: object) -> str:
    """Return why a result of `ocannl_transfer` is no event."""
    if callable(getattr(event, "wait", None)):
        return ""
    return f"it must return an Event, with a method `wait`, or None, and returned {shown(event)}"
