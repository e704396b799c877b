"""Errors for common mistakes suggest the right code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.errors import OcannlError


def test_compiling_a_tensor_names_the_code_to_compile() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match=r"oc\.train\.forward\(x\)"):
        oc.Context("interp").compile(oc.tensor([1.0]))  # type: ignore[arg-type]


def test_errors_about_missing_lists_show_the_list() -> None:
    with oc.Session():
        x = oc.tensor([1.0])
        code = oc.train.forward(x * 2.0)
        with pytest.raises(oc.UsageError, match=r"keep=\[\.\.\.\]"):
            oc.Context("interp").compile(code, keep=x)  # type: ignore[arg-type]
        with pytest.raises(oc.UsageError, match=r"keep=\[\.\.\.\]"):
            oc.Context("interp").compile_all([code], keep=x)  # type: ignore[arg-type]
        with pytest.raises(oc.UsageError, match=r"output=\[2\]"):
            oc.primitives.offsets(output=2)  # type: ignore[arg-type]


def test_errors_about_lists_name_their_elements() -> None:
    with oc.Session():
        x = oc.tensor([1.0])
        code = oc.train.forward(x * 2.0)
        context = oc.Context("interp")
        for keyword in ("keep", "inline"):
            with pytest.raises(oc.UsageError, match=f"{keyword}= is a list of tensors"):
                context.compile(code, **{keyword: ["x"]})  # type: ignore[arg-type]
        with pytest.raises(oc.UsageError, match=r"None as its \.grad"):
            context.compile(code, keep=[x.grad])  # type: ignore[list-item]
        with pytest.raises(oc.UsageError, match="list of static indices"):
            context.compile(code, bindings=["i"])  # type: ignore[list-item]
        with pytest.raises(oc.UsageError, match="list of sizes"):
            oc.placeholder("x", output=[oc.Size("3")])  # type: ignore[arg-type]


def test_cells_are_assigned_in_recorded_code_only() -> None:
    with (
        oc.Session(),
        pytest.raises(oc.UsageError, match=r"inside functions decorated with @oc\.cd"),
    ):
        oc.declare("c")[0] = 1.0


def test_merge_buffers_are_refused_as_long_as_nothing_fills_them(target: str) -> None:
    with oc.Session():
        p = oc.param("p", output=[2])

        @oc.cd
        def code() -> None:
            p.grad += p.grad.merge

        ctx = oc.Context(target)
        ctx[p.grad] = 0.0
        step = ctx.compile(code())
        with pytest.raises(oc.LinkError, match=r"fill_merge\(p_grad, source=other\)"):
            step()


def test_literals_lose_nothing_without_a_word() -> None:
    with oc.Session():
        for value, dtype in (
            ([300, -1], "uint8"),
            ([1.7], "int32"),
            (np.array([1e300]), "float32"),
        ):
            with pytest.raises(oc.TransferError):
                oc.tensor(value, dtype=dtype)
        exact = oc.tensor([2**60 + 1], dtype="int64").literal
        assert exact is not None
        assert int(exact[0]) == 2**60 + 1


def test_truth_values_are_counted(target: str) -> None:
    with oc.Session():
        count = oc.einsum("i=>0", oc.tensor(np.array([True, False, True] * 200)))
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(count))()
        assert ctx.item(count) == 400


def test_integers_stay_integers_beside_numbers(target: str) -> None:
    with oc.Session():
        x = oc.tensor(np.array([2**24 + 1]))
        y = oc.maximum(x * 1 + 0, 3)
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y))()
        assert ctx[y].dtype == np.int64
        assert int(ctx[y][0]) == 2**24 + 1


def test_numbers_beside_integers_fit_their_format(target: str) -> None:
    with oc.Session():
        x = oc.tensor([0, 255], dtype="uint8")
        for apply in (
            lambda: x + 300,
            lambda: x + -1,
            lambda: oc.maximum(x, 256),
            lambda: oc.where(x, x, -1),
            lambda: x % 256,
        ):
            with pytest.raises(oc.TransferError, match="uint8 holds 0 to 255"):
                apply()
        below, above = x < 300, x > -1
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(below) + oc.train.forward(above))()
        assert ctx[below].tolist() == ctx[above].tolist() == [1, 1]


def test_square_roots_as_powers_are_the_same_in_every_cell(target: str) -> None:
    with oc.Session():
        x = oc.tensor(np.array([-np.inf, -0.0, 4.0] * 12, np.float32))
        y = x**0.5
        ctx = oc.Context(target)
        ctx.compile(oc.train.forward(y))()
        np.testing.assert_array_equal(ctx[y], np.array([np.inf, 0.0, 2.0] * 12, np.float32))


def _context() -> Any:
    return oc.Context("interp")


def _routine(**arguments: Any) -> Any:
    x = oc.placeholder("x", output=[3])
    return _context().compile(oc.train.forward(x * 2.0), **arguments)


def _data() -> Any:
    return oc.tensor(np.ones((8, 3)), batch_axes=1)


def _assigned(name: str, value: object) -> None:
    setattr(oc.param("w", output=[2]), name, value)


def _beside_a_run_elsewhere() -> None:
    x, filled = oc.placeholder("x", output=[3]), _context()
    filled.compile(oc.train.forward(x * 2.0))
    filled[x] = np.ones(3)
    _context().compile(oc.train.forward(x * 3.0))()


def _entered() -> None:
    with _context():
        pass


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a run of a context": (lambda: _context().run(), "step = ctx.compile"),
    "a state": (lambda: _context().state_dict(), "oc.save"),
    "a gradient of a routine": (lambda: _routine().backward(), "oc.train.grad_update"),
    "a context manager": (_entered, "ctx = oc.Context()"),
    "a copied context": (lambda: copy.deepcopy(_context()), "oc.save"),
    "a pickled context": (lambda: pickle.dumps(_context()), "oc.save"),
    "a pickled routine": (lambda: pickle.dumps(_routine()), "ctx.export"),
    "a copied parameter": (lambda: copy.deepcopy(oc.param("w")), "copy_from"),
    "a name as a key": (lambda: _context()["w"], "ctx[x]"),
    "an array as an argument": (lambda: _routine()(np.ones(3)), "ctx[x] = array"),
    "an array by keyword": (lambda: _routine()(x=np.ones(3)), "ctx[x] = array"),
    "code of two computations": (
        lambda: _context().compile(oc.train.forward(_data()), oc.train.forward(_data())),
        "first + second",
    ),
    "no value here": (_beside_a_run_elsewhere, "ctx[x] = array"),
    "complex numbers": (lambda: oc.tensor(np.ones(3, complex)), "oc.tensor(x.real)"),
    "objects": (lambda: oc.tensor(np.array([1, None], object)), "astype"),
    "words": (lambda: oc.tensor(["a", "b"]), "text is no number"),
    "lists of two lengths": (lambda: oc.tensor([[1.0, 2.0], [3.0]]), "fill the shorter ones"),
    "an unknown batch": (lambda: oc.placeholder("x", batch=[None]), "oc.static_extent"),
    "a fraction as a size": (lambda: oc.placeholder("x", output=[8 / 2]), "output=[4]"),
    "a negative size": (lambda: oc.placeholder("x", output=[-1]), "output=[...]"),
    "zeros of a shape": (lambda: oc.zeros(_data().shape), "oc.zeros_like(x)"),
    "other cells": (lambda: oc.reshape(_data(), 5, 5), "24 is the product"),
    "an axis twice": (lambda: oc.permute(_data(), 0, 0), "0, 1 are the axes"),
    "a name of an axis": (lambda: _data()["width"], "oc.einsum names axes"),
    "a mark in a spec": (lambda: oc.einsum("i$ => i", _data()), "axes are named by letters"),
    "an assigned shape": (lambda: _assigned("shape", (6, 4)), "oc.reshape"),
    "assigned cells": (lambda: _assigned("data", np.ones(2)), "ctx[w] = array"),
    "a rate as text": (lambda: oc.train.Adam(learning_rate="0.1"), "The step size"),
    "no rate": (lambda: oc.train.Adam(), "learning_rate: The step size"),
    "no context to save": (lambda: oc.save("model.safetensors"), "ctx: The context"),
    "a tensor for a loader": (lambda: oc.data.Loader(_data(), batch=4), "images"),
    "a loss for a step": (lambda: oc.train.fit(_data(), [], [], loss=_data()), "step: "),
    "an array for a number": (lambda: oc.number(np.ones((8, 3))), "oc.tensor"),
    "no axis for the batch": (lambda: oc.tensor([1.0], batch_axes=2), "batch_axes=1"),
    "more cells than there are": (lambda: oc.topk(_data(), 9), "k=3"),
    "a gradient before its step": (
        lambda: _context()[oc.param("w", output=[2]).grad],
        "oc.train.grad_update",
    ),
    "the gradient of data": (lambda: _context()[_data().grad], "None as its .grad"),
    "an array for code": (lambda: oc.train.forward(np.ones((99, 99))), "oc.train.forward(y)"),  # type: ignore[arg-type]
    "names of einops": (lambda: oc.rearrange(_data(), "b c -> c b"), "oc.einsum"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_answered_with_its_line_and_advice(case: str) -> None:
    program, advice = MISTAKES[case]
    with oc.Session(), pytest.raises(OcannlError) as caught:
        program()
    error = caught.value
    assert error.rule
    assert error.found
    assert advice in error.fix
    assert "test_common_mistakes.py:" in str(error)


def test_a_value_in_another_context_is_named() -> None:
    with oc.Session(), pytest.raises(oc.LinkError) as caught:
        _beside_a_run_elsewhere()
    assert "has none, but a value in another context" in caught.value.found


def test_a_shape_is_an_argument_of_shapes() -> None:
    with oc.Session():
        x, flat = _data(), oc.tensor(np.ones(24))
        assert str(oc.reshape(flat, x.shape).shape) == "8,3"
        assert str(oc.broadcast_to(oc.tensor([1.0, 2.0, 3.0]), x.shape).shape) == "8,3"


@pytest.mark.parametrize("make", [_context, _routine])
def test_other_missing_attributes_are_those_of_python(make: Callable[[], object]) -> None:
    with oc.Session(), pytest.raises(AttributeError, match="object has no attribute 'height'"):
        getattr(make(), "height")  # noqa: B009


def test_a_new_axis_that_meets_none_of_the_batch_is_named_as_one() -> None:
    with oc.Session():
        rays, depths = oc.placeholder("r", batch=[4], output=[3]), oc.placeholder("d", batch=[4, 5])
        with pytest.raises(oc.ShapeError, match="of the kind of the axis behind it") as error:
            rays[:, None] * depths
        spec = str(error.value).split('einsum("')[1].split('"')[0]
        assert str((oc.einsum(spec, rays) * depths).shape) == "4,5|3"
        with pytest.raises(oc.ShapeError) as other:
            rays[:2] * depths
        assert "None" not in str(other.value)
