"""User-written operations on every backend: results, storage, gradients, memory, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core import settings
from ocannl_core.custom import Apply, NoNativeCode, ObjectType, Op, TensorType

Array = np.ndarray[Any, Any]
SAME = "...|...->... => ...|...->..."
TWO = "...|...->...; ...|...->... => ...|...->..."


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=1) as session:
        yield session


@pytest.fixture
def ctx(target: str) -> oc.Context:
    return oc.Context(target)


def values(ctx: oc.Context, *tensors: oc.Tensor) -> list[Array]:
    """Returns the cells of tensors after computing them all in one routine."""
    code = oc.train.forward(tensors[0])
    for tensor in tensors[1:]:
        code += oc.train.forward(tensor)
    ctx.compile(code)()
    return [ctx[tensor] for tensor in tensors]


def total(y: oc.Tensor) -> oc.Tensor:
    return oc.einsum("...|...->... => 0", y)


def lines(*values: float) -> oc.Tensor:
    return oc.tensor(list(values))


class Square(Op):
    __props__ = ()
    spec = SAME

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * inputs[0]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        return [2.0 * inputs[0] * output_gradients[0]]

    def c_code(self, node: Apply) -> str:
        return "for (int64_t i = 0; i < in0_size; ++i) out0[i] = in0[i] * in0[i];"


@dataclass(frozen=True, repr=False)
class Calling(Op):
    """Does what a function says; every instance is an op of its own."""

    function: Any
    spec: str = SAME
    destroy_map: Any = field(default_factory=dict, hash=False)
    view_map: Any = field(default_factory=dict, hash=False)
    title: str = "Calling"

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> Any:
        return self.function(inputs, output_storage)

    def __repr__(self) -> str:
        return self.title


def storing(function: Any, **keywords: Any) -> Calling:
    """An op of one output, computed by a function of arrays."""

    def perform(inputs: Any, storage: Any) -> None:
        storage[0][0] = function(*inputs)

    return Calling(perform, **keywords)


def increment(x: Array, y: Array) -> Array:
    x += y
    return x


def in_place(function: Any = increment, spec: str = TWO) -> Calling:
    return storing(function, spec=spec, destroy_map={0: [0]})


# ----- results ------------------------------------------------------------------------------------


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
    from ocannl_core.custom import Broadcast, Composite, Reduce

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


def test_an_op_may_print_what_it_does(ctx: oc.Context, capsys: Any) -> None:
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


# ----- native code --------------------------------------------------------------------------------


class Native(Square):
    """Native code and Python differ, so that one sees which of them runs."""

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


# ----- storage ------------------------------------------------------------------------------------


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
    """Adds into a hidden buffer that grows; the result is a view of it."""

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
        """Keeps the permutation, and the input that it was computed on."""

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


# ----- gradients ----------------------------------------------------------------------------------


class Mul(Op):
    __props__ = ()
    spec = TWO

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0] * inputs[1]

    def grad(self, inputs: Any, output_gradients: Any) -> Any:
        x, y = inputs
        (gz,) = output_gradients
        return gz * y, gz * x


def gradients(ctx: oc.Context, loss: oc.Tensor, *tensors: oc.Tensor) -> list[Any]:
    kept = [each.grad for each in tensors if each.grad is not None]
    step = ctx.compile(oc.train.grad_update(loss), keep=[loss, *kept])
    ctx.init_params(loss)
    step()
    return [ctx[each].tolist() for each in kept]


def test_gradients_flow_into_every_input(ctx: oc.Context) -> None:
    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    loss = total(Mul()(x, y) * lines(1, 10))
    assert gradients(ctx, loss, x, y) == [[3, 50], [1, 20]]


def test_every_use_adds_to_the_gradient(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 2.0])
    loss = total(Mul()(x, x) + Square()(x) + x)
    assert gradients(ctx, loss, x) == [[5, 9]]


def test_gradients_flow_through_ops_between_primitives(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 2.0])
    loss = total(Square()(Square()(x * 2.0)))  # 16 x**4
    assert gradients(ctx, loss, x) == [[64, 512]]


def test_a_gradient_is_summed_over_all_outputs(ctx: oc.Context) -> None:
    class SumAndProduct(Op):
        spec = "n; n => n; n"

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            x, y = inputs
            output_storage[0][0], output_storage[1][0] = x + y, x * y

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            (x, y), (gz, gw) = inputs, output_gradients
            return gz + gw * y, gz + gw * x

    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    both, product = SumAndProduct()(x, y)
    assert gradients(ctx, total(both * 100.0 + product), x, y) == [[103, 105], [101, 102]]
    # an output outside of the loss has gradient zero
    assert gradients(ctx.child(), total(product * 1.0), x, y) == [[3, 5], [1, 2]]


def test_none_is_for_inputs_in_which_the_op_is_not_differentiable(ctx: oc.Context) -> None:
    class Step(Mul):
        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [None, output_gradients[0] * inputs[0]]

    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=[3.0, 5.0])
    assert gradients(ctx, total(Step()(x, y)), x, y) == [[0, 0], [1, 2]]

    class Constant(Mul):
        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [None] * len(inputs)

    assert gradients(ctx.child(), total(Constant()(x, y) + y), x, y) == [[0, 0], [1, 1]]


def test_the_gradient_of_an_op_may_use_ops_and_the_op_itself(ctx: oc.Context) -> None:
    class Exp(Op):
        __props__ = ()
        spec = SAME
        calls = 0

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            Exp.calls += 1
            output_storage[0][0] = np.exp(inputs[0])

        def grad(self, inputs: Any, output_gradients: Any) -> Any:
            return [Mul()(output_gradients[0], self(inputs[0]))]

    x = oc.param("x", init=[0.0, 0.0])
    assert gradients(ctx, total(Exp()(x)), x) == [[1, 1]]
    assert Exp.calls == 1  # the op in the gradient is the node in the loss


def test_two_losses_in_one_computation_backpropagate_apart(ctx: oc.Context) -> None:
    x = oc.param("x", init=[1.0, 3.0])
    y = Square()(x)
    one, other = total(y * 1.0), total(y * 10.0)
    seen = oc.declare("seen", output=[2])

    @oc.cd
    def note() -> None:
        seen[:] = x.grad

    code = oc.train.grad_update(one) + note() + oc.train.grad_update(other)
    step = ctx.compile(code)
    ctx.init_params(one)
    step()
    assert ctx[seen].tolist() == [2, 6]
    assert ctx[x.grad].tolist() == [20, 60]


def test_the_gradient_of_a_repeated_input_is_summed(ctx: oc.Context) -> None:
    from ocannl_core.custom import Broadcast

    op = Broadcast(np.multiply, gradient=lambda x, g: [g[0] * x[1], g[0] * x[0]])
    x, y = oc.param("x", init=[1.0, 2.0]), oc.param("y", init=3.0, output=[], input=[])
    assert gradients(ctx, total(op(x, y)), x, y) == [[3, 3], 3]


def test_training_goes_through_an_op(ctx: oc.Context) -> None:
    w, x = oc.param("w", output=[2], init=0.1), oc.tensor([1.0, 2.0, 3.0])
    loss = total(Square()(w @ x - lines(1, -1)))
    step = ctx.compile(oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.02))
    ctx.init_params(loss)
    losses = []
    for _ in range(40):
        step()
        losses.append(ctx.item(loss))
    assert losses[-1] < 1e-3 < losses[0]


# ----- destroyers and views -----------------------------------------------------------------------


def test_a_destroyer_runs_after_every_other_reader(ctx: oc.Context) -> None:
    x = lines(1, 2) * 1.0
    z = in_place()(x, lines(10, 20))
    found = values(ctx, z, x * 100.0, Square()(x))
    assert [each.tolist() for each in found] == [[11, 22], [100, 200], [1, 4]]


def test_the_second_input_may_be_the_destroyed_one(ctx: oc.Context) -> None:
    op = storing(lambda x, y: increment(y, x), spec=TWO, destroy_map={0: [1]})
    y = lines(10, 20) * 1.0
    found = values(ctx, op(lines(1, 2), y), y + 0.5)
    assert [each.tolist() for each in found] == [[11, 22], [10.5, 20.5]]


def test_scratch_inputs_are_lost_after_every_other_reader(ctx: oc.Context) -> None:
    def scratch(inputs: Any, storage: Any) -> None:
        inputs[0][...] *= 7
        storage[0][0] = inputs[0] + 1

    x = lines(1, 2) * 1.0
    z = Calling(scratch, destroy_map={None: [0]})(x)
    found = values(ctx, z, x * 100.0)
    assert [each.tolist() for each in found] == [[8, 15], [100, 200]]


def test_readers_of_views_come_first_too(ctx: oc.Context) -> None:
    view = storing(lambda x: x[::-1], view_map={0: [0]})
    x = lines(1, 2) * 1.0
    z = in_place()(x, lines(10, 20))
    through = view(storing(lambda x: x, view_map={0: [0]})(x))  # a view of a view
    found = values(ctx, z, through * 100.0)
    assert [each.tolist() for each in found] == [[11, 22], [200, 100]]


def test_destroying_a_view_destroys_what_it_views(ctx: oc.Context) -> None:
    x = lines(1, 2) * 1.0
    view = storing(lambda x: x, view_map={0: [0]})(x)
    z = in_place()(view, lines(10, 20))
    code = oc.train.forward(z) + oc.train.forward(x * 100.0)
    lines_of_code = [line.strip() for line in str(code).splitlines()]
    reader = next(k for k, line in enumerate(lines_of_code) if line.startswith("mul1[o] ="))
    destroyer = next(k for k, line in enumerate(lines_of_code) if "(Calling, literal1)" in line)
    assert reader < destroyer
    ctx.compile(code)()
    assert ctx[z].tolist() == [11, 22]


def test_one_update_may_follow_another(ctx: oc.Context) -> None:
    x = lines(1, 2) * 1.0
    z = in_place()(in_place()(x, lines(10, 20)), lines(100, 200))
    found = values(ctx, z, x + 0.0)
    assert [each.tolist() for each in found] == [[111, 222], [1, 2]]


def test_an_output_takes_over_the_memory_of_a_destroyed_input(ctx: oc.Context) -> None:
    seen = []

    def note(x: Array, y: Array) -> Array:
        seen.append(x.__array_interface__["data"][0])
        return increment(x, y)

    z = in_place(note)(in_place(note)(lines(1, 2) * 1.0, 10.0 * lines(1, 1)), lines(5, 5))
    values(ctx, z)
    assert seen[0] == seen[1]


def test_a_parameter_is_updated_in_place(ctx: oc.Context) -> None:
    p = oc.param("p", init=[1.0, 2.0])
    new = in_place()(p, lines(10, 20))
    step = ctx.compile(oc.train.forward(new))
    ctx.init_params(p)
    step()
    step()
    assert ctx[p].tolist() == ctx[new].tolist() == [21, 42]


def test_recorded_code_updates_in_place_without_an_assignment(ctx: oc.Context) -> None:
    p, count = oc.param("p", init=[1.0, 2.0]), oc.declare("count", output=[1])

    @oc.cd
    def update(count: oc.Tensor) -> None:
        in_place()(p, 0.5 * p.grad)
        count += 1.0

    loss = total(Square()(p))
    step = ctx.compile(oc.train.grad_update(loss) + update(count))
    ctx.init_params(loss)
    step()
    assert ctx[p].tolist() == [2, 4]
    assert ctx[count].tolist() == [1]


def test_a_declared_tensor_may_be_the_private_state_of_an_op(ctx: oc.Context) -> None:
    def accumulate(inputs: Any, storage: Any) -> None:
        x, state = inputs
        state += x
        storage[0][0] = state.copy()

    class RunningSum(Op):
        """Keeps a sum in an input that the wrapper below supplies."""

        spec = "n; n => n"
        destroy_map = {None: [1]}  # noqa: RUF012

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            accumulate(inputs, output_storage)

    def running_sum(x: oc.Tensor) -> oc.Tensor:
        result: oc.Tensor = RunningSum()(x, oc.declare("state", output=[2]))
        return result

    x = oc.placeholder("x", output=[2])
    y = running_sum(x)
    step = ctx.compile(oc.train.forward(y))
    for number, sums in ((1.0, [1, 1]), (5.0, [6, 6]), (2.0, [8, 8])):
        ctx[x] = number
        step()
        assert ctx[y].tolist() == sums


def test_margins_around_what_is_updated_in_place_stay(ctx: oc.Context) -> None:
    p, kernel = oc.param("p", init=[1.0, 2.0, 3.0]), oc.tensor([1.0, 1.0, 1.0])
    smooth = oc.einsum("i=+k; k => i", p, kernel)
    new = in_place()(p, smooth)
    step = ctx.compile(oc.train.forward(new))
    ctx.init_params(p)
    step()
    assert ctx[p].tolist() == [4, 8, 8]


def conflict(*tensors: oc.Tensor) -> str:
    code = oc.train.forward(tensors[0])
    for tensor in tensors[1:]:
        code += oc.train.forward(tensor)
    with pytest.raises(oc.OpError) as error:
        code.resolve()
    return str(error.value)


def test_two_destroyers_of_one_value_are_both_named() -> None:
    x = lines(1, 2) * 1.0
    one = storing(increment, spec=TWO, destroy_map={0: [0]}, title="One")(x, lines(1, 1))
    other = storing(increment, spec=TWO, destroy_map={0: [0]}, title="Other")(x, lines(2, 2))
    assert conflict(one, other) == snapshot("""\
