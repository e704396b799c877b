"""Conformance suite for backends.

Derive a test class from `BackendConformance`, name the backend whose results are right by
definition, and provide a fixture `target` with the device under test as `NAME` or `NAME:DEVICE`:

    class TestMyBackend(BackendConformance):
        oracle_name = "reference"
        expected_failures = {"test_external_calls_see_arrays_without_margins": "no callbacks yet"}

        @pytest.fixture
        def target(self):
            return "my_backend"

A device declares its capabilities and number formats in its `Target`. Declared ones must work. The
tests of others are expected failures: a capability must be refused with a `CodegenError`, and one
that works is reported as an unexpected pass. Tests of primitives that a device lacks are left out.

An entry of `expected_failures` names a test or its parametrized id; a test that passes although it
has an entry fails, so the list cannot go stale. A backend that is not installed takes part after
`ocannl_core.backend.manager.register(name, plugin)`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from ocannl_core.backend.protocols import Event, HostBuffer
from ocannl_core.base.errors import CodegenError, UsageError
from ocannl_core.ir.host_arrays import cells_in
from ocannl_core.ir.indexing import affine, fresh_var
from ocannl_core.ir.kernels.requirements import walk_iterations
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.expansions import TWICE_ROUNDED, decomposable
from ocannl_core.ir.numbers.primitives import (
    EVERY_PRIMITIVE,
    HASHES,
    BinaryOp,
    Op,
    UnaryOp,
    VectorOp,
)
from ocannl_core.ir.target import Capability
from ocannl_core.testing import group_programs, number_programs, programs
from ocannl_core.testing.children import succeeds_in_child
from ocannl_core.testing.compare import (
    EXACT,
    Array,
    Tolerance,
    assert_same,
    difference,
    wrong_cells,
)
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.primitive_tables import primitives, special_values, tolerance
from ocannl_core.testing.programs import Example
from ocannl_core.testing.strategies import random_programs
from ocannl_core.testing.subject import Subject, subject_named

EVERY_DTYPE = pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
EVERY_MEMORY = pytest.mark.parametrize("dtype", [*dtypes.ALL, *dtypes.PACKED], ids=str)
FLOATS = tuple(dtype for dtype in dtypes.ALL if dtype.is_float)
INTEGERS = tuple(dtype for dtype in dtypes.ALL if dtype.holds_integers)


Function = TypeVar("Function", bound=Callable[..., Any])

_CAPABILITY = "conformance_capability"
_OF_PROGRAMS: Mapping[object, Capability] = {
    programs.repeated_statements: Capability.REPETITIONS,
    programs.scattered_cells: Capability.SCATTERS,
}
"""The capabilities that some of the hand-made programs need."""


_OVERLAP = (
    "a call ran during another call of the same routine; a launcher refuses it: "
    "backend_api.make_exclusive"
)
_TRIED: set[dtypes.DType] = set()
"""Formats that the running test tries, declared or not."""


def needs(capability: Capability) -> Callable[[Function], Function]:
    """Mark a test of a capability that a backend may lack."""

    def mark(test: Function) -> Function:
        setattr(test, _CAPABILITY, capability)
        return test

    return mark


def has_format(subject: Subject, dtype: dtypes.DType) -> bool:
    """Return True if a device declares a number format, or the test is about it."""
    formats = subject.target.formats
    return formats is None or dtype in formats or dtype in _TRIED


def missing_primitives(subject: Subject, program: ir.LoopProgram) -> list[str]:
    """Return the primitives that a device lacks, if no decomposition has the same bits."""
    if subject.target.primitives is None:
        return []
    missing = frozenset(op for op in EVERY_PRIMITIVE if not subject.has_primitive(op))
    absent = missing - (decomposable(missing) - TWICE_ROUNDED)
    found: dict[str, None] = {}
    for node in walk_iterations(program.body):
        match node:
            case ir.Unary(op) | ir.Binary(op) | ir.Ternary(op) if op in absent:
                found[op.value.name] = None
            case ir.SubgroupReduce(op=op) if op in missing:
                found[op.value.name] = None
            case ir.StoreVector() if VectorOp.UNIFORM in absent:
                found[VectorOp.UNIFORM.value.name] = None
    return list(found)


def require_formats(subject: Subject, program: ir.LoopProgram) -> None:
    """Skip a test of a program with formats or primitives that the device does not have."""
    absent = missing_primitives(subject, program)
    if absent:
        pytest.skip(f"{subject} does not declare {', '.join(absent)}")
    used = dict.fromkeys(info.dtype for info in program.nodes.values())
    missing = [str(dtype) for dtype in used if not has_format(subject, dtype)]
    if missing:
        pytest.skip(f"{subject} does not declare {', '.join(missing)}")


def agree(
    subject: Subject,
    oracle: Subject,
    program: ir.LoopProgram,
    arrays: Mapping[TensorNode, Array] | None = None,
    indices: Sequence[int] = (),
) -> dict[TensorNode, Array]:
    """Return the result of a program after comparing its bits with the oracle's."""
    require_formats(subject, program)
    found = subject.run(program, arrays, indices)
    for node, expected in oracle.run(program, arrays, indices).items():
        assert_same(found[node], expected, program.nodes[node].dtype, EXACT, node.name)
    return found


