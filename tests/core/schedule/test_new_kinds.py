"""A kind of an axis is a row and its rendering: one is added to a copy of the core, in two places."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ocannl_core
from ocannl_core.backend_api.loops import AxisKind

CORE = Path(ocannl_core.__file__).parent

ROW = '''\
    HINTED = _Row(
        "hinted", Resource.THREAD, "hint", is_whole=True, splits_sums=True, on_blocks=True
    )
    """The compiler unrolls the loop as often as it likes."""
'''
RENDERING = """\
            case AxisKind.HINTED:
                return "#pragma GCC unroll 2"
"""
SCRIPT = """
import json
import sys

import numpy as np

from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nest_recognition import kernel_nest
from ocannl_core.ir.kernels.nodes import kernel_of
from ocannl_core.ir.kernels.transforms import parse_schedule, schedule_text
from ocannl_core.ir.loops.nodes import Binary, Block
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.verify import verify
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.schedule.apply.apply_schedule import apply_schedule
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.subject import subject_named


class OneThread(Dialect):
    def barrier(self, inside_block_axis):
        return []


draft = Draft("product")
i, j, k = (fresh_var(name) for name in "ijk")
a, b, c = (draft.node(name, float32, 5, 5) for name in "abc")
term = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
update = draft.accumulate(c, i, j, op=BinaryOp.ADD, value=term)
nest = kernel_nest(Block((loop(i, 5, loop(j, 5, loop(k, 5, update))),)))
numbers = np.arange(25, dtype=np.float32).reshape(5, 5)
found = []
for text in json.loads(sys.argv[1]):
    schedule = parse_schedule(text)
    assert schedule_text(schedule) == text
    made = apply_schedule(nest, schedule)
    nodes = {**draft.nodes, **made.nodes}
    body = Block((loop(fresh_var(), 1, made.body),))
    program = replace(draft.program(), nodes=nodes, body=body)
    verify(program)
    arrays = {a: numbers, b: numbers.T.copy(), c: np.zeros((5, 5), np.float32)}
    result = subject_named("interp").run(program, arrays)[c]
    code = render_kernel(kernel_of(made.body, "product"), nodes, OneThread()).text
    found.append([result.tolist(), to_text(program), code])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def extended_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the core that has another kind of axis."""
    root = tmp_path_factory.mktemp("extended")
    shutil.copytree(CORE, root / "ocannl_core")
    insert(root, "ir/loops/axis_kinds.py", before='    DOT = _Row("dot"', text=ROW)
    insert(root, "codegen/dialect.py", before="            case AxisKind.VECTOR:\n", text=RENDERING)
    return root


def insert(root: Path, module: str, *, before: str, text: str) -> None:
    path = root / "ocannl_core" / module
    source = path.read_text(encoding="utf-8")
    assert source.count(before) == 1
    path.write_text(source.replace(before, text + before), encoding="utf-8")


SCHEDULES = {
    "split j 2; order i k j0 j1; hint j1; accumulate over k": 3,
    "split k 2; order i j k0 k1; hint k1": 2,
    "split i 2; hint i0 j": 3,
    "split i 2; split j 2; grid i0 j0; block j1; hint i1; accumulate over k fused": 3,
    "split i 4; split k 2; grid i0; block k1 j; hint i1": 2,
}
"""Schedules for a processor and for thread blocks, with the least number of rendered loops."""


def test_a_row_and_its_rendering_are_enough(extended_core: Path) -> None:
    path = os.pathsep.join([str(extended_core), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(list(SCHEDULES))],
        cwd=extended_core,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    numbers = np.arange(25.0).reshape(5, 5)
    for pragmas, (result, program, code) in zip(
        SCHEDULES.values(), json.loads(run.stdout), strict=True
    ):
        np.testing.assert_array_equal(result, numbers @ numbers.T)
        assert "in hinted(" in program
        assert code.count("#pragma GCC unroll 2") >= pragmas, code


def test_backends_find_the_kind_of_dot_products_by_its_name_in_version_1_0() -> None:
    assert AxisKind.PAIR is AxisKind.DOT
