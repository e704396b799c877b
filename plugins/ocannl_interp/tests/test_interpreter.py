"""The interpreter against NumPy and hand-made results, and its refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_interp as plugin
from ocannl_core.backend.protocols import HOST, HostBuffer
from ocannl_core.base.errors import LinkError, OcannlError, VerifyError
from ocannl_core.ir.host_arrays import cells_in, memory_of
from ocannl_core.ir.indexing import ConcatIndex, affine, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Fill,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopProgram,
    Scope,
    Scoped,
    SetLocal,
    SubgroupReduce,
    Ternary,
    Unary,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import (
    ALL,
    DType,
    bfloat16,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint4x32,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp, UnaryOp
from ocannl_core.ir.numbers.threefry import numbers_of
from ocannl_core.ir.target import Target
from ocannl_core.testing import group_programs, programs
from ocannl_core.testing.drafts import Draft, at, loop
from ocannl_core.testing.subject import subject_named
from ocannl_interp.groups import lockstep

Array = np.ndarray[Any, Any]
(TARGET,) = plugin.ocannl_targets().targets


def compiled(program: LoopProgram) -> Any:
    """Return the executable of a program as one kernel."""
    nest = Kernel(program.body, program.params, program.indices)
    plan = Plan(program.name, (nest,), program.params, (), program.indices, program.nodes)
    return plugin.ocannl_compile(plugin.ocannl_generate(KernelStream.of(plan), TARGET), TARGET)


def uploaded(program: LoopProgram, arrays: Mapping[TensorNode, Array]) -> dict[TensorNode, Any]:
    """Return buffers for the parameters, filled from the arrays or zero."""
    buffers = {}
    for node in program.params:
        info = program.nodes[node]
        buffers[node] = plugin.ocannl_allocate(info, TARGET)
        if node in arrays:
            cells = np.asarray(arrays[node], info.dtype.numpy)
            host = HostBuffer(memory_of(cells, info), info)
            assert plugin.ocannl_transfer(buffers[node], host) is not None
    return buffers


def run(
    program: LoopProgram, arrays: Mapping[TensorNode, Array] | None = None, *indices: int
) -> dict[TensorNode, Array]:
    """Return the parameters' cells after running a program as one kernel."""
    buffers = uploaded(program, arrays or {})
    compiled(program).link(buffers)(indices)
    return {node: cells_in(buffer.array, buffer.info) for node, buffer in buffers.items()}


def message(error: pytest.ExceptionInfo[OcannlError]) -> str:
    return str(error.value)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*[st.integers(0, 4)] * 3), st.integers(0, 99))
def test_a_matrix_product_adds_in_order_in_single_precision(
    extents: tuple[int, int, int], seed: int
) -> None:
    rows, columns, inner = extents
    draft, (i, j, k) = Draft("matmul"), map(fresh_var, "ijk")
    a, b = draft.node("a", float32, rows, inner), draft.node("b", float32, inner, columns)
    c = draft.node("c", float32, rows, columns)
    product = Binary(BinaryOp.MUL, draft.load(a, i, k), draft.load(b, k, j), float32)
    update = draft.accumulate(c, i, j, op=BinaryOp.ADD, value=product)
    nest = loop(i, rows, loop(j, columns, loop(k, inner, update)))
    random = np.random.default_rng(seed)
    arrays = {
        a: random.normal(size=(rows, inner)).astype(np.float32),
        b: random.normal(size=(inner, columns)).astype(np.float32),
    }
    expected = np.zeros((rows, columns), np.float32)
    for step in range(inner):
        expected += np.outer(arrays[a][:, step], arrays[b][step])
    found = run(draft.program(Fill(c, 0.0), nest), arrays)
    assert np.array_equal(found[c], expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(width=16), min_size=1, max_size=8))
