"""Tolerances and exclusions of a backend."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ocannl_core.backend import manager
from ocannl_core.base.errors import UsageError
from ocannl_core.testing.allowances import (
    Allowances,
    CaseResult,
    Outcome,
    allowances_of,
    read_allowances,
)
from ocannl_core.testing.compare import EXACT, Tolerance

FILE = """
[[exclusion]]
cases = "suite/test_copies/*"
reason = "the bus is slow"

[[tolerance]]
cases = "primitives/exp/float16"
ulps = 2
reason = "computed in float16"

[[tolerance]]
cases = "onnx/exp*"
relative = 0.5
reason = "a table"
"""


def allowances() -> Allowances:
    return read_allowances(FILE, "here")


def test_a_failure_with_a_reason_is_an_exclusion() -> None:
    failed = CaseResult("suite/test_copies/float32", Outcome.FAILED, "float32", "lost")
    found = allowances().apply(failed)
    assert (found.outcome, found.text) == (Outcome.EXCLUDED, "the bus is slow")
    other = CaseResult("suite/test_moves/float32", Outcome.FAILED, "float32", "lost")
    assert allowances().apply(other) is other


def test_tolerances_only_add_to_the_default() -> None:
    found = allowances()
    assert found.ulps("primitives/exp/float16", EXACT) == Tolerance(2)
    assert found.ulps("primitives/exp/float16", Tolerance(4)) == Tolerance(4)
    assert found.ulps("primitives/exp/float32", EXACT) is EXACT
    assert found.relative("onnx/exp_example", 1e-5) == 0.5
    assert found.relative("onnx/log", 1e-5) == 1e-5


def test_entries_without_effect_are_stale() -> None:
    passed = CaseResult("suite/test_copies/float32", Outcome.PASSED)
    excluded = CaseResult("suite/test_copies/float64", Outcome.EXCLUDED)
    exact = CaseResult("primitives/exp/float16", Outcome.PASSED, error=0.0)
    near = CaseResult("primitives/exp/float16", Outcome.PASSED, error=2.0, needs_tolerance=True)
    stale = allowances().stale
    assert stale([passed, exact], is_complete=False) == [
        "exclusion suite/test_copies/*: the bus is slow: all of its cases pass",
        "tolerance primitives/exp/float16: computed in float16: all of its cases pass without it",
    ]
    assert stale([passed, excluded, near], is_complete=False) == []
    assert stale([CaseResult("suite/test_moves", Outcome.PASSED)], is_complete=True) == [
        "exclusion suite/test_copies/*: the bus is slow: there is no such case"
    ]
    assert stale([CaseResult("suite/test_moves", Outcome.PASSED)], is_complete=False) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[exclusion]\n", "A file of allowances is TOML."),
        ("[[exception]]\ncases = 'a'\n", "`exclusion` and `tolerance`"),
        ("exclusion = 3\n", "`exclusion` and `tolerance`"),
        ("[[exclusion]]\ncases = 'a'\n", "no reason"),
        ("[[exclusion]]\ncases = 'a'\nreason = ' '\n", "no reason"),
        ("[[exclusion]]\nreason = 'a'\n", "no cases"),
        ("[[exclusion]]\ncases = 'a'\nreason = 'b'\nulps = 3\n", "ulps = 3"),
        ("[[tolerance]]\ncases = 'a'\nreason = 'b'\nulps = true\n", "ulps = True"),
        ("[[tolerance]]\ncases = 'a'\nreason = 'b'\n", "states `ulps` for primitives"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_entry(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_allowances(text, "conformance.toml of mine 1.0")
    assert message in str(caught.value)
    assert "conformance.toml of mine 1.0" in str(caught.value)


def test_brackets_in_a_pattern_are_no_sets() -> None:
    entries = read_allowances("[[exclusion]]\ncases = 'a[bc]'\nreason = 'r'\n", "here")
    assert entries.exclusion("a[bc]") is not None
    assert entries.exclusion("ab") is None


PLUGIN = """
from ocannl_core.backend_api import TargetReport, hookimpl

OCANNL_API = (1, 1)


@hookimpl
def ocannl_targets():
    return TargetReport(reason="it is for tests")


class Plugin:
    OCANNL_API = OCANNL_API
    ocannl_targets = staticmethod(ocannl_targets)


plugin = Plugin()
"""


@pytest.mark.usefixtures("fresh_plugins")
@pytest.mark.parametrize("is_object", [False, True], ids=["module", "object"])
@pytest.mark.parametrize(
    ("packages", "place"),
    [
        (["mine{}"], "mine{}"),
        (["outer{}", "outer{}/mine"], "outer{}"),
        (["both{}", "both{}/mine"], "both{}/mine"),
        (["space{}/mine"], "space{}/mine"),
        ([], "spaces{}/mine"),
    ],
)
def test_the_file_is_in_a_package_around_a_module_or_a_class(
    packages: list[str],
    place: str,
    is_object: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    *regular, folder = [tmp_path / each.format(is_object) for each in [*packages, place]]
    inner = max([*regular, folder], key=lambda each: len(each.parts))
    inner.mkdir(parents=True)
    for each in regular:
        (each / "__init__.py").write_text("")
        (each / "conformance.toml").write_text("[[exclusion]]")
    (inner / "backend.py").write_text(PLUGIN)
    (inner / "conformance.toml").unlink(missing_ok=True)
    (folder / "conformance.toml").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = ".".join((inner / "backend").relative_to(tmp_path).parts)
    module = import_module(name)
    manager.register("mine", module.plugin if is_object else module)
    assert allowances_of(manager.backend("mine")) == allowances()


@pytest.mark.usefixtures("fresh_plugins")
def test_a_namespace_with_the_place_of_a_finder_has_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as setuptools adds for projects that are installed for editing."""
    package = tmp_path / "edited" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PLUGIN)
    place = "__editable__.finder"

    class Finder:
        def find_spec(self, name: str, target: object = None) -> ModuleSpec | None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [place]
            return spec if name == "edited" else None

    def hook(entry: str) -> Finder:
        if entry == place:
            return Finder()
        raise ImportError

    monkeypatch.setattr(sys, "path_hooks", [hook, *sys.path_hooks])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(place)
    assert place in import_module("edited").__path__
    manager.register("mine", import_module("edited.mine"))
    assert allowances_of(manager.backend("mine")) == Allowances()
