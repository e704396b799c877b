"""Ops and their applications, without running them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.tensor.custom import Apply, ObjectResult, ObjectType, Op, TensorType, as_variable
from tests.support.sample_ops import Scale, Split


@pytest.fixture(autouse=True)
def session() -> Any:
    with oc.Session(seed=1) as session:
        yield session


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


class Add(Op):
    """Add two int64 numbers."""

    __props__ = ()

    def make_node(self, x: Any, y: Any) -> Apply:
        inputs = []
        for each in (x, y):
            if isinstance(each, int):
                each = as_variable(each, oc.int64)
            elif not isinstance(each, oc.Tensor) or each.dtype is not oc.int64:
                raise TypeError("expected an int64 ScalarType")
            inputs.append(each)
        return Apply(self, inputs, [TensorType.sized(oc.int64)])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        (z,) = output_storage
        z[0] = x + y


def int64(name: str = "n") -> oc.Tensor:
    return oc.placeholder(name, dtype="int64")


def test_make_node_returns_lists_of_variables_that_belong_to_the_application() -> None:
    x, y = int64("x"), int64("y")
    node = Add().make_node(x, y)
    assert isinstance(node, Apply)
    assert node.inputs == [x, y]
    (z,) = node.outputs
    assert isinstance(z, oc.Tensor)
    assert z.operands == (x, y)
    assert z.dtype is oc.int64


def test_numbers_are_wrapped_as_constants_wherever_they_stand() -> None:
    for arguments in ((1, 2), (int64(), 79), (79, int64())):
        node = Add().make_node(*arguments)
        assert [each.dtype for each in node.inputs] == [oc.int64, oc.int64]
    assert as_variable(7) is as_variable(7)
    assert as_variable(7) is not as_variable(8)


@pytest.mark.parametrize("swap", [False, True])
def test_an_input_of_another_type_is_refused_on_either_side(swap: bool) -> None:
    arguments = [oc.placeholder("f", dtype="float64"), int64()]
    with pytest.raises(TypeError, match="expected an int64 ScalarType"):
        Add().make_node(*(reversed(arguments) if swap else arguments))


def test_arrays_and_lists_become_literals() -> None:
    y = Scale(2.0)([1.0, 2.0, 3.0])
    assert np.array_equal(y.operands[0].literal, [1.0, 2.0, 3.0])
    assert Scale(2.0)(np.ones((2, 3), np.float32)).operands[0].shape.dims == (2, 3)


def test_anything_else_is_no_variable() -> None:
    with pytest.raises(oc.UsageError) as error:
        Scale(2.0)("three")
    assert error.value.rule == snapshot(
        "The inputs of an operation are tensors, numbers and arrays."
    )


def test_a_number_takes_the_format_of_the_tensor_beside_it() -> None:
    class Both(Scale):
        spec = "; => "

    node = Both(1.0).make_node(oc.placeholder("x", dtype="float64"), 2)
    assert node.inputs[1].dtype is oc.float64
    node = Both(1.0).make_node(oc.placeholder("k", dtype="int32"), 0.5)
    assert [each.dtype for each in node.inputs] == [oc.int32, oc.float32]


def test_the_inputs_of_a_node_may_be_others_than_the_arguments() -> None:
    class Gather(Scale):
        """Take an axis that is an argument of the constructor."""

        def make_node(self, x: Any, mode: str) -> Apply:
            assert mode == "wrap"
            return Apply(self, [as_variable(x)], [TensorType.of(x)])

    x = oc.placeholder("x", output=[4])
    y = Gather(1.0)(x, "wrap")
    assert y.operands == (x,)


def test_repeated_calls_with_the_same_inputs_give_equivalent_nodes() -> None:
    x, y = int64("x"), int64("y")
    assert Add().make_node(x, y).is_equivalent(Add().make_node(x, y))
    assert Add().make_node(x, y).is_equivalent(Add().make_node(y, x))  # only types count


def test_nodes_of_other_ops_or_types_are_not_equivalent() -> None:
    x, z = oc.placeholder("x", output=[3]), oc.placeholder("z", output=[4])
    node = Scale(2.0).make_node(x)
    assert not node.is_equivalent(Scale(3.0).make_node(x))
    assert not node.is_equivalent(Scale(2.0).make_node(z))


def test_an_index_is_an_input_or_a_parameter() -> None:
    class Item(Op):
        """The cell of a row at a position that the graph computes."""

        __props__ = ()
        spec = "n; => "

        def output_dtypes(self, x: Any, index: Any) -> Any:
            return [x]

    class Nth(Op):
        """The cell of a row at a constant position."""

        __props__ = ("n",)
        spec = "n => "

        def __init__(self, n: int) -> None:
            self.n = n

    row, index = oc.placeholder("row", output=[5]), int64("index")
    assert Item()(row, index).operands == (row, index)
    assert Nth(2)(row).operands == (row,)
    assert Nth(2) != Nth(3)
    assert Item() == Item()


def test_an_op_may_infer_the_format_of_its_output() -> None:
    @dataclass(frozen=True)
    class Sum(Op):
        infer: Any

        def make_node(self, *inputs: Any) -> Apply:
            variables = [as_variable(each) for each in inputs]
            dtype = self.infer(*(each.dtype for each in variables))
            return Apply(self, variables, [TensorType(dtype, variables[0].terms)])

    def widest(*dtypes: Any) -> Any:
        return max(dtypes, key=lambda dtype: dtype.nbytes)

    assert Sum(widest)(int64(), oc.placeholder("f")).dtype is oc.int64
    assert Sum(lambda *_: oc.float32)(int64()).dtype is oc.float32


def test_a_call_returns_the_output_or_the_list_of_outputs() -> None:
    x = oc.placeholder("x", output=[6])
    assert isinstance(Scale(2.0)(x), oc.Tensor)
    halves = Split()(x)
    assert isinstance(halves, list)
    assert [str(half.shape) for half in halves] == ["3", "3"]


def test_default_output_hides_the_others() -> None:
    class First(Split):
        default_output = 1

    x = oc.placeholder("x", output=[6])
    y = First()(x)
    assert y is First().make_node(x).outputs[1]


def test_an_output_may_be_an_object_that_only_perform_sees() -> None:
    class Planned(Scale):
        default_output = 0

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.of(x), ObjectType("plan")])

    node = Planned(1.0).make_node(oc.placeholder("x", output=[6]))
    assert isinstance(node.outputs[1], ObjectResult)
    assert node.results == (node.outputs[0],)


def test_props_make_ops_of_one_class_equal_with_equal_hashes() -> None:
    assert Scale(2.0) == Scale(2.0)
    assert not Scale(2.0) != Scale(2.0)  # noqa: SIM202
    assert hash(Scale(2.0)) == hash(Scale(2.0))
    assert Scale(2.0) != Scale(3.0)
    assert type("Other", (Scale,), {})(2.0) != Scale(2.0)
    assert Scale(2.0) != 2.0
    assert repr(Scale(2.0)) == "Scale(factor=2.0)"


def test_without_props_an_op_is_equal_to_itself_alone() -> None:
    class Plain(Op):
        spec = " => "

    one = Plain()
    assert one == one
    assert one != Plain()
    assert len({one, Plain()}) == 2


def test_a_frozen_dataclass_is_an_op_with_parameters() -> None:
    @dataclass(frozen=True)
    class Roll(Op):
        by: int
        spec = "n => n"

    x = oc.placeholder("x", output=[4])
    assert Roll(1)(x) is Roll(1)(x)
    assert Roll(1)(x) is not Roll(2)(x)


def test_an_op_without_a_hash_is_refused() -> None:
    @dataclass
    class Roll(Op):
        by: int
        spec = "n => n"

    with pytest.raises(oc.OpError) as error:
        Roll(1)(oc.placeholder("x", output=[4]))
    assert message(error) == snapshot("""\
