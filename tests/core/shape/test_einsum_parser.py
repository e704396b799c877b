"""The einsum notation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.base.errors import SpecError
from ocannl_core.shape.language.einsum_ast import (
    Affine,
    Anything,
    AxisSpec,
    Concat,
    Fixed,
    Label,
    RowSpec,
    ShapeSpec,
    Spec,
    WindowSpec,
)
from ocannl_core.shape.language.einsum_parser import parse_spec


def _output(*axes: AxisSpec) -> ShapeSpec:
    return ShapeSpec(None, None, RowSpec(trailing=axes))


def test_without_commas_every_letter_is_an_axis() -> None:
    assert parse_spec("ij;jk=>ik") == Spec(
        (_output(Label("i"), Label("j")), _output(Label("j"), Label("k"))),
        _output(Label("i"), Label("k")),
    )


def test_without_commas_a_run_of_digits_is_one_position() -> None:
    assert parse_spec("i12j => 3 4").operands[0] == _output(Label("i"), Fixed(12), Label("j"))
    assert parse_spec("i12j => 3 4").result == _output(Fixed(3), Fixed(4))


def test_a_comma_anywhere_makes_names_words() -> None:
    spec = parse_spec("row, col; col=>row")
    assert spec.operands == (_output(Label("row"), Label("col")), _output(Label("col")))
    assert spec.result == _output(Label("row"))


def test_a_trailing_comma_is_allowed() -> None:
    assert parse_spec("height,=>height").result == _output(Label("height"))


def test_rows_are_batch_then_input_then_output() -> None:
    shape = parse_spec("b|i->o=>o").operands[0]
    assert shape.batch == RowSpec(trailing=(Label("b"),))
    assert shape.input == RowSpec(trailing=(Label("i"),))
    assert shape.output == RowSpec(trailing=(Label("o"),))


def test_a_row_that_is_not_mentioned_is_none() -> None:
    shape = parse_spec("b|o=>o").operands[0]
    assert shape.input is None
    assert shape.batch is not None


@pytest.mark.parametrize("ellipsis", ["...", "…"])
def test_an_ellipsis_is_the_row_variable_of_its_kind(ellipsis: str) -> None:
    shape = parse_spec(f"{ellipsis}|{ellipsis}->{ellipsis}=>{ellipsis}").operands[0]
    assert [row.variable for row in shape.rows] == ["batch", "input", "output"]


def test_an_ellipsis_and_the_variable_named_like_its_row_are_the_same() -> None:
    assert parse_spec("...|i=>i") == parse_spec("..batch..|i=>i")


def test_a_row_variable_lies_between_leading_and_trailing_axes() -> None:
    row = parse_spec("i..v..jk=>..v..").operands[0].output
    assert row == RowSpec((Label("i"),), "v", (Label("j"), Label("k")))


def test_in_words_a_row_variable_may_be_set_off_by_commas() -> None:
    assert (
        parse_spec("a, ..v.., b => ..v..").operands[0]
        == parse_spec("a ..v.. b, => ..v..").operands[0]
    )
    assert parse_spec("..., i => ..., 2*i").operands[0].output.variable == "output"


def test_underscores_are_unrelated_axes() -> None:
    axes = parse_spec("_i_=>i").operands[0].output.axes
    assert axes == (Anything(), Label("i"), Anything())
    assert parse_spec("_, _x => _x").operands[0].output.axes == (Anything(), Label("_x"))


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("2*i", Affine(2, "i")),
        ("2*i+1", Affine(2, "i", 1)),
        ("1*i+1", Affine(1, "i", 1)),
        ("stride*i", Affine("stride", "i")),
        ("oh+kh", Affine(1, "oh", 0, WindowSpec("kh"))),
        ("2*oh<+kh", Affine(2, "oh", 0, WindowSpec("kh", 1, False))),
        ("oh=+3*kh", Affine(1, "oh", 0, WindowSpec("kh", 3, True))),
        ("2*oh=+1+d*kh", Affine(2, "oh", 1, WindowSpec("kh", "d", True))),
        ("a^b^c", Concat(("a", "b", "c"))),
        ("3^a", Concat((3, "a"))),
    ],
)
def test_formulas_are_axes_and_make_names_words(text: str, axis: AxisSpec) -> None:
    assert parse_spec(f"{text} => long").operands[0] == _output(axis)
    assert parse_spec(f"{text} => long").result == _output(Label("long"))


def test_any_number_of_operands_is_read() -> None:
    assert len(parse_spec("i;j;k;l=>ijkl").operands) == 4


def test_the_convolution_spec_is_read() -> None:
    text = "... | stride*oh<+kh, stride*ow<+kw, ic; kh, kw, ic -> oc => ... | oh, ow, oc"
    assert str(parse_spec(text)) == snapshot(
        "...|stride*oh<+kh, stride*ow<+kw, ic; kh, kw, ic->oc => ...|oh, ow, oc"
    )


@pytest.mark.parametrize(
    "text",
    [
        "ij;jk=>ik",
        "...|... => 0",
        "2...|...->... => ...|...->...",
        "..v..|ijk => ..v..kji",
        "i=>1 2 _",
        "row,col=>col",
        "word,=>word",
        "a^bc => a",
        "b|2*i+1,j=>...j",
    ],
)
def test_printing_a_spec_keeps_its_meaning(text: str) -> None:
    assert parse_spec(str(parse_spec(text))) == parse_spec(text)


_names = st.sampled_from(["i", "j", "k", "row", "col"])
_axis_specs: st.SearchStrategy[AxisSpec] = st.one_of(
    st.builds(Label, _names),
    st.builds(Fixed, st.integers(0, 12)),
    st.just(Anything()),
    st.builds(Affine, st.integers(2, 3), _names, st.integers(0, 1)),
    st.builds(
        Affine,
        st.integers(1, 2) | st.just("s"),
        _names,
        st.just(0),
        st.builds(WindowSpec, _names, st.integers(1, 2), st.sampled_from([None, True, False])),
    ),
    st.builds(Concat, st.lists(_names, min_size=2, max_size=3).map(tuple)),
)
_axis_lists = st.lists(_axis_specs, max_size=3).map(tuple)
_row_specs = st.one_of(
    st.builds(RowSpec, st.just(()), st.none(), _axis_lists),
    st.builds(RowSpec, _axis_lists, st.sampled_from(["v", "w"]), _axis_lists),
)
_shape_specs = st.builds(ShapeSpec, st.none() | _row_specs, st.none() | _row_specs, _row_specs)
_specs = st.builds(Spec, st.lists(_shape_specs, min_size=1, max_size=3).map(tuple), _shape_specs)


@settings(max_examples=200, deadline=None)
@given(_specs)
def test_reading_inverts_printing(spec: Spec) -> None:
    assert parse_spec(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ij",
            snapshot("""\
