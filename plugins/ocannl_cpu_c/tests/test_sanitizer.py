"""Generated code under an address sanitizer: no access outside the memory of a routine."""

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


def test_a_training_step_stays_inside_its_memory(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    found = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("gcc has no address sanitizer")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0",
        "OCANNL_CC": f"{compiler} -g -fsanitize=address",
        "OCANNL_CACHE_DIR": str(tmp_path),
        "OCANNL_THREADS": "2",
    }
    result = subprocess.run(
        [sys.executable, "-c", _TRAINING], capture_output=True, text=True, env=env
    )
    assert (result.stdout, result.returncode) == ("trained\n", 0), result.stderr
