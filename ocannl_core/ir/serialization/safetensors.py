"""The header of a file in the safetensors format: parsed without trust, and written.

    8 bytes    the length of the header, little-endian
    header     JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
               "__metadata__": {"key": "text", ...}}
    data       the cells of every entry, row-major and little-endian, without gaps

A header is checked completely before any cell is read: each later access stays inside of the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NoReturn

from ocannl_core.base.errors import CheckpointError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType

CODES = {
    "F64": dtypes.float64,
    "F32": dtypes.float32,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F8_E4M3": dtypes.float8_e4m3fn,
    "F8_E5M2": dtypes.float8_e5m2,
    "I64": dtypes.int64,
    "I32": dtypes.int32,
    "U64": dtypes.uint64,
    "U32": dtypes.uint32,
    "U16": dtypes.uint16,
    "I16": dtypes.int16,
    "I8": dtypes.int8,
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
}
"""The number formats that are read and written, by their names in a header."""

_NAMES = {dtype: name for name, dtype in CODES.items()}

LONGEST = 1 << 24
"""The greatest length of a header in bytes: about 150,000 entries."""
ALIGNMENT = 64
"""The data of a written file begin at a multiple of this number of bytes."""

_LENGTH_BYTES = 8
_DEEPEST = 3
_MOST_AXES = 64  # the limit of NumPy
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A text, which may be unclosed, or a bracket: every character is looked at once."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    """The offset of its first byte, from the beginning of the data."""
    end: int
    """The offset after its last byte."""


@dataclass(frozen=True, slots=True)
class Header:
    """The table of contents of a file."""

    entries: Mapping[str, StoredArray]
    metadata: Mapping[str, str]
    data_start: int
    """The offset of the data in the file."""


def parse_header(content: memoryview, path: str) -> Header:
    """Return the checked header of a file; the path is for messages.

    Raises:
        CheckpointError: if the file breaks a rule of the format.
    """
    return _Parser(path).parse(content)


class _Parser:
    """The checks of one file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def refuse(self, rule: str, found: str, entry: str = "", fix: str = "") -> NoReturn:
        where = f"entry {entry!r} of {self._path}" if entry else self._path
        raise CheckpointError(rule, found=found, where=where, fix=fix)

    def parse(self, content: memoryview) -> Header:
        size = len(content)
        damaged = "copy or download the file again"
        if size < _LENGTH_BYTES:
            self.refuse(
                "A safetensors file begins with the length of its header, in 8 bytes.",
                f"a file of {size} bytes",
                fix=damaged,
            )
        length = int.from_bytes(content[:_LENGTH_BYTES], "little")
        if length > min(size - _LENGTH_BYTES, LONGEST):
            self.refuse(
                f"The header of a safetensors file lies inside of it, and has at most "
                f"{LONGEST:,} bytes.",
                f"a header of {length:,} bytes in a file of {size:,}",
                fix="the file is truncated, or in another format",
            )
        start = _LENGTH_BYTES + length
        fields = self._json(bytes(content[_LENGTH_BYTES:start]))
        metadata = self._metadata(fields.pop(_METADATA, {}))
        entries = {name: self._entry(name, value) for name, value in fields.items()}
        self._check_layout(entries.values(), size - start)
        return Header(entries, metadata, start)

    def _json(self, text: bytes) -> dict[str, Any]:
        rule = "The header of a safetensors file is a JSON object in UTF-8."
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError as error:
            self.refuse(rule, f"byte {error.start} of the header is no UTF-8")
        depth = deepest = 0
        for token in _TOKEN.finditer(decoded):
            depth += (token[0] in "[{") - (token[0] in "]}")
            deepest = max(deepest, depth)
            if deepest > _DEEPEST:
                self.refuse(rule, f"brackets nested deeper than {_DEEPEST}")
        try:
            value = json.loads(
                decoded,
                object_pairs_hook=self._object,
                parse_float=self._no_integer,
                parse_constant=self._no_integer,
            )
        except (ValueError, RecursionError) as error:
            self.refuse(rule, str(error))
        if not isinstance(value, dict):
            self.refuse(rule, f"a JSON {type(value).__name__}")
        return value

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
            self.refuse("The names in a safetensors file are unique.", f"{twice!r} twice")
        for name in found:
            if any("\ud800" <= character <= "\udfff" for character in name):
                self.refuse("The names in a safetensors file are Unicode.", repr(name))
        return found

    def _no_integer(self, text: str) -> NoReturn:
        self.refuse("The numbers in a safetensors header are integers.", text)

    def _metadata(self, value: Any) -> Mapping[str, str]:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            self.refuse("The metadata of a safetensors file are texts by name.", _short(value))
        return value

    def _entry(self, name: str, value: Any) -> StoredArray:
        if not isinstance(value, dict) or value.keys() != _FIELDS:
            self.refuse(
                "An entry of a safetensors file has a dtype, a shape and data_offsets.",
                _short(value),
                name,
            )
        dtype = CODES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
        if dtype is None:
            self.refuse(
                "The number format of an entry is one of " + ", ".join(CODES) + ".",
                _short(value["dtype"]),
                name,
                fix="convert the file with the program that wrote it",
            )
        shape = self._counts(name, "shape", value["shape"])
        if len(shape) > _MOST_AXES:
            self.refuse(f"An entry has at most {_MOST_AXES} axes.", f"{len(shape)} axes", name)
        offsets = self._counts(name, "data_offsets", value["data_offsets"])
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            self.refuse("data_offsets are a begin and an end.", _short(value["data_offsets"]), name)
        needed = prod(shape) * dtype.nbytes
        if offsets[1] - offsets[0] != needed:
            self.refuse(
                "The bytes of an entry are the product of its sizes and the bytes of a cell.",
                f"{offsets[1] - offsets[0]:,} bytes for {value['dtype']} of shape {list(shape)}, "
                f"which takes {needed:,}",
                name,
            )
        return StoredArray(name, dtype, shape, *offsets)

    def _counts(self, name: str, field: str, value: Any) -> tuple[int, ...]:
        is_counts = isinstance(value, list) and all(
            isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 1 << 63
            for each in value
        )
        if not is_counts:
            self.refuse(f"{field} is a list of integers from 0.", _short(value), name)
        return tuple(value)

    def _check_layout(self, entries: Iterable[StoredArray], size: int) -> None:
        """Check that entries cover the data without gap or overlap, as other readers require."""
        at, before = 0, ""
        for entry in sorted(entries, key=lambda each: (each.begin, each.end)):
            if entry.end > size:
                self.refuse(
                    "The data of every entry lie inside of the file.",
                    f"bytes {entry.begin:,} to {entry.end:,} of {size:,} bytes of data",
                    entry.name,
                    fix="the file is truncated: copy or download it again",
                )
            if entry.begin != at:
                kind = "overlap with" if entry.begin < at else "a gap after"
                self.refuse(
                    "The data of a safetensors file follow each other without gap or overlap.",
                    f"{kind} {repr(before) if before else 'the header'}",
                    entry.name,
                )
            at, before = entry.end, entry.name
        if at != size:
            self.refuse(
                "The data of a safetensors file end with its last entry.",
                f"{size - at:,} more bytes",
            )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def layout(arrays: Iterable[tuple[str, DType, tuple[int, ...]]]) -> tuple[StoredArray, ...]:
    """Return entries for arrays, in the order of their data.

    Wide formats come first, so that each array is aligned to its cells although there are no gaps.
    """
    made: list[StoredArray] = []
    at = 0
    for name, dtype, shape in sorted(arrays, key=lambda each: -each[1].nbytes):
        end = at + prod(shape) * dtype.nbytes
        made.append(StoredArray(name, dtype, shape, at, end))
        at = end
    return tuple(made)


def header_bytes(entries: Iterable[StoredArray], metadata: Mapping[str, str]) -> bytes:
    """Return the length and the header of a file, padded with spaces to the alignment."""
    fields: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    for entry in entries:
        fields[entry.name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.end],
        }
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(len(text) + _LENGTH_BYTES) % ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
