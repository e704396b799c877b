"""Exported functions whose work threads of the caller share: the same bits with any number."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.base.errors import UsageError
from ocannl_core.runtime.export.exported import ExportedError, load_exported
from ocannl_core.runtime.routine import Routine
from tests.support.exported_routines import Exported, built, compiled, exported


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session(seed=3):
        yield


def training() -> list[Routine]:
    """A training step whose kernels are large enough for threads, with private buffers."""
    x = oc.placeholder("x", batch=[260], output=[210])
    ids = oc.placeholder("ids", batch=[260], dtype="int32")
    y = nn.dense(oc.tanh(nn.dense(x, output=[300])), output=[10])
    y = y + nn.embedding(ids, entries=10, width=10)
    loss = oc.mean(oc.softmax(y, axis=-1) ** 2)
    ctx = oc.Context("cpu_c")
    update = oc.train.grad_update(loss) + oc.train.Adam(learning_rate=1e-2).update(loss)
    step = ctx.compile(update, name="train")
    ctx.init_params(loss)
    numbers = np.random.default_rng(0)
    ctx[x] = numbers.standard_normal((260, 210)).astype(np.float32)
    ctx[ids] = numbers.integers(0, 10, 260).astype(np.int32)
    return [step]


PROGRAM = """\
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

#define MOST 8
struct job { void (*body)(void *, size_t); void *argument; size_t part; };

static void *work(void *given) {
  const struct job *job = given;
  job->body(job->argument, job->part);
  return 0;
}

/* One thread for each part, started in the order of `context`. */
static void parallel_for(void *context, size_t count, void (*body)(void *, size_t), void *argument) {
  pthread_t threads[MOST];
  struct job jobs[MOST];
  const int backwards = *(int *)context;
  if (count > MOST) abort();
  for (size_t k = 0; k < count; ++k) {
    jobs[k] = (struct job){body, argument, backwards ? count - 1 - k : k};
    if (pthread_create(&threads[k], 0, work, &jobs[k])) abort();
  }
  for (size_t k = 0; k < count; ++k) pthread_join(threads[k], 0);
}

static float x[260 * 210];
static int32_t ids[260];

static int run(size_t threads, int backwards, char *copy) {
  const size_t bytes = MODEL_STATE_BYTES + (threads - 1) * MODEL_THREAD_BYTES;
  char *state = aligned_alloc(MODEL_ALIGNMENT, (bytes + 63) / 64 * 64);
  if (model_init(state, bytes)) return 1;
  if (model_threads(state, bytes - 1, threads, parallel_for, &backwards) != MODEL_BAD_STATE) return 2;
  if (model_threads(state, bytes, 0, parallel_for, &backwards) != MODEL_BAD_STATE) return 3;
  if (model_threads(state, bytes, (size_t)-1, parallel_for, &backwards) != MODEL_BAD_STATE) return 4;
  if (model_threads(state, bytes, threads, threads > 1 ? parallel_for : 0, &backwards)) return 5;
  for (int step = 0; step < 3; ++step) {
    ids[0] = 10;
    if (model_f0(state, GIVEN_INPUTS 0) != MODEL_BAD_POSITION) return 6;
    ids[0] = 9;
    if (model_f0(state, GIVEN_INPUTS 0)) return 7;
  }
  size_t at = 0;
  for (int tensor = 0; tensor < MODEL_TENSORS; ++tensor)
    if (model_tensors[tensor].role[0] == 's' && model_tensors[tensor].rank == 2) {
      const char *cells = model_cells(state, tensor);
      for (int64_t k = 0; k < model_tensors[tensor].nbytes; ++k) copy[at++] = cells[k];
    }
  free(state);
  return at < 100000;
}

static char first[MODEL_STATE_BYTES], other[MODEL_STATE_BYTES];

int main(void) {
  for (int k = 0; k < 260 * 210; ++k) x[k] = (float)(k % 17) / 9 - 1;
  for (int k = 0; k < 260; ++k) ids[k] = k % 10;
  int status = run(1, 0, first);
  for (size_t threads = 2; threads <= MOST && !status; threads += 2) {
    status = run(threads, threads % 4 == 0, other);
    for (size_t k = 0; k < sizeof first && !status; ++k) status = first[k] == other[k] ? 0 : 9;
  }
  printf("%d\\n", status);
  return status;
}
"""


def program(model: Exported, *flags: str) -> str:
    """Return the output of a program that compares runs with several numbers of threads."""
    folder = model.files.source.parent
    names = ", ".join(each.name for each in model.content.functions[0].inputs)
    (folder / "main.c").write_text(PROGRAM.replace("GIVEN_INPUTS", names + ","))
    sources = [str(folder / "main.c"), str(folder / "model.c")]
    built(["cc", "-O1", "-g", *flags, *sources, "-o", str(folder / "main"), "-lpthread", "-lm"])
    ran = subprocess.run([str(folder / "main")], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def test_any_number_of_threads_has_the_bits_of_the_routine(tmp_path: Path) -> None:
    model = exported(training(), tmp_path, threads=True)
    assert "share((struct shared)" in model.files.source.read_text()
    assert model.differences(model.states(compiled(model, ["cc", "-O1", "-march=native"]))) == []
    assert program(model, "-march=native") == "0\n"


def test_threads_share_native_code_with_the_bits_of_the_routine(tmp_path: Path) -> None:
    x = oc.placeholder("x", output=[301, 90])
    ctx = oc.Context("cpu_c")
    found = [oc.sort(x), oc.cumsum(x, axis=0), oc.topk(x, 3)[0]]
    ctx[x] = np.random.default_rng(0).standard_normal((301, 90)).astype(np.float32)
    order = ctx.compile(
        sum(map(oc.train.forward, found[1:]), oc.train.forward(found[0])), keep=found
    )
    model = exported([order], tmp_path, threads=True)
    assert "share((struct shared)" in model.files.source.read_text()
    library = compiled(model, ["cc", "-O1", "-march=native"])
    assert model.differences(model.states(library)) == []
    given = model.calls[0].inputs
    serial, parallel = load_exported(library), load_exported(library, threads=3)
    assert [bytes(each) for each in serial.f0(*given)] == [
        bytes(each) for each in parallel.f0(*given)
    ]


@pytest.mark.slow
def test_threads_have_no_races(tmp_path: Path) -> None:
    model = exported(training(), tmp_path, threads=True, target="x86-64-v3")
    for sanitizer in ("thread", "address,undefined"):
        assert program(model, "-mfma", "-mavx2", f"-fsanitize={sanitizer}") == "0\n"


def test_threads_of_python(tmp_path: Path) -> None:
    routines = training()
    model = exported(routines, tmp_path, threads=True, weights="beside")
    library = compiled(model, ["cc", "-O1", "-march=native"])
    given = model.calls[0].inputs
    serial, parallel = load_exported(library), load_exported(library, threads=3)
    for _ in range(2):
        assert [bytes(each) for each in serial.f0(*given)] == [
            bytes(each) for each in parallel.f0(*given)
        ]
    plain = exported(routines, tmp_path, weights="beside")
    one = compiled(plain, ["cc", "-O1", "-march=native"], "one")
    with pytest.raises(ExportedError, match="export it with threads=True for more, found 2"):
        load_exported(one, "model", threads=2)


def test_a_module_has_one_thread(tmp_path: Path) -> None:
    (routine,) = training()
    with pytest.raises(UsageError, match="runs on one thread"):
        routine.context.export(routine, tmp_path / "model.wasm", threads=True)
    assert not list(tmp_path.iterdir())
