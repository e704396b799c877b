"""Axes that a specification names and an operand lacks, or whose size nothing determines."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from tests.support.messages import complaint, run

Array = np.ndarray[Any, Any]


def warned(text: str) -> list[tuple[int, str]]:
    """Return the lines and the texts of the warnings of a program."""
    with oc.Session(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(text)
    found = [each for each in caught if issubclass(each.category, oc.SpecWarning)]
    assert all(each.filename == "program.py" for each in found)
    return [(each.lineno, str(each.message)) for each in found]


SHORT = """\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[3])
c = oc.einsum("ij;ij=>ij", a, b)
"""
LATE = """\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[...])
c = oc.einsum("ij;ij=>ij", a, b)
oc.require_shape(b, "3")
oc.train.forward(c).resolve()
"""
UNSIZED = """\
a = oc.placeholder("a", output=[2])
c = oc.einsum("i=>ij", a)
oc.train.forward(c).resolve()
"""


def test_an_operand_without_an_axis_gives_a_warning_on_the_users_line() -> None:
    assert warned(SHORT) == snapshot(
        [
            (
                4,
                """\
The second operand of ij;ij=>ij has no axis `i` in its output row, of its shape 3, and is repeated along it.
  where  einsum "ij; ij => ij", at program.py:4: c = oc.einsum("ij;ij=>ij", a, b)
  try    give it the axis, or leave it out of this operand in the specification; the setting missing_axes=allow ends these warnings, and missing_axes=error makes them errors\
""",
            )
        ]
    )


def test_axes_that_the_operand_has_in_another_row_are_written_there() -> None:
    ((_, text),) = warned("""\
a = oc.placeholder("a", batch=[2, 5], output=[3])
c = oc.einsum("b t d => b t d", a)
""")
    assert "has no axes `b`, `t` in its output row, of its shape 2,5|3" in text
    assert "`|` follows batch axes, and `->` input axes" in text


def test_a_row_variable_of_the_result_alone_gives_a_warning_when_it_has_no_axes() -> None:
    typo = """\
a = oc.placeholder("a", batch=[2], output=[3])
c = oc.einsum("..b..|i => ..c..|i", a)
oc.train.forward(c).resolve()
"""
    assert warned(typo)[0][1].startswith(
        "The axes of `..c..` in ..b..|i => ..c..|i are undetermined"
    )
    assert not warned(typo.replace("..c..", "..b.."))
    assert not warned(typo.replace("..c..", "..."))
    used = typo.replace("oc.train", 'c = c + oc.require_shape(c, "2|3")\noc.train')
    assert not warned(used)


def test_so_does_one_whose_axes_are_known_later() -> None:
    assert warned(LATE) == warned(SHORT)


def test_an_axis_of_the_result_without_a_size_gives_a_warning_on_the_users_line() -> None:
    assert warned(UNSIZED) == snapshot(
        [
            (
                3,
                """\
The size of `j` in i=>ij is undetermined, and so it is 1.
  where  einsum "i => ij", at program.py:3: c = oc.einsum("i=>ij", a)
  try    give its size, values={'j': ...}, or write 0 in place of it for an axis of size 1; the setting missing_axes=allow ends these warnings, and missing_axes=error makes them errors\
""",
            )
        ]
    )


@pytest.mark.parametrize("text", [SHORT, LATE, UNSIZED])
def test_the_settings_make_it_an_error_or_allow_it(text: str) -> None:
    with oc.settings.overrides(missing_axes="allow"):
        assert warned(text) == []
    with oc.settings.overrides(missing_axes="error"), pytest.raises(oc.SpecError):
        run(text)


def test_the_error_names_the_missing_part() -> None:
    with oc.settings.overrides(missing_axes="error"):
        assert complaint(SHORT) == snapshot("""\
An operand has the axes that a specification names.
  found  the second operand of ij;ij=>ij has no axis `i` in its output row, of its shape 3, and is repeated along it
  where  einsum "ij; ij => ij", at program.py:4: c = oc.einsum("ij;ij=>ij", a, b)
  try    give it the axis, or leave it out of this operand in the specification\
""")
        assert complaint(UNSIZED) == snapshot("""\
Every axis of a result has a size that something gives.
  found  the size of `j` in i=>ij is undetermined, and so it is 1
  where  einsum "i => ij", at program.py:3: c = oc.einsum("i=>ij", a)
  try    give its size, values={'j': ...}, or write 0 in place of it for an axis of size 1\
""")


@pytest.mark.parametrize("mode", ["error", "warn"])
def test_an_error_leaves_nothing_behind(mode: str) -> None:
    a, b = oc.placeholder("a", output=[3]), oc.param("b", output=[..., 3])
    kind = oc.SpecError if mode == "error" else oc.SpecWarning
    with warnings.catch_warnings(), oc.settings.overrides(missing_axes=mode):
        warnings.simplefilter("error")
        with pytest.raises(kind):
            oc.einsum("ij;kj=>ik", a, b)
    assert str(b.shape.output) == "..b.output..,3"


def test_a_loop_warns_once_and_two_lines_twice() -> None:
    loop = """\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[3])
for _ in range(3):
    c = oc.einsum("ij;ij=>ij", a, b)
d = oc.einsum("ij;ij=>ij", a, b)
oc.train.forward(d).resolve()
"""
    assert [line for line, _ in warned(loop)] == [5, 6]


def test_each_operand_and_row_is_named() -> None:
    texts = [
        text.splitlines()[0]
        for _, text in warned("""\
