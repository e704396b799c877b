"""Captured sizes of named axes, in arithmetic and in requirements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _session() -> Iterator[None]:
    with oc.Session(seed=1, dtype="float64"):
        yield


def values(*tensors: oc.Tensor) -> list[Any]:
    ctx = oc.Context("interp")
    for tensor in tensors:
        ctx.init_params(tensor)
        ctx.compile(oc.train.forward(tensor))()
    return [ctx[tensor] for tensor in tensors]


def test_scores_are_divided_by_the_root_of_the_width_that_their_specification_contracts() -> None:
    queries, keys = RANDOM.normal(size=(3, 2, 4)), RANDOM.normal(size=(5, 2, 4))
    d = oc.dim("d")
    q, k = (oc.tensor(each, batch_axes=1) for each in (queries, keys))
    scores = oc.einsum("s|h d; t|h d => s|t->h", q, k, capture=[d])
    (found,) = values(scores / oc.sqrt(d))
    np.testing.assert_allclose(found, np.einsum("shd,thd->sht", queries, keys) / 2, rtol=1e-12)


def test_a_row_variable_counts_the_cells_that_a_mean_divides_by() -> None:
    cells = RANDOM.normal(size=(3, 2, 4))
    n = oc.dim("n")
    total = oc.einsum("...|..n.. => ...|0", oc.tensor(cells, batch_axes=1), capture=[n])
    (found,) = values(total / n)
    np.testing.assert_allclose(found[:, 0], cells.mean((1, 2)), rtol=1e-12)
    assert n.size == 8


def test_an_ellipsis_is_captured_by_the_kind_of_its_row() -> None:
    n = oc.dim("rows")
    x = oc.tensor(RANDOM.normal(size=(3, 2, 4)), batch_axes=2)
    total = oc.einsum("...|c => c", x, capture={"batch": n})
    values(total / n)
    assert n.size == 6


def test_a_size_is_known_once_it_is_inferred_and_asking_does_not_infer_it() -> None:
    n = oc.dim("n")
    x = oc.placeholder("x", output=[4])
    hidden = oc.param("w") @ x
    total = oc.einsum("...n => ...0", hidden, capture=[n])
    before = n.size, repr(n)
    compared = oc.einsum("i;i=>i", hidden, oc.tensor([1.0, 2.0, 3.0]))
    values_of = oc.Context("interp").compile(oc.train.forward(total / n + 0.0 * compared))
    assert before == (None, "<dimension n: ?>")
    assert n.size == 3
    assert values_of is not None


def test_compiling_a_dimension_closes_its_shape() -> None:
    n = oc.dim("n")
    oc.einsum("...,n => n", oc.tensor(np.zeros((2, 5))), capture=[n])
    (found,) = values(n * n)
    assert found == 25


def test_the_gradient_of_a_product_with_a_size_is_scaled() -> None:
    n, w = oc.dim("n"), oc.param("w", output=[5], init=1.0)
    loss = oc.einsum("n => 0", w, capture=[n]) / n
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.grad_update(loss), keep=[w.grad])
    ctx.init_params(loss)
    step()
    np.testing.assert_allclose(ctx[w.grad], np.full(5, 0.2))


def test_recorded_code_divides_by_a_size() -> None:
    n = oc.dim("n")
    x = oc.tensor([1.0, 2.0, 6.0])

    @oc.cd
    def average(x: oc.Tensor) -> None:
        mean[:] = oc.einsum("n => 0", x, capture=[n]) / n

    mean = oc.declare("mean")
    ctx = oc.Context("interp")
    ctx.compile(average(x))()
    assert ctx.item(mean) == 3.0


def test_maxima_sums_and_concatenations_capture_too() -> None:
    a, b = oc.tensor([1.0, 2.0]), oc.tensor([3.0, 4.0, 5.0])
    sizes = [oc.dim(name) for name in ("i", "i", "j", "j", "k", "j")]
    oc.einmax("i => 0", a, capture=[sizes[0]])
    oc.primitives.outer_sum("i;j=>ij", a, b, capture=[sizes[2]])
    oc.primitives.tropical("i;j=>ij", a, b, capture=[sizes[1]])
    oc.concat("i; j => i^j", a, b, capture=[sizes[3]])
    oc.einsum("i;k=>ik", a, b, capture=[sizes[4]])
    oc.einsum("i;j;i=>j", a, b, a, capture=[sizes[5]])
    assert [each.size for each in sizes] == [2, 2, 3, 3, 3, 3]


def _by_number(n: oc.Dimension) -> None:
    n.require(3)


def _by_axis(n: oc.Dimension) -> None:
    m = oc.dim("m")
    oc.einsum("m => m", oc.tensor([1.0, 2.0, 3.0]), capture=[m])
    n.require(m)


def _by_row(n: oc.Dimension) -> None:
    m = oc.dim("m")
    oc.einsum("..m.. => 0", oc.tensor([1.0, 2.0, 3.0]), capture=[m])
    n.require(m)


def _by_a_row_that_requires_it(n: oc.Dimension) -> None:
    m = oc.dim("m")
    oc.einsum("..m.. => 0", oc.tensor([1.0, 2.0, 3.0]), capture=[m])
    m.require(n)


def _by_sharing(n: oc.Dimension) -> None:
    oc.einsum("..m.. => ..m..", oc.tensor([1.0, 2.0, 3.0]), capture={"m": n})


@pytest.mark.filterwarnings("ignore:The first operand of n, c => c has no axis `n`")
@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(
    ("name", "require"),
    [
        *((name, by) for name in ("n, ", "..n.., ") for by in (_by_number, _by_axis, _by_row)),
        *((name, _by_a_row_that_requires_it) for name in ("n, ", "..n.., ")),
        ("..n.., ", _by_sharing),
    ],
)
def test_labels_absent_from_the_result_are_summed_over_their_required_size(
    require: Callable[[oc.Dimension], None], name: str, is_early: bool
) -> None:
    n, cells = oc.dim("n"), np.array([1.0, 2.0, 3.0, 4.0])
    x = oc.param("x", init=oc.tensor(cells), input=[])
    if is_early:
        row = "..n.." if ".." in name else "n"
        oc.einsum(f"{row} => {row}", oc.placeholder("y", output=[...]), capture=[n])
        require(n)
    total = oc.einsum(f"{name}c => c", x, capture=[n])
    if not is_early:
        require(n)
    mean = total / n
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.grad_update(mean), keep=[total, mean, x.grad])
    ctx.init_params(mean)
    step()
    assert n.size == 3
    np.testing.assert_array_equal(ctx[total], 3 * cells)
    np.testing.assert_array_equal(ctx[mean], cells)
    np.testing.assert_allclose(ctx[x.grad], np.ones(4))


@pytest.mark.parametrize(
    ("spec", "dims", "size"),
    [("..n.. => 0", (3, 4), 12), ("..n.., c => c", (3, 4), 3), ("n, c => c", (3, 4), 3)],
)
def test_a_captured_size_is_known_and_fixed_once_its_operation_is_compiled(
    spec: str, dims: tuple[int, ...], size: int
) -> None:
    n = oc.dim("n")
    values(oc.einsum(spec, oc.tensor(np.zeros(dims)), capture=[n]))
    assert n.size == size
    with pytest.raises(oc.ShapeError, match=r"number of cells|same size"):
        n.require(size + 12)
    n.require(size)


@pytest.mark.parametrize("times", [1, 2, 3, 4])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_row_of_a_parameter_follows_from_another_row(times: int, is_turned: bool) -> None:
    known, free, p = oc.dim("known"), oc.dim("free"), oc.param("p", init=1.0)
    total = oc.einsum("..known.. => 0", oc.tensor([1.0, 2.0, 3.0]), capture=[known])
    count = oc.einsum("..free.. => 0", p, capture=[free])
    if is_turned:
        free.require(known, times=times)
    else:
        known.require(free, times=times)
    found, sizes = values(count, total), (known.size, free.size)
    if is_turned:
        assert sizes == (3, 3 * times)
    else:
        assert sizes == ((3, 1) if times == 3 else (3 * times, 3))
    assert found[0] == sizes[1]
    assert found[1] == 6.0 * (known.size or 0) / 3
    assert str(p.shape) == ("()" if sizes[1] == 1 else str(sizes[1]))


@pytest.mark.parametrize(
    ("make", "shape", "total"),
    [
        (lambda p: p, "6", 6.0),
        (oc.exp, "6", 6 * np.e),
        (lambda p: p + oc.tensor(np.ones((2, 1))), "2,1", 12.0),
        (lambda p: p + oc.tensor(np.ones((2, 3))), "2,3", 12.0),
    ],
)
def test_a_parameter_follows_the_number_of_cells_that_is_required_of_a_row(
    make: Callable[[oc.Tensor], oc.Tensor], shape: str, total: float
) -> None:
    n, p = oc.dim("n"), oc.param("p", init=1.0)
    with oc.settings.overrides(missing_axes="allow"):
        result = oc.einsum("..n.. => 0", make(p), capture=[n])
        n.require(6)
        (found,) = values(result)
    np.testing.assert_allclose(found, total)
    assert (n.size, str(p.shape)) == (6, shape)


def test_a_required_size_decides_the_shape_of_a_parameter() -> None:
    width, w1, w2 = oc.dim("width"), oc.param("w1"), oc.param("w2", output=[2])
    hidden = oc.einsum("width, i; i => width", w1, oc.tensor([1.0, 2.0, 3.0]), capture=[width])
    output = w2 @ hidden
    width.require(7)
    assert output.info.dims == (2,)
    assert (str(w1.shape.output), str(w2.shape)) == ("7,3", "7->2")


def test_dimensions_are_required_to_be_equal_or_multiples_of_each_other() -> None:
    a, b, c = oc.dim("a"), oc.dim("b"), oc.dim("c")
    names = [(a, oc.param("x")), (b, oc.param("y")), (c, oc.param("z"))]
    for each, w in names:
        oc.einsum(f"{each.name} => {each.name}", w, capture=[each])
    a.require(b, times=3)
    c.require(b)
    c.require(4)
    assert [each.size for each in (a, b, c)] == [12, 4, 4]


def test_a_row_has_the_cells_that_are_required() -> None:
    rest, w = oc.dim("rest"), oc.param("w", input=[])
    flat = oc.einsum("..rest.. => ..rest..", w, capture=[rest])
    rest.require(3, times=2)
    assert flat.info.dims == (6,)


def test_a_dimension_captured_twice_is_one_size() -> None:
    n, w = oc.dim("n"), oc.param("w", input=[])
    oc.einsum("n => n", oc.tensor([1.0, 2.0, 3.0]), capture=[n])
    copy = oc.einsum("j => j", w, capture={"j": n})
    assert copy.info.dims == (3,)
    with pytest.raises(oc.ShapeError) as caught:
        oc.einsum("n => n", oc.tensor([1.0, 2.0]), capture=[n])
    assert caught.value.found == "size 3 and size 2 of `n`"


def test_a_row_captured_twice_is_the_same_axes() -> None:
    v, w = oc.dim("v"), oc.param("w", input=[])
    oc.einsum("..v.. => 0", oc.tensor(np.zeros((2, 3))), capture=[v])
    copy = oc.einsum("..v.. => ..v..", w, capture=[v])
    assert (copy.info.dims, v.size) == ((2, 3), 6)


@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_the_size_of_a_padded_window_can_be_required(kernel: int) -> None:
    k, w = oc.dim("k"), oc.param("w", output=[6], init=1.0)
    x = np.arange(6.0)
    smooth = oc.einsum("i=+k => i", w * oc.tensor(x), capture=[k])
    k.require(kernel)
    loss = oc.einsum("i => 0", smooth)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.grad_update(loss), keep=[smooth, w.grad])
    ctx.init_params(loss)
    step()
    shift = kernel - (kernel + 1) // 2
    windows = np.array(
        [[0 <= i + c - shift < 6 for c in range(kernel)] for i in range(6)], dtype=bool
    )
    at = np.arange(6)[:, None] + np.arange(kernel) - shift
    expected = np.where(windows, x[np.clip(at, 0, 5)], 0.0).sum(axis=1)
    np.testing.assert_allclose(ctx[smooth], expected)
    counts = np.bincount(at[windows], minlength=6)
    np.testing.assert_allclose(ctx[w.grad], counts * x)


def refusal(act: Any) -> str:
    """Return an error's text without its place."""
    with pytest.raises(oc.OcannlError) as caught:
        act()
    error = caught.value
    return "\n".join(
        f"{title}: {text}"
        for title, text in (("rule", error.rule), ("found", error.found), ("fix", error.fix))
        if text
    )


