"""The commands for authors of backends: `ocannl new-backend` and `ocannl check-backend`."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend import manager, registry
from ocannl_core.backend.protocols import Event, MemoryStatistics, TargetReport
from ocannl_core.backend.registry import PluginEntry
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.cli import main
from ocannl_core.ir.loops.traverse import rewrite
from ocannl_core.ir.target import Capability, Target
from ocannl_core.testing.corpora.reference_cases import ReferenceCase
from tests.support.limited_backend import all_but

ocannl_interp = pytest.importorskip("ocannl_interp")
interpreter = pytest.importorskip("ocannl_interp.routine")


pytestmark = pytest.mark.usefixtures("fresh_plugins")


def register(**changes: Any) -> None:
    """Register the interpreter as a backend `mine` whose device or hooks differ."""

    @hookimpl
    def ocannl_targets() -> TargetReport:
        hooks = ("ocannl_", "OCANNL_", "__name__")
        device = {key: value for key, value in changes.items() if not key.startswith(hooks)}
        return TargetReport((Target("mine", **device),))

    module = ModuleType("mine")
    vars(module).update(vars(ocannl_interp))
    vars(module)["ocannl_targets"] = ocannl_targets
    for name, value in changes.items():
        if name.startswith("ocannl_"):
            setattr(module, name, hookimpl(value))
        elif name.startswith("OCANNL_"):
            setattr(module, name, value)
    module.__name__ = changes.get("__name__", "mine")
    manager.register("mine", module)


def check(
    capsys: pytest.CaptureFixture[str], expression: str, *options: str
) -> tuple[int, list[list[str]], str]:
    """Return the exit code of a part of the suite, the rows of the table, and the output."""
    code = main(["check-backend", "mine", "-k", expression, *options])
    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("  ") if cell] for line in text.splitlines()]
    return code, rows, text


def test_declared_capabilities_that_work_pass(capsys: pytest.CaptureFixture[str]) -> None:
    register(capabilities=(Capability.SCATTERS, Capability.MERGE_BUFFERS))
    code, rows, text = check(capsys, "scattered_cells or merge or new_memory")
    assert code == 0
    assert ["scatters", "yes", "works", "1 passed"] in rows
    assert ["merge buffers", "yes", "works", "1 passed"] in rows
    assert ["float32", "yes", "works", "1 passed"] in rows
    assert text.endswith("everything that is declared works\n")


def test_the_suite_runs_without_the_conftest_of_the_project(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of this repository would give the process another home."""
    monkeypatch.setenv("HOME", "/nowhere")
    register()
    assert check(capsys, "new_memory")[0] == 0
    assert os.environ["HOME"] == "/nowhere"


def test_a_declared_capability_that_is_missing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def ocannl_generate(kernels: Any) -> Any:
        raise_without_barriers(kernels)
        return interpreter.LoopSource(kernels.plan())

    register(capabilities=(Capability.BARRIERS,), ocannl_generate=ocannl_generate)
    code, rows, text = check(capsys, "barriers")
    assert code == 1
    assert ["barriers", "yes", "fails", "7 failed"] in rows
    assert "FAILED suite/test_iterations_of_a_group_meet_at_barriers/" in text
    manager.refresh()
    register(ocannl_generate=ocannl_generate)
    code, rows, _ = check(capsys, "barriers")
    assert code == 0
    assert ["barriers", "no", "refused", "7 refused"] in rows


def raise_without_barriers(kernels: Any) -> None:
    from ocannl_core.base.errors import CodegenError
    from ocannl_core.ir.loops.nodes import Barrier, SubgroupReduce
    from ocannl_core.ir.loops.traverse import statements

    for step in kernels.plan().kernels:
        if any(isinstance(each, Barrier | SubgroupReduce) for each in statements(step.body)):
            raise CodegenError("This backend has no barriers.")


