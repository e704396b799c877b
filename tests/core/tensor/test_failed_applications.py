"""An application that raises leaves the session as it was."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base.errors import UsageError
from tests.support.example_count import example_count


@oc.op
def dense(x: oc.Tensor, *, hidden: int) -> oc.Tensor:
    return oc.param("w") @ x + oc.param("b", output=[hidden])


@oc.op
def deep(x: oc.Tensor, *, hidden: int, norm: bool = False) -> oc.Tensor:
    first = dense(x, hidden=hidden)
    second = dense(oc.nn.layer_norm(first) if norm else oc.relu(first), hidden=hidden)
    return first + second


@oc.op
def open_width(x: oc.Tensor) -> oc.Tensor:
    return oc.param("v") @ oc.tanh(oc.param("u") @ x)


def _step(carry: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
    out = oc.tanh(carry + oc.param("r", output=[3]) * x)
    return out, out


class Program:
    """A random program: the tensors made so far, the blocks, and the texts of its errors."""

    def __init__(self) -> None:
        self.tensors: list[Any] = [
            oc.placeholder("x", batch=[2], output=[3]),
            oc.param("p"),
            oc.param("q", output=[3]),
            oc.tensor([1.0, 2.0, 3.0]),
        ]
        self.blocks = [
            dense(hidden=3),
            dense(hidden=2, label="L"),
            deep(hidden=3),
            deep(hidden=2, norm=True),
            open_width(),
        ]
        self.sizes = [oc.dim("i"), oc.dim("j")]
        self.errors: list[str] = []

    def apply(self, choice: int, one: int, other: int) -> Any:
        """Return the result of one application."""
        x, y = self.tensors[one % len(self.tensors)], self.tensors[other % len(self.tensors)]
        size = self.sizes[other % 2]
        actions: list[Callable[[], Any]] = [
            lambda: x + y,
            lambda: x @ y,
            lambda: x * 2.0,
            lambda: self.blocks[other % len(self.blocks)](x),
            lambda: self.blocks[other % len(self.blocks)](x),
            lambda: deep(hidden=1 + other % 3)(x),
            lambda: oc.param("n", output=[1 + other % 3]),
            lambda: oc.param("o"),
            lambda: oc.placeholder("y", output=[1 + other % 3]),
            lambda: oc.einsum("i, ... => ..., i", x),
            lambda: oc.einsum("..., i => ..., i", x, capture={"i": size}),
            lambda: size.require(1 + one % 3) or x,
            lambda: oc.softmax(x),
            lambda: oc.nn.cross_entropy(x, y),
            lambda: oc.nn.dropout(x, rate=0.5),
            lambda: oc.concat([x, y], axis=-1),
            lambda: oc.cast(x, "float64"),
            lambda: oc.tensor(np.ones((1 + other % 3,), np.float64)),
            lambda: oc.nn.batch_norm(x),
            lambda: oc.gradients(x, [y])[0],
            lambda: oc.scan(_step, y, x)[0],
            lambda: x.info and x,
            lambda: x[other % 2],
            lambda: oc.exp(x + oc.normal()),
        ]
        return actions[choice % len(actions)]()

    def run(self, steps: Sequence[tuple[int, int, int]]) -> None:
        """Run applications; one that fails is caught, and its error is kept."""
        for step in steps:
            try:
                self.tensors.append(self.apply(*step))
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")

    def describe(self) -> list[str]:
        """Return all that is known about tensors and blocks."""
        found = [
            f"{each.id} {each!r} {each.terms} {each.dtype} {each.precision} {each.label} "
            f"{each.made_in and each.made_in.path}\n{oc.explain(each)}"
            for each in self.tensors
        ]
        pending = list(self.blocks)
        for block in pending:
            known = {name: p.id for name, (p, _) in block.own_parameters.items()}
            found.append(f"{block!r} {known} {block.has_been_applied} {len(block.blocks)}")
            pending += block.blocks.values()
        found += [f"{size!r} {size.is_captured}" for size in self.sizes]
        return found + self.errors


class _Wrong(Exception):
    """The failure of an application after some steps."""


def _fail_in_block(program: Program, steps: Sequence[tuple[int, int, int]]) -> None:
    tensors, blocks = list(program.tensors), list(program.blocks)

    @oc.op
    def wrong(x: oc.Tensor) -> oc.Tensor:
        program.run(steps)
        raise _Wrong

    try:
        wrong(program.tensors[0])
    finally:
        program.tensors, program.blocks = tensors, blocks


def _fail_in_scope(program: Program, steps: Sequence[tuple[int, int, int]]) -> None:
    tensors = list(program.tensors)
    try:
        with oc.atomic():
            program.run(steps)
            raise _Wrong
    finally:
        program.tensors = tensors


def _fail_in_code(program: Program, steps: Sequence[tuple[int, int, int]]) -> None:
    tensors = list(program.tensors)

    @oc.cd
    def wrong() -> None:
        program.run(steps)
        raise _Wrong

    try:
        wrong()
    finally:
        program.tensors = tensors


_steps = st.lists(st.tuples(st.integers(0, 23), st.integers(0, 7), st.integers(0, 7)), max_size=7)
_failures = st.sampled_from([_fail_in_block, _fail_in_scope, _fail_in_code])


def _run(
    before: Sequence[tuple[int, int, int]],
    wrong: Callable[[Program], None] | None,
    after: Sequence[tuple[int, int, int]],
) -> tuple[list[str], list[str], Program]:
    with oc.Session(seed=7), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = Program()
        program.run(before)
        known, errors, count = program.describe(), list(program.errors), len(caught)
        if wrong is not None:
            with contextlib.suppress(_Wrong):
                wrong(program)
            program.errors = errors
            del caught[count:]
            assert program.describe() == known
        program.run(after)
        return program.describe(), [str(each.message) for each in caught], program


@settings(max_examples=example_count(15), deadline=None)
@given(_steps, _steps, _failures, _steps)
def test_a_failed_application_leaves_the_session_as_it_was(
    before: list[tuple[int, int, int]],
    inside: list[tuple[int, int, int]],
    fail: Callable[[Program, Sequence[tuple[int, int, int]]], None],
    after: list[tuple[int, int, int]],
) -> None:
    expected = _run(before, None, after)[:2]
    assert _run(before, lambda program: fail(program, inside), after)[:2] == expected


@settings(max_examples=example_count(15), deadline=None)
@given(_steps, st.tuples(st.integers(0, 23), st.integers(0, 7), st.integers(0, 7)))
def test_an_application_that_raises_by_itself_leaves_the_session_as_it_was(
    before: list[tuple[int, int, int]], step: tuple[int, int, int]
) -> None:
    with oc.Session(seed=7), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Program()
        program.run(before)
        known = program.describe()
        try:
            program.apply(*step)
        except Exception:
            assert program.describe() == known


def test_a_retracted_tensor_leaves_no_note_to_the_next_one_of_its_number() -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0])
        kept = []
        with contextlib.suppress(_Wrong), oc.atomic():
            kept.append(x * 2.0)
            kept[0].consume_forward()
            raise _Wrong
        other = x * 3.0
        assert other.id == kept[0].id
        other.consume_forward()
        del kept[:]
        assert other in other.session.consumed


def test_code_consumed_by_a_failed_application_can_be_consumed_again() -> None:
    with oc.Session():
        hidden = oc.tensor([1.0, 2.0]) * 2.0
        with contextlib.suppress(_Wrong), oc.atomic():
            hidden.consume_forward()
            raise _Wrong
        hidden.consume_forward()


def test_memory_of_a_context_keeps_its_tensors_when_the_program_fails() -> None:
    with oc.Session():
        weight = oc.param("w", output=[2])
        context = oc.Context("interp")
        with contextlib.suppress(_Wrong), oc.atomic():
            doubled = weight * 2.0
            context[weight] = np.array([3.0, 4.0])
            lost = weight + oc.param("v", output=[2])
            raise _Wrong
        assert "retracted" in repr(lost)
        run = context.compile(doubled.forward())
        run()
        np.testing.assert_array_equal(context[doubled], [6.0, 8.0])


@pytest.mark.parametrize(
    ("caller", "callee"), [("_apply", "caller_location"), ("traced", "__init__")]
)
def test_an_interrupt_leaves_no_block_and_no_loop_open(caller: str, callee: str) -> None:
    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        names = [each.f_code.co_name for each in (frame, frame.f_back) if each is not None]
        if event == "call" and names == [callee, caller]:
            raise KeyboardInterrupt

    with oc.Session():
        x, result = oc.tensor([1.0, 2.0]), oc.declare("result", output=[2])
        net = oc.nn.dense(output=[2])

        @oc.cd
        def code() -> None:
            _, last = oc.scan(lambda carry, _: (2.0 * carry, carry), net(x), length=3)
            result[:] = last

        sys.setprofile(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                code()
        finally:
            sys.setprofile(None)
        recorded = code()
        ctx = oc.Context("interp")
        ctx.init_params(recorded)
        ctx.compile(recorded)()
        assert list(net.params.keys()) == ["dense.weight", "dense.bias"]


def test_closing_a_generator_retracts_nothing() -> None:
    def steps(x: oc.Tensor) -> Iterator[oc.Tensor]:
        with oc.atomic():
            yield x + 1.0

    with oc.Session():
        x = oc.tensor([1.0, 2.0])
        running = steps(x)
        inside = next(running)
        meanwhile = x * 2.0
        running.close()
        assert (inside + meanwhile).session is x.session


def test_transactions_may_end_in_any_order() -> None:
    with oc.Session() as session:
        x = oc.tensor([1.0, 2.0])
        first, second = session.atomic(), session.atomic()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        assert session.undo_log.depth == 0
        kept = x + 1.0
        third = session.atomic()
        third.__enter__()  # an interrupt leaves it open
        with contextlib.suppress(_Wrong), oc.atomic():
            lost = x + 2.0
            raise _Wrong
        assert "retracted" in repr(lost)
        assert "retracted" not in repr(kept)


def test_a_context_manager_of_atomic_is_not_entered_twice() -> None:
    with oc.Session():
        transaction = oc.atomic()
        with pytest.raises(UsageError, match="once at a time"), transaction, transaction:
            pass
        with transaction:
            assert oc.tensor([1.0]).shape is not None


@pytest.mark.parametrize(
    "fail",
    [
        lambda x: oc.roll(x, 1, axis="a"),
        lambda x: oc.nn.layer_norm(x, epsilon="small"),
        lambda x: oc.nn.cross_entropy(x, oc.tensor([1.0, 2.0])),
    ],
)
def test_functions_and_blocks_are_atomic_in_the_session_of_their_operands(
    fail: Callable[[oc.Tensor], object],
) -> None:
    with oc.Session() as session:
        x = oc.tensor([1.0, 2.0, 3.0])
    with oc.Session():
        before = session.next_id()
        with pytest.raises(UsageError):
            fail(x)
    assert session.next_id() == before + 1
    assert session.undo_log.depth == 0
