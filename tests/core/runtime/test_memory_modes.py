"""Memory modes: decided by the compiled code, or by the backend if several are left."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.ir.node import MemoryMode, ModeChoice, Reason, TensorNode
from ocannl_core.ir.target import Capability, Target


def placing(choose: Callable[[TensorNode, tuple[MemoryMode, ...]], object]) -> ModuleType:
    """Return the interpreter, with a function that chooses memory modes."""

    @hookimpl
    def ocannl_targets() -> TargetReport:
        return TargetReport((Target("keeper", capabilities=tuple(Capability)),))

    @hookimpl
    def ocannl_resolve_mode(node: TensorNode, candidates: tuple[MemoryMode, ...]) -> object:
        return choose(node, candidates)

    module = ModuleType("keeper")
    vars(module).update(vars(ocannl_interp))
    vars(module).update(ocannl_targets=ocannl_targets, ocannl_resolve_mode=ocannl_resolve_mode)
    return module


@pytest.fixture
def keeper(fresh_plugins: None) -> None:
    """A backend that keeps everything in memory of the context."""
    kept = ModeChoice(MemoryMode.ON_DEVICE, "everything is to be seen")
    choose = lambda node, modes: kept if MemoryMode.ON_DEVICE in modes else None  # noqa: E731
    manager.register("keeper", placing(choose))


def test_the_reason_of_a_backend_is_one_line_without_control_characters() -> None:
    reason = ModeChoice(MemoryMode.ON_DEVICE, "clear\n  the screen\x1b[2J")
    manager.register("keeper", placing(lambda _, modes: reason if reason.mode in modes else None))
    try:
        with oc.Session():
            inner = oc.tensor([1.0, 2.0]) * 3.0
            outer = oc.einsum("i; j => i,j", inner, inner)
            step = oc.Context("keeper").compile(oc.train.forward(outer))
            assert "chose this place: clear the screen\\x1b[2J\n" in str(oc.explain(step))
    finally:
        manager.refresh()


@pytest.mark.usefixtures("keeper")
def test_a_node_that_could_be_local_stays_when_the_backend_wants_it() -> None:
    with oc.Session():
        inner = oc.tensor([1.0, 2.0]) * 3.0
        outer = oc.einsum("i; j => i,j", inner, inner)  # reads each cell often
        ctx = oc.Context("keeper")
        step = ctx.compile(oc.train.forward(outer))
        step()
        assert ctx[inner].tolist() == [3.0, 6.0]
        assert step.placements[inner.node].reason is Reason.BACKEND_CHOICE
        plain = oc.Context("interp")
        plain.compile(oc.train.forward(outer))()
        with pytest.raises(oc.LinkError, match="read more often than max_visits"):
            plain[inner]


@pytest.mark.usefixtures("keeper")
def test_a_node_that_would_be_inlined_stays_when_the_backend_wants_it() -> None:
    with oc.Session():
        inner = oc.tensor([1.0, 2.0]) * 3.0
        outer = oc.exp(inner) + 1.0
        ctx = oc.Context("keeper")
        step = ctx.compile(oc.train.forward(outer))
        step()
        assert ctx[inner].tolist() == [3.0, 6.0]
        (found,) = (node for node in oc.explain(step).nodes if node.name == inner.node.name)
        assert (found.mode, found.nbytes) == (MemoryMode.ON_DEVICE, 8)
        assert found.reason == "the backend chose this place: everything is to be seen"
        assert "because the backend chose this place: everything is to be seen" in str(
            oc.explain(step)
        )


@pytest.mark.usefixtures("keeper")
def test_the_user_decides_before_the_backend() -> None:
    with oc.Session():
        inner = oc.tensor([1.0, 2.0]) * 3.0
        step = oc.Context("keeper").compile(oc.train.forward(oc.exp(inner)), inline=[inner])
        assert step.placements[inner.node].reason is Reason.INLINING_REQUESTED


def test_the_steps_of_a_loop_are_placed_as_well() -> None:
    seen: dict[str, tuple[MemoryMode, ...]] = {}

    def choose(node: TensorNode, modes: tuple[MemoryMode, ...]) -> ModeChoice | None:
        seen[node.name] = modes
        return ModeChoice(MemoryMode.LOCAL, "it is a step") if MemoryMode.LOCAL in modes else None

    def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
        inner = oc.exp(h) * x
        return inner + 1.0, inner

    manager.register("keeper", placing(choose))
    try:
        with oc.Session():
            xs = oc.tensor(np.ones((3, 2)), batch_axes=1)
            _, ys = oc.scan(step, oc.tensor([0.0, 0.0]), xs)
            results = []
            for name in ("keeper", "interp"):
                ctx = oc.Context(name)
                routine = ctx.compile(oc.train.forward(ys))
                routine()
                results.append(ctx[ys].tolist())
                if name == "keeper":
                    notes = [each.note for each in routine.placements.values()]
        assert results[0] == results[1]
        assert "it is a step" in notes
        assert (MemoryMode.VIRTUAL, MemoryMode.LOCAL) in seen.values()
    finally:
        manager.refresh()


def test_a_veto_is_named_when_the_node_cannot_be_read() -> None:
    local = ModeChoice(MemoryMode.LOCAL, "scratch is fast here")
    choose = lambda node, modes: local if MemoryMode.LOCAL in modes else None  # noqa: E731
    manager.register("keeper", placing(choose))
    try:
        with oc.Session():
            inner = oc.tensor([1.0, 2.0]) * 3.0
            ctx = oc.Context("keeper")
            ctx.compile(oc.train.forward(oc.exp(inner)))()
            with pytest.raises(oc.LinkError) as caught:
                ctx[inner]
        assert "because the backend chose this place: scratch is fast here" in str(caught.value)
    finally:
        manager.refresh()


def test_inline_names_tensors_that_take_no_memory() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        often = oc.exp(x)
        y = often * often + often
        for inline, mode in (([], MemoryMode.LOCAL), ([often], MemoryMode.VIRTUAL)):
            ctx = oc.Context("interp")
            step = ctx.compile(oc.train.forward(y), inline=inline)
            assert step.placements[often.node].mode is mode
            ctx[x] = [0.0, 0.0]
            step()
            assert ctx[y].tolist() == [2.0, 2.0]
        assert "virtual    because it was named in inline=" in str(oc.explain(step))


def test_a_tensor_that_is_kept_and_inlined_is_a_conflict_with_two_reasons() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        y = x * 2.0
        with pytest.raises(oc.LinkError) as error:
            oc.Context("interp").compile(oc.train.forward(y + 1.0), keep=[y], inline=[y])
    assert str(error.value) == snapshot("""\
