"""No plugin harms another, and an error names the hook, the plugin and its distribution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import CheckOutcome, TargetReport
from ocannl_core.base import settings
from ocannl_core.base.errors import BackendNotFoundError, HookError, OcannlError
from ocannl_core.base.files.directory import warn_of_loss
from ocannl_core.cli import doctor
from ocannl_core.ir.kernels.nodes import FinishedStep, Plan
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.node import MemoryMode
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.loops.pipeline import NamedPass
from tests.core.backend.conftest import WORKING, write_plugin
from tests.core.backend.test_hostile_plugins import Mute, MuteOdd, Odd
from tests.support.faulty_backend import faulty, run

ocannl_interp = pytest.importorskip("ocannl_interp")

Install = Callable[..., Path]
Only = Callable[..., None]


def type_name(value: object) -> str:
    return type(value).__name__


WRONG = (3, None, np.zeros(2), True, lambda: None, Target("faulty"), "text", [3], object())
"""Results that no hook may have, but for None, which is the absence of an answer."""


pytestmark = pytest.mark.usefixtures("fresh_plugins")


def fails(error: type[OcannlError] = HookError) -> str:
    """Return the message of a run of the faulty backend, after a run of another one."""
    with pytest.raises(error) as caught:
        run("faulty")
    assert run("interp") == [9.0, 18.0, 18.0, 36.0]
    return str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no luck"),
        SystemExit("no luck"),
        KeyError("luck"),
        Odd("luck"),
        Mute(),
        MuteOdd(),
    ],
)
@pytest.mark.parametrize(
    "hook",
    [
        "ocannl_passes",
        "ocannl_generate",
        "ocannl_compile",
        "ocannl_resolve_mode",
        "ocannl_allocate",
        "ocannl_transfer",
        "ocannl_synchronize",
    ],
)
def test_a_hook_that_raises_is_named_with_its_plugin(hook: str, error: BaseException) -> None:
    def fail() -> None:
        raise error

    faulty(**{hook: fail})
    message = fails()
    assert f"found  {hook}: it raised {type(error).__name__}: " in message
    assert "where  backend faulty, plugin registered in this process" in message


@pytest.mark.parametrize("hook", ["ocannl_generate", "ocannl_synchronize", "ocannl_targets"])
def test_an_interruption_by_the_user_is_no_fault_of_a_plugin(hook: str) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    faulty(**{hook: fail})
    with pytest.raises(KeyboardInterrupt):
        run("faulty")


@pytest.mark.parametrize("hook", ["ocannl_generate", "ocannl_synchronize", "ocannl_targets"])
def test_a_warning_of_the_core_in_a_hook_is_no_fault_of_a_plugin(hook: str) -> None:
    def fail() -> None:
        warn_of_loss("Compiled code is not kept", Path(hook), OSError("no luck"))

    faulty(**{hook: fail})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="Compiled code is not kept: ocannl_"):
            run("faulty")


def test_a_warning_of_a_plugin_in_a_hook_names_it() -> None:
    def fail() -> None:
        warnings.warn("something is old", DeprecationWarning, stacklevel=1)

    faulty(ocannl_generate=fail)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "ocannl_generate: it raised DeprecationWarning: something is old" in fails()


def test_the_error_of_a_hook_has_the_distribution_and_the_line(install: Install) -> None:
    code = """
        from ocannl_interp import *
        from ocannl_core.backend_api import Target, TargetReport, hookimpl
        OCANNL_API = (1, 0)

        @hookimpl
        def ocannl_targets():
            return TargetReport((Target("faulty"),))

        @hookimpl
        def ocannl_compile(source, target):
            return {}["missing"]
    """
    install("faulty", code, distribution="dist-faulty", version="2.5")
    assert fails() == snapshot("""\
A hook of a plugin works and returns what its specification states.
  found  ocannl_compile: it raised KeyError: 'missing' (plugin_faulty.py:12)
  where  backend faulty, plugin dist-faulty 2.5
  try    this is a defect of the plugin dist-faulty 2.5: report it to its authors\
