"""A save that is killed, or fails, leaves the file before it as it was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.files import new_files

WRITER = Path(__file__).with_name("writer.py")
CELLS = 100_000


def check(path: Path, least: int) -> int:
    """Load a checkpoint of the writer: all cells are its step; return the step."""
    with oc.Session():
        tensors = [oc.declare(f"w{i}", output=[CELLS]) for i in range(4)]
        ctx = oc.Context("interp")
        step = oc.load(path, ctx, tensors).step
        assert step is not None
        assert step >= least
        assert all(np.all(ctx[tensor] == step) for tensor in tensors)
    return step


def test_a_process_killed_at_any_moment_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    delays = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(path), str(CELLS)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        time.sleep(delays.uniform(0, 0.03))
        process.kill()
        last = [0, *map(int, process.stdout.read().split())][-1]
        process.wait()
        process.stdout.close()
        check(path, last)
    assert len(list(tmp_path.iterdir())) <= 2, "leftovers of several processes"


def killed_at(moment: int, path: Path) -> bool:
    """Save in a child process that ends without notice at a call of the system's functions;
    return False if the save had fewer calls.
    """
    child = os.fork()
    if child == 0:
        calls = 0

        def count(frame: object, event: str, function: object) -> None:
            nonlocal calls
            is_call = event == "c_call" and getattr(function, "__name__", "") in CALLS
            calls += is_call
            if is_call and calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        w, ctx = oc.declare("w", output=[2]), oc.Context("interp")
        ctx[w] = 2.0
        sys.setprofile(count)
        oc.save(path, ctx, [w], step=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


CALLS = {"open", "fdopen", "stat", "listdir", "readlink", "write", "flush", "fsync", "replace"}
CALLS |= {"unlink", "close", "__exit__"}
"""The names of functions and of methods of files that a save calls."""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_killed_at_every_call_of_a_save_leaves_a_complete_checkpoint(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.safetensors"
    w, ctx = oc.declare("w", output=[2]), oc.Context("interp")
    ctx[w] = 1.0
    oc.save(path, ctx, [w], step=1)
    moment, steps = 1, []
    while killed_at(moment, path):
        steps.append(oc.load(path, ctx, [w]).step)
        assert np.all(ctx[w] == steps[-1])
        moment += 1
    assert oc.load(path, ctx, [w]).step == 2
    assert {1, 2} == set(steps)  # before and after the renaming
    assert sorted(steps) == steps
    assert len(steps) > 10
    assert [each.name for each in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_file_that_grows_too_large_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    done = subprocess.run(
        [sys.executable, str(WRITER), str(path), str(CELLS), str(5 * CELLS)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "completely, or not at all" in done.stdout
    assert "File too large" in done.stdout
    assert check(path, 0) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = tmp_path / "m.safetensors"
    w, ctx = oc.declare("w", output=[2]), oc.Context("interp")
    ctx[w] = 1.0
    oc.save(path, ctx, [w])
    before = path.read_bytes()

    def fail(*args: object, **named: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(new_files.os, function, fail)
    ctx[w] = 2.0
    with pytest.raises(oc.CheckpointError, match="Input/output error"):
        oc.save(path, ctx, [w])
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    w, ctx = oc.declare("w", output=[2]), oc.Context("interp")
    ctx[w] = 1.0
    with pytest.raises(oc.CheckpointError, match=f"create the folder {tmp_path}/runs"):
        oc.save(tmp_path / "runs" / "m.safetensors", ctx, [w])


def test_concurrent_writers_leave_the_file_of_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "m"
    contents = [bytes([65 + i]) * 10_000 for i in range(4)]

    def write(content: bytes) -> None:
        for _ in range(30):
            with new_files.replacement(path) as file:
                file.write(content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


def test_links_and_narrow_permissions_are_kept(tmp_path: Path) -> None:
    w, ctx = oc.declare("w", output=[2]), oc.Context("interp")
    ctx[w] = 1.0
    real, link = tmp_path / "real.safetensors", tmp_path / "link.safetensors"
    oc.save(real, ctx, [w])
    os.chmod(real, 0o600)
    link.symlink_to(real)
    ctx[w] = 2.0
    oc.save(link, ctx, [w], step=2)
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o600
    assert oc.load(real, ctx, [w]).step == 2


def test_an_exception_inside_of_the_save_removes_the_partial_file(tmp_path: Path) -> None:
    set_tensor, unset = oc.declare("a", output=[2]), oc.declare("b", output=[2])
    ctx = oc.Context("interp")
    ctx[set_tensor] = 1.0
    with pytest.raises(oc.LinkError):
        oc.save(tmp_path / "m.safetensors", ctx, [set_tensor, unset])
    assert list(tmp_path.iterdir()) == []


def test_a_mapped_checkpoint_stays_readable_while_it_is_replaced(tmp_path: Path) -> None:
    from ocannl_core.data.checkpoints.sources import opened

    w, ctx = oc.declare("w", output=[1000]), oc.Context("interp")
    ctx[w] = 1.0
    path = tmp_path / "m.safetensors"
    oc.save(path, ctx, [w])
    with opened(path) as source:
        old = source.read("w")
        ctx[w] = 2.0
        oc.save(path, ctx, [w])
        assert np.all(old == 1.0)
