"""Errors for common mistakes suggest the right code."""

from __future__ import annotations

import numpy as np
import pytest

import ocannl_core as oc


def test_compiling_a_tensor_names_the_code_to_compile() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match=r"oc\.train\.forward\(x\)"):
        oc.Context("interp").compile(oc.tensor([1.0]))  # type: ignore[arg-type]


def test_errors_about_missing_lists_show_the_list() -> None:
    with oc.Session():
        x = oc.tensor([1.0])
        code = oc.train.forward(x * 2.0)
        with pytest.raises(oc.UsageError, match=r"keep=\[\.\.\.\]"):
            oc.Context("interp").compile(code, keep=x)  # type: ignore[arg-type]
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
