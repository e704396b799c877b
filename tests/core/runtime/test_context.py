"""Contexts: compiling, linking, initial values, host access, lineage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, LinkError, ShapeError, UsageError
from ocannl_core.ir.node import Margin, NodeInfo
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.runtime.context import Context

if TYPE_CHECKING:
    from conftest import Toy, ToyComputation, ToyTensor

X = np.array([[1, -2, 3], [0.5, 4, -1]], np.float32)


class StepModel:
    """`y = relu(x @ w)`, and a step that moves `w`."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.x = toy.placeholder("x", 2, 3)
        self.w = toy.parameter("w", 3, 2, value=0.5)
        self.h = toy.tensor("h", 2, 2, needs=[self.w])
        self.y = toy.tensor("y", 2, 2, needs=[self.h])

    def forward(self, *results: ToyTensor) -> ToyComputation:
        toy = self.toy
        return toy.code(
            toy.statement(
                "bi,io->bo", self.h, BinaryOp.MUL, self.x, self.w, combine=BinaryOp.ADD, reset=True
            ),
            toy.statement("bo->bo", self.y, UnaryOp.RELU, self.h),
            uses=[self.x, self.w],
            defines=[self.h, self.y],
            results=results or [self.y],
            name="forward",
        )

    def after_h(self) -> ToyComputation:
        """Code that reads `h` and does not compute it."""
        toy = self.toy
        return toy.code(
            toy.statement("bo->bo", self.y, UnaryOp.EXP, self.h),
            uses=[self.h],
            defines=[self.y],
            name="after_h",
        )


@pytest.fixture
def model(toy: Toy) -> StepModel:
    return StepModel(toy)


def message(error: pytest.ExceptionInfo[Exception]) -> str:
    return re.sub(r"(test_context\.py):\d+", r"\1", str(error.value))


def test_a_routine_computes_its_results(context: Context, model: StepModel) -> None:
    forward = context.compile(model.forward())
    context.init_params(model.y)
    context[model.x] = X
    forward()
    assert np.allclose(context[model.y], np.maximum(X @ np.full((3, 2), 0.5), 0))


def test_a_routine_sees_new_host_data_at_each_call(context: Context, model: StepModel) -> None:
    forward = context.compile(model.forward())
    context.init_params(model.y)
    for scale in (1, 2):
        context[model.x] = scale * X
        forward()
        assert np.allclose(context[model.y], np.maximum(scale * X @ np.full((3, 2), 0.5), 0))


def test_a_routine_lists_its_inputs_and_outputs(context: Context, model: StepModel) -> None:
    forward = context.compile(model.forward())
    assert forward.reads == {model.x.node, model.w.node}
    assert forward.writes == {model.y.node}


def test_a_routine_shows_its_stages(context: Context, model: StepModel) -> None:
    forward = context.compile(model.forward(), name="predict")
    assert forward.name == "predict"
    assert "relu" in forward.assignments
    assert "relu" in forward.loop_ir
    assert forward.source
    assert repr(forward).startswith("<routine predict(): ")
    assert repr(context) == "<context on interp:0: 3 tensors, 64 bytes>"


def test_the_name_of_a_routine_is_an_identifier(context: Context, model: StepModel) -> None:
    with pytest.raises(UsageError):
        context.compile(model.forward(), name="a b")


def test_two_routines_share_stored_nodes(context: Context, model: StepModel, toy: Toy) -> None:
    forward = context.compile(model.forward(model.h, model.y))
    after = context.compile(model.after_h())
    context.init_params(model.y)
    context[model.x] = X
    forward()
    after()
    assert np.allclose(context[model.y], np.exp(X @ np.full((3, 2), 0.5)))


def test_a_routine_writes_nodes_that_an_earlier_one_stored(
    context: Context, model: StepModel
) -> None:
    context.compile(model.forward(model.h, model.y))
    again = context.compile(model.forward(model.y))
    assert model.h.node in again.writes


def test_a_later_routine_has_its_own_memory_for_scratch_of_an_earlier_one(
    context: Context, model: StepModel
) -> None:
    private = context.compile(model.forward())
    public = context.compile(model.forward(), keep=[model.h])
    context.init_params(model.y)
    context[model.x] = X
    public()
    stored = context[model.h]
    context[model.x] = 2 * X
    private()
    assert np.array_equal(context[model.h], stored)
    assert np.array_equal(context[model.y], np.maximum(2 * stored, 0))


def test_the_results_of_earlier_routines_stay_stored_without_keep(
    context: Context, model: StepModel
) -> None:
    context.compile(model.forward())
    again = context.compile(model.forward(), keep=())
    assert model.y.node in again.writes


def test_an_empty_keep_stores_no_result(context: Context, model: StepModel) -> None:
    routine = context.compile(model.forward(), keep=())
    assert routine.writes == frozenset()
    assert model.y not in context