An op is hashable, so that equal ones can be found.
  found  Roll: unhashable type: 'Roll'
  where  test_an_op_without_a_hash_is_refused.<locals>.Roll(by=1), at test_op.py:238: Roll(1)(oc.placeholder("x", output=[4]))
  try    define __hash__ beside __eq__, list attributes in __props__, or make the op a frozen dataclass\
""")


def test_equal_ops_on_equal_inputs_are_one_node() -> None:
    x = oc.placeholder("x", output=[6])
    assert Scale(2.0)(x) is Scale(2.0)(x)
    assert Scale(2.0)(Scale(3.0)(x)) is Scale(2.0)(Scale(3.0)(x))
    assert Scale(2.0)(x) is not Scale(2.0)(oc.placeholder("y", output=[6]))
    assert Split()(x)[1] is Split()(x)[1]
    assert Add()(int64(), 3) is not Add()(int64(), 3)  # two placeholders
    k = int64()
    assert Add()(k, 3) is Add()(k, 3)
    assert Add()(k, 3) is not Add()(k, 4)


def test_recorded_code_means_a_place_so_that_nothing_is_merged_there() -> None:
    x, seen = oc.declare("x", output=[2]), []

    @oc.cd
    def twice() -> None:
        seen.append(Scale(2.0)(x))
        x[:] = 1.0
        seen.append(Scale(2.0)(x))

    twice()
    assert seen[0] is not seen[1]


def test_equal_ops_on_inputs_of_equal_types_have_outputs_of_equal_types() -> None:
    class Fickle(Op):
        """Compare equal in every format."""

        __props__ = ()

        def __init__(self, dtype: Any) -> None:
            self.dtype = dtype

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType(self.dtype, x.terms)])

    Fickle(oc.float32)(oc.placeholder("x", output=[4]))
    with pytest.raises(oc.OpError) as error:
        Fickle(oc.float64)(oc.placeholder("y", output=[4]))
    assert message(error) == snapshot("""\
