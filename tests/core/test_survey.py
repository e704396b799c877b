"""The survey of operations and blocks: completeness, and its tables. Nothing here is timed."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core import nn
from ocannl_core.base.renamed import value_of
from tests.support.slow import slow
from tests.support.survey import BENCHMARKS, CASES, arguments_of

NO_WORK = {
    "declarations, names and arguments": "arange batch custom declare define_operation dim evaluation "
    "from_function eye full full_like kaiming linspace number ones ones_like op param placeholder require_shape require_shapes "
    "static_extent static_index tensor xavier zeros zeros_like",
    "sessions, files and displays": "atomic cd compile_for curves explain graph heatmap hookimpl load load_exported precision_report "
    "reset save section show summary table tree",
    "other readings of measured operations": "gradients greater greater_equal permute primitives.first "
    "primitives.second",
    "modules, formats and constants": "assignments data neutral nn primitives random settings testing train",
}
"""Public functions of `oc` that compute nothing by themselves, or as others do."""

NO_WORK_OF_BLOCKS = {
    "steps of one token, measured by benchmarks/decode.py": "Generator KeyValueCache gpt "
    "key_value_cache learned_positions sinusoidal_positions",
    "names of checkpoints": "gpt2_names llama_names resnet_names",
    "repetition and inspection of other blocks": "attention_weights repeat_layers",
}


def _names(groups: dict[str, str]) -> set[str]:
    return {name for names in groups.values() for name in names.split()}


def _is_function(value: object) -> bool:
    return callable(value) and not inspect.isclass(value)


def test_every_public_operation_and_block_is_surveyed() -> None:
    covered = {name for case in CASES.values() for name in case.covers}
    operations = {name for name in oc.__all__ if _is_function(getattr(oc, name))}
    operations |= {f"primitives.{name}" for name in oc.primitives.__all__}
    blocks = {f"nn.{name}" for name in nn.__all__ if not name.startswith("_")}
    excused = _names(NO_WORK) | {f"nn.{name}" for name in _names(NO_WORK_OF_BLOCKS)}
    assert sorted((operations | blocks) - covered - excused) == []
    assert sorted(covered - operations - blocks - {"Tensor"}) == []


WHOLE_NETWORKS = ("mobilenet", "resnet", "transformer")


@pytest.mark.parametrize(
    "name", [*(each for each in CASES if each not in WHOLE_NETWORKS), *slow(WHOLE_NETWORKS)]
)
def test_a_case_calls_the_functions_that_it_covers(name: str) -> None:
    case = CASES[name]
    called: set[object] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code)
            called.add(id(frame.f_locals.get("self")))

    with oc.Session():
        arguments = arguments_of(case, case.arrays[0](), gradients=False).values()
        sys.setprofile(note)
        try:
            case.own(*arguments)
        finally:
            sys.setprofile(None)
    for covered in {*case.covers} - {"Tensor"}:
        function = inspect.unwrap(value_of(f"oc.{covered}"))
        code = getattr(function, "__code__", None)
        assert (id(function) if code is None else code) in called, covered


def test_tables_have_the_rows_above_1_and_an_exit_code_for_those_without_a_reason(
    tmp_path: Path,
) -> None:
    def row(name: str, own: float, torch: float, failed: str = "") -> str:
        found = {"name": name, "shape": "3x4", "threads": 1, "own": own, "torch": torch}
        return json.dumps({**found, "failed": failed})

    file = tmp_path / "results"
    rows = [row("fast", 1e-3, 4e-3), row("slow", 3e-3, 1e-3), row("slow", 2e-3, 5e-3)]
    file.write_text("\n".join([*rows, row("broken", 0.0, 0.0, "ValueError: no")]) + "\n")
    command = [sys.executable, str(BENCHMARKS / "survey.py"), "--print", "--results", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == snapshot(
        (
            1,
            """\
### 1 thread

2 rows; 1 above 1; the median is 1.62.

| work | arguments | ratio | ours, ms | PyTorch, ms | reason |
| --- | --- | --: | --: | --: | --- |
| slow | 3x4 | **3.00** | 3 | 1 |  |

- broken, 3x4: ValueError: no
""",
            "2 without a reason\n",
        )
    )
