"""Recorded code: what is absorbed into one assignment, what becomes an intermediate tensor, what is refused."""

from __future__ import annotations

import linecache

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.assign.nodes import Accumulate, Assignment, Fetch, Scalar, Section
from ocannl_core.ops import BinaryOp, UnaryOp


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


def test_declared_tensors_take_the_label_of_what_they_are_made_from(p: oc.Tensor) -> None:
    @oc.cd
    def code() -> None:
        delta = oc.declare("delta")
        delta[:] = p.grad

    assert [target for target, *_ in assignments(code())] == ["delta_p"]


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

    with pytest.raises(oc.UsageError, match=r"c \+= e to add to what c holds"):
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


def test_control_flow_and_loops_choose_what_is_recorded(p: oc.Tensor, q: oc.Tensor) -> None:
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


def test_a_label_comes_from_the_declaration_on_the_right_or_what_it_was_named_after(
    p: oc.Tensor,
) -> None:
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
        return x * oc.param("factor", init=2.0)

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


# ----- misuse, message by message -----------------------------------------------------------------

MISUSE = {
    "leaking tensor": """\
kept = []
@oc.cd
def one():
    kept.append(c * 2.0)
    c[:] = kept[0]
@oc.cd
def two():
    c[:] = kept[0] + 1.0
one()
two()
""",
    "leaking tensor in an expression": """\
kept = []
@oc.cd
def one():
    kept.append(c * 2.0)
    c[:] = kept[0]
one()
oc.train.forward(kept[0])
""",
    "stale primitive": """\
@oc.cd
def one():
    c[:] = 1.0
    product = oc.mul(c, x, logic="i;j=>ij")
    c[:] = 2.0
    oc.declare("d")[oc.neutral] += product
one()
""",
    "leaking primitive": """\
kept = []
@oc.cd
def one():
    kept.append(oc.mul(c, c, logic="i;j=>ij"))
    c[:] = 1.0
@oc.cd
def two():
    oc.declare("d")[:] = kept[0]
one()
two()
""",
    "assignment outside": """\
c[:] = 1.0
""",
    "assignment in another session": """\
with oc.Session():
    @oc.cd
    def one():
        c[:] = 1.0
    one()
""",
    "no gradient": """\
@oc.cd
def one():
    c[:] = oc.tensor([1.0]).grad
one()
""",
    "no gradient in an operation": """\
@oc.cd
def one():
    c[:] = oc.exp(oc.tensor([1.0]).grad)
one()
""",
    "quotients do not compose": """\
@oc.cd
def one():
    c[oc.neutral] += oc.div(c, c, logic="@")
one()
""",
    "malformed projections": """\
@oc.cd
def one():
    c[:] = oc.exp(c, projections="i => j over i<2")
one()
""",
    "projections outside": """\
oc.exp(c, projections="i => i over i<2")
""",
    "projections beyond an axis": """\
@oc.cd
def one():
    c[:] = oc.exp(x, projections="1*i + 1 => i over i<2")
one().resolve()
""",
    "a plain assignment that reduces": """\
@oc.cd
def one():
    c[:] = oc.exp(x, logic="i => 0")
one().resolve()
""",
    "accumulation by an operation that reduces": """\
@oc.cd
def one():
    c[oc.matmul] = x
one()
""",
    "accumulation by a comparison": """\
@oc.cd
def one():
    c[oc.neutral, oc.less] = x
one()
""",
    "an operator after an accumulation": """\
@oc.cd
def one():
    c[oc.maximum] += x
one()
""",
    "a merge buffer in an expression": """\
@oc.cd
def one():
    c[:] = (c.merge + 1.0) * 2.0
one()
""",
}


@pytest.mark.parametrize("case", MISUSE)
def test_a_message_says_what_must_hold_what_was_found_where_and_what_to_do(case: str) -> None:
    assert message(MISUSE[case]) == MESSAGES[case]


def message(text: str) -> str:
    """Returns the error of a program whose lines messages show as those of program.py."""
    before = """\
import ocannl_core as oc
c = oc.declare("c", output=[2])
x = oc.placeholder("x", output=[2])
"""
    lines = (before + text).splitlines(keepends=True)
    linecache.cache["program.py"] = (len(before + text), None, lines, "program.py")
    try:
        with pytest.raises(oc.OcannlError) as error:
            exec(compile(before + text, "program.py", "exec"), {})
    finally:
        del linecache.cache["program.py"]
    return str(error.value)