def test_keep_replaces_the_results(context: Context, model: StepModel) -> None:
    routine = context.compile(model.forward(), keep=[model.h])
    assert routine.writes == {model.h.node}


def test_keep_names_tensors_of_the_code(context: Context, model: StepModel, toy: Toy) -> None:
    with pytest.raises(UsageError) as caught:
        context.compile(model.forward(), keep=[toy.tensor("other", 2)])
    assert message(caught) == snapshot("""\
keep= names tensors that the compiled code computes.
  found  tensor other (model.py:4), which it does not mention
  where  compiling forward
  try    put its code in front, as in oc.train.forward(other) + ...: behind an update of parameters, its values are computed again, with the new ones\
""")


def test_a_compilation_that_fails_leaves_no_trace(context: Context, model: StepModel) -> None:
    with pytest.raises(LinkError):
        context.compile(model.after_h())
    assert repr(context) == "<context on interp:0: 0 tensors, 0 bytes>"


def test_code_that_reads_an_uncomputed_node_is_not_linked(
    context: Context, model: StepModel
) -> None:
    with pytest.raises(LinkError) as caught:
        context.compile(model.after_h())
    assert message(caught) == snapshot("""\
Every node that code reads is computed by it or stored in the context.
  found  tensor h (model.py:2): not in the context, and not computed here
  where  compiling after_h
  try    add the code that computes h in front: oc.train.forward(h)
         or give it a value from the host: ctx[h] = array\
""")


def test_code_that_reads_scratch_of_another_routine_is_not_linked(
    context: Context, model: StepModel
) -> None:
    with settings.overrides(max_visits=0):  # nothing is inlined, so h is in the routine's memory
        context.compile(model.forward())
    with pytest.raises(LinkError) as caught:
        context.compile(model.after_h())
    assert message(caught) == snapshot("""\
Every node that code reads is computed by it or stored in the context.
  found  tensor h (model.py:2): local in routine forward, because inlining is switched off by max_visits = 0
  where  compiling after_h
  try    compute it in after_h, too: x.forward() in front of the first use of a tensor x that needs it
         or compile forward with keep=[h, ...], which replaces its results, and run it\
""")


def test_a_value_from_the_host_replaces_missing_code(context: Context, model: StepModel) -> None:
    context[model.h] = np.zeros((2, 2))
    context.compile(model.after_h())()
    assert context[model.y].tolist() == [[1, 1], [1, 1]]


def test_literals_are_uploaded_when_code_is_linked(context: Context, toy: Toy) -> None:
    array = np.array([1, 2, 3], np.float32)
    table, y = toy.literal("table", array), toy.tensor("y", 3)
    code = toy.code(toy.statement("i->i", y, UnaryOp.NEG, table), uses=[table], defines=[y])
    context.compile(code)()
    assert context[y].tolist() == [-1, -2, -3]
    assert context[table].tolist() == [1, 2, 3]


def test_declared_nodes_start_at_zero_and_keep_their_values(context: Context, toy: Toy) -> None:
    state = toy.declared("state", 2)
    count = context.compile(
        toy.code(
            toy.statement("->i", state, UnaryOp.IDENTITY, 1.0, combine=BinaryOp.ADD), uses=[state]
        )
    )
    assert context[state].tolist() == [0, 0]
    for _ in range(3):
        count()
    assert context[state].tolist() == [3, 3]


def test_running_is_refused_until_every_node_has_a_value(
    context: Context, model: StepModel
) -> None:
    forward = context.compile(model.forward())
    with pytest.raises(LinkError) as caught:
        forward()
    assert message(caught) == snapshot("""\
A routine runs when every node that it reads has a value.
  found  placeholder x (model.py:0) has none
         parameter w (model.py:1) has none
  where  running forward
  try    ctx[x] = array
         ctx.init_params(loss), with the tensor whose parameters they are\
""")
    context.init_params(model.y)
    with pytest.raises(LinkError) as caught:
        forward()
    assert message(caught) == snapshot("""\
A routine runs when every node that it reads has a value.
  found  placeholder x (model.py:0) has none
  where  running forward
  try    ctx[x] = array\
""")
    context[model.x] = X
    forward()


def test_running_is_refused_until_the_routine_before_has_run(
    context: Context, model: StepModel
) -> None:
    context.compile(model.forward(model.h))
    after = context.compile(model.after_h())
    with pytest.raises(LinkError) as caught:
        after()
    assert message(caught) == snapshot("""\
A routine runs when every node that it reads has a value.
  found  tensor h (model.py:2) has none
  where  running after_h
  try    run forward first: it computes h\
""")