One operation at most destroys a value.
  found  One and Other both destroy mul
  where  One, at test_custom_ops.py:698: one = storing(increment, spec=TWO, destroy_map={0: [0]}, title="One")(x, lines(1, 1))
         Other, at test_custom_ops.py:699: other = storing(increment, spec=TWO, destroy_map={0: [0]}, title="Other")(x, lines(2, 2))
  try    give one of them a copy, or the result of the other\
""")


def test_a_destroyer_of_a_parameter_that_is_read_later_is_named_with_the_reader() -> None:
    p = oc.param("p", init=[1.0, 2.0])
    new = in_place()(p, lines(1, 1))
    text = conflict(new * p)
    assert text == snapshot("""\
An operation that destroys an input runs after every other reader of it.
  found  Calling destroys p; mul (writes mul) reads it, and needs what the former computes
  where  Calling, at test_custom_ops.py:711: new = in_place()(p, lines(1, 1))
         mul, at test_custom_ops.py:712: text = conflict(new * p)
  try    give the destroying operation a copy: a tensor computed from its input\
""")


def test_what_the_host_gave_is_not_destroyed() -> None:
    found = [
        conflict(in_place()(lines(1, 2), lines(1, 1))),
        conflict(in_place()(oc.placeholder("x", output=[2]), lines(1, 1))),
        conflict(Calling(None, destroy_map={None: [0]})(oc.param("p", init=[1.0, 2.0]))),
    ]
    assert [text.splitlines()[:2] for text in found] == snapshot(
        [
            ["A literal keeps its cells.", "  found  Calling destroys the literal literal"],
            ["A placeholder keeps its cells.", "  found  Calling destroys the placeholder x"],
            [
                "A parameter keeps its cells, unless an output takes its memory over.",
                "  found  Calling destroys the parameter p",
            ],
        ]
    )


def test_a_result_of_a_computation_is_not_destroyed() -> None:
    x = lines(1, 2) * 1.0
    text = conflict(in_place()(x, lines(1, 1)), x)
    assert text.splitlines()[:2] == snapshot(
        [
            "What an operation destroys is not a result of the computation.",
            "  found  Calling destroys mul, which is to be kept",
        ]
    )


def test_an_input_is_not_destroyed_and_read_by_one_op() -> None:
    x = lines(1, 2) * 1.0
    assert conflict(in_place()(x, x)).splitlines()[:2] == snapshot(
        [
            "An input that an operation destroys is not another of its inputs too.",
            "  found  Calling destroys mul and reads it twice",
        ]
    )


# ----- failures -----------------------------------------------------------------------------------


def failure(ctx: oc.Context, op: Op, *inputs: Any) -> str:
    """Returns the message of a routine that fails; later ones of the context still run."""
    y = op(*inputs)
    step = ctx.compile(oc.train.forward(y))
    with pytest.raises(oc.OpError) as error:
        step()
    with pytest.raises(oc.LinkError, match="without a value so far"):
        _ = ctx[y]
    assert values(ctx, Square()(lines(1, 2)))[0].tolist() == [1, 4]
    return str(error.value)


def test_an_exception_in_perform_names_the_op_the_line_and_itself(ctx: oc.Context) -> None:
    def fail(inputs: Any, storage: Any) -> None:
        raise ArithmeticError("no convergence")

    class Solve(Op):
        __props__ = ("steps",)
        spec = SAME
        steps = 5

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            fail(inputs, output_storage)

    y = Solve()(lines(1, 2))
    with pytest.raises(oc.OpError) as error:
        ctx.compile(oc.train.forward(y))()
    assert isinstance(error.value.__cause__, ArithmeticError)
    assert str(error.value) == snapshot("""\