def test_a_capability_that_works_undeclared_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    register()
    code, rows, text = check(capsys, "scattered_cells")
    assert code == 0
    assert ["scatters", "no", "works", "1 passed, undeclared"] in rows
    assert "works and is not declared by the Target: Capability.SCATTERS\n" in text


def test_formats_that_are_not_declared_may_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    from ocannl_core.ir.numbers.dtypes import float32, float64, int32

    def ocannl_allocate(info: Any, target: Any) -> Any:
        if info.dtype is float64:
            raise ValueError("no float64 here")
        return ocannl_interp.ocannl_allocate(info, target)

    register(formats=(float32, int32), ocannl_allocate=ocannl_allocate)
    code, rows, _ = check(capsys, "constants_keep or conversions or fills_of_every or index_values")
    assert code == 0
    assert ["float64", "no", "refused", "2 refused"] in rows
    assert ["float32", "yes", "works", "2 passed"] in rows


def test_an_undeclared_format_that_is_only_copied_works_in_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ocannl_core.ir.numbers.dtypes import float32, float64, int32

    def ocannl_generate(kernels: Any) -> Any:
        if any(info.dtype is float64 for info in kernels.plan().nodes.values()):
            raise ValueError("no arithmetic in float64")
        return interpreter.LoopSource(kernels.plan())

    register(formats=(float32, int32), ocannl_generate=ocannl_generate)
    code, rows, text = check(capsys, "(copying_to or constants) and float or four_bits")
    assert code == 0
    assert ["float64", "no", "refused in part", "1 refused, 1 passed, undeclared"] in rows
    assert ["float16", "no", "works", "2 passed, undeclared"] in rows
    assert ["int4", "no", "not tried", "1 skipped"] in rows
    assert "works in part and is not declared by the Target: float64 (1 of 2 tests)\n" in text
    found = next(line for line in text.splitlines() if line.startswith("works and is not"))
    assert "float16" in found
    assert "float64" not in found


def test_tracebacks_and_refusals_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    def ocannl_generate(kernels: Any) -> Any:
        raise_without_barriers(kernels)
        return interpreter.LoopSource(kernels.plan())

    def allocate_nothing(info: Any, target: Any) -> Any:
        raise ValueError(f"no memory for {info.dtype}")

    register(ocannl_generate=ocannl_generate)
    assert "refused suite" not in check(capsys, "barriers")[2]
    text = check(capsys, "barriers", "--verbose")[2]
    assert "refused suite/test_iterations_of_a_group_meet_at_barriers/" in text
    assert "This backend has no barriers." in text
    manager.refresh()
    register(ocannl_allocate=allocate_nothing)
    name = "test_nodes_without_axes_or_without_cells_can_be_stored"
    assert "allocate_nothing" not in check(capsys, "without_axes")[2]
    text = check(capsys, "without_axes", "-v")[2]
    assert f"FAILED suite/{name}/(), " in text
    assert "in allocate_nothing" in text or 'raise ValueError(f"no memory for' in text


def test_a_program_with_a_format_that_the_device_lacks_is_refused() -> None:
    register(formats=(oc.float32,))
    with oc.Session():
        wide = oc.tensor([1.0, 2.0], dtype=oc.float64, label="wide")
        code, ctx = oc.train.forward(wide * 2.0), oc.Context("mine")
        with pytest.raises(oc.CodegenError) as caught:
            ctx.compile(code, name="step")
    lack, nodes, kernel = caught.value.found.splitlines()
    assert lack == "the number format float64, which mine:0 lacks"
    assert nodes == "for wide, mul"
    assert kernel == "in: mul[o] = wide[o] * 2.0 (writes mul)"
    line, compiling = caught.value.where.splitlines()
    assert line.startswith("mul, at test_backend_commands.py:")
    assert compiling == "compiling step for mine:0 (registered in this process)"
    assert caught.value.fix.startswith("use a number format of this device: float32\n")


