"""Start from disk: later processes read the generated code of an unchanged program."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.compile import driver, lowered_code, saved_code
from ocannl_core.ir.loops.nodes import CheckPositions
from ocannl_core.passes.loops.simplify import simplify
from tests.support.sample_ops import Square


@pytest.fixture(autouse=True)
def directory(tmp_path, saved_routines):
    with settings.overrides(cache_dir=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def generations(monkeypatch):
    """Count how often code was generated, by running the real stages."""
    runs: list[str] = []
    real = driver.generate

    def counted(request, *arguments):
        runs.append(request.lowered.name)
        return real(request, *arguments)

    monkeypatch.setattr(driver, "generate", counted)
    return runs


def step(width: int = 5, title: str = "w", backend: str = "cpu_c", *, is_taken: bool = False):
    """Train once; returns the routine, and the weights afterwards.

    Args:
        is_taken: True to read a row at a position that a tensor holds.
    """
    with oc.Session(seed=3):
        x = oc.tensor(
            np.linspace(-1, 1, 4 * width, dtype=np.float32).reshape(4, width), batch_axes=1
        )
        index = oc.static_index("i", range=4)
        w = oc.param(title, output=[3], init=oc.uniform())
        row = oc.take(x, oc.tensor([1], dtype="int32"), axis=0)[0] if is_taken else x[index]
        loss = oc.einsum("... => 0", oc.relu(w @ row) ** 2.0)
        context = oc.Context(backend)
        update = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
        routine = context.compile(update, bindings=[index])
        context.init_params(loss)
        for number in (2, 0):
            routine(i=number)
        return routine, context[w]


def entries(directory: Path) -> list[Path]:
    return sorted((directory / "routines").iterdir())


def test_an_equal_program_is_not_generated_again(generations):
    first, before = step()
    count = len(generations)
    second, after = step()
    assert len(generations) == count == 2  # the step and the initial values
    np.testing.assert_array_equal(before, after)
    assert first.source == second.source
    assert first.loop_ir == second.loop_ir
    assert str(first.memory_plan) == str(second.memory_plan)
    assert [str(place) for place in first.placements.values()] == [
        str(place) for place in second.placements.values()
    ]


def test_an_equal_program_is_not_lowered_again(monkeypatch):
    step(is_taken=True)
    monkeypatch.setattr(lowered_code, "lowered", None)
    routine, _ = step(is_taken=True)
    monkeypatch.undo()
    assert "w" in routine.loop_ir
    with settings.overrides(check_positions=False):  # the settings of the compilation hold
        lowered = routine._build.request.lowered
    assert any(isinstance(each, CheckPositions) for each in lowered.body.stmts)


def test_gradients_that_are_written_in_part_leave_the_program_equal(generations):
    def convolve() -> None:
        with oc.Session():
            x = oc.tensor(np.ones((1, 32, 1), np.float32), batch_axes=1)
            for number in range(5):  # the gradients of strided windows have gaps
                x = oc.nn.conv(
                    x, axes=1, kernel=1, channels=1, stride=2, bias=False, label=f"conv{number}"
                )
            context = oc.Context("cpu_c")
            context.init_params(x)
            context.compile(oc.train.grad_update(oc.sum(x)))

    convolve()
    count = len(generations)
    convolve()
    assert len(generations) == count


def test_another_program_another_name_and_other_settings_are_generated(generations):
    step()
    for change in ({"width": 6}, {"title": "v"}):
        count = len(generations)
        step(**change)
        assert len(generations) > count
    count = len(generations)
    with settings.overrides(schedule="none"):
        step()
    assert len(generations) > count


def test_entries_of_other_code_are_not_used(generations, monkeypatch):
    step()
    count = len(generations)
    monkeypatch.setattr(saved_code, "_code_digest", lambda backend: "another version")
    step()
    assert len(generations) == 2 * count


def test_nothing_is_kept_by_a_process_whose_source_code_was_edited(directory, monkeypatch):
    saved_code._digest_of.cache_clear()
    monkeypatch.setattr(
        saved_code, "_LOADED", Path(simplify.__code__.co_filename).stat().st_mtime - 1
    )
    try:
        step()
    finally:
        saved_code._digest_of.cache_clear()
    assert not (directory / "routines").exists()


def test_every_file_of_the_core_is_source_code():
    files = {path for path in saved_code._CORE.rglob("*") if path.is_file()}
    code = {Path(path) for _, path in saved_code._source_files(str(saved_code._CORE), "")}
    others = {path for path in files - code if "__pycache__" not in path.parts}
    assert {path.name for path in others} <= {"py.typed"}


@pytest.mark.parametrize("spoil", [lambda content: b"", lambda content: content[:-1] + b"x"])
def test_a_spoiled_entry_is_made_again(generations, directory, spoil):
    _, before = step()
    for entry in entries(directory):
        entry.write_bytes(spoil(entry.read_bytes()))
    count = len(generations)
    _, after = step()
    assert len(generations) == 2 * count
    np.testing.assert_array_equal(before, after)
    step()
    assert len(generations) == 2 * count


def test_programs_with_calls_into_python_are_generated_every_time(generations):
    for _ in range(2):
        with oc.Session():
            context = oc.Context("cpu_c")
            context.compile(oc.train.forward(Square()(oc.tensor([1.0, 2.0]))))
    assert len(generations) == 2


def test_a_later_routine_uses_nodes_that_a_restored_one_omits(generations):
    results = []
    for _ in range(2):
        with oc.Session():
            context = oc.Context("cpu_c")
            x = oc.tensor([1.0, 2.0, 3.0], label="x")
            doubled = 2.0 * x
            total = oc.relu(doubled - 3.0)
            context.compile(oc.train.forward(total), keep=[total])()
            late = context.compile(oc.train.forward(doubled + 1.0))
            late()
            results.append(context[total])
    assert len(generations) == 2
    np.testing.assert_array_equal(*results)


def test_the_oldest_entries_go_when_there_are_many(directory, monkeypatch):
    monkeypatch.setattr(saved_code, "_MOST_ENTRIES", 4)
    step()
    for age, entry in enumerate(entries(directory)):
        os.utime(entry, (age, age))
    old = set(entries(directory))
    step(width=6)
    step(width=7)
    left = entries(directory)
    assert len(left) <= 4
    assert not old & set(left)


def test_random_numbers_start_from_disk_with_another_seed(generations):
    def initial(seed: int):
        with oc.Session(seed=seed):
            w = oc.param("w", output=[5], input=[6])
            context = oc.Context("cpu_c")
            context.init_params(w)
            return context[w]

    first, second = initial(3), initial(4)
    assert generations == ["init_params"]
    assert not np.array_equal(first, second)
    assert np.array_equal(initial(3), first)


@pytest.mark.filterwarnings("ignore:A routine fits")
def test_within_a_memory_budget_only_the_attempts_before_run_passes(generations, monkeypatch):
    attempts, optimized = [], []
    real_resolve, real_optimize = driver.resolve, driver.optimize
    monkeypatch.setattr(driver, "resolve", lambda *a: attempts.append(a) or real_resolve(*a))
    monkeypatch.setattr(driver, "optimize", lambda *a: optimized.append(a) or real_optimize(*a))

    def compiled():
        with oc.Session(), settings.overrides(memory_budget=0):
            w = oc.param("w", output=[8], input=[8])
            xs = oc.tensor(np.ones((6, 8), np.float32), batch_axes=1)
            outputs, _ = oc.scan(lambda h, x: (oc.tanh(w @ (h + x)),) * 2, 0.0, xs)
            return oc.Context("cpu_c").compile(oc.train.grad_update(oc.mean(outputs * outputs)))

    first = compiled()
    assert len(optimized) == len(attempts) > 1
    again = compiled()
    assert again._build.source.text == first._build.source.text
    assert len(generations) == 1
    assert len(optimized) == len(attempts) - 1  # the last one starts from disk


def test_a_later_process_generates_nothing(directory):
    program = textwrap.dedent(
        """
        import numpy as np
        import ocannl_core as oc
        from ocannl_core.compile import driver
        runs = []
        real = driver.generate
        driver.generate = lambda *given: runs.append(1) or real(*given)
        x = oc.tensor(np.arange(6.0, dtype=np.float32), label="x")
        y = oc.exp(x) * x
        context = oc.Context("cpu_c")
        context.compile(oc.train.forward(y))()
        print(len(runs), context[y].tobytes().hex())
        """
    )
    outputs = []
    for seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | {
                "PYTHONHASHSEED": seed,
                "OCANNL_CACHE_DIR": str(directory),
                "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(result.stdout.split())
    assert [count for count, _ in outputs] == ["1", "0"]
    assert len({cells for _, cells in outputs}) == 1


def test_an_entry_under_another_name_is_not_used(generations, directory):
    step()
    found = entries(directory)
    contents = [entry.read_bytes() for entry in found]
    for entry, content in zip(found, contents[1:] + contents[:1], strict=True):
        entry.write_bytes(content)
    count = len(generations)
    step()
    assert len(generations) == 2 * count


def test_a_directory_in_the_place_of_an_entry_is_left_alone(generations, directory):
    step()
    for entry in entries(directory):
        entry.unlink()
        entry.mkdir()
        (entry / "inside").write_text("precious")
    count = len(generations)
    step()
    step()
    assert len(generations) == 3 * count
    assert all((entry / "inside").exists() for entry in entries(directory))


_START = """
import sys
import ocannl_core as oc

x = oc.param("x", init=3.0)
context = oc.Context("cpu_c")
step = context.compile(oc.train.forward(oc.tanh(x) + 1))
context.init_params(x)
step()
stages = "schedule.apply", "codegen.rendering", "codegen.dialect", "passes.lower", "passes.loops"
print(*(name for name in sys.modules if name.partition(".")[2].startswith(stages)))
"""


def test_a_start_from_disk_imports_no_stage_that_does_not_run(tmp_path: Path) -> None:
    variables = {**os.environ, "OCANNL_CACHE_DIR": str(tmp_path / "cache")}
    cold, warm = (
        subprocess.run(
            [sys.executable, "-c", _START],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert "ocannl_core.codegen.rendering.expressions" in cold
    assert warm == "\n"
