"""Files with examples: IDX, CIFAR-10, text."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.data import characters, contexts, read_cifar10, read_idx, windows


def idx(code: int, cells: np.ndarray[Any, Any]) -> bytes:
    header = bytes([0, 0, code, cells.ndim]) + np.array(cells.shape, ">u4").tobytes()
    return header + cells.tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_idx_files_of_every_format_are_read(tmp_path: Path, code: int, dtype: str) -> None:
    cells = np.arange(24).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "a.idx").write_bytes(idx(code, cells))
    (tmp_path / "a.idx.gz").write_bytes(gzip.compress(idx(code, cells)))
    for name in ("a.idx", "a.idx.gz"):
        found = read_idx(tmp_path / name)
        assert found.dtype == cells.dtype.newbyteorder("=")
        assert np.array_equal(found, cells)


def test_a_truncated_idx_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    whole = idx(8, np.zeros((3, 2), np.uint8))
    path = tmp_path / "a.idx"
    for content in (*(whole[:size] for size in range(len(whole))), whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(oc.DataError) as error:
            read_idx(path)
        assert error.value.where.startswith(f"{path}, at test_files.py:")


def test_files_that_are_no_idx_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"PNG0123456789")
    with pytest.raises(oc.DataError, match="begins with two zeros"):
        read_idx(tmp_path / "a")
    with pytest.raises(oc.DataError, match="FileNotFoundError"):
        read_idx(tmp_path / "none")
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"\0\0\x08\x01")[:-3])
    with pytest.raises(oc.DataError, match="can be read"):
        read_idx(tmp_path / "a.gz")


def test_files_of_cifar10_are_read_one_after_the_other(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)
    labels = np.array([3, 9, 0, 1, 2], np.uint8)
    records = np.concatenate([labels[:, None], images.reshape(5, -1)], axis=1)
    (tmp_path / "1.bin").write_bytes(records[:2].tobytes())
    (tmp_path / "2.bin").write_bytes(records[2:].tobytes())
    found_images, found_labels = read_cifar10(tmp_path / "1.bin", tmp_path / "2.bin")
    assert np.array_equal(found_images, images)
    assert np.array_equal(found_labels, labels)


def test_damaged_files_of_cifar10_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "1.bin"
    for content in (b"", bytes(3072), bytes(3074)):
        path.write_bytes(content)
        with pytest.raises(oc.DataError, match="records of 3073 bytes"):
            read_cifar10(path)
    path.write_bytes(bytes(3073) + b"\x0a" + bytes(3072))
    with pytest.raises(oc.DataError, match="10 at record 1"):
        read_cifar10(path)
    with pytest.raises(oc.UsageError, match="takes the paths"):
        read_cifar10()


def test_characters_index_their_alphabet(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("abcaß€𝄞", encoding="utf-8")
    ids, alphabet = characters(path)
    assert alphabet == "abcß€𝄞"
    assert "".join(alphabet[i] for i in ids) == "abcaß€𝄞"
    again, same = characters(path, alphabet="𝄞€ßcba")
    assert "".join(same[i] for i in again) == "abcaß€𝄞"


def test_texts_outside_of_their_alphabet_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abc")
    with pytest.raises(oc.DataError, match="not in it: 'c'"):
        characters(path, alphabet="ab")
    with pytest.raises(oc.UsageError, match="each character once"):
        characters(path, alphabet="abca")
    path.write_bytes(b"a\xff")
    with pytest.raises(oc.DataError, match="byte 1 is not"):
        characters(path)
    path.write_bytes(b"")
    with pytest.raises(oc.DataError, match="an empty file"):
        characters(path)


def test_windows_are_views_with_targets_one_later() -> None:
    ids = np.arange(10, dtype=np.int32)
    x, y = windows(ids, 3, stride=2)
    assert x.tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]
    assert np.array_equal(y, x + 1)
    assert np.shares_memory(x, ids)
    (batch, targets) = next(iter(oc.data.Loader(x, y, batch=2, shuffle=True)))
    assert np.array_equal(targets, batch + 1)


def test_windows_longer_than_the_sequence_are_errors() -> None:
    with pytest.raises(oc.DataError, match="longer than its windows"):
        windows(np.arange(3), 3)
    with pytest.raises(oc.UsageError, match="length= of windows"):
        windows(np.arange(3), 0)


def test_contexts_are_the_entries_before_each_entry_of_its_own_sequence() -> None:
    before, entries = contexts([[3, 1, 0], [], [2, 0]], 2, pad=9)
    assert before.tolist() == [[9, 9], [9, 3], [3, 1], [9, 9], [9, 2]]
    assert entries.tolist() == [3, 1, 0, 2, 0]
    assert before.dtype == entries.dtype == np.int32


def test_contexts_of_nothing_are_an_error() -> None:
    with pytest.raises(oc.DataError, match="2 sequences without entries"):
        contexts([[], []], 3)
    with pytest.raises(oc.UsageError, match="length= of windows"):
        contexts([[1]], 0)
