"""Kernels that several threads share: the same bits, whoever does the work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_cpu_c as backend
from ocannl_core import settings
from ocannl_core.dtypes import float32
from ocannl_core.indexing import VarIndex, fresh_var
from ocannl_core.loopir.nodes import AxisKind, Binary, Block, For, Load, Store
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.ops import BinaryOp
from ocannl_core.schedule.parallel import LEAST_WORK, mark_parallel
from ocannl_core.schedule.plan import Nest, Plan
from ocannl_core.target import Target
from ocannl_cpu_c import devices
from ocannl_cpu_c.executable import _bounds
from ocannl_cpu_c.source import Launch

TARGET = Target("cpu_c", cores=4)
ROWS, COLUMNS, DEPTH = 37, 64, 1500
X, Y = TensorNode(0, ("x",)), TensorNode(1, ("y",))
NODES = {X: NodeInfo(float32, (ROWS, DEPTH)), Y: NodeInfo(float32, (ROWS, COLUMNS))}


def sums(rows: int = ROWS) -> Plan:
    """Returns `y[i, j] += x[i, k]`, whose outer loop is worth several threads."""
    i, j, k = (fresh_var() for _ in range(3))
    cell, value = (VarIndex(i), VarIndex(j)), Load(X, (VarIndex(i), VarIndex(k)), float32)
    total = Binary(BinaryOp.ADD, Load(Y, cell, float32), value, float32)
    loop = For(k, 0, DEPTH, Block((Store(Y, cell, total),)))
    loop = For(i, 0, rows, Block((For(j, 0, COLUMNS, Block((loop,))),)))
    plan = Plan("sums", (Nest(Block((loop,)), (X, Y), ()),), (X, Y), (), (), NODES)
    return mark_parallel(plan)


def launched(threads: int, plan: Plan | None = None):
    """Returns the launcher of a routine over new memory, and the array of its results."""
    plan = plan or sums()
    with settings.overrides(threads=threads):
        executable = backend.ocannl_compile(backend.ocannl_generate(plan, TARGET), TARGET)
    buffers = {node: backend.ocannl_allocate(NODES[node], TARGET) for node in (X, Y)}
    buffers[X].array[...] = np.random.default_rng(0).standard_normal((ROWS, DEPTH))
    return executable.link(buffers), buffers[Y].array


def test_the_plan_of_these_tests_is_shared_by_threads():
    (step,) = sums().steps
    assert isinstance(step, Nest)
    assert step.body.stmts[0].kind is AxisKind.PARALLEL
    (launch,) = backend.ocannl_generate(sums(), TARGET).steps
    assert len(_bounds(launch, 4)) > 4


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    one, expected = launched(1)
    several, found = launched(threads)
    for _ in range(20):
        one(())
        several(())
        assert found.tobytes() == expected.tobytes()
    assert expected.any()


def test_kernels_that_differ_in_the_extent_of_that_loop_alone_are_one():
    kernels = {
        kernel.symbol: kernel.iterations
        for rows in (ROWS, ROWS - 1)
        for kernel in backend.ocannl_generate(sums(rows), TARGET).kernels
    }
    assert len(kernels) == 1
    launch, found = launched(2, sums(ROWS - 1))
    launch(())
    assert found[: ROWS - 1].any()
    assert not found[ROWS - 1].any()


@given(st.integers(-5, 5), st.integers(2, 50), st.integers(0, 100), st.integers(1, 9))
def test_parts_are_all_iterations_in_order(start, extent, parts, threads):
    work = parts * LEAST_WORK
    launch = Launch("k", (), (), (), iterations=range(start, start + extent), work=work)
    bounds = _bounds(launch, threads)
    assert [each for first, end in bounds for each in range(first, end)] == list(launch.iterations)
    assert max(end - first for first, end in bounds) - min(e - f for f, e in bounds) <= 1
    assert len(bounds) == 1 or (threads > 1 and len(bounds) <= parts)


def test_python_threads_run_routines_at_the_same_time():
    launch, expected = launched(1)
    launch(())
    several = [launched(2) for _ in range(4)]

    def run(launch) -> None:
        for _ in range(10):
            launch(())

    for _ in range(9):
        launch(())
    threads = [threading.Thread(target=run, args=(each,)) for each, _ in several]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(found.tobytes() == expected.tobytes() for _, found in several)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_workers_of_its_own():
    launch, found = launched(2)
    launch(())
    once = found.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child = os.fork()
    if child == 0:
        found[...] = 0
        launch(())
        os._exit(0 if found.tobytes() == once.tobytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found[...] = 0
    launch(())
    assert found.tobytes() == once.tobytes()


def test_a_process_ends_while_workers_wait():
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = {[str(here), *sys.path]!r}\n" + (
        "from test_threads import launched\nlaunch, found = launched(2)\nlaunch(())\nprint('ran')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.stdout, result.returncode) == ("ran\n", 0), result.stderr


def test_a_machine_can_be_several_devices():
    with settings.overrides(host_devices=3):
        report = devices.report()
    assert [str(each) for each in report.targets] == ["cpu_c:0", "cpu_c:1", "cpu_c:2"]
    cores = len(os.sched_getaffinity(0))
    assert {each.cores for each in report.targets} == {max(1, cores // 3)}


STRESS = """
#include <stdio.h>
enum { PARTS = 7, CELLS = 64 };
static int64_t cells[PARTS][CELLS];
static void kernel(void *const *args) {
  int64_t *mine = args[0];
  for (int i = 0; i < CELLS; ++i) mine[i] += i;
}
int main(void) {
  void *tables[PARTS][1];
  void *const *args[PARTS];
  for (int part = 0; part < PARTS; ++part) {
    tables[part][0] = cells[part];
    args[part] = tables[part];
  }
  const struct step steps[] = {{kernel, args, PARTS}, {kernel, args, 1}, {kernel, args, PARTS}};
  const struct routine routine = {steps, 3, ocannl_pool(3), 0, 0};
  for (int run = 0; run < 2000; ++run) ocannl_run(&routine, 0);
  for (int part = 0; part < PARTS; ++part)
    for (int i = 0; i < CELLS; ++i)
      if (cells[part][i] != (part ? 4000 : 6000) * i) return 1;
  puts("right");
  return 0;
}
"""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing_in_the_pool(sanitizer, tmp_path):
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs gcc or clang")
    runtime = Path(backend.__file__).with_name("runtime.c")
    source, program = tmp_path / "stress.c", tmp_path / "stress"
    source.write_text(f'#include "{runtime}"\n{STRESS}')
    flags = ["-std=gnu11", "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread"]
    built = subprocess.run([compiler, *flags, "-o", program, source], capture_output=True)
    if built.returncode != 0:
        pytest.skip(f"{compiler} has no -fsanitize={sanitizer}")
    # workers wait for ever, so memory of the pool is never freed
    env = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    result = subprocess.run([program], capture_output=True, text=True, env=env)
    assert (result.stdout, result.returncode) == ("right\n", 0), result.stderr