def test_results_that_arrive_late_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """Cells are stale if a copy does not wait for the work that was submitted before."""
    pending: list[threading.Thread] = []

    class Late:
        def __init__(self, source: Any, target: Any) -> None:
            self.inner = ocannl_interp.ocannl_compile(source, target)

        def link(self, *buffers: Any) -> Callable[[Sequence[int]], None]:
            launch = self.inner.link(*buffers)

            def start(values: Sequence[int]) -> None:
                before = list(pending)

                def run() -> None:
                    for each in before:
                        each.join()
                    time.sleep(0.05)
                    launch(values)

                pending.append(threading.Thread(target=run))
                pending[-1].start()

            return start

    def ocannl_synchronize() -> bool:
        while pending:
            pending.pop(0).join()
        return True

    def careful(destination: Any, source: Any) -> Event | None:
        ocannl_synchronize()
        found: Event | None = ocannl_interp.ocannl_transfer(destination, source)
        return found

    hooks = {"ocannl_compile": Late, "ocannl_synchronize": ocannl_synchronize}
    late = {"ocannl_compile": lambda source, target: Late(source, target)}
    register(**{**hooks, **late})
    code, _, text = check(capsys, "right_after_a_launch")
    ocannl_synchronize()
    assert code == 1
    assert "FAILED suite/test_results_can_be_copied_right_after_a_launch" in text
    manager.refresh()
    register(**{**hooks, **late}, ocannl_transfer=careful)
    assert check(capsys, "right_after_a_launch")[0] == 0


def test_a_launcher_without_a_guard_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The backend of `ocannl new-backend` without `make_exclusive`."""
    from ocannl_core.cli.new_backend import backend_text

    module = ModuleType("mine")
    sys.modules["mine"] = module  # for its dataclass
    text = backend_text("mine")
    unguarded = text.replace("return make_exclusive(launch, plan.name)", "return launch")
    assert unguarded != text
    exec(compile(unguarded, "<mine>", "exec"), vars(module))
    manager.register("mine", module)
    code, _, text = check(capsys, "a_call_during")
    assert code == 1
    assert "FAILED suite/test_a_call_during_another_one_is_refused: " in text
    assert "FAILED suite/test_a_call_during_the_preparation_of_another_leaves_its_indices" in text
    assert "backend_api.make_exclusive" in text


NUMBERED = """
import itertools, sys
from types import ModuleType
import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend_api import Target, TargetReport, hookimpl
from ocannl_interp.routine import LoopSource

numbers = itertools.count()

class Source(LoopSource):
    @property
    def text(self):
        return f"text {next(numbers)}"

module = ModuleType("mine")
vars(module).update(vars(ocannl_interp))
module.ocannl_targets = hookimpl(lambda: TargetReport((Target("mine"),)))
module.ocannl_generate = hookimpl(lambda kernels: Source(kernels.plan()))
manager.register("mine", module)
"""


DEADLOCKED = """
import sys
import threading
from types import ModuleType
import ocannl_interp
from ocannl_core.backend import manager, registry
from ocannl_core.backend.registry import PluginEntry
from ocannl_core.backend_api import Target, TargetReport, hookimpl
from ocannl_core.cli import main
from ocannl_core.testing import ReferenceCase

def wait(*given):
    print("waiting", flush=True)
    lock = threading.Lock()
    with lock:
        lock.acquire()

def ocannl_allocate(info, target):
    return wait() if str(info.dtype) == "int16" else ocannl_interp.ocannl_allocate(info, target)

def cases():
    yield ReferenceCase("one", lambda device: [1], [1])
    yield ReferenceCase("two", wait, [1])