a = oc.placeholder("a", batch=[4], input=[2], output=[3])
b = oc.placeholder("b", output=[2])
c = oc.einsum("b,h|i->j,k; b,h|i->j => b,h|i->j,k", a, b)
""")
    ]
    assert texts == snapshot(
        [
            "The first operand of b,h|i->j,k; b,h|i->j => b,h|i->j,k has no axis `b` in its batch row, of its shape 4|2->3, and is repeated along it.",
            "The first operand of b,h|i->j,k; b,h|i->j => b,h|i->j,k has no axis `j` in its output row, of its shape 4|2->3, and is repeated along it.",
            "The second operand of b,h|i->j,k; b,h|i->j => b,h|i->j,k has no axes `b`, `h` in its batch row, of its shape 2, and is repeated along them.",
            "The second operand of b,h|i->j,k; b,h|i->j => b,h|i->j,k has no axis `i` in its input row, of its shape 2, and is repeated along it.",
        ]
    )


@pytest.mark.parametrize(
    ("spec", "operands"),
    [
        ("ij;ij=>ij", "a, 2.0"),
        ("ij;ij=>ij", "a, oc.tensor([2.0])"),
        ("ij;ij=>ij", "a, oc.tensor([[2.0]])"),
        ("ij;...|ij=>ij", "a, oc.tensor(2.0)"),
        ("ij;...=>ij...", "a, oc.tensor([2.0])"),
        ("..., i=>i", "a"),
        ("_ij=>ij", "a"),
        ("0ij=>ij", "a"),
        ("ij=>ij0", "a"),
        ("ij=>ij_", "a"),
    ],
)
def test_scalars_and_anonymous_axes_give_no_warning(spec: str, operands: str) -> None:
    text = f"""\
a = oc.placeholder("a", output=[2, 3])
c = oc.einsum({spec!r}, {operands})
"""
    assert warned(text) == []


@pytest.mark.parametrize(
    "text",
    [
        'c = oc.einsum("i=>ij", a, values={"j": 1})',
        'c = oc.einsum("i=>ij", a) + oc.placeholder("b", output=[2, 3])',
        'd = oc.dim("j"); c = oc.einsum("i=>ij", a, capture=[d]); d.require(1)',
    ],
)
def test_an_axis_whose_size_something_gives_gets_no_warning(text: str) -> None:
    program = f"""\
a = oc.placeholder("a", output=[2])
{text}
oc.train.forward(c).resolve()
"""
    assert warned(program) == []


def test_an_open_operand_gets_the_axes_that_a_specification_names() -> None:
    text = """\
a = oc.placeholder("a", output=[...])
b = a + oc.placeholder("b", output=[3])
c = oc.einsum("ij=>i", a)
(oc.train.forward(b) + oc.train.forward(c)).resolve()
assert str(a.shape) == "1,3"
"""
    assert warned(text) == []


def test_other_operations_with_specifications_warn_too() -> None:
    lines = [
        line
        for line, _ in warned("""\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[3])
c = oc.multiply(a, b, logic="ij;ij=>ij")
d = oc.where(a, a, b, logic="ij;ij;ij=>ij")
e = oc.softmax(b, logic="ij=>i0")
oc.train.forward(e).resolve()
""")
    ]
    assert lines == [4, 5, 6]


def _value(tensor: oc.Tensor) -> Array:
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(tensor))()
    cells: Array = ctx[tensor]
    return cells


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("i...;i...=>...", (2, 3, 2), (2,)),
        ("i...;i...=>...", (4, 3, 2), (4,)),
        ("i...;i...=>i...", (4, 3, 2), (4, 2)),
        ("i...;i...=>i...", (4, 3, 2), (4, 1)),
        ("i...j;i...j=>i...", (2, 5, 3, 2), (2, 3, 2)),
        ("i...j;i...j=>j...", (2, 5, 3, 2), (2, 2)),
        ("ij...;ij...=>...", (2, 3, 2, 3), (2, 3)),
        ("...i;...i=>...", (2, 3, 4), (4,)),
        ("i...;...i=>i...", (4, 3, 2), (2, 4)),
        ("i...;j...=>ij...", (4, 3, 2), (5,)),
    ],
)
def test_axes_with_names_are_matched_before_an_ellipsis_as_in_numpy(
    spec: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = (np.arange(1.0, 1.0 + np.prod(dims)).reshape(dims) for dims in (left, right))
    wanted = np.einsum(spec.replace(";", ",").replace("=>", "->"), a, b)
    found = _value(oc.einsum(spec, oc.tensor(a), oc.tensor(b)))
    np.testing.assert_array_equal(found, wanted, strict=False)
    assert found.shape == wanted.shape


@pytest.mark.filterwarnings("ignore::ocannl_core.base.errors.SpecWarning")
def test_with_fewer_axes_than_names_the_last_names_are_matched() -> None:
    a, b = np.arange(1.0, 25.0).reshape(2, 3, 4), np.arange(1.0, 5.0)
    found = _value(oc.einsum("i...j;i...j=>i...j", oc.tensor(a), oc.tensor(b)))
    np.testing.assert_array_equal(found, a * b)
    found = _value(oc.einsum("ij...;ij...=>ij...", oc.tensor(a), oc.tensor([1.0, 2.0, 3.0])))
    np.testing.assert_array_equal(found, a * np.array([1.0, 2.0, 3.0])[:, None])
