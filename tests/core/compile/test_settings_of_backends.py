"""Settings of a backend are part of the keys of caches if generated code may depend on them."""

from __future__ import annotations

import pytest

from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.compile.relevant_settings import relevant_settings
from ocannl_core.compile.saved_code import _circumstances
from ocannl_core.ir.target import Target
from ocannl_core.schedule.tuning.tuning_cache import device_kind


@pytest.fixture
def target() -> Target:
    return manager.select("cpu_c")[1]


def keys(target: Target) -> tuple[object, str, str]:
    return relevant_settings(target.backend), _circumstances(target), device_kind(target)


def test_settings_that_affect_code_change_every_key(target: Target) -> None:
    before = keys(target)
    with settings.overrides(cpu_c__arch="x86-64-v2"):
        after = keys(target)
    assert all(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("change", [{"cpu_c__check_compiler": True}, {"cuda__compiler": "nvrtc"}])
def test_other_settings_change_none(target: Target, change: dict[str, object]) -> None:
    with settings.overrides(cpu_c__check_compiler=False):
        before = keys(target)
    with settings.overrides(**change):
        assert keys(target) == before
