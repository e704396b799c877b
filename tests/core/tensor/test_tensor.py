"""Tensors as Python objects, sessions, gradients as code."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.assignments.nodes import Accumulate
from ocannl_core.ir.assignments.split_formulas import split_formulas
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp


def test_the_smallest_model_has_every_shape_inferred() -> None:
    x = oc.placeholder("x", batch=[32], output=[64])
    w, b = oc.param("w"), oc.param("b", output=[8])
    y = oc.relu(w @ x + b)
    assert "32" in str(y.shape)
    assert "8" in str(y.shape)
    assert y.info.dims == (32, 8)
    assert [str(t.shape) for t in (w, b, y)] == ["64->8", "8", "32|8"]


def test_looking_at_a_partial_shape_changes_nothing() -> None:
    w = oc.param("w")
    before = str(w.shape)
    repr(w)
    assert str(w.shape) == before
    assert "$" in before or ".." in before


def test_a_forgotten_hidden_size_is_an_error_that_names_the_parameter() -> None:
    x = oc.placeholder("x", output=[3])
    h = oc.relu(oc.param("w1") @ x + oc.param("b1"))
    y = oc.param("w2", output=[1]) @ h
    with pytest.raises(oc.ShapeError, match=r"(?s)hidden.*(w1|b1|w2)"):
        _ = y.info


def test_shapes_that_do_not_fit_are_an_error_at_the_line_that_combines_them() -> None:
    a, b = oc.tensor([1, 2, 3]), oc.tensor([1, 2])
    with pytest.raises(oc.ShapeError) as error:
        a + b
    text = str(error.value)
    assert "3" in text
    assert "2" in text
    assert "test_tensor.py" in text
    assert "a + b" in text
    assert (a * a).info.dims == (3,)


def test_equality_is_pointwise_hashing_is_identity_and_truth_is_refused() -> None:
    a, b = oc.tensor([1.0]), oc.tensor([1.0])
    assert isinstance(a == b, oc.Tensor)
    assert {a: 1}[a] == 1
    with pytest.raises(oc.UsageError, match="truth value"):
        bool(a == b)
    for ask in (float, np.asarray):
        with pytest.raises(oc.UsageError, match="context"):
            ask(a)
    with pytest.raises(oc.UsageError, match=r"wrap arrays with oc\.tensor"):
        np.ones(3) + a


def test_sessions_do_not_mix() -> None:
    a = oc.tensor([1.0])
    with oc.Session():
        b = oc.tensor([1.0])
        with pytest.raises(oc.UsageError, match="different sessions"):
            a + b


def test_identities_repeat_in_a_fresh_session() -> None:
    def build() -> list[int]:
        with oc.Session(seed=1):
            loss = oc.einsum("...=>0", oc.param("w", output=[2]) * oc.tensor([1, 2]))
            return [p.id for p in loss.parameters()]

    assert build() == build()


def test_gradients_exist_only_where_a_parameter_is_involved() -> None:
    x, p = oc.tensor([1.0]), oc.param("p", output=[1])
    assert (x * 2.0).grad is None
    assert (x * p).grad is not None
    assert oc.stop_gradient(p).grad is None
    assert (p < x).grad is None
    with pytest.raises(oc.UsageError, match="depends on parameters"):
        oc.train.grad_update(x * 2.0)


def test_operands_without_gradients_get_no_code() -> None:
    x, p = oc.tensor([1.0, 2.0]), oc.param("p", output=[2])
    program = oc.train.grad_update(x / p).resolve()
    body = [a for each in program.body for a in getattr(each, "body", (each,))]
    targets = [
        a.target.name
        for a in body
        if isinstance(a, Accumulate) and a.combine is not BinaryOp.SECOND
    ]
    assert targets == ["p_grad"]


def test_arguments_are_checked() -> None:
    x = oc.tensor([1.0])
    with pytest.raises(oc.UsageError, match="takes 1 operand"):
        oc.relu(x, x)
    with pytest.raises(oc.UsageError, match=r"oc\.tensor"):
        oc.relu([1.0])
    with pytest.raises(oc.UsageError, match="one to three tensors"):
        oc.einsum("i;i;i;i=>i", x, x, x, x)
    with pytest.raises(oc.UsageError, match="none with"):
        oc.concat("a;b=>a^b")
    with pytest.raises(oc.UsageError, match="the kind of the new axis"):
        oc.stack(x, x, axis="depth")
    with pytest.raises(oc.SpecError):
        oc.einsum("ij;jk=>ik", x)


def test_users_define_operations_of_their_own() -> None:
    def forward(v, v1):  # type: ignore[no-untyped-def]
        v[:] = oc.log(1.0 + oc.exp(v1))

    def gradient(g, g1, v1):  # type: ignore[no-untyped-def]
        g1 += g / (1.0 + oc.exp(-v1))

    softplus = oc.define_operation("softplus", forward=forward, gradient=gradient)
    y = softplus(oc.param("p", output=[2]))
    program = oc.train.forward(y).resolve()
    assert [a for a in program.body if isinstance(a, Accumulate)] == [program.body[-1]]
    split = [a for a in split_formulas(program).body if isinstance(a, Accumulate)]
    assert [a.op for a in split] == [UnaryOp.EXP, BinaryOp.ADD, UnaryOp.LOG]
    with pytest.raises(oc.UsageError, match="named after slots"):
        oc.define_operation("bad", forward=lambda result: None)


def test_an_index_beside_a_tensor_is_refused_with_the_way_to_embed_it() -> None:
    i, x = oc.static_index("i", range=4), oc.tensor([1.0, 2.0])
    for apply in (lambda: x * i, lambda: i + x):
        with pytest.raises(oc.UsageError, match=r"StaticIndex beside(.|\n)*oc\.number\(i\)"):
            apply()


def test_placeholders_and_literals_have_gradients_with_requires_grad() -> None:
    x = oc.placeholder("x", batch=[3], output=[4], requires_grad=True)
    scale = oc.tensor(np.array([1.0, 2.0, 3.0, 4.0]), requires_grad=True)
    loss = oc.einsum("... => 0", x * x * scale)
    context = oc.Context("interp")
    routine = context.compile(oc.train.grad_update(loss))
    cells = np.arange(12.0).reshape(3, 4)
    context[x] = cells
    routine()
    np.testing.assert_allclose(context[x.grad], 2 * cells * [1, 2, 3, 4])
    np.testing.assert_allclose(context[scale.grad], (cells * cells).sum(0))


def test_inputs_have_a_gradient_only_with_requires_grad() -> None:
    assert oc.placeholder("x", output=[4]).grad is None
    assert oc.tensor([1.0, 2.0]).grad is None


def test_literals_of_integers_have_no_gradient() -> None:
    with pytest.raises(oc.UsageError, match="real numbers"):
        oc.tensor(np.arange(3), requires_grad=True)


def test_literals_that_hold_tensors_have_their_gradients() -> None:
    part = oc.tensor([1.0, 2.0])
    with pytest.raises(oc.UsageError, match="holds tensors"):
        oc.tensor([part, part], requires_grad=True)


def test_results_have_gradients_with_requires_grad() -> None:
    x = oc.tensor([1.0, 2.0])
    square = oc.multiply(x, x, requires_grad=True)
    loss = oc.einsum("... => 0", square * square)
    context = oc.Context("interp")
    context.compile(oc.train.grad_update(loss), keep=[square.grad])()
    assert context[square.grad].tolist() == [2, 8]
    assert x.grad is None
    for refused in (
        lambda: oc.less(x, 0.0, requires_grad=True),
        lambda: oc.multiply(x, x, dtype="int32", requires_grad=True),
    ):
        with pytest.raises(oc.UsageError, match="with requires_grad=True"):
            refused()


def test_every_operation_takes_requires_grad() -> None:
    p, q = oc.param("p", output=[2]), oc.param("q", output=[2])
    for make in (
        lambda wanted: oc.add(p, q, requires_grad=wanted),
        lambda wanted: oc.pow(p, 2.0, requires_grad=wanted),
        lambda wanted: oc.pow(p, q, requires_grad=wanted),
        lambda wanted: oc.matmul(p, 1.0, requires_grad=wanted),
        lambda wanted: oc.fma(p, 1.0, q, requires_grad=wanted),
        lambda wanted: oc.fma(p, q, q, logic=".", requires_grad=wanted),
        lambda wanted: oc.where(p, q, q, requires_grad=wanted),
        lambda wanted: oc.where(p, q, q, logic="i; i; i => 0", requires_grad=wanted),
        lambda wanted: oc.einsum("i => 0", p, requires_grad=wanted),
        lambda wanted: oc.einmax("i => 0", p, requires_grad=wanted),
        lambda wanted: oc.primitives.outer_sum("i; j => ij", p, q, requires_grad=wanted),
        lambda wanted: oc.primitives.tropical("i; j => ij", p, q, requires_grad=wanted),
        lambda wanted: oc.concat("i; j => i^j", p, q, requires_grad=wanted),
    ):
        assert [make(wanted).requires_grad for wanted in (None, True, False)] == [True, True, False]


def test_gradients_are_of_real_numbers() -> None:
    for make in (oc.placeholder, oc.param):
        with pytest.raises(oc.UsageError, match="cells of int32"):
            make("p", output=[2], dtype="int32", requires_grad=True)


def test_ids_grow_and_a_gradient_has_the_one_after_its_tensor() -> None:
    p = oc.param("p", output=[2])
    assert p.grad is not None
    assert p.grad.id == p.id + 1
    y, z = p * 2.0, oc.tensor([1.0]) * 2.0
    assert y.grad is not None
    assert [y.id, y.grad.id, z.id] == [p.id + 3, p.id + 4, p.id + 7]
    assert z.operands[1].id == p.id + 6


def test_lists_arrays_and_nothing_are_no_operands() -> None:
    x = oc.tensor([1.0, 2.0])
    for apply, fix in (
        (lambda: x - [1, 2], "wrap lists"),
        (lambda: (1, 2) * x, "wrap lists"),
        (lambda: x @ np.ones(2), "wrap arrays"),
        (lambda: np.ones((2, 2)) @ x, "wrap arrays"),
        (lambda: x + x.grad, r"None as its \.grad"),  # type: ignore[operator]
        (lambda: oc.einsum(x, "i => 0"), "specification comes first"),  # type: ignore[arg-type]
        (lambda: oc.add([x, x], x), r"one by one: oc\.stack\(a, b\)"),
    ):
        with pytest.raises(oc.UsageError) as caught:
            apply()
        assert re.search(fix, caught.value.fix)
        assert "test_tensor.py" in caught.value.where


def test_tensors_are_searched_for_beside_nothing() -> None:
    x = oc.tensor([1.0])
    assert (x == None) is False  # noqa: E711
    assert [None, x].index(x) == 1


def test_conversions_of_tensors_to_python_values_are_errors_with_the_line() -> None:
    x = oc.tensor([1.0])
    for ask in (bool, float):
        with pytest.raises(oc.UsageError) as caught:
            ask(x)
        assert "ask(x)" in caught.value.where


@pytest.mark.parametrize("value", [None, 3.0, [oc.placeholder], np.ones(2)])
def test_training_code_of_other_objects_is_refused(value: object) -> None:
    for call in (
        oc.train.forward,
        oc.train.grad_update,
        lambda t: oc.train.sgd_update(t, learning_rate=0.1),
    ):
        with pytest.raises(oc.UsageError, match="Code computes tensors"):
            call(value)  # type: ignore[arg-type, operator]


def test_code_for_several_tensors_is_refused() -> None:
    a, b = oc.param("a", output=[2]), oc.param("b", output=[2])
    with pytest.raises(oc.UsageError, match=r"one for each call(.|\n)*found  <parameter b"):
        oc.train.forward(a, b)  # type: ignore[arg-type]


def test_labels_are_texts() -> None:
    x = oc.tensor([1.0])
    for make in (oc.tensor, oc.reshape, oc.number, oc.exp):
        with pytest.raises(oc.UsageError, match=r"A label is a text(.|\n)*label=3"):
            make(x if make is oc.exp else 1.0, label=3)  # type: ignore[operator]


@pytest.mark.parametrize("seed", [1.5, "1", None, 2**64, -(2**63) - 1])
def test_a_seed_is_an_integer_of_64_bits(seed: object) -> None:
    session = oc.Session(seed=2**64 - 1)
    assert session.seed == 2**64 - 1
    with pytest.raises(oc.UsageError, match="integer of 64 bits"):
        session.seed = seed  # type: ignore[assignment]
    assert session.seed == 2**64 - 1


@pytest.mark.parametrize("arguments", [("a b", None), (3, None), ("i", 0), ("i", 1.5)])
def test_a_static_index_has_a_name_and_a_number_of_values(arguments: tuple[Any, Any]) -> None:
    name, count = arguments
    with pytest.raises(oc.UsageError, match="static index") as caught:
        oc.static_index(name, range=count)
    assert "test_tensor.py" in caught.value.where
