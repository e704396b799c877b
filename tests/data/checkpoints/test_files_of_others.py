"""Files that other programs write: safetensors of the reference package, archives of NumPy."""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc


def test_a_file_by_the_reference_package_loads(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    cells = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "ids": np.array([3, 1])}
    reference.save_file(cells, tmp_path / "m.safetensors", metadata={"format": "np"})
    w, ids = oc.param("w", output=[2], input=[3]), oc.declare("ids", output=[2], dtype="int64")
    ctx = oc.Context()
    found = oc.load(tmp_path / "m.safetensors", ctx, [w, ids])
    assert found.step is None
    assert found.metadata == {"format": "np"}
    assert np.array_equal(ctx[w], cells["w"])
    assert np.array_equal(ctx[ids], cells["ids"])


def test_the_reference_package_reads_a_checkpoint(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    tensors = {
        "b": oc.declare("b", output=[3], dtype="uint8"),
        "w": oc.declare("w", output=[2, 3], dtype="float64"),
    }
    ctx = oc.Context()
    ctx.assign({tensors["b"]: np.array([1, 2, 3]), tensors["w"]: np.ones((2, 3))})
    oc.save(tmp_path / "m.safetensors", ctx, tensors)
    found = reference.load_file(tmp_path / "m.safetensors")
    assert set(found) == set(tensors)
    assert all(np.array_equal(found[name], ctx[tensors[name]]) for name in tensors)


def write(path: Path, cells: dict[str, tuple[str, list[int], bytes]], **metadata: str) -> None:
    """Write a file of the safetensors format byte by byte, as its specification says."""
    at, header, data = 0, {}, b""
    for name, (code, shape, content) in cells.items():
        end = at + len(content)
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [at, end]}
        at, data = end, data + content
    text = json.dumps({"__metadata__": metadata, **header} if metadata else header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_layouts_of_other_frameworks_load_by_a_declared_mapping(tmp_path: Path) -> None:
    kernel = np.arange(2 * 3 * 1 * 4, dtype=np.float32).reshape(
        2, 3, 1, 4
    )  # out, in, height, width
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "torch.safetensors"
    write(
        path,
        {
            "model.conv.weight": ("F32", [2, 3, 1, 4], kernel.tobytes()),
            "model.fc.weight": ("F32", [3, 4], weight.tobytes()),
        },
    )
    tensors = {
        "conv": oc.declare("conv", output=[2], input=[1, 4, 3]),
        "fc": oc.declare("fc", output=[4], input=[3]),
        "half": oc.declare("half", output=[2], input=[3]),
    }
    ctx = oc.Context()
    oc.load(
        path,
        ctx,
        tensors,
        names={"conv": "model.conv.weight", "fc": "model.fc.weight", "half": "model.fc.weight"},
        transpose={"conv": (0, 2, 3, 1), "fc": (1, 0), "h*": lambda array: array[:, :2].T},
    )
    assert np.array_equal(ctx[tensors["conv"]], kernel.transpose(0, 2, 3, 1))
    assert np.array_equal(ctx[tensors["fc"]], weight.T)
    assert np.array_equal(ctx[tensors["half"]], weight[:, :2].T)


def test_a_function_maps_names(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, {"net.w": ("F32", [1], np.float32(7).tobytes())})
    w = oc.declare("w", output=[1])
    ctx = oc.Context()
    oc.load(path, ctx, {"w": w}, names=lambda name: f"net.{name}")
    assert ctx.item(w) == 7.0


@pytest.mark.parametrize(
    ("code", "cells"), [("I16", np.array([-5, 6], np.int16)), ("I8", np.array([-5, 6], np.int8))]
)
def test_integers_without_a_format_of_tensors_load_with_cast(
    tmp_path: Path, code: str, cells: np.ndarray
) -> None:
    path = tmp_path / "m.safetensors"
    write(path, {"ids": (code, [2], cells.tobytes())})
    ids = oc.declare("ids", output=[2], dtype="int32")
    ctx = oc.Context()
    with pytest.raises(oc.CheckpointError, match=f"format of ids: {cells.dtype} in the file"):
        oc.load(path, ctx, [ids])
    oc.load(path, ctx, [ids], cast=True)
    assert ctx[ids].tolist() == [-5, 6]


def test_archives_of_numpy_load_in_either_order_of_cells(tmp_path: Path) -> None:
    cells = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "m.npz"
    np.savez_compressed(path, w=np.asfortranarray(cells), v=cells)
    tensors = {name: oc.declare(name, output=[2, 3]) for name in "vw"}
    ctx = oc.Context()
    oc.load(path, ctx, tensors)
    assert all(np.array_equal(ctx[tensor], cells) for tensor in tensors.values())


def test_narrow_floats_in_archives_of_numpy_load_as_the_format_of_the_tensor(
    tmp_path: Path,
) -> None:
    w = oc.declare("w", output=[3], dtype="bfloat16")
    path = tmp_path / "m.npz"
    np.savez(path, w=np.array([1.5, 2.0, -3.0]).astype(oc.bfloat16.numpy))
    ctx = oc.Context()
    oc.load(path, ctx, [w])
    assert ctx[w].astype(np.float32).tolist() == [1.5, 2.0, -3.0]


def test_archives_with_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, w=np.array([print], dtype=object))
    with pytest.raises(oc.CheckpointError, match="archive of arrays of numbers"):
        oc.load(path, oc.Context(), [oc.declare("w", output=[1])])


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, w=np.zeros(50, np.float32))
    content = path.read_bytes()
    w = oc.declare("w", output=[50])
    ctx = oc.Context()
    for start in range(0, len(content), 3):
        path.write_bytes(content[:start])
        with pytest.raises(oc.CheckpointError):
            oc.load(path, ctx, [w])
    assert w not in ctx


