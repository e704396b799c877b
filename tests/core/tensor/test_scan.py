"""Loops over time: what a step may do, and the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base.errors import OcannlError, ShapeError, UsageError
from ocannl_core.tensor.graph.structures import aligned, difference, leaves_of, with_leaves

ONES = np.ones(3, np.float32)


def entries(length: int = 4) -> oc.Tensor:
    return oc.placeholder("xs", batch=[length], output=[3])


def scan(step: Callable[[Any, Any], Any], init: Any = 0.0, xs: Any = None) -> Any:
    return oc.scan(step, init, entries() if xs is None else xs)


def stored(c: Any, x: Any) -> Any:
    oc.declare("rows", output=[4])[oc.tensor([0], dtype="int32")] = x
    return c


def assigned(c: Any, x: Any) -> Any:
    oc.declare("state", output=[3])[:] = x
    return c, None


def recorded(c: Any, x: Any) -> Any:
    @oc.cd
    def code() -> None:
        oc.declare("state", output=[3])[:] = x

    code()
    return c, None


WRONG: dict[str, tuple[Callable[[], Any], type[OcannlError], str]] = {
    "a carry of another size": (
        lambda: scan(lambda c, x: (oc.param("w", output=[7]) @ c, None), oc.tensor(ONES)),
        ShapeError,
        "size 3 and size 7",
    ),
    "a carry with one more axis after each step": (
        lambda: scan(lambda c, x: (oc.stack(c, c), None), oc.tensor(ONES)),
        ShapeError,
        "row of carry|scan of",
    ),
    "a carry in another format": (
        lambda: scan(lambda c, x: (oc.cast(c, "float64"), None), oc.tensor(ONES)),
        UsageError,
        r"carry in float32, and .* in float64",
    ),
    "a carry of another structure": (
        lambda: scan(lambda c, x: (c[0], None), (0.0, 1.0)),
        UsageError,
        "it is a tensor instead of a tuple",
    ),
    "a carry with other keys": (
        lambda: scan(lambda c, x: ({"h": c["h"]}, None), {"h": 0.0, "c": 1.0}),
        UsageError,
        "it has h instead of h, c",
    ),
    "a step that returns its carry alone": (
        lambda: scan(lambda c, x: c),
        UsageError,
        "return carry, None without a value",
    ),
    "a step that returns three things": (
        lambda: scan(lambda c, x: (c, x, x)),
        UsageError,
        "a tuple of 3",
    ),
    "a step without a parameter for the entry": (
        lambda: scan(lambda c: (c, None)),  # type: ignore[arg-type, misc]
        UsageError,
        r"a function of 2 arguments as body(.|\n)*body=<lambda>\(c\)",
    ),
    "a layer that returns a pair": (
        lambda: oc.nn.repeat_layers(lambda h: (h, h), oc.tensor(ONES), layers=2),
        UsageError,
        "differs from x: it is a tuple",
    ),
    "a layer that returns no value for its entry": (
        lambda: oc.nn.repeat_layers(lambda h, x: h + x, oc.tensor(ONES), entries(), layers=4),
        UsageError,
        "the input of the next layer, and a value",
    ),
    "no layers": (
        lambda: oc.nn.repeat_layers(lambda h: h, oc.tensor(ONES), layers=0),
        UsageError,
        "layers=0",
    ),
    "a step that returns a text": (lambda: scan(lambda c, x: (c, "x")), UsageError, "'x' in it"),
    "time axes of different lengths": (
        lambda: scan(lambda c, x: (c, x), 0.0, (entries(4), entries(5))),
        ShapeError,
        r"size 4 and size 5(.|\n)*time axis of xs\[1\]",
    ),
    "a length other than that of the time axis": (
        lambda: oc.scan(lambda c, x: (c, x), 0.0, entries(4), length=3),
        ShapeError,
        "size 3 and size 4",
    ),
    "a tensor without a time axis": (
        lambda: scan(lambda c, x: (c, x), 0.0, oc.placeholder("x", output=[3])),
        ShapeError,
        r"time axis of a loop(.|\n)*xs of shape 3(.|\n)*batch_axes=1",
    ),
    "a computed tensor without a time axis": (
        lambda: oc.scan(lambda c, x: (c, x), 0.0, 2.0 * oc.placeholder("x", output=[3])),
        ShapeError,
        "xs of shape 3, without batch axes",
    ),
    "an array": (lambda: scan(lambda c, x: (c, x), 0.0, ONES), UsageError, "ndarray in xs"),
    "neither entries nor a length": (
        lambda: oc.scan(lambda c, x: (c, x), 0.0),
        UsageError,
        "neither xs nor length",
    ),
    "a negative length": (
        lambda: oc.scan(lambda c, x: (c, x), 0.0, length=-1),
        UsageError,
        "length=-1",
    ),
    "no function": (lambda: scan(3), UsageError, "3"),  # type: ignore[arg-type]
    "an unknown choice of what to keep": (
        lambda: oc.scan(lambda c, x: (c, x), 0.0, entries(), keep="some"),
        UsageError,
        "keep='some'",
    ),
    "an assignment in a step": (lambda: scan(assigned), UsageError, "in the body of assigned"),
    "rows assigned in a step": (
        lambda: scan(stored),
        UsageError,
        "rows of .* in the body of stored",
    ),
    "recorded code in a step": (lambda: scan(recorded), UsageError, "in the body of recorded"),
    "an assignment in a step in recorded code": (
        lambda: oc.cd(lambda: scan(assigned) and None)(),
        UsageError,
        "in the body of assigned",
    ),
    "a parameter that starts as an entry": (
        lambda: scan(lambda c, x: (c + oc.param("w", init=x), None)),
        UsageError,
        "an initializer that reads",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_loop_is_refused_and_leaves_no_trace(name: str) -> None:
    program, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        program()
    session = oc.tensor(1.0).session
    assert session.loop is None
    assert session.recorder is None


def test_the_tensors_of_a_step_are_no_part_of_code_outside() -> None:
    made: list[oc.Tensor] = []

    def step(c: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, None]:
        made.append(c * x)
        return made[0], None

    _, last = scan(step, oc.tensor(ONES))
    for use in (lambda: made[0] + 1, lambda: oc.train.forward(made[0])):
        with pytest.raises(UsageError, match="made in the body of step"):
            use()
    oc.train.forward(last + 1)


def test_the_message_about_a_format_names_the_carry_and_the_conversion() -> None:
    with pytest.raises(UsageError) as caught:
        scan(lambda c, x: ({"h": oc.cast(c["h"], "float64")}, None), {"h": oc.tensor(ONES)})
    assert caught.value.fix == snapshot(
        'convert the new value, oc.cast(x, "float32"), or begin with a carry in float64'
    )
    assert caught.value.found.startswith("h in float32")


def test_one_step_is_printed_for_any_number_of_steps() -> None:
    xs = entries(96)
    _, last = oc.scan(lambda c, x: (c * 0.5 + x, None), 0.0, xs)
    ctx = oc.Context("interp")
    ctx[xs] = np.zeros((96, 3), np.float32)
    routine = ctx.compile(oc.train.forward(last))
    assert routine.loop_ir == snapshot("""\