""")


def test_errors_that_a_hook_raises_on_purpose_are_not_changed() -> None:
    def ocannl_generate() -> None:
        raise oc.CodegenError("This backend has no exponential function.")

    faulty(ocannl_generate=ocannl_generate)
    first, line = fails(oc.CodegenError).splitlines()
    assert first == "This backend has no exponential function."
    assert line.startswith("  where  faulty_backend.py:")


def test_errors_of_the_scheduler_are_not_blamed_on_the_plugin() -> None:
    def schedule() -> Generator[FinishedStep, None, Plan]:
        raise RuntimeError("scheduling went wrong")
        yield

    faulty()
    with pytest.raises(RuntimeError, match="scheduling went wrong"):
        manager.backend("faulty").generate(KernelStream(schedule()), Target("faulty"))


def test_a_search_for_devices_that_raises_is_a_reason(only: Only, install: Install) -> None:
    def ocannl_targets() -> None:
        raise OSError("the bus is on fire")

    install("slow", priority=1)
    faulty(ocannl_targets=ocannl_targets)
    message = fails(BackendNotFoundError)
    assert "found  looking for devices failed: OSError: the bus is on fire" in message


def test_a_failing_search_for_devices_warns_when_another_backend_is_chosen(only: Only) -> None:
    def ocannl_targets() -> None:
        raise OSError("the bus is on fire")

    faulty(ocannl_targets=ocannl_targets)
    only("faulty", "interp")
    with pytest.warns(RuntimeWarning, match="'faulty' is not available: looking for devices fail"):
        assert manager.select()[0].name == "interp"


def test_link_and_launch_that_raise_are_named() -> None:
    class Unlinkable:
        def link(self, buffers: object) -> None:
            raise ZeroDivisionError

    class Unlaunchable:
        def link(self, buffers: object) -> Callable[[object], None]:
            def launch(values: object) -> None:
                raise IndexError("off the end")

            return launch

    faulty(ocannl_compile=lambda: Unlinkable())
    assert "found  Executable.link: it raised ZeroDivisionError" in fails()
    manager.refresh()
    faulty(ocannl_compile=lambda: Unlaunchable())
    message = fails()
    assert "it raised IndexError: off the end (test_plugin_faults.py:" in message
    assert "found  the launcher of " in message


@pytest.mark.parametrize("error", [SystemExit(3), Odd("off the end")], ids=repr)
def test_a_launcher_that_ends_the_process_is_named(error: BaseException) -> None:
    class Ending:
        def link(self, buffers: object) -> Callable[[object], None]:
            def launch(values: object) -> None:
                raise error

            return launch

    faulty(ocannl_compile=lambda: Ending())
    message = fails()
    assert f"found  the launcher of forward: it raised {type(error).__name__}: {error}" in message
    assert "where  backend faulty, plugin registered in this process" in message


class _Handler:
    def __call__(self, *_: object) -> None:
        raise TimeoutError("the program has no more time")

    def end(self, *_: object) -> None:
        sys.exit(3)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (_Handler(), TimeoutError),
        (_Handler().end, SystemExit),
        (partial(_Handler.end, None), SystemExit),
        (lambda *_: _Handler().end(), SystemExit),
    ],
    ids=["object", "method", "partial", "function"],
)
def test_an_exception_of_a_signal_handler_is_no_fault_of_a_plugin(
    handler: Any, error: type[BaseException]
) -> None:
    class Interrupted:
        def link(self, buffers: object) -> Callable[[object], None]:
            return lambda values: signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        faulty(ocannl_compile=lambda: Interrupted())
        with pytest.raises(error):
            run("faulty")
        manager.refresh()
        faulty(ocannl_generate=lambda: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(error):
            run("faulty")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_exception_of_an_enumeration_is_a_fault_of_its_plugin() -> None:
    """Signals without a handler have members of one in its place."""

    def fail() -> None:
        MemoryMode("everywhere")

    faulty(ocannl_generate=fail)
    assert "ocannl_generate: it raised ValueError: 'everywhere' is not a valid" in fails()


def test_a_launcher_that_fails_at_a_later_call_is_named() -> None:
    class Tired:
        def link(self, buffers: object) -> Callable[[object], None]:
            calls: list[object] = []

            def launch(values: object) -> None:
                calls.append(values)
                if len(calls) > 2:
                    raise IndexError("off the end")

            return launch

    faulty(ocannl_compile=lambda: Tired())
    with oc.Session():
        y = oc.tensor([1.0, 2.0]) * 3.0
        step = oc.Context("faulty").compile(oc.train.forward(y))
        step()
        step()
        with pytest.raises(HookError, match=r"the launcher of forward.*: it raised IndexError"):
            step()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (lambda source: source.missing, "it raised AttributeError"),
        (lambda source: 7, "it must be a text, and is 7"),
    ],
    ids=["raises", "number"],
)
def test_the_text_of_a_source_that_fails_when_it_is_read_is_named(
    text: Callable[[Any], object], found: str
) -> None:
    class Late:
        language = "late"

        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        @property
        def text(self) -> object:
            return text(self)

    faulty(ocannl_generate=lambda kernels: Late(kernels.plan()))
    with oc.Session():
        step = oc.Context("faulty").compile(oc.train.forward(oc.tensor([1.0, 2.0]) * 3.0))
        with pytest.raises(HookError, match=f"text of a Source: {found}") as caught:
            print(step.source)
    assert "backend faulty" in str(caught.value)


@pytest.mark.parametrize("answer", WRONG, ids=type_name)
@pytest.mark.parametrize(
    ("hook", "accepted"),
    [
        ("ocannl_passes", (type(None),)),
        ("ocannl_generate", ()),
        ("ocannl_compile", ()),
        ("ocannl_resolve_mode", (type(None),)),
        ("ocannl_allocate", ()),
        ("ocannl_transfer", ()),
        ("ocannl_synchronize", (type(None), bool)),
    ],
)
def test_a_hook_that_returns_a_wrong_type_is_named(
    hook: str, accepted: tuple[type, ...], answer: object
) -> None:
    faulty(**{hook: lambda: answer})
    if isinstance(answer, accepted):
        assert run("faulty") == [9.0, 18.0, 18.0, 36.0]
    elif answer is None:
        assert hook in fails(OcannlError) or hook == "ocannl_transfer"
    else:
        assert f"found  {hook}: " in fails()


@pytest.mark.parametrize("answer", WRONG, ids=type_name)
def test_an_answer_that_is_no_report_leaves_the_backend_without_devices(
    answer: object, only: Only
) -> None:
    faulty(ocannl_targets=lambda: answer)
    assert "found  ocannl_targets must return a TargetReport" in fails(BackendNotFoundError)
    only("faulty", "interp")
    with pytest.warns(RuntimeWarning, match="'faulty' is not available: ocannl_targets must"):
        assert manager.select()[0].name == "interp"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (TargetReport(Target("faulty")), "TargetReport.targets must be a tuple"),  # type: ignore[arg-type]
        (TargetReport((3,)), "TargetReport.targets must hold objects of type Target"),  # type: ignore[arg-type]
        (TargetReport((), 3), "TargetReport.reason must be of type str, and is 3"),  # type: ignore[arg-type]
        (TargetReport(reason="none", details="a text"), "TargetReport.details must be a tuple"),  # type: ignore[arg-type]
        (TargetReport((Target("faulty", priority="high"),)), "Target.priority must be of type int"),  # type: ignore[arg-type]
        (TargetReport((Target("faulty", priority=True),)), "Target.priority must be of type int"),
        (TargetReport((Target("faulty", "0"),)), "Target.device must be of type int, and is '0'"),  # type: ignore[arg-type]
        (TargetReport((Target("faulty", has_fma=1),)), "Target.has_fma must be of type bool"),  # type: ignore[arg-type]
        (TargetReport((Target("faulty", cores=0),)), "Target.cores must be at least 1, and is 0"),
        (
            TargetReport((Target("faulty", cache_bytes=(9, -1)),)),
            "Target.cache_bytes must be at least 0, and is (9, -1)",
        ),
        (
            TargetReport((Target("faulty", vector_bytes=32),)),
            "Target.vector_registers must be at least 1 beside vector_bytes=32, and is 0",
        ),
        (
            TargetReport((Target("faulty", thread_blocks=1024),)),  # type: ignore[arg-type]
            "Target.thread_blocks must be ThreadBlocks or None, and is 1024",
        ),
        (
            TargetReport((Target("faulty", thread_blocks=ThreadBlocks(64, processors=0)),)),
            "Target.thread_blocks.processors must be at least 1, and is 0",
        ),
        (TargetReport((Target("other"),)), "it reports devices of another backend: other:0"),
        (TargetReport((Target("faulty"), Target("faulty"))), "it reports several devices of one"),
        (TargetReport(), "it reports no device and no reason"),
    ],
)
def test_a_report_with_wrong_content_is_refused(report: TargetReport, reason: str) -> None:
    faulty(ocannl_targets=lambda: report)
    assert f"found  {reason}" in fails(BackendNotFoundError)


@pytest.mark.parametrize("launcher", [3, None, True, np.zeros(2), "text"], ids=type_name)
def test_a_launcher_that_is_no_function_is_refused(launcher: object) -> None:
    class Odd:
        def link(self, buffers: object) -> object:
            return launcher

    faulty(ocannl_compile=lambda: Odd())
    assert "found  Executable.link: it must return a function of the static indices" in fails()


def test_memory_for_something_else_is_refused() -> None:
    def ocannl_allocate(info: Any, target: Any) -> Any:
        return ocannl_interp.ocannl_allocate(info, Target("other"))

    faulty(ocannl_allocate=ocannl_allocate)
    assert (
        "found  ocannl_allocate: target.backend of the buffer must be 'faulty', and is 'other'"
    ) in fails()


def test_memory_of_other_extents_is_named_with_the_part_that_differs() -> None:
    def ocannl_allocate(info: Any, target: Any) -> Any:
        return ocannl_interp.ocannl_allocate(replace(info, dims=(1, *info.dims)), target)

    faulty(ocannl_allocate=ocannl_allocate)
    assert "info.dims of the buffer must be (2,), and is (1, 2)" in fails()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda program: None, "it must return a LoopProgram, and returned None"),
        (lambda program: program.params[99], "it raised IndexError: tuple index out of range"),
        (
            lambda program: type(program)(program.name, (), (), program.nodes, program.body),
            "its result is no valid program: ",
        ),
    ],
)
def test_a_pass_that_fails_is_named(change: Callable[[Any], Any], found: str) -> None:
    faulty(ocannl_passes=lambda: [NamedPass("mend", change)])
    assert f"found  ocannl_passes, pass 'mend': {found}" in fails()


@pytest.mark.parametrize("source", [3, "text", object()], ids=type_name)
def test_a_wrong_class_of_sources_only_switches_the_cache_off(source: object) -> None:
    faulty()
    manager.backend("faulty").manager.get_plugin("faulty").OCANNL_SOURCE = source
    assert run("faulty") == [9.0, 18.0, 18.0, 36.0]


def test_an_import_that_hangs_ends_at_the_time_limit(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("hangs", "import time\ntime.sleep(600)")
    install("works", priority=1)
    only("hangs", "works")
    monkeypatch.setenv("OCANNL_PLUGIN_TIMEOUT", "0.05")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("hangs")
    assert caught.value.found == snapshot(
        "it hangs on import: not finished after 0.05 s (plugin_hangs.py:2); the limit is the setting plugin_timeout"
    )
    assert [each.name for each in manager.load_all()] == ["works"]


def test_an_import_that_catches_the_interruption_is_interrupted_again(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    only("hangs")
    monkeypatch.setattr("ocannl_core.backend.time_limit._AGAIN", 0.05)
    stubborn = "import time\ntry:\n    time.sleep(600)\nexcept BaseException:\n    time.sleep(600)"
    install("hangs", stubborn)
    monkeypatch.setenv("OCANNL_PLUGIN_TIMEOUT", "0.05")
    with pytest.raises(BackendNotFoundError, match="it hangs on import"):
        manager.backend("hangs")


def test_an_import_that_hangs_in_another_thread_is_left_behind(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("hangs", "import time\ntime.sleep(5)")
    only("hangs")  # the error lists the others, whose imports would end at the limit, too
    monkeypatch.setenv("OCANNL_PLUGIN_TIMEOUT", "0.05")
    errors: list[BackendNotFoundError] = []

    def use() -> None:
        try:
            manager.backend("hangs")
        except BackendNotFoundError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert [error.found.split(":")[0] for error in errors] == ["it hangs on import"]


def test_a_search_for_devices_that_hangs_ends_at_the_time_limit_and_is_not_repeated(
    only: Only,
) -> None:
    import time

    searches = []

    def hang() -> None:
        searches.append(settings.current().plugin_timeout)
        time.sleep(600)

    only("faulty", "interp")  # which the error lists
    assert run("interp") == [9.0, 18.0, 18.0, 36.0]
    faulty(ocannl_targets=hang)
    for limit in (0.2, 0.2, 0.3):
        with (
            settings.overrides(plugin_timeout=limit),
            pytest.raises(BackendNotFoundError) as caught,
        ):
            run("faulty")
        found = caught.value.found
        assert found.startswith(f"looking for devices hangs: not finished after {limit} s (")
        assert run("interp") == [9.0, 18.0, 18.0, 36.0]
    assert searches == [0.2, 0.3]


@pytest.mark.parametrize("value", ["3", "None", "True", "lambda: None", "'text'"])
def test_an_entry_point_to_something_else_is_broken(install: Install, value: str) -> None:
    folder = install("odd", f"plugin = {value}")
    (entries,) = folder.glob("*/entry_points.txt")
    entries.write_text("[ocannl.backends]\nodd = plugin_odd:plugin\n")
    manager.refresh()
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("odd")
    assert caught.value.found.startswith("it states no OCANNL_API")


def test_a_plugin_whose_attributes_cannot_be_read_is_broken() -> None:
    class Hostile:
        OCANNL_API = (1, 0)

        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    manager.register("hostile", Hostile())
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("hostile")
    assert "it cannot be registered: RuntimeError" in caught.value.found


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        (
            "(1, 9)",
            "it needs version 1.9 of the backend interface, and this is version 1.1: update",
        ),
        ("(0, 1)", "it was written for version 0 of the backend interface, and this is version 1"),
        ("(True, 0)", "its OCANNL_API must be two integers such as (1, 1), and is (True, 0)"),
        ("(1,)", "its OCANNL_API must be two integers such as (1, 1), and is (1,)"),
        ("(1, -1)", "its OCANNL_API must be two integers such as (1, 1), and is (1, -1)"),
        ("1.0", "its OCANNL_API must be two integers such as (1, 1), and is 1.0"),
    ],
)
def test_a_plugin_for_another_version_of_the_interface_is_broken(
    install: Install, stated: str, reason: str
) -> None:
    install("other", f"OCANNL_API = {stated}")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("other")
    assert caught.value.found.startswith(reason)


@pytest.mark.parametrize("value", ["3", "None", "[]"])
def test_a_hook_that_is_no_function_is_named(install: Install, value: str) -> None:
    install("odd", f"OCANNL_API = (1, 0)\nocannl_targets = {value}")
    with pytest.raises(BackendNotFoundError) as caught:
        manager.backend("odd")
    assert "ocannl_targets" in caught.value.found


HALF = """
    from ocannl_core.backend_api import Target, TargetReport, hookimpl
    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets():
        return TargetReport((Target("half", priority=1000),))
