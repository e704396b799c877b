"""The devices that tests of all backends run on."""

from __future__ import annotations

from functools import cache

import pytest

from ocannl_core.backend import manager
from ocannl_core.ir.target import Target
from tests.support.slow import slow


def parametrize_targets(metafunc: pytest.Metafunc) -> None:
    """Give a test with the fixture `target` every device, as `NAME:DEVICE`.

    Drivers of devices with thread blocks take long to compile a kernel; those take part with the
    option `--all-devices`. The tests of their plugins cover the conformance suite and schedules.

    Beside another device, tests on the interpreter are slow ones, except for conformance.
    """
    if "target" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--all-devices")
    found = [target for target in _targets() if every or target.thread_blocks is None]
    interpreted = [str(target) for target in found if target.backend == "interp"]
    others = [str(target) for target in found if target.backend != "interp"]
    if others and "conformance" not in metafunc.module.__name__:
        metafunc.parametrize("target", [*others, *slow(interpreted)])
    else:
        metafunc.parametrize("target", [*others, *interpreted])


@cache
def _targets() -> tuple[Target, ...]:
    """Return the devices of all backends: asking for them takes milliseconds."""
    return tuple(target for backend in manager.load_all() for target in backend.targets().targets)
