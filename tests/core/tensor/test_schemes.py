"""Schemes of blocks: principal shapes, and errors at the use of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base.errors import ShapeError, SpecError, UsageError
from ocannl_core.shape.language.shape_terms import (
    Dim,
    DimVar,
    Row,
    RowVar,
    Shape,
    Size,
    closed_shape,
)
from ocannl_core.tensor.models.network_blocks import NetworkBlock
from ocannl_core.tensor.models.schemes import scheme_of
from tests.support.example_count import example_count

pytestmark = pytest.mark.filterwarnings("ignore")

Step = tuple[int, int, int]


@oc.op
def dense(x: oc.Tensor, *, hidden: int) -> oc.Tensor:
    return oc.relu(oc.param("w") @ x + oc.param("b", output=[hidden]))


@oc.op
def random_body(x: oc.Tensor, y: oc.Tensor, *, steps: tuple[Step, ...]) -> oc.Tensor:
    made = [x, y]
    for number, (choice, one, other) in enumerate(steps):
        a, b = made[-1 - one % 2], made[other % len(made)]
        actions: list[Callable[[], Any]] = [
            lambda a=a: oc.tanh(a),
            lambda a=a, b=b: a + b,
            lambda a=a, b=b: a * b,
            lambda a=a, b=b: a @ b,
            lambda a=a, n=number: oc.param(f"w{n}", output=[2]) @ a,
            lambda a=a, n=number: a + oc.param(f"b{n}", output=[3]),
            lambda a=a, n=number: a * oc.param(f"g{n}"),
            lambda a=a, n=number: oc.param(f"v{n}") @ a,
            lambda a=a: a.T,
            lambda a=a: oc.einsum("...|... => ...|0", a),
            lambda a=a: oc.einsum("...|..., i => i|...", a),
            lambda a=a, b=b: oc.einsum("...|i; ...|j => ...|i, j", a, b),
            lambda a=a, b=b: oc.einsum("...|..., i; ...|..., i => ...|...", a, b),
            lambda a=a, i=number: dense(a, hidden=1 + i % 3),
            lambda a=a: oc.nn.layer_norm(a),
        ]
        made.append(actions[choice % len(actions)]())
    return made[-1] if len(made) > 2 else x + y


_steps = st.lists(
    st.tuples(st.integers(0, 14), st.integers(0, 1), st.integers(0, 5)), min_size=1, max_size=4
).map(tuple)
_sizes = st.lists(st.integers(1, 3), max_size=2)
_shapes = st.builds(
    lambda b, i, o: closed_shape(tuple(b), tuple(i), tuple(o)), _sizes, _sizes, _sizes
)


def _inlined(steps: tuple[Step, ...], shapes: Sequence[Shape]) -> Shape | None:
    """Return the shape of the body applied to tensors of given shapes; None for an error."""
    with oc.Session():
        given = [
            oc.placeholder(
                name,
                batch=list(each.batch.sizes),
                input=list(each.input.sizes),
                output=list(each.output.sizes),
            )
            for name, each in zip("xy", shapes, strict=True)
        ]
        try:
            result = random_body(steps=steps)(*given)
            result.session.environment.close([result.terms])
        except (ShapeError, SpecError):
            return None
        return result.shape


@settings(max_examples=example_count(15), deadline=None)
@given(_steps, st.lists(st.tuples(_shapes, _shapes), min_size=1, max_size=4))
def test_only_bodies_that_are_wrong_for_all_arguments_have_no_scheme(
    steps: tuple[Step, ...], uses: list[tuple[Shape, Shape]]
) -> None:
    try:
        text = str(scheme_of(random_body(steps=steps)))
    except UsageError:
        text = ""
    found = [_inlined(steps, shapes) for shapes in uses]
    assert text or not any(found)
    assert not text or str(scheme_of(random_body(steps=steps))) == text


class _Unmatched(Exception):
    """A shape that is no instance of the shape of an argument."""


def _match(term: Row, row: Row, rows: dict[RowVar, Row], sizes: dict[DimVar, Size]) -> None:
    leading, trailing = len(term.leading), len(term.trailing)
    axes = row.trailing
    if len(axes) < leading + trailing or (term.tail is None and len(axes) != trailing):
        raise _Unmatched
    between = axes[leading : len(axes) - trailing]
    pairs = [*zip(term.leading, axes, strict=False)]
    pairs += [*zip(term.trailing, axes[len(axes) - trailing :], strict=True)]
    for dim, size in pairs:
        assert isinstance(size, Size)
        known = sizes.setdefault(dim, size) if isinstance(dim, DimVar) else dim
        if known != size:
            raise _Unmatched
    if term.tail is not None and rows.setdefault(term.tail, Row(trailing=between)) != Row(
        trailing=between
    ):
        raise _Unmatched


def _substitute(term: Row, rows: dict[RowVar, Row], sizes: dict[DimVar, Size]) -> Row:
    def size(dim: Dim) -> Dim:
        return sizes[dim] if isinstance(dim, DimVar) else dim

    between = rows[term.tail].trailing if term.tail is not None else ()
    return Row(trailing=(*map(size, term.leading), *between, *map(size, term.trailing)))


@settings(max_examples=example_count(30), deadline=None)
@given(_steps, st.lists(_shapes, min_size=1, max_size=2))
def test_a_printed_type_without_conditions_is_principal(
    steps: tuple[Step, ...], shapes: list[Shape]
) -> None:
    """Of two arguments, or of one, which the body gets twice."""

    @oc.op
    def body(x: oc.Tensor) -> oc.Tensor:
        return random_body(x, x, steps=steps)

    try:
        scheme = scheme_of(body() if len(shapes) == 1 else random_body(steps=steps))
    except UsageError:
        return
    if scheme.conditions:
        return
    rows: dict[RowVar, Row] = {}
    sizes: dict[DimVar, Size] = {}
    expected = _inlined(steps, (shapes[0], shapes[-1]))
    try:
        given_rows = [row for shape in shapes for _, row in shape.rows()]
        terms = [term for shape in scheme.arguments.values() for _, term in shape.rows()]
        for term, row in zip(terms, given_rows, strict=True):
            _match(term, row, rows, sizes)
        (result,) = scheme.results
        for parameter in scheme.parameters.values():
            for _, row in parameter.rows():
                _substitute(row, rows, sizes)
        found = [
            _substitute(row, rows, sizes) for row in (result.batch, result.input, result.output)
        ]
    except _Unmatched:
        assert expected is None
    except KeyError:
        return  # a row that only uses of the result decide
    else:
        # axes that are repeated do not decide the size of a parameter that they meet
        is_repeated = any(not row.trailing or Size(1) in row.trailing for row in given_rows)
        assert Shape(*found) == expected or (expected is None and scheme.parameters and is_repeated)


def _text(block: NetworkBlock[Any]) -> str:
    return str(oc.explain(block))


def test_a_scheme_is_printed_in_the_notation_of_specifications() -> None:
    assert _text(dense(hidden=8)) == (
        "dense: ..batch..|..input..->..output.. => ..batch..|..input..->8\n"
        "  parameter w: ..output..->8\n"
        "  parameter b: ..input..->8"
    )


def test_a_size_of_a_parameter_that_a_use_decides_is_stated() -> None:
    block = dense(hidden=8)
    y = block(oc.placeholder("x", batch=[2], output=[3]))
    _ = y.info
    assert "parameter w: 3->8" in _text(block)
    assert "where 3 has at least the axes of ..output.." in _text(block)


def test_explaining_a_block_changes_neither_the_block_nor_the_session() -> None:
    block = dense(hidden=8)
    first = oc.placeholder("x", output=[3])
    _text(block)
    assert not block.own_parameters
    assert oc.placeholder("z", output=[3]).id == first.id + 1


def test_a_body_that_reads_the_size_of_its_argument_has_no_scheme() -> None:
    with pytest.raises(UsageError, match="follows from its body alone"):
        oc.explain(oc.nn.multi_head_attention(heads=4))


def test_an_error_names_the_use_of_a_block_above_the_line_of_its_body() -> None:
    @oc.op
    def inner(x: oc.Tensor) -> oc.Tensor:
        return oc.param("w", input=[4]) @ x  # the line of the body

    @oc.op
    def outer(x: oc.Tensor) -> oc.Tensor:
        return inner(x)  # the line of the application inside

    x = oc.placeholder("x", batch=[2], output=[3])
    with pytest.raises(ShapeError) as caught:
        outer(x)  # the line of the use
    lines = caught.value.where.splitlines()
    assert lines[0].startswith("outer applied to x of shape 2|3, at ")
    assert lines[0].endswith("# the line of the use")
    assert lines[1].startswith("inner applied to x of shape 2|3, at ")
    assert lines[1].endswith("# the line of the application inside")
    assert lines[2].endswith("# the line of the body")


def test_an_error_names_other_uses_of_blocks_behind_the_lines_of_their_bodies() -> None:
    @oc.op
    def inner(x: oc.Tensor) -> oc.Tensor:
        return oc.param("w", output=[4]) @ x  # the line of the body

    @oc.op
    def outer(x: oc.Tensor) -> oc.Tensor:
        y = inner(x)  # the line of the application inside
        return y

    layer = inner()
    x, y = oc.placeholder("x", output=[3]), oc.placeholder("y", output=[5])
    layer(x)  # the first use
    with pytest.raises(ShapeError) as caught:
        layer(y)
    here, there = sorted(caught.value.where.splitlines()[1:3], key=len)
    assert here.endswith("# the line of the body")
    assert "the line of the body, in inner, at " in there
    assert there.endswith("# the first use")

    made = outer(x)  # the line of the use
    with pytest.raises(ShapeError) as caught:
        made + y
    where = next(line for line in caught.value.where.splitlines() if ", in inner, at " in line)
    assert ", in outer, at " in where
    assert where.endswith("# the line of the use")


def test_explaining_a_block_leaves_the_blocks_and_tensors_that_it_refers_to_as_they_were() -> None:
    with oc.Session() as session:
        inner = oc.nn.dense(output=8)
        scale = oc.tensor([2.0])

        @oc.op
        def outer(x: oc.Tensor) -> oc.Tensor:
            return inner(x)

        @oc.op
        def scaled(x: oc.Tensor) -> oc.Tensor:
            return x + oc.exp(scale)

        before = session.next_id()
        text = str(oc.explain(outer()))
        with pytest.raises(UsageError, match="follows from its body alone"):
            oc.explain(scaled())
        assert session.next_id() == before + 1
        assert not inner.own_parameters
        assert not inner.has_been_applied
        assert inner(oc.tensor([1.0, 2.0])).shape.output
        assert str(oc.explain(outer())) == text