def test_parameters_that_have_a_value_keep_it(context: Context, model: StepModel) -> None:
    context[model.w] = np.ones((3, 2))
    context.init_params(model.y)
    assert context[model.w].tolist() == [[1, 1]] * 3
    context.init_params(model.y, reinitialize=True)
    assert context[model.w].tolist() == [[0.5, 0.5]] * 3


def test_all_parameters_are_initialized_in_one_go(context: Context, toy: Toy) -> None:
    first, second = toy.parameter("a", 2, value=1.5), toy.parameter("b", 3, value=2.5)
    context.init_params(toy.tensor("loss", needs=[first, second]))
    assert context[first].tolist() == [1.5] * 2
    assert context[second].tolist() == [2.5] * 3


def test_a_tensor_without_parameters_needs_no_initial_values(context: Context, toy: Toy) -> None:
    context.init_params(toy.tensor("x", 2))
    assert repr(context) == "<context on interp:0: 0 tensors, 0 bytes>"


def test_training_agrees_with_numpy(context: Context, toy: Toy) -> None:
    """Gradient descent with momentum on the squared error of a linear map."""
    x, t = toy.placeholder("x", 4, 3), toy.placeholder("t", 4)
    w, e = toy.parameter("w", 3, value=0.25), toy.tensor("e", 4)
    g, v = toy.tensor("g", 3), toy.declared("v", 3)
    add = BinaryOp.ADD
    step = context.compile(
        toy.code(
            toy.statement("bi,i->b", e, BinaryOp.MUL, x, w, combine=add, reset=True),
            toy.statement("b->b", e, UnaryOp.IDENTITY, t, combine=BinaryOp.SUB),
            toy.statement("b,bi->i", g, BinaryOp.MUL, e, x, combine=add, reset=True),
            toy.statement(",i->i", v, BinaryOp.MUL, 0.5, v),
            toy.statement("i->i", v, UnaryOp.IDENTITY, g, combine=add),
            toy.statement(",i->i", w, BinaryOp.MUL, 0.125, v, combine=BinaryOp.SUB),
            uses=[x, t, w, v],
            defines=[e, g],
        )
    )
    random = np.random.default_rng(0)
    xs, ts = random.normal(size=(4, 3)), random.normal(size=4)
    context[x], context[t] = xs, ts
    context.init_params(toy.tensor("loss", needs=[w]))
    weights, velocity = np.full(3, 0.25), np.zeros(3)
    for _ in range(5):
        step()
        velocity = 0.5 * velocity + (xs @ weights - ts) @ xs
        weights = weights - 0.125 * velocity
        assert np.allclose(context[w], weights, rtol=1e-4)
    assert np.allclose(context[v], velocity, rtol=1e-4)


def test_reading_a_private_node_is_an_error_with_reason_and_fix(
    context: Context, model: StepModel
) -> None:
    context.compile(model.forward())
    with pytest.raises(LinkError) as caught:
        context[model.h]
    assert message(caught) == snapshot("""\
Only tensors that a context stores can be read from it.
  found  it is local in routine forward, because it is a reduction across rows, whose loops can be reordered while it is in memory
  where  tensor h (model.py:2), read at test_context.py: context[model.h]
  try    compile forward with keep=[h, ...], which replaces its results, and run it\
""")


def test_reading_before_running_is_an_error(context: Context, model: StepModel) -> None:
    context.compile(model.forward())
    with pytest.raises(LinkError) as caught:
        context[model.y]
    assert message(caught) == snapshot("""\
A tensor is read after something has given it a value.
  found  it is stored, without a value so far
  where  tensor y (model.py:3), read at test_context.py: context[model.y]
  try    run forward first: it computes y\
""")
    with pytest.raises(LinkError) as caught:
        context[model.x]
    assert message(caught) == snapshot("""\
A tensor is read after something has given it a value.
  found  it is stored, without a value so far
  where  placeholder x (model.py:0), read at test_context.py: context[model.x]
  try    ctx[x] = array\
""")


def test_reading_a_tensor_that_was_never_compiled_is_an_error(
    context: Context, model: StepModel
) -> None:
    with pytest.raises(LinkError) as caught:
        context[model.y]
    assert message(caught) == snapshot("""\
Only tensors that a context stores can be read from it.
  found  no routine compiled in this context mentions it
  where  tensor y (model.py:3), read at test_context.py: context[model.y]
  try    compile and run code that computes it, such as ctx.compile(oc.train.forward(y))()\
""")


def test_an_array_of_other_extents_is_an_error(context: Context, model: StepModel) -> None:
    with pytest.raises(ShapeError) as caught:
        context[model.x] = X.T
    assert message(caught) == snapshot("""\
An array has the extents of its tensor: batch, then output, then input axes.
  found  an array of (3, 2) for (2, 3)
  where  placeholder x (model.py:0), of shape 2,3
  try    order the axes with np.transpose: batch, then output, then input axes\
""")
    assert model.x not in context