def test_reductions_agree_with_numpy_also_for_infinities_and_nan(values: list[float]) -> None:
    draft, i = Draft("reductions"), fresh_var("i")
    source = draft.node("source", float64, len(values))
    reductions = {
        BinaryOp.ADD: np.add,
        BinaryOp.MUL: np.multiply,
        BinaryOp.MAX: np.maximum,
        BinaryOp.MIN: np.minimum,
    }
    results = {op: draft.node(op.value.name, float64) for op in reductions}
    fills = [Fill(node, float(op.value.neutral or 0.0)) for op, node in results.items()]
    updates = [
        draft.accumulate(node, op=op, value=draft.load(source, i)) for op, node in results.items()
    ]
    program = draft.program(*fills, loop(i, len(values), *updates))
    found = run(program, {source: np.array(values)})
    for op, node in results.items():
        with np.errstate(all="ignore"):
            expected = np.float64(op.value.neutral or 0.0)
            for value in values:
                expected = reductions[op](expected, np.float64(value))
        assert np.array_equal(found[node], expected, equal_nan=True), op


def test_broadcasting_is_a_fixed_index() -> None:
    draft, i, j = Draft("broadcast"), fresh_var("i"), fresh_var("j")
    column, row = draft.node("column", float32, 3, 1), draft.node("row", float32, 4)
    result = draft.node("result", float32, 3, 4)
    total = Binary(BinaryOp.SUB, draft.load(column, i, 0), draft.load(row, j), float32)
    arrays = {column: np.arange(3.0).reshape(3, 1), row: np.array([1.0, 20.0, 300.0, 4000.0])}
    program = draft.program(loop(i, 3, loop(j, 4, draft.store(result, i, j, value=total))))
    assert np.array_equal(run(program, arrays)[result], arrays[column] - arrays[row])


@pytest.mark.parametrize(
    "make", [*programs.HAND_MADE, programs.external_call], ids=lambda make: make.__name__
)
def test_statements_give_the_known_result(make: Any) -> None:
    example = make()
    found = run(example.program, example.arrays, *example.indices)
    for node, expected in example.expected.items():
        np.testing.assert_array_equal(found[node], expected, strict=False)


def evaluated(expr: Any) -> Any:
    """Return the value of an expression without operands in memory."""
    draft = Draft("value")
    result = draft.node("result", expr.dtype)
    return run(draft.program(draft.store(result, value=expr)))[result].item()


def test_every_operation_rounds_to_its_format() -> None:
    def increment(dtype: DType, amount: float) -> float:
        one = Const(1.0, dtype)
        return float(evaluated(Binary(BinaryOp.ADD, one, Const(amount, dtype), dtype)))

    assert increment(float64, 2.0**-52) == 1 + 2.0**-52
    assert increment(float32, 2.0**-24) == 1
    assert increment(float16, 2.0**-10) == 1 + 2.0**-10
    assert increment(bfloat16, 2.0**-8) == 1
    assert increment(float8_e5m2, 2.0**-2) == 1.25


def test_a_fused_multiply_add_in_single_precision_is_rounded_from_its_exact_value() -> None:
    factor, tiny = Const(1 + 2.0**-12, float32), Const(2.0**-60, float32)
    fused = Ternary(TernaryOp.FMA, factor, factor, tiny, float32)
    assert evaluated(fused) == 1 + 2.0**-11 + 2.0**-23
    product = Binary(BinaryOp.MUL, factor, factor, float32)
    assert evaluated(Binary(BinaryOp.ADD, product, tiny, float32)) == 1 + 2.0**-11


def test_integers_wrap_and_fractions_are_cut_off() -> None:
    largest = Const(2**31 - 1, int32)
    assert evaluated(Binary(BinaryOp.ADD, largest, Const(1, int32), int32)) == -(2**31)
    assert evaluated(Unary(UnaryOp.NEG, Const(1, uint8), uint8)) == 255
    assert evaluated(Binary(BinaryOp.DIV, Const(-7, int64), Const(2, int64), int64)) == -3
    assert evaluated(Binary(BinaryOp.MOD, Const(-7, int64), Const(2, int64), int64)) == 1
    assert evaluated(Unary(UnaryOp.IDENTITY, Const(-2.9, float64), int32)) == -2
    assert evaluated(Unary(UnaryOp.IDENTITY, Const(2**63 + 1.0, float64), uint64)) == 2**63


