"""Methods of tensors, the protocols of Python and NumPy, and errors about names of other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.definitions import Applied
from ocannl_core.tensor.foreign_names import ATTRIBUTES, FUNCTIONS, UFUNCS
from ocannl_core.tensor.methods import TensorMethods
from ocannl_core.tensor.operator_bindings import functions


def operation_of(x: oc.Tensor) -> str:
    assert isinstance(x.definition, Applied)
    return x.definition.operation.name


def test_every_method_is_bound_to_a_function() -> None:
    methods = [n for n, v in vars(TensorMethods).items() if callable(v) and n[0] != "_"]
    assert len(methods) > 60
    for name in methods:
        assert vars(TensorMethods)[name].__name__ in functions, name


def test_every_counterpart_of_numpy_is_bound_and_numpy_has_the_name() -> None:
    for theirs, ours in (UFUNCS | FUNCTIONS).items():
        assert hasattr(np, theirs)
        assert ours in functions


def test_functions_of_numpy_make_tensors() -> None:
    x = oc.placeholder("x", output=[2, 3])
    assert operation_of(np.exp(x)) == "exp"
    assert operation_of(np.arctan2(x, 2.0)) == "atan2"
    assert operation_of(np.float32(2) * x) == "mul"
    assert operation_of(np.greater(x, 0.5)) == "less"
    assert str(np.sum(x, axis=1).shape) == "2"
    assert str(np.concatenate([x, x], axis=1).shape) == "2,6"
    assert str(np.transpose(x, (1, 0)).shape) == "3,2"


def test_conditions_are_combined_logically_and_integers_bit_by_bit() -> None:
    n = oc.placeholder("n", output=[4], dtype="int32")
    m = oc.placeholder("m", output=[4], dtype="int32")
    results = (n & m, n | m, n ^ m, ~n, ~(n == m), (n < m) & (m < 6), (n < m) ^ (n == 3), n // 2)
    ctx = oc.Context("interp")
    code = oc.train.forward(results[0])
    for each in results[1:]:
        code = code + oc.train.forward(each)
    step = ctx.compile(code, keep=list(results))
    a, b = np.array([1, 2, 3, -7]), np.array([3, 2, 5, 6])
    ctx[n], ctx[m] = a.astype(np.int32), b.astype(np.int32)
    step()
    exact = [a & b, a | b, a ^ b, ~a, a != b, (a < b) & (b < 6), (a < b) ^ (a == 3), a // 2]
    for ours, wanted in zip(results, exact, strict=True):
        np.testing.assert_array_equal(ctx[ours], wanted)


def test_functions_of_python_apply_operations() -> None:
    x = oc.placeholder("x", output=[2])
    made = [abs(x), round(x), math.floor(x), math.ceil(x), math.trunc(x)]
    assert [operation_of(each) for each in made] == ["abs", "round", "floor", "ceil", "trunc"]
    assert operation_of(round(x, 2)) == "div"
    assert len(x) == 2
    assert len(list(x)) == 2


def test_shapes_of_known_operands_are_numbers_before_compiling() -> None:
    x, y = oc.placeholder("x", batch=2, output=[3, 1]), oc.placeholder("y", output=4)
    total = oc.exp(x + y)
    assert repr(total) == "<applied exp: 2|3,4>"
    assert tuple(total.shape) == (2, 3, 4)
    assert total.shape[0] == 2
    assert total.shape[-2:] == (3, 4)
    assert len(total.shape) == total.ndim == 3
    assert total.size == 24


def test_reading_a_shape_decides_nothing() -> None:
    x = oc.placeholder("x", output=[3])
    total = x + 1.0
    assert tuple(total.shape) == (3,)
    assert total.session.environment.view(total.terms).output.tail is not None


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_an_error_about_an_attribute_of_another_library_has_a_fix(name: str) -> None:
    x = oc.placeholder("x", output=[2])
    with pytest.raises(oc.UsageError) as caught:
        getattr(x, name)
    assert caught.value.found == f"x.{name}"
    assert caught.value.fix == ATTRIBUTES[name]
    assert "test_methods.py" in caught.value.where
    assert not hasattr(x, name)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda x: x.summ(), "x.sum is similar"),
        (lambda x: np.fft.fft(x), r"numpy\.fft"),
        (lambda x: np.add.reduce(x), r"numpy\.add\.reduce"),
        (lambda x: np.exp(x, where=[True]), "where="),
        (lambda x: f"{x:.3f}", r"ctx\.item\(x\):\.3f"),
        (lambda x: 1.0 in x, r"oc\.any"),
        (lambda x: np.ones(3) + x, "wrap arrays"),
        (lambda x: x.shape[5], r"shape\[5\] of 2,3"),
        (lambda x: len(x.sum()), "first axis"),
        (lambda x: oc.param("w") @ x if len((oc.param("w") @ x).shape) else 0, "number of axes"),
        (lambda x: setattr(x, "requires_grad", True), "requires_grad="),
        (lambda x: (oc.param("v") @ x).ndim, "number of axes"),
    ],
)
def test_a_mistake_has_a_sentence(mistake: Callable[[Any], Any], message: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[2, 3])
        with pytest.raises((oc.UsageError, oc.ShapeError), match=message):
            mistake(x)


def test_special_names_stay_attribute_errors() -> None:
    x = oc.placeholder("x", output=[2])
    with pytest.raises(AttributeError):
        _ = x.__array_interface__
    assert getattr(x, "nothing_like_this", 7) == 7