routine forward(carry: float32[3], xs: float32[96, 3]):
    # carry[o] = 0.0
    for o in range(3):
        carry[o] = 0.0
    # repeat t in range(96)
    repeat t in range(96):
        inputs carry, xs
        outputs carry
        complete carry
        # carry[o] = add[o]
        for o in range(3):
            carry[o] = fma(carry[o], 0.5, xs[t, o])\
""")
    lines = routine.assignments.split("\n")
    assert [line for line in lines if "test_scan" not in line] == snapshot(
        [
            "forward:",
            "  xs: float32[96, 3]  # input",
            "  carry: float32[3]  # result",
            "  carry1: float32[3]",
            "  slice: float32[3]",
            "  mul: float32[3]",
            "  add: float32[3]",
            "  carry[o] = 0.0   # over o<3",
            "  repeat t in range(96):",
            "    carry1[i] = carry[i]   # over i<3",
            "    slice[o] = xs[t, o]   # over o<3",
            "    mul[o] = carry1[o] * 0.5   # over o<3",
            "    add[o] = mul[o] + slice[o]   # over o<3",
            "    carry[o] = add[o]   # over o<3",
        ]
    )


def test_a_step_that_returns_no_new_tensor_is_a_loop_too() -> None:
    xs = entries()
    ys, last = oc.scan(lambda c, x: (x, c), oc.tensor(ONES), xs)
    same, first = oc.scan(lambda c, x: (c, 2.0), oc.tensor(ONES), xs)
    ctx = oc.Context("interp")
    ctx[xs] = cells = np.arange(12, dtype=np.float32).reshape(4, 3)
    code = [oc.train.forward(each) for each in (ys, last, same, first)]
    ctx.compile(code[0] + code[1] + code[2] + code[3])()
    assert np.array_equal(ctx[ys], [ONES, *cells[:3]])
    assert np.array_equal(ctx[last], cells[3])
    assert ctx[same].tolist() == [2.0] * 4
    assert np.array_equal(ctx[first], ONES)


STRUCTURES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(STRUCTURES)
def test_a_structure_is_that_of_its_own_leaves(structure: Any) -> None:
    values = [leaf.value for leaf in leaves_of(structure)]
    assert with_leaves(structure, values) == structure
    assert aligned(structure, structure) == values
    assert difference(structure, structure) == ""


@given(STRUCTURES, STRUCTURES)
def test_structures_differ_unless_they_are_equal_but_for_leaves(one: Any, other: Any) -> None:
    zeros = [with_leaves(each, [0] * len(leaves_of(each))) for each in (one, other)]
    assert (difference(one, other) == "") == (zeros[0] == zeros[1])


@pytest.mark.parametrize("length", [None, 4])
def test_the_number_of_steps_is_no_extent_at_run_time(length: int | None) -> None:
    xs = oc.placeholder("xs", batch=[oc.static_extent("n", max=4)], output=[3])

    def compiled() -> None:
        ys, _ = oc.scan(lambda c, x: (c + x, c), 0.0, xs, length=length)
        oc.Context("interp:0").compile(oc.train.forward(ys))

    with pytest.raises(ShapeError, match="n<=4") as caught:
        compiled()
    assert "scan of" in str(caught.value)


def test_a_length_is_no_extent_at_run_time() -> None:
    length: Any = oc.static_extent("n", max=4)
    with pytest.raises(UsageError, match="length of a loop"):
        oc.scan(lambda c, x: (c, c), oc.tensor(ONES), length=length)


def test_gradients_as_expressions_pass_loops_by_that_do_not_depend_on_the_variables() -> None:
    w, xs = oc.param("w", output=[3], init=ONES), entries()
    _, last = oc.scan(lambda c, x: (c + x, None), 0.0, xs)
    (gradient,) = oc.gradients(oc.einsum("...|... => |", last * w), [w])
    ctx = oc.Context("interp:0")
    ctx.init_params(gradient)
    routine = ctx.compile(oc.train.forward(gradient), keep=[gradient])
    ctx[xs] = np.ones((4, 3), np.float32)
    routine()
    assert ctx[gradient].tolist() == [4, 4, 4]


def test_errors_of_a_loop_name_the_function_of_its_step() -> None:
    def advance(carry: oc.Tensor, x: oc.Tensor) -> Any:
        return carry

    with pytest.raises(oc.UsageError) as caught:
        oc.scan(advance, 0.0, oc.tensor([1.0, 2.0], batch_axes=1))
    assert caught.value.where.startswith("scan of advance, at test_scan.py")


def test_the_time_axis_is_the_leftmost_of_the_axes_that_operands_imply() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[5, 2])
        steps = oc.cast(oc.argmax(x, axis=0), "float32")
        product = x * steps  # a use with further axes on the left
        sums, last = oc.scan(lambda h, each: (h + each, h + each), 0.0, steps)
        (oc.train.forward(sums) + oc.train.forward(product)).resolve()
        assert [str(each.shape) for each in (steps, sums, last)] == ["2|", "2|", "()"]


def test_gradients_that_are_refused_leave_no_values_in_the_loop() -> None:
    with oc.Session():
        x, unused = (
            oc.placeholder(n, batch=[3], output=[4], requires_grad=True) for n in ("x", "y")
        )
        w = oc.param("w", output=[4], input=[4])
        sums, _ = oc.scan(lambda h, each: (oc.tanh(w @ h + each),) * 2, 0.0, x)
        with pytest.raises(oc.UsageError):
            oc.gradients(oc.sum(sums), [x, unused])
        (gradient,) = oc.gradients(oc.sum(sums), [x])
        oc.train.forward(gradient).resolve()
        assert str(gradient.shape) == "3|4"
