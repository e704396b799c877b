"""Options of pytest, and profiles of Hypothesis: equal examples in every run, new ones on request.

`HYPOTHESIS_PROFILE=explore make test` draws new examples; its failures are defects like any other.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# a fresh cache in most tests would check the compiler again; those of the check switch it on
os.environ.setdefault("OCANNL_CHECK_COMPILER", "false")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-devices",
        action="store_true",
        help="run the tests of all backends on devices with thread blocks, too",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of cycles off the modules and the collected tests, which all stay: it
    would visit millions of objects in each run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, *gc.get_threshold()[1:])
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start slow tests before the others, or one process would run the last of them alone."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Keep the collector off the objects that a module leaves, such as caches and reports."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