def test_archives_are_not_written(tmp_path: Path) -> None:
    w = oc.declare("w", output=[1])
    with pytest.raises(oc.UsageError, match="read only"):
        oc.save(tmp_path / "m.npz", oc.Context(), [w])


HEADERS = {
    "signs": b"-" * 9000 + b"1",
    "digits": b"9" * 9000,
    "brackets": b"[" * 900,
    "parentheses": b"(" * 5_000_000,
    "quotes": b"'" * 5_000_000,
    "a size below 0": b"(-1,)}\n",
    "no size of a cell": b"(2,), 'descr': '<U0'}\n",
    "objects": b"(2,), 'descr': 'O'}\n",
    "control characters": b"(2,), 'descr': '\x1b[2J'}\n",
}


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("is_archive", [True, False])
def test_hostile_headers_of_numpy_are_refused(
    tmp_path: Path, name: str, *, is_archive: bool
) -> None:
    """The tokenizer and the parser of Python raise errors of many classes."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + HEADERS[name]
    content = b"\x93NUMPY\x02\0" + len(header).to_bytes(4, "little") + header + bytes(8)
    path = tmp_path / ("m.npz" if is_archive else "m.npy")
    if is_archive:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(oc.OcannlError) as caught:
        READERS[path.name](path)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_directories_of_archives_are_refused(tmp_path: Path, seed: int) -> None:
    path, random = tmp_path / "m.npz", np.random.default_rng(seed)
    np.savez(path, w=np.zeros(2, np.float32), v=np.zeros(2, np.float32))
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    ends = random.integers(0, 200, 8)
    content[len(content) - 1 - ends] = random.integers(0, 256, 8)
    path.write_bytes(content.tobytes())
    with suppress(oc.OcannlError):
        READERS[path.name](path)


def test_entries_that_differ_by_the_ending_alone_are_an_error(tmp_path: Path) -> None:
    """Some programs read the first, some the last."""
    path = tmp_path / "m.npz"
    np.savez(path, w=np.zeros(2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("w", archive.read("w.npy"))
    with pytest.raises(oc.CheckpointError, match="a name twice"):
        oc.load(path, oc.Context(), [oc.declare("w", output=[2])])


READERS = {
    "m.safetensors": lambda path: oc.load(path, oc.Context(), [oc.declare("w", output=[2])]),
    "m.npz": lambda path: oc.load(path, oc.Context(), [oc.declare("w", output=[2])]),
    "m.json": lambda path: oc.load(path, oc.Context(), [oc.declare("w", output=[2])]),
    "m.npy": oc.data.memmap,
    "m.bin": lambda path: oc.data.memmap(path, output=[2], dtype="float32"),
    "m.idx": oc.data.read_idx,
    "m.idx.gz": oc.data.read_idx,
    "m.txt": oc.data.characters,
    "m.cifar": oc.data.read_cifar10,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe without a writer would make the program wait for ever, some devices never end."""
    path = tmp_path / name
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    with pytest.raises(oc.OcannlError, match=r"regular file|directory"):
        READERS[name](path)


def test_a_shard_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    index = tmp_path / "m.json"
    index.write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    with pytest.raises(oc.CheckpointError, match="regular file"):
        oc.load(index, oc.Context(), [oc.declare("w", output=[2])])
