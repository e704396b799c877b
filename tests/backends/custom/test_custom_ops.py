"""User-written operations on every backend: results, native code, storage."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers import dtypes
from ocannl_core.tensor.custom import Apply, NoNativeCode, ObjectType, Op, TensorType
from tests.support.sample_ops import SAME, Calling, Square, lines, storing, values

Array = np.ndarray[Any, Any]


def test_an_op_computes_inside_an_expression(ctx: oc.Context) -> None:
    (y,) = values(ctx, Square()(lines(1, 2, 3) + 1.0) * 10.0)
    assert y.tolist() == [40, 90, 160]


def test_perform_can_be_called_by_hand() -> None:
    class Add(Op):
        spec = "; => "

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            x, y = inputs
            (z,) = output_storage
            z[0] = x + y

    add, storage = Add(), [None]
    add.perform(add.make_node(1.0, 2.0), (3, 7), (storage,))  # type: ignore[arg-type]
    assert storage[0] == 10


def test_numbers_are_constants_that_the_op_reads(ctx: oc.Context) -> None:
    (y,) = values(ctx, storing(np.hypot, spec="n; => n")(lines(3, 6), 4.0))
    assert y.tolist() == [5, np.hypot(np.float32(6), np.float32(4))]


def test_an_op_sees_batch_output_and_input_axes_in_this_order(ctx: oc.Context) -> None:
    seen = []
    op = storing(lambda x: seen.append(x.shape) or x.copy())
    x = oc.tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 4), batch_axes=1, input_axes=1)
    (y,) = values(ctx, op(x))
    assert seen == [(2, 3, 4)]
    assert np.array_equal(y, np.arange(24).reshape(2, 3, 4))


def test_all_outputs_of_one_call_are_computed_at_once(ctx: oc.Context) -> None:
    calls = []

    def divide(inputs: Any, storage: Any) -> None:
        calls.append(1)
        storage[0][0], storage[1][0] = np.divmod(*inputs)

    quotient, rest = Calling(divide, "n; n => n; n")(lines(7, 9), lines(2, 5))
    found = values(ctx, quotient + rest, rest)
    assert [each.tolist() for each in found] == [[4, 5], [1, 4]]
    assert len(calls) == 1


def test_an_output_that_nothing_else_needs_is_computed_all_the_same(ctx: oc.Context) -> None:
    def split(inputs: Any, storage: Any) -> None:
        storage[0][0], storage[1][0] = inputs[0][:2], inputs[0][2:]

    _, high = Calling(split, "2*n => n; n")(lines(1, 2, 3, 4))
    assert values(ctx, high)[0].tolist() == [3, 4]


def test_equal_ops_on_equal_inputs_run_once(ctx: oc.Context) -> None:
    class Counting(Square):
        calls = 0

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            Counting.calls += 1
            super().perform(node, inputs, output_storage)

        def c_code(self, node: Apply) -> str:
            raise NoNativeCode

    x = lines(1, 2)
    (y,) = values(ctx, Counting()(x) + Counting()(x))
    assert y.tolist() == [2, 8]
    assert Counting.calls == 1


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "bfloat16", "float64"])
def test_arrays_have_the_format_of_their_tensor(ctx: oc.Context, dtype: str) -> None:
    seen = []
    op = storing(lambda x: seen.append(x.dtype.name) or x + x)
    (y,) = values(ctx, op(oc.tensor([1, 2], dtype=dtype)))
    assert seen == [dtype]
    assert y.astype(float).tolist() == [2, 4]


def test_an_op_may_have_no_inputs(ctx: oc.Context) -> None:
    numbers = iter([[1.0, 2.0], [3.0, 4.0]])

    def read(inputs: Any, storage: Any) -> None:
        storage[0][0] = np.array(next(numbers), np.float32)

    y = Calling(read, " => 2")() * 10.0
    step = ctx.compile(oc.train.forward(y))
    found = []
    for _ in range(2):
        step()
        found.append(ctx[y].tolist())
    assert found == [[10, 20], [30, 40]]


def test_arrays_of_an_op_have_no_margins(ctx: oc.Context) -> None:
    x, kernel = oc.tensor([1.0, 2.0, 3.0]), oc.tensor([1.0, 1.0, 1.0])
    seen = []
    y = storing(lambda x: seen.append((x.shape, x.flags.c_contiguous)) or x * 10)(x * 1.0)
    padded = oc.einsum("i=+k; k => i", y, kernel)  # y gets margins
    both = oc.einsum("i=+k; k => i", x * 1.0, kernel)
    again = storing(lambda x: seen.append((x.shape, x.flags.c_contiguous)) or x + 1)(y)
    found = values(ctx, padded, again, both)
    assert [each.tolist() for each in found] == [[30, 60, 50], [11, 21, 31], [3, 6, 5]]
    assert seen == [((3,), True), ((3,), True)]


def test_recorded_code_uses_ops_at_the_place_where_they_stand(ctx: oc.Context) -> None:
    x, seen = oc.declare("x", output=[2]), oc.declare("seen", output=[2])

    @oc.cd
    def twice(seen: oc.Tensor) -> None:
        x[:] = 3.0
        seen[:] = Square()(x)
        x[:] = 5.0
        seen += Square()(x)

    ctx.compile(twice(seen))()
    assert ctx[seen].tolist() == [34, 34]


def test_ops_that_are_made_of_functions_of_numbers(ctx: oc.Context) -> None:
    from ocannl_core.tensor.custom import Broadcast, Composite, Reduce

    x = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
    found = values(
        ctx,
        Broadcast(np.maximum)(x, lines(2, 3)),
        Broadcast(lambda a, b: a + 10 * b)(x, 2.0),
        Reduce(np.multiply, (-1,))(x),
        Reduce(lambda a, b: 10 * a + b, (-2,))(x),
        Composite(lambda a, b: oc.relu(a - b) + 0.5)(x, 2.0),
        Broadcast(np.add, inplace=True)(x * 2.0, lines(1, 0)),
    )
    assert [each.tolist() for each in found] == [
        [[2, 3], [3, 4]],
        [[21, 22], [23, 24]],
        [2, 12],
        [13, 24],
        [[0.5, 0.5], [1.5, 2.5]],
        [[3, 4], [7, 8]],
    ]


def test_an_op_may_print(ctx: oc.Context, capsys: Any) -> None:
    @dataclass(frozen=True)
    class Doubling(Op):
        debug: bool = False
        spec = SAME

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            if self.debug:
                print("doubling", inputs[0].tolist(), "for", node.op)
            output_storage[0][0] = 2 * inputs[0]

    (y,) = values(ctx, Doubling(debug=True)(Doubling()(lines(1, 2))))
    assert y.tolist() == [4, 8]
    printed = capsys.readouterr().out
    assert printed.count("doubling [2.0, 4.0] for ") == 1
    assert "doubling [1.0" not in printed


class Native(Square):
    """Native code and Python differ, so that results show the one that ran."""

    __props__ = ("allow_c",)

    def __init__(self, allow_c: bool = True) -> None:
        self.allow_c = allow_c

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] + 100

    def c_code(self, node: Apply) -> str:
        if not self.allow_c:
            raise NoNativeCode
        return super().c_code(node)


def test_compiled_backends_run_native_code_where_there_is_some(ctx: oc.Context) -> None:
    (y,) = values(ctx, Native()(lines(1, 2)))
    assert y.tolist() == ([1, 4] if ctx.target.backend == "cpu_c" else [101, 102])


def test_an_op_may_refuse_native_code(ctx: oc.Context) -> None:
    (y,) = values(ctx, Native(allow_c=False)(lines(1, 2)))
    assert y.tolist() == [101, 102]


def test_a_setting_makes_all_ops_run_in_python(ctx: oc.Context) -> None:
    with settings.overrides(python_ops=True):
        (y,) = values(ctx, Native()(lines(1, 2)))
    assert y.tolist() == [101, 102]


def test_storage_holds_arrays_of_the_right_type_that_may_be_reused(ctx: oc.Context) -> None:
    offered = []

    def perform(inputs: Any, storage: Any) -> None:
        (cell,) = storage
        offered.append(None if cell[0] is None else (cell[0].shape, cell[0].dtype.name))
        if cell[0] is None:
            cell[0] = np.empty_like(inputs[0])
        np.multiply(inputs[0], 3, out=cell[0])

    x = oc.placeholder("x", output=[2])
    y = Calling(perform)(x)
    step = ctx.compile(oc.train.forward(y))
    for number in (1.0, 5.0):
        ctx[x] = number
        step()
        assert ctx[y].tolist() == [3 * number] * 2
    assert set(offered) <= {None, ((2,), "float32")}


def test_results_may_be_any_views_of_storage_and_of_inputs(ctx: oc.Context) -> None:
    def swap(inputs: Any, storage: Any) -> None:
        one, other = storage
        for cell in storage:
            if cell[0] is None:
                cell[0] = np.empty_like(inputs[0])
        one[0][...] = inputs[0]
        other[0][...] = 2 * inputs[0]
        one[0], other[0] = other[0][::-1], one[0]

    doubled, same = Calling(swap, "n => n; n")(lines(1, 2, 3))
    reversed_ = storing(lambda x: x[::-1])(lines(1, 2, 3))
    found = values(ctx, doubled, same, reversed_)
    assert [each.tolist() for each in found] == [[6, 4, 2], [1, 2, 3], [3, 2, 1]]


class Buffered(Op):
    """Add into a hidden buffer that grows; the result is a view of it."""

    default_output = 0

    def make_node(self, x: Any, y: Any) -> Apply:
        return Apply(self, [x, y], [TensorType.of(x), ObjectType("buffer")])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        (x, y), (z, stored) = inputs, output_storage
        if stored[0] is None or stored[0].size < x.size:
            stored[0] = np.empty(2 * x.size, x.dtype)
            self.__dict__["grown"] = self.__dict__.get("grown", 0) + 1
        z[0] = stored[0][: x.size].reshape(x.shape)
        np.add(x, y, out=z[0])


def test_a_hidden_output_is_state_from_call_to_call(ctx: oc.Context) -> None:
    op, x = Buffered(), oc.placeholder("x", output=[3])
    y = op(x, lines(1, 2, 3))
    step = ctx.compile(oc.train.forward(y))
    for number in (0.0, 10.0, 20.0):
        ctx[x] = number
        step()
        assert ctx[y].tolist() == [number + 1, number + 2, number + 3]
    assert op.__dict__["grown"] == 1


def test_a_hidden_output_caches_a_plan_for_inputs_like_the_last_ones(ctx: oc.Context) -> None:
    planned = []

    class Sorting(Op):
        """Keep the permutation, and its input."""

        default_output = 0

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.of(x), ObjectType("plan")])

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            (x,), (z, plan) = inputs, output_storage
            if plan[0] is None or not np.array_equal(plan[0][0], x):
                plan[0] = (x.copy(), np.argsort(x))
                planned.append(x.tolist())
            z[0] = x[plan[0][1]]

    x = oc.placeholder("x", output=[3])
    y = Sorting()(x)
    step = ctx.compile(oc.train.forward(y))
    for data in ([3, 1, 2], [3, 1, 2], [9, 8, 7]):
        ctx[x] = np.array(data, np.float32)
        step()
        assert ctx[y].tolist() == sorted(data)
    assert planned == [[3, 1, 2], [9, 8, 7]]


def test_calls_that_overlap_in_time_have_objects_of_their_own(target: str) -> None:
    inside, barrier = [], threading.Barrier(2, timeout=30)

    class Stateful(Op):
        default_output = 0

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.of(x), ObjectType()])

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            _, state = output_storage
            state[0] = state[0] or object()
            barrier.wait()  # both calls are in here
            inside.append(state[0])
            output_storage[0][0] = inputs[0] + 1

    y = Stateful()(lines(1, 2))
    steps = [oc.Context(target).compile(oc.train.forward(y)) for _ in range(2)]
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(inside)) == 2


def doubled(inputs: Any) -> Array:
    found: Array = inputs[0] + inputs[0]
    return found


def nothing(inputs: Any, storage: Any) -> None:
    """Set nothing, and do not read the storage."""


def in_the_first_call(inputs: Any, storage: Any) -> None:
    if inputs[0].flat[0] == 0:
        storage[0][0] = doubled(inputs)


def into_empty_storage(inputs: Any, storage: Any) -> None:
    if storage[0][0] is None:
        storage[0][0] = doubled(inputs)


def after_a_look(inputs: Any, storage: Any) -> None:
    if storage[0][0] is None or storage[0][0].shape != inputs[0].shape:
        storage[0][0] = doubled(inputs)


def as_it_is(inputs: Any, storage: Any) -> None:
    if storage[0][0] is None:
        storage[0][0] = doubled(inputs)
    storage[0][0] = storage[0][0].reshape(inputs[0].shape)


FORGETFUL = [nothing, in_the_first_call, into_empty_storage, after_a_look, as_it_is]
FORMATS = ["float64", "float32", "bfloat16", "float16", "float8_e5m2", "int64", "uint8"]


def repeated(ctx: oc.Context, op: Op, cells: Array) -> Array:
    """Return the result of an op in the second call of a routine, for other cells than in the
    first.
    """
    x = oc.placeholder("x", output=list(cells.shape), dtype=str(cells.dtype))
    y = op(x)
    step = ctx.compile(oc.train.forward(y))
    ctx[x] = np.zeros_like(cells)
    step()
    ctx[x] = cells
    step()
    return np.asarray(ctx[y])


@pytest.mark.parametrize("perform", FORGETFUL)
@pytest.mark.parametrize("dtype", FORMATS)
def test_an_output_that_a_call_does_not_set_is_refused(
    ctx: oc.Context, perform: Any, dtype: str
) -> None:
    cells = np.arange(1, 13).reshape(3, 4).astype(dtypes.dtype_of(dtype).numpy)
    with pytest.raises(oc.OpError, match="sets every output, in every call") as error:
        repeated(ctx, Calling(perform), cells)
    assert "output 0 of Calling" in error.value.found
    assert "output_storage[0][0] = ..." in error.value.fix


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("forgotten", [0, 1])
def test_one_of_several_outputs_that_is_not_set_is_refused(
    ctx: oc.Context, dtype: str, forgotten: int
) -> None:
    def perform(inputs: Any, storage: Any) -> None:
        storage[1 - forgotten][0] = doubled(inputs)

    x = oc.tensor(np.arange(12), dtype=dtype)
    outputs = Calling(perform, "n => n; n")(x)
    with pytest.raises(oc.OpError, match="sets every output") as error:
        values(ctx, *outputs)
    assert f"output {forgotten} of Calling" in error.value.found


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(0,), (1,), (1, 3), (2, 1, 5), (40,)])
def test_outputs_may_be_written_where_they_will_be(
    ctx: oc.Context, dtype: str, shape: tuple[int, ...]
) -> None:
    def perform(inputs: Any, storage: Any) -> None:
        if storage[0][0] is None:
            storage[0][0] = np.empty_like(inputs[0])
        np.copyto(storage[0][0], doubled(inputs))

    cells = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtypes.dtype_of(dtype).numpy)
    found = repeated(ctx, Calling(perform), cells)
    assert np.array_equal(found, cells + cells)


def test_masked_cells_of_outputs_are_refused(ctx: oc.Context) -> None:
    def perform(inputs: Any, storage: Any) -> None:
        storage[0][0] = np.ma.masked_less(inputs[0], 2)

    with pytest.raises(oc.OpError, match="none is masked") as error:
        values(ctx, Calling(perform)(oc.tensor([1.0, 2.0, 3.0])))
    assert "the first at [0] in output 0 of Calling" in error.value.found
    values(ctx, Calling(perform)(oc.tensor([2.0, 3.0])))
    with pytest.raises(oc.TransferError, match="none is masked"):
        Calling(perform)(np.ma.masked_less([1.0, 2.0], 2))


class Doubled(Op):
    """Twice each cell, by iterations that threads share."""

    __props__ = ("iterations",)
    spec = "... => ..."

    def __init__(self, iterations: object = None) -> None:
        self.iterations = iterations

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * 2

    def c_code(self, node: Apply) -> str:
        return "for (int64_t k = begin; k < end; ++k) out0[k] = in0[k] * 2;"

    def c_iterations(self, node: Apply, extents: Any) -> Any:
        return (int(np.prod(extents[0])), 2.0) if self.iterations is None else self.iterations


@pytest.mark.parametrize("shape", [(0,), (1,), (70000,), (3, 5)])
def test_native_code_runs_all_iterations(target: str, shape: tuple[int, ...]) -> None:
    cells = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    ctx = oc.Context(target)
    y = Doubled()(oc.tensor(cells))
    ctx.compile(oc.train.forward(y))()
    np.testing.assert_array_equal(np.array(ctx[y]), 2 * cells)


@pytest.mark.parametrize("wrong", [7, (-1, 2.0), (4, 0.0), ("4", 1.0)])
def test_iterations_are_a_number_and_cycles(wrong: object) -> None:
    y = Doubled(wrong)(oc.tensor(np.ones(4, np.float32)))
    with pytest.raises(oc.OpError, match="a number and the cycles of each"):
        oc.Context("cpu_c").compile(oc.train.forward(y))