def test_a_word_holds_as_many_numbers_as_fit_low_bits_first() -> None:
    word = (0x76BB7178, 0xBB82AC4F, 0x8F90552B, 0x81B2DA10)

    def decimals(dtype: DType) -> list[float]:
        return [round(number, 3) for number in numbers_of(word, dtype)]

    assert decimals(float32) == [0.464, 0.732, 0.561, 0.507]
    assert decimals(float16) == [0.443, 0.464, 0.673, 0.732, 0.333, 0.561, 0.852, 0.507]
    assert decimals(float64) == [0.732, 0.507]
    assert numbers_of(word, uint16)[:3] == (0x7178, 0x76BB, 0xAC4F)
    assert numbers_of(word, uint64)[1] == 0x81B2DA10_8F90552B
    assert numbers_of(word, int32)[1] == 0xBB82AC4F - 2**32
    assert numbers_of(word, uint8)[:2] == (0x78, 0x71)
    assert numbers_of((0x3C, 0, 0, 0), float8_e5m2)[0] == 1.0
    assert numbers_of(word, uint4x32) == (word,)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int32, uint32, uint4x32], ids=str)
def test_memory_of_the_program_is_undefined_each_time_it_is_allocated(dtype: DType) -> None:
    draft, i = Draft("undefined"), fresh_var("i")
    cells, result = draft.scratch("cells", dtype, 1), draft.node("result", dtype, 2)
    body = loop(
        i,
        2,
        Allocate(cells, Scope.KERNEL),
        draft.store(result, i, value=draft.load(cells, 0)),
        draft.store(cells, 0, value=Load(result, at(0), dtype)),
    )
    found = run(draft.program(body))[result]
    if dtype.is_float:
        assert np.isnan(found).all()
    else:
        assert found.tobytes() == b"\xa5" * found.nbytes


def test_a_variable_is_undefined_each_time_it_is_declared() -> None:
    draft, i, total = Draft("undefined"), fresh_var("i"), Local(0, float32)
    result = draft.node("result", float32, 2)
    body = loop(
        i,
        2,
        DeclareLocal(total),
        draft.store(result, i, value=LocalRead(total)),
        SetLocal(total, Const(1.0, float32)),
    )
    assert np.isnan(run(draft.program(body))[result]).all()


@pytest.mark.parametrize("make", group_programs.WITH_BARRIERS, ids=lambda make: make.__name__)
def test_iterations_of_a_group_meet_at_barriers(make: Any) -> None:
    example = make()
    found = run(example.program, example.arrays, *example.indices)
    for node, expected in example.expected.items():
        np.testing.assert_array_equal(found[node], expected)


def exchange(*between: Any, scope_inside: bool = False) -> Array:
    """Return the cells of each other that four threads read after the statements between."""
    draft, t = Draft("exchange"), fresh_var("t")
    shared, result = draft.scratch("shared", float32, 4), draft.node("result", float32, 4)
    allocate = Allocate(shared, Scope.GROUP)
    threads = loop(
        t,
        4,
        *([allocate] if scope_inside else []),
        draft.store(shared, t, value=IndexValue(at(t)[0], float32)),
        *between,
        draft.store(result, t, value=draft.load(shared, affine([(-1, t)], 3))),
        kind=AxisKind.BLOCK,
    )
    body = [threads] if scope_inside else [allocate, threads]
    return run(draft.program(loop(fresh_var("g"), 1, *body, kind=AxisKind.GRID)))[result]


def test_without_a_barrier_iterations_run_one_after_the_other() -> None:
    np.testing.assert_array_equal(exchange(), [np.nan, np.nan, 1, 0])


def test_group_memory_allocated_by_each_iteration_is_one_memory() -> None:
    assert exchange(Barrier(), scope_inside=True).tolist() == [3, 2, 1, 0]


def test_a_barrier_in_a_nested_serial_loop_or_block_stops_all_iterations() -> None:
    assert exchange(loop(fresh_var("s"), 2, Block((Barrier(),)))).tolist() == [3, 2, 1, 0]


def test_group_memory_allocated_again_is_undefined_again() -> None:
    draft, s, t = Draft("again"), fresh_var("s"), fresh_var("t")
    shared, result = draft.scratch("shared", float32, 2), draft.node("result", float32, 2, 2)
    steps = loop(
        s,
        2,
        Allocate(shared, Scope.GROUP),
        draft.store(result, s, t, value=draft.load(shared, t)),
        draft.store(shared, t, value=Const(1.0, float32)),
        Barrier(),
    )
    assert np.isnan(run(draft.program(loop(t, 2, steps, kind=AxisKind.BLOCK)))[result]).all()