A memory mode can be refined but not reversed: mul cannot become virtual.
  found  it is already on device because it was named in keep=, or is a result or a parameter's gradient that is kept by default (201); virtual is requested because it was named in inline= (216)
  where  test_memory_modes.py:167: oc.Context("interp").compile(oc.train.forward(y + 1.0), keep=[y], inline=[y])
  try    leave it out of keep=; keep=() keeps no results
         leave it out of inline=\
""")


def test_a_tensor_that_cannot_be_inlined_is_a_conflict_with_two_reasons() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        y = x * 2.0

        @oc.cd
        def code(x: oc.Tensor, y: oc.Tensor, to: oc.Tensor) -> None:
            y.forward()
            x -= 1.0
            to[:] = y

        to = oc.declare("to")
        with pytest.raises(oc.LinkError) as error:
            oc.Context("interp").compile(code(x, y, to), keep=[to], inline=[y])
    assert str(error.value) == snapshot("""\
A memory mode can be refined but not reversed: mul cannot become virtual.
  found  it is already never virtual because something that it is computed from is written between its definition and a read of it (15); virtual is requested because it was named in inline= (216)
  where  test_memory_modes.py:190: oc.Context("interp").compile(code(x, y, to), keep=[to], inline=[y])
  try    read it before that is written, or compute it from a copy
         leave it out of inline=\
""")


def test_inline_names_tensors_of_the_code() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2])
        with pytest.raises(oc.UsageError) as error:
            oc.Context("interp").compile(oc.train.forward(x * 2.0), inline=[x + 1.0])
    assert str(error.value) == snapshot("""\
inline= names tensors that the compiled code computes.
  found  tensor add (test_memory_modes.py:204: oc.Context("interp").compile(oc.train.forward(x * 2.0), inline=[x + 1.0])), which it does not mention
  where  compiling forward
  try    leave it out, or add its code, such as oc.train.forward(add)\
""")


def test_a_literal_that_no_code_writes_is_hosted() -> None:
    with oc.Session():
        table = oc.tensor([1.0, 2.0, 3.0])
        x = oc.placeholder("x", output=[3])
        y = x * table
        step = oc.Context("interp").compile(oc.train.forward(y))
        found = {node: str(step.placements[node.node]) for node in (table, x)}
    assert found[table] == "hosted because its cells come from the host (202)"
    assert found[x] == "on device because its cells come from the host (202)"