Equal ops on inputs of equal types have outputs of equal types.
  found  float64; float32 for Fickle(), at test_op.py:284: Fickle(oc.float32)(oc.placeholder("x", output=[4]))
  where  Fickle(), at test_op.py:286: Fickle(oc.float64)(oc.placeholder("y", output=[4]))
  try    let the op's equality depend on all that its outputs depend on\
""")


def test_extents_are_compared_once_they_are_known() -> None:
    class Fickle(Op):
        __props__ = ()

        def __init__(self, n: int) -> None:
            self.n = n

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.sized(oc.float32, output=[self.n])])

    one = Fickle(3)(oc.placeholder("x", output=[4]))
    other = Fickle(5)(oc.placeholder("y", output=[4]))
    oc.train.forward(one).resolve()
    with pytest.raises(oc.OpError) as error:
        oc.train.forward(other).resolve()
    assert error.value.rule == snapshot(
        "Equal ops on inputs of equal types have outputs of equal types."
    )
    assert error.value.found.startswith("5 here, 3 for Fickle()")


def test_sizes_flow_from_inputs_to_outputs_and_back() -> None:
    w = oc.param("w")
    low, high = Split()(w @ oc.placeholder("x", output=[3]))
    loss = low * oc.placeholder("t", output=[5]) + high
    oc.train.forward(loss).resolve()
    assert str(w.shape) == "3->10"
    assert [str(low.shape), str(high.shape)] == ["5", "5"]


def test_sizes_may_be_computed_in_both_directions() -> None:
    class HalfSpectrum(Op):
        spec = "...|2*h => ...|h^1, 2"

    x = oc.placeholder("x", batch=[7], output=[10])
    assert str(HalfSpectrum()(x).shape) == "7|6,2"
    z = oc.param("z")
    y = HalfSpectrum()(z) * oc.placeholder("y", output=[5, 2])
    oc.train.forward(y).resolve()
    assert str(z.shape) == "8"


def test_an_op_may_state_constraints_of_its_own() -> None:
    from ocannl_core.shape.language.constraints import ReverseEqual, RowEqual

    class Transpose(Op):
        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType(x.dtype)])

        def constraints(self, inputs: Any, outputs: Any, origin: Any, fresh: Any) -> Any:
            (x,), (y,) = inputs, outputs
            yield RowEqual(x.batch, y.batch, origin)
            yield RowEqual(x.input, y.input, origin)
            yield ReverseEqual(x.output, y.output, origin)

    assert str(Transpose()(oc.placeholder("x", output=[2, 3, 4])).shape) == "4,3,2"


