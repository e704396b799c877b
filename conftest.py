"""Options of pytest, and profiles of Hypothesis: equal examples in every run, new ones on request.

`HYPOTHESIS_PROFILE=explore make test` draws new examples; its failures are defects like any other.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.compile import saved_code
from tests.support.combinations import mark_combinations, mark_interpreted
from tests.support.isolation import ROOT, WrittenFiles, environment_of, take_measurements
from tests.support.processor_times import ProcessorTimes

# a fresh cache in most tests would check the compiler again; those of the check switch it on
os.environ.setdefault(
    "OCANNL_CPU_C__CHECK_COMPILER", os.environ.pop("OCANNL_CHECK_COMPILER", "false")
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-devices",
        action="store_true",
        help="run the tests of all backends on devices with thread blocks, too",
    )
    parser.addoption(
        "--kept-cache",
        type=Path,
        metavar="DIRECTORY",
        help="keep compiled kernels in a directory, for the next run; by default they are in a "
        "temporary one, which the workers of a run share",
    )
    parser.addoption(
        "--processor-times",
        type=int,
        default=0,
        metavar="N",
        help="list the N tests with the longest processor times, and the time of every folder",
    )


_WRITTEN = pytest.StashKey[WrittenFiles]()
_saved_form = saved_code._form


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests off the user's files; see `tests.support.isolation`."""
    if not hasattr(config, "workerinput"):
        kept = config.getoption("--kept-cache")
        if kept is None:
            directory = Path(tempfile.mkdtemp(prefix="ocannl-tests-"))
            atexit.register(_remove, directory, os.getpid())
        else:
            directory = kept.absolute()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.update(environment_of(directory))
    own = Path(os.environ["HOME"]).parent
    written = config.stash[_WRITTEN] = WrittenFiles(ROOT, own, Path(tempfile.gettempdir()))
    written.watch()
    config.pluginmanager.register(ProcessorTimes(config.getoption("--processor-times")))
    # each test compiles its programs itself; those of the fixture `saved_routines` read saved ones
    saved_code._form = lambda backend: None


def _remove(directory: Path, process: int) -> None:
    """Remove the directories of a run, after plugins have removed what they keep until the end."""
    if os.getpid() == process:  # not in forked children
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_session() -> Iterator[None]:
    """Give each test a session, so that the numbers that it draws depend on no earlier test."""
    with oc.Session():
        yield


@pytest.fixture
def fresh_plugins() -> Iterator[None]:
    """Forget the backends that a test registers."""
    manager.refresh()
    yield
    manager.refresh()


@pytest.fixture
def written_files(request: pytest.FixtureRequest) -> WrittenFiles:
    """The files that tests of this process have written outside of temporary directories."""
    return request.config.stash[_WRITTEN]


@pytest.fixture
def saved_routines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the code of routines on disk, and read it, as programs do."""
    monkeypatch.setattr(saved_code, "_form", _saved_form)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `tests/slow.txt`, which `make test` leaves out, the slow ones of
    `tests/long.txt`, which `make test-slow` leaves out, too, combinations of functions of
    `tests/combined.txt`, and tests on the interpreter.
    """
    slow, long, combined = (
        frozenset((ROOT / "tests" / name).read_text(encoding="utf-8").splitlines())
        for name in ("slow.txt", "long.txt", "combined.txt")
    )
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in slow:
            item.add_marker(pytest.mark.slow)
    mark_combinations(items, combined, long)
    mark_interpreted(items, slow)
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in long - combined and item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.long)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Fail a test that has written outside of temporary directories. Keep the collector off the
    objects that a module leaves, such as caches and reports.
    """
    result = yield
    outside = item.config.stash[_WRITTEN].take()
    if outside:
        pytest.fail(f"tests write to temporary directories only, not to {outside}", pytrace=False)
    measured = take_measurements()
    if measured:
        pytest.fail(
            f"a test that tunes has a cache of its own, settings.overrides(cache_dir=...): "
            f"{measured} would change programs of other tests",
            pytrace=False,
        )
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


settings.register_profile("steady", max_examples=30, derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
