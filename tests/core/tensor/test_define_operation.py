"""User-defined operations: slots, and refusals."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.ir.assignments.nodes import Accumulate, Merge
from ocannl_core.ir.assignments.split_formulas import split_formulas
from ocannl_core.ir.assignments.traverse import leaves
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.tensor.graph.definitions import Applied
from ocannl_core.tensor.graph.slots import RESULT
from tests.support.primitive_operations import primitive_operations


def computed(tensor: oc.Tensor) -> np.ndarray[Any, Any]:
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(tensor))
    step()
    return ctx[tensor]


def test_every_operation_of_the_package_is_defined_by_assignments_to_slots() -> None:
    defined = primitive_operations()
    assert len(defined) > 30
    for each in defined:
        assert [assignment.target for assignment in each.forward.assignments] == [RESULT]
        if each.gradient is not None:
            assert each.gradient.assignments


def test_a_defining_function_is_called_once() -> None:
    calls: list[str] = []

    def forward(v: Any, v1: Any) -> None:
        calls.append("forward")
        v[:] = v1 * v1

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        calls.append("gradient")
        g1 += g * (2 * v1)

    square = oc.define_operation("square", forward=forward, gradient=gradient)
    p = oc.param("p", init=[1.0, 2.0])
    loss = oc.einsum("i=>0", square(p) * square(p + 1.0))
    oc.train.grad_update(loss).resolve()
    (first,) = oc.gradients(loss, [p])
    (second,) = oc.gradients(first, [p])
    oc.train.forward(second).resolve()
    oc.train.grad_update(loss).resolve()
    assert sorted(calls) == ["forward", "gradient"]


def test_the_logic_of_a_definition_is_a_specification() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral] += v1 * v2

    bilinear = oc.define_operation("bilinear", forward=forward, logic="ij;kj=>ik")
    a, b = oc.tensor([[1.0, 2.0], [3.0, 4.0]]), oc.tensor([[5.0, 6.0]])
    np.testing.assert_array_equal(computed(bilinear(a, b)), [[17], [39]])


def test_an_application_may_replace_the_logic() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[oc.neutral, oc.maximum] = -v1

    greatest = oc.define_operation("greatest", forward=forward, logic="ij=>i")
    a = oc.tensor([[1.0, -2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(computed(greatest(a)), [2, -3])
    np.testing.assert_array_equal(computed(greatest(a, logic="ij=>j")), [-1, 2])


def test_slots_have_the_names_of_values_tensors_and_sides() -> None:
    def forward(lhs: Any, rhs1: Any, t2: Any) -> None:
        lhs[:] = rhs1 - t2

    minus = oc.define_operation("minus", forward=forward)
    np.testing.assert_array_equal(computed(minus(oc.tensor([5.0]), 2.0)), [3])


@pytest.mark.parametrize("result", ["v", "t", "lhs"])
@pytest.mark.parametrize("operand", ["v", "t", "rhs"])
def test_every_slot_has_three_names(result: str, operand: str) -> None:
    names = ", ".join(f"{operand}{position}" for position in (1, 2, 3))
    found: dict[str, Any] = {}
    exec(
        f"def forward({result}, {names}):\n"
        f"    {result}[:] = {operand}1 - {operand}2 * {operand}3\n",
        found,
    )
    difference = oc.define_operation("difference", forward=found["forward"])
    np.testing.assert_array_equal(computed(difference(2.0, oc.tensor([3.0]), 5.0)), [-13])


@pytest.mark.parametrize("side", ["rhs", "rhs1", "rhs2", "rhs3", "lhs"])
@pytest.mark.parametrize("name", ["{}_part", "part_{}"])
def test_an_intermediate_slot_names_its_side_first_or_last(side: str, name: str) -> None:
    part = name.format(side)
    found: dict[str, Any] = {"oc": oc}
    exec(
        f"def forward(v, v1, v2, v3, {part}):\n"
        f"    {part}[:] = 0.0\n"
        f"    v[oc.neutral] += v1 * v2 * v3 + {part}\n",
        found,
    )
    combined = oc.define_operation("combined", forward=found["forward"], logic="i;j;k=>ijk")
    operands = [oc.tensor([1.0] * size) for size in (2, 3, 4)]
    program = oc.train.forward(combined(*operands)).resolve()
    (node,) = [n for n in program.nodes if n.label[0] == part]
    sizes = {"lhs": (2, 3, 4), "rhs": (2,), "rhs1": (2,), "rhs2": (3,), "rhs3": (4,)}
    assert program.nodes[node].dims == sizes[side]


def test_operands_of_any_number_come_as_a_tuple() -> None:
    def forward(v: Any, vs: Any) -> None:
        v[:] = 0.0
        for each in vs:
            v += each

    total = oc.define_operation("total", forward=forward, operands=3)
    np.testing.assert_array_equal(computed(total(oc.tensor([1.0]), 2.0, 3.0)), [6])


def test_a_slot_named_by_side_and_purpose_is_an_intermediate_tensor_with_its_axes() -> None:
    def forward(v: Any, v1: Any, v2: Any, shifted_rhs1: Any) -> None:
        shifted_rhs1[:] = v1 + v2
        v[oc.neutral] += shifted_rhs1 * shifted_rhs1

    squares = oc.define_operation("squares", forward=forward, logic="ij;j=>i")
    result = squares(oc.tensor([[1.0, 2.0], [3.0, 4.0]]), oc.tensor([1.0, 0.0]))
    np.testing.assert_array_equal(computed(result), [8, 32])
    program = oc.train.forward(result).resolve()
    (node,) = [n for n in program.nodes if n.label[0] == "shifted_rhs1"]
    assert program.nodes[node].dims == (2, 2)


def test_numbers_need_no_index() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[oc.neutral] += 2 * v1 + 1

    affine = oc.define_operation("affine", forward=forward)
    np.testing.assert_array_equal(computed(affine(oc.tensor([1.0, 2.0]))), [3, 5])


def test_functions_and_numbers_of_numpy_are_primitives_in_the_code_of_an_operation() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = np.maximum(np.exp(v1), np.float32(2) * v2) + np.float64(0.5)

    def constant(v: Any, v1: Any) -> None:
        v[:] = np.float32(3)

    x, y = oc.tensor([1.0, 0.0]), oc.tensor([1.0, 2.0])
    found = computed(oc.define_operation("greater_of", forward=forward)(x, y))
    np.testing.assert_allclose(found, [np.e + 0.5, 4.5], rtol=1e-6)
    np.testing.assert_array_equal(
        computed(oc.define_operation("three", forward=constant)(x)), [3, 3]
    )


def test_a_left_hand_side_is_no_operand() -> None:
    def bracketed(v: Any, v1: Any) -> None:
        v[:] = v1[:] * 2

    with pytest.raises(oc.UsageError, match="A left-hand side is assigned to") as caught:
        computed(oc.define_operation("bracketed", forward=bracketed)(oc.tensor([1.0])))
    assert (caught.value.found, caught.value.fix) == (
        "v1[:] as an operand of mul",
        "v1 without brackets has all cells",
    )


def test_functions_of_tensors_are_refused_in_the_code_of_an_operation() -> None:
    def applied(function: Any) -> Any:
        def forward(v: Any, v1: Any) -> None:
            v[:] = function(v1)

        return computed(oc.define_operation("applied", forward=forward)(oc.tensor([1.0])))

    for reduction in (oc.sum, np.sum, oc.mean, oc.softmax):
        with pytest.raises(oc.UsageError, match=r"v1 in a function of tensors") as caught:
            applied(reduction)
        assert "v[oc.neutral] += v1" in caught.value.fix
    with pytest.raises(oc.UsageError, match="primitives: 1 /"):
        applied(oc.sigmoid)


def test_the_code_of_an_operation_is_printed() -> None:
    def forward(v: Any, vs: Any, half_rhs1: Any) -> None:
        half_rhs1[:] = 0.5 * vs[0]
        v[oc.neutral, oc.maximum] = half_rhs1 - vs[1].merge

    def gradient(g: Any, g1: Any, g2: Any, selected: Any) -> None:
        g1 += g * selected
        g2 -= g * selected

    made = oc.define_operation("made", forward=forward, gradient=gradient, operands=2, logic="@")
    assert str(made.forward).splitlines() == [
        "half_rhs1 = 0.5 * vs[0]",
        "v[neutral] max= half_rhs1 - vs[1].merge",
    ]
    assert str(made.gradient).splitlines() == [
        "g1 += g * (selected == position)",
        "g2 -= g * (selected == position)",
    ]


def test_merge_buffers_of_slots_are_operands() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1.merge

    other = oc.define_operation("other_copy", forward=forward)
    p = oc.param("p", init=[1.0])
    (only,) = leaves(oc.train.forward(other(p)).resolve().body)
    assert isinstance(only, Accumulate)
    assert only.args == (Merge(p.node),)


def test_the_maximum_of_a_merge_buffer_selects_its_cells() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[oc.neutral, oc.maximum] = v1.merge

    def gradient(g: Any, g1: Any, selected: Any) -> None:
        g1 += g * selected

    largest = oc.define_operation("largest", forward=forward, gradient=gradient, logic="ij => i")
    p = oc.param("p", init=oc.tensor([[1.0, 2.0]]))
    (expression,) = oc.gradients(largest(p).sum(), [p])
    for code in (oc.train.grad_update(largest(p).sum()), oc.train.forward(expression)):
        searches = [
            each
            for each in leaves(split_formulas(code.resolve()).body)
            if isinstance(each, Accumulate) and each.op is BinaryOp.LT
        ]
        assert searches
        assert all(Merge(p.node) in each.args for each in searches)


def test_a_definition_does_not_change_operators() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = v1 - v2

    oc.define_operation("add", forward=forward)
    np.testing.assert_array_equal(computed(oc.tensor([1.0]) + oc.tensor([2.0])), [3])


def test_without_a_gradient_function_no_gradient_flows() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1 * 2

    double = oc.define_operation("double", forward=forward)
    p = oc.param("p", init=[1.0])
    assert double(p).grad is None
    with pytest.raises(oc.UsageError, match="requires_grad=True"):
        double(p, requires_grad=True)


def test_misuse_of_definitions_is_explained() -> None:
    def unknown(v: Any, x: Any) -> None:
        v[:] = x

    def tensors(v: Any, v1: Any) -> None:
        v[:] = v1 * oc.tensor([1.0])

    def reducing(v: Any, v1: Any) -> None:
        v[:] = v1

    def contraction(v: Any, v1: Any, v2: Any) -> None:
        v[:] = v1 @ v2

    def nothing(v: Any) -> None:
        v[:] = 1.0

    with pytest.raises(oc.UsageError, match="named after slots"):
        oc.define_operation("unknown", forward=unknown)
    with pytest.raises(oc.UsageError, match="An operation has operands"):
        oc.define_operation("nothing", forward=nothing)
    x = oc.tensor([[1.0, 2.0]])
    with pytest.raises(oc.UsageError, match="Slots combine with slots and numbers only"):
        computed(oc.define_operation("tensors", forward=tensors)(x))
    with pytest.raises(oc.SpecError, match="cannot reduce axes"):
        computed(oc.define_operation("reducing", forward=reducing, logic="ij=>i")(x))
    with pytest.raises(oc.UsageError, match="bare primitives"):
        computed(oc.define_operation("contraction", forward=contraction)(x, x))
    with pytest.raises(oc.UsageError, match="takes 1 operand"):
        oc.define_operation("double", forward=reducing)(x, x)


def test_windows_that_leave_an_axis_have_no_intermediate_slot() -> None:
    def forward(v: Any, v1: Any, v2: Any, part_rhs1: Any) -> None:
        part_rhs1[:] = v1
        v[oc.neutral] += part_rhs1 * v2

    windowed = oc.define_operation("windowed", forward=forward, logic="i=+k; k => i")
    with pytest.raises(oc.UsageError, match="no margins"):
        computed(windowed(oc.tensor([1.0, 2.0, 3.0]), oc.tensor([1.0, 1.0])))


def test_the_code_of_an_operation_must_write_its_targets() -> None:
    def assigns_nothing(v: Any, v1: Any) -> None:
        pass

    def returns(v: Any, v1: Any) -> Any:
        return v1 * 2

    def writes_an_operand(v: Any, v1: Any) -> None:
        v1[:] = v

    def reads_too_early(v: Any, v1: Any, part_rhs1: Any) -> None:
        v[:] = part_rhs1

    def fine(v: Any, v1: Any) -> None:
        v[:] = v1

    def writes_the_result(g: Any, v: Any) -> None:
        v[:] = g

    for forward, message in (
        (assigns_nothing, "it assigns nothing to v"),
        (returns, "it returns something"),
        (writes_an_operand, "it writes v1"),
        (reads_too_early, "it reads part_rhs1 before it writes it"),
    ):
        wrong = oc.define_operation("wrong", forward=forward)
        with pytest.raises(oc.UsageError, match=message):
            oc.train.forward(wrong(oc.tensor([1.0]))).resolve()
    wrong = oc.define_operation("wrong", forward=fine, gradient=writes_the_result)
    loss = oc.einsum("...=>0", wrong(oc.param("p", init=[1.0])))
    with pytest.raises(oc.UsageError, match="it writes v"):
        oc.train.grad_update(loss).resolve()


def test_gradients_are_added_to() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = v1 * v1

    def assigned(g: Any, g1: Any, v1: Any) -> None:
        g1[:] = g * v1

    def reset(g: Any, g1: Any, v1: Any) -> None:
        g1[oc.neutral] += g * v1

    def multiplied(g: Any, g1: Any, v1: Any) -> None:
        g1 *= g * v1

    p = oc.param("p", init=[1.0])
    for gradient in (assigned, reset, multiplied):
        wrong = oc.define_operation("wrong", forward=forward, gradient=gradient)
        with pytest.raises(oc.UsageError, match=r"by other means than \+= and -="):
            oc.train.grad_update(oc.einsum("...=>0", wrong(p))).resolve()


def test_gradient_code_is_no_part_of_the_forward_code() -> None:
    def forward(v: Any, v1: Any, g1: Any) -> None:
        v[:] = v1 + g1

    with pytest.raises(oc.UsageError, match=r"found  g1 in wrong"):
        oc.define_operation("wrong", forward=forward)


def test_the_gradient_of_an_operand_that_has_none_is_not_read() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = v1 * v2

    def gradient(g: Any, g1: Any, g2: Any) -> None:
        g1 += g * g2

    wrong = oc.define_operation("wrong", forward=forward, gradient=gradient)
    loss = oc.einsum("...=>0", wrong(oc.param("p", init=[1.0]), oc.tensor([1.0])))
    with pytest.raises(oc.UsageError, match="it reads g2, the gradient of an operand that has"):
        oc.train.grad_update(loss).resolve()


def test_accumulation_starts_from_something() -> None:
    def forward(v: Any, v1: Any) -> None:
        v += v1

    def through(v: Any, v1: Any, part_rhs1: Any) -> None:
        part_rhs1 += v1
        v[:] = part_rhs1

    for code, message in ((forward, "into v before"), (through, "into part_rhs1 before")):
        wrong = oc.define_operation("wrong", forward=code)
        with pytest.raises(oc.UsageError, match=message):
            oc.train.forward(wrong(oc.tensor([1.0]))).resolve()


def test_slots_are_shown_as_they_are_written() -> None:
    def forward(v: Any, v1: Any) -> None:
        v[:] = 1.0 if v1 + 2 > 0 else v1

    wrong = oc.define_operation("wrong", forward=forward)
    with pytest.raises(oc.UsageError) as caught:
        oc.train.forward(wrong(oc.tensor([1.0]))).resolve()
    assert caught.value.found == "lt(0, add(v1, 2))"


@pytest.mark.parametrize("code", [None, 3])
def test_an_operation_is_defined_by_functions(code: Any) -> None:
    with pytest.raises(oc.UsageError, match="is defined by a function"):
        oc.define_operation("wrong", forward=code)
    with pytest.raises(oc.UsageError, match="is defined by a function"):
        oc.define_operation("wrong", forward=lambda v, v1: None, gradient=code or 1)


def even_and_odd(v: Any, v1: Any, v2: Any) -> None:
    v[oc.neutral] += oc.primitives.identity(v1, logic="..., i => ..., 2*i")
    v.accumulate(v2, logic="..., i => ..., 2*i + 1")


def test_shapes_follow_from_the_assignments() -> None:
    interleave = oc.define_operation("interleave", forward=even_and_odd)
    a, b = oc.placeholder("a", output=[3]), oc.placeholder("b", output=[2, 3])
    result = interleave(a, b)
    oc.train.forward(result).resolve()
    assert str(result.shape) == "2,6"
    with pytest.raises(oc.ShapeError) as caught:
        interleave(oc.tensor([1.0, 2.0]), oc.tensor([1.0, 2.0, 3.0]))
    assert "of assignment 2 of interleave" in str(caught.value)


def test_one_assignment_with_a_logic_of_its_own_decides_the_shapes_with_the_others() -> None:
    def forward(v: Any, v1: Any, v2: Any, total_rhs1: Any) -> None:
        total_rhs1[:] = v1 * v1
        v[oc.neutral] += oc.multiply(total_rhs1, v2, logic="i; j => ij")
        v += v2

    outer = oc.define_operation("outer", forward=forward)
    result = outer(oc.tensor([1.0, 2.0, 3.0]), oc.tensor([10.0, 20.0]))
    assert str(result.shape) == "3,2"
    np.testing.assert_array_equal(computed(result), [[20, 40], [50, 100], [100, 200]])


def test_an_assignment_without_a_logic_is_pointwise_and_nests() -> None:
    def forward(v: Any, vs: Any, part_rhs1: Any) -> None:
        part_rhs1[:] = 2 * vs[0] + 1
        v[oc.neutral] += oc.multiply(part_rhs1, vs[1], logic="@")
        v += vs[2] * vs[2] - 1

    mixed = oc.define_operation("mixed", forward=forward, operands=3)
    w = oc.tensor([[1.0, 2.0], [3.0, 4.0]], input_axes=1)
    x, y = oc.tensor([1.0, 1.0]), oc.tensor([3.0, 5.0])
    np.testing.assert_array_equal(computed(mixed(w, x, y)), [3 + 5 + 8, 7 + 9 + 24])


def test_misuse_of_logics_is_explained() -> None:
    def stated(v: Any, v1: Any) -> None:
        v[:] = oc.primitives.identity(v1, logic="i => 2*i")

    def nested(v: Any, v1: Any) -> None:
        v[:] = 2 * oc.primitives.identity(v1, logic="i => 2*i")

    def of_nested(v: Any, v1: Any) -> None:
        v[:] = oc.primitives.identity(2 * v1, logic="i => 2*i")

    def named(v: Any, v1: Any) -> None:
        v[:] = oc.exp(v1, label="e")

    def mapped(v: Any, v1: Any) -> None:
        v[:] = oc.primitives.identity(v1, projections="i => i over i<3")

    def windowed(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral] += oc.multiply(v1, v2, logic="i=+k; k => i")

    def doubled(v: Any, v1: Any) -> None:
        v[oc.neutral] += oc.primitives.identity(v1, logic="i => 2*i")

    def selecting(g: Any, g1: Any, selected: Any) -> None:
        g1 += selected * g

    x = oc.tensor([1.0, 2.0, 3.0])
    for logic in ("i => i", "."):
        with pytest.raises(oc.UsageError, match="or each states its own") as caught:
            computed(oc.define_operation("stated", forward=stated, logic=logic)(x))
        assert "leave logic= out there" in str(caught.value)
    for forward, message in (
        (nested, "assigned as it is"),
        (of_nested, "lines up the axes of slots"),
        (named, "label="),
        (mapped, "projections="),
    ):
        with pytest.raises(oc.UsageError, match=message):
            oc.define_operation("wrong", forward=forward)(x)
    with pytest.raises(oc.UsageError, match="label="):
        computed(oc.define_operation("wrong", forward=named)(x))
    with pytest.raises(oc.UsageError, match="stay inside the axes"):
        computed(oc.define_operation("wrong", forward=windowed)(x, x))
    wrong: Any = 3
    with pytest.raises(oc.UsageError, match="found  logic=3"):
        oc.define_operation("wrong", forward=doubled, logic=wrong)
    given: tuple[dict[str, Any], ...] = (
        {"logic": "i => i"},
        {"padded": True},
        {"values": {"i": 3}},
    )
    for options in given:
        with pytest.raises(oc.UsageError, match="state how axes line up"):
            oc.define_operation("fine", forward=doubled)(x, **options)
    with pytest.raises(oc.UsageError, match="selected"):
        oc.define_operation("wrong", forward=doubled, gradient=selecting)(x)


def documentation(value: object) -> str:
    return inspect.getdoc(value) or ""


def test_help_shows_the_meaning_the_operands_and_the_gradient_of_an_operation() -> None:
    text = pydoc.plain(pydoc.render_doc(oc.exp))
    assert "Return e to the power `a`, cell by cell." in text
    assert "of integers, the default float of the session." in " ".join(text.split())
    assert "        g1 += g * v\n" in text
    assert "    ShapeError: if the operands' shapes do not fit the logic." in text
    assert str(inspect.signature(oc.maximum)).startswith("(a: 'Any', b: 'Any', /, *, logic: ")
    assert documentation(oc.maximum).startswith(
        "Return the greater of `a` and `b`, `a` where they are equal, cell by cell; NaN if either is."
    )
    assert "No gradient flows." in documentation(oc.trunc)
    assert documentation(oc.sigmoid).startswith(
        "Return `where(a < 0.0, exp(-abs(a)), 1.0) / (1.0 + exp(-abs(a)))`, cell by cell."
    )
    assert documentation(oc.matmul).startswith("Return the sums of products over the input axes")
    assert documentation(oc.Operation).startswith("An operation on tensors.")
    assert "name" in inspect.signature(oc.Operation).parameters


def test_help_shows_the_assignments_of_an_operation_of_the_user() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[oc.neutral] += v1 * v2
        v += v2

    def gradient(g: Any, g1: Any, v2: Any) -> None:
        g1 += g * v2

    found = oc.define_operation("mixed", forward=forward, gradient=gradient)
    text = documentation(found)
    assert text.startswith(
        "Return `v` of these assignments, cell by cell.\n\n    v[neutral] += a * b"
    )
    assert "\n    g1 += g * b\n" in text


def test_the_code_of_an_operation_is_as_long_as_its_parts_that_differ() -> None:
    def repeated(v: Any, g: Any = 1.0) -> tuple[Any, Any]:
        for _ in range(24):
            v, g = 0.5 * (v * v) + 0.25, g * v
        return v, g

    def forward(v: Any, v1: Any) -> None:
        v[:] = repeated(v1)[0]

    def rows(v: Any, v1: Any) -> None:
        v.assign(v1, logic="...i => ...i")
        v += repeated(v)[0]

    def gradient(g: Any, g1: Any, v1: Any) -> None:
        g1 += repeated(v1, g)[1]

    def wrong(v: Any, v1: Any) -> None:
        v[repeated(v1)[0]] = v1

    made = oc.define_operation("made", forward=forward, gradient=gradient)
    assert "(...)" in str(made.forward)
    assert len(str(made.forward)) < 10_000
    assert len(pydoc.render_doc(made)) < 100_000
    with pytest.raises(oc.UsageError, match=r"add\(mul\(0.5"):
        oc.define_operation("wrong", forward=wrong)(oc.tensor([1.0])).info  # noqa: B018
    start = np.array([-0.5, 0.25])
    expected, slope = repeated(start, 1.0)
    p = oc.tensor(start, dtype="float64", requires_grad=True)
    np.testing.assert_allclose(computed(made(p)), expected)
    np.testing.assert_allclose(
        computed(oc.define_operation("rows", forward=rows)(p)), start + expected
    )
    (first,) = oc.gradients(oc.einsum("i=>0", made(p)), [p])
    (again,) = oc.gradients(oc.einsum("i=>0", made(p)), [p])
    assert isinstance(first.definition, Applied)
    assert isinstance(again.definition, Applied)
    assert first.definition.operation is again.definition.operation
    np.testing.assert_allclose(computed(first), slope)
    (second,) = oc.gradients(oc.einsum("i=>0", first), [p])
    value, slope, curvature = start, np.ones(2), np.zeros(2)
    for _ in range(24):
        value, slope, curvature = 0.5 * value**2 + 0.25, slope * value, curvature * value + slope**2
    np.testing.assert_allclose(computed(second), curvature)
