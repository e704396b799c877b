"""Kernels on disk: a program that was edited schedules and renders its new kernels only."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.files.directory import private_directory
from ocannl_core.compile import saved_kernels
from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.kernels.nest_plan import NestKernel
from ocannl_core.ir.kernels.row_fusion import RowFusion
from ocannl_core.ir.loops.nodes import Block, LoopProgram
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.templates import Template, canonical_form
from ocannl_core.passes.kernels import schedule_kernels
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_core.testing.programs import Example
from ocannl_core.testing.subject import subject_named
from tests.support.loop_programs import loop_programs
from tests.support.slow import slow

DEVICES = [("cpu_c", "x86-64-v3"), ("cuda", "sm_80"), ("opencl", "gpu")]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, saved_routines: None) -> Iterator[Path]:
    with settings.overrides(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count scheduled nests and groups of rows, and kernels read from disk."""
    counts = {"scheduled": 0, "known": 0}
    schedule, known = schedule_kernels._schedule_step, saved_kernels.SavedKernels.find

    def scheduled(step, *given):
        counts["scheduled"] += isinstance(step, NestKernel | RowFusion)
        return schedule(step, *given)

    def found(self, *given):
        made = known(self, *given)
        counts["known"] += made is not None
        return made

    monkeypatch.setattr(schedule_kernels, "_schedule_step", scheduled)
    monkeypatch.setattr(saved_kernels.SavedKernels, "find", found)
    return counts


def attention(x: oc.Tensor) -> oc.Tensor:
    attended = x + oc.nn.multi_head_attention(oc.nn.layer_norm(x), heads=2, width=4)
    return attended + oc.nn.mlp(oc.nn.layer_norm(attended), hidden=[16])


def convolution(x: oc.Tensor) -> oc.Tensor:
    return oc.relu(oc.nn.conv(x, axes=1, kernel=3, channels=8, padded=True))


def dense(x: oc.Tensor) -> oc.Tensor:
    return x + oc.relu(oc.nn.dense(oc.nn.layer_norm(x)))