MESSAGES = snapshot(
    {
        "leaking tensor": """\
A tensor made in recorded code has its value there: it is no part of other code.
  found  <applied mul: ..mul.batch..|..mul.input..->2>, recorded in one, at program.py:12: one()
  where  program.py:11: c[:] = kept[0] + 1.0
  try    assign it to a tensor declared outside of that function, c = oc.declare("c"), or make the tensor outside\
""",
        "leaking tensor in an expression": """\
A tensor made in recorded code has its value there: it is no part of other code.
  found  <applied mul: ..mul.batch..|..mul.input..->2>, recorded in one, at program.py:9: one()
  where  program.py:10: oc.train.forward(kept[0])
  try    assign it to a tensor declared outside of that function, c = oc.declare("c"), or make the tensor outside\
""",
        "stale primitive": """\
An operation whose reduction an assignment states is read by that assignment.
  found  mul "i; j => ij" of <declared c: ..c.batch..|..c.input..->2>, <placeholder x: 2>, of which an operand is written before or by the assignment
  where  assignment to d, at program.py:9: oc.declare("d")[oc.neutral] += product
  try    write it in the assignment itself, and assign to another tensor\
""",
        "leaking primitive": """\
An operation whose reduction an assignment states is read by that assignment.
  found  mul "i; j => ij" of <declared c: ..c.batch..|..c.input..->2>, <declared c: ..c.batch..|..c.input..->2>, written in one, at program.py:12: one()
  where  assignment to d, at program.py:11: oc.declare("d")[:] = kept[0]
  try    write it in the assignment itself, and assign to another tensor\
""",
        "assignment outside": """\
Assignments are recorded inside functions decorated with @oc.cd.
  found  an assignment to <declared c: ..c.batch..|..c.input..->2> outside of one
  where  program.py:4: c[:] = 1.0
  try    put the assignment into a function decorated with @oc.cd and compile what it returns\
""",
        "assignment in another session": """\
Tensors of different sessions do not mix.
  found  <declared c: ..c.batch..|..c.input..->2> of another session assigned to
  where  program.py:7: c[:] = 1.0
  try    build both inside one `with oc.Session():`, or without any\
""",
        "no gradient": """\
Assignments take tensors, merge buffers and numbers.
  found  None
  where  program.py:6: c[:] = oc.tensor([1.0]).grad
  try    a tensor that needs no gradient has None as its .grad: assign gradients of parameters and of what depends on them\
""",
        "no gradient in an operation": """\
Operands are tensors and numbers.
  found  NoneType as an operand of exp
  where  program.py:6: c[:] = oc.exp(oc.tensor([1.0]).grad)
  try    a tensor that needs no gradient has None as its .grad\
""",
        "quotients do not compose": """\
Composition is for products and sums: quotients and powers do not compose.
  found  div with logic="@"
  where  program.py:6: c[oc.neutral] += oc.div(c, c, logic="@")
  try    multiply by oc.recip(b), or write a specification\
""",
        "malformed projections": """\
Projections state an index for each axis, and the range of each variable.
  found  j, which has no range in 'i => j over i<2'
  where  exp, at program.py:6: c[:] = oc.exp(c, projections="i => j over i<2")
  try    write them as in projections="2*o + k; k => o over o<3, k<2"\
""",
        "projections outside": """\
Projections are stated for a primitive that an assignment applies.
  found  exp with projections='i => i over i<2'
  where  exp, at program.py:4: oc.exp(c, projections="i => i over i<2")
  try    inside a function decorated with @oc.cd, write c[oc.neutral] += oc.mul(a, b, projections="...")\
""",
        "projections beyond an axis": """\
Stated projections stay inside the axes.
  found  positions 1 to 2 of axis 0 of operand 1, whose size is 2, in '1*i + 1 => i over i<2'
  where  assignment to c, at program.py:6: c[:] = oc.exp(x, projections="1*i + 1 => i over i<2")\
""",
        "a plain assignment that reduces": """\
A plain assignment writes each cell once: what is reduced is accumulated.
  found  an assignment whose operands have axes that the target has not
  where  assignment to c, at program.py:6: c[:] = oc.exp(x, logic="i => 0")
  try    write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum\
""",
        "accumulation by an operation that reduces": """\
Accumulation needs an operation with a neutral element.
  found  oc.matmul
  where  program.py:6: c[oc.matmul] = x
  try    use +=, -=, *=, /=, **=, |=, &= or c[oc.maximum] = e, c[oc.minimum] = e, c[oc.relu_gate] = e\
""",
        "accumulation by a comparison": """\
Accumulation needs an operation with a neutral element.
  found  oc.less
  where  program.py:6: c[oc.neutral, oc.less] = x
  try    use +=, -=, *=, /=, **=, |=, &= or c[oc.maximum] = e, c[oc.minimum] = e, c[oc.relu_gate] = e\
""",
        "an operator after an accumulation": """\
An assignment names its accumulating operation once.
  found  c[oc.maximum], read or followed by an operator
  where  program.py:6: c[oc.maximum] += x
  try    write c[oc.maximum] = e, or c[oc.neutral, oc.maximum] = e to start afresh\
""",
        "a merge buffer in an expression": """\
A merge buffer, or an operation whose reduction an assignment states, is assigned as it is.
  found  add of <declared c: ..c.batch..|..c.input..->2>.merge, 1.0
  where  program.py:6: c[:] = (c.merge + 1.0) * 2.0
  try    inside a function decorated with @oc.cd, write p.grad += p.grad.merge or c[oc.neutral] += oc.mul(a, b, logic=...)\
""",
    }
)
