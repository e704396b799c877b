"""Names in printed programs."""

from __future__ import annotations

from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.text import PrintedNames


def test_names_are_numbered_in_the_order_of_asking() -> None:
    names = PrintedNames(taken=["x1"])
    nodes = [TensorNode(number, ("x",)) for number in range(4)]
    assert [names.node(node) for node in nodes] == ["x", "x2", "x3", "x4"]
    assert names.node(nodes[1]) == "x2"


def test_a_hint_that_ends_in_a_digit_is_set_apart_from_its_number() -> None:
    names = PrintedNames()
    assert [names.of(number, "w1") for number in range(3)] == ["w1", "w1_1", "w1_2"]


def test_names_of_loop_variables_are_free_again_after_their_scope() -> None:
    names = PrintedNames()
    node = TensorNode(0, ("i",))
    with names.scope():
        assert names.variable(LoopVar(0, "i")) == "i"
        with names.scope():
            assert names.variable(LoopVar(1, "i")) == "i1"
        assert names.variable(LoopVar(2, "i")) == "i1"
        assert names.node(node) == "i2"
    assert names.variable(LoopVar(3, "i")) == "i"
    assert names.node(node) == "i2"


def test_a_gradient_is_called_after_its_value_even_where_it_comes_first() -> None:
    names = PrintedNames()
    values = [TensorNode(number, ("matmul",)) for number in range(3)]
    gradients = [TensorNode(9, ("matmul", "grad"), value) for value in values]
    assert [names.node(values[0]), names.node(gradients[1])] == ["matmul", "matmul1_grad"]
    assert [names.node(node) for node in (values[2], gradients[2])] == ["matmul2", "matmul2_grad"]
    assert [names.node(node) for node in (values[1], gradients[0])] == ["matmul1", "matmul_grad"]
