"""The commands `ocannl show`, `ocannl bench`, `ocannl verify` and `ocannl cache`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.base.files.digests import add_digest, add_json_digest
from ocannl_core.base.files.directory import open_private
from ocannl_core.cli import main
from ocannl_core.ir.loops.nodes import Const, Expr
from ocannl_core.ir.loops.traverse import map_exprs
from ocannl_core.passes.loops.pipeline import NamedPass
from tests.support.faulty_backend import faulty

interpreter = pytest.importorskip("ocannl_interp.routine")

PROGRAM = """
import sys
import ocannl_core as oc

x = oc.tensor([1.0, 2.0, 3.0])
y = oc.exp(x * 2.0) + 1.0
ctx = oc.Context()
ctx.compile(oc.train.forward(y), name="step")()
print("arguments", *sys.argv[1:])
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for variable in [name for name in os.environ if name.startswith("OCANNL_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OCANNL_BACKEND", "interp")
    Path("program.py").write_text(PROGRAM)
    manager.refresh()
    with oc.Session():
        yield
    manager.refresh()


def test_show_prints_the_stages_of_routines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "program.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("=====", "-----"))] == snapshot(
        [
            "===== routine step on interp:0",
            "----- assignments",
            "----- loops",
            "----- kernels",
            "----- source (loop-ir)",
        ]
    )
    assert "        add[o] = exp(literal[o] * 2.0) + 1.0" in lines


def test_show_prints_one_stage_of_some_routines(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["show", "--stage", "assignments", "--routine", "st*", "program.py", "--", "3"]
    assert main(command) == 3
    text = capsys.readouterr().out
    assert "mul[o] = literal[o] * 2.0" in text
    assert "for o in" not in text
    assert "arguments 3" in text
    assert main(["show", "--routine", "other", "program.py"]) == 1
    assert "the program compiled no routine like other" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "verify", "repeat", "bench", "tune"])
def test_a_program_that_does_not_exist_is_an_error(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong_usage(command, "missing.py") == 2
    assert f"ocannl {command}: error: there is no file 'missing.py'" in capsys.readouterr().err
    assert wrong_usage(command) == 2
    assert "PROGRAM" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", ["show", "verify", "repeat", "bench", "tune", "export"])
def test_the_error_of_a_program_has_its_own_frames_only(
    command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("wrong.py").write_text("def divide():\n    return 1 / 0\n\n\ndivide()\n")
    program = ["wrong.py:divide", "model.c"] if command == "export" else ["wrong.py"]
    assert wrong_usage(command, *program) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", ")[0] for line in lines if ", line " in line] == ['  File "wrong.py"'] * 2
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_the_error_of_a_program_that_misuses_a_tensor_is_one_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("wrong.py").write_text("import ocannl_core as oc\n\noc.exp([1.0])\n")
    assert wrong_usage("show", "wrong.py") == 1
    error = capsys.readouterr().err
    assert error.startswith("UsageError: ")
    assert "wrong.py:3" in error


def wrong_usage(*arguments: str) -> object:
    """Return the exit code of a command that ends at once."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("verify --backends interp", "--backends: 'interp' is not two backends, such as"),
        ("verify --runs 0", "--runs: '0' is not an integer of 1 or more"),
        ("verify --tolerance -1", "--tolerance: '-1' is not a number of 0 or more"),
        ("repeat --times 1", "--times: '1' is not an integer of 2 or more"),
        ("repeat --times x", "--times: 'x' is not an integer of 2 or more"),
        ("bench --seconds 0", "--seconds: '0' is not a positive number of seconds"),
        ("tune --budget nan", "--budget: 'nan' is not a positive number of seconds"),
    ],
)
def test_numbers_out_of_range_are_wrong_usage(
    command: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong_usage(*command.split(), "program.py") == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show --stage", "verify --runs", "bench --seconds"])
def test_options_of_a_command_behind_the_program_are_wrong_usage(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, option = command.split()
    assert wrong_usage(name, "program.py", option, "1") == 2
    assert f"{option} stands behind the program" in capsys.readouterr().err


def test_a_program_may_have_options_of_the_command_behind_two_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("own.py").write_text(PROGRAM.replace("int(sys.argv[1]) if sys.argv[1:] else 0", ""))
    assert main(["verify", "own.py", "--", "--runs", "1"]) == 0
    assert "arguments --runs 1\n" in capsys.readouterr().out


LOOP = """
import ocannl_core as oc