"""


def test_a_backend_that_cannot_run_programs_is_not_the_default(
    install: Install, only: Only
) -> None:
    install("half", HALF)
    only("half", "interp")
    with pytest.warns(RuntimeWarning) as caught:
        assert manager.select()[0].name == "interp"
    assert [str(each.message) for each in caught] == snapshot(
        [
            "Using backend 'interp': 'half' is not available: it has devices and does not implement ocannl_generate, ocannl_compile, ocannl_allocate, ocannl_transfer"
        ]
    )
    only("half")
    with pytest.raises(BackendNotFoundError) as error:
        manager.select()
    assert error.value.found.startswith("half: it has devices and does not implement")


def test_of_two_plugins_of_one_name_the_first_on_the_path_is_used_and_both_are_named(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("twin", distribution="dist-two", module="twin_two")
    earlier = tmp_path / "earlier"
    write_plugin(
        earlier, "twin", WORKING.format(name="twin", priority=0), distribution="dist-zero",
        module="twin_zero", version="2.0",
    )  # fmt: skip
    monkeypatch.syspath_prepend(str(earlier))
    manager.refresh()
    with pytest.warns(RuntimeWarning) as caught:
        assert manager.backend("twin").distribution == "dist-zero"
    assert [str(each.message) for each in caught] == snapshot(
        [
            "Backend 'twin': plugin dist-zero 2.0 (entry point twin = twin_zero) is used; not used, for it has the same name: plugin dist-two 1.0 (entry point twin = twin_two). Uninstall all but one, or choose one as twin@DISTRIBUTION"
        ]
    )
    assert "twin_two" not in sys.modules
    sys.modules.pop("twin_zero")


def test_two_plugins_of_one_name_are_an_error_under_strict_plugins(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("twin", distribution="dist-one", module="twin_one")
    install("twin", distribution="dist-two", module="twin_two")
    only("twin")
    monkeypatch.setenv("OCANNL_STRICT_PLUGINS", "1")
    with pytest.raises(BackendNotFoundError, match=r"dist-one.*\n?.*dist-two"):
        manager.load_all()


def test_an_unknown_name_among_the_plugins_to_load_warns(
    install: Install, only: Only, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("slow", priority=1)
    only("slow", "slwo", "fast")
    with pytest.warns(RuntimeWarning) as caught:
        assert manager.select()[0].name == "slow"
    assert [str(each.message) for each in caught] == snapshot(
        [
            "load_plugins, set by OCANNL_LOAD_PLUGINS, names plugins that are not installed: 'slwo', 'fast'; did you mean slow?"
        ]
    )
    monkeypatch.setenv("OCANNL_STRICT_PLUGINS", "1")
    with pytest.raises(BackendNotFoundError) as error:
        manager.select()
    assert error.value.found == "'slwo', 'fast'"
    assert "pip install" not in str(error.value)


PRINTS = """
    import os, sys
    print("hello from print")
    os.write(1, b"hello from a library\\n")
    sys.stdout.write("hello from stdout\\n")
    from ocannl_core.backend_api import TargetReport, hookimpl
    OCANNL_API = (1, 0)

    @hookimpl
    def ocannl_targets():
        print("still printing")
        return TargetReport(reason="it only prints")