def test_shapes_that_do_not_fit_are_refused_and_leave_no_trace(session: oc.Session) -> None:
    class Dot(Op):
        __props__ = ()
        spec = "n; n => "

    x, y = oc.placeholder("x", output=[3]), oc.placeholder("y", output=[4])
    with pytest.raises(oc.ShapeError) as error:
        Dot()(x, y)
    assert message(error) == snapshot("""\
Axes that are the same must have the same size.
  found  size 3 and size 4 of `n`
  where  output axis -1 of input 0 of Dot(), at test_op.py:360: Dot()(x, y)
         output axis -1 of input 1 of Dot(), at test_op.py:360: Dot()(x, y)
         the first operand is x of shape 3, made by placeholder x, at test_op.py:358: x, y = oc.placeholder("x", output=[3]), oc.placeholder("y", output=[4])
         the second operand is y of shape 4, made by placeholder y, at test_op.py:358: x, y = oc.placeholder("x", output=[3]), oc.placeholder("y", output=[4])
  try    change one of the sizes, or give the axes different names\
""")
    with pytest.raises(oc.ShapeError):
        Dot()(x, y)  # the first attempt is not found as an equal node


def test_a_spec_has_a_shape_for_each_input() -> None:
    with pytest.raises(oc.SpecError) as error:
        Scale(2.0)(1.0, 2.0)
    assert message(error) == snapshot("""\
A statement of shapes has one shape for each input.
  found  1 in '...|...->... => ...|...->...', for 2
  where  Scale(factor=2.0), at test_op.py:376: Scale(2.0)(1.0, 2.0)\
""")


def refused(op: Op, *inputs: Any) -> str:
    with pytest.raises(oc.OpError) as error:
        op(*inputs)
    return f"{error.value.rule} | {error.value.found}"


def node_of(inputs: Any, outputs: Any, **attributes: Any) -> Op:
    """Return an op whose make_node returns this Apply."""

    def make_node(self: Op, *_: Any) -> Apply:
        return Apply(self, inputs, outputs)

    return type("Bad", (Op,), {"make_node": make_node, **attributes})()  # type: ignore[no-any-return]


def test_malformed_applications_are_refused_with_their_reason() -> None:
    x, kind = oc.placeholder("x", output=[3]), TensorType(oc.float32)
    good = TensorType.of(x)
    assert [
        refused(node_of([3.0], [good])),
        refused(node_of([x], [x])),
        refused(node_of([x], [ObjectType()])),
        refused(node_of([x], [kind])),
        refused(node_of([x], [good], default_output=1)),
        refused(node_of([x], [good], view_map={0: [1]})),
        refused(node_of([x, x], [good], view_map={0: [0, 1]})),
        refused(node_of([x], [good], destroy_map={1: [0]})),
        refused(node_of([x], [good, good], destroy_map={0: [0], 1: [0]})),
        refused(node_of(x, [good])),
        refused(node_of([x], good)),
        refused(node_of([x], [good], destroy_map=[0])),
        refused(node_of([x], [good], view_map={0: 0})),
        refused(node_of([x], [kind], constraints=lambda *_: 3)),
        refused(type("Bad", (Op,), {"make_node": lambda self, x: x})(), x),
        refused(type("Bad", (Op,), {"make_node": lambda self, x: Apply("op", [x], [good])})(), x),  # type: ignore[arg-type]
        refused(type("Bad", (Op,), {"make_node": lambda self, x: Scale(2.0).make_node(x)})(), x),
        refused(type("Bad", (Op,), {"spec": "n=>n", "output_dtypes": lambda self, x: x})(), x),
        refused(Op(), x),
        refused(type("Bad", (Op,), {"spec": " => ; ", "output_dtypes": lambda self, *_: []})(), 1),
    ] == snapshot(
        [
            "The inputs of an Apply are tensors. | float: 3.0",
            "The outputs of an Apply are given by their types. | Tensor: <placeholder x: 3>",
            "An op has an output that is a tensor. | 1 outputs",
            "The shapes of an op's outputs follow from its inputs' or are given. | an output without a shape, of an op without `spec`",
            "default_output is the position of an output that is a tensor. | 1",
            "view_map names inputs by their positions. | 0: [1], with 1 inputs",
            "view_map gives for an output that is a tensor one input at most. | 0: [0, 1]",
            "destroy_map gives for an output that is a tensor one input at most. | 1: [0]",
            "One output at most takes over the memory of an input. | destroy_map = {0: [0], 1: [0]}",
            "The inputs of an Apply are a list. | Tensor: <placeholder x: 3>",
            "The outputs of an Apply are a list. | TensorType: TensorType(dtype=float32, shape=<shape 3>, label='')",
            "destroy_map maps positions of outputs to lists of inputs. | [0]",
            "view_map maps positions of outputs to lists of inputs. | {0: 0}",
            "`constraints` returns a sequence of constraints. | int: 3",
            "`make_node` returns an Apply of the op. | <placeholder x: 3>",
            "An Apply has an op, which the inputs are given to. | str: 'op'",
            "`make_node` returns an Apply of the op. | <Scale(factor=2.0) of x>",
            "`output_dtypes` returns a list of a number format for each output. | float32 for the 1 outputs of 'n=>n'",
            "An op states its shapes with `spec`, or defines `make_node`. | Op()",
            "`output_dtypes` returns a list of a number format for each output. | 0 for the 2 outputs of ' => ; '",
        ]
    )


