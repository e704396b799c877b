"""Objects of kernels are mapped while something uses them."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_cpu_c import loaded_objects, loader

MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing that was used before."""
    monkeypatch.setattr(loader, "_recent", loaded_objects.RecentObjects())
    monkeypatch.setattr(loaded_objects, "_MOST_RECENT", 0)
    with settings.overrides(cache_dir=str(tmp_path)), oc.Session():
        yield tmp_path


def routine(factor: float) -> tuple[oc.Context, oc.Tensor, oc.Tensor, oc.runtime.routine.Routine]:
    ctx = oc.Context("cpu_c")
    x = oc.placeholder("x", output=[5])
    y = oc.tanh(x * factor)
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = np.arange(5)
    return ctx, x, y, step


def objects(folder: Path) -> set[str]:
    """Return the objects that are mapped, from memory or from a folder."""
    lines = MAPS.read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if "/memfd:" in line or str(folder) in line]
    return {line.split(maxsplit=5)[-1] for line in lines}


@pytest.mark.skipif(not MAPS.exists(), reason="needs /proc")
def test_an_object_is_unmapped_with_the_last_routine_that_uses_it(fresh: Path) -> None:
    loader.runtime()
    before = objects(fresh)
    ctx, x, y, step = routine(2.0)
    step()
    used = objects(fresh) - before
    assert used
    again = routine(2.0)
    del ctx, x, y, step
    gc.collect()
    assert used <= objects(fresh)
    del again
    gc.collect()
    assert not used & objects(fresh)
    ctx, _, y, step = routine(2.0)
    step()
    np.testing.assert_allclose(ctx[y], np.tanh(2.0 * np.arange(5)), rtol=1e-6)


def test_objects_used_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_objects, "_MOST_RECENT", 2)
    for factor in (2.0, 3.0, 4.0, 5.0):
        routine(factor)[3]()
        gc.collect()
    kept = list(loader._recent._objects)
    assert len(kept) == 2
    routine(4.0)
    gc.collect()
    assert list(loader._recent._objects) == kept[::-1]


def test_a_process_may_end_while_a_thread_runs_a_kernel(fresh: Path) -> None:
    script = """
        import threading, time, numpy as np, ocannl_core as oc
        ctx = oc.Context("cpu_c")
        x = oc.placeholder("x", output=[3_000_000])
        y = oc.exp(oc.sin(x))
        step = ctx.compile(oc.train.forward(y))
        ctx[x] = np.ones(3_000_000)
        started = threading.Event()

        def run():
            while True:
                started.set()
                step()

        threading.Thread(target=run, daemon=True).start()
        started.wait()
        time.sleep(0.05)
    """
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={"OCANNL_CACHE_DIR": str(fresh), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
