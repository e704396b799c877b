"""Columns of integers, floats and strings as bytes.

    bytes = length of the header | header | column | column | ... | strings
    header = {"columns": [[format, count], ...], "strings": [length, ...], ...}   in JSON

A column of integers has the least width that holds them. Equal strings are stored once, and a
column of strings is a column of their numbers.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_UNSIGNED = tuple((code, 1 << 8 * array(code).itemsize) for code in "BHIQ")
_SIGNED = tuple((code, 1 << 8 * array(code).itemsize - 1) for code in "bhiq")
_LARGE = "n"
"""The format of a column with integers of more than 64 bits: one string, in decimal."""
_FORMATS = frozenset("BHIQbhiqd") | {_LARGE}


class DecodingError(ValueError):
    """Bytes that no encoder writes."""


class ColumnWriter:
    """Writer of columns."""

    def __init__(self) -> None:
        self._formats: list[tuple[str, int]] = []
        self._columns: list[bytes] = []
        self._strings: dict[str, int] = {}

    def integers(self, values: Sequence[int]) -> None:
        """Append a column of integers."""
        low, high = min(values), max(values)
        if low >= 0:
            code = next((code for code, limit in _UNSIGNED if high < limit), _LARGE)
        else:
            least = max(high + 1, -low)
            code = next((code for code, limit in _SIGNED if least <= limit), _LARGE)
        if code == _LARGE:
            self._append(_LARGE, array("I", [self._string(",".join(map(str, values)))]))
        else:
            self._append(code, array(code, values))

    def floats(self, values: Sequence[float]) -> None:
        """Append a column of floats, bit by bit."""
        self._append("d", array("d", values))

    def strings(self, values: Sequence[str]) -> None:
        """Append a column of strings."""
        for text in dict.fromkeys(values):
            self._string(text)
        self.integers(list(map(self._strings.__getitem__, values)))

    def content(self, header: Mapping[str, object]) -> bytes:
        """Return all columns as bytes, with further members of the header."""
        texts = [text.encode("utf-8", "surrogatepass") for text in self._strings]
        lengths = list(map(len, texts))
        whole = {**header, "columns": self._formats, "strings": lengths}
        head = json.dumps(whole, separators=(",", ":")).encode()
        return b"".join((len(head).to_bytes(8, "little"), head, *self._columns, *texts))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _append(self, code: str, column: array[Any]) -> None:
        if sys.byteorder == "big":
            column.byteswap()
        self._formats.append((code, len(column)))
        self._columns.append(column.tobytes())


class ColumnReader:
    """Reader of columns, in the order in which they were written.

    Raises:
        DecodingError: here and in the methods, if the bytes are malformed.
    """

    def __init__(self, content: bytes) -> None:
        end = 8 + int.from_bytes(content[:8], "little")
        if end > len(content):
            raise DecodingError("the header is cut off")
        self.header: dict[str, Any] = json.loads(content[8:end])
        self._formats = iter(self.header["columns"])
        self._content = content
        self._at = end
        lengths: list[int] = self.header["strings"]
        start = len(content) - sum(lengths)
        self._end = start
        self._strings: list[str] = []
        for length in lengths:
            if length < 0:
                raise DecodingError("a string has less than no bytes")
            self._strings.append(content[start : start + length].decode("utf-8", "surrogatepass"))
            start += length

    def integers(self, count: int) -> list[int]:
        """Return the next column."""
        code, column = self._next()
        values: list[int] = column.tolist()
        if code == "d":
            raise DecodingError("floats in place of integers")
        if code == _LARGE:
            values = [int(each) for each in self._strings[values[0]].split(",")]
        return _check_count(values, count)

    def positions(self, count: int, end: int) -> list[int]:
        """Return the next column, whose integers are at least 0 and below `end`."""
        values = self.integers(count)
        if values and not 0 <= min(values) <= max(values) < end:
            raise DecodingError(f"a position is none of {end}")
        return values

    def floats(self, count: int) -> list[float]:
        """Return the next column."""
        code, column = self._next()
        if code != "d":
            raise DecodingError("integers in place of floats")
        values: list[float] = column.tolist()
        return _check_count(values, count)

    def strings(self, count: int) -> list[str]:
        """Return the next column."""
        return list(map(self._strings.__getitem__, self.positions(count, len(self._strings))))

    def close(self) -> None:
        """Check that all columns have been read."""
        if self._at != self._end or next(self._formats, None) is not None:
            raise DecodingError("there is more than was written")

    def _next(self) -> tuple[str, array[Any]]:
        code, count = next(self._formats)
        if code not in _FORMATS:
            raise DecodingError("a column has no known format")
        column: array[Any] = array("I" if code == _LARGE else code)
        stop = self._at + count * column.itemsize
        if not self._at <= stop <= self._end:
            raise DecodingError("a column is cut off")
        column.frombytes(self._content[self._at : stop])
        self._at = stop
        if sys.byteorder == "big":
            column.byteswap()
        return code, column


_T = TypeVar("_T")


def _check_count(values: list[_T], count: int) -> list[_T]:
    if len(values) != count:
        raise DecodingError(f"{len(values)} values in place of {count}")
    return values