module = ModuleType("mine")
vars(module).update(vars(ocannl_interp))
module.ocannl_targets = hookimpl(lambda: TargetReport((Target("mine"),)))
module.ocannl_allocate = hookimpl(ocannl_allocate)
manager.register("mine", module)
entry = PluginEntry("theirs", "theirs.corpus:cases", "ocannl-theirs", "2.0")
registry.corpora = lambda: {"theirs": (entry, lambda: cases)}
sys.exit(main(["check-backend", "mine", "--timeout", "2", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    ("options", "test"),
    [
        (("-k", "new_memory"), "suite/test_new_memory_is_all_zero/int16"),
        (("--corpus", "theirs"), "theirs/two"),
    ],
    ids=["suite", "corpus"],
)
def test_a_deadlock_ends_the_check_and_names_the_test(
    options: tuple[str, ...], test: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    (tmp_path / "deadlocked.py").write_text(DEADLOCKED)
    command = [sys.executable, "deadlocked.py", *options, "--json", str(file)]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 1
    place = "(deadlocked.py:16); the tests after it did not run"
    end = f"FAILED {test}: not finished after 2 s {place}\nfailed: 1\n"
    assert ran.stdout.endswith(end), ran.stdout + ran.stderr
    report = json.loads(file.read_text("utf-8"))
    assert [each["name"] for each in report["cases"] if each["outcome"] == "failed"] == [test]
    assert report["counts"]["passed"] >= 1
    assert not report["stale"]


def test_the_time_of_a_case_ends_with_its_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cases() -> Iterator[ReferenceCase]:
        yield ReferenceCase("one", lambda device: [1], [1])
        raise KeyError("no second case")

    register()
    add_corpus(monkeypatch, lambda: cases)
    with pytest.raises(KeyError):
        main(["check-backend", "mine", "--corpus", "theirs", "--timeout", "60"])
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(each.finished.is_set() for each in timers)


def test_failed_assertions_show_values(tmp_path: Path) -> None:
    command = NUMBERED + (
        "from ocannl_core.cli import main\n"
        'sys.exit(main(["check-backend", "mine", "-k", "twice_gives"]))\n'
    )
    own_test = NUMBERED + (
        "import pytest\n"
        "from ocannl_core.testing.conformance import BackendConformance\n"
        "class TestMine(BackendConformance):\n"
        '    oracle_name = "interp"\n'
        "    @pytest.fixture\n"
        "    def target(self):\n"
        '        return "mine"\n'
    )
    (tmp_path / "test_mine.py").write_text(own_test)
    pytest_command = ["-m", "pytest", "-q", "-k", "twice_gives", "-p", "no:cacheprovider"]
    for given in (["-c", command], [*pytest_command, "test_mine.py"]):
        ran = subprocess.run(
            [sys.executable, *given], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1, ran.stderr
        assert "assert 'text 0' == 'text 1'" in ran.stdout


def test_equal_errors_have_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def allocate_nothing(info: Any, target: Any) -> Any:
        raise ValueError("no memory today")

    register(ocannl_allocate=allocate_nothing)
    _, _, text = check(capsys, "new_memory")
    (line,) = (each for each in text.splitlines() if each.startswith("FAILED"))
    name = "suite/test_new_memory_is_all_zero"
    assert line.startswith(f"FAILED {name}/bool, {name}/uint8, {name}/int8 and 15 more: ")


def test_a_report_has_versions_parts_and_cases(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from ocannl_core.ir.numbers.dtypes import float32

    register(formats=(float32,), capabilities=(Capability.SCATTERS,))
    files = ("--json", str(tmp_path / "r.json"), "--table", str(tmp_path / "r.md"))
    code, _, _ = check(capsys, "scattered_cells or new_memory", *files)
    assert code == 0
    report = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert report["schema"] == 1
    assert report["passed"] is True
    assert set(report["versions"]) == {
        "ocannl-core", "interface", "plugin", "python", "numpy", "platform"
    }  # fmt: skip
    assert report["target"]["name"] == "mine:0"
    assert report["target"]["formats"] == ["float32"]
    assert report["corpora"] == ["suite"]
    parts = {each["part"]: each for each in report["parts"]}
    assert parts["float32"] == {
        "part": "float32",
        "declared": "yes",
        "found": "works",
        "counts": {"passed": 1},
    }
    case = {"name": "suite/test_new_memory_is_all_zero/float32", "outcome": "passed"}
    assert {**case, "part": "float32"} in report["cases"]
    assert sum(report["counts"].values()) == len(report["cases"])
    table = (tmp_path / "r.md").read_text("utf-8").splitlines()
    assert table[0].startswith("**mine:0** (registered in this process, ocannl-core ")
    assert table[0].endswith(", suite): conforms")
    assert "| scatters | yes | works | 1 passed |" in table


def test_a_report_needs_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    register()
    file = tmp_path / "missing" / "r.json"
    assert main(["check-backend", "mine", "-k", "new_memory", "--json", str(file)]) == 1
    assert "written into a directory that exists" in capsys.readouterr().err


def test_exclusions_and_stale_ones_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ocannl_core.ir.numbers.dtypes import int8

    package = tmp_path / "mine_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    entries = (
        '[[exclusion]]\ncases = "suite/*/int8"\nreason = "no bytes"\n'
        '[[exclusion]]\ncases = "suite/*/int16"\nreason = "no short integers"\n'
    )
    (package / "conformance.toml").write_text(entries)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("mine_package")

    def ocannl_allocate(info: Any, target: Any) -> Any:
        if info.dtype is int8:
            raise ValueError("no bytes here")
        return ocannl_interp.ocannl_allocate(info, target)

    register(__name__="mine_package", ocannl_allocate=ocannl_allocate)
    code, rows, text = check(capsys, "new_memory")
    assert code == 1
    assert ["int8", "yes", "excluded", "1 excluded"] in rows
    assert "excluded suite/test_new_memory_is_all_zero/int8: no bytes\n" in text
    assert "STALE exclusion suite/*/int16: no short integers: all of its cases pass\n" in text
    assert text.endswith("failed: 0, stale: 1\n")


def test_a_corpus_runs_in_place_of_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    from ocannl_core.ir.numbers.dtypes import bool_

    register(formats=(bool_,))
    code, rows, text = check(capsys, "primitives/a", "--corpus", "primitives")
    assert code == 0
    assert ["bool", "yes", "works", "3 passed"] in rows  # abs, add, and
    assert "test_" not in text


def test_a_corpus_leaves_out_primitives_that_the_device_lacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ocannl_core.ir.numbers.dtypes import bool_
    from ocannl_core.ir.numbers.primitives import UnaryOp

    register(formats=(bool_,), primitives=all_but(UnaryOp.ABS))
    code, rows, text = check(capsys, "primitives/a", "--corpus", "primitives")
    assert code == 0
    assert ["bool", "yes", "works", "2 passed, 1 skipped"] in rows
    assert "skipped primitives/abs/bool: mine:0 does not declare abs\n" in text


def test_checks_of_positions_run_in_the_formats_of_the_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ocannl_core.ir.numbers.dtypes import int32, int64

    register(capabilities=(Capability.POSITION_CHECKS,), formats=(int32, int64))
    code, rows, _ = check(capsys, "in_bounds_pass")
    assert code == 0
    assert ["position checks", "yes", "works", "1 passed"] in rows


def test_a_device_without_checks_of_positions_trains(capsys: pytest.CaptureFixture[str]) -> None:
    register(capabilities=(Capability.REPETITIONS,))
    code, rows, _ = check(capsys, "perceptron")
    assert code == 0
    assert ["the rest of the language", "always", "works", "1 passed"] in rows


def test_training_is_skipped_on_a_device_without_its_primitives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from ocannl_core.ir.numbers.primitives import UnaryOp

    register(primitives=all_but(UnaryOp.EXP))
    code, _, text = check(capsys, "perceptron")
    assert code == 0
    assert "mine:0 does not support the network: the primitive exp, which mine:0 lacks\n" in text


def test_a_wrong_result_has_the_operands_of_the_cell_that_differs_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cells in front of it differ, too, within the tolerance."""
    from ocannl_core.ir.loops import nodes as ir
    from ocannl_core.ir.numbers.dtypes import float32
    from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
    from ocannl_core.passes.loops.pipeline import NamedPass

    def inexact(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Unary(UnaryOp.EXP, arg, dtype):
                down = ir.Unary(UnaryOp.EXP, ir.Unary(UnaryOp.NEG, arg, dtype), dtype)
                is_large = ir.Binary(BinaryOp.LT, ir.Const(2.5, dtype), arg, dtype)
                zero, close = ir.Const(0.0, dtype), ir.Unary(UnaryOp.RECIP, down, dtype)
                return ir.Ternary(TernaryOp.WHERE, is_large, zero, close, dtype)
        return expr

    def ocannl_passes(target: Any) -> Any:
        def run(program: ir.LoopProgram) -> ir.LoopProgram:
            return replace(program, body=rewrite(program.body, on_expr=inexact))

        return [NamedPass("inexact", run)]

    register(formats=(float32,), ocannl_passes=ocannl_passes)
    code, _, text = check(capsys, "meaning and float32", "--verbose")
    assert code == 1
    found = re.search(r"operands of the first one: a = ([^,]+),", text)
    assert found is not None
    assert float(found[1]) > 2.5


def test_authors_get_the_reason_for_sources_that_are_not_saved(
    capsys: pytest.CaptureFixture[str],
) -> None:
    register(OCANNL_SOURCE=int)
    _, _, text = check(capsys, "new_memory")
    assert (
        "  OCANNL_SOURCE: int is no dataclass, so that its sources are not saved on disk\n" in text
    )


def test_statistics_of_a_small_memory_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    def ocannl_allocate(info: Any, target: Any) -> Any:
        if info.nbytes > 4096:
            raise MemoryError
        return ocannl_interp.ocannl_allocate(info, target)

    for in_use, code in ((4096, 0), (0, 1)):

        def ocannl_memory_statistics(in_use: int = in_use) -> MemoryStatistics:
            return MemoryStatistics(4096, 4096, in_use, 4096)

        register(ocannl_allocate=ocannl_allocate, ocannl_memory_statistics=ocannl_memory_statistics)
        assert check(capsys, "statistics")[0] == code
        manager.refresh()


def add_corpus(monkeypatch: pytest.MonkeyPatch, load: Callable[[], object]) -> None:
    entry = PluginEntry("theirs", "theirs.corpus:cases", "ocannl-theirs", "2.0")
    monkeypatch.setattr(registry, "corpora", lambda: {"theirs": (entry, load)})


def test_a_plugin_adds_a_corpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = np.float32([1, 2])

    def cases() -> Iterator[ReferenceCase]:
        float32 = frozenset({"float32"})
        yield ReferenceCase("exact", lambda device: [expected], [expected], float32)
        yield ReferenceCase("wrong", lambda device: [expected + 1], [expected], float32)

    register()
    add_corpus(monkeypatch, lambda: cases)
    code, rows, text = check(capsys, "theirs/", "--corpus", "theirs")
    assert code == 1
    (row,) = [each for each in rows if each[:1] == ["float32"]]
    assert row[1:] == ["yes", "fails", "1 passed, 1 failed"]
    assert "theirs/wrong" in text
    code, rows, _ = check(capsys, "exact", "--corpus", "theirs")
    assert code == 0


def test_a_corpus_that_is_unknown_or_does_not_load_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register()
    add_corpus(monkeypatch, lambda: 3)
    assert main(["check-backend", "mine", "--corpus", "nobodys"]) == 1
    text = capsys.readouterr().err
    assert "one of suite, primitives, opinfo, theirs" in text
    assert "found  --corpus nobodys" in text
    assert main(["check-backend", "mine", "--corpus", "theirs"]) == 1
    text = capsys.readouterr().err
    assert "TypeError: 3 is no function" in text
    assert "repair or uninstall ocannl-theirs" in text


def test_a_suite_without_tests_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    register()
    assert main(["check-backend", "mine", "-k", "no_such_test"]) == 1
    assert "-k no_such_test" in capsys.readouterr().err


def test_new_backend_prints_the_commands_that_install_and_check_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "mine"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  pip install --editable 'ocannl-mine[test]'",  # with pytest, which the suite needs
        "  ocannl check-backend mine",
    ]


@pytest.mark.parametrize("name", ["chip", "my_chip"])  # in front of and behind ocannl_core
@pytest.mark.parametrize("language", ["c", "python"])
def test_a_new_backend_is_formatted(language: str, name: str, tmp_path: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], check=False, capture_output=True).returncode:
        pytest.skip("ruff is not installed")
    folder = tmp_path / "new"
    assert main(["new-backend", name, "--into", str(folder), "--language", language]) == 0
    for command in (["format", "--check"], ["check"]):
        command = [*ruff, *command, "--no-cache", "."]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_check_has_no_warnings_of_its_own() -> None:
    command = [sys.executable, "-m", "ocannl_core.cli", "check-backend", "interp", "-k", "new_mem"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize("name", ["my_chip", "compiler", "language"])
def test_names_in_a_new_backend_follow_its_own(
    name: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    assert main(["new-backend", name, "--into", str(folder), "--language", language]) == 0
    texts = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert not any(re.search(r"@[A-Z]+@|Tiny|\bCPU\b", text) for text in texts.values())
    workflow = texts[str(Path(".github", "workflows", "check.yml"))]
    assert f"run: ocannl check-backend {name} --corpus suite" in workflow
    monkeypatch.syspath_prepend(str(folder / "src"))
    module = importlib.import_module(f"ocannl_{name}")
    (device,) = (each for each in vars(module).values() if isinstance(each, Target))
    assert device.backend == name
    assert module.ocannl_targets().targets in ((device,), ())


@pytest.mark.slow
def test_a_new_backend_installs_and_works_before_the_first_edit(tmp_path: Path) -> None:
    assert main(["new-backend", "my_chip", "--into", str(tmp_path / "new")]) == 0
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*command, str(tmp_path / "site"), str(tmp_path / "new")], check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("OCANNL_")}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), env.get("PYTHONPATH", "")])

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            env=env, cwd=tmp_path / "new", capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "my_chip" in run("ocannl_core.cli", "backends")
    few = "hand_made or several_memories or external or position or launch or static"
    checked = run("ocannl_core.cli", "check-backend", "my_chip", "-k", few)
    assert checked.endswith("everything that is declared works\n")
    assert "not declared" not in checked
    tested = run("pytest", "-q", "-p", "no:cacheprovider", "-k", "training or static")
    assert "3 passed" in tested


def test_a_new_printer_works_before_the_first_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "new")
    assert main(["new-backend", "my_lang", "--language", "python", "--into", folder]) == 0
    monkeypatch.syspath_prepend(str(tmp_path / "new" / "src"))
    manager.register("my_lang", importlib.import_module("ocannl_my_lang"))
    few = "hand_made or external or position or merge or static or bits or barriers or bfloat16"
    assert main(["check-backend", "my_lang", "-k", f"({few}) and not random"]) == 0
    checked = capsys.readouterr().out
    assert checked.endswith("everything that is declared works\n")
    assert "not declared" not in checked
    assert re.search(r"barriers +no +refused +\d+ refused\n", checked)
    with oc.Session():
        x = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
        y = oc.relu(x - 2.0)
        ctx = oc.Context("my_lang")
        step = ctx.compile(oc.train.forward(y))
        step()
        assert ctx[y].tolist() == [[0.0, 0.0], [1.0, 2.0]]
        assert step.source.startswith("def kernel_0(")


@pytest.mark.parametrize(
    "name", ["MyChip", "my-chip", "1st", "class", "", "../up", "interp", "chip_", "core"]
)
def test_a_new_backend_needs_an_identifier_of_its_own(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", name, "--into", str(tmp_path / "new")]) == 1
    assert "The name of a backend is" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-backend", "my_chip", "--into", str(tmp_path)]) == 1
    assert "a directory that does not exist yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
