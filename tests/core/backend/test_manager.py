"""Discovery, loading and choice of backends, with temporary plugins."""

from __future__ import annotations

import sys
import tomllib
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.backend.manager import Status
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, UsageError

Install = Callable[..., Path]
Only = Callable[..., None]

UNAVAILABLE = """
    from ocannl_core.backend.specs import hookimpl
    from ocannl_core.backend.protocols import TargetReport

    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets():
        return TargetReport(reason="the driver is missing", fix="install it,\\nor not", priority=100)
"""


def status_of(name: str) -> Status:
    return next(entry.status for entry in manager.backend_entries() if entry.name == name)


def error_of(name: str) -> str:
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend(name)
    assert status_of(name) is Status.BROKEN
    return caught.value.found


def test_listing_imports_no_plugin(install: Install) -> None:
    install("lazy", distribution="dist-lazy", version="2.5")
    entry = next(entry for entry in manager.backend_entries() if entry.name == "lazy")
    assert (entry.distribution, entry.version, entry.status) == (
        "dist-lazy",
        "2.5",
        Status.INSTALLED,
    )
    assert "plugin_lazy" not in sys.modules
    assert manager.backend("lazy").version == "2.5"
    assert "plugin_lazy" in sys.modules
    assert status_of("lazy") is Status.LOADED


def test_a_plugin_is_loaded_once(install: Install) -> None:
    install("once")
    assert manager.backend("once") is manager.backend("once")


def test_refresh_forgets_registrations_and_finds_new_plugins(install: Install) -> None:
    manager.register("mine", types.ModuleType("mine"))
    install("late")
    names = {entry.name for entry in manager.backend_entries()}
    assert "late" in names
    assert "mine" not in names


def test_distributions_whose_metadata_lack_a_name_are_found_each(install: Install) -> None:
    for name in ("one", "two"):
        folder = install(name)
        (folder / f"dist_{name}-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\n")
    manager.refresh()
    found = {each.name: each.distribution for each in manager.backend_entries()}
    assert found["one"] == found["two"] == "unknown distribution"


def test_a_broken_plugin_does_not_stop_the_others(install: Install, only: Only) -> None:
    install("works")
    install("broken", "raise ValueError('no luck')")
    only("works", "broken")
    assert [each.name for each in manager.load_all()] == ["works"]
    assert status_of("broken") is Status.BROKEN


def test_strict_plugins_turn_a_broken_plugin_into_an_error(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("works")
    install("broken", "raise ValueError('no luck')")
    only("works", "broken")
    monkeypatch.setenv("OCANNL_STRICT_PLUGINS", "1")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.load_all()
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value) == snapshot("""\
Backend 'broken' is installed and must load: strict_plugins is on.
  found  it fails on import: ValueError: no luck (plugin_broken.py:1)
  where  plugin dist-broken 1.0 (entry point broken = plugin_broken)\
""")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "raise ValueError('no luck')",
            "it fails on import: ValueError: no luck (plugin_bad.py:1)",
        ),
        (
            "\nimport a_module_that_is_missing",
            "it fails on import: ModuleNotFoundError: No module named 'a_module_that_is_missing' "
            "(plugin_bad.py:2)",
        ),
        ("raise SystemExit(3)", "it fails on import: SystemExit: 3 (plugin_bad.py:1)"),
        ("x = 1", "it states no OCANNL_API; a plugin for this version states OCANNL_API = (1, 1)"),
        (
            "OCANNL_API = (99, 0)",
            "it was written for version 99 of the backend interface, and this is version 1: "
            "update the plugin or ocannl-core",
        ),
        ("OCANNL_API = '1.0'", "its OCANNL_API must be two integers such as (1, 1), and is '1.0'"),
        (
            "OCANNL_API = (1, 0)",
            "it does not implement ocannl_targets, the one hook that every backend needs",
        ),
    ],
)
def test_a_plugin_that_cannot_be_imported_or_used_has_a_reason(
    install: Install, code: str, reason: str
) -> None:
    install("bad", code)
    assert error_of("bad") == reason