def test_a_conflict_names_both_demands() -> None:
    n = oc.dim("n")
    oc.einsum("n => n", oc.param("w"), capture=[n])
    n.require(3)
    with pytest.raises(oc.ShapeError) as caught:
        n.require(4)
    assert caught.value.found == "size 3 and size 4 of `n`"
    assert "n required to be 3" in caught.value.where
    assert "n required to be 4" in caught.value.where
    assert n.size == 3


def test_a_dimension_that_nothing_captures_has_no_size() -> None:
    d = oc.dim("d")
    assert d.size is None
    text = refusal(lambda: oc.Context("interp").compile(oc.train.forward(d * 2.0)))
    assert text == refusal(lambda: d.require(3))
    assert text == snapshot("""\
rule: A dimension stands for a label of an operation.
found: d, which no operation has captured
fix: give it to the operation whose specification mentions d: oc.einsum(..., capture=[d])\
""")


def test_a_size_is_positive() -> None:
    d = oc.dim("d")
    oc.einsum("d => d", oc.param("w"), capture=[d])
    for act in (lambda: d.require(0), lambda: d.require(d, times=0), lambda: d.require(2.5)):  # type: ignore[arg-type]
        assert "A size is a positive number" in refusal(act)


def test_only_names_of_the_specification_are_captured() -> None:
    x = oc.tensor([1.0, 2.0])
    assert refusal(lambda: oc.einsum("i => i", x, capture=[oc.dim("j")])) == snapshot("""\
rule: Only names that occur in the spec can be captured.
found: j; the spec has i
fix: capture a label of an axis, or the name of a row variable\
""")