i = oc.static_index("i", range=3)
x = oc.tensor(oc.batch([1.0], [2.0], [3.0]))
total = oc.declare("total", output=[1])


@oc.cd
def add():
    total.accumulate(x[i], with_=oc.add)


ctx = oc.Context()
ctx.compile(oc.train.forward(oc.exp(x)), name="once")()
ctx.compile(oc.train.forward(oc.log(x)), name="never")
step = ctx.compile(add(), bindings=[i], name="step", keep=[total])
for n in range(3):
    step(i=n)
print("total", ctx.item(total))
"""


def test_bench_measures_the_routines_that_a_program_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("loop.py").write_text(LOOP)
    assert main(["bench", "--seconds", "0.01", "loop.py"]) == 0
    text = capsys.readouterr().out
    assert "total 6.0" in text  # measuring changes no tensor of the program
    assert "called 3 times on interp:0" in text
    assert "called 1 time on interp:0" in text
    assert "routine step: 1 kernels" in text
    assert "routine once: 1 kernels" in text
    assert "never" not in text


def test_bench_measures_routines_of_a_name_and_returns_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["bench", "--seconds", "0.01", "--routine", "st*", "program.py", "--", "3"]
    assert main(command) == 3
    assert "routine step: 1 kernels" in capsys.readouterr().out
    assert main(["bench", "--routine", "other", "program.py"]) == 1
    assert "the program called no routine like other" in capsys.readouterr().out


def spoil(program: Any) -> Any:
    """Return a loop program or kernel with other constants."""

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Const) and expr.value == 2.0:
            return Const(2.5, expr.dtype)
        return expr

    return replace(program, body=map_exprs(program.body, change))


def test_verify_accepts_backends_that_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backends", "cpu_c,interp", "program.py"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "cpu_c:0 and interp:0: 1 runs, 3 assignments, 0 differences"
    assert os.environ["OCANNL_BACKEND"] == "interp"


def test_verify_names_the_assignment_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    def ocannl_generate(kernels: Any) -> Any:
        plan = kernels.plan()
        return interpreter.LoopSource(replace(plan, steps=tuple(map(spoil, plan.steps))))

    faulty(ocannl_generate=ocannl_generate)
    assert main(["verify", "--backends", "faulty,interp", "program.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:3] == snapshot(
        ["step, run 1: mul differs by 0.25", "    mul[o] = literal[o] * 2.0"]
    )
    assert "program.py:6: y = oc.exp(x * 2.0) + 1.0" in lines[3]
    assert lines[-1].endswith("1 runs, 3 assignments, 1 differences")


def test_verify_tells_optimized_code_from_single_assignments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    faulty(ocannl_passes=lambda: [NamedPass("spoil", spoil)])
    assert main(["verify", "--backends", "faulty,interp", "program.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == snapshot(
        "step, run 1: add differs by 3.47, although every assignment alone agrees: the optimized code differs"
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with an entry of each kind, and a file of somebody else."""
    folder = tmp_path / "cache" / "ocannl"
    open_private(folder, create=True)
    routine, schedule = "ab" * 32, "cd" * 16 + ".json"
    for kind, name, content in (
        ("routines", routine, add_digest(routine, b"code")),
        ("kernels", routine, add_digest(routine, b"loops")),
        (f"schedules/{'12' * 8}", schedule, add_json_digest(schedule, {"n": 1})),
        (f"cpu_c/{'34' * 16}/objects", "ef" * 16 + ".c", b"int main;"),
        ("photos", "holiday.jpg", b"!"),
        ("clone/.git/objects/ab", "cd" * 19, b"!"),
        ("empty", "", b""),
    ):
        (folder / kind).mkdir(parents=True)
        if name:
            (folder / kind / name).write_bytes(content)
    return folder


