"""Output of the benchmarks; nothing here is timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from inline_snapshot import snapshot

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _result(workload: str, least: dict[str, float], **more: Any) -> dict[str, Any]:
    rest: dict[str, Any] = {"threads": 1, "median": least, "first": {}, "failed": {}}
    return {"workload": workload, "least": least} | rest | more


def _tables(results: list[dict[str, Any]], folder: Path) -> str:
    file = folder / "results"
    file.write_text("\n".join(json.dumps(each) for each in results))
    command = [sys.executable, str(BENCHMARKS / "report.py"), "--print", "--results", str(file)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    tables = printed[printed.index("###") :]
    return tables.replace("no AMX", "AMX").strip()


def test_a_table_has_the_least_times_of_all_runs_and_each_library_once(tmp_path: Path) -> None:
    step = {"compiled": 2e-3, "compiled, all kept": 5e-3, "torch": 8e-3}
    step |= {"torch compiled": 6e-3, "torch compiled as a whole": 4e-3, "jax": 9.0}
    results = [
        _result("step", {"compiled": 9.0, "jax": 0.25}),
        _result("step", step, failed={"tinygrad": "OSError: no clang"}),
        _result("alone", {"compiled": 1e-6}),
        _result("step", {"compiled": 1e-3, "pytensor": 2e-3, "pytensor C": 5e-4}, threads=2),
    ]
    assert _tables(results, tmp_path) == snapshot("""\
### 1 thread, float32, AMX; least milliseconds

| workload | ours | ratio | best peer | torch | torch compiled | jax |
| --- | --: | --: | --: | --: | --: | --: |
| step | 2 | **0.50** | torch compiled as a whole | 8 | 4 | 250 |
| step, all kept | 5 | **1.25** | torch compiled as a whole | 8 | 4 | 250 |
| alone | 0.001 | - | - | - | - | - |

- step: tinygrad failed: OSError: no clang

### 2 threads, float32, AMX; least milliseconds

| workload | ours | ratio | best peer | pytensor |
| --- | --: | --: | --: | --: |
| step | 1 | **2.00** | pytensor C | 0.5 |\
""")


def test_a_peer_that_fails_is_left_out_and_one_that_differs_is_an_error() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import argparse, comparison, numpy as np
from workloads.functions import Contender, Function

def failing():
    raise OSError("no compiler\\nat all")

def value(cells):
    return lambda: Contender(lambda times: None, lambda: [np.array(cells)])

work = Function(
    name="work", arrays=dict, own=None, torch=None, jax=None, tinygrad=None, pytensor=None
)
ready = comparison.prepare(work, {{"compiled": value([1.0, 2.0]), "a": failing, "b": value([1.0, 2.0])}})
print(sorted(ready.contenders), ready.failed)
comparison.prepare(work, {{"compiled": value([1.0, 2.0]), "b": value([1.0, 2.1])}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == snapshot(
        (
            1,
            "['b', 'compiled'] {'a': 'OSError: no compiler'}\n",
            "work: b differs by 5.0e-02, array 0\n",
        )
    )


PARTS = """
import os, sys, time

given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
time.sleep(float(given["--start"]))
for number, (name, seconds) in enumerate([("first", 0), ("second", 60), ("third", 0), ("last", -1)]):
    if number >= int(given["--skip"]):
        os.write(int(given["--progress"]), f"{number} {name}\\n".encode())
        if seconds < 0:
            os._exit(9)
        time.sleep(seconds)
        print(name, "ran", flush=True)
"""


def _isolated(folder: Path, sleeps: float, start: float) -> tuple[list[str], int]:
    """Return the lines of parts that have a second each, and the exit code."""
    script = folder / "parts.py"
    script.write_text(PARTS)
    given = f"{str(script)!r}, ['--start', '{sleeps}'], 1.0, {start}"
    program = f"import sys; from isolation import run_isolated; sys.exit(run_isolated({given}))"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True)
    return run.stdout.splitlines(), run.returncode


def test_a_part_that_hangs_or_dies_costs_itself_and_the_start_has_a_limit_of_its_own(
    tmp_path: Path,
) -> None:
    """The first import of a library takes longer than a part may."""
    assert _isolated(tmp_path, 1.2, 60.0) == (
        ["first ran", "second: CUT OFF after 1 s", "third ran", "last: ENDED the process with 9"],
        1,
    )
    assert _isolated(tmp_path, 60.0, 1.0) == (["the start: CUT OFF after 1 s"], 1)


def test_our_own_numbers_come_before_those_of_others() -> None:
    program = """
import sys
from gpu import Bench, parts_of
for peers in (None, sys):
    print(*(name for name, _ in parts_of(Bench(None, None, peers, None, 0.0, False), small=True)), sep=";")
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True, check=True)
    alone, beside = (line.split(";") for line in run.stdout.splitlines())
    assert beside == [*alone, *(f"{name}, beside others" for name in alone)]
    products = [name for name in alone if name.startswith(("product", "attention"))]
    assert products[0].endswith("bfloat16")
    assert alone[1 : 1 + len(products)] == products