Expected `=>` and the axes of the result, or `;` and another operand.
  found  ij
           ^
  try    in this notation: ij => ij
         (`;` separates operands, `=>` precedes the result, `->` follows input axes)\
"""),
        ),
        (
            "ij;jk=>ik=>i",
            snapshot("""\
Expected the end of the spec.
  found  ij;jk=>ik=>i
                  ^\
"""),
        ),
        (
            "i&j=>i",
            snapshot("""\
`&` has no meaning in a spec; it is reserved.
  found  i&j=>i
          ^\
"""),
        ),
        (
            "i$j=>i",
            snapshot("""\
The character '$' has no meaning in a spec.
  found  i$j=>i
          ^
  try    axes are named by letters, or by words between commas: `ij => ji`, `row, column =>`\
"""),
        ),
        (
            "a->b->c=>a",
            snapshot("""\
A shape is written `batch|input->output`, each mark at most once, in this order.
  found  a->b->c=>a
             ^\
"""),
        ),
        (
            "a->b|c=>a",
            snapshot("""\
A shape is written `batch|input->output`, each mark at most once, in this order.
  found  a->b|c=>a
             ^\
"""),
        ),
        (
            "...i...=>i",
            snapshot("""\
A row has at most one row variable.
  found  ...i...=>i
             ^\
"""),
        ),
        (
            "i..v=>i",
            snapshot("""\
A row variable is written `..name..`, or `...`.
  found  i..v=>i
          ^\
"""),
        ),
        (
            "a, i+1 => i",
            snapshot("""\
An offset needs a coefficient.
  found  a, i+1 => i
            ^
  try    write 1*i+1\
"""),
        ),
        (
            "a, b c => a",
            snapshot("""\
Axes are separated by commas in a spec that has a comma or a formula anywhere.
  found  a, b c => a
              ^\
"""),
        ),
        (
            "2*3, => i",
            snapshot("""\
Expected the name of an axis after `*`.
  found  2*3, => i
           ^\
"""),
        ),
        (
            "oh<, => oh",
            snapshot("""\
`<` belongs to a window: `+` and a kernel axis must follow.
  found  oh<, => oh
           ^\
"""),
        ),
        (
            "a^, => a",
            snapshot("""\
Expected a part of the axis after `^`.
  found  a^, => a
           ^\
"""),
        ),
        (
            "0*i => i",
            snapshot("""\
A coefficient must be positive.
  found  0*i => i
         ^\
"""),
        ),
        (
            "i, ..i.. => i",
            snapshot("""\
The name 'i' is used for an axis and for a row variable.
  found  i, ..i.. => i
         ^\
"""),
        ),
    ],
)
def test_a_mistake_is_pointed_at(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ij,jk->ik", "ij; jk => ik"),
        ("ij,jk", "ij; jk => ik"),
        ("...i,i->...", "...i; i => ..."),
        ("ij;jk->ik", "ij; jk => ik"),
        ("b h w -> b", "bhw => b"),
    ],
)
def test_a_spec_as_for_numpy_is_refused_with_its_translation(written: str, meant: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(written)
    assert f"in this notation: {meant}\n" in str(caught.value)
    parse_spec(meant)


@pytest.mark.parametrize(
    ("spec", "reduces"),
    [
        ("ij => ji", False),
        ("ij => i", True),
        ("ij; jk => ik", True),
        ("i; j => ij", False),
        ("..., a => ...", True),
        ("... => ...", False),
        ("...|...->... => 0", True),
        ("i_ => i", True),
        ("i1 => i", False),
        ("2*i+k; k => i", True),
        ("2*i => i", False),
        ("a^b => a", False),
        ("a; b => a^b", False),
        ("i; c => i", True),
    ],
)
def test_a_spec_reduces_where_an_axis_of_an_operand_is_none_of_the_result(
    spec: str, reduces: bool
) -> None:
    assert parse_spec(spec).reduces is reduces
