"""Gradients and native code of ops, without running them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.tensor.computations.external_calls import backpropagation_tensors
from ocannl_core.tensor.custom import Apply, ObjectType, Op, TensorType, as_variable
from tests.support.sample_ops import Scale, Split


@pytest.fixture(autouse=True)
def session() -> Any:
    with oc.Session(seed=1) as session:
        yield session


def message(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


def loss_of(y: oc.Tensor) -> oc.Tensor:
    return oc.einsum("...|...->... => 0", y)


def with_grad(grad: Any) -> Op:
    return type("Bad", (Scale,), {"grad": grad})(2.0)  # type: ignore[no-any-return]


def test_backpropagation_through_an_op_without_grad_is_an_attribute_error() -> None:
    w = oc.param("w", output=[3])
    loss = loss_of(Scale(2.0)(w))
    oc.train.forward(loss).resolve()  # computing it needs no gradient
    with pytest.raises(AttributeError) as error:
        oc.train.grad_update(loss)
    assert isinstance(error.value, oc.OpError)
    assert message(error) == snapshot("""\
Gradients flow through an op that defines `grad`.
  found  Scale(factor=2.0) defines none
  where  Scale(factor=2.0), at test_gradients_and_code.py:37: loss = loss_of(Scale(2.0)(w))
  try    def grad(self, inputs, output_gradients), which returns one entry for each input,
         or stop the gradient: oc.stop_gradient(x)\