def test_a_thread_changes_only_its_copy_of_thread_memory_and_variables() -> None:
    draft, t, total = Draft("copies"), fresh_var("t"), Local(0, int32)
    own, result = draft.scratch("own", int32, 1), draft.node("result", int32, 3, 2)
    threads = loop(
        t,
        3,
        draft.accumulate(own, 0, op=BinaryOp.ADD, value=IndexValue(at(t)[0], int32)),
        SetLocal(total, Binary(BinaryOp.ADD, LocalRead(total), draft.load(own, 0), int32)),
        Barrier(),
        draft.store(result, t, 0, value=draft.load(own, 0)),
        draft.store(result, t, 1, value=LocalRead(total)),
        kind=AxisKind.BLOCK,
    )
    body = (
        Allocate(own, Scope.THREAD),
        DeclareLocal(total),
        SetLocal(total, Const(100, int32)),
        draft.store(own, 0, value=Const(10, int32)),
        threads,
    )
    assert run(draft.program(*body))[result].tolist() == [[10, 110], [11, 111], [12, 112]]


def test_a_reduction_over_lanes_that_do_not_divide_the_iterations_is_an_error() -> None:
    draft, t, total = Draft("odd"), fresh_var("t"), Local(0, float32)
    result = draft.node("result", float32, 6)
    body = loop(
        t,
        6,
        DeclareLocal(total),
        SubgroupReduce(total, Const(1.0, float32), BinaryOp.ADD, 4),
        draft.store(result, t, value=LocalRead(total)),
        kind=AxisKind.BLOCK,
    )
    with pytest.raises(VerifyError) as error:
        subject_named("interp").run(draft.program(body))
    assert "4 lanes, and 6 iterations" in str(error.value)


def test_iterations_that_miss_a_barrier_are_an_error() -> None:
    barrier = Barrier()

    def member(*barriers: Barrier) -> Iterator[Barrier]:
        yield from barriers

    assert len(list(lockstep([member(barrier, barrier), member(barrier, barrier)]))) == 2
    with pytest.raises(VerifyError) as error:
        list(lockstep([member(barrier), member()]))
    assert message(error) == snapshot("""\
All BLOCK iterations come to the same barriers.
  found  1 of 2 iterations wait, not all at the same barrier\
""")
    with pytest.raises(VerifyError, match="not all at the same barrier"):
        list(lockstep([member(barrier), member(Barrier())]))


def test_a_barrier_inside_a_value_is_an_error() -> None:
    draft, local = Draft("value"), Local(0, float32)
    result = draft.node("result", float32)
    body = Block((SetLocal(local, Const(0.0, float32)), Barrier()))
    with pytest.raises(VerifyError, match="not part of a value"):
        run(draft.program(draft.store(result, value=Scoped(local, body))))


def test_an_access_outside_the_node_names_position_and_extents() -> None:
    draft, i = Draft("outside"), fresh_var("i")
    source, result = draft.node("source", float32, 3, 4), draft.node("result", float32, 4)
    value = draft.load(source, affine([(1, i)], 1), i)
    with pytest.raises(VerifyError) as error:
        run(draft.program(loop(i, 4, draft.store(result, i, value=value))))
    assert message(error) == snapshot("""\
Accesses stay inside the node.
  found  position [3, 2] of extents [3, 4]
  where  <node 0 source>\
""")


def test_names_out_of_scope_are_errors() -> None:
    draft, i = Draft("scope"), fresh_var("i")
    cells, result = draft.scratch("cells", float32, 1), draft.node("result", float32, 1)
    read = draft.store(result, 0, value=draft.load(cells, 0))
    with pytest.raises(VerifyError) as error:
        run(draft.program(Block((Allocate(cells, Scope.KERNEL),)), read))
    assert message(error) == snapshot("""\
A name is used where it is in scope.
  found  <node 0 cells> is not\
""")
    with pytest.raises(VerifyError, match="LoopVar"):
        run(draft.program(loop(i, 2), draft.store(result, i, value=Const(0.0, float32))))
    with pytest.raises(VerifyError, match="Local"):
        run(draft.program(draft.store(result, 0, value=LocalRead(Local(0, float32)))))
    with pytest.raises(VerifyError, match="has memory already"):
        run(draft.program(Allocate(result, Scope.KERNEL)))


