"""Shapes that compiling would decide are known where operations ask for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.shape.language.shape_terms import rows_in_buffer_order
from ocannl_core.tensor.operations.literals import offsets

Make = Callable[[oc.Tensor], Any]


def positions(x: oc.Tensor) -> Any:
    """Return positions along the last axis, computed from cells."""
    return oc.argmax(x, axis=-1, keepdims=True)


def steps(x: oc.Tensor, count: int, body: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Return the last carry of a loop with the tensor as its first carry and as each entry."""
    return oc.scan(body, x, oc.stack([x] * count, axis="batch"))[1]


RANKED: dict[str, Make] = {
    "mean": lambda x: x.mean(axis=-1),
    "mean_kept": lambda x: x.mean(axis=0, keepdims=True),
    "put_along": lambda x: oc.put_along(x, positions(x), 2.0),
    "put_along_cells": lambda x: oc.put_along(x, positions(x), x[..., :1] * 2.0),
    "interleave": lambda x: oc.primitives.interleave(x, x + 1.0),
    "stack": lambda x: oc.stack(x, x * 2.0),
    "stack_axis": lambda x: oc.stack(x, x * 2.0, axis=1),
    "concat": lambda x: oc.concat([x, x], axis=-1),
    "one_step": lambda x: steps(x, 1, lambda c, e: (c + e, c)),
    "steps": lambda x: steps(x, 3, lambda c, e: (c * oc.reshape(e, *e.shape), e)),
    "reshaped_step": lambda x: steps(x, 1, lambda c, e: (c + e, oc.reshape(c, -1))),
    "flatten": lambda x: oc.flatten(x),
    "pad": lambda x: oc.pad(x, 1),
    "softmax": lambda x: oc.softmax(x, axis=-1),
    "bias": lambda x: x + oc.param("b", output=[...], input=[]),
    "scale": lambda x: x * oc.param("s", init=1.0),
    "temperature": lambda x: x / oc.param("t", output=[], init=2.0),
    "dense": lambda x: x + oc.nn.dense()(x),
    "layer_norm": lambda x: oc.nn.layer_norm()(x),
    "batch_norm": lambda x: oc.nn.batch_norm()(x),
    "masked": lambda x: oc.where(x > 0.0, x, -1.0),
    "dropout": lambda x: oc.nn.dropout(x, rate=0.5),
    "categorical": lambda x: oc.cast(oc.categorical(x), "float32"),
    "one_hot": lambda x: oc.one_hot(oc.argmax(x, axis=-1), 4),
    "sort": lambda x: oc.sort(x),
    "topk": lambda x: oc.topk(x, 1)[0],
    "cumsum": lambda x: oc.cumsum(x, axis=-1),
    "flip": lambda x: oc.flip(x, axis=-1),
    "roll": lambda x: oc.roll(x, 1, axis=-1),
    "repeat": lambda x: oc.repeat(x, 2, axis=-1),
    "tile": lambda x: oc.tile(x, [2]),
    "norm": lambda x: oc.norm(x, axis=-1, keepdims=True),
    "std": lambda x: oc.std(x, axis=-1),
    "rms_norm": lambda x: oc.nn.rms_norm()(x),
    "new_axis": lambda x: x[..., None],
    "slice": lambda x: x[..., :1],
    "column": lambda x: x + oc.tensor([[1.0], [2.0]]),
}
"""Operations on a tensor of a batch axis at most and of output axes."""


def built(batch: list[int], output: list[int], names: list[str]) -> tuple[oc.Tensor, list[str]]:
    """Return the result of a chain of operations on data, up to the first that is refused, and its
    shape after each operation.
    """
    found: oc.Tensor = oc.placeholder("x", batch=batch, output=output)
    shapes = [str(found.shape)]
    for name in names:
        try:
            found = RANKED[name](found)
        except oc.OcannlError:
            break
        shapes.append(str(found.shape))
    return found, shapes


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([1, 2]), max_size=1),
    st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2),
    st.lists(st.sampled_from(sorted(RANKED)), min_size=1, max_size=3),
)
def test_the_shape_that_compiling_decides_is_known_before(
    batch: list[int], output: list[int], names: list[str]
) -> None:
    with oc.Session(), oc.settings.overrides(missing_axes="allow"):
        found, shapes = built(batch, output, names)
        try:
            oc.train.forward(found).resolve()
        except oc.ShapeError as error:  # as for parameters that no use determines
            reason = str(error)
        else:
            reason = ""
        if reason:
            assert not found.shape.is_closed or "variance of a batch" in reason
            return
        if not any(str(each.shape) == "()" for each in found.params):  # its axes are a default
            assert shapes[-1] == str(found.shape)