def test_only_dimensions_are_captured_and_not_those_of_other_sessions() -> None:
    x = oc.tensor([1.0, 2.0])
    with oc.Session():
        foreign = oc.dim("i")
    assert "dimensions of its session" in refusal(lambda: oc.einsum("i => i", x, capture=[foreign]))
    text = refusal(lambda: oc.einsum("i => i", x, capture=["i"]))  # type: ignore[list-item]
    assert text == snapshot("""\
rule: An operation captures dimensions of its session, each name once.
found: 'i' in einsum "i => i"
fix: d = oc.dim('d'), then capture=[d] or capture={'label': d}\
""")


def test_an_axis_does_not_become_a_row() -> None:
    d = oc.dim("d")
    oc.einsum("d => d", oc.tensor([1.0, 2.0]), capture=[d])
    act = lambda: oc.einsum("..d.. => ..d..", oc.tensor([1.0]), capture=[d])  # noqa: E731
    assert "not for both" in refusal(act)


def test_a_refused_operation_captures_nothing() -> None:
    i, j = oc.dim("i"), oc.dim("j")
    x = oc.tensor([1.0, 2.0])
    with pytest.raises(oc.SpecError):
        oc.einsum("i => i", x, capture=[i, j])
    with pytest.raises(oc.ShapeError):
        oc.einsum("i; i => i", x, oc.tensor([1.0, 2.0, 3.0]), capture=[i])
    assert not i.is_captured
