"""User-written operations that change or view their inputs, and those that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.tensor.custom import Apply, Op
from tests.support.sample_ops import (
    SAME,
    TWO,
    Calling,
    Square,
    in_place,
    increment,
    lines,
    storing,
    total,
    values,
)

Array = np.ndarray[Any, Any]


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


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9])
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "int64", "float64"])
def test_a_destroyer_may_have_cells_of_any_number_and_format(
    ctx: oc.Context, dtype: str, count: int
) -> None:
    def keep(inputs: Any, storage: Any) -> None:
        storage[0][0] = inputs[0]

    op = Calling(keep, destroy_map={0: [0]})
    cells = np.arange(count) % 2
    (found,) = values(ctx, op(oc.primitives.identity(oc.tensor(cells, dtype=dtype))))
    assert found.astype(int).tolist() == cells.tolist()


def test_scratch_inputs_are_lost_after_every_other_reader(ctx: oc.Context) -> None:
    def scratch(inputs: Any, storage: Any) -> None:
        inputs[0][...] *= 7
        storage[0][0] = inputs[0] + 1

    x = lines(1, 2) * 1.0
    z = Calling(scratch, destroy_map={None: [0]})(x)
    found = values(ctx, z, x * 100.0)
    assert [each.tolist() for each in found] == [[8, 15], [100, 200]]


def test_a_destroyed_tensor_cannot_be_kept(ctx: oc.Context) -> None:
    x = lines(1, 2) * 1.0
    scratch = Calling(lambda x, z: None, destroy_map={None: [0]})(x)
    for z in (scratch, in_place()(x, lines(1, 1))):
        with pytest.raises(oc.UsageError, match="keep= names tensors that the compiled code"):
            ctx.compile(oc.train.forward(z), keep=[x])


def test_readers_of_views_come_first_too(ctx: oc.Context) -> None:
    view = storing(lambda x: x[::-1], view_map={0: [0]})
    x = lines(1, 2) * 1.0
    z = in_place()(x, lines(10, 20))
    through = view(storing(lambda x: x, view_map={0: [0]})(x))  # a view of a view
    found = values(ctx, z, through * 100.0)
    assert [each.tolist() for each in found] == [[11, 22], [200, 100]]


def test_destroying_a_view_destroys_its_base(ctx: oc.Context) -> None:
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
    if ctx.target.thread_blocks is not None:
        pytest.skip("each call has copies of the device's memory")
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


def test_code_after_an_update_in_place_reads_the_new_cells(ctx: oc.Context) -> None:
    p = oc.param("p", init=[1.0, 2.0])
    loss = total(p * p)

    @oc.cd
    def update() -> None:
        in_place()(p, lines(10, 10))

    step = ctx.compile(update() + oc.train.forward(loss))
    ctx.init_params(loss)
    step()
    assert ctx.item(loss) == 11 * 11 + 12 * 12


def test_statements_around_updates_in_place_keep_their_order(ctx: oc.Context) -> None:
    p = oc.param("p", init=[1.0, 2.0])
    before, between = oc.declare("before", output=[2]), oc.declare("between", output=[2])

    @oc.cd
    def update(before: oc.Tensor, between: oc.Tensor) -> None:
        before[:] = p * 2.0
        in_place()(p, lines(1, 1))
        between[:] = p * 2.0
        new = in_place()(p, lines(10, 10))
        between += new

    step = ctx.compile(update(before, between))
    ctx.init_params(p)
    step()
    assert [ctx[each].tolist() for each in (before, between, p)] == [[2, 4], [16, 19], [12, 13]]


def test_state_may_be_changed_by_one_statement_after_another(ctx: oc.Context) -> None:
    def count(inputs: Any, storage: Any) -> None:
        inputs[1][...] += inputs[0]
        storage[0][0] = inputs[1].copy()

    state, seen = oc.declare("state", output=[2]), oc.declare("seen", output=[2])

    @oc.cd
    def twice(seen: oc.Tensor) -> None:
        counting = Calling(count, "n; n => n", destroy_map={None: [1]})
        seen[:] = counting(lines(1, 2), state)
        seen += counting(lines(10, 20), state)

    ctx.compile(twice(seen))()
    assert ctx[seen].tolist() == [1 + 11, 2 + 22]
    assert ctx[state].tolist() == [11, 22]


def test_an_update_in_place_that_is_read_after_the_next_one_is_refused() -> None:
    p, seen = oc.param("p", init=[1.0, 2.0]), oc.declare("seen", output=[2])

    @oc.cd
    def update(seen: oc.Tensor) -> None:
        first = in_place(title="First")(p, lines(1, 1))
        in_place()(p, lines(1, 1))
        seen[:] = first

    with pytest.raises(oc.OpError, match="output of First is read after another assignment to p"):
        oc.Context("interp").compile(update(seen))


def test_a_declared_tensor_may_be_the_private_state_of_an_op(ctx: oc.Context) -> None:
    def accumulate(inputs: Any, storage: Any) -> None:
        x, state = inputs
        state += x
        storage[0][0] = state.copy()

    class RunningSum(Op):
        """Keep a sum in an input that the wrapper below supplies."""

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


def test_recorded_code_runs_an_op_for_the_sake_of_its_state(ctx: oc.Context) -> None:
    def count(inputs: Any, storage: Any) -> None:
        inputs[1][...] += 1
        storage[0][0] = inputs[0].copy()

    calls = oc.declare("calls", output=[1])

    @oc.cd
    def observed(x: oc.Tensor) -> None:
        Calling(count, "n; m => n", destroy_map={None: [1]})(x, calls)

    step = ctx.compile(observed(lines(1, 2)))
    step()
    step()
    assert ctx[calls].tolist() == [2]


def test_margins_around_tensors_updated_in_place_stay(ctx: oc.Context) -> None:
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
    one = in_place(title="One")(x, lines(1, 1))
    other = in_place(title="Other")(x, lines(2, 2))
    assert conflict(one, other) == snapshot("""\