SPECS = [
    "...|..v.. => |0",
    "...|a, ..v.. => ...|..v..",
    "...|..v.., a => ...|a, ..v..",
    "..b..|..v.. => ..v..|..b..",
    "...|..v..; ...|..v.. => ...|..v..",
    "...|a, ..v..; ..v.. => ...|a, ..v..",
    "..b..|..v..; ..v.. => ..b..|..v..",
]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [("...|..v.., a => ...|a, ..v..", "2|1"), ("...|a, ..v.. => ...|..v..", "2|")],
)
def test_operands_imply_axes_that_a_spec_names(spec: str, shape: str) -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[1])
        assert str(oc.einsum(spec, x).shape) == shape
        assert str(oc.einsum(spec, oc.maximum(oc.param("w", output=[1]), x)).shape) == shape


@settings(max_examples=100)
@given(st.data())
def test_the_shape_that_operands_imply_is_the_one_that_closing_decides(data: st.DataObject) -> None:
    sizes = st.lists(st.sampled_from([1, 2, 2]), max_size=2)
    tensors: list[oc.Tensor] = []
    with oc.Session(), oc.settings.overrides(missing_axes="allow"):
        for kind in data.draw(st.lists(st.sampled_from("xxbwdn"), min_size=2, max_size=3)):
            name, axes = f"{kind}{len(tensors)}", data.draw(sizes)
            match kind:
                case "x":
                    tensors.append(oc.placeholder(name, batch=axes[:1], output=axes[1:]))
                case "b":
                    tensors.append(oc.param(name, output=[...], input=[]))
                case "w":
                    tensors.append(oc.param(name, output=axes))
                case "d":
                    tensors.append(oc.declare(name, batch=axes[:1], output=axes[1:]))
                case _:
                    tensors.append(oc.uniform())
        makes = [
            *SPECS,
            "+",
            "@",
            "mean",
            "new_axis",
            "dense",
            "layer_norm",
            "batch_norm",
            "concat",
        ]
        for make in data.draw(st.lists(st.sampled_from(makes), max_size=6)):
            operands = [data.draw(st.sampled_from(tensors)) for _ in range(1 + make.count(";"))]
            try:
                if make in RANKED:
                    tensors.append(RANKED[make](*operands))
                elif make in SPECS:
                    tensors.append(oc.einsum(make, *operands))
                else:
                    other = data.draw(st.sampled_from(tensors))
                    tensors.append(operands[0] + other if make == "+" else operands[0] @ other)
            except oc.OcannlError:
                continue
        for each in tensors:
            environment = each.session.environment
            ranks, shape = (
                environment.implied_ranks(each.terms),
                environment.implied_shape(each.terms),
            )
            try:
                (closed,) = environment.preview([each.terms])
            except oc.ShapeError:
                continue
            if each.operands and ranks is not None:
                assert ranks == tuple(len(row.trailing) for row in rows_in_buffer_order(closed))
            if each.operands and shape is not None:
                assert str(shape) == str(closed)


CASES = [
    (name, batch, output) for name in RANKED for batch in ([], [1]) for output in ([3], [1, 2])
]


@pytest.mark.parametrize(("name", "batch", "output"), CASES)
def test_sizes_are_known_to_the_operation_that_follows(
    name: str, batch: list[int], output: list[int]
) -> None:
    with oc.Session(), oc.settings.overrides(missing_axes="allow"):
        x = oc.placeholder("x", batch=batch, output=output)
        found = RANKED[name](x)
        flat = oc.reshape(found, output=[-1])
        assert flat.size == found.info.size
        assert len(oc.stack(found, found, axis=0)) == 2


@pytest.mark.parametrize("name", ["concat", "resize", "mean"])
def test_a_batch_normalization_of_channels_keeps_the_axes_of_images(name: str) -> None:
    following: dict[str, Make] = {
        "concat": lambda y: oc.concat([y, y], axis=-1),
        "resize": lambda y: oc.nn.resize(y, (16, 16)),
        "mean": lambda y: oc.mean(y, axis=(1, 2)),
    }
    shapes = {"concat": "2|8,8,10", "resize": "2|16,16,5", "mean": "2|5"}
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[8, 8, 3])
        norm = oc.nn.batch_norm(shape="...|h, w, ..c..", features="..c..")
        assert str(following[name](norm(oc.nn.conv2d(channels=[5])(x))).shape) == shapes[name]


def test_a_shape_that_would_be_a_default_stays_open() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[4])
        assert not (oc.param("b", output=[...]) * 2.0).shape.is_closed
        hidden = oc.nn.dense()(x)
        with pytest.raises(oc.ShapeError, match="axes are to be inferred"):
            oc.mean(hidden, axis=-1)
        stated = oc.require_shape(oc.nn.dense()(x), "2|5")
        assert str(oc.mean(stated, axis=-1).shape) == "2|"
        assert not hidden.shape.is_closed
        assert str((oc.param("w", output=[8]) @ hidden).shape) == "2|8"


