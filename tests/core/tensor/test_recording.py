"""Recorded code: absorbed operations, intermediate tensors, and refusals."""

from __future__ import annotations

import re

import pytest

import ocannl_core as oc
from ocannl_core.ir.assignments.nodes import Accumulate, Assignment, Fetch, Scalar, Section
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp


def flat(body: tuple[Assignment, ...]) -> list[Accumulate | Fetch]:
    found: list[Accumulate | Fetch] = []
    for each in body:
        if isinstance(each, Section):
            found += flat(each.body)
        elif isinstance(each, Accumulate | Fetch):
            found.append(each)
    return found


def assignments(computation: oc.Computation) -> list[tuple[str, BinaryOp, bool, str]]:
    return [
        (a.target.name, a.combine, a.reset, a.op.value.name)
        for a in flat(computation.resolve().body)
        if isinstance(a, Accumulate)
    ]


@pytest.fixture
def p() -> oc.Tensor:
    return oc.param("p", output=[3])


@pytest.fixture
def q() -> oc.Tensor:
    return oc.param("q", output=[3])


def test_an_assignment_absorbs_one_operator(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        nonlocal p
        p += p * q

    assert assignments(code()) == [("p", BinaryOp.ADD, False, "mul")]


def test_a_nested_operator_becomes_a_tensor_before_the_assignment(
    p: oc.Tensor, q: oc.Tensor
) -> None:
    @oc.cd
    def code() -> None:
        p[:] = p - q * 2.0

    found = assignments(code())
    assert [name for _, _, _, name in found] == ["mul", "sub"]
    assert [target for target, *_ in found] == ["mul", "p"]


def test_every_assignment_form_names_its_accumulation(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code(c: oc.Tensor, e: oc.Tensor) -> None:
        c[:] = e
        c += e
        c -= e
        c *= e
        c /= e
        c **= e
        c |= e
        c &= e
        c[oc.neutral] += e
        c[oc.neutral] *= e
        c[oc.maximum] = e
        c[oc.neutral, oc.minimum] = e

    found = [(combine, reset) for _, combine, reset, _ in assignments(code(p, q))]
    assert found == [
        (BinaryOp.SECOND, False),
        (BinaryOp.ADD, False),
        (BinaryOp.SUB, False),
        (BinaryOp.MUL, False),
        (BinaryOp.DIV, False),
        (BinaryOp.POW, False),
        (BinaryOp.OR, False),
        (BinaryOp.AND, False),
        (BinaryOp.ADD, True),
        (BinaryOp.MUL, True),
        (BinaryOp.MAX, False),
        (BinaryOp.MIN, True),
    ]


def test_a_contraction_is_absorbed_with_its_own_accumulation() -> None:
    a, b = oc.tensor([(1, 2), (3, 4)]), oc.tensor([5, 6])

    @oc.cd
    def code(c: oc.Tensor) -> None:
        c[:] = a @ b
        c += a @ b
        c *= a @ b

    c = oc.declare("c", output=[2], batch=[], input=[])
    found = assignments(code(c))
    assert found[0] == ("c", BinaryOp.ADD, True, "mul")
    assert found[1] == ("c", BinaryOp.ADD, False, "mul")
    assert [name for _, _, _, name in found[2:]] == ["mul", "id"]


def test_a_contraction_that_reads_its_target_is_computed_apart_first() -> None:
    a = oc.tensor([(1, 2), (3, 4)])

    @oc.cd
    def code(c: oc.Tensor) -> None:
        c[:] = a @ c

    found = assignments(code(oc.declare("c", output=[2], batch=[], input=[])))
    assert len(found) == 2
    assert found[0][0] != "c"


def test_a_write_in_between_fixes_the_earlier_value(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        before = p * 2.0
        p[:] = q
        q[:] = before

    found = assignments(code())
    assert [name for _, _, _, name in found] == ["mul", "id", "id"]
    assert [target for target, *_ in found[1:]] == ["p", "q"]


def test_zero_as_a_coefficient_leaves_no_code(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        p[:] = q + 0.0 * p

    (only,) = flat(code().resolve().body)
    assert isinstance(only, Accumulate)
    assert only.op is UnaryOp.IDENTITY


def test_numbers_are_operands_without_storage(p: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        nonlocal p
        p *= 3.0

    program = code().resolve()
    (only,) = flat(program.body)
    assert isinstance(only, Accumulate)
    assert only.args == (Scalar(3.0),)
    assert set(program.nodes) == {p.node}


def test_forward_code_of_a_new_expression_comes_along_once(p: oc.Tensor, q: oc.Tensor) -> None:
    ratio = oc.tanh(p)

    @oc.cd
    def code() -> None:
        q[:] = ratio
        p[:] = ratio

    assert [name for _, _, _, name in assignments(code())] == ["tanh", "id", "id"]


def test_declared_tensors_take_the_label_of_the_assigned_value(p: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        delta = oc.declare("delta")
        delta[:] = p.grad

    assert [target for target, *_ in assignments(code())] == ["delta_p"]


def test_a_label_comes_from_the_names_in_the_program() -> None:
    data, image = oc.tensor([1.0, 2.0], label="data"), oc.placeholder("image", output=[2])
    named, nameless = oc.multiply(image, 2.0, label="named"), oc.exp(image)
    labels = []

    @oc.cd
    def code() -> None:
        for source in (data, image * 2.0, named, nameless, oc.tensor([1.0, 2.0])):
            c = oc.declare("c")
            c[:] = source
            labels.append("_".join(c.label))

    code()
    assert labels == ["c_data", "c_image", "c_named", "c", "c"]


def test_recorded_functions_splice_into_each_other(p: oc.Tensor) -> None:
    @oc.cd
    def inner(c: oc.Tensor) -> None:
        c += 1.0

    @oc.cd
    def outer() -> None:
        with oc.section("twice"):
            inner(p)
            inner(p)

    program = outer().resolve()
    assert [type(each) for each in program.body] == [Section]
    assert len(flat(program.body)) == 2


def test_a_spliced_function_is_a_section_under_its_name_and_that_of_its_first_tensor(
    p: oc.Tensor,
) -> None:
    @oc.cd
    def scale(factor: float, c: oc.Tensor) -> None:
        c *= factor

    @oc.cd
    def outer() -> None:
        scale(2.0, p)

    (section,) = outer().resolve().body
    assert isinstance(section, Section)
    assert section.title == "scale p"


def test_an_exception_discards_the_recording(p: oc.Tensor, session: oc.Session) -> None:
    @oc.cd
    def failing() -> None:
        p[:] = 1.0
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing()
    assert session.recorder is None
    assert p * 2.0 is not p


def test_misuse_is_explained(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def accumulates_into_all() -> None:
        p[:] += q

    @oc.cd
    def accumulates_by_less() -> None:
        p[oc.less] = q

    @oc.cd
    def writes_an_expression() -> None:
        (p * q)[:] = p  # type: ignore[index]

    @oc.cd
    def writes_a_literal() -> None:
        oc.tensor([1.0])[:] = p

    @oc.cd
    def returns() -> oc.Tensor:  # type: ignore[misc]
        return p

    with pytest.raises(oc.UsageError, match=r"c \+= e to go on from c"):
        accumulates_into_all()
    with pytest.raises(oc.UsageError, match="neutral element"):
        accumulates_by_less()
    with pytest.raises(oc.UsageError, match="can be assigned to"):
        writes_an_expression()
    with pytest.raises(oc.UsageError, match="can be assigned to"):
        writes_a_literal()
    with pytest.raises(oc.UsageError, match="returns nothing"):
        returns()
    with pytest.raises(oc.UsageError, match=r"decorated with @oc\.cd"):
        p += q
    with pytest.raises(oc.UsageError, match="cannot be replaced"):
        p.grad = q


def test_a_returned_value_is_found_at_its_line(p: oc.Tensor) -> None:
    @oc.cd
    def step(t: oc.Tensor, *, early: bool) -> object:  # type: ignore[misc]
        if early:
            return None
        t -= t.grad
        return t.grad  # this line

    step(p, early=True)
    with pytest.raises(oc.UsageError) as caught:
        step(p, early=False)
    assert re.fullmatch(r"test_recording\.py:\d+: return t\.grad  # this line", caught.value.where)


def test_outside_recorded_code_in_place_operators_rebind_expressions(p: oc.Tensor) -> None:
    total = p * 2.0
    before = total
    total += p
    assert total is not before


def test_a_power_by_a_number_is_absorbed(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        p[:] = q**2.0

    assert assignments(code()) == [("p", BinaryOp.SECOND, False, "pow")]


def test_a_power_by_a_number_has_the_logic_of_one_tensor(p: oc.Tensor) -> None:
    x = oc.tensor([[1.0, 2.0], [3.0, 4.0]])
    c = oc.declare("c", output=[2])

    @oc.cd
    def code() -> None:
        c[oc.neutral] += oc.pow(x, 2.0, logic="ij => i")

    ctx = oc.Context("interp")
    ctx.compile(code())()
    assert ctx[c].tolist() == [5, 25]
    assert str((x**2.0).shape) == str(oc.pow(x, 2.0, logic="ij => ij").shape)


def test_a_recorded_function_that_fails_inside_another_one_leaves_nothing_there(
    p: oc.Tensor, q: oc.Tensor
) -> None:
    @oc.cd
    def failing() -> None:
        with oc.section("half"):
            p[:] = q * 2.0
            raise ValueError("no")

    @oc.cd
    def code() -> None:
        q[:] = 1.0
        with oc.section("tried"):
            try:
                failing()
            except ValueError:
                q[:] = 2.0
        q[:] = 3.0

    assert [target for target, *_ in assignments(code())] == ["q", "q", "q"]
    assert [type(each) for each in code().resolve().body] == [Accumulate, Section, Accumulate]


def test_pythons_control_flow_selects_the_recorded_code(p: oc.Tensor, q: oc.Tensor) -> None:
    @oc.cd
    def code(count: int) -> None:
        for index in range(count):
            if index % 2 == 0:
                p.accumulate(q)
            else:
                p.assign(q)

    assert [combine for _, combine, _, _ in assignments(code(3))] == [
        BinaryOp.ADD,
        BinaryOp.SECOND,
        BinaryOp.ADD,
    ]


def test_a_label_comes_from_the_declaration_on_the_right_or_its_label(p: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        delta = oc.declare("delta")
        delta[:] = oc.tanh(p.grad * 2.0)
        step = oc.declare("step")
        step[:] = delta * 0.5
        p.assign(step)

    assert [target for target, *_ in assignments(code())][-2:] == ["step_p", "p"]


def test_a_label_comes_from_the_block_whose_result_is_assigned(p: oc.Tensor) -> None:
    @oc.op
    def doubled(x: oc.Tensor) -> oc.Tensor:
        return x * oc.param("factor", init=2.0, output=[3])

    @oc.cd
    def code() -> None:
        oc.declare("c")[:] = doubled(p)

    assert assignments(code())[-1][0] == "c_doubled_p"


def test_a_tensor_declared_in_code_can_be_kept_and_is_not_mistaken_for_zero_elsewhere(
    p: oc.Tensor,
) -> None:
    kept = []

    @oc.cd
    def first() -> None:
        total = oc.declare("total")
        total[:] = p * 2.0
        kept.append(total)

    @oc.cd
    def second() -> None:
        p[:] = kept[0]

    code = first()
    ctx = oc.Context("interp")
    ctx.compile(code)
    with pytest.raises(oc.LinkError, match=r"compile first with keep=\[total_p, ...\]"):
        ctx.compile(second())
    fresh = oc.Context("interp")
    step, copy = fresh.compile(code, keep=[kept[0]]), fresh.compile(second())
    fresh[p] = [1.0, 2.0, 3.0]
    step()
    copy()
    assert fresh[p].tolist() == [2, 4, 6]


def test_expressions_that_use_each_other_twice_are_recorded_in_no_time() -> None:
    x, c = oc.placeholder("x", output=[1]), oc.declare("c")

    @oc.cd
    def code() -> None:
        total = x
        for _ in range(100):
            total = total + total
        c[:] = total

    assert len(assignments(code())) == 100


def test_a_declared_tensor_that_is_never_written_stays_zero(p: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        c = oc.declare("c", output=[3])
        p.assign(c + 1.0)

    ctx = oc.Context("interp")
    ctx[p] = 5.0
    ctx.compile(code())()
    assert ctx[p].tolist() == [1, 1, 1]