The op Solve(steps=5) failed.
  found  ArithmeticError: no convergence
  where  Solve(steps=5), at test_custom_ops.py:788: y = Solve()(lines(1, 2))\
""")


def test_bad_outputs_are_refused_with_their_op_and_line(ctx: oc.Context) -> None:
    two = "n => n; n"

    def first_only(inputs: Any, storage: Any) -> None:
        storage[0][0], storage[1][0] = inputs[0].copy(), None

    found = [
        failure(ctx, storing(lambda x: x.astype(np.float64)), lines(1, 2)),
        failure(ctx, storing(lambda x: x[:1]), lines(1, 2)),
        failure(ctx, storing(lambda x: None), lines(1, 2)),
        failure(ctx, storing(lambda x: [1.0, 2.0]), lines(1, 2)),
        failure(ctx, Calling(lambda inputs, storage: inputs[0]), lines(1, 2)),
        failure(ctx, Calling(lambda inputs, storage: storage[0].append(1)), lines(1, 2)),
        failure(ctx, Calling(lambda inputs, storage: storage.clear()), lines(1, 2)),
        failure(ctx, storing(lambda x: increment(x, x), spec=SAME), lines(1, 2) * 1.0),
    ]
    assert ["; ".join(text.split("\n")[:2]) for text in found] == snapshot(
        [
            "An output has the number format that make_node gave it.;   found  float64 for output 0 of Calling, which is float32",
            "An output has the extents that were inferred for it.;   found  [1] for output 0 of Calling, which is [2]",
            "`perform` sets every output.;   found  None for output 0 of Calling",
            "An output is an array, or a number where it has one cell.;   found  list for output 0 of Calling",
            "`perform` puts the outputs into output_storage and returns nothing.;   found  it returned ndarray",
            "`perform` reads and sets element 0 of each storage, and changes no list beyond.;   found  storage of lengths [2]",
            "`perform` reads and sets element 0 of each storage, and changes no list beyond.;   found  storage of lengths []",
            "The op Calling failed.;   found  ValueError: output array is read-only",
        ]
    )
    one, _ = Calling(first_only, two)(lines(1, 2))
    with pytest.raises(oc.OpError, match="None for output 1 of"):
        ctx.compile(oc.train.forward(one))()


def test_a_failed_update_leaves_the_cells_as_they_were_and_can_be_repeated(
    ctx: oc.Context,
) -> None:
    fails = [True]

    def unsure(x: Array, y: Array) -> Array:
        increment(x, y)
        if fails[0]:
            raise OSError("interrupted")
        return x

    p = oc.param("p", init=[1.0, 2.0])
    new = in_place(unsure)(p, lines(10, 20))
    step = ctx.compile(oc.train.forward(new))
    ctx.init_params(p)
    with pytest.raises(oc.OpError, match="interrupted"):
        step()
    assert ctx[p].tolist() == [1, 2]
    fails[0] = False
    step()
    assert ctx[p].tolist() == [11, 22]


def test_an_interrupt_is_not_an_error_of_the_op(ctx: oc.Context) -> None:
    def interrupted(x: Array, y: Array) -> Array:
        increment(x, y)
        raise KeyboardInterrupt

    p = oc.param("p", init=[1.0, 2.0])
    step = ctx.compile(oc.train.forward(in_place(interrupted)(p, lines(10, 20))))
    ctx.init_params(p)
    with pytest.raises(KeyboardInterrupt):
        step()
    assert ctx[p].tolist() == [1, 2]