def check(subject: Subject, oracle: Subject, example: Example) -> None:
    """Raise AssertionError unless subject and oracle give the known result."""
    found = agree(subject, oracle, example.program, example.arrays, example.indices)
    for node, expected in example.expected.items():
        info = example.program.nodes[node]
        known = np.asarray(expected).astype(info.dtype.numpy, copy=False)
        assert_same(found[node], known, info.dtype, example.tolerance, node.name)


class BackendConformance:
    """Tests of one backend; see the module for how to use it."""

    oracle_name: ClassVar[str]
    expected_failures: ClassVar[Mapping[str, str]] = {}
    random_programs_dtypes: ClassVar[tuple[dtypes.DType, ...]] = (
        dtypes.float32,
        dtypes.float64,
        dtypes.int8,
        dtypes.int32,
        dtypes.uint32,
        dtypes.bool_,
    )

    def tolerance_of(self, op: Op, dtype: dtypes.DType) -> Tolerance:
        """Return the accepted error of one application of a primitive."""
        return tolerance(op, dtype)

    @pytest.fixture
    def subject(self, target: str) -> Subject:
        return subject_named(target)

    @pytest.fixture
    def oracle(self) -> Subject:
        return subject_named(self.oracle_name)

    @pytest.fixture(autouse=True)
    def _apply_declarations(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Expect failures of the listed tests, and of tests of parts that are not declared."""
        self._expect_failures(request)
        yield
        _TRIED.clear()

    def _expect_failures(self, request: pytest.FixtureRequest) -> None:
        name = getattr(request.node, "originalname", request.node.name)
        part = _part_of(request)
        if part is not None:
            request.node.user_properties.append(("part", str(getattr(part, "value", part))))
        reason = self.expected_failures.get(request.node.name, self.expected_failures.get(name))
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
            return
        if part is None:
            return
        subject = subject_named(request.getfixturevalue("target"))
        if isinstance(part, Capability):
            if part not in subject.target.capabilities:
                reason = f"{subject} does not declare {part.value}"
                mark = pytest.mark.xfail(reason=reason, strict=False, raises=CodegenError)
                request.node.add_marker(mark)
        elif not has_format(subject, part):
            reason = f"{subject} does not declare {part}"
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=False))
            _TRIED.add(part)

    @EVERY_MEMORY
    def test_new_memory_is_all_zero(self, subject: Subject, dtype: dtypes.DType) -> None:
        info = NodeInfo(dtype, (3, 5))
        used = np.frombuffer(bytes(range(1, 241)), np.uint8)[: info.nbytes]
        for _ in range(3):  # recycled memory is cleared too
            buffer = subject.backend.allocate(info, subject.target)
            assert not any(subject.download(buffer).tobytes())
            subject.backend.transfer(buffer, HostBuffer(_memory(used, info), info)).wait()
            del buffer

    @EVERY_MEMORY
    def test_copying_to_the_device_and_back_keeps_every_bit(
        self, subject: Subject, dtype: dtypes.DType
    ) -> None:
        info = NodeInfo(dtype, (2, 3), (Margin(1, 0), Margin(2, 1)))
        random = np.random.default_rng(0)
        cells = cells_in(_memory(random.integers(0, 256, info.nbytes, np.uint8), info), info)
        buffer = subject.upload(cells, info)
        assert buffer.info == info
        assert buffer.target == subject.target
        assert subject.download(buffer).tobytes() == cells.tobytes()

    def test_statistics_of_memory_are_plausible(self, subject: Subject) -> None:
        found = subject.backend.memory_statistics(subject.target)
        if found is None:
            pytest.skip(f"{subject} states no statistics of its memory")
        info = NodeInfo(dtypes.float32, (min(1 << 22, found.free // 8),))
        buffer = subject.upload(np.ones(info.dims), info)  # a system counts pages once written
        after = subject.backend.memory_statistics(subject.target)
        assert after is not None
        assert after.total == found.total >= info.nbytes
        assert after.in_use is None or after.in_use >= info.nbytes
        if after.peak is not None and after.in_use is not None:
            assert after.peak >= after.in_use // 2  # two counters of a system may differ a little
        del buffer

    def test_a_timed_launch_runs_once(self, subject: Subject) -> None:
        draft = Draft("increment")
        cell = draft.node("cell", dtypes.int32, 1)
        one = ir.Const(1, dtypes.int32)
        program = draft.program(draft.accumulate(cell, 0, op=BinaryOp.ADD, value=one))
        buffer = subject.upload(np.array([10]), program.nodes[cell])
        launch = subject.backend.link(subject.compile(program), {cell: buffer})
        assert 0 <= subject.backend.time_launch(launch, [], subject.target) < 60
        assert subject.download(buffer).tolist() == [11]

    def test_copying_between_buffers_of_the_device(self, subject: Subject) -> None:
        info = NodeInfo(dtypes.float32, (4,))
        source = subject.upload(np.arange(4), info)
        destination = subject.backend.allocate(info, subject.target)
        subject.backend.transfer(destination, source).wait()
        changed = HostBuffer(np.zeros(4, np.float32), info)
        subject.backend.transfer(source, changed).wait()
        assert subject.download(destination).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("dims", [(), (0,), (3, 0, 2)], ids=str)
    def test_nodes_without_axes_or_without_cells_can_be_stored(
        self, subject: Subject, dims: tuple[int, ...]
    ) -> None:
        info = NodeInfo(dtypes.float32, dims)
        buffer = subject.upload(np.ones(dims), info)
        assert np.array_equal(subject.download(buffer), np.ones(dims))

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, dtypes.uint4x32], ids=str)
    def test_every_primitive_has_its_meaning(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        declared = [op for op in primitives(dtype) if subject.has_primitive(op)]
        program, arrays, outputs = number_programs.every_primitive(dtype, declared)
        found, expected = subject.run(program, arrays), oracle.run(program, arrays)
        wrong = []
        for op, node in outputs.items():
            allowed = self.tolerance_of(op, dtype)
            text = difference(found[node], expected[node], dtype, allowed)
            if text:
                _, cell = wrong_cells(found[node], expected[node], dtype, allowed)[0]
                operands = ", ".join(f"{n.name} = {array[cell]}" for n, array in arrays.items())
                wrong.append(f"{op}: {text}\n  operands of the first one: {operands}")
        assert not wrong, "\n".join(wrong)

    @EVERY_DTYPE
    def test_conversions_to_every_format_round_and_wrap(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        if dtype.kind is dtypes.Kind.WORD:
            return
        draft, values = Draft("convert"), special_values(dtype)
        source = draft.node("source", dtype, len(values))
        i = fresh_var("i")
        stores = [
            draft.store(
                draft.node(f"as_{other}", other, len(values)),
                i,
                value=ir.Unary(UnaryOp.IDENTITY, draft.load(source, i), other),
            )
            for other in (*FLOATS, *INTEGERS)
            if has_format(subject, other)
        ]
        arrays = {source: np.array(values, dtype.numpy)}
        agree(subject, oracle, draft.program(loop(i, len(values), *stores)), arrays)

    @EVERY_DTYPE
    def test_constants_keep_their_bits(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        draft, values = Draft("constants"), special_values(dtype)
        result = draft.node("result", dtype, len(values) + 3)
        patterns = [1, 0x3C00_4049_0FDB_3C01, 2**64 - 1]
        stores = []
        if dtype.kind is not dtypes.Kind.WORD:
            stores = [
                draft.store(result, k, value=ir.Const(value, dtype))
                for k, value in enumerate(values)
            ]
        if not dtype.is_float:
            stores += [
                draft.store(result, len(values) + k, value=ir.ConstBits(bits, dtype))
                for k, bits in enumerate(patterns)
            ]
        agree(subject, oracle, draft.program(*stores))

    def test_operations_round_to_their_own_format(self, subject: Subject, oracle: Subject) -> None:
        check(subject, oracle, number_programs.rounds_each_operation())

    def test_a_fused_multiply_add_rounds_once(self, subject: Subject, oracle: Subject) -> None:
        check(subject, oracle, number_programs.fused_multiply_add())

    def test_threefry_gives_the_published_words(self, subject: Subject, oracle: Subject) -> None:
        check(subject, oracle, number_programs.threefry())

    @pytest.mark.parametrize("op", [op for op in BinaryOp if op in HASHES])
    def test_words_are_hashed(self, subject: Subject, oracle: Subject, op: BinaryOp) -> None:
        draft, i = Draft("hash"), fresh_var("i")
        key, counter, word = (
            draft.node(n, dtypes.uint4x32, 64) for n in ("key", "counter", "word")
        )
        hashed = ir.Binary(op, draft.load(key, i), draft.load(counter, i), dtypes.uint4x32)
        words = number_programs.random_words(128)
        arrays = {key: words[:64], counter: words[64:]}
        program = draft.program(loop(i, 64, draft.store(word, i, value=hashed)))
        agree(subject, oracle, program, arrays)

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
    def test_numbers_become_words(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        draft, values = Draft("words"), special_values(dtype)
        source = draft.node("source", dtype, len(values))
        words = draft.node("words", dtypes.uint4x32, len(values))
        i = fresh_var("i")
        store = draft.store(
            words, i, value=ir.Unary(UnaryOp.WORD, draft.load(source, i), dtypes.uint4x32)
        )
        arrays = {source: np.array(values, dtype.numpy)}
        agree(subject, oracle, draft.program(loop(i, len(values), store)), arrays)

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
    def test_bits_become_numbers_of_other_formats(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        draft, values = Draft("bitcasts"), special_values(dtype)
        source, i = draft.node("source", dtype, len(values)), fresh_var("i")
        stores = []
        for other in (*FLOATS, *INTEGERS):
            if other.bits == dtype.bits and other is not dtype:
                node = draft.node(f"as_{other}", other, len(values))
                value = ir.Unary(UnaryOp.BITCAST, draft.load(source, i), other)
                stores.append(loop(i, len(values), draft.store(node, i, value=value)))
        arrays = {source: np.array(values, dtype.numpy)}
        agree(subject, oracle, draft.program(*stores), arrays)

    @pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
    def test_words_become_one_number_each(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        draft = Draft("uniform")
        words, result = draft.node("words", dtypes.uint4x32, 64), draft.node("result", dtype, 64)
        i = fresh_var("i")
        value = ir.Unary(UnaryOp.UNIFORM, draft.load(words, i), dtype)
        arrays = {words: number_programs.random_words(64)}
        program = draft.program(loop(i, 64, draft.store(result, i, value=value)))
        agree(subject, oracle, program, arrays)

    @EVERY_DTYPE
    def test_words_become_as_many_numbers_as_fit(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        check(subject, oracle, number_programs.vector_uniform(dtype))

    @pytest.mark.parametrize("make", programs.HAND_MADE, ids=lambda make: make.__name__)
    def test_hand_made_programs_give_the_known_result(
        self, subject: Subject, oracle: Subject, make: Any
    ) -> None:
        check(subject, oracle, make())

    @pytest.mark.parametrize("dtype", dtypes.PACKED, ids=str)
    def test_cells_of_four_bits_are_loaded(
        self, subject: Subject, oracle: Subject, dtype: dtypes.DType
    ) -> None:
        check(subject, oracle, programs.packed_cells([dtype]))

    @needs(Capability.BARRIERS)
    @pytest.mark.parametrize("make", group_programs.WITH_BARRIERS, ids=lambda make: make.__name__)
    def test_iterations_of_a_group_meet_at_barriers(
        self, subject: Subject, oracle: Subject, make: Any
    ) -> None:
        check(subject, oracle, make())

    @needs(Capability.EXTERNAL_CALLS)
    def test_external_calls_see_arrays_without_margins(
        self, subject: Subject, oracle: Subject
    ) -> None:
        check(subject, oracle, programs.external_call())

    def test_where_does_not_touch_the_operand_it_does_not_choose(
        self, subject: Subject, oracle: Subject
    ) -> None:
        check(subject, oracle, programs.guarded_load())

    @needs(Capability.POSITION_CHECKS)
    def test_a_position_beyond_its_axis_ends_the_routine(self, subject: Subject) -> None:
        program, positions, result = programs.check_before_a_store()
        launch_of = subject.compile(program).link
        buffers = {
            positions: subject.upload(np.array([0, 3, -1], np.int32), program.nodes[positions]),
            result: subject.backend.allocate(program.nodes[result], subject.target),
        }
        with pytest.raises(UsageError, match="positions\\[1\\] = 3, the first of 2"):
            _finish(launch_of(buffers)([]), subject)  # a device may report it late
        assert subject.download(buffers[result]).tolist() == [0, 0]

    @needs(Capability.POSITION_CHECKS)
    def test_positions_in_bounds_pass_a_check(self, subject: Subject, oracle: Subject) -> None:
        formats = [each for each in programs.POSITION_FORMATS if has_format(subject, each)]
        check(subject, oracle, programs.checked_positions(formats))

    @needs(Capability.POSITION_CHECKS)
    def test_a_check_ends_at_the_extent_that_a_call_states(self, subject: Subject) -> None:
        if subject.backend.stated_api < (1, 1):
            pytest.skip(f"{subject} is written for 1.0, where checks have no extent at run time")
        program, positions = programs.check_up_to_an_extent()
        cells = subject.upload(np.array([4, 0, 2], np.int32), program.nodes[positions])
        buffers = {
            node: cells if node is positions else subject.backend.allocate(info, subject.target)
            for node, info in program.nodes.items()
        }
        launch = subject.backend.link(subject.compile(program), buffers)
        _finish(launch([5]), subject)
        with pytest.raises(UsageError, match="positions\\[0\\] = 4"):
            _finish(launch([4]), subject)

    @needs(Capability.MERGE_BUFFERS)
    def test_merge_buffers_are_read_beside_the_nodes(self, subject: Subject) -> None:
        program, cell = programs.sum_with_merge_buffer()
        own = subject.upload(np.array([1.0, 2.0]), program.nodes[cell])
        sent = subject.upload(np.array([10.0, 20.0]), program.nodes[cell])
        executable = subject.compile(program)
        subject.backend.link(executable, {cell: own}, {cell: sent})([])
        assert subject.download(own).tolist() == [11.0, 22.0]
        assert subject.download(sent).tolist() == [10.0, 20.0]

    def test_static_indices_are_given_at_each_call(self, subject: Subject) -> None:
        program, source, result = programs.row_of()
        executable = subject.compile(program)
        table = np.arange(12, dtype=np.float32).reshape(3, 4)
        buffers = {
            source: subject.upload(table, program.nodes[source]),
            result: subject.backend.allocate(program.nodes[result], subject.target),
        }
        launch = executable.link(buffers)
        for row, offset in [(2, 0), (0, 1), (1, 1), (2, 0)]:
            launch([row, offset])
            expected = [*table[row, offset : offset + 3], 10 * row + offset]
            assert subject.download(buffers[result]).tolist() == expected

    def test_a_call_during_the_preparation_of_another_leaves_its_indices(
        self, subject: Subject
    ) -> None:
        """A launcher refuses it, or takes the values of its indices before it changes anything."""
        program, source, result = programs.row_of()
        table = np.arange(12, dtype=np.float32).reshape(3, 4)
        buffers = {
            source: subject.upload(table, program.nodes[source]),
            result: subject.backend.allocate(program.nodes[result], subject.target),
        }
        launch = subject.compile(program).link(buffers)

        class Interrupted(list[int]):
            """Values of indices; another call begins after the first one."""

            def __iter__(self) -> Iterator[int]:
                yield self[0]
                with suppress(UsageError):
                    launch([0, 1])
                yield from self[1:]

        _finish(launch(Interrupted([2, 0])), subject)
        expected = [*table[2, :3].tolist(), 20]
        found = subject.download(buffers[result]).tolist()
        assert found == expected, f"{found} instead of {expected}: {_OVERLAP}"

    @needs(Capability.EXTERNAL_CALLS)
    def test_a_call_during_another_one_is_refused(self, subject: Subject) -> None:
        """Calls share the memory of the routine; a device with a queue may also run it later."""
        running, overlaps = [False], [0]

        def interrupt() -> None:
            if running[0]:
                overlaps[0] += 1
                return
            running[0] = True
            with suppress(UsageError):
                launch([])
            running[0] = False

        program = programs.external_call_of(interrupt)
        nodes = program.nodes
        buffers = {n: subject.backend.allocate(nodes[n], subject.target) for n in program.params}
        launch = subject.compile(program).link(buffers)
        _finish(launch([]), subject)
        assert not overlaps[0], _OVERLAP

    def test_one_executable_links_to_several_memories(self, subject: Subject) -> None:
        draft = Draft("increment")
        cell = draft.node("cell", dtypes.int32, 1)
        one = ir.Const(1, dtypes.int32)
        program = draft.program(draft.accumulate(cell, 0, op=BinaryOp.ADD, value=one))
        executable, info = subject.compile(program), program.nodes[cell]
        first, second = subject.upload(np.array([10]), info), subject.upload(np.array([20]), info)
        launch_first = executable.link({cell: first})
        launch_second = executable.link({cell: second})
        for launch in (launch_first, launch_second, launch_first):
            launch([])
        assert subject.download(first).tolist() == [12]
        assert subject.download(second).tolist() == [21]

    def test_results_can_be_copied_right_after_a_launch(self, subject: Subject) -> None:
        draft, i = Draft("double"), fresh_var("i")
        cells, count = draft.node("cells", dtypes.int32, 4096), 10
        twice = draft.accumulate(cells, i, op=BinaryOp.ADD, value=draft.load(cells, i))
        program = draft.program(loop(i, 4096, twice))
        info = program.nodes[cells]
        buffer = subject.upload(np.arange(4096), info)
        launch = subject.backend.link(subject.compile(program), {cells: buffer})
        for _ in range(count):
            launch([])
        found = HostBuffer(np.empty(4096, np.int32), info)
        subject.backend.transfer(found, buffer).wait()  # no synchronization before
        assert np.array_equal(found.array, np.arange(4096) << count)

    def test_cells_can_be_overwritten_right_after_a_launch(self, subject: Subject) -> None:
        draft, i = Draft("copy"), fresh_var("i")
        source, result = (draft.node(name, dtypes.int32, 4096) for name in ("source", "result"))
        program = draft.program(loop(i, 4096, draft.store(result, i, value=draft.load(source, i))))
        info = program.nodes[source]
        buffers = {
            source: subject.upload(np.arange(4096), info),
            result: subject.backend.allocate(info, subject.target),
        }
        launch = subject.backend.link(subject.compile(program), buffers)
        launch([])
        zeros = HostBuffer(np.zeros(4096, np.int32), info)
        subject.backend.transfer(buffers[source], zeros).wait()
        assert np.array_equal(subject.download(buffers[result]), np.arange(4096))

    def test_generating_code_twice_gives_the_same_text(self, subject: Subject) -> None:
        sources = [subject.generate(programs.matrix_product().program) for _ in range(2)]
        assert sources[0].text == sources[1].text
        assert sources[0].text
        assert sources[0].language

    def test_names_and_remarks_cannot_break_generated_code(
        self, subject: Subject, oracle: Subject
    ) -> None:
        check(subject, oracle, programs.awkward_names())

    def test_a_program_without_statements_runs(self, subject: Subject) -> None:
        draft = Draft("nothing")
        cell = draft.node("cell", dtypes.float32, 2)
        found = subject.run(draft.program(ir.Block()), {cell: np.array([1, 2], np.float32)})
        assert found[cell].tolist() == [1, 2]

    def test_index_values_are_numbers_of_any_format(
        self, subject: Subject, oracle: Subject
    ) -> None:
        draft, i = Draft("positions"), fresh_var("i")
        position = affine([(7, i)], -120)
        stores = [
            draft.store(draft.node(str(dtype), dtype, 50), i, value=ir.IndexValue(position, dtype))
            for dtype in (*FLOATS, *INTEGERS)
            if has_format(subject, dtype)
        ]
        agree(subject, oracle, draft.program(loop(i, 50, *stores)))

    def test_the_child_of_a_fork_computes(self, subject: Subject, oracle: Subject) -> None:
        if not hasattr(os, "fork") or not subject.target.survives_forks:
            pytest.skip(f"{subject} has no children of forks that use it")
        example = programs.matrix_product()
        check(subject, oracle, example)
        assert succeeds_in_child(lambda: check(subject, oracle, example)), (
            "work in the child of a fork fails or hangs: Target.survives_forks=False declares it"
        )

    @needs(Capability.SEVERAL_DEVICES)
    def test_every_device_computes(self, subject: Subject, oracle: Subject) -> None:
        for each in _devices(subject):
            check(each, oracle, programs.matrix_product())

    @needs(Capability.SEVERAL_DEVICES)
    def test_copying_between_devices(self, subject: Subject) -> None:
        info = NodeInfo(dtypes.float32, (4,))
        first, *_, last = _devices(subject)
        source = first.upload(np.arange(4), info)
        destination = last.backend.allocate(info, last.target)
        first.backend.transfer(destination, source).wait()
        assert last.download(destination).tolist() == [0, 1, 2, 3]

    def test_random_programs_give_the_same_bits(self, subject: Subject, oracle: Subject) -> None:
        formats = tuple(each for each in self.random_programs_dtypes if has_format(subject, each))

        @settings(
            max_examples=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(random_programs(formats))
        def run(example: Example) -> None:
            assume(not missing_primitives(subject, example.program))
            check(subject, oracle, example)

        run()


def _finish(end: Event | None, subject: Subject) -> None:
    """Return when a run is over, whose launcher has returned an event or None."""
    if end is not None:
        end.wait()
    subject.backend.synchronize(subject.target)


def _devices(subject: Subject) -> list[Subject]:
    """Return all devices of a backend; skip the test if there is one."""
    found = [Subject(subject.backend, each) for each in subject.backend.targets().targets]
    if len(found) < 2:
        pytest.skip(f"this machine has one device of {subject.backend.name}")
    return found


def _part_of(request: pytest.FixtureRequest) -> Capability | dtypes.DType | None:
    """Return the capability or the number format that a test is about, if a backend may lack it."""
    found = getattr(request.function, _CAPABILITY, None)
    given = getattr(getattr(request.node, "callspec", None), "params", {})
    found = found or _OF_PROGRAMS.get(given.get("make"))
    return found if isinstance(found, Capability) else given.get("dtype")


def _memory(data: Array, info: NodeInfo) -> Array:
    """Return bytes as the memory of a node."""
    return np.ascontiguousarray(data).view(info.memory_numpy).reshape(info.memory_dims)