HOOKS = """
    from ocannl_core.backend.specs import hookimpl
    from ocannl_core.backend.protocols import TargetReport
    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets():
        return TargetReport(reason="never asked")

    {hook}
"""


def test_an_argument_that_the_specification_lacks_is_named(install: Install) -> None:
    hook = "@hookimpl\n    def ocannl_compile(source, targett): ..."
    install("bad", HOOKS.format(hook=hook))
    assert error_of("bad") == snapshot(
        "it does not follow the hook specifications: hookimpl definition: ocannl_compile(source, targett); Argument(s) {'targett'} are declared in the hookimpl but can not be found in the hookspec"
    )


def test_a_misspelt_hook_is_named(install: Install) -> None:
    install("bad", HOOKS.format(hook="@hookimpl\n    def ocannl_compiel(source, target): ..."))
    assert error_of("bad") == snapshot(
        "it does not follow the hook specifications: unknown hook 'ocannl_compiel'"
    )


def test_functions_of_the_core_are_hooks_under_the_names_of_hooks_alone(install: Install) -> None:
    """A mark belongs to the function, so that every plugin with the function sees it."""
    lines = "from ocannl_core.backend_api.memory import transfer", "{}"
    hook = "\n    ".join(lines)
    install("first", HOOKS.format(hook=hook.format("ocannl_transfer = hookimpl(transfer)")))
    install("second", HOOKS.format(hook=hook.format("helper = transfer")))
    for name in ("first", "second"):
        assert manager.backend(name).name == name


def test_a_hook_without_its_marker_is_named(install: Install) -> None:
    install("bad", HOOKS.format(hook="def ocannl_compile(source, target): ..."))
    assert error_of("bad") == snapshot(
        "ocannl_compile is not marked with @hookimpl, so it would never be called"
    )


def test_a_registered_backend_may_not_take_the_name_of_another(install: Install) -> None:
    install("taken")
    with pytest.raises(UsageError) as caught:
        manager.register("taken", types.ModuleType("mine"))
    assert str(caught.value) == snapshot("""\
A backend must have a name of its own.
  found  'taken' is taken by plugin dist-taken 1.0 (entry point taken = plugin_taken)
  try    register it under another name\
""")


def test_a_backend_that_is_registered_again_names_both_remedies() -> None:
    manager.register("again", types.ModuleType("mine"))
    with pytest.raises(UsageError, match=r"another name, or forget .* backend_api\.refresh\(\)"):
        manager.register("again", types.ModuleType("mine"))


@pytest.mark.parametrize("name", [3, "", "chip:0", "chip@mine"])
def test_a_backend_is_registered_under_a_name_that_contexts_take(name: Any) -> None:
    with pytest.raises(UsageError, match="a text without : and @"):
        manager.register(name, types.ModuleType("mine"))
    assert manager.select("interp")[0].name == "interp"


def test_without_a_request_the_device_of_highest_priority_is_chosen(
    install: Install, only: Only
) -> None:
    install("slow", priority=1)
    install("fast", priority=50)
    install("medium", priority=7)
    only("slow", "fast", "medium")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend, target = manager.select()
    assert (backend.name, str(target)) == ("fast", "fast:0")