def test_a_kernel_sees_only_its_arguments() -> None:
    draft = Draft("arguments")
    result = draft.node("result", float32, 1)
    program = draft.program(draft.store(result, 0, value=Const(0.0, float32)))
    plan = Plan("p", (Kernel(program.body, (), ()),), program.params, (), (), program.nodes)
    with pytest.raises(VerifyError, match="in scope"):
        plugin.ocannl_compile(plugin.ocannl_generate(KernelStream.of(plan), TARGET), TARGET)


def test_a_concatenated_index_is_an_error() -> None:
    draft, i = Draft("concat"), fresh_var("i")
    result = draft.node("result", float32, 2)
    store = draft.store(result, ConcatIndex((i,)), value=Const(0.0, float32))
    with pytest.raises(VerifyError, match="Lowering removes"):
        run(draft.program(loop(i, 2, store)))


def test_linking_needs_a_fitting_buffer_of_this_backend_for_every_parameter() -> None:
    draft = Draft("link")
    node = draft.node("x", float32, 2)
    executable = compiled(draft.program())
    with pytest.raises(LinkError) as error:
        executable.link({})
    assert message(error) == snapshot("""\
Linking gives a buffer of this backend for every node that needs one.
  found  none
  where  <node 0 x>
  try    allocate its buffer before linking\
""")
    info = NodeInfo(float32, (2,))
    with pytest.raises(LinkError, match="one of host:0"):
        executable.link({node: HostBuffer(np.zeros(2, np.float32), info)})
    wrong = plugin.ocannl_allocate(NodeInfo(float64, (3,)), TARGET)
    with pytest.raises(LinkError) as error:
        executable.link({node: wrong})
    assert message(error) == snapshot("""\
A buffer has the number format and the extents of its node.
  found  float64 [3] for float32 [2]
  where  <node 0 x>\
""")


def test_a_merge_buffer_is_given_when_linking() -> None:
    draft = Draft("merge")
    node = draft.node("p", float32, 2)
    value = LoadMerge(node, at(1), float32)
    program = draft.program(draft.accumulate(node, 0, op=BinaryOp.ADD, value=value))
    executable, buffers = compiled(program), uploaded(program, {node: np.array([1.0, 2.0])})
    with pytest.raises(LinkError) as error:
        executable.link(buffers)
    assert message(error) == snapshot("""\
Linking gives a merge buffer of this backend for every node that needs one.
  found  none
  where  <node 0 p>
  try    allocate its merge buffer before linking\
""")
    merge_buffers = uploaded(program, {node: np.array([10.0, 20.0])})
    executable.link(buffers, merge_buffers)([])
    assert buffers[node].array.tolist() == [21, 2]


def test_static_indices_are_values_of_the_call() -> None:
    program, source, result = programs.row_of()
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert run(program, {source: table}, 2, 1)[result].tolist() == [9, 10, 11, 21]


def test_the_source_is_the_program_as_text() -> None:
    example = programs.matrix_product()
    program = example.program
    nest = Kernel(program.body, program.params, ())
    plan = Plan("matmul", (nest,), program.params, (), (), program.nodes)
    source = plugin.ocannl_generate(KernelStream.of(plan), TARGET)
    assert source.language == "loop-ir"
    assert source.text == snapshot("""\
routine matmul(a: float32[3, 4], b: float32[4, 5], c: float32[3, 5]):
    c[:] = 0.0
    for i in range(3):
        for j in range(5):
            for k in reduction(4):
                c[i, j] += a[i, k] * b[k, j]\
""")


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_new_memory_is_zero_and_owned_by_the_target(dtype: DType) -> None:
    buffer = plugin.ocannl_allocate(NodeInfo(dtype, (2, 3)), TARGET)
    assert buffer.array.tobytes() == bytes(6 * dtype.nbytes)
    assert buffer.target is TARGET


def test_foreign_memory_is_left_to_others() -> None:
    class Foreign:
        target, info = Target("elsewhere"), NodeInfo(float32, (1,))

    own = plugin.ocannl_allocate(Foreign.info, TARGET)
    assert plugin.ocannl_transfer(own, Foreign()) is None
    assert plugin.ocannl_transfer(Foreign(), own) is None
    assert HostBuffer(np.zeros(1, np.float32), Foreign.info).target is HOST
