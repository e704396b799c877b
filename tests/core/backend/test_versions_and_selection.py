"""The diagnosis of plugins for another interface; the choice among plugins of one name or priority."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import BACKEND_API, VERSIONS_PAGE
from ocannl_core.backend.time_limit import call_within
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, SettingsError
from ocannl_core.cli import main
from tests.core.backend.conftest import WORKING

Install = Callable[..., Path]
Only = Callable[..., None]
ROOT = Path(__file__).resolve().parents[3]


def refused(name: str) -> BackendNotFoundError:
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend(name)
    return caught.value


def test_the_page_of_versions_lists_the_present_one() -> None:
    page = (ROOT / VERSIONS_PAGE).read_text(encoding="utf-8")
    assert f"## Version {BACKEND_API[0]}.{BACKEND_API[1]}" in page


@pytest.mark.parametrize(
    ("code", "written", "cause"),
    [
        (
            "from ocannl_core.schedule.plan import Plan\nOCANNL_API = (1, 0)\n",
            "version 1.0",
            "ModuleNotFoundError: No module named 'ocannl_core.schedule.plan' (plugin_old.py:1)",
        ),
        (
            "from ocannl_core.ir.node import Gone\nOCANNL_API: tuple[int, int] = (0, 9)\n",
            "version 0.9",
            "ImportError: cannot import name 'Gone' from 'ocannl_core.ir.node'",
        ),
        (
            "from ocannl_core import backend_api\nbackend_api.Gone\n",
            "another version",
            "AttributeError: module 'ocannl_core.backend_api' has no attribute 'Gone'",
        ),
        (
            f"from ocannl_core import gone\nOCANNL_API = {BACKEND_API}\n",
            "another core, of the same version",
            "ImportError: cannot import name 'gone' from 'ocannl_core'",
        ),
    ],
)
def test_a_plugin_for_another_interface_gets_that_diagnosis(
    install: Install, only: Only, code: str, written: str, cause: str
) -> None:
    install("old", code)
    only("old")
    error = refused("old")
    ours = ".".join(map(str, BACKEND_API))
    start = f"it was written for {written} of the backend interface, and this core has {ours}: "
    assert error.found.startswith(start + cause)
    assert VERSIONS_PAGE in error.fix
    assert "repair or uninstall" not in error.fix
    (entry,) = [each for each in manager.backend_entries() if each.name == "old"]
    assert VERSIONS_PAGE in entry.repair


@pytest.mark.parametrize(
    "code",
    [
        "import a_missing_module",
        "import json\njson.gone",
        "object().gone",
        "raise ImportError('x')",
    ],
)
def test_other_errors_of_imports_are_the_plugins_own(
    install: Install, only: Only, code: str
) -> None:
    install("old", code)
    only("old")
    assert refused("old").found.startswith("it fails on import: ")
    assert "repair or uninstall dist-old" in refused("old").fix


def test_the_first_by_name_of_equal_priorities_is_announced_once(
    install: Install, only: Only
) -> None:
    for name in ("b_chip", "a_chip", "slow"):
        install(name, priority=3 if name == "slow" else 7)
    only("a_chip", "b_chip", "slow")
    with pytest.warns(RuntimeWarning) as caught:
        backend, _ = manager.select()
    assert backend.name == "a_chip"
    assert [str(each.message) for each in caught] == snapshot(
        [
            "Backends a_chip, b_chip have devices of the same priority, 7: 'a_chip' is used, the first by name; choose one by the setting backend"
        ]
    )
    with warnings.catch_warnings(), settings.overrides(backend="b_chip"):
        warnings.simplefilter("error")
        assert manager.select()[0].name == "b_chip"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.select()


def install_twins(install: Install, module: str = "") -> None:
    for at, distribution in enumerate(("dist-one", "Dist_Two")):
        code = WORKING.format(name="twin", priority=0).replace("a test device", distribution)
        install("twin", code, distribution=distribution, module=module or f"twin_{at}")


def test_the_second_distribution_of_a_name_can_be_selected(install: Install, only: Only) -> None:
    install_twins(install)
    only("twin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("twin@dist-two", "twin@Dist_Two:0"):
            backend, target = manager.select(name)
            assert (backend.name, backend.distribution) == ("twin", "Dist_Two")
            assert target.description == "Dist_Two"
    with pytest.warns(RuntimeWarning, match="or choose one as twin@DISTRIBUTION"):
        manager.select("twin")
    for name in ("twin", "twin@dist-one", "twin@DIST.one"):
        backend, target = manager.select(name)
        assert (backend.distribution, target.description) == ("dist-one", "dist-one")
    assert [each.name for each in manager.backend_entries() if each.name == "twin"] == ["twin"]
    with settings.overrides(backend="twin@dist-two"):
        assert manager.select()[1].description == "Dist_Two"


def test_a_distribution_without_such_a_backend_is_refused(install: Install, only: Only) -> None:
    install_twins(install)
    only("twin")
    error = refused("twin@dist-three")
    assert error.rule == (
        "Backend 'twin@dist-three' was requested but that distribution has no such backend."
    )
    assert "dist-one 1.0" in error.found
    assert "Dist_Two 1.0" in error.found


def test_distributions_with_one_module_are_refused(install: Install, only: Only) -> None:
    install_twins(install, module="twin")
    only("twin")
    with pytest.warns(RuntimeWarning, match="the same name"):
        error = refused("twin@dist-two")
    assert "both distributions have the module twin, of which Python imports one" in error.found
    assert error.fix.startswith("uninstall dist-one")


def test_an_import_that_hangs_costs_seconds(install: Install, only: Only) -> None:
    assert settings.Settings().plugin_timeout <= 10
    # no other test imports a module of this name, whose lock a thread may still hold
    install("hangs_for_seconds", "import time\ntime.sleep(60)\n")
    only("hangs_for_seconds")
    before = time.monotonic()
    with settings.overrides(plugin_timeout=1.0):
        error = refused("hangs_for_seconds")
    assert time.monotonic() - before < 30
    assert "(plugin_hangs_for_seconds.py:2)" in error.found
    assert "dist-hangs_for_seconds 1.0" in error.where


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_a_limit_may_be_longer_than_a_clock_counts(seconds: float) -> None:
    assert call_within(seconds, lambda: 3) == 3
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(call_within(seconds, lambda: 4)))
    thread.start()
    thread.join()
    assert found == [4]


@pytest.mark.parametrize("name", ["nope", "gpu", "x", "opencl2000", "interpretation"])
def test_installation_is_suggested_for_close_names_alone(
    only: Only, install: Install, name: str
) -> None:
    only()
    assert "pip install" not in refused(name).fix


def test_a_close_name_is_answered_with_its_installation(only: Only, install: Install) -> None:
    only()
    assert any(text in refused("cuda_").fix for text in ("[cuda]", "did you mean cuda"))


def test_the_list_of_backends_shows_equal_priorities(
    install: Install, only: Only, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("b_chip", "a_chip"):
        install(name, priority=7)
    only("a_chip", "b_chip")
    assert main(["backends"]) == 0
    shown = capsys.readouterr().out
    assert "the first by name of a_chip, b_chip, which have equal priorities" in shown


def test_settings_of_a_plugin_are_checked_when_it_is_loaded(
    install: Install,
    only: Only,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = WORKING.format(name="chip", priority=0)
    code += """
    from ocannl_core.backend_api import dataclass, settings

    @dataclass(frozen=True)
    class OCANNL_SETTINGS:
        clock: int = settings.setting(800, "the clock in MHz")
    """
    install("chip", code)
    only("chip")
    with settings.overrides(chip__clok=3), pytest.raises(SettingsError, match="did you mean clock"):
        manager.backend("chip")
    monkeypatch.setenv("OCANNL_CHIP__CLOCK", "900")
    assert main(["config"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(
        each.split() == ["chip__clock", "900", "(from", "OCANNL_CHIP__CLOCK)"] for each in lines
    )
    assert "the clock in MHz" in lines


def test_settings_that_are_none_break_the_plugin(install: Install, only: Only) -> None:
    install("chip", WORKING.format(name="chip", priority=0) + "\n    OCANNL_SETTINGS = {'a': 1}\n")
    only("chip")
    assert refused("chip").found == "its OCANNL_SETTINGS must be a dataclass, and is {'a': 1}"
