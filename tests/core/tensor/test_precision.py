"""Number formats: stated, inferred from operands, and inferred from uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.ir.numbers.dtypes import dtype_of, promote


def make(dtype: str | None = None, name: str = "x") -> oc.Tensor:
    return oc.placeholder(name, output=[2], dtype=dtype)


@pytest.mark.parametrize(
    "left", ["float64", "float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"]
)
@pytest.mark.parametrize("right", ["bfloat16", "float16", "int64", "uint8"])
def test_a_result_has_the_promotion_of_stated_formats(left: str, right: str) -> None:
    a, b = make(left), make(right)
    assert (a + b).dtype is promote(a.dtype, b.dtype)
    assert (b * a).dtype is promote(a.dtype, b.dtype)


def test_the_order_of_promotion() -> None:
    order = "float64 float32 bfloat16 float16 float8_e5m2 float8_e4m3fn uint64 int64 uint32 int32 uint16 uint8"
    names = order.split()
    for high, low in pairwise(names):
        assert (make(low) + make(high)).dtype.name == high


def test_functions_with_float_results_leave_integers() -> None:
    assert oc.exp(make("int32")).dtype is oc.float32
    assert oc.relu(make("int32")).dtype is oc.int32
    with oc.Session(dtype="bfloat16"):
        assert oc.sqrt(make("uint8")).dtype is oc.bfloat16


def test_the_condition_of_where_does_not_affect_the_format() -> None:
    condition, branch = make("float64"), make("float16")
    assert oc.where(condition, branch, 0.0).dtype is oc.float16
    undecided = make()
    assert oc.where(undecided, branch, make("bfloat16")).dtype is oc.bfloat16
    assert undecided.dtype is oc.float32


def test_an_operation_can_state_the_format_of_its_result() -> None:
    a, w = make("bfloat16"), make()
    assert oc.multiply(a, a, dtype="float32").dtype is oc.float32
    assert oc.matmul(oc.param("w"), a, dtype=oc.float64).dtype is oc.float64
    assert oc.cast(w, "bfloat16").dtype is oc.bfloat16
    assert w.dtype is oc.float32  # an operation's stated format is not that of its operands


@pytest.mark.parametrize(
    "apply",
    [
        lambda a, **to: oc.einsum("...|i => 0", a, **to),
        lambda a, **to: oc.einsum("i; i => 0", a, a, **to),
        lambda a, **to: oc.einsum("i; i; i => 0", a, a, a, **to),
        lambda a, **to: oc.einmax("i => 0", a, **to),
        lambda a, **to: oc.primitives.outer_sum("i; j => ij", a, a, **to),
        lambda a, **to: oc.primitives.tropical("i; i => 0", a, a, **to),
        lambda a, **to: oc.concat("i; j => i^j", a, a, **to),
        lambda a, **to: oc.stack(a, **to),
        lambda a, **to: oc.stack(a, a, **to),
        lambda a, **to: oc.primitives.interleave(a, a, **to),
        lambda a, **to: oc.where(a, a, a, **to),
        lambda a, **to: oc.where(a, a, a, logic="i; i; i => 0", **to),
        lambda a, **to: oc.fma(oc.param("w"), a, a, **to),
        lambda a, **to: oc.fma(a, a, a, logic=".", **to),
        lambda a, **to: oc.pow(a, 2.0, **to),
        lambda a, **to: oc.pow(a, a, **to),
    ],
)
def test_operations_over_axes_can_state_label_and_format(apply: Callable[..., oc.Tensor]) -> None:
    result = apply(make("bfloat16"), label="named", dtype="float32")
    assert (result.label[0], result.dtype) == ("named", oc.float32)


def test_a_long_sum_in_a_wider_format_loses_nothing() -> None:
    ones = oc.placeholder("ones", output=[1000], dtype="bfloat16")
    short, long = oc.einsum("i => 0", ones), oc.einsum("i => 0", ones, dtype="float32")
    ctx = oc.Context("interp")
    run = ctx.compile(oc.train.forward(short) + oc.train.forward(long))
    ctx[ones] = np.ones(1000)
    run()
    assert (ctx.item(short), ctx.item(long)) == (256.0, 1000.0)  # in bfloat16, 256 + 1 is 256


def test_gradients_flow_through_casts_to_floats_alone() -> None:
    w = oc.param("w", output=[2])
    narrow = oc.cast(w, "bfloat16")
    assert narrow.grad is not None
    assert narrow.grad.dtype is oc.bfloat16
    assert oc.cast(w, "int32").grad is None


TERMINALS: dict[str, Callable[[], oc.Tensor]] = {
    "parameter": lambda: oc.param("w", output=[2]),
    "placeholder": lambda: make(),
    "literal": lambda: oc.tensor([1.0, 2.0]),
    "array of doubles": lambda: oc.tensor(np.ones(2)),
    "number": lambda: oc.number(0.5),
    "range": lambda: oc.arange(2),
    "random numbers": lambda: oc.uniform(),
}


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_terminals_without_a_format_take_that_of_their_use(terminal: str, dtype: str) -> None:
    t = TERMINALS[terminal]()
    assert t.dtype is oc.float32
    result = make(dtype) * t
    assert result.dtype.name == t.dtype.name == dtype
    if t.grad is not None:
        assert t.grad.dtype.name == dtype


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("stated", ["float64", "float32", "bfloat16", "int32"])
@pytest.mark.parametrize("beside", ["float64", "bfloat16"])
def test_terminals_follow_their_use_and_not_the_format_of_the_result(
    terminal: str, stated: str, beside: str
) -> None:
    t = TERMINALS[terminal]()
    result = oc.multiply(make(beside), t, dtype=stated)
    assert (result.dtype.name, t.dtype.name) == (stated, beside)


@pytest.mark.parametrize("stated", ["float64", "bfloat16"])
@pytest.mark.parametrize("order", [1, -1])
def test_weights_of_products_with_a_stated_format_follow_the_data(stated: str, order: int) -> None:
    x = oc.placeholder("x", output=[3], dtype="float64")
    w = oc.param("w", output=[3], input=[3])
    products = {
        "composed": lambda: oc.matmul(w, x, dtype=stated),
        "specified": lambda: oc.einsum("i->o; i => o", w, x, dtype=stated),
        "chosen": lambda: oc.where(x, w, x, logic="i; i->o; i => o", dtype=stated),
        "fused": lambda: oc.fma(w, x, oc.param("b"), dtype=stated),
    }
    for make_product in list(products.values())[::order]:
        assert make_product().dtype.name == stated
        assert w.dtype is oc.float64


def test_operands_of_a_result_with_a_stated_format_follow_later_uses() -> None:
    w, b = make(name="w"), make(name="b")
    fixed = oc.add(w, b, dtype="bfloat16")
    _ = w * make("float64")
    assert (fixed.dtype, w.dtype, b.dtype) == (oc.bfloat16, oc.float64, oc.float64)


@pytest.mark.parametrize("terminal", TERMINALS)
def test_a_second_use_widens(terminal: str) -> None:
    t = TERMINALS[terminal]()
    first = make("float16") * t
    second = make("bfloat16") * t
    third = make("float16") * t
    assert (first.dtype, second.dtype, third.dtype) == (oc.float16, oc.bfloat16, oc.float16)
    assert t.dtype is oc.bfloat16


def test_a_format_inferred_from_a_use_propagates() -> None:
    w, v = make(name="w"), make(name="v")
    _ = w * make("bfloat16")
    assert (w + v).dtype is oc.bfloat16
    assert v.dtype is oc.bfloat16


def test_a_default_format_does_not_narrow_a_format_inferred_from_a_use() -> None:
    w, v = make(name="w"), make(name="v")
    _ = w * make("float64")
    assert (2.0 * v + w).dtype is oc.float64
    assert (2.0 * make() - make("bfloat16")).dtype is oc.float32


def test_results_with_the_default_format_follow_later_uses() -> None:
    w, b = make(name="w"), make(name="b")
    first = w + b
    second = oc.relu(first) * 2.0
    fixed = oc.add(w, b, dtype="float32")
    _ = w * make("float64")
    assert [t.dtype for t in (w, first, second, fixed)] == [oc.float64] * 3 + [oc.float32]
    assert b.dtype is oc.float64  # as if it had been known at first


def test_compiled_code_keeps_its_formats() -> None:
    x = make()
    compiled = x * 2.0
    oc.train.forward(compiled).resolve()
    later = x * make("float64")
    assert (x.dtype, compiled.dtype, later.dtype) == (oc.float32, oc.float32, oc.float64)


def test_the_state_of_an_optimizer_has_the_format_of_its_parameter() -> None:
    w = oc.param("w", output=[2], dtype="float64")
    update = oc.train.sgd_update(
        oc.einsum("i => 0", w * w), learning_rate=0.1, momentum=0.9, nesterov=True
    )
    formats = {row.dtype for row in oc.precision_report(update).rows}
    assert formats == {oc.float64}


def test_without_any_stated_format_the_session_decides() -> None:
    with oc.Session(dtype="bfloat16"):
        w, x = oc.param("w", output=[3]), make()
        y = oc.relu(w @ x + 1.0)
        assert {t.dtype for t in (w, x, y)} == {oc.bfloat16}
    with settings.overrides(default_dtype="float64"), oc.Session():
        assert make().dtype is oc.float64


def test_stated_formats_are_final() -> None:
    w = oc.param("w", output=[2], dtype="float32")
    ints = oc.tensor(np.array([1, 2]))
    singles = oc.tensor(np.ones(2, np.float32))
    _ = w * make("float64"), ints * make("float64"), singles * make("bfloat16")
    assert (w.dtype, ints.dtype, singles.dtype) == (oc.float32, oc.int64, oc.float32)


def test_floats_do_not_become_integers() -> None:
    x, counts = make(), oc.tensor(np.array([1, 2]))
    assert (x * counts).dtype is oc.float32
    assert x.dtype is oc.float32
    assert (counts * 2).dtype is oc.int64
    assert (counts * 2.5).dtype is oc.float32
    assert (counts + oc.number(2.5)).dtype is oc.float32


NUMBERS: dict[str, Callable[[float], oc.Tensor | float]] = {
    "of Python": lambda value: value,
    "number tensor": lambda value: oc.number(value),
    "number tensor with a basis": lambda value: oc.number(value, basis="rgb"),
}
BESIDE: dict[str, Callable[[oc.Tensor, oc.Tensor | float], oc.Tensor]] = {
    "sum": lambda i, n: oc.add(i, n),
    "product from the left": lambda i, n: oc.multiply(n, i),
    "first branch": lambda i, n: oc.where(make("float32", "h"), n, i),
    "second branch": lambda i, n: oc.where(make("float64", "h"), i, n),
    "summed choice": lambda i, n: oc.where(make("float32", "h"), i, n, logic="i; i; ... => 0"),
    "fused": lambda i, n: oc.fma(i, i, n, logic="."),
    "extreme": lambda i, n: oc.maximum(i, n),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("use", BESIDE)
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float16", "float64"])
def test_numbers_take_the_format_of_the_cells_that_they_meet(
    use: str, kind: str, dtype: str
) -> None:
    cells = make(dtype)
    found = BESIDE[use](cells, NUMBERS[kind](7)).dtype.name
    assert found == ("uint32" if (use, dtype) == ("summed choice", "uint8") else dtype)
    with_fraction = BESIDE[use](make(dtype, "y"), NUMBERS[kind](0.5)).dtype
    assert with_fraction is (cells.dtype if cells.dtype.is_float else oc.float32)


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_beyond_the_integers_beside_it_is_refused_but_in_comparisons(kind: str) -> None:
    bytes_, number = make("uint8"), NUMBERS[kind](300)
    with pytest.raises(oc.TransferError, match="uint8 holds 0 to 255"):
        oc.add(bytes_, number)
    assert oc.less(bytes_, number).dtype is oc.uint8


def test_a_number_used_beside_floats_is_an_integer_beside_integers_all_the_same() -> None:
    two = oc.number(2)
    assert (make("float32") * two).dtype is oc.float32
    assert (make("int64") * two).dtype is oc.int64
    assert (make("float64") * two).dtype is oc.float64
    assert oc.add(make("int64"), oc.number(2, dtype="float32")).dtype is oc.float32


def test_choices_among_large_integers_keep_their_digits() -> None:
    condition, cells = make("float32", "h"), make("int64")
    chosen = oc.where(condition, cells, -1)
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(chosen))
    ctx[condition], ctx[cells] = [1, 0], np.array([2**60 + 1] * 2)
    step()
    assert ctx[chosen].tolist() == [2**60 + 1, -1]


def test_numbers_in_the_code_of_an_operation_take_the_format_of_the_branches() -> None:
    def forward(v: Any, v1: Any, v2: Any) -> None:
        v[:] = oc.where(v1, v2, -1) + 0

    choose = oc.define_operation("choose", forward=forward)
    condition, cells = make("float32", "h"), make("int64")
    chosen = choose(condition, cells)
    assert (
        chosen.dtype is oc.float32
    )  # the operation is no primitive: both operands determine the format
    chosen = choose(condition, cells, dtype="int64")
    ctx = oc.Context("interp")
    step = ctx.compile(oc.train.forward(chosen))
    ctx[condition], ctx[cells] = [1, 0], np.array([2**60 + 1] * 2)
    step()
    assert ctx[chosen].tolist() == [2**60 + 1, -1]


def test_declared_tensors_take_the_format_of_the_assigned_value() -> None:
    found: list[oc.Tensor] = []

    @oc.cd
    def code(p: oc.Tensor) -> None:
        step, stated = oc.declare("step"), oc.declare("stated", dtype="float32")
        step[:] = p * 2.0
        stated[:] = p
        found.extend((step, stated))

    code(make("float64"))
    assert [each.dtype for each in found] == [oc.float64, oc.float32]


def test_a_literal_keeps_the_precision_of_its_use() -> None:
    x = oc.tensor([0.1, 0.2])
    _ = x * make("float64")
    assert x.literal is not None
    assert x.literal.tolist() == [0.1, 0.2]
    y = oc.tensor(np.array([1 / 3]))
    assert y.literal is not None
    assert y.literal.dtype == np.float32


def test_a_session_can_store_parameters_in_a_format_of_their_own() -> None:
    with oc.Session(dtype="bfloat16", param_dtype="float32"):
        x = make()
        w = oc.param("w", output=[3])
        b = oc.param("b", dtype="float16")
        y = w @ x
        z = oc.exp(w)
        assert (w.dtype, b.dtype, y.dtype, z.dtype) == (
            oc.float32,
            oc.float16,
            oc.bfloat16,
            oc.bfloat16,
        )
        assert w.grad is not None
        assert w.grad.dtype is oc.float32
    with settings.overrides(param_dtype="float64"), oc.Session():
        assert oc.param("w").dtype is oc.float64
        assert make().dtype is oc.float32


IDS = np.array([0, 2], np.int32)
VIEWS: dict[str, Callable[[oc.Tensor, oc.Tensor], Any]] = {
    "slice": lambda w, v: w[0:2],
    "entry": lambda w, v: w[1],
    "reversed": lambda w, v: w[::-1],
    "slice of a slice": lambda w, v: w[0:2][0:1],
    "transpose": lambda w, v: w.T,
    "swapaxes": lambda w, v: w.swapaxes(0, 1),
    "permute": lambda w, v: w.permute(1, 0),
    "moveaxis": lambda w, v: oc.moveaxis(w, 0, 1),
    "einsum": lambda w, v: oc.einsum("ij => ji", w),
    "reshape": lambda w, v: w.reshape(2, 6),
    "flatten": lambda w, v: w.flatten(),
    "expand_dims": lambda w, v: w.expand_dims(0),
    "squeeze": lambda w, v: w[:1].squeeze(0),
    "broadcast_to": lambda w, v: oc.broadcast_to(w, (5, 4, 3)),
    "repeat": lambda w, v: w.repeat(2, 0),
    "tile": lambda w, v: w.tile((2, 1)),
    "roll": lambda w, v: w.roll(1, 0),
    "flip": lambda w, v: w.flip(0),
    "split": lambda w, v: w.split(2, 0)[0],
    "diagonal": lambda w, v: w.diagonal(),
    "pad": lambda w, v: oc.pad(w, ((1, 1), (0, 0))),
    "tril": lambda w, v: w.tril(),
    "concat": lambda w, v: oc.concat([w, v], axis=0),
    "concat with a literal": lambda w, v: oc.concat([w, oc.tensor([[0.5] * 3])], axis=0),
    "stack": lambda w, v: oc.stack(w, v),
    "interleave": lambda w, v: oc.primitives.interleave(w, v),
    "put": lambda w, v: oc.put(w, oc.tensor(IDS), v[0:2], axis=0),
    "take": lambda w, v: oc.take(w, oc.tensor(IDS)),
    "take_along": lambda w, v: oc.take_along(w, oc.tensor(IDS[None, :1].repeat(3, 1)), axis=0),
    "where": lambda w, v: oc.where(w < v, w, v),
    "identity": lambda w, v: oc.primitives.identity(w),
    "stop_gradient": lambda w, v: oc.stop_gradient(w),
}
"""Operations that move cells of parameters."""


@pytest.mark.parametrize("name", VIEWS)
def test_cells_of_parameters_that_are_moved_keep_their_format(name: str) -> None:
    with oc.Session(dtype="bfloat16", param_dtype="float32"):
        w, v = (oc.param(each, output=[4, 3], input=[]) for each in "wv")
        view = VIEWS[name](w, v)
        assert view.dtype is oc.float32
        assert view.grad is None or view.grad.dtype is oc.float32
        # it decides no other format
        assert (view * view).dtype is oc.bfloat16
        assert (view * oc.exp(w[0, 0])).dtype is oc.bfloat16


def test_entries_of_parameters_in_a_loop_keep_their_format() -> None:
    with oc.Session(dtype="bfloat16", param_dtype="float32"):
        w = oc.param("w", output=[4, 3], input=[])
        seen: list[oc.Tensor] = []

        def step(carry: oc.Tensor, entry: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            seen.append(entry)
            return carry + entry, carry

        oc.scan(step, oc.tensor([0.0] * 3), oc.einsum("->t, i => t|->i", w))
        assert seen[0].dtype is oc.float32


def test_a_format_can_be_stated_until_something_uses_the_tensor() -> None:
    w = oc.param("w", output=[2])
    w.dtype = "float64"  # type: ignore[assignment]
    assert w.grad is not None
    assert (w.dtype, w.grad.dtype) == (oc.float64, oc.float64)
    y = w * make("float16")
    assert y.dtype is oc.float64
    w.dtype = oc.float64  # the same again
    with pytest.raises(oc.UsageError) as error:
        w.dtype = oc.bfloat16
    assert error.value.rule == snapshot(
        "The number format of a tensor is stated before its first use; the format of a result, by dtype= where it is made."
    )
    assert error.value.found == snapshot(
        "bfloat16 for <parameter w: ..w.input..->2>, which is float64"
    )
    assert error.value.where.startswith("mul, at test_precision.py")
    assert error.value.fix == snapshot('convert it: oc.cast(x, "bfloat16")')


def test_results_and_gradients_do_not_change_their_format() -> None:
    w = oc.param("w", output=[2])
    assert w.grad is not None
    for tensor in (w * 2.0, w.grad):
        with pytest.raises(oc.UsageError, match="float64 for"):
            tensor.dtype = oc.float64


def test_code_settles_formats() -> None:
    x = make()
    oc.train.forward(x * 1.0).resolve()
    y = x * make("float64")
    assert (x.dtype, y.dtype) == (oc.float32, oc.float64)
    with pytest.raises(oc.UsageError, match="float64 for"):
        x.dtype = oc.float64


@pytest.mark.parametrize(
    ("dtype", "below"), [("float16", 16000.0), ("float8_e5m2", 16000.0), ("float8_e4m3fn", 440.0)]
)
def test_literals_of_great_numbers_have_at_least_float32(dtype: str, below: float) -> None:
    great, small = oc.tensor([20000.0, 1.0]), oc.tensor([below, 1.0])
    assert (great * make(dtype)).dtype.name == dtype
    _ = small * make(dtype)
    assert great.dtype is oc.float32
    assert small.dtype.name == dtype
    with oc.Session(dtype=dtype):
        assert oc.tensor([20000.0]).dtype is oc.float32
    stated = oc.tensor([dtype_of(dtype).greatest], dtype=dtype)
    assert stated.dtype.name == dtype


def refusal(code: oc.Tensor) -> oc.LoweringError:
    from ocannl_core.passes.lower import lower

    with pytest.raises(oc.LoweringError) as error:
        lower(oc.train.forward(code).resolve())
    return error.value


def test_great_constants_are_refused_in_formats_of_a_narrow_range() -> None:
    error = refusal(make("float16") * 20000.0)
    assert error.rule == snapshot(
        "A constant in float16 is less than 16384 in magnitude, far from the end of the format's range."
    )
    assert error.found == snapshot("20000")
    assert error.fix == snapshot(
        'compute with it in a wider format: dtype="bfloat16" or dtype="float32", where the tensor beside it is made; or raise the setting half_constant_cutoff'
    )
    assert refusal(make("float8_e5m2") + -1e9).found == "-1e+09"
    for value in (448.0, -float("inf")):
        error = refusal(make("float8_e4m3fn") + value)
        assert error.rule.startswith("A constant in float8_e4m3fn is less than 448 in magnitude")
        assert "half_constant_cutoff" not in error.fix
    assert refusal(oc.number(30000.0, dtype="float16")).found == "30000"


def test_the_cutoff_of_constants_is_a_setting_and_infinities_pass() -> None:
    from ocannl_core.passes.lower import lower

    x = make("float16")
    lower(oc.train.forward(oc.maximum(x, float("-inf")) * 16000.0).resolve())
    with settings.overrides(half_constant_cutoff=60000):
        lower(oc.train.forward(x * 20000.0).resolve())
    with settings.overrides(half_constant_cutoff=100):
        refusal(x * 200.0)
    lower(oc.train.forward(make("bfloat16") * 1e30).resolve())


def test_the_report_names_the_source_of_each_format() -> None:
    with oc.Session(dtype="bfloat16", param_dtype="float32"):
        x = oc.placeholder("x", batch=[4], output=[3], dtype="float16")
        h = oc.relu(oc.param("w", output=[5]) @ x + oc.param("b", dtype="bfloat16"))
        loss = oc.einsum("...|... => 0", h * oc.tensor([0.5]) + oc.arange(5))
        report = oc.precision_report(loss)
        assert re.sub(r"py:\d+", "py:LINE", str(report)).splitlines() == snapshot(
            [
                "x        float16   stated, test_precision.py:LINE",
                "w        float32   the session's param_dtype",
                "matmul   float16   from x",
                "b        bfloat16  stated, test_precision.py:LINE",
                "add      bfloat16  from matmul, b",
                "relu     bfloat16  from add",
                "literal  bfloat16  from its use in mul, test_precision.py:LINE",
                "mul      bfloat16  from relu",
                "arange   bfloat16  from its use in add, test_precision.py:LINE",
                "add      bfloat16  from mul",
                "einsum   bfloat16  from add",
            ]
        )
        computation = oc.precision_report(oc.train.grad_update(loss))
        assert computation == report
        step = oc.precision_report(oc.train.sgd_update(loss, learning_rate=0.1))
    assert {row.name: row.dtype for row in step.rows}["w"] is oc.float32


def test_a_report_decides_nothing() -> None:
    x = make()
    oc.precision_report(x * 2.0)
    assert str(oc.precision_report(make(name="empty"))) == "empty  float32  default"
    _ = x * make("float64")
    assert x.dtype is oc.float64


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_a_float_makes_floats_of_integers(dtype: str) -> None:
    whole = oc.tensor([1, 0], dtype=dtype)
    for number in (2.0, 0.5):
        results = (
            *(whole - number, number - whole, whole * number, whole**number, number**whole),
            *(oc.pow(whole, number), oc.maximum(whole, number), whole * oc.number(number)),
            *(oc.where(whole > 0, whole, number), whole // number, whole % number),
        )
        assert {each.dtype for each in results} == {oc.float32}
    assert (oc.tensor([1], dtype="int32") ** 2).dtype is oc.int32
    assert oc.less(oc.tensor([1], dtype="int64"), 1.0).dtype is oc.int64


@pytest.mark.parametrize("compare", [oc.less, oc.less_equal, oc.greater, oc.greater_equal])
def test_comparisons_take_a_format(compare: Any) -> None:
    assert compare(oc.tensor([1.0]), 0.5, dtype="bool").dtype is oc.bool


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_operations_that_choose_cells_keep_integers(dtype: str) -> None:
    x = oc.tensor([[1, 0], [3, 2]], dtype=dtype)
    results = [oc.tril(x), oc.triu(x), oc.relu(x), oc.relu6(x), oc.roll(x, 1, 0), oc.flip(x)]
    results += [oc.pad(x, 1), oc.clip(x, 0, 2), oc.sort(x), oc.where(x > 1, x, 0)]
    assert {each.dtype.name for each in results} == {dtype}
    assert np.nansum(x).dtype is (oc.uint32 if dtype == "uint8" else oc.int64)


def test_code_with_floats_makes_floats_of_integers() -> None:
    def half(v: Any, v1: Any) -> None:
        v[:] = 0.5 * v1

    def chosen(v: Any, v1: Any) -> None:
        v[:] = oc.where(v1 > 0.5, v1, 2 * v1)

    def twice(v: Any, v1: Any) -> None:
        v[:] = v1 + 2.0 * v1

    whole = oc.tensor([4, 9], dtype="int32")
    assert oc.define_operation("twice", forward=twice)(whole).dtype is oc.float32
    assert (whole**2).dtype is oc.int32
    assert (whole**2.0).dtype is oc.float32
    assert oc.define_operation("half", forward=half)(whole).dtype is oc.float32
    assert oc.define_operation("chosen", forward=chosen)(whole).dtype is oc.int32
    assert oc.pad(whole, 1, value=0.5).dtype is oc.int32
    with oc.Session(dtype="float64"):
        assert oc.sigmoid(oc.tensor([4, 9], dtype="int32")).dtype is oc.float64
    beside = oc.tensor(np.zeros(2, np.float16))
    assert oc.logaddexp(oc.tensor([4, 9], dtype="uint32"), beside).dtype is oc.float16


def test_a_precision_report_of_other_objects_is_refused() -> None:
    with pytest.raises(oc.UsageError, match="Tensors and computations have number formats"):
        oc.precision_report(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("keyword", ["dtype", "param_dtype"])
@pytest.mark.parametrize("dtype", ["int32", "uint4x32"])
def test_a_session_has_a_default_format_for_floats(keyword: str, dtype: str) -> None:
    with pytest.raises(oc.UsageError, match=f"{keyword}='{dtype}'"):
        oc.Session(**{keyword: dtype})  # type: ignore[arg-type]
