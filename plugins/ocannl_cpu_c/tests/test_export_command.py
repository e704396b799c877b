"""`ocannl export`: the program's function, and the sizes that are printed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ocannl_core.cli import main
from ocannl_core.runtime.export.object_sizes import sizes_of

PROGRAM = """
import sys
import ocannl_core as oc

def exported():
    x = oc.placeholder("x", output=[int(sys.argv[1])], dtype=sys.argv[2])
    ctx = oc.Context("cpu_c")
    return {"predict": ctx.compile(oc.train.forward(oc.tanh(x)), name="predict")}
"""


def test_the_command_prints_sizes_of_files_and_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    options = ["--target", "cortex-m4", "--threads"]
    for command in (
        ["train.py:exported", "model.c", *options, "--", "48", "float32"],
        [*options, "train.py:exported", "other.c", "--", "48", "float64"],
    ):
        assert main(["export", *command]) == 0
        printed = capsys.readouterr().out
        sizes = {
            line.split(" bytes  ")[1]: int(line.split()[0].replace(",", ""))
            for line in printed.splitlines()
        }
        (file,) = (each for each in command if each.endswith(".c"))
        assert sizes[file] == Path(file).stat().st_size
        assert "48" in Path(file).with_suffix(".h").read_text()
        assert "_threads(" in Path(file).read_text()
        if find_spec("ziglang") is not None:
            assert 0 < sizes["of code for cortex-m4, optimized for size"] < 2000
            assert any(name.startswith("of constants") for name in sizes)


def test_the_function_of_a_program_names_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    returned = """
    predict = ctx.compile(oc.train.forward(y), name="predict")
    return {"routines": %s, "inputs": {"image": x}, "outputs": {"scores": y}}
"""
    beginning = PROGRAM.split("    return")[0] + "    y = oc.tanh(x)"
    for routines in ("predict", '{"predict": predict}'):
        Path("train.py").write_text(beginning + returned % routines)
        assert main(["export", "train.py:exported", "model.c", "--", "4", "float32"]) == 0
        header = Path("model.h").read_text()
        assert "model_predict(void *state, const float *image, float *scores)" in header
    Path("train.py").write_text(beginning + returned % "{}")
    assert main(["export", "train.py:exported", "model.c", "--", "4", "float32"]) == 1


def test_a_program_or_function_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def exported():\n    pass\n")
    Path("other.py").write_text("")
    for program, found in {
        "trian.py:exported": "trian.py, which is no file",
        "train.py:exproted": "no function exproted in train.py, but exported",
        "other.py:exported": "no function exported in other.py\n",
        "train.py": "train.py\n",
    }.items():
        assert main(["export", program, "model.c"]) == 1
        assert f"found  {found}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["-m64"], ["-m32"]])
def test_sizes_of_objects_are_counted_by_section(flags: list[str], tmp_path: Path) -> None:
    source, made = tmp_path / "sections.c", tmp_path / "sections.o"
    source.write_text(
        "const char constants[1000] = {1}; char given[200] = {1}, zeros[3000];\n"
        "int run(int x) { return x + 1; }\n"
    )
    command = ["gcc", *flags, "-O1", "-fno-asynchronous-unwind-tables", "-c"]
    if (
        shutil.which("gcc") is None
        or subprocess.run(
            [*command, "-o", str(made), str(source)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no GCC for this processor")
    sizes = sizes_of(made.read_bytes())
    assert 0 < sizes.code < 64
    assert 1000 <= sizes.constants < 1100
    assert 3200 <= sizes.variables < 3300


def test_messages_leave_out_the_script_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "ocannl").write_text("from ocannl_core.cli import main\nraise SystemExit(main())\n")
    command = [sys.executable, "ocannl", "export", "train.py:exported", "model.txt", "--", "4"]
    done = subprocess.run(
        [*command, "float32"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("UsageError: An export writes at least one routine")
    assert "ocannl:" not in done.stderr
