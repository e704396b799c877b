"""Wrapper plugins: they see the calls of every backend, and are named if they meddle."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.backend import manager
from ocannl_core.backend.manager import Status
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, HookError
from tests.support.faulty_backend import faulty, run

Install = Callable[..., Path]

WRAPPER = """
    from ocannl_core.backend_api import hookimpl
    OCANNL_API = (1, 0)
    {state}

    @hookimpl(wrapper=True)
    def {hook}({parameters}):
{body}
"""


def wrap(install: Install, hook: str, body: str, parameters: str = "", state: str = "") -> None:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    code = WRAPPER.format(hook=hook, body=lines, parameters=parameters, state=state)
    install("meddler", code, group="ocannl.wrappers", distribution="dist-meddler")
    faulty()


@pytest.mark.parametrize(
    ("hook", "body", "found"),
    [
        ("ocannl_generate", "yield", "it returned None in the place of "),
        ("ocannl_allocate", "yield\nreturn 3", "it returned 3 in the place of "),
        ("ocannl_compile", "raise ValueError('early')\nyield", "it raised ValueError: early"),
        ("ocannl_transfer", "yield\nraise ValueError('late')", "it raised ValueError: late"),
        ("ocannl_synchronize", "return (yield)\nyield", ""),
        ("ocannl_synchronize", "result = yield\nyield\nreturn result", "it has a second yield"),
        ("ocannl_generate", "if 0: yield", "it ended before its yield, so no plugin would run"),
        ("ocannl_passes", "result = yield\nresult.append([])\nreturn result", "it changed the res"),
        ("ocannl_resolve_mode", "yield\nraise SystemExit(3)", "it raised SystemExit: 3"),
    ],
)
def test_a_wrapper_that_meddles_is_named_and_not_the_backend(
    install: Install, hook: str, body: str, found: str
) -> None:
    wrap(install, hook, body)
    if not found:
        assert run("faulty") == [9.0, 18.0, 18.0, 36.0]
        return
    with pytest.raises(HookError) as caught:
        run("faulty")
    assert caught.value.found.startswith(f"{hook}: {found}")
    assert caught.value.where == snapshot(
        "wrapper meddler, plugin dist-meddler 1.0 (entry point meddler = plugin_meddler)"
    )
    assert "OCANNL_DISABLE_PLUGINS=meddler leaves it out" in caught.value.fix
    with settings.overrides(disable_plugins=("meddler",)):
        manager.refresh()
        assert run("interp") == [9.0, 18.0, 18.0, 36.0]


def test_a_wrapper_of_the_search_for_devices_is_named(install: Install) -> None:
    wrap(install, "ocannl_targets", "yield\nreturn None")
    with pytest.raises(BackendNotFoundError) as caught:
        run("faulty")
    assert "looking for devices failed: ocannl_targets: it returned None" in caught.value.found
    assert "OCANNL_DISABLE_PLUGINS=meddler leaves it out" in caught.value.fix


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (
            "try:\n    yield\nexcept ValueError:\n    pass",
            "it swallowed an error: it returned None",
        ),
        (
            "try:\n    yield\nexcept ValueError:\n    raise OSError from None",
            "it raised OSError in",
        ),
    ],
)
def test_a_wrapper_that_swallows_or_replaces_an_error_is_named(
    install: Install, body: str, found: str
) -> None:
    wrap(install, "ocannl_compile", body)

    def fail() -> None:
        raise ValueError("no luck")

    manager.refresh()
    faulty(ocannl_compile=fail)
    with pytest.raises(HookError) as caught:
        run("faulty")
    assert caught.value.found.startswith(f"ocannl_compile: {found}")
    assert "ValueError: no luck" in caught.value.found
    assert caught.value.where.startswith("wrapper meddler")


def test_a_wrapper_that_lets_an_error_through_does_not_hide_the_backend(install: Install) -> None:
    wrap(install, "ocannl_compile", "try:\n    return (yield)\nfinally:\n    seen.append(1)",
         state="seen = []")  # fmt: skip

    def fail() -> None:
        raise ValueError("no luck")

    manager.refresh()
    faulty(ocannl_compile=fail)
    with pytest.raises(HookError) as caught:
        run("faulty")
    assert caught.value.where.startswith("backend faulty")
    assert sys.modules["plugin_meddler"].seen == [1]


def test_an_old_style_wrapper_is_not_used(install: Install) -> None:
    code = """
        from ocannl_core.backend_api import hookimpl
        OCANNL_API = (1, 0)

        @hookimpl(hookwrapper=True)
        def ocannl_compile():
            outcome = yield
            outcome.force_result(3)
    """
    install("old", code, group="ocannl.wrappers")
    faulty()
    with pytest.warns(RuntimeWarning, match=r"must be marked with hookimpl\(wrapper=True\)"):
        assert run("faulty") == [9.0, 18.0, 18.0, 36.0]


def test_results_pass_through_wrappers_unchanged(install: Install) -> None:
    body = "seen.append(destination)\nreturn (yield)"
    wrap(install, "ocannl_transfer", body, "destination", "seen = []")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run("faulty") == [9.0, 18.0, 18.0, 36.0]
    assert len(sys.modules["plugin_meddler"].seen) > 0
    assert [entry.status for entry in manager.wrapper_entries()] == [Status.LOADED]
