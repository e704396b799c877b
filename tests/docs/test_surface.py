"""The file of the public surface: the code agrees with it, and differences are named."""

from __future__ import annotations

import inspect

import pytest

import ocannl_core as oc
from tools.surface import differences, lines, read, surface


def test_the_code_has_the_surface_that_the_file_states() -> None:
    changes = differences(read(), lines(surface()))
    if changes:
        pytest.fail(
            "The public surface differs from docs/reference/surface.txt. If that is intended, run "
            "`make surface`, and state it in CHANGELOG.md; names that users have need an entry in "
            "base/renamed.py:\n" + "\n".join(changes)
        )


def test_every_public_name_is_in_the_file() -> None:
    stated = {line.partition("(")[0].partition(":")[0].strip() for line in read()}
    assert {f"oc.{name}" for name in oc.__all__} <= stated
    assert {f"oc.nn.{name}" for name in oc.nn.__all__} <= stated


def test_a_difference_is_named_as_added_removed_or_changed() -> None:
    stated = ["oc.exp(x)", "oc.clip(x, low)", "setting seed: int = 0", "old axes of oc.f -> axis"]
    found = ["oc.clip(x, min)", "oc.log(x)", "setting seed: int = 1", "old axes of oc.f -> axis"]
    assert differences(stated, found) == [
        "removed  oc.exp(x)",
        "added    oc.log(x)",
        "changed  oc.clip(x, low)\n      to oc.clip(x, min)",
        "changed  setting seed: int = 0\n      to setting seed: int = 1",
    ]


def test_a_changed_default_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def linspace(start: float, stop: float, num: int = 51) -> object:
        return start, stop, num

    assert inspect.signature(oc.linspace).parameters["num"].default == 50
    before = lines(surface())
    monkeypatch.setattr(oc, "linspace", linspace)
    (change,) = differences(before, lines(surface()))
    assert change.startswith("changed  oc.linspace(")
    assert "num: int = 51" in change


def test_commands_plugins_and_their_settings_are_in_the_file() -> None:
    stated = "\n".join(read())
    assert "command ocannl migrate: PATH+ [--check] [--diff]" in stated
    assert "command ocannl cache: info|list|verify|clear" in stated
    assert "setting cpu_c__arch: str = 'native'" in stated
    assert "ocannl_onnx.load(" in stated


def test_an_option_that_is_gone_is_a_difference() -> None:
    stated = ["command ocannl a: x [--check]", "command ocannl a b: [--all]"]
    found = ["command ocannl a: x", "command ocannl a b: [--all]"]
    (change,) = differences(stated, found)
    assert change.startswith("changed  command ocannl a: x [--check]")


def test_no_fact_depends_on_the_process() -> None:
    assert not [line for line in read() if " at 0x" in line]
    names = list(surface())
    assert len(names) == len(set(names))


def test_members_of_the_core_are_no_part_of_the_surface() -> None:
    stated = {line.partition("(")[0].partition(" ")[0] for line in read()}
    x = oc.tensor([1.0])
    step = oc.Context("interp").compile(oc.train.forward(x))
    for thing, public, own in ((x, "params", "note_use"), (step, "source", "unlink")):
        name = type(thing).__name__
        assert hasattr(thing, own)
        assert own not in dir(thing)
        assert f"oc.{name}.{own}" not in stated
        assert public in dir(thing)
        assert f"oc.{name}.{public}" in stated
        assert all(hasattr(type(thing), each) for each in type(thing)._of_the_core)