def test_cache_info_and_list_show_the_files(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:-1]] == [
        "cpu_c",
        "kernels",
        "routines",
        "schedules",
    ]
    assert lines[-1].startswith("4 files, ")
    assert main(["cache", "info", "routine"]) == 0
    assert "\nparts of the cache: " in capsys.readouterr().out
    assert main(["cache", "list", "routines"]) == 0
    assert "routines/abab" in capsys.readouterr().out


def test_cache_verify_finds_damaged_files(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out == "3 right, 0 damaged, 1 without a digest\n"
    (path,) = (cache / "routines").iterdir()
    path.write_bytes(path.read_bytes() + b"?")
    assert main(["cache", "verify"]) == 1
    assert f"damaged: {path}" in capsys.readouterr().out.splitlines()


def test_cache_clear_removes_cached_files_only(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "clear", "routines"]) == 0
    assert not (cache / "routines").exists()
    assert (cache / "schedules").exists()
    assert main(["cache", "clear"]) == 0
    left = {path.name for path in cache.rglob("*") if not path.is_dir()}
    assert left == {"CACHEDIR.TAG", "holiday.jpg", "cd" * 19}
    assert {each.name for each in cache.iterdir() if each.is_dir()} == {"photos", "clone", "empty"}
    assert "removed: 3 files" in capsys.readouterr().out


def test_cache_clear_removes_nothing_where_files_of_others_were(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache / "CACHEDIR.TAG").unlink()
    before = {*cache.rglob("*")}
    assert main(["cache", "clear"]) == 1
    assert "had other files when it became a cache" in capsys.readouterr().out
    assert {*cache.rglob("*")} == before


def test_a_cache_that_does_not_exist_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out.startswith("0 files, 0 bytes in ")


UNSTEADY = """
import sys
from pathlib import Path

import ocannl_core as oc

count = Path("count")
number = len(count.read_text()) if count.exists() else 0
count.write_text("x" * (number + 1))
x = oc.placeholder("x", output=[1])
ctx = oc.Context()
step = ctx.compile(oc.train.forward(oc.exp(x)), name="step")
for value in [0.0, number * float(sys.argv[1])]:
    ctx[x] = [value]
    step()
"""


def test_repeat_finds_that_a_program_agrees_with_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["repeat", "--times", "2", "program.py", "--", "3"]) == 3
    text = capfd.readouterr().out
    assert text.count("arguments 3") == 2
    assert "2 of 2 runs agree in " in text


def test_repeat_names_the_first_tensor_whose_bits_differ(capfd: pytest.CaptureFixture[str]) -> None:
    Path("unsteady.py").write_text(UNSTEADY)
    assert main(["repeat", "--times", "2", "unsteady.py", "--", "0"]) == 0
    Path("count").unlink()
    assert main(["repeat", "--times", "3", "unsteady.py", "--", "1"]) == 1
    text = capfd.readouterr().out
    for run in (2, 3):
        assert (
            f"run {run} of unsteady.py differs from the first: "
            "step, run 2 of all routines, reads other bits from x\n"
        ) in text
    assert "1 of 3 runs agree" in text


def test_repeat_names_a_tensor_that_is_computed_otherwise(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("faulty.py").write_text(
        UNSTEADY.replace("ctx[x] = [value]", "ctx[x] = [0.0]").replace(
            "oc.exp(x)", "oc.exp(x) + float(number)"
        )
    )
    assert main(["repeat", "--times", "2", "faulty.py", "--", "1"]) == 1
    assert "step, run 1 of all routines, computes other bits in add" in capfd.readouterr().out


def test_repeat_reports_a_program_that_ends_its_process(capfd: pytest.CaptureFixture[str]) -> None:
    Path("gone.py").write_text("import os\nos._exit(0)\n")
    assert main(["repeat", "gone.py"]) == 1
    assert "the process of gone.py ended without a result" in capfd.readouterr().err