"""


def test_the_list_of_backends_stays_json_when_a_plugin_prints(tmp_path: Path) -> None:
    write_plugin(tmp_path / "site", "prints", PRINTS)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "ocannl_core.cli", "backends", "--json"],
        env={**os.environ, "PYTHONPATH": path, "OCANNL_LOAD_PLUGINS": "prints,interp"},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["prints"]["reason"] == "it only prints"
    assert rows["interp"]["status"] == "available"
    for text in ("hello from print", "hello from a library", "still printing"):
        assert text in done.stderr


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        ("lambda: [Check('a chip', 'OK')]", "Checks have a CheckOutcome, and one is"),
        ("lambda: ['a chip']", "Checks have a CheckOutcome, and one is 'a chip'"),
        ("lambda: [Check('a chip', CheckOutcome.OK, found=3)]", "AttributeError"),
        ("lambda: 3", "TypeError"),
    ],
    ids=str,
)
def test_wrong_checks_of_a_plugin_are_a_failed_check(
    install: Install, checks: str, reason: str
) -> None:
    code = f"from ocannl_core.backend_api import Check, CheckOutcome\nchecks = {checks}\n"
    install("chip", code, attribute="checks", group="ocannl.checks")
    found = list(doctor.checks("chip"))
    assert [each.outcome for each in found] == [CheckOutcome.FAIL]
    assert reason in found[0].found
    assert "dist-chip" in found[0].what