def test_a_single_number_can_be_read_as_a_float(context: Context, toy: Toy) -> None:
    one, many = toy.placeholder("one"), toy.placeholder("many", 2)
    context[one], context[many] = 3, 4
    assert context.item(one) == 3.0
    assert isinstance(context.item(one), float)
    with pytest.raises(ShapeError) as caught:
        context.item(many)
    assert message(caught) == snapshot("""\
item reads tensors of one cell.
  found  2 cells
  where  placeholder many (model.py:1), of shape 2
  try    ctx[many] gives them all as an array\
""")


def test_only_tensors_index_a_context(context: Context) -> None:
    key: Any = "x"
    for access in (
        lambda: context[key],
        lambda: context.__setitem__(key, 1),
        lambda: key in context,
    ):
        with pytest.raises(UsageError):
            access()


def test_a_context_contains_tensors_with_memory(context: Context, model: StepModel) -> None:
    assert model.x not in context
    context.compile(model.forward())
    assert model.x in context
    assert model.h not in context


def test_a_child_shares_memory_with_its_parent(context: Context, model: StepModel) -> None:
    context[model.x] = X
    child = context.child()
    assert np.array_equal(child[model.x], X)
    child[model.x] = 2 * X
    assert np.array_equal(context[model.x], 2 * X)


def test_nodes_added_by_a_child_are_not_shared(context: Context, model: StepModel) -> None:
    context[model.w] = 1
    first, second = context.child(), context.child()
    first[model.x] = X
    assert model.x not in context
    assert model.x not in second
    first.compile(model.forward())()
    assert model.y not in context
    assert np.allclose(first[model.y], np.maximum(X @ np.ones((3, 2)), 0))


def padded(model: StepModel, margin: int) -> ToyComputation:
    toy = model.toy
    info = NodeInfo(float32, (2, 3), (Margin(), Margin(margin, margin)))
    y = toy.tensor("copy", 2, 3)
    return toy.code(
        toy.copy(y, model.x), uses=[model.x], defines=[y], infos={model.x: info}, name="padded"
    )


def test_host_data_survives_a_change_of_margins(context: Context, model: StepModel) -> None:
    context[model.x] = X
    routine = context.compile(padded(model, 2))
    routine()
    assert np.array_equal(context[model.x], X)
    context[model.x] = 2 * X
    assert np.array_equal(context[model.x], 2 * X)


def test_margins_cannot_change_under_a_linked_routine(context: Context, model: StepModel) -> None:
    context.compile(padded(model, 1))
    with pytest.raises(LinkError) as caught:
        context.compile(padded(model, 2))
    assert message(caught) == snapshot("""\
All routines of a context agree on the margins around a node's cells.
  found  placeholder x (model.py:0) is stored with extents (2, 5); (2, 7) are needed here
  where  compiling padded
  try    compile the routine with the padded operation first, or compile this one in a context of its own\
""")


def test_margins_of_a_parent_cannot_change_under_it(context: Context, model: StepModel) -> None:
    context[model.x] = X
    with pytest.raises(LinkError):
        context.child().compile(padded(model, 2))


def test_the_device_of_a_context_is_part_of_the_name_or_an_argument() -> None:
    assert str(Context("interp:0").target) == "interp:0"
    assert Context("interp", device=0).backend.name == "interp"
    with pytest.raises(UsageError):
        Context("interp:0", device=1)
    with pytest.raises(BackendNotFoundError):
        Context("interp", device=99)


def test_the_parameters_of_recorded_code_get_initial_values() -> None:
    with oc.Session(seed=1):
        total = oc.declare("total", output=[2])
        w = oc.param("w", output=[2], init=3.0)

        @oc.cd
        def add() -> None:
            total[:] = 2.0 * w

        ctx, code = oc.Context("interp"), add()
        step = ctx.compile(code)
        ctx.init_params(code)
        step()
        assert ctx[total].tolist() == [6.0, 6.0]


def test_parameters_of_a_block_are_those_of_its_results() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="a NetworkBlock"):
        oc.Context("interp").init_params(oc.nn.dense(output=[2]))  # type: ignore[arg-type]


def test_a_second_block_of_one_function_is_named_where_its_parameters_have_no_values() -> None:
    @oc.op
    def network(x: oc.Tensor) -> oc.Tensor:
        return oc.nn.dense(x, output=[4])

    with oc.Session():
        x = oc.tensor(np.ones((2, 3)), batch_axes=1)
        trained, other = network(x), network(x)
        ctx = oc.Context("interp")
        routine = ctx.compile(oc.train.forward(other))
        with pytest.raises(oc.LinkError) as before:
            routine()
        ctx.init_params(trained)
        with pytest.raises(oc.LinkError, match=r"model = network\(\) once"):
            routine()
        assert "network()" not in str(before.value)
