"""Headers of safetensors files: every rule of the format, against hostile files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.ir.serialization.safetensors import (
    ALIGNMENT,
    CODES,
    LONGEST,
    Header,
    header_bytes,
    layout,
    parse_header,
)


def content(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def parse(file: bytes) -> Header:
    return parse_header(memoryview(file), "m.safetensors")


def entry(code: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": code, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "empty": b"",
    "seven bytes": b"1234567",
    "header beyond the file": (1000).to_bytes(8, "little") + b"{}",
    "header of 2**64 - 1 bytes": b"\xff" * 8 + b"{}",
    "long header": (LONGEST + 1).to_bytes(8, "little") + b" " * (LONGEST + 1),
    "no UTF-8": content(b'{"\xff": 1}'),
    "no JSON": content(b"{'w': 1}"),
    "cut JSON": content(b'{"w": {"dtype": "F32"'),
    "a list": content(b"[]"),
    "deep nesting": content(b'{"w": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "unclosed nesting": content(b"[" * 1_000_000),
    # a search from each quote to the end of the header would take days
    "four million quotes": content(b'"' * 4_000_001),
    "two million escaped quotes": content(b'\\"' * 2_000_000),
    "an unclosed text": content(b'"' + b'\\"' * 2_000_000),
    "a text that ends in an escape": content(b'{"' + b'a\\"' * 2_000_000 + b"\\"),
    "closed and opened brackets": content(b"[]" * 1_000_000),
    "a name twice": content(
        b'{"w": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},'
        b' "w": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}',
        b"1234",
    ),
    "a field twice": content(
        b'{"w": {"dtype": "F32", "dtype": "F32", "shape": [], "data_offsets": [0, 4]}}', b"1234"
    ),
    "half of a surrogate pair": content(
        b'{"\\ud800": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}', b"1234"
    ),
    "a fraction": content(b'{"w": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}'),
    "NaN": content(b'{"w": NaN}'),
    "a huge integer": content(
        b'{"w": {"dtype": "F32", "shape": [' + b"9" * 10_000 + b'], "data_offsets": [0, 4]}}'
    ),
    "an integer beyond 64 bits": content({"w": entry(shape=[1 << 64])}, b"1234"),
    "no fields": content({"w": {}}),
    "one field too many": content({"w": {**entry(), "code": "x"}}, b"1234"),
    "an entry that is a list": content({"w": []}),
    "unknown format": content({"w": entry("F31")}, b"1234"),
    "format that is a list": content({"w": entry(["F32"])}, b"1234"),
    "negative size": content({"w": entry(shape=[-1])}, b"1234"),
    "true as a size": content({"w": entry(shape=[True])}, b"1234"),
    "many axes": content({"w": entry(shape=[1] * 65)}, b"1234"),
    "one offset": content({"w": entry(offsets=[4])}, b"1234"),
    "negative offset": content({"w": entry(offsets=[-4, 0])}, b"1234"),
    "offsets in the wrong order": content({"w": entry(offsets=[4, 0])}, b"1234"),
    "more bytes than cells": content({"w": entry(offsets=[0, 8])}, b"12345678"),
    "fewer bytes than cells": content({"w": entry(shape=[2])}, b"1234"),
    "sizes whose product overflows": content({"w": entry(shape=[1 << 32, 1 << 32])}, b"1234"),
    "data beyond the file": content({"w": entry(shape=[2], offsets=[0, 8])}, b"1234"),
    "overlap": content({"v": entry(), "w": entry()}, b"1234"),
    "a gap": content({"v": entry(), "w": entry(offsets=[8, 12])}, b"123456789012"),
    "bytes after the last entry": content({"w": entry()}, b"12345"),
    "bytes without entries": content({}, b"1"),
    "metadata that is no object": content({"__metadata__": []}),
    "metadata with numbers": content({"__metadata__": {"step": 1}}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_headers_are_errors_that_name_the_file(kind: str) -> None:
    with pytest.raises(oc.CheckpointError) as error:
        parse(HOSTILE[kind])
    assert "m.safetensors" in error.value.where


def test_errors_name_the_entry() -> None:
    with pytest.raises(oc.CheckpointError, match=r"entry 'w\.b' of m\.safetensors"):
        parse(content({"w.b": entry("F31")}, b"1234"))


def test_entries_without_cells_and_files_without_entries_are_read() -> None:
    assert parse(content({})).entries == {}
    found = parse(content({"v": entry(shape=[0, 3], offsets=[0, 0]), "w": entry()}, b"1234"))
    assert found.entries["v"].shape == (0, 3)


NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
ARRAYS = st.dictionaries(NAMES, st.tuples(st.sampled_from(list(CODES.values())), SHAPES))
TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5))


@given(ARRAYS, TEXTS)
def test_a_written_header_reads_back_with_aligned_data(
    arrays: dict[str, Any], texts: dict[str, str]
) -> None:
    entries = layout((name, code, shape) for name, (code, shape) in arrays.items())
    header = header_bytes(entries, texts)
    end = max((each.end for each in entries), default=0)
    found = parse(header + bytes(end))
    assert found.entries == {each.name: each for each in entries}
    assert found.metadata == texts
    assert found.data_start % ALIGNMENT == 0
    assert all(each.begin % each.dtype.nbytes == 0 for each in entries)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_header_is_an_error_or_stays_inside_of_the_file(data: st.DataObject) -> None:
    whole = bytearray(content({"v": entry(), "w": entry("U8", [3], [4, 7])}, b"1234567"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255))
    file = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = parse(file)
    except oc.CheckpointError:
        return
    for each in found.entries.values():
        assert 0 <= each.begin <= each.end <= len(file) - found.data_start
