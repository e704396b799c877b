"""Inference depends neither on the order of operations nor on the shapes that it forgets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.origin import Origin
from ocannl_core.shape.environment import Axes, Environment
from ocannl_core.shape.language.capture import DimRef
from ocannl_core.shape.language.constraints import (
    AtLeast,
    Constraint,
    DimBelow,
    DimEqual,
    ReverseEqual,
    RowBelow,
    RowEqual,
)
from ocannl_core.shape.language.einsum_ast import Spec, axis_names
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import (
    Dim,
    DimVar,
    FreshVariables,
    Row,
    RowVar,
    Shape,
    Size,
)
from ocannl_core.shape.language.subscripts import NewAxis, Position, Rest, StaticSlice
from ocannl_core.shape.solving import solver
from ocannl_core.shape.translation.logic import (
    Compose,
    ComposeAccumulate,
    Einsum,
    Logic,
    Pointwise,
    Slice,
    Take,
    TakeAlong,
    Transpose,
)
from tests.support.example_count import example_count
from tests.support.forgetting import forgetting

pytestmark = pytest.mark.filterwarnings("ignore::ocannl_core.base.errors.SpecWarning")

_UNARY: list[Logic] = [
    Pointwise(),
    Transpose(),
    Slice((Position(0),)),
    Slice((Rest(), Position(-1))),
    Slice((StaticSlice(0, 2),)),
    Slice((StaticSlice(None, None, -2), Rest(), NewAxis())),
    Slice((NewAxis(), StaticSlice())),
    *(
        Einsum(parse_spec(text))
        for text in (
            "...|... => 0",
            "...|...c => ...|...0",
            "...|...->... => ...|...->...",
            "ij=>ji",
            "i=>ii",
            "ii=>i",
            "2...|...->... => ...|...->...",
            "..v..|... => ..v..",
            "... => ...1",
            "i => _i",
            "..v..i => i..v..",
            "..., i => ..., 2*i",
            "..., 2*i+1 => ..., i",
            "2*i, => i",
            "..., a^b => ..., a",
            "..., 1^a => ..., a",
            "i^j, ... => i, ...",
            "a, b^c => a",
            "i... => i",
            "i...j => ...",
            "...2 => ...",
            "2...j => j",
            "j => j2",
            "j => 3j",
            "..v.., c => c",
            "i, c => c",
        )
    ),
]
_BINARY: list[Logic] = [
    Pointwise(),
    Compose(),
    Einsum(parse_spec("ij;jk=>ik")),
    Einsum(parse_spec("...|i;i->j=>...|j")),
    Einsum(parse_spec("...|...;...=>...|...")),
    Einsum(parse_spec("i;j=>ij")),
    Einsum(parse_spec("...|o<+k,;k,=>...|o")),
    Einsum(parse_spec("...|o=+2*k,..c..;k,..c..->d=>...|o,d")),
    Einsum(parse_spec("..., a; ..., b => ..., a^b")),
    Einsum(parse_spec("a, ...; b, ... => a^b, ...")),
    Einsum(parse_spec("i...;i... => ...")),
    Einsum(parse_spec("i...;j... => ij...")),
    Einsum(parse_spec("i...j;...j => i...")),
    Take(0),
    Take(-1),
    TakeAlong(-1),
]
_TERNARY: list[Logic] = [ComposeAccumulate(), Pointwise()]
_POOL = [(_UNARY, 1), (_BINARY, 2), (_BINARY, 2), (_TERNARY, 3)]

# Equations of rows: some determine axes at the left end of a row, some at its right end.
_CROSSING: list[tuple[list[Logic], int]] = [
    ([Einsum(parse_spec("a, b^c => a")), Einsum(parse_spec("i^j, ... => i, ..."))], 1),
    ([Compose(), Pointwise()], 2),
    ([Einsum(parse_spec("a, ...; i^j, => a, ...")), _BINARY[-1]], 2),
]


@dataclass(frozen=True)
class _Program:
    """Operations and requirements for an environment.

    Attributes:
        shapes: The axes of tensors.
        leaves: The leaves, each with True for a parameter.
        operations: The logic, the result and the operands of each operation.
        captures: For some operations, a name of the specification and a reference.
        requires: Requirements on references: a number, or a multiple of another one.
    """

    shapes: list[tuple[Axes, Axes, Axes]]
    leaves: list[tuple[int, bool]]
    operations: list[tuple[Logic, int, tuple[int, ...]]]
    captures: dict[int, tuple[str, int]] = field(default_factory=dict)
    requires: list[tuple[int, int, int | None]] = field(default_factory=list)

    @property
    def steps(self) -> range:
        return range(len(self.leaves) + len(self.operations) + len(self.requires))


_axes = st.none() | st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, 3, 3, 3, 3]), max_size=2)


@st.composite
def _programs(draw: st.DrawFn, pool: Sequence[tuple[list[Logic], int]] = _POOL) -> _Program:
    """Leaves, then results of operations on earlier tensors."""
    number = draw(st.integers(1, 3))
    shapes: list[tuple[Axes, Axes, Axes]] = [
        draw(st.tuples(st.just([]) | _axes, st.just([]) | _axes, _axes)) for _ in range(number)
    ]
    leaves = [(leaf, draw(st.booleans())) for leaf in range(number)]
    operations: list[tuple[Logic, int, tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 6))):
        logics, arity = draw(st.sampled_from(pool))
        logic = draw(st.sampled_from(logics))
        operands = tuple(draw(st.integers(0, len(shapes) - 1)) for _ in range(arity))
        free = draw(st.sampled_from([True, True, True, False]))
        shapes.append((None, None, None) if free else draw(st.tuples(_axes, _axes, _axes)))
        operations.append((logic, len(shapes) - 1, operands))
    return _Program(shapes, leaves, operations)


def _names(spec: Spec) -> list[str]:
    """Return the names of axes and of row variables."""
    rows = [row for shape in spec.shapes for row in shape.rows]
    names = [name for axis in spec.axes for name in axis_names(axis)]
    return list(dict.fromkeys([*names, *(row.variable for row in rows if row.variable)]))


@st.composite
def _requiring(draw: st.DrawFn) -> _Program:
    """Operations with captured names, and requirements on these."""
    program = draw(_programs())
    captures: dict[int, tuple[str, int]] = {}
    for position, (logic, _, _) in enumerate(program.operations):
        if isinstance(logic, Einsum) and _names(logic.spec) and draw(st.booleans()):
            names = st.sampled_from(_names(logic.spec))
            captures[position] = draw(st.tuples(names, st.integers(0, 2)))
    captured = sorted({reference for _, reference in captures.values()})
    if not captured:
        return program
    reference = st.sampled_from(captured)
    required = st.tuples(reference, st.sampled_from([1, 2, 3, 6]), st.none()) | st.tuples(
        reference, st.sampled_from([1, 1, 2]), reference
    )
    return replace(
        program, captures=captures, requires=draw(st.lists(required, min_size=1, max_size=3))
    )


def _outcome(
    program: _Program, order: Sequence[int], held: Collection[int] | None = None
) -> list[str] | None:
    """Return the closed shapes, or None when there is a contradiction.

    Args:
        held: The shapes that the program holds, and closes, to its end, by default all of them;
            references to others end with their last use.
    """
    environment = Environment()
    shapes = [environment.fresh_shape(batch=b, input=i, output=o) for b, i, o in program.shapes]
    held = range(len(shapes)) if held is None else held
    references = [DimRef(), DimRef(), DimRef()]
    pending: list[tuple[int, int, int | None]] = []

    def leaf(position: int, parameter: bool) -> Callable[[], None]:
        origin = Origin(f"parameter p{position}")
        return lambda: environment.leaf(shapes[position], origin, parameter=parameter)

    def relate(
        position: int, logic: Logic, result: int, operands: tuple[int, ...]
    ) -> Callable[[], None]:
        name, reference = program.captures.get(position, ("", 0))
        capture = {name: references[reference]} if name else None

        def step() -> None:
            origin = Origin("operation")
            operand_shapes = [shapes[operand] for operand in operands]
            environment.relate(logic, shapes[result], operand_shapes, origin, capture)
            require()

        return step

    def require(*added: tuple[int, int, int | None]) -> None:
        """Add requirements on captured references."""
        pending.extend(added)
        for each in list(pending):
            first, number, second = each
            others = [] if second is None else [references[second]]
            if all(reference.term is not None for reference in (references[first], *others)):
                pending.remove(each)
                if others:
                    environment.set_scale(references[first], number, others[0])
                else:
                    environment.set_dim(references[first], number)

    steps: list[Callable[[], None]] = [leaf(*one) for one in program.leaves]
    steps += [relate(position, *one) for position, one in enumerate(program.operations)]
    steps += [partial(require, each) for each in program.requires]
    uses = [{position} for position, _ in program.leaves]
    uses += [{result, *operands} for _, result, operands in program.operations]
    uses += [set()] * len(program.requires)
    try:
        for number, position in enumerate(order):
            steps[position]()
            later = set(held).union(*[uses[each] for each in order[number + 1 :]])
            for done in uses[position] - later:
                shapes[done] = Shape()
        shapes = [shapes[each] for each in held]
        environment.close(shapes, [each for each in references if each.term is not None])
    except ShapeError as error:
        if "step budget" in error.rule:
            raise
        return None
    except UsageError:
        return None  # a reference is of axes and of rows
    views = [environment.view(shape) for shape in shapes]
    assert all(view.is_closed for view in views)
    sizes = [environment.size_of(each) for each in references if each.term is not None]
    assert None not in sizes
    return [*map(str, views), *map(str, sizes)]


@settings(max_examples=200, deadline=None)
@given(_programs(), st.data())
def test_operations_in_any_order_give_the_same_shapes(
    program: _Program, data: st.DataObject
) -> None:
    steps = range(len(program.leaves) + len(program.operations))
    order = data.draw(st.permutations(steps))
    assert _outcome(program, steps) == _outcome(program, order)


@settings(max_examples=example_count(75), deadline=None)
@given(_requiring(), st.data())
def test_requirements_in_any_order_give_the_same_shapes(
    program: _Program, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(program.steps))
    assert _outcome(program, program.steps) == _outcome(program, order)


@settings(max_examples=100, deadline=None)
@given(_programs(_CROSSING), st.data())
def test_rows_known_at_opposite_ends_close_equally_in_any_order(
    program: _Program, data: st.DataObject
) -> None:
    steps = range(len(program.leaves) + len(program.operations))
    order = data.draw(st.permutations(steps))
    assert _outcome(program, steps) == _outcome(program, order)


@pytest.mark.parametrize("programs", [_programs(), _requiring(), _programs(_CROSSING)])
def test_shapes_that_nothing_refers_to_are_forgotten_without_effect(
    programs: st.SearchStrategy[_Program],
) -> None:
    @settings(max_examples=example_count(20), deadline=None)
    @given(programs, st.data())
    def check(program: _Program, data: st.DataObject) -> None:
        numbers = range(len(program.shapes))
        held = data.draw(st.sets(st.sampled_from(numbers), max_size=2))
        expected = _outcome(program, program.steps, held)
        with forgetting():
            assert _outcome(program, program.steps, held) == expected

    check()


_OPEN: tuple[Axes, Axes, Axes] = (None, None, None)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(
            _Program(
                [([], [2], None), _OPEN, _OPEN, _OPEN],
                [(0, True)],
                [
                    (Einsum(parse_spec("m^k, => m")), 1, (0,)),
                    (Einsum(parse_spec("a, ...; i^j, => a, ...")), 2, (0, 0)),
                    (Compose(), 3, (2, 2)),
                ],
            ),
            id="a product of a parameter's rows",
        ),
        pytest.param(
            _Program(
                [([], [], [2]), ([], [], None), _OPEN, _OPEN, _OPEN],
                [(0, False), (1, False)],
                [
                    (Pointwise(), 2, (0,)),
                    (Pointwise(), 3, (1, 2)),
                    (Einsum(parse_spec("a, ...; b, ... => a^b, ...")), 4, (1, 3)),
                ],
            ),
            id="a part as large as what it is added to",
        ),
        pytest.param(
            _Program(
                [([], None, None), _OPEN, (None, None, [1, 1]), _OPEN, _OPEN],
                [(0, False)],
                [
                    (Compose(), 1, (0, 0)),
                    (Einsum(parse_spec("a, ...; i^j, => a, ...")), 2, (1, 0)),
                    (Einsum(parse_spec("i^j, ... => i, ...")), 3, (0,)),
                    (Einsum(parse_spec("a, b^c => a")), 4, (1,)),
                ],
            ),
            id="parts of an axis whose size one order knows before closing",
        ),
        pytest.param(
            _Program(
                [([], [], None), ([], [], []), _OPEN, _OPEN, ([], [], [3, 1]), _OPEN],
                [(0, False)],
                [
                    (Pointwise(), 2, (0, 1)),
                    (Einsum(parse_spec("a, b^c => a")), 3, (2,)),
                    (Compose(), 4, (0, 3)),
                    (Einsum(parse_spec("i^j, ... => i, ...")), 5, (2,)),
                ],
            ),
            id="an axis that one order counts from the right, another from the left",
        ),
        pytest.param(
            _Program(
                [([], None, [2, 2]), ([], [], None), ([], None, None), ([], [], None), _OPEN],
                [(0, False), (1, True)],
                [
                    (Pointwise(), 2, (0, 1)),
                    (Einsum(parse_spec("a, ...; i^j, => a, ...")), 3, (2, 0)),
                    (Compose(), 4, (2, 1)),
                ],
            ),
            id="a row with a first axis that is as long as an operand",
        ),
        pytest.param(
            _Program(
                [(None, [], None), _OPEN, _OPEN],
                [(0, True)],
                [
                    (Einsum(parse_spec("2*i, => i")), 1, (0,)),
                    (Einsum(parse_spec("a, ...; b, ... => a^b, ...")), 2, (1, 0)),
                ],
            ),
            id="a row whose further axes are those of a parameter",
        ),
    ],
)
def test_every_order_gives_the_same_shapes(program: _Program) -> None:
    steps = range(len(program.leaves) + len(program.operations))
    outcomes = [_outcome(program, order) for order in permutations(steps)]
    assert outcomes == [outcomes[0]] * len(outcomes)


_ORIGIN = Origin("constraint", detail="output row")


def _unknowns() -> tuple[list[DimVar], list[RowVar]]:
    supply = FreshVariables()
    return [supply.dim(f"d{n}") for n in range(4)], [supply.row(f"r{n}") for n in range(3)]


@st.composite
def _constraint_sets(draw: st.DrawFn) -> tuple[list[DimVar], list[RowVar], list[Constraint]]:
    dims, rows = _unknowns()
    dim: st.SearchStrategy[Dim] = st.sampled_from(dims) | st.builds(
        Size, st.sampled_from([1, 2, 3, 3]), st.sampled_from([None, None, "a", "b"])
    )
    axes = st.lists(dim, max_size=2).map(tuple)
    leading = st.lists(dim, max_size=1).map(tuple)
    row = st.builds(Row, leading, st.none() | st.sampled_from(rows), axes)
    constraint: st.SearchStrategy[Constraint] = st.one_of(
        st.builds(DimBelow, dim, dim, st.just(_ORIGIN)),
        st.builds(DimBelow, dim, dim, st.just(_ORIGIN)),
        st.builds(DimEqual, dim, dim, st.just(_ORIGIN)),
        st.builds(AtLeast, dim, st.integers(1, 3), st.just(_ORIGIN), lengthens=st.booleans()),
        st.builds(RowBelow, row, row, st.just(_ORIGIN)),
        st.builds(RowBelow, row, row, st.just(_ORIGIN)),
        st.builds(RowEqual, row, row, st.just(_ORIGIN)),
        st.builds(ReverseEqual, row, row, st.just(_ORIGIN)),
    )
    return dims, rows, draw(st.lists(constraint, min_size=1, max_size=7))


def _solution(
    dims: list[DimVar], rows: list[RowVar], constraints: Sequence[Constraint]
) -> list[str] | None:
    environment = Environment()
    for _ in range(len(dims) + len(rows)):
        environment.fresh_shape()  # the environment's own variables must differ from the given ones
    shapes = [Shape(output=Row(trailing=tuple(dims[:2]))), Shape(output=Row(tail=rows[0]))]
    others = [Shape(output=Row(trailing=tuple(dims[2:])))]
    others += [Shape(output=Row(tail=row)) for row in rows[1:]]
    for shape in shapes:
        environment.leaf(shape, Origin("leaf"))
    try:
        for constraint in constraints:
            environment.constrain([constraint])
        environment.close([*shapes, *others])
    except ShapeError as error:
        if "step budget" in error.rule:
            raise
        return None
    return [str(environment.view(shape)) for shape in [*shapes, *others]]


@settings(max_examples=example_count(100), deadline=None)
@given(_constraint_sets(), st.data())
def test_constraints_in_any_order_have_the_same_solution(
    problem: tuple[list[DimVar], list[RowVar], list[Constraint]], data: st.DataObject
) -> None:
    dims, rows, constraints = problem
    permuted = data.draw(st.permutations(constraints))
    assert _solution(dims, rows, constraints) == _solution(dims, rows, permuted)


_DIMS, (_FIRST, _SECOND, _THIRD) = _unknowns()


@pytest.mark.parametrize(
    ("constraints", "solution"),
    [
        pytest.param(
            [
                RowBelow(Row(tail=_FIRST), Row((), _FIRST, (_DIMS[2],)), _ORIGIN),
                RowEqual(Row((Size(2),)), Row((Size(2),), _FIRST), _ORIGIN),
            ],
            ["1,1", "()", "1,1", "()", "()"],
            id="a row with at least the axes of itself and one more is a scalar",
        ),
        pytest.param(
            [
                RowBelow(Row(tail=_FIRST), Row((), _FIRST, (_DIMS[2],)), _ORIGIN),
                DimEqual(_DIMS[2], Size(2), _ORIGIN),
            ],
            None,
            id="which it is not if the further axis is no scalar",
        ),
        pytest.param(
            [
                ReverseEqual(Row((Size(2),), _SECOND), Row((Size(3),), _FIRST), _ORIGIN),
                RowBelow(Row(tail=_SECOND), Row(trailing=(Size(4), Size(3))), _ORIGIN),
            ],
            ["1,1", "4,2", "1,1", "4,3", "()"],
            id="rows in reverse order with axes at their ends",
        ),
        pytest.param(
            [
                ReverseEqual(Row(tail=_SECOND), Row((), _SECOND, ()), _ORIGIN),
                RowEqual(Row((Size(2), Size(3)), _FIRST), Row((), _SECOND, (_DIMS[0],)), _ORIGIN),
                RowEqual(Row(tail=_FIRST), Row(trailing=(Size(2), Size(5))), _ORIGIN),
            ],
            ["5,1", "2,5", "1,1", "2,3,2", "()"],
            id="a row that is its own reverse",
        ),
        pytest.param(
            [
                ReverseEqual(Row(tail=_SECOND), Row(tail=_FIRST), _ORIGIN),
                ReverseEqual(Row(tail=_THIRD), Row(tail=_FIRST), _ORIGIN),
                RowBelow(Row(tail=_SECOND), Row(trailing=(Size(2), Size(1))), _ORIGIN),
                RowBelow(Row(tail=_THIRD), Row(trailing=(Size(1), Size(3))), _ORIGIN),
            ],
            ["1,1", "3,2", "1,1", "2,3", "2,3"],
            id="two reverses of one row are equal",
        ),
        pytest.param(
            [ReverseEqual(Row(tail=_FIRST), Row((), _FIRST, (Size(1),)), _ORIGIN)],
            None,
            id="a reverse is as long as the row",
        ),
        pytest.param(
            [
                RowBelow(Row(tail=_SECOND), Row((), _FIRST, (_DIMS[3],)), _ORIGIN),
                RowBelow(
                    Row((Size(1),), _FIRST, (_DIMS[2],)),
                    Row((), _SECOND, (_DIMS[2], Size(1))),
                    _ORIGIN,
                ),
                RowEqual(
                    Row((), _FIRST, (_DIMS[0],)), Row((_DIMS[0],), _THIRD, (_DIMS[0],)), _ORIGIN
                ),
            ],
            None,
            id="a circle of growing rows with known axes at both ends",
        ),
    ],
)
def test_all_orders_of_constraints_have_the_solution(
    constraints: list[Constraint], solution: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "_STEPS_AT_LEAST", 2_000)
    for order in permutations(constraints):
        assert _solution(_DIMS, [_FIRST, _SECOND, _THIRD], order) == solution
