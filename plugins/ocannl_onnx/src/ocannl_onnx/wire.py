"""The wire format of protobuf, as far as weights are cut out of a file before it is parsed.

A weight stays in the file and is mapped, so that a model takes its memory once, and a file with
more than 2 GB of weights can be read, which protobuf refuses as one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LEAST_MAPPED = 4096
"""Bytes of a weight that is worth a map of its own."""

_GRAPH = 7
_INITIALIZER = 5
_NAME = 8
_RAW_DATA = 9
_BYTES = 2


class MalformedError(ValueError):
    """A file is no message of protobuf."""


@dataclass(frozen=True)
class Field:
    """A field of a message.

    Attributes:
        start: The place of its tag.
        body: The place of its content.
        end: The place behind it.
    """

    number: int
    kind: int
    start: int
    body: int
    end: int


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end or shift > 63:
            raise MalformedError("a number ends nowhere")
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def fields(data: Any, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message in `data[start:end]`.

    Raises:
        MalformedError: if a field exceeds the message.
    """
    at = start
    while at < end:
        tag, body = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        match kind:
            case 0:
                _, after = _varint(data, body, end)
            case 1:
                after = body + 8
            case 2:
                length, body = _varint(data, body, end)
                after = body + length
            case 5:
                after = body + 4
            case _:
                raise MalformedError(f"a field of kind {kind}")
        if after > end:
            raise MalformedError("a field exceeds its message")
        yield Field(number, kind, at, body, after)
        at = after


def _encoded(number: int, content: list[Any]) -> list[Any]:
    """Return a field with the given pieces as its content."""
    value, length = bytearray(), sum(map(len, content))
    for each in (number << 3 | _BYTES, length):
        while each > 127:
            value.append(each & 127 | 128)
            each >>= 7
        value.append(each)
    return [bytes(value), *content]


def without_weights(data: Any) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return a model's message without the data of large initializers, and their places by name.

    Args:
        data: The content of the file, which may be a map of it.

    Raises:
        MalformedError: if it is no message.
    """
    places: dict[str, tuple[int, int]] = {}
    pieces: list[Any] = []
    for field in fields(data, 0, len(data)):
        if field.number == _GRAPH and field.kind == _BYTES:
            pieces += _encoded(_GRAPH, _graph(data, field, places))
        else:
            pieces.append(data[field.start : field.end])
    return b"".join(map(bytes, pieces)), places


def _graph(data: Any, graph: Field, places: dict[str, tuple[int, int]]) -> list[Any]:
    pieces: list[Any] = []
    for field in fields(data, graph.body, graph.end):
        if (
            field.number != _INITIALIZER
            or field.kind != _BYTES
            or field.end - field.body < LEAST_MAPPED
        ):
            pieces.append(data[field.start : field.end])
            continue
        name, raw, rest = "", None, []
        for part in fields(data, field.body, field.end):
            if part.number == _RAW_DATA and part.kind == _BYTES:
                raw = part
                continue
            if part.number == _NAME and part.kind == _BYTES:
                name = bytes(data[part.body : part.end]).decode("utf-8", "replace")
            rest.append(data[part.start : part.end])
        if raw is None or raw.end - raw.body < LEAST_MAPPED or not name or name in places:
            pieces.append(data[field.start : field.end])
            continue
        places[name] = (raw.body, raw.end)
        pieces += _encoded(_INITIALIZER, rest)
    return pieces