def drawn(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.dropout(oc.tanh(oc.nn.dense(x)), rate=0.5)


def looked_up(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.dense(oc.take(x, oc.tensor([1, 3, 1], dtype="int32"), axis=-1), output=[8])


def looped(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.repeat_layers(lambda h: h + oc.tanh(oc.nn.dense(h)), x, layers=2)


LAYERS = {each.__name__: each for each in (attention, convolution, dense, drawn, looked_up, looped)}


def training_step(layer: str, layers: int, name: str = "x") -> oc.Computation:
    """Return a training step of a network of equal layers."""
    x = oc.placeholder(name, batch=[4, 6], output=[8])
    for _ in range(layers):
        x = LAYERS[layer](x)
    loss = oc.einsum("...|... => 0", x * x)
    return oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)


def code_of(make: Callable[[], oc.Computation], device: tuple[str, str]) -> oc.TargetCode:
    with oc.Session(seed=1), settings.overrides(tune="off"):
        return oc.compile_for(make(), *device)


def assert_equal(found: oc.TargetCode, expected: oc.TargetCode) -> None:
    assert found.source == expected.source
    assert found.loop_ir == expected.loop_ir
    assert str(found.plan) == str(expected.plan)


@pytest.mark.parametrize("device", DEVICES, ids="-".join)
@pytest.mark.parametrize("layer", [*slow(["attention"]), *list(LAYERS)[1:]])
def test_code_is_that_of_kernels_made_again(
    layer: str, device: tuple[str, str], directory: Path, tmp_path: Path, work: dict[str, int]
) -> None:
    for name, layers in (("x", 1), ("y", 2)):
        code_of(lambda n=name, k=layers: training_step(layer, k, n), device)  # type: ignore[misc]
    with settings.overrides(cache_dir=str(tmp_path / "other")):
        expected = code_of(lambda: training_step(layer, 2), device)
    work.update(scheduled=0, known=0)
    assert_equal(code_of(lambda: training_step(layer, 2), device), expected)
    assert work["scheduled"] == 0
    assert work["known"] > 0


def test_an_edit_changes_only_its_kernels(work: dict[str, int]) -> None:
    def network(classes: int) -> oc.Computation:
        x = oc.placeholder("x", batch=[4, 6], output=[8])
        scores = oc.nn.dense(attention(x), output=[classes])
        return oc.train.forward(oc.softmax(scores, axis=-1))

    code_of(lambda: network(5), DEVICES[0])
    before = work["scheduled"]
    work.update(scheduled=0, known=0)
    code_of(lambda: network(7), DEVICES[0])
    assert 0 < work["scheduled"] < before / 2
    assert work["known"] > before / 2


def test_known_texts_are_not_rendered_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_c = pytest.importorskip("ocannl_cpu_c.code_generation")
    code_of(lambda: training_step("dense", 2), DEVICES[0])
    monkeypatch.setattr(cpu_c, "render_step", lambda *given: pytest.fail("it is rendered"))
    shutil.rmtree(directory / "routines")
    code_of(lambda: training_step("dense", 2), DEVICES[0])


@pytest.mark.parametrize("spoil", [lambda content: b"", lambda content: content[:-1] + b"x"])
def test_a_spoiled_entry_is_made_again(
    spoil: Callable[[bytes], bytes], directory: Path, work: dict[str, int]
) -> None:
    expected = code_of(lambda: training_step("dense", 1), DEVICES[0])
    shutil.rmtree(directory / "routines")
    count = work["scheduled"]
    for entry in (directory / "kernels").iterdir():
        entry.write_bytes(spoil(entry.read_bytes()))
    assert_equal(code_of(lambda: training_step("dense", 1), DEVICES[0]), expected)
    assert work == {"scheduled": 2 * count, "known": 0}


def test_entries_under_exchanged_names_are_not_used(directory: Path, work: dict[str, int]) -> None:
    code_of(lambda: training_step("dense", 1), DEVICES[0])
    shutil.rmtree(directory / "routines")
    entries = sorted((directory / "kernels").iterdir())
    contents = [entry.read_bytes() for entry in entries]
    for entry, content in zip(entries, contents[1:] + contents[:1], strict=True):
        entry.write_bytes(content)
    code_of(lambda: training_step("dense", 1), DEVICES[0])
    assert work["known"] == 0


@pytest.mark.parametrize("change", [{"accumulation": "exact"}, {"threads": 1}, {"contract": False}])
def test_other_settings_have_other_kernels(
    change: dict[str, object], directory: Path, work: dict[str, int]
) -> None:
    code_of(lambda: training_step("dense", 1), DEVICES[0])
    with settings.overrides(**change):
        code_of(lambda: training_step("dense", 1), DEVICES[0])
    assert work["known"] == 0


def test_the_oldest_entries_go_when_there_are_many(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_kernels, "_MOST_ENTRIES", 4)
    code_of(lambda: training_step("attention", 1), DEVICES[0])
    assert len(list((directory / "kernels").iterdir())) <= 4


def test_kernels_of_a_backend_that_renders_by_itself_are_scheduled_once(
    directory: Path, work: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_c = pytest.importorskip("ocannl_cpu_c.code_generation")

    def rendered(kernels, render):
        return [render(step, nodes) for step, nodes in kernels]

    expected = code_of(lambda: training_step("dense", 1), DEVICES[0])
    shutil.rmtree(directory)
    monkeypatch.setattr(cpu_c, "render_steps", rendered)
    for _ in range(2):
        work["scheduled"] = 0
        assert_equal(code_of(lambda: training_step("dense", 1), DEVICES[0]), expected)
        shutil.rmtree(directory / "routines")
    assert work["scheduled"] == 0


def renamed(program: LoopProgram) -> LoopProgram:
    """Return a program with other names in the place of its nodes and variables."""
    form = canonical_form(program.body, program.nodes)
    names = {
        name: TensorNode(name.id + 100, ("other", *name.label))
        if isinstance(name, TensorNode)
        else fresh_var("other", name.size)
        if isinstance(name, LoopVar)
        else name
        for name in (*form.names, *program.nodes)
    }
    stmts = Template(program.body.stmts, form.names).bind([names[each] for each in form.names])
    nodes = {names[node]: info for node, info in program.nodes.items()}
    params = tuple(names[node] for node in program.params)
    return LoopProgram("renamed", params, program.indices, nodes, Block(stmts))


@given(loop_programs())
def test_random_programs_have_the_code_of_kernels_made_again(example: Example) -> None:
    cpu_c = pytest.importorskip("ocannl_cpu_c")
    target = cpu_c.devices.DESCRIBED["x86-64-v3"]

    def planned(program: LoopProgram) -> tuple[str, str]:
        kernels = plan_kernels(program, target)
        source = cpu_c.ocannl_generate(kernels, target)
        return source.text, str(kernels.plan())

    with tempfile.TemporaryDirectory() as folder:

        def with_saved(program: LoopProgram) -> tuple[tuple[str, str], int]:
            saved = saved_kernels.SavedKernels(private_directory(Path(folder), "kernels"), "target")
            with saved.used():
                code = planned(program)
            return code, len(saved._new)

        expected = planned(example.program)
        with_saved(renamed(example.program))
        assert with_saved(example.program) == (expected, 0)


def test_results_are_equal(directory: Path, work: dict[str, int]) -> None:
    subject_named("cpu_c")  # skips where there is no compiler

    def trained() -> bytes:
        with oc.Session(seed=3):
            x = oc.tensor(np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8), batch_axes=1)
            loss = oc.einsum("...|... => 0", attention(x) ** 2.0)
            context = oc.Context("cpu_c")
            step = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.1)
            routine = context.compile(step)
            context.init_params(loss)
            routine()
            routine()
            return np.asarray(context[loss]).tobytes()

    first = trained()
    shutil.rmtree(directory / "routines")
    work.update(scheduled=0, known=0)
    assert trained() == first
    assert work["scheduled"] == 0
    assert work["known"] > 0