""")


def test_grad_returns_a_list_with_one_entry_for_each_input() -> None:
    w = oc.param("w", output=[3])
    found = []
    for grad in (
        lambda self, inputs, gradients: gradients[0],
        lambda self, inputs, gradients: [],
        lambda self, inputs, gradients: [gradients[0], None],
        lambda self, inputs, gradients: ["gx"],
    ):
        with pytest.raises(oc.OpError) as error:
            oc.train.grad_update(loss_of(with_grad(grad)(w)))
        found.append(error.value.found)
    assert found == snapshot(
        ["a Tensor", "0 entries for 1 inputs", "2 entries for 1 inputs", "str 'gx' for input 0"]
    )
    oc.train.grad_update(loss_of(with_grad(lambda self, x, g: (g[0],))(w)))
    oc.train.grad_update(loss_of(with_grad(lambda self, x, g: [g[0]])(w)))


def test_an_exception_in_grad_names_the_application() -> None:
    op = with_grad(lambda self, inputs, gradients: [1 / 0])
    loss = loss_of(op(oc.param("w", output=[3])))
    for _ in range(2):  # the first failure leaves no state
        with pytest.raises(ZeroDivisionError) as error:
            oc.train.grad_update(loss)
        (note,) = error.value.__notes__
        assert note.startswith(
            "while calling `grad` of Bad(factor=2.0), at test_gradients_and_code.py:"
        )


def test_a_gradient_has_the_shape_of_its_input() -> None:
    op = with_grad(lambda self, inputs, gradients: [oc.stack(gradients[0], gradients[0])])
    with pytest.raises(oc.ShapeError) as error:
        oc.train.grad_update(loss_of(op(oc.param("w", output=[3]))))
    assert "gradient of Bad(factor=2.0) for input 0" in error.value.where


@pytest.mark.parametrize("keepdims", [False, True])
def test_a_gradient_with_fewer_cells_than_its_input_is_not_repeated(keepdims: bool) -> None:
    op = with_grad(lambda self, x, g: [oc.sum(g[0], axis=0, keepdims=keepdims)])
    loss = loss_of(op(oc.param("w", init=np.ones((2, 3)))))
    for differentiate in (oc.train.grad_update, lambda y: oc.gradients(y, [*y.params])):
        with pytest.raises(oc.ShapeError) as error:
            differentiate(loss)
        assert "Bad(factor=2.0)" in error.value.where
        assert ("size 1 and size 2" if keepdims else "shape 3 for input 0 of shape 2,3") in str(
            error.value
        )


def test_inputs_and_gradients_reach_grad_as_tensors_of_the_node() -> None:
    seen: list[Any] = []
    op = with_grad(lambda self, inputs, gradients: seen.append((inputs, gradients)) or [None])
    w = oc.param("w", output=[3])
    y = op(w)
    oc.train.grad_update(loss_of(y))
    ((inputs, gradients),) = seen
    assert inputs == [w]
    assert gradients == [y.grad]


def test_no_gradient_flows_where_no_input_has_one() -> None:
    assert Scale(2.0)(oc.placeholder("x", output=[3])).grad is None
    w = oc.param("w", output=[3])
    loss = loss_of(Scale(2.0)(oc.placeholder("x", output=[3])) * w)
    oc.train.grad_update(loss)  # Scale has no grad, and needs none here


class Coded(Scale):
    """With code in two languages."""

    input_names = ("x",)
    output_names = ("y",)
    c_headers = ("<float.h>",)
    c_support = "static float $id(float x) { return x; }"
    cuda_support = "static __device__ float $id(float x) { return x; }"

    def c_code(self, node: Apply) -> str:
        return f"for (int64_t i = 0; i < x_size; ++i) y[i] = {self.factor!r} * $id(x[i]);"

    def cuda_code(self, node: Apply) -> str:
        return f"y[threadIdx.x] = {self.factor!r} * $id(x[threadIdx.x]);"

    def cuda_launch(self, node: Apply) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (1,), (node.results[0].shape.size,)


def test_native_code_comes_with_names_support_and_launch() -> None:
    op = Coded(2.0)
    node = op.make_node(np.ones(6, np.float32))
    c, cuda = op.native("c", node), op.native("cuda", node)
    assert c is not None
    assert cuda is not None
    assert (c.inputs, c.outputs, c.headers) == (("x",), ("y",), ("<float.h>",))
    assert (c.support, cuda.support) == (Coded.c_support, Coded.cuda_support)
    assert (c.grid, c.block) == ((), ())
    assert (cuda.grid, cuda.block, cuda.headers) == ((1,), (6,), ())
    assert cuda.body == "y[threadIdx.x] = 2.0 * $id(x[threadIdx.x]);"


def test_arrays_of_native_code_have_names_by_position_unless_stated() -> None:
    class Plain(Split):
        def c_code(self, node: Apply) -> str:
            return ""

    code = Plain().native("c", Plain().make_node([1.0, 2.0]))
    assert code is not None
    assert (code.inputs, code.outputs) == (("in0",), ("out0", "out1"))


def test_there_is_no_native_code_where_an_op_has_none() -> None:
    class WithObject(Coded):
        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.of(x), ObjectType()])

    x = as_variable([1.0, 2.0])
    assert Scale(2.0).native("c", Scale(2.0).make_node(x)) is None
    assert Coded(2.0).native("opencl", Coded(2.0).make_node(x)) is None
    assert WithObject(2.0).native("c", WithObject(2.0).make_node(x)) is None


def test_an_op_that_fails_to_give_its_code_is_named_with_its_line() -> None:
    class Broken(Scale):
        def c_code(self, node: Apply) -> str:
            raise KeyError("width")

    class Silent(Scale):
        def c_code(self, node: Apply) -> Any:
            return None

    def compiling(op: Op) -> oc.OpError:
        with pytest.raises(oc.OpError) as error:
            oc.Context("cpu_c").compile(oc.train.forward(op([1.0, 2.0])))
        return error.value

    broken = compiling(Broken(2.0))
    assert isinstance(broken.__cause__, KeyError)
    assert broken.rule == "The op Broken(factor=2.0) gives its code in c, or raises NoNativeCode."
    assert "op([1.0, 2.0])" in broken.where
    assert compiling(Silent(2.0)).found == "NoneType"


@pytest.mark.parametrize(
    ("name", "value"),
    [("c_headers", "<math.h>"), ("input_names", "x"), ("output_names", (3,)), ("c_support", 3)],
)
def test_attributes_of_native_code_must_be_texts(name: str, value: Any) -> None:
    op = type("Odd", (Coded,), {name: value})(2.0)
    with pytest.raises(oc.OpError) as error:
        oc.Context("cpu_c").compile(oc.train.forward(op([1.0, 2.0])))
    assert "op([1.0, 2.0])" in error.value.where


def test_a_compiler_that_takes_no_native_code_names_the_op_and_the_line() -> None:
    class Broken(Scale):
        def c_code(self, node: Apply) -> str:
            return "in0[0] = 3;"  # an input that is not destroyed

    with pytest.raises(oc.CompileError) as error:
        oc.Context("cpu_c").compile(oc.train.forward(Broken(2.0)([1.0, 2.0])))
    assert error.value.where.startswith("code of Broken(factor=2.0), at test_gradients_and_code.py")


def test_equal_code_under_two_names_is_one_kernel() -> None:
    class Another(Coded):
        pass

    x = as_variable([1.0, 2.0])
    routine = oc.Context("cpu_c").compile(oc.train.forward(Coded(2.0)(x) + Another(2.0)(x)))
    assert routine.source.count("y[i] = 2.0 *") == 1
    assert "Another[:] = Another(" in routine.source  # in the list of steps


def test_gradient_code_is_created_in_the_order_of_the_applications() -> None:
    sums = [oc.cumsum(oc.param(f"x{k}", output=[6], input=[])) for k in range(12)]
    loss = oc.sum(sum(sums[1:], sums[0]))
    found = backpropagation_tensors(loss)
    made = sorted((each for each in found if each.id > loss.id), key=lambda each: each.id)
    read = [each.operands[0] for each in made if each.operands]
    assert len(read) >= len(sums)
    assert read == sorted(read, key=lambda each: each.id)
