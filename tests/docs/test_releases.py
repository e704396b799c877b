"""One statement of the version in which old names stop working."""

from __future__ import annotations

import re
from pathlib import Path

from ocannl_core.base.version import GONE, __version__

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "releases.md"
STATED = re.compile(r"(?:[Uu]ntil|gone in)\s+(?:version\s+)?(\d+\.\d+)\b")


def texts() -> list[Path]:
    folders = ("docs", "ocannl_core", "plugins")
    found = [path for each in folders for path in (ROOT / each).rglob("*.md")]
    found += [path for each in folders for path in (ROOT / each).rglob("*.py")]
    return [*found, ROOT / "CHANGELOG.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_every_text_states_the_same_version() -> None:
    stated = {
        path.relative_to(ROOT).as_posix(): set(found)
        for path in texts()
        if (found := STATED.findall(path.read_text("utf-8")))
    }
    assert {name for name, found in stated.items() if found != {GONE}} == set()
    assert "docs/reference/releases.md" in stated
    assert "docs/reference/settings.md" in stated


def test_the_time_is_one_more_minor_version() -> None:
    major, minor = map(int, __version__.split(".")[:2])
    assert f"{major}.{minor + 2}" == GONE
    text = PAGE.read_text("utf-8")
    assert (
        f"replaced in {major}.{minor}, it works in {major}.{minor} and {major}.{minor + 1}" in text
    )


def test_the_version_is_written_into_no_other_module() -> None:
    literal = re.compile(rf"""version {re.escape(GONE)}\b|["']{re.escape(GONE)}["']""")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ocannl_core").rglob("*.py")
        if literal.search(path.read_text("utf-8"))
    ]
    assert found == ["ocannl_core/base/version.py"]
