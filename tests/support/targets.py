"""The devices that tests of all backends run on."""

from __future__ import annotations

import pytest

from ocannl_core.backend import manager


def parametrize_targets(metafunc: pytest.Metafunc) -> None:
    """Give a test with the fixture `target` every device, as `NAME:DEVICE`.

    Drivers of devices with thread blocks take long to compile a kernel; those take part with the
    option `--all-devices`. The tests of their plugins cover the conformance suite and schedules.
    """
    if "target" not in metafunc.fixturenames:
        return
    every = metafunc.config.getoption("--all-devices")
    found = [
        str(target)
        for backend in manager.load_all()
        for target in backend.targets().targets
        if every or target.thread_blocks is None
    ]
    metafunc.parametrize("target", found)