def test_falling_back_from_a_better_backend_warns_once_with_the_reason(
    install: Install, only: Only
) -> None:
    install("slow", priority=1)
    install("driverless", UNAVAILABLE)
    only("slow", "driverless")
    with pytest.warns(RuntimeWarning) as caught:
        backend, _ = manager.select()
    assert backend.name == "slow"
    assert [str(each.message) for each in caught] == snapshot(
        [
            "Using backend 'slow': 'driverless' is not available: the driver is missing (try: install it, or not)"
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager.select()


def test_passing_over_a_broken_plugin_warns(install: Install, only: Only) -> None:
    install("slow", priority=1)
    install("broken", "raise ValueError('no luck')")
    only("slow", "broken")
    with pytest.warns(RuntimeWarning, match="'broken' is not considered: it fails on import"):
        manager.select()


def test_a_named_backend_is_never_replaced(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("slow", priority=1)
    install("driverless", UNAVAILABLE)
    only("slow", "driverless")
    monkeypatch.setenv("OCANNL_BACKEND", "driverless")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.select()
    assert str(caught.value) == snapshot("""\
Backend 'driverless' was requested by OCANNL_BACKEND but has no device on this machine.
  found  the driver is missing
  where  plugin dist-driverless 1.0 (entry point driverless = plugin_driverless), loaded
  try    install it,
         or not
         available: slow
         details: ocannl doctor driverless\
""")


def test_an_unknown_backend_is_an_error_that_lists_installed_ones(
    install: Install, only: Only
) -> None:
    install("slow", priority=1)
    only("slow")
    with settings.overrides(backend="slwo"), pytest.raises(BackendNotFoundError) as caught:
        manager.select()
    assert caught.value.rule == snapshot(
        "Backend 'slwo' was requested by overrides(...) but is not installed."
    )
    assert caught.value.fix == snapshot("""\
did you mean slow?
available: slow\
""")


def test_nothing_is_installed_under_a_name_that_was_typed(install: Install, only: Only) -> None:
    install("slow", priority=1)
    only("slow")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("far_away")
    assert caught.value.fix == snapshot("""\
`ocannl backends` lists installed backends
available: slow\
""")


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("interp", "interp"),
        ("cpu_c", "cpu_c"),
        ("CUDA", "cuda"),
        ("cpu", "cpu_c"),
        ("cuda ", "cuda"),
    ],
)
def test_a_backend_of_the_project_is_installed_under_its_own_name(name: str, extra: str) -> None:
    assert manager._installation(name) == f"pip install 'ocannl-core[{extra}]'"


@pytest.mark.parametrize("name", ["nope", "python", "core", "metal"])
def test_names_that_are_not_similar_suggest_no_backend(name: str) -> None:
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend(name)
    assert "did you mean" not in caught.value.fix
    assert "pip install" not in caught.value.fix


def test_the_extra_of_a_backend_has_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = {*project["project"]["optional-dependencies"]} - {"all", "compiler", "mpi", "onnx"}
    own = {each.name for each in manager.backend_entries() if "ocannl-" in str(each)}
    assert extras == own


@hypothesis.settings(max_examples=10)
@hypothesis.given(st.text(min_size=1))
def test_no_other_name_is_ever_one_to_install(name: str) -> None:
    found = manager._installation(name)
    names = ("interp", "cpu_c", "cuda", "opencl", "mpi")
    own = {f"pip install 'ocannl-core[{each}]'" for each in names}
    assert found in {*own, "`ocannl backends` lists installed backends"}


def test_a_device_is_chosen_by_number(install: Install) -> None:
    install("slow", priority=1)
    assert str(manager.select("slow:0")[1]) == "slow:0"
    with pytest.raises(BackendNotFoundError) as caught:
        manager.select("slow:3")
    assert str(caught.value) == snapshot("""\
Backend 'slow:3' was requested but there is no such device.
  found  devices: slow:0
  where  plugin dist-slow 1.0 (entry point slow = plugin_slow), loaded\
""")
    with pytest.raises(UsageError, match="NAME:NUMBER"):
        manager.select("slow:first")


def test_a_disabled_backend_is_neither_chosen_nor_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("unwanted", priority=1000)
    monkeypatch.setenv("OCANNL_DISABLE_PLUGINS", "unwanted")
    assert status_of("unwanted") is Status.DISABLED
    assert "unwanted" not in [each.name for each in manager.load_all()]
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("unwanted")
    assert caught.value.found == snapshot(
        "the settings load_plugins and disable_plugins exclude it"
    )
    assert "plugin_unwanted" not in sys.modules


def test_an_empty_list_of_plugins_loads_none(install: Install, only: Only) -> None:
    install("slow")
    only()
    assert manager.load_all() == ()
    with pytest.raises(BackendNotFoundError) as caught:
        manager.select()
    assert "slow: disabled by the settings" in caught.value.found.splitlines()
    assert caught.value.fix.startswith("change the settings load_plugins and disable_plugins, or ")
