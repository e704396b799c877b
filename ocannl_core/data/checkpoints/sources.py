"""Arrays by name in files: safetensors, mapped into memory, and NumPy's `.npz`."""

from __future__ import annotations

import json
import mmap
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ocannl_core.base.errors import CheckpointError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files.trust import open_regular
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.numbers.dtypes import dtype_of, is_format
from ocannl_core.ir.serialization.safetensors import LONGEST, parse_header

OWN = "ocannl."
"""The beginning of the keys of metadata that checkpoints have of themselves."""
CHECKSUMS = "ocannl.crc32"
"""The key of the metadata with the checksums of entries, as a JSON object."""
TEXTS_CHECKSUM = "ocannl.texts_crc32"
"""The key of the metadata with the checksum of the other texts whose keys begin with `OWN`."""

_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True, slots=True)
class Listed:
    """An array in a file, before its cells are read."""

    name: str
    title: str
    """The name of its number format."""
    shape: tuple[int, ...]
    nbytes: int


class ArrayFile(Protocol):
    """An open file with arrays."""

    path: str
    metadata: Mapping[str, str]
    arrays: Mapping[str, Listed]

    def read(self, name: str) -> Array:
        """Return the cells of an array.

        Raises:
            CheckpointError: if they are damaged.
        """
        ...


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[ArrayFile]:
    """Yield the arrays of a file.

    Raises:
        CheckpointError: if there is no such file, or it is damaged.
    """
    found = Path(path)
    with _open(found) as file:
        if found.suffix == ".npz":
            yield NumpySource(file, str(found))
        elif found.suffix == ".json":
            yield _sharded(file, found)
        else:
            yield SafetensorsSource(_mapped(file, found), str(found))


def _open(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        "A checkpoint is a file that can be read.",
        found=f"{type(error).__name__}: {error.strerror}",
        where=str(path),
    )


def _sharded(file: BinaryIO, path: Path) -> ShardedSource:
    """Return the arrays of several files, which an index lists by name."""
    rule = "The index of a checkpoint in several files has a file of its folder for each name."
    text = file.read(LONGEST + 1)
    found = json_object(text.decode("utf-8", "replace")) if len(text) <= LONGEST else None
    files = (found or {}).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise CheckpointError(rule, found="no weight_map", where=str(path))
    for name, each in files.items():
        is_plain = isinstance(each, str) and each == Path(each).name and each.isprintable()
        if not is_plain or "\\" in each or not each.endswith(".safetensors"):
            raise CheckpointError(rule, found=f"{each!r} for {name!r}", where=str(path))
    parts = {}
    for each in dict.fromkeys(files.values()):
        shard = path.with_name(each)
        with _open(shard) as opened_file:
            parts[each] = SafetensorsSource(_mapped(opened_file, shard), str(shard))
    for name, each in files.items():
        if name not in parts[each].arrays:
            raise CheckpointError(rule, found=f"no {name!r} in {each}", where=str(path))
    return ShardedSource(str(path), {name: parts[each] for name, each in files.items()})


def _mapped(file: BinaryIO, path: Path) -> memoryview:
    """Return the content of a file, read on demand."""
    try:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:  # an empty file
        return memoryview(b"")
    except OSError as error:
        raise _unreadable(path, error) from error


class SafetensorsSource:
    """A file in the safetensors format; arrays are views of it."""

    def __init__(self, content: memoryview, path: str) -> None:
        self.path = path
        self._content = content
        self._header = parse_header(content, path)
        self.metadata: Mapping[str, str] = self._header.metadata
        self.arrays: Mapping[str, Listed] = {
            name: Listed(name, entry.dtype.name, entry.shape, entry.end - entry.begin)
            for name, entry in self._header.entries.items()
        }
        self._check_texts()
        self._checksums = self._read_checksums()

    def read(self, name: str) -> Array:
        entry, start = self._header.entries[name], self._header.data_start
        cells = self._content[start + entry.begin : start + entry.end]
        stated = self._checksums.get(name)
        if stated is not None and stated != checksum(cells):
            raise CheckpointError(
                "The cells of an entry have the checksum that the file states.",
                found=f"checksum {checksum(cells)} in place of {stated}",
                where=f"entry {name!r} of {self.path}",
                fix="the file is damaged, or was changed by a program that copied its metadata: "
                "copy it again, or save it without the metadata",
            )
        return np.frombuffer(cells, dtype=entry.dtype.numpy).reshape(entry.shape)

    def _check_texts(self) -> None:
        stated = self.metadata.get(TEXTS_CHECKSUM)
        found = checksum_of_texts(self.metadata)
        if stated is not None and stated != found:
            raise CheckpointError(
                f"The metadata {OWN}... of a checkpoint have the checksum that the file states.",
                found=f"checksum {found} in place of {stated}",
                where=f"metadata of {self.path}",
                fix="the file is damaged, or was changed by a program that copied a part of its "
                "metadata: copy it again, or save it without them",
            )

    def _read_checksums(self) -> Mapping[str, str]:
        found = json_object(self.metadata.get(CHECKSUMS, "{}"))
        if found is None:
            raise CheckpointError(
                "The checksums of a checkpoint are a JSON object.",
                found=self.metadata[CHECKSUMS][:80],
                where=f"metadata {CHECKSUMS!r} of {self.path}",
            )
        return {name: str(value) for name, value in found.items()}


