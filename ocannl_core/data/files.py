"""Examples in files of the user: IDX, the binary version of CIFAR-10, text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ocannl_core.base.errors import DataError, UsageError
from ocannl_core.base.files.trust import open_regular
from ocannl_core.ir.host_arrays import Array

PathLike = str | os.PathLike[str]

_IDX_FORMATS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CIFAR_SHAPE = (3, 32, 32)


def read_idx(path: PathLike) -> Array:
    """Return the array of an IDX file, the format of MNIST; `.gz` files are decompressed.

    Bytes of a file that is not compressed are mapped into memory, and read when they are used.

    Raises:
        DataError: if the file is no IDX file, is truncated, or has bytes after the array.
    """
    found = Path(path)
    content = _content(found)
    if len(content) < 4 or bytes(content[:2]) != b"\0\0" or int(content[2]) not in _IDX_FORMATS:
        raise DataError(
            "An IDX file begins with two zeros, a number format and a number of axes.",
            found=f"bytes {bytes(content[:4]).hex(' ')}" if len(content) else "an empty file",
            where=str(found),
        )
    dtype, axes = np.dtype(_IDX_FORMATS[int(content[2])]), int(content[3])
    start = 4 + 4 * axes
    sizes = bytes(content[4:start]).ljust(4 * axes, b"\0")
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    if len(content) < start or len(content) != start + prod(shape) * dtype.itemsize:
        raise DataError(
            "An IDX file consists of its header and its cells.",
            found=f"{len(content):,} bytes for {dtype} of shape {list(shape)}",
            where=str(found),
            fix="the file is truncated or damaged: copy it again",
        )
    cells = content[start:].view(dtype).reshape(shape)
    return cells if dtype.itemsize == 1 else cells.astype(dtype.newbyteorder("="))


def read_cifar10(*paths: PathLike) -> tuple[Array, Array]:
    """Return the images and labels of files of CIFAR-10, binary version, one after the other.

    Images are bytes with axes example, channel, row and column.

    Raises:
        DataError: if a file is truncated, or a label is no class.
        UsageError: if there are no paths.
    """
    if not paths:
        raise UsageError.at_caller(
            "read_cifar10 takes the paths of files.",
            found="none",
            fix='oc.data.read_cifar10("data_batch_1.bin", "data_batch_2.bin")',
        )
    record = 1 + prod(_CIFAR_SHAPE)
    parts = []
    for path in map(Path, paths):
        content = _content(path)
        if len(content) == 0 or len(content) % record:
            raise DataError(
                f"A file of CIFAR-10 consists of records of {record} bytes.",
                found=f"{len(content):,} bytes",
                where=str(path),
                fix="take the binary version, unpacked; a truncated file is copied again",
            )
        part = content.reshape(-1, record)
        if (wrong := np.flatnonzero(part[:, 0] > 9)).size:
            raise DataError(
                "The labels of CIFAR-10 are 0 to 9.",
                found=f"{part[wrong[0], 0]} at record {wrong[0]:,}",
                where=str(path),
            )
        parts.append(part)
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole[:, 1:].reshape(-1, *_CIFAR_SHAPE), whole[:, 0].copy()


def characters(path: PathLike, alphabet: str | None = None) -> tuple[Array, str]:
    """Return the characters of a text file as numbers, and the alphabet that they index.

    Args:
        path: The file, in UTF-8.
        alphabet: The characters in their order; by default the characters of the file, sorted.

    Raises:
        DataError: if the file is empty or no UTF-8, or a character is not in the alphabet.
        UsageError: if a character is in the alphabet twice.
    """
    found = Path(path)
    content = _content(found)
    try:
        points = np.frombuffer(bytes(content).decode("utf-8").encode("utf-32-le"), np.uint32)
    except UnicodeDecodeError as error:
        raise DataError(
            "A text file is UTF-8.", found=f"byte {error.start:,} is not", where=str(found)
        ) from error
    if points.size == 0:
        raise DataError("A text file has characters.", found="an empty file", where=str(found))
    present, ids = np.unique(points, return_inverse=True)
    texts = [chr(point) for point in present]
    if alphabet is None:
        alphabet = "".join(texts)
    elif len(set(alphabet)) < len(alphabet):
        raise UsageError.at_caller("An alphabet has each character once.", found=repr(alphabet))
    places = {character: place for place, character in enumerate(alphabet)}
    unknown = [each for each in texts if each not in places]
    if unknown:
        raise DataError(
            "The characters of a text are in its alphabet.",
            found="not in it: " + ", ".join(map(repr, unknown[:20])),
            where=str(found),
            fix="alphabet=None makes one of this file",
        )
    table = np.array([places[each] for each in texts], np.int32)
    return table[ids.reshape(-1)], alphabet


def windows(ids: Array, length: int, *, stride: int = 1) -> tuple[Array, Array]:
    """Return the windows of a sequence, and the same windows one later: inputs and targets of a
    language model. Both are views, which take no memory.

    Args:
        length: The length of a window.
        stride: The distance between the first entries of windows.

    Raises:
        DataError: if the sequence is not longer than a window.
        UsageError: if a number is not positive.
    """
    _check_positive(length=length, stride=stride)
    if ids.ndim != 1 or len(ids) <= length:
        raise DataError.at_caller(
            "A sequence is longer than its windows.",
            found=f"an array of shape {list(ids.shape)} for length={length}",
        )
    both: Any = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
    return both[:, :-1], both[:, 1:]


def contexts(
    sequences: Iterable[Sequence[int]], length: int, *, pad: int = 0
) -> tuple[Array, Array]:
    """Return the entries before each entry of some sequences, of shape `(count, length)`, and the
    entries themselves: inputs and targets of a model that predicts the next entry.

        before, letters = oc.data.contexts([[3, 1, 0], [2, 0]], 2)
        # [0 0] -> 3, [0 3] -> 1, [3 1] -> 0, [0 0] -> 2, [0 2] -> 0

    Args:
        sequences: The sequences, each with its last entry; no context reaches into another one.
        length: The number of entries before.
        pad: The number that stands before the first entry.

    Raises:
        DataError: if the sequences have no entries.
        UsageError: if the length is not positive.
    """
    _check_positive(length=length)
    found = [np.asarray(each, np.int32) for each in sequences]
    if any(each.ndim != 1 for each in found):
        raise UsageError.at_caller(
            "Contexts are taken from sequences of integers.",
            found="sequences= with elements that are none",
        )
    if not any(each.size for each in found):
        raise DataError.at_caller(
            "Contexts are taken at entries of sequences.",
            found=f"{len(found)} sequences without entries",
        )
    before = np.full(length, pad, np.int32)
    parts: list[Array] = [
        np.lib.stride_tricks.sliding_window_view(np.concatenate([before, each]), length + 1)
        for each in found
        if each.size
    ]
    table = np.concatenate(parts)
    return table[:, :-1], table[:, -1]


def _check_positive(**values: object) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError.at_caller(
                f"{name}= of windows is a positive integer.", found=repr(value)
            )


def _content(path: Path) -> Array:
    """Return the bytes of a file: mapped, or decompressed if its name ends in `.gz`."""
    try:
        if path.suffix == ".gz":
            import gzip

            with open_regular(path) as packed, gzip.open(packed) as file:
                return np.frombuffer(file.read(), np.uint8)
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.zeros(0, np.uint8)
            return np.asarray(np.memmap(file, np.uint8, mode="r"))
    except (OSError, EOFError, ValueError) as error:  # a name with a null character
        raise DataError(
            "A file of examples can be read.",
            found=f"{type(error).__name__}: {error}",
            where=str(path),
            fix="the files are the user's: nothing is downloaded",
        ) from error