def test_an_output_may_have_its_format_by_name() -> None:
    x = oc.placeholder("x", output=[3])
    assert node_of([x], [TensorType("int32", x.terms)])(x).dtype is oc.int32  # type: ignore[arg-type]


def test_props_name_attributes_that_are_there() -> None:
    class Bare(Op):
        __props__ = ("factor",)
        spec = "n => n"

    assert repr(Bare()) == "Bare()"
    assert refused(Bare()) == snapshot("An op has the attributes that __props__ names. | no factor")
    with pytest.raises(oc.OpError, match="tuple of names"):
        type("Text", (Op,), {"__props__": "factor"})


def test_a_wrong_number_of_outputs_is_refused_with_the_op_and_the_line() -> None:
    x = oc.placeholder("x", output=[3])
    op = node_of([x], [TensorType(oc.float32)] * 2, spec="n => n")
    with pytest.raises(oc.SpecError) as error:
        op(x)
    assert error.value.found == "1 in 'n => n', for 2"
    assert error.value.where.startswith("Bad(), at test_op.py")
    assert error.value.where.endswith(": op(x)")


def test_a_spec_that_does_not_follow_the_notation_is_refused_with_its_op() -> None:
    with pytest.raises(oc.SpecError) as error:
        type("Bad", (Op,), {"spec": "n ==> n"})()(1.0)
    assert error.value.where.startswith("spec of Bad(), at test_op.py:")
    with pytest.raises(oc.SpecError, match="A spec is a text"):
        type("Bad", (Op,), {"spec": 3})()(1.0)


def test_a_refused_application_is_refused_again() -> None:
    x = oc.placeholder("x", output=[3])
    op = node_of([x], [TensorType(oc.float32)])
    assert refused(op) == refused(op)


def test_tensors_of_two_sessions_do_not_meet_in_an_op() -> None:
    x = int64()
    with oc.Session():
        y = int64()
    with pytest.raises(oc.UsageError, match="Tensors of different sessions do not mix"):
        Add()(x, y)


def test_an_op_may_be_applied_outside_of_the_session_of_its_inputs() -> None:
    x = int64()
    with oc.Session():
        assert Add()(x, 3).session is x.session


def test_a_tree_shows_ops_by_name() -> None:
    x = oc.placeholder("x", output=[3])
    assert str(oc.tree(Scale(2.0)(x) + 1.0)).splitlines() == snapshot(
        ["add (3)", "├─ Scale (3)", "│  └─ x: placeholder (3)", "└─ 1"]
    )


def test_props_are_compared_by_class_and_bits() -> None:
    assert Scale(0.0) != Scale(-0.0)
    assert Scale(1) != Scale(True)
    assert Scale(float("nan")) == Scale(float("nan"))
    x = oc.placeholder("x", output=[4])
    assert Scale(0.0)(x) is not Scale(-0.0)(x)


def test_constants_of_equal_values_are_one_tensor() -> None:
    assert as_variable(2.5) is as_variable(2.5)
    assert as_variable(0.0) is not as_variable(-0.0)
    assert as_variable(2**53, "int64") is not as_variable(2**53 + 1, "int64")
