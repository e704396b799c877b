"""Generated code under sanitizers: no access outside the memory of a routine, and no races."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_TRAINING = """
import numpy as np
import ocannl_core as oc

context = oc.Context("cpu_c")
x = oc.tensor(np.random.default_rng(0).standard_normal((70, 33)).astype(np.float32), batch_axes=1)
hidden = oc.tanh(oc.param("w", output=[256]) @ x + oc.param("b", output=[256]))
y = oc.relu(oc.param("v", output=[192]) @ hidden)
loss = oc.einsum("...|... => 0", y * y)
step = context.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=1e-4))
context.init_params(loss)
before = None
for _ in range(3):
    step()
    after = context.item(loss)
    assert before is None or after < before
    before = after
assert any(" threads" in line for line in step.source.splitlines())
print("trained")
"""


_SHARED = """
import numpy as np
import ocannl_core as oc

context = oc.Context("cpu_c")
random = np.random.default_rng(0)
# one block of lanes is too large for the stack, and all blocks for the cache
size, outputs = (10, 512) if context.target.vector_bytes > 16 else (30, 256)
cells = random.standard_normal((1, size, size, 128)).astype(np.float32)
images = oc.tensor(cells, batch_axes=1)
kernels = random.standard_normal((outputs, 3, 3, 128)).astype(np.float32)
weights = oc.tensor(kernels, input_axes=3)
long = oc.tensor(random.standard_normal((40000, 7)).astype(np.float32))
spec = "...|1*y<+v, 1*x<+u, i; v, u, i -> o => ...|y, x, o"
result = oc.einsum(spec, images, weights)
total = oc.einsum("ij => j", long)
step = context.compile(oc.train.forward(result) + oc.train.forward(total), keep=[result, total])
for _ in range(20):
    step()
kernels = oc.explain(step).kernels
assert sum(kernel.is_parallel for kernel in kernels) >= 2, kernels
assert "p0 = " in step.source  # memory of each thread
print("shared")
"""


_TILED = """
import numpy as np
import ocannl_core as oc
from ocannl_core.codegen.text.helper import EMULATED_TILES

random = np.random.default_rng(0)
from ocannl_cpu_c import own_settings
command = own_settings.current().cc + f" -D{EMULATED_TILES}"
with oc.settings.overrides(cpu_c__cc=command, accumulation="fast", tune="off"):
    context = oc.Context("cpu_c")
    a = oc.tensor(random.standard_normal((2, 201, 160)), dtype="bfloat16")
    b = oc.tensor(random.standard_normal((2, 99, 201)), dtype="bfloat16")
    product = oc.einsum("bki; bjk => bij", a, b)
    step = context.compile(oc.train.forward(product))
    step()
assert "tile_multiply_add(" in step.source
print("tiled")
"""


def test_a_training_step_stays_inside_its_memory(tmp_path: Path) -> None:
    result = _run(_TRAINING, "address", tmp_path)
    assert (result.stdout, result.returncode) == ("trained\n", 0), result.stderr


def test_tiles_stay_inside_their_buffers(tmp_path: Path) -> None:
    result = _run(_TILED, "address", tmp_path)
    assert (result.stdout, result.returncode) == ("tiled\n", 0), result.stderr


def test_threads_that_share_kernels_never_race(tmp_path: Path) -> None:
    result = _run(_SHARED, "thread", tmp_path)
    if "unexpected memory mapping" in result.stderr:
        pytest.skip("the thread sanitizer does not know how this kernel places memory")
    assert (result.stdout, result.returncode) == ("shared\n", 0), result.stderr


def _run(code: str, sanitizer: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return the outcome of a program whose kernels run under a sanitizer of GCC."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    name = f"lib{sanitizer[0]}san.so"
    found = subprocess.run(
        [compiler, f"-print-file-name={name}"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {sanitizer} sanitizer")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0",
        # the compiler itself is not watched
        "OCANNL_CPU_C__CC": f"env -u LD_PRELOAD {compiler} -g1 -fsanitize={sanitizer}",
        "OCANNL_CACHE_DIR": str(folder),
        "OCANNL_THREADS": "3",
    }
    # memory where the thread sanitizer expects it
    fixed = shutil.which("setarch")
    command = [sys.executable, "-c", code]
    if sanitizer == "thread" and fixed is not None:
        command = [fixed, "-R", *command]
    return subprocess.run(command, capture_output=True, text=True, env=env)