One operation at most destroys a value.
  found  One and Other both destroy mul
  where  One, at test_custom_memory.py:274: one = in_place(title="One")(x, lines(1, 1))
         Other, at test_custom_memory.py:275: other = in_place(title="Other")(x, lines(2, 2))
  try    give one of them a copy, or the result of the other\
""")


def test_a_destroyer_of_a_parameter_that_is_read_later_is_named_with_the_reader() -> None:
    p = oc.param("p", init=[1.0, 2.0])
    new = in_place()(p, lines(1, 1))
    text = conflict(new * p)
    assert text == snapshot("""\
An operation that destroys an input runs after every other reader of it.
  found  Calling destroys p; mul (writes mul) reads it, and depends on the result of the former
  where  Calling, at test_custom_memory.py:287: new = in_place()(p, lines(1, 1))
         mul, at test_custom_memory.py:288: text = conflict(new * p)
  try    give the destroying operation a copy: a tensor computed from its input\
""")


def test_literals_placeholders_and_parameters_are_not_destroyed() -> None:
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
            "A value that an operation destroys is not a result of the computation.",
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


def failure(ctx: oc.Context, op: Op, *inputs: Any) -> str:
    """Return the message of a routine that fails; later ones of the context still run."""
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
  where  Solve(steps=5), at test_custom_memory.py:361: y = Solve()(lines(1, 2))\
""")


def test_an_op_that_ends_the_process_is_named_and_not_the_backend(ctx: oc.Context) -> None:
    def leave(inputs: Any, storage: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(oc.OpError, match=r"The op Calling failed.\n  found  SystemExit: 3"):
        ctx.compile(oc.train.forward(Calling(leave)(lines(1, 2))))()


def test_an_error_of_the_framework_inside_perform_names_the_op_around_it(ctx: oc.Context) -> None:
    def fail(x: Array) -> Array:
        raise oc.OpError("inner", found="something")

    y = storing(fail, title="Outer")(lines(1, 2))
    with pytest.raises(oc.OpError) as error:
        ctx.compile(oc.train.forward(y))()
    assert error.value.rule == "The op Outer failed."
    assert isinstance(error.value.__cause__, oc.OpError)


def test_a_number_that_its_format_cannot_hold_is_refused(ctx: oc.Context) -> None:
    y = storing(lambda x: 300, spec="n => ")(oc.tensor([1, 2], dtype="uint8"))
    with pytest.raises(oc.OpError, match="300 for output 0 of Calling, which is uint8"):
        ctx.compile(oc.train.forward(y))()


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
            "`perform` sets every output, in every call.;   found  None for output 0 of Calling",
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


def test_a_failed_update_leaves_the_cells_as_they_were_and_can_be_repeated(ctx: oc.Context) -> None:
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


def test_storage_of_an_output_that_takes_memory_over_is_not_that_memory(ctx: oc.Context) -> None:
    def add(inputs: Any, storage: Any) -> None:
        z, (x, y) = storage[0][0], inputs
        if z is None:
            storage[0][0] = z = np.empty_like(x)
        z[...] = 0  # before the inputs are read
        z += x + y

    op = Calling(add, "n; n => n", destroy_map={0: [0]})
    assert values(ctx, op(lines(1, 2) * 1.0, lines(10, 20)))[0].tolist() == [11, 22]
