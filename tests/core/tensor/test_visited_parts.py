"""Visited parts of concatenated axes: values, and specifications that visit none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc


def value(make: Callable[[], oc.Tensor]) -> Any:
    with oc.Session(dtype="float64"):
        tensor = make()
        context = oc.Context("interp")
        context.compile(oc.train.forward(tensor), keep=[tensor])()
        return context[tensor].tolist()


@pytest.mark.parametrize(
    ("spec", "cells", "values", "right"),
    [
        ("1^a^b=>0", [1, 2, 3, 4], {"a": 1}, [9]),
        ("a^2^b=>0", [1, 2, 3, 4], {"a": 1}, [5]),
        ("a^b^1=>b^a,", [1, 2, 3, 4], {"a": 1}, [2, 3, 1]),
        ("a^a=>a,", [1, 2, 3, 4], {}, [4, 6]),
    ],
)
def test_a_number_among_the_parts_is_never_read(
    spec: str, cells: list[float], values: dict[str, int], right: list[float]
) -> None:
    x = np.array(cells, dtype=float)
    assert value(lambda: oc.einsum(spec, oc.tensor(x), values=values)) == right


@pytest.mark.filterwarnings("ignore:In n,d:ocannl_core.SpecWarning")
def test_a_part_that_one_axis_is_not_at_is_visited_by_none() -> None:
    x, y = np.array([[3.0, 30.0], [1.0, 10.0]]), np.array([2.0, 5.0])

    def product() -> oc.Tensor:
        operands = (oc.tensor(x), oc.tensor(y))
        return oc.einsum("n,d^o; r^d=>r,", *operands, values={"o": 1})

    # the second operand is at r, not at d; so that the first one is at o
    assert value(product) == [(30.0 + 10.0) * 2.0]


def test_the_gradient_reaches_only_the_parts_that_are_read() -> None:
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=oc.tensor([1.0, 2.0, 3.0, 4.0]))
        y = oc.einsum("1^a^b=>0", p, values={"a": 1})
        context = oc.Context("interp")
        context.compile(oc.train.grad_update(y), keep=[p.grad])()
        assert context[p.grad].tolist() == [0.0, 1.0, 1.0, 1.0]


def test_the_gradient_of_a_maximum_distinguishes_pairs_of_parts() -> None:
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=oc.tensor([1.0, 9.0, 2.0]))
        y = oc.einmax("a^1^a=>a^a", p)
        context = oc.Context("interp")
        step = context.compile(oc.train.grad_update(y), keep=[y, p.grad])
        context.init_params(y)
        step()
        assert context[y].tolist() == [2.0, 2.0]
        assert context[p.grad].tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("spec", "right"),
    [("i, => 0", [6.0]), ("2*i, => 0", [6.0]), ("i, j => j", [6.0, 6.0]), ("i, => i", [2.0] * 3)],
)
def test_a_cell_repeated_along_a_stated_label_counts_as_often(
    spec: str, right: list[float]
) -> None:
    values = {"i": 3, "j": 2} if "j" in spec else {"i": 3}
    assert value(lambda: oc.einsum(spec, oc.tensor([2.0]), values=values)) == right


def test_the_gradient_of_a_cell_counts_its_repetitions() -> None:
    with oc.Session(dtype="float64"):
        p = oc.param("p", init=oc.tensor([2.0]))
        y = oc.einsum("i, => 0", p, values={"i": 3})
        context = oc.Context("interp")
        context.compile(oc.train.grad_update(y), keep=[p.grad])()
        assert context[p.grad].tolist() == [3.0]


@pytest.mark.parametrize("spec", ["a^b=>a,b", "2^3=>0", "1^a; a^b; b^2=>0"])
def test_a_specification_that_visits_nothing_is_refused(spec: str) -> None:
    with oc.Session():
        operands = [oc.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) for _ in spec.split(";")]
        with pytest.raises(oc.SpecError, match="Some choice of one part") as caught:
            oc.einsum(spec, *operands, values={})
        assert caught.value.where.startswith("einsum")


def test_a_product_of_parts_names_concat() -> None:
    with oc.Session(), pytest.raises(oc.SpecError, match="Some choice of one part") as caught:
        oc.einsum("a; b => a^b", oc.tensor([1.0]), oc.tensor([2.0]))
    assert "oc.concat joins operands" in caught.value.fix


@pytest.mark.parametrize("number", [-1, 2.0, True, "3", None])
def test_values_are_integers(number: Any) -> None:
    with oc.Session(), pytest.raises(oc.SpecError, match="A value is a number of") as caught:
        oc.einsum("i => i, copies", oc.tensor([1.0]), values={"copies": number})
    assert caught.value.found == f"copies = {number!r}"


def test_integers_of_numpy_are_sizes() -> None:
    with oc.Session():
        n = oc.static_extent("n", max=np.int64(4))
        i = oc.static_index("i", range=np.int32(3))
        assert (type(n.maximum), n.maximum, type(i.extent), i.extent) == (int, 4, int, 3)
        for make in (
            lambda: oc.static_extent("n", max=True),
            lambda: oc.static_index("i", range=True),
        ):
            with pytest.raises(oc.UsageError):
                make()
        d = oc.dim("d")
        oc.einsum("d => 0", oc.placeholder("x", output=[...]), capture=[d])
        d.require(np.int64(5))
        assert d.size == 5
        copied = oc.einsum("i => i, copies", oc.tensor([1.0]), values={"copies": np.int64(2)})
        assert str(copied.shape) == "1,2"


def test_an_axis_that_a_concatenation_would_drop_is_refused_as_a_specification() -> None:
    with oc.Session():
        x = oc.tensor([[1.0, 2.0]], batch_axes=1)
        with pytest.raises(oc.SpecError, match="cannot reduce axes"):
            oc.train.forward(oc.concat("a,|;b,|=>a^b,|", x, x)).resolve()
