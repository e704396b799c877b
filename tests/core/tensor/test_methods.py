"""Methods of tensors, the protocols of Python and NumPy, and errors about names of other libraries."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import re
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.expression import LateFunctions, functions
from ocannl_core.tensor.graph.methods import TensorMethods
from ocannl_core.tensor.graph.session import make_atomic
from ocannl_core.tensor.messages.call_errors import load_on_demand
from ocannl_core.tensor.messages.foreign_names import ATTRIBUTES, FOREIGN, FUNCTIONS, UFUNCS
from ocannl_core.tensor.operations import numpy_functions


def operation_of(x: oc.Tensor) -> str:
    assert isinstance(x.definition, Applied)
    return x.definition.operation.name


def test_every_method_is_bound_to_a_function() -> None:
    methods = [n for n, v in vars(TensorMethods).items() if callable(v) and n[0] != "_"]
    assert len(methods) > 60
    for name in methods:
        assert callable(functions[vars(TensorMethods)[name].__name__]), name


def test_every_counterpart_of_numpy_is_bound_and_numpy_has_the_name() -> None:
    for theirs, ours in (UFUNCS | FUNCTIONS).items():
        assert hasattr(np, theirs)
        assert callable(functions[ours]), ours


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


def test_the_size_of_an_axis_with_an_extent_is_the_extent() -> None:
    n = oc.static_extent("n", max=8)
    x = oc.placeholder("x", batch=[n], output=[2, 3])
    assert tuple(x.shape) == (n, 2, 3)
    assert x.shape[0] is n
    assert x.shape[-2:] == (2, 3)
    assert x.size == 48
    assert str(oc.reshape(x, x.shape[0], 6).shape) == "n<=8|6"
    assert str(oc.placeholder("y", batch=[x.shape[0]]).shape.batch) == "n<=8"


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: range(x.shape[0]),
        lambda x, n: int(n),
        lambda x, n: float(n + 1),
        lambda x, n: np.zeros(x.shape),
        lambda x, n: oc.arange(0, n, 2),
        lambda x, n: len(x),
        lambda x, n: list(x),
    ],
)
def test_an_extent_is_no_number_of_python(program: Callable[..., object]) -> None:
    n = oc.static_extent("n", max=8)
    x = oc.placeholder("x", batch=[n], output=[3])
    with pytest.raises((oc.ShapeError, oc.UsageError), match=r"n<=8|n \+ 1") as error:
        program(x, n)
    assert "test_methods.py" in error.value.where or "test_methods.py" in error.value.found


def test_the_message_about_an_index_beside_a_tensor_names_it() -> None:
    n = oc.static_extent("n", max=8)
    with pytest.raises(oc.UsageError, match=r"oc\.number\(n\) is the tensor"):
        oc.placeholder("x", batch=[n]) / n


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
        (lambda x: x.gelu(), r"oc\.gelu\(x\)"),
        (lambda x: x.batch_norm(), r"oc\.nn\.batch_norm\(x\)"),
        (lambda x: x.gather(1, x), r"oc\.take_along\(x, ids, axis\)"),
        (lambda x: x.flatten(1), r"x\.reshape\(x\.shape\[0\], -1\)"),
        (lambda x: oc.split(x, 2), r"x\.split is a method of tensors"),
        (lambda x: oc.nn.diagonal(x), r"x\.diagonal is a method of tensors"),
        (lambda x: oc.masked_fill(x, x > 0, 0.0), r"oc\.where\(mask, value, x\)"),
        (lambda x: oc.backward(x), r"oc\.train\.grad_update\(loss\)"),
        (lambda x: oc.normal(0, 1, (3, 4)), r"oc\.require_shape\(oc\.normal\(\), \(3, 4\)\)"),
        (lambda x: oc.uniform(-1, 1), r"low \+ \(high - low\) \* oc\.uniform\(\)"),
        (lambda x: oc.nn.cross_entropy(x, x, weight=x), 'reduction="none"'),
        (lambda x: oc.nn.cross_entropy(x, np.zeros(2, int)), "wrap arrays"),
        (lambda x: oc.nn.huber(x, 1.0), r"oc\.full_like"),
        (lambda x: np.fft.fft(x), r"numpy\.fft"),
        (lambda x: np.subtract.reduce(x), r"numpy\.subtract\.reduce"),
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


PYTORCH = [
    "add_",
    "backward",
    "bmm",
    "bool",
    "byte",
    "chunk",
    "clone",
    "contiguous",
    "cpu",
    "cuda",
    "cumsum",
    "data",
    "detach",
    "detach_",
    "device",
    "dim",
    "double",
    "element_size",
    "expand",
    "expand_as",
    "fill_",
    "flatten",
    "float",
    "gather",
    "grad_fn",
    "half",
    "index_select",
    "int",
    "is_leaf",
    "item",
    "long",
    "masked_fill",
    "masked_select",
    "matmul",
    "mm",
    "movedim",
    "mul_",
    "narrow",
    "new_zeros",
    "norm",
    "numel",
    "numpy",
    "permute",
    "pin_memory",
    "register_hook",
    "repeat_interleave",
    "requires_grad_",
    "retain_grad",
    "scatter",
    "scatter_add",
    "select",
    "size",
    "split",
    "squeeze",
    "storage",
    "stride",
    "t",
    "to",
    "tolist",
    "topk",
    "transpose",
    "tril",
    "type",
    "type_as",
    "unbind",
    "unfold",
    "unsqueeze",
    "view",
    "view_as",
    "zero_",
    "zero_grad",
]


def calls(x: oc.Tensor, y: oc.Tensor, name: str) -> None:
    """Read an attribute, and call it in the ways that it may be called elsewhere."""
    attribute = getattr(x, name)
    if callable(attribute):
        for args in ((), (y,), (0,), (1, 2)):
            with contextlib.suppress(oc.OcannlError):
                attribute(*args)
        for kwargs in ({"dim": 0}, {"keepdim": True}, {"axis": 0}, {"out": y}):
            with contextlib.suppress(oc.OcannlError):
                attribute(**kwargs)


@pytest.mark.parametrize("name", sorted({*PYTORCH, *(n for n in dir(np.ndarray) if n[0] != "_")}))
def test_an_attribute_of_arrays_elsewhere_works_or_is_an_error_with_advice(name: str) -> None:
    x, y = (oc.tensor(np.ones((2, 3), np.float32)) for _ in range(2))
    with contextlib.suppress(oc.OcannlError):
        calls(x, y, name)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        (lambda x: x(1), "takes no arguments"),
        (lambda x: x << 1, "2\\*\\*n"),
        (lambda x: 1 >> x, "2\\*\\*n"),
        (lambda x: x.__delitem__(0), r"x\[1:\]"),
        (lambda x: x.__enter__(), r"oc\.Session"),
        (pickle.dumps, r"oc\.save"),
        (copy.deepcopy, "call the function that makes the parameters again"),
        (lambda x: x + "a", "text is no operand"),
        (lambda x: x * 1j, "real and imaginary parts"),
        (lambda x: x.sum(dim=0), r"axis= for dim="),
        (lambda x: oc.softmax(x, dim=-1), r"axis= for dim="),
        (lambda x: oc.placeholder("p", shape=[2]), r'oc\.placeholder\("x", batch=\[32\], output'),
        (lambda x: oc.placeholder("p", [2, 3]), r'oc\.placeholder\("x", batch=\[32\], output'),
        (lambda x: oc.param("w", [3]), r'oc\.param\("w", input=\[64\], output=\[10\]\)'),
        (lambda x: oc.declare("c", [3]), r'oc\.declare\("state", output=\[10\]\)'),
        (lambda x: oc.static_index("i", 4), r'oc\.static_index\("i", range=10\)'),
        (lambda x: oc.static_extent("n", 4), r'oc\.static_extent\("n", max=256\)'),
        (lambda x: oc.tensor([1.0], 1), r"oc\.tensor\(array, batch_axes=1\)"),
        (lambda x: oc.nn.dropout(x, 0.5), r"oc\.nn\.dropout\(x, rate=0\.1\)"),
        (lambda x: oc.nn.dropout(x, p=0.5), r"rate= for p="),
        (lambda x: oc.nn.cross_entropy(x, x, ignore_index=0), r"ignore= for ignore_index="),
        (lambda x: oc.nn.relu(x), r"oc\.relu"),
        (lambda x: oc.cross_entropy(x, x), r"oc\.nn\.cross_entropy"),
        (lambda x: oc.Adam(), r"oc\.train\.Adam"),
        (lambda x: x.mean(axis=0, keepdim=True), r"keepdims= for keepdim="),
        (lambda x: np.put(x, [0], 1), r"oc\.put\(x, ids, values\)"),
        (lambda x: np.where(x > 0), r"np\.where\(condition, x, y\)"),
        (lambda x: np.linalg.inv(x), "functions of oc"),
        (lambda x: np.einsum("ij,jk->ik", x), "as many parts as operands"),
        (lambda x: np.einsum("ij->jij", x), "is an axis of an operand, once"),
        (lambda x: oc.cat([x, x]), r"oc\.concat"),
        (lambda x: oc.sofmax(x), r"oc\.softmax is similar"),
        (lambda x: oc.nn.Linear(3, 4), r"oc\.nn\.dense"),
        (lambda x: oc.train.optim, r"oc\.train\.AdamW"),
        (lambda x: oc.train.forward(x)(), r"step = oc\.Context\(\)\.compile"),
        (lambda x: oc.roll(x, "a", 0), "number of positions"),
        (lambda x: oc.broadcast_to(x, "a"), "row of sizes"),
        (lambda x: oc.pad(x, 1, value="a"), "hold a number"),
        (lambda x: oc.searchsorted(x, x), "one axis in order"),
        (lambda x: oc.put(x, oc.arange(2), x, 0), "Positions are integers"),
        (lambda x: oc.tensor([1.0], batch_axes="a"), "batch_axes='a'"),
        (lambda x: np.tensordot(x, x, ([0, 1], [0])), "Axes are summed in pairs"),
        (lambda x: oc.nn.lstm(x[:, None], [x], width=3), r"states=\[\(hidden, cell\)\]"),
        (lambda x: oc.nn.lstm(x[:, None], [(x, x, x)], width=3), "a pair of tensors"),
        (lambda x: oc.nn.gru(x[:, None], [(x, x)], width=3), "state of oc.nn.gru is a tensor"),
        (lambda x: oc.Context(3), "NAME or NAME:NUMBER"),
        (lambda x: oc.Context(oc.Context("interp").backend), r"try    interp:0"),
    ],
)
def test_a_wrong_use_is_an_error_with_advice(wrong: Callable[[Any], object], advice: str) -> None:
    x = oc.tensor(np.ones((2, 3), np.float32))
    with pytest.raises(oc.OcannlError, match=advice):
        wrong(x)


def test_a_missing_name_of_a_module_is_an_attribute_error() -> None:
    assert not hasattr(oc, "cat")
    assert not hasattr(oc.nn, "Linear")
    assert copy.copy(x := oc.number(1.0)) is x


def test_division_with_remainder_is_that_of_python() -> None:
    x = oc.tensor(np.array([7.0, -7.0, 2.5], np.float32))
    quotient, remainder = divmod(x, 2.0)
    reflected, _ = divmod(9.0, x)
    ctx = oc.Context("interp")
    code = sum((oc.train.forward(e) for e in (remainder, reflected)), oc.train.forward(quotient))
    ctx.compile(code, keep=[quotient, remainder, reflected])()
    assert ctx[quotient].tolist() == [3, -4, 1]
    assert ctx[remainder].tolist() == [1, 1, 0.5]
    assert ctx[reflected].tolist() == [1, -2, 3]


A, B, C = (
    np.random.default_rng(k).normal(size=s).astype(np.float32)
    for k, s in enumerate([(3, 4), (4, 3), (2, 3, 4)])
)
ROW, IDS = np.sort(A.ravel()[:7]), np.array([[0, 2], [1, 1], [2, 0]], np.int32)

OF_NUMPY: dict[str, Callable[..., Any]] = {
    "take": lambda a, b, c, r, i: np.take(a, i),
    "take with axis": lambda a, b, c, r, i: np.take(a, i, axis=1),
    "take_along_axis": lambda a, b, c, r, i: np.take_along_axis(a, i, 1),
    "searchsorted": lambda a, b, c, r, i: np.searchsorted(r, a),
    "searchsorted, right": lambda a, b, c, r, i: np.searchsorted(r, r, side="right"),
    "concatenate": lambda a, b, c, r, i: np.concatenate([a, a]),
    "concatenate flat": lambda a, b, c, r, i: np.concatenate([a, b], axis=None),
    "stack": lambda a, b, c, r, i: np.stack([a, a]),
    "vstack": lambda a, b, c, r, i: np.vstack([r, r]),
    "hstack": lambda a, b, c, r, i: np.hstack([a, a]) * np.hstack([r, r]).sum(),
    "split": lambda a, b, c, r, i: np.split(a, 2, axis=1)[1],
    "array_split": lambda a, b, c, r, i: np.array_split(a, [1], axis=1)[1],
    "roll": lambda a, b, c, r, i: np.roll(a, 2) + np.roll(a, 1, axis=1),
    "repeat": lambda a, b, c, r, i: np.repeat(a, 2),
    "fliplr, flipud": lambda a, b, c, r, i: np.fliplr(a) + np.flipud(a),
    "pad": lambda a, b, c, r, i: np.pad(a, 1, constant_values=3),
    "clip": lambda a, b, c, r, i: np.clip(a, 0, 1) + np.clip(a, 0, None),
    "round": lambda a, b, c, r, i: np.round(a, 1),
    "where": lambda a, b, c, r, i: np.where(a > 0, a, 0),
    "isclose": lambda a, b, c, r, i: np.isclose(a, a + 1e-9),
    "zeros_like, full_like": lambda a, b, c, r, i: np.zeros_like(a) + np.full_like(a, 7),
    "cumsum": lambda a, b, c, r, i: np.cumsum(a),
    "sort": lambda a, b, c, r, i: np.sort(a) + np.argsort(a, axis=0),
    "diff": lambda a, b, c, r, i: np.diff(a, 2, 0),
    "ptp": lambda a, b, c, r, i: np.ptp(a, axis=0),
    "count_nonzero": lambda a, b, c, r, i: np.count_nonzero(i),
    "average": lambda a, b, c, r, i: np.average(a, axis=0, weights=a),
    "nanmean": lambda a, b, c, r, i: np.nanmean(a, axis=0) + np.nansum(a, axis=0),
    "linalg.norm": lambda a, b, c, r, i: np.linalg.norm(a) + np.linalg.norm(r, 1),
    "einsum": lambda a, b, c, r, i: np.einsum("ij,jk->ki", a, b),
    "einsum, implicit": lambda a, b, c, r, i: np.einsum("ba,ac", a, b),
    "einsum with dots": lambda a, b, c, r, i: np.einsum("...ij,jk->...ik", c, b),
    "einsum of five": lambda a, b, c, r, i: np.einsum("ij,jk,kl,lm,mn->in", a, b, a, b, a),
    "dot": lambda a, b, c, r, i: np.dot(c, b),
    "dot of rows": lambda a, b, c, r, i: np.dot(r, r) + np.vdot(a, a),
    "inner": lambda a, b, c, r, i: np.inner(a, c),
    "outer": lambda a, b, c, r, i: np.outer(r, r),
    "tensordot": lambda a, b, c, r, i: np.tensordot(c, a, axes=([1, 2], [0, 1])),
    "tensordot, one axis": lambda a, b, c, r, i: np.tensordot(a, b, 1),
    "trace": lambda a, b, c, r, i: np.trace(np.dot(a, b)),
    "matmul": lambda a, b, c, r, i: np.matmul(a, b),
    "matmul of a stack": lambda a, b, c, r, i: np.matmul(c, b) + np.matmul(r[:4], b),
    "matmul of rows": lambda a, b, c, r, i: np.matmul(a, r[:4]) + np.matmul(r[:3], r[:3]),
    "isclose of infinities": lambda a, b, c, r, i: np.isclose(a / 0.0, np.inf),
    "isclose beside an infinity": lambda a, b, c, r, i: np.isclose(a, np.inf),
    "nan_to_num": lambda a, b, c, r, i: (
        np.nan_to_num((a - a) / 0.0) + np.nan_to_num(a / 0.0) / 1e38
    ),
    "nan_to_num of stated": lambda a, b, c, r, i: np.nan_to_num(a / 0.0, posinf=2.0, neginf=3.0),
    "average by rows": lambda a, b, c, r, i: np.average(a, axis=0, weights=r[:3]),
    "average by columns": lambda a, b, c, r, i: np.average(a, axis=-1, weights=r[:4]),
    "average of integers": lambda a, b, c, r, i: np.average(i * 2**30, weights=i + 1),
    "average of infinities": lambda a, b, c, r, i: np.average(1 / i, axis=0, weights=i + 1),
    "split at ends": lambda a, b, c, r, i: np.concatenate(np.split(r, [0, 3, 3, 5])[1:4]),
    "split backwards": lambda a, b, c, r, i: np.split(r, [4, 2])[2],
    "round of integers": lambda a, b, c, r, i: np.round(i * 77, 2),
    "diagonal": lambda a, b, c, r, i: np.diagonal(np.dot(a, b)),
    "add.reduce": lambda a, b, c, r, i: np.add.reduce(a),
    "maximum.accumulate": lambda a, b, c, r, i: np.maximum.accumulate(a, axis=1),
    "divmod": lambda a, b, c, r, i: np.divmod(a, 0.3)[0],
    "size, ndim, shape": lambda a, b, c, r, i: a * (np.size(a) + np.ndim(a) + np.shape(a)[1]),
}
"""Functions of arrays or of tensors."""


@pytest.mark.parametrize("case", OF_NUMPY)
def test_functions_of_numpy_have_the_results_of_numpy(case: str) -> None:
    function, arrays = OF_NUMPY[case], (A, B, C, ROW, IDS)
    found = function(*map(oc.tensor, arrays))
    with np.errstate(all="ignore"):
        expected = np.asarray(function(*arrays))
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(found), keep=[found])()
    assert ctx[found].shape == expected.shape
    np.testing.assert_allclose(ctx[found], expected, rtol=1e-5, atol=1e-6)


def test_letters_of_other_alphabets_and_words_are_labels_of_einsum_of_numpy() -> None:
    x, y = oc.tensor(A), oc.tensor(B)
    products: Any = [
        np.einsum("αβ,βж->жα", x, y),
        np.einsum("δж,жe", x, y),
        np.einsum(x, ("row", "between"), y, ("between", "column")),  # type: ignore[call-overload]
        np.einsum(x, [99, 70], y, [70, 30]),
    ]
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(sum(map(oc.sum, products))), keep=products)()
    for product in products:
        np.testing.assert_allclose(ctx[product], (A @ B).T, rtol=1e-6)
    with pytest.raises(oc.UsageError, match="letters for axes"):
        np.einsum("i1,1k->ik", x, y)
    with pytest.raises(oc.UsageError, match="list of numbers or of names"):
        np.einsum(x, ["a", 1], y, [1, "b"])  # type: ignore[call-overload]


def test_functions_of_numpy_with_arguments_of_their_own_exist_there() -> None:
    for name in numpy_functions._counterparts:
        owner: Any = np
        for part in name.split("."):
            assert hasattr(owner, part) or name in (
                "unstack",
                "cumulative_sum",
                "cumulative_prod",
                "astype",
                "concat",
                "matrix_transpose",
                "linalg.matrix_transpose",
                "linalg.outer",
                "linalg.tensordot",
                "linalg.vector_norm",
            ), name
            owner = getattr(owner, part, None)


def test_calls_that_replace_layers_of_other_libraries_work() -> None:
    shapes = {"Conv2d": [6, 6, 2]}
    of_images = "BatchNorm2d", "MaxPool2d", "AvgPool2d", "GroupNorm", "Upsample", "interpolate"
    of_images += "AdaptiveAvgPool2d", "adaptive_avg_pool2d", "upsample", "avg_pool2d"
    of_images += "ConvTranspose2d", "conv_transpose2d", "upsample_bilinear", "upsample_nearest"
    shapes |= {name: [6, 6, 2] for name in of_images}
    tried = []
    for name, advice in FOREIGN.items():
        axes = re.search(r"axes=(\d)", advice)
        if axes is not None:
            shapes[name] = [6] * int(axes[1]) + [2]
        call = re.search(r"oc\.nn\.\w+\((?:x|ids),? ?.*\)", advice)
        if call is None:
            continue
        with oc.Session():
            x = oc.placeholder("x", batch=[4], output=shapes.get(name, [6]))
            ids = oc.placeholder("ids", batch=[4], dtype="int32")
            assert isinstance(eval(call[0], {"oc": oc, "x": x, "ids": ids}), oc.Tensor)
        tried.append(name)
    assert {"Linear", "Conv2d", "BatchNorm2d", "Embedding", "Dropout", "AvgPool2d"} <= {*tried}


def test_expressions_that_replace_functions_of_other_libraries_work() -> None:
    names = ("bincount", "lerp", "addmm", "clamp_min", "fmod", "nan_to_num", "normalize", "cdist")
    names += ("logit", "meshgrid", "unfold", "gumbel_softmax", "weight_norm", "embedding_bag")
    with oc.Session():
        x, y = (oc.placeholder(name, batch=[4], output=[6]) for name in "xy")
        ids, weight = oc.placeholder("ids", batch=[4], dtype="int32"), 0.3
        b, w = oc.param("b", output=[6]), oc.param("w", output=[6], input=[6])
        known = {"oc": oc, "x": x, "y": y, "ids": ids, "n": 5, "weight": weight, "b": b, "w": w}
        known |= {"scores": x, "k": oc.static_index("k"), "table": w, "bags": ids, "scale": b}
        for name in names:
            code, *_ = re.split("; oc|, or|, and|, with| is the", FOREIGN[name])
            assert isinstance(eval(code, known), oc.Tensor), name


HELPED: dict[str, Callable[[oc.Tensor], Any]] = {
    "tril": oc.tril,
    "argmax": oc.argmax,
    "argmin of an argument by name": lambda x: oc.argmin(x=x),
    "a method": lambda x: x.argmax(0),
    "one_hot": lambda x: oc.one_hot(oc.argmax(x, 1), 3),
    "categorical": oc.categorical,
    "NumPy": np.tril,
}


@pytest.mark.parametrize("name", HELPED)
def test_helper_tensors_of_a_function_belong_to_the_session_of_its_operand(name: str) -> None:
    with oc.Session() as theirs:
        x = oc.tensor([[1.0, 2.0, 3.0]])
    ours = oc.tensor([1.0]).session
    assert HELPED[name](x).session is theirs
    assert oc.tensor([1.0]).session is ours is not theirs


def test_a_session_is_entered_in_several_threads_at_once() -> None:
    shared, found = oc.Session(), []
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        before = oc.tensor([1.0]).session
        with shared:
            entered.set()
            left.wait()
        found.append(oc.tensor([1.0]).session is before)

    thread = threading.Thread(target=other)
    ours = oc.tensor([1.0]).session
    with shared:
        thread.start()
        entered.wait()
    found.append(oc.tensor([1.0]).session is ours)
    left.set()
    thread.join()
    assert found == [True, True]


@oc.op
def halved(x: oc.Tensor, *, times: int = 1) -> oc.Tensor:
    result: oc.Tensor = x * 0.5**times
    return result


def test_functions_are_pickled_and_copied_by_their_names() -> None:
    """So a configuration that holds some is copied and sent to other processes."""
    held: list[object] = [halved]
    for module in (oc, oc.primitives, oc.random, oc.nn, oc.train, oc.data, oc.custom):
        values = [getattr(module, name) for name in module.__all__]
        held += [x for x in values if isinstance(x, oc.Operation | type(halved) | FunctionType)]
    assert len(held) > 250
    for value in held:
        for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert again is value
    assert oc.sort.__module__ == "ocannl_core"


def test_blocks_and_operations_of_users_refuse_copies_of_parameters_and_pickles() -> None:
    block = halved(times=2)
    assert copy.copy(block) is block
    for refused in (copy.deepcopy, pickle.dumps):
        with pytest.raises(oc.UsageError, match=r'block\(label="other"\)'):
            refused(block)

    def forward(v: Any, v1: Any) -> None:
        v[:] = v1 * v1 * v1

    cube = oc.define_operation("cube", forward=forward)
    assert copy.deepcopy([cube])[0] is cube
    with pytest.raises(oc.UsageError, match="look it up where it is defined"):
        pickle.dumps(cube)


@pytest.mark.parametrize("kind", ["names of a module", "functions behind methods"])
def test_functions_are_seen_once_they_are_prepared_and_stay_the_same(kind: str) -> None:
    """Another thread may look for them while they are loaded."""
    place = {"sort": "ocannl_core.tensor.custom.ordering"}
    namespace: dict[str, Any] = {"__name__": "ocannl_core", "__all__": ["sort"]}
    of_others: list[Any] = []

    def prepare(found: dict[str, Any], names: list[str]) -> None:
        make_atomic(found, names)
        assert "sort" not in namespace
        if not entered.is_set():
            entered.set()
            of_others.append(look("sort"))

    entered = threading.Event()
    if kind == "names of a module":
        look = load_on_demand(namespace, place, prepare)
    else:
        namespace = late = LateFunctions()
        late.places, late.prepare = place, prepare
        look = late.__getitem__
    assert look("sort") is of_others[0] is namespace["sort"]
