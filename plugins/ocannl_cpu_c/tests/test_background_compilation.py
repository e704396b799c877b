"""Background compilation: loading takes the files that were compiled during generation."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError, CompileError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.kernels.nodes import FinishedStep, Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import Block, Fill
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import plan_kernels
from ocannl_cpu_c import background_compilation, cache, loader
from ocannl_cpu_c.code_generation import generate


def kernel(number: float) -> KernelText:
    out = TensorNode(0, ("out",))
    body = Block((Fill(out, number),))
    return render_kernel(Kernel(body, (out,), ()), {out: NodeInfo(float32, (4,))}, Dialect())


def rejected() -> KernelText:
    good = kernel(0.5)
    return KernelText(good.symbol, good.text.replace("for", "no C at all"))


@pytest.fixture(autouse=True)
def two_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, and a second processor on every machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    monkeypatch.setattr(loader, "_loaded", {})
    monkeypatch.setattr(background_compilation, "_running", {})
    monkeypatch.setattr(background_compilation, "_LEAST_SECONDS", 0.0)
    with settings.overrides(cache_dir=str(tmp_path)):
        yield
        background_compilation.stop()


def running() -> list[cache.Building]:
    return [each for several in background_compilation._running.values() for each in several]


def given(kernels: list[KernelText]) -> None:
    early = loader.begin_compilation()
    assert early is not None
    for each in kernels:
        early.add(each)
    early.close()


def test_kernels_that_are_loaded_were_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    loader.runtime()
    kernels = [kernel(1.5), kernel(2.5), kernel(1.5)]
    given(kernels)
    begun = [each.unit.keys for each in running()]
    assert sum(len(keys) for keys in begun if keys != loader._runtime_unit().keys) == 2
    # nothing is left for compilers that start now
    monkeypatch.setattr(cache.DiskCache, "start", lambda self, unit: pytest.fail(unit.text))
    assert loader.load(kernels, and_runtime=True).keys() == {each.symbol for each in kernels}
    assert running() == []


def test_the_first_kernels_do_not_wait_for_the_others() -> None:
    early = loader.begin_compilation()
    assert early is not None
    early.add(kernel(1.5))
    assert running()
    early.add(kernel(2.5))
    early.close()


def test_a_kernel_that_is_there_is_not_compiled() -> None:
    loader.load([kernel(1.5)])
    given([kernel(1.5)])
    assert running() == []


def test_a_routine_that_is_generated_twice_is_compiled_once() -> None:
    given([kernel(1.5)])
    count = len(running())
    given([kernel(1.5)])
    assert len(running()) == count


def test_a_rejected_kernel_is_an_error_when_it_is_loaded() -> None:
    given([rejected()])
    with pytest.raises(CompileError, match="must accept generated code"):
        loader.load([rejected()])
    assert rejected().symbol not in {symbol for _, symbol in loader._loaded}


def test_one_processor_generates_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    assert loader.begin_compilation() is None


def test_a_missing_compiler_is_an_error_when_kernels_are_loaded() -> None:
    with settings.overrides(cpu_c__cc="/no/such/compiler"):
        assert loader.begin_compilation() is None
        with pytest.raises(CompileError, match="must be installed"):
            loader.load([kernel(1.5)])


def test_files_that_are_never_loaded_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given([kernel(1.5)])
    background_compilation.stop()
    assert not list(tmp_path.rglob("*.tmp"))
    assert running() == []
    monkeypatch.setattr(background_compilation, "_MOST", 1)
    given([kernel(2.5)])
    given([kernel(3.5)])
    assert len(running()) == 1


def nest_of(*numbers: float) -> tuple[Kernel, dict[TensorNode, NodeInfo]]:
    out = TensorNode(0, ("out",))
    body = Block(tuple(Fill(out, number) for number in numbers))
    return Kernel(body, (out,), ()), {out: NodeInfo(float32, (4,))}


def plan_of(nest: Kernel, nodes: dict[TensorNode, NodeInfo]) -> Plan:
    return Plan("p", (nest,), tuple(nodes), (), (), nodes)


def test_compilers_start_while_later_kernels_are_scheduled() -> None:
    first, nodes = nest_of(1.5)
    second = replace(first, body=Block((Fill(first.arguments[0], 2.5),)))
    plan = replace(plan_of(first, nodes), steps=(first, second))
    counts: list[int] = []

    def steps() -> Generator[FinishedStep, None, Plan]:
        for step in plan.steps:
            yield step, nodes
            counts.append(len(running()))
        return plan

    source = generate(KernelStream(steps()), Target("cpu_c"))
    assert counts == [1, 1]  # one other processor
    assert source == generate(KernelStream.of(plan), Target("cpu_c"))
    assert loader.load(source.kernels).keys() == {each.symbol for each in source.kernels}


def test_a_routine_that_cannot_be_scheduled_leaves_the_next_one_alone() -> None:
    nest, nodes = nest_of(1.5)

    def steps() -> Generator[FinishedStep, None, Plan]:
        yield nest, nodes
        raise CodegenError("No schedule.")

    stream = KernelStream(steps())
    with pytest.raises(CodegenError, match="No schedule"):
        generate(stream, Target("cpu_c"))
    with pytest.raises(RuntimeError, match="scheduling has failed"):
        stream.plan()
    nest, nodes = nest_of(2.5)
    source = generate(KernelStream.of(plan_of(nest, nodes)), Target("cpu_c"))
    loader.load(source.kernels)


def test_streamed_steps_are_those_of_the_plan() -> None:
    with oc.Session():
        x = oc.tensor(np.ones((96, 80), np.float32), batch_axes=1)
        y = oc.tanh(oc.param("w", output=[48]) @ x)
        loss = oc.einsum("... | ... => 0", y)
        context = oc.Context("cpu_c")
        context.init_params(loss)
        build = context.compile(oc.train.grad_update(loss))._build
    stream = plan_kernels(build.program.loops, build.target)
    streamed = list(stream)
    for step, nodes in streamed:
        assert isinstance(step, Kernel)
        assert nodes.keys() >= {*step.arguments}
    assert len(streamed) > 1
    steps = [id(step) for step, _ in streamed]
    assert steps == [id(step) for step, _ in stream] == [id(step) for step in stream.plan().steps]
