"""Warnings about labels that are summed although they occur once."""

from __future__ import annotations

import linecache
import warnings

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc

FORGOTTEN = """\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[4])
c = oc.einsum("ij;k=>i", a, b)
"""


def warned(text: str) -> list[warnings.WarningMessage]:
    """Return the warnings of a program whose lines messages show as those of program.py."""
    text = "import ocannl_core as oc\n" + text
    lines = text.splitlines(keepends=True)
    linecache.cache["program.py"] = (len(text), None, lines, "program.py")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(compile(text, "program.py", "exec"), {})
    finally:
        del linecache.cache["program.py"]
    return [each for each in caught if issubclass(each.category, oc.SpecWarning)]


def test_labels_that_are_summed_and_occur_once_give_a_warning_on_the_users_line() -> None:
    (warning,) = warned(FORGOTTEN)
    assert (warning.filename, warning.lineno) == ("program.py", 4)
    assert str(warning.message) == snapshot("""\
In ij;k=>i labels occur once and not in the result: `j`, `k`. Their axes are summed before they meet anything. If this is intended, write `...` in place of the label; if not, name it in the result or in another operand. The setting warn_summed_once=false ends these warnings.
  where  einsum, at program.py:4: c = oc.einsum("ij;k=>i", a, b)\
""")


def test_the_warning_says_that_letters_between_commas_are_one_axis() -> None:
    warning, *_ = warned("""\
a = oc.placeholder("a", batch=[2], output=[3])
b = oc.placeholder("b", output=[3, 4])
c = oc.einsum("b, t|c; cd => b, t|d", a, b)
""")
    assert "Between commas `cd` is one axis, `c,d` are several." in str(warning.message)


def test_a_setting_switches_the_warning_off() -> None:
    with oc.settings.overrides(warn_summed_once=False):
        assert warned(FORGOTTEN) == []


def test_the_warning_comes_while_recording_too() -> None:
    (warning,) = warned("""\
a = oc.placeholder("a", output=[2, 3])
b = oc.placeholder("b", output=[2])
c = oc.declare("c")
@oc.cd
def code():
    c[:] = oc.einsum("ij;i=>i", a, b)
code()
""")
    assert warning.lineno == 7


@pytest.mark.parametrize(
    "spec", ["ij;jk=>ik", "ij;ij=>i", "ij;j=>i", "i...;i=>i", "ij;_j=>i", "...;...=>0", "ii;j=>j"]
)
def test_a_label_that_meets_another_one_or_the_result_gives_no_warning(spec: str) -> None:
    assert (
        warned(f"""\
a = oc.placeholder("a", output=[3, 3])
b = oc.placeholder("b", output=[3, 3])
c = oc.einsum("{spec}", a, b)
""")
        == []
    )


@pytest.mark.parametrize("spec", ["ij=>i", "ij=>0", "i=>0", "...|i=>...|0"])
def test_summing_the_only_operand_gives_no_warning(spec: str) -> None:
    assert (
        warned(f"""\
a = oc.placeholder("a", output=[2, 3])
c = oc.einsum("{spec}", a)
""")
        == []
    )


def test_a_warning_that_is_made_an_error_leaves_nothing_behind() -> None:
    a = oc.placeholder("a", output=[2, 3])
    b = oc.param("b")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(oc.SpecWarning):
            oc.einsum("ij;jk=>i", a, b)
    assert str(b.shape) == "..b.input..->..b.output.."