class ShardedSource:
    """A checkpoint in several files, with an index of their arrays."""

    def __init__(self, path: str, parts: Mapping[str, SafetensorsSource]) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        self._parts = parts
        listed = {part: part.arrays for part in parts.values()}
        self.arrays: Mapping[str, Listed] = {n: listed[part][n] for n, part in parts.items()}

    def read(self, name: str) -> Array:
        return self._parts[name].read(name)


def checksum(cells: memoryview | bytes) -> str:
    """Return the CRC-32 of cells, as eight hexadecimal digits."""
    return f"{zlib.crc32(cells):08x}"


def checksum_of_texts(metadata: Mapping[str, str]) -> str:
    """Return the checksum of the texts that a checkpoint has of itself, but for checksums."""
    own = {key: text for key, text in metadata.items() if key.startswith(OWN)}
    own.pop(CHECKSUMS, None)
    own.pop(TEXTS_CHECKSUM, None)
    return checksum(json.dumps(own, sort_keys=True).encode())


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that a text is, or None."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class NumpySource:
    """An archive of NumPy, of which nothing is unpickled and no more than stated is read."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        try:
            self._archive = zipfile.ZipFile(file)
            names = [info.filename for info in self._archive.infolist()]
        except Exception as error:  # struct.error of a damaged directory, among others
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        members = {name.removesuffix(".npy"): name for name in names}
        if len(members) < len(names):  # NumPy reads `a` and `a.npy` under one name, too
            raise self._damaged("a name twice")
        self._members = members
        self.arrays: Mapping[str, Listed] = {name: self._listed(name) for name in members}

    def _damaged(self, found: str, name: str = "") -> CheckpointError:
        return CheckpointError(
            "An .npz file is an archive of arrays of numbers.",
            found=found,
            where=f"entry {name!r} of {self.path}" if name else self.path,
            fix="write it with np.savez(path, name=array)",
        )

    def _listed(self, name: str) -> Listed:
        shape, dtype, _, start = self._header(name)
        nbytes = prod(shape) * dtype.itemsize
        size = self._archive.getinfo(self._members[name]).file_size
        if size != start + nbytes:
            raise self._damaged(f"{size - start:,} bytes for {dtype} of shape {shape}", name)
        title = dtype_of(dtype).name if is_format(dtype) else str(dtype)
        return Listed(name, title, shape, nbytes)

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
        """Return the extents, the format, True for column-major order, and the header's length."""
        try:
            with self._archive.open(self._members[name]) as member:
                version = np.lib.format.read_magic(member)
                shape, is_column_major, dtype = _NPY_HEADERS[version](member)
                start = member.tell()
        except Exception as error:  # NumPy's tokenizer and Python's parser have errors of their own
            raise self._damaged(f"{type(error).__name__}: {error}", name) from error
        if dtype.hasobject or any(n < 0 for n in shape):
            raise self._damaged(f"an array of {dtype}, shape {shape}", name)
        return shape, dtype, is_column_major, start

    def read(self, name: str) -> Array:
        shape, dtype, is_column_major, start = self._header(name)
        try:
            with self._archive.open(self._members[name]) as member:
                member.read(start)
                cells = member.read(self.arrays[name].nbytes)
                is_long = bool(member.read(1))
        except Exception as error:
            raise self._damaged(f"{type(error).__name__}: {error}", name) from error
        if is_long or len(cells) != self.arrays[name].nbytes:
            raise self._damaged(f"{len(cells):,} bytes of cells", name)
        flat = np.frombuffer(cells, dtype=dtype)
        return flat.reshape(shape, order="F" if is_column_major else "C")
