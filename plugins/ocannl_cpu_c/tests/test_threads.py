"""Kernels that several threads share: the same bits, whoever does the work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings

import ocannl_core as oc
import ocannl_cpu_c as backend
from ocannl_core.base import settings
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream, map_steps
from ocannl_core.ir.loops.nodes import Binary, Block, For, Load, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.parallelize import allocate_workspace, parallelize_step
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.testing.children import succeeds_in_child
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c import background_compilation, devices, loader, processes
from ocannl_cpu_c.partition import partition
from tests.support.example_count import example_count
from tests.support.reductions import random_reductions

TARGET = Target("cpu_c", cores=4)
ROWS, COLUMNS, DEPTH = 37, 64, 1500
X, Y = TensorNode(0, ("x",)), TensorNode(1, ("y",))
NODES = {X: NodeInfo(float32, (ROWS, DEPTH)), Y: NodeInfo(float32, (ROWS, COLUMNS))}


def sums(rows: int = ROWS) -> Plan:
    """Return `y[i, j] += x[i, k]`, whose outer loop is worth several threads."""
    i, j, k = (fresh_var() for _ in range(3))
    cell, value = (VarIndex(i), VarIndex(j)), Load(X, (VarIndex(i), VarIndex(k)), float32)
    total = Binary(BinaryOp.ADD, Load(Y, cell, float32), value, float32)
    loop = For(k, 0, DEPTH, Block((Store(Y, cell, total),)))
    loop = For(i, 0, rows, Block((For(j, 0, COLUMNS, Block((loop,))),)))
    plan = Plan("sums", (Kernel(Block((loop,)), (X, Y), ()),), (X, Y), (), (), NODES)
    return map_steps(plan, parallelize_step)


def launched(threads: int, plan: Plan | None = None):
    """Return the launcher of a routine over new memory, and the array of its results."""
    plan = plan or sums()
    with settings.overrides(threads=threads):
        executable = backend.ocannl_compile(
            backend.ocannl_generate(KernelStream.of(plan), TARGET), TARGET
        )
    buffers = {node: backend.ocannl_allocate(NODES[node], TARGET) for node in (X, Y)}
    buffers[X].array[...] = np.random.default_rng(0).standard_normal((ROWS, DEPTH))
    return executable.link(buffers), buffers[Y].array


def test_the_plan_of_these_tests_is_shared_by_threads():
    (step,) = sums().steps
    assert isinstance(step, Kernel)
    assert step.is_parallel
    (launch,) = backend.ocannl_generate(KernelStream.of(sums()), TARGET).steps
    assert launch.shares is not None
    assert len(partition(launch.shares, 4)) > 4


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
    symbols = {
        kernel.symbol
        for rows in (ROWS, ROWS - 1)
        for kernel in backend.ocannl_generate(KernelStream.of(sums(rows)), TARGET).kernels
    }
    assert len(symbols) == 1
    launch, found = launched(2, sums(ROWS - 1))
    launch(())
    assert found[: ROWS - 1].any()
    assert not found[ROWS - 1].any()


@pytest.fixture
def everything_is_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocannl_cpu_c.partition.MIN_THREAD_CYCLES", 1)


def shared(plan: Plan, target: Target) -> Plan:
    """Return a plan all of whose kernels are cut into parts, as small as they may be."""
    parallel = partial(parallelize_step, least_work=0)
    return map_steps(schedule_for(plan, target, parallel).plan(), allocate_workspace)


@pytest.mark.usefixtures("everything_is_worth_a_thread")
@hypothesis_settings(
    max_examples=example_count(5),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(example=random_reductions(float32, (1, 2, 3, 16, 19, 70), 20_000) | random_programs())
def test_random_programs_give_the_same_bits_on_any_number_of_threads(example: Example) -> None:
    subject = subject_named("cpu_c")
    results = []
    for threads in (1, 2, 3, 7):
        with settings.overrides(threads=threads):
            cells = subject.run(example.program, example.arrays, example.indices, shared)
        results.append({node: array.tobytes() for node, array in cells.items()})
    assert all(each == results[0] for each in results)


def perceptron(random: np.random.Generator) -> oc.Tensor:
    x = oc.tensor(random.standard_normal((96, 300)).astype(np.float32), batch_axes=1)
    hidden = oc.relu(oc.param("w", output=[256]) @ x + oc.param("b", output=[256]))
    y = oc.param("v", output=[200]) @ hidden
    return oc.einsum("...|... => 0", y * y)


def convolution(random: np.random.Generator) -> oc.Tensor:
    x = oc.tensor(random.standard_normal((8, 18, 18, 16)).astype(np.float32), batch_axes=1)
    kernel = oc.tensor(random.standard_normal((40, 3, 3, 16)).astype(np.float32))
    y = oc.einsum("n|1*y<+1*v,1*x<+1*u,c; o,v,u,c => n|y,x,o", x, oc.param("kernel", init=kernel))
    return oc.einsum("...|... => 0", oc.relu(y + oc.param("b", output=[40])))


def softmax(random: np.random.Generator) -> oc.Tensor:
    x = oc.param("x", init=oc.tensor(random.standard_normal((500, 300)).astype(np.float32)))
    shifted = x - oc.stop_gradient(oc.einmax("i,j => i,0", x))
    y = oc.exp(shifted) / oc.einsum("i,j => i,0", oc.exp(shifted))
    return oc.einsum("... => 0", y * y)


def long_sums(random: np.random.Generator) -> oc.Tensor:
    a, b = (random.standard_normal((7000, 30)).astype(np.float32) for _ in range(2))
    y = oc.einsum("ij; ik => jk", oc.param("a", init=oc.tensor(a)), oc.tensor(b))
    return oc.einsum("... => 0", y * y)


def few_columns(random: np.random.Generator) -> oc.Tensor:
    x = oc.tensor(random.standard_normal((5000, 150)).astype(np.float32))
    w = oc.param("w", init=oc.tensor(random.standard_normal((150, 48)).astype(np.float32)))
    y = oc.einsum("ij; jk => ik", x, w)
    return oc.einsum("... => 0", y * y)


def windows(random: np.random.Generator) -> oc.Tensor:
    x = oc.tensor(random.standard_normal((4, 42, 42, 48)).astype(np.float32), batch_axes=1)
    kernel = oc.tensor(random.standard_normal((48, 3, 3, 48)).astype(np.float32))
    y = oc.einsum("n|1*y<+1*v,1*x<+1*u,c; o,v,u,c => n|y,x,o", x, oc.param("kernel", init=kernel))
    return oc.einsum("...|... => 0", y * y)


@pytest.mark.parametrize(
    "network", [perceptron, convolution, softmax, long_sums, few_columns, windows]
)
def test_networks_give_the_same_bits_on_any_number_of_threads(network) -> None:
    results = []
    for threads in (1, 2, 3, 7):
        with settings.overrides(threads=threads), oc.Session(seed=4):
            loss = network(np.random.default_rng(1))
            context = oc.Context("cpu_c")
            code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=1e-6)
            step = context.compile(code)
            context.init_params(loss)
            for _ in range(3):
                step()
            parameters = sorted(loss.params, key=lambda each: each.label)
            results.append([context[each].tobytes() for each in parameters])
        assert any(kernel.is_parallel for kernel in oc.explain(step).kernels)
    assert all(each == results[0] for each in results)


def drawn(make) -> list[bytes]:
    """Return 100 003 random numbers, drawn by a kernel that threads share."""
    with oc.Session(seed=3):
        step = oc.static_index("step")
        numbers = make(step)
        declared = oc.declare("result", batch=[], input=[], output=[100_003], dtype=numbers.dtype)

        @oc.cd
        def fill() -> None:
            declared[:] = numbers

        context = oc.Context("cpu_c")
        routine = context.compile(fill(), bindings=[step])
        assert oc.explain(routine).kernels[-1].is_parallel  # behind that of the key of the step
        routine(step=7)
        return [context[declared].tobytes()]


def dropped(_) -> list[bytes]:
    """Return the results and gradients of dropout in two steps."""
    with oc.Session(seed=3):
        x = oc.param("x", output=[300, 333], init=oc.uniform())
        y = oc.nn.dropout(x, rate=0.3)
        loss = oc.einsum("... => 0", y * y)
        context = oc.Context("cpu_c")
        step = context.compile(oc.train.grad_update(loss), keep=[y, x.grad])
        context.init_params(loss)
        assert any(kernel.is_parallel for kernel in oc.explain(step).kernels)
        found = []
        for _ in range(2):
            step()
            found += [context[y].tobytes(), context[x.grad].tobytes()]
        assert found[0] != found[2]
        return found


def test_threads_share_the_gradient_of_rows_of_a_table_and_give_the_same_bits():
    random = np.random.default_rng(0)
    cells = random.standard_normal((20, 512)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        with settings.overrides(threads=threads), oc.Session():
            table = oc.param("table", init=oc.tensor(cells))
            ids = oc.tensor(np.arange(900, dtype=np.int32) ** 2 % 20, batch_axes=1)
            taken = table[ids]
            loss = oc.einsum("... | ... => 0", taken * taken)
            context = oc.Context("cpu_c")
            step = context.compile(oc.train.grad_update(loss), keep=[table.grad])
            context.init_params(loss)
            step()
            kernels = oc.explain(step).kernels
            assert any("table_grad[" in each.title and each.is_parallel for each in kernels)
            results.append(context[table.grad].tobytes())
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("draw", "make"),
    [
        (drawn, lambda step: oc.uniform(counter=step, dtype="float32")),
        (drawn, lambda step: oc.uniform(counter=step, dtype="int32")),
        (drawn, lambda step: oc.normal(counter=step, dtype="float32")),
        (dropped, None),
    ],
    ids=["uniform", "integers", "normal", "dropout"],
)
def test_threads_share_random_numbers_and_any_number_of_them_gives_the_same_bits(draw, make):
    results = []
    for threads in (1, 2, 3):
        with settings.overrides(threads=threads):
            results.append(draw(make))
    assert all(each == results[0] for each in results)


def orders_and_scans(shape: tuple[int, int, int]) -> list[bytes]:
    """Return operations with native code along each axis, and some of their gradients."""
    with oc.Session():
        cells = np.random.default_rng(7).integers(-99, 99, shape).astype(np.float32)
        x = oc.tensor(cells, requires_grad=True)
        found = [
            result
            for axis in range(3)
            for result in (
                oc.argsort(x, axis),
                oc.sort(x, axis, descending=True),
                *oc.topk(x, 2, axis),
                oc.cumsum(x, axis),
                oc.cummax(x, axis),
            )
        ]
        places = oc.searchsorted(oc.tensor(np.arange(-50.0, 50.0, 0.5, dtype=np.float32)), x)
        loss = oc.sum(oc.cumprod(x / 64.0, 1) * oc.sort(x, 2)) + oc.sum(oc.cummin(x, 0) ** 2)
        context = oc.Context("cpu_c")
        routine = context.compile(
            oc.train.grad_update(loss)
            + sum(map(oc.train.forward, found), oc.train.forward(places)),
            keep=[*found, places, x.grad],
        )
        assert "iterations on several threads" in routine.source
        routine()
        return [context[each].tobytes() for each in (*found, places, x.grad)]


@pytest.mark.parametrize("shape", [(40, 33, 65), (7, 300, 30), (301, 5, 8), (3, 2, 4000)])
def test_threads_share_the_lines_of_orders_and_scans(shape):
    results = []
    for threads in (1, 2, 3, 7):
        with settings.overrides(threads=threads):
            results.append(orders_and_scans(shape))
    assert all(each == results[0] for each in results)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("module", [loader, background_compilation, processes])
def test_a_child_compiles_although_a_thread_of_its_parent_does(module):
    inside, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with module._lock:
            inside.set()
            may_go_on.wait()

    def compile_new() -> None:
        with oc.Session():
            x = oc.placeholder("x", output=[3])
            y = oc.exp(x * float(os.getpid())) * 0.0
            ctx = oc.Context("cpu_c")
            step = ctx.compile(oc.train.forward(y))
            ctx[x] = 0.0
            step()
            assert ctx[y].tolist() == [0.0, 0.0, 0.0]

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    assert succeeds_in_child(compile_new)
    may_go_on.set()
    thread.join()


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


def test_explain_shows_the_loop_that_threads_share() -> None:
    a, b = np.ones((512, 2048), np.float32), np.ones((2048, 512), np.float32)
    with oc.Session():
        product = oc.einsum("ij; jk => ik", oc.tensor(a), oc.tensor(b), label="product")
        step = oc.Context("cpu_c").compile(oc.train.forward(product))
    *_, kernel = oc.explain(step).kernels
    assert kernel.parallel
    assert all(extent > 1 for _, extent in kernel.parallel)
    shared = " x ".join(f"{axis} {extent}" for axis, extent in kernel.parallel)
    assert f"(writes product) [parallel: {shared}]" in str(oc.explain(step))


STRESS = """
#include <stdio.h>
enum { PARTS = 7, CELLS = 64, THREADS = 3 };
static int64_t cells[PARTS][CELLS];
static char memory[THREADS * CELLS * sizeof(int64_t)];
static void kernel(void *const *args) {
  int64_t *mine = args[0], *scratch = args[1];
  for (int i = 0; i < CELLS; ++i) scratch[i] = mine[i];
  for (int i = 0; i < CELLS; ++i) mine[i] = scratch[CELLS - 1 - i] + 1;
}
int main(void) {
  void *tables[PARTS][2];
  void **args[PARTS];
  const int64_t offsets[] = {0};
  for (int part = 0; part < PARTS; ++part) {
    tables[part][0] = cells[part];
    args[part] = tables[part];
  }
  const struct step steps[] = {{kernel, args, PARTS, 1 << 15, 1, 1, offsets},
                               {kernel, args, 1, 0, 1, 1, offsets},
                               {kernel, args, PARTS, 1 << 15, 1, 1, offsets}};
  const struct routine routine = {steps, 3, ocannl_pool(THREADS), 0, 0, memory,
                                  sizeof memory / THREADS};
  for (int i = 0; i < 2000; ++i) run(&routine);
  for (int part = 0; part < PARTS; ++part)
    for (int i = 0; i < CELLS; ++i)
      if (cells[part][i] != (part ? 4000 : 6000)) return 1;
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


def test_per_thread_buffers_are_distinguished_from_cells() -> None:
    random = np.random.default_rng(0)
    # one block of lanes is too large for the stack, and all blocks for the cache
    is_wide = devices.report().targets[0].vector_bytes > 16
    size, outputs = (10, 512) if is_wide else (30, 256)
    images = random.integers(-3, 4, (1, size, size, 128)).astype(np.float32)
    weights = random.integers(-3, 4, (outputs, 3, 3, 128)).astype(np.float32)
    with oc.Session():
        x, w = oc.tensor(images, batch_axes=1), oc.tensor(weights, input_axes=3)
        result = oc.einsum("...|1*y<+v, 1*x<+u, i; v, u, i -> o => ...|y, x, o", x, w)
        context = oc.Context("cpu_c")
        step = context.compile(oc.train.forward(result))
        step()
        found = context[result]
    assert re.search(r"p0 = \d+ bytes", step.source)  # as many as the width of vectors asks for
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    expected = np.einsum("nyxcvu,ovuc->nyxo", windows, weights, optimize=True)
    np.testing.assert_array_equal(found, expected)