def test_a_parameter_that_is_stated_as_one_number_leaves_axes_countable() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[4])
        scaled = x / oc.exp(oc.param("t", output=[], init=0.5))
        assert str(oc.sum(scaled, axis=-1).shape) == "2|"
        oc.train.forward(scaled).resolve()
        assert str(scaled.shape) == "2|4"


def test_shapes_that_operands_imply_are_known_without_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ocannl_core.shape.environment.close", None)
    with oc.Session():
        x = oc.placeholder("x", batch=[2], output=[4])
        for size in (5, 3, 8):
            x = oc.relu(oc.nn.dense(x, output=[size]) * 2.0 + oc.tensor([0.5]))
            assert str(x.shape) == f"2|{size}"
            x = oc.nn.rms_norm(oc.nn.layer_norm(oc.nn.batch_norm(x)))
            assert str(x.shape) == f"2|{size}"


def test_taking_the_sizes_of_an_operand_leaves_parameters_open() -> None:
    with oc.Session():
        x, b = oc.placeholder("x", output=[4, 3]), oc.param("b", output=[...], input=[])
        assert str(oc.reshape(x + b, 12).shape) == "12"
        assert not b.shape.is_closed
        oc.require_shape(b, (3,))
        oc.train.forward(x + b).resolve()
        assert str(b.shape) == "3"


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: oc.require_shape(oc.normal(), (3, 4)), "3,4"),
        (lambda: oc.require_shape(oc.normal(), ()), "()"),
        (lambda: oc.require_shape(oc.placeholder("x", batch=[3]) * oc.normal(), (3, 4)), "3|4"),
        (lambda: oc.require_shape(2.0 * oc.normal() + oc.param("b"), (3, 4)), "3,4"),
    ],
)
def test_sizes_that_no_other_use_gives_a_kind_are_output_axes(
    make: Callable[[], oc.Tensor], shape: str
) -> None:
    with oc.Session():
        found = make()
        oc.train.forward(found).resolve()
        assert str(found.shape) == shape


def test_the_error_names_the_tensor_and_the_statement_of_its_shape() -> None:
    with oc.Session(), pytest.raises(oc.ShapeError) as caught:
        oc.reshape(oc.einsum("ab => a", oc.param("weights", input=[])), 3)
    assert "einsum" in caught.value.found
    assert "oc.require_shape(x, (3, 5))" in (caught.value.fix or "")


def test_random_numbers_and_positions_have_the_shape_of_their_tensor_beside_literals() -> None:
    with oc.Session():
        x, limit = oc.placeholder("x", batch=[1, 1], output=[7]), oc.placeholder("l", output=[])
        kept = oc.where(x < limit, float("-inf"), x)
        found = [oc.nn.dropout(kept, rate=0.5), oc.categorical(kept), oc.argmax(kept, axis=-1)]
        assert [str(each.shape) for each in found] == ["1,1|7", "1,1|", "1,1|"]
        assert str(oc.argmax(x[..., :1], axis=-1).shape) == "1,1|"


def test_an_axis_of_size_1_does_not_settle_a_literal_that_takes_the_size_of_its_uses() -> None:
    with oc.Session():
        x = oc.placeholder("x", output=[1])
        y = x + offsets(dtype=oc.int32)
        assert not y.shape.is_closed
        assert str((y + oc.placeholder("z", output=[5])).shape) == "5"


def test_the_advice_about_a_declared_tensor_makes_its_axes_countable() -> None:
    with oc.Session():
        with pytest.raises(oc.ShapeError) as caught:
            oc.cumsum(oc.declare("p", output=[64]), axis=0)
        assert "batch=[], output=[64], input=[]" in (caught.value.fix or "")
        p = oc.declare("p", batch=[], output=[64], input=[])
        assert str(oc.cumsum(p, axis=0).shape) == "64"


def test_the_input_of_a_layer_is_a_reduced_axis() -> None:
    with oc.Session():
        x = oc.placeholder("x", batch=[3], output=[4, 4, 5])
        pooled = oc.mean(x, axis=(1, 2), keepdims=True)
        squeezed = oc.nn.dense(pooled, output=[2])
        oc.train.forward(squeezed).resolve()
        assert [str(each.shape) for each in squeezed.params] == ["1,1,5->2", "2"]


def test_the_output_of_a_layer_beside_a_reduced_axis_can_be_anything() -> None:
    with oc.Session():
        hidden = oc.param("w") @ oc.placeholder("x", batch=[3], output=[5])
        centered = hidden - oc.einsum("...|i => ...|0", hidden)
        with pytest.raises(oc.ShapeError, match="parameter w: the size of its output axis -1"):
            oc.train.forward(oc.param("v", output=[2]) @ centered).resolve()
