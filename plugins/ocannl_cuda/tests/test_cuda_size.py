"""The table of the plugin's size."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
PACKAGE = FOLDER / "src" / "ocannl_cuda"
ROW = re.compile(r"^\| ((?:`[\w.]+` ?)+)\| (\d+) \|", re.MULTILINE)
SUFFIXES = {".py", ".c", ".cpp", ".hpp"}


def lines_of(path: Path) -> int:
    """Return the lines that are not empty of a file, or of the files of a folder."""
    if path.is_dir():
        return sum(lines_of(each) for each in path.iterdir() if each.suffix in SUFFIXES)
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def test_the_readme_states_the_lines_of_every_module() -> None:
    rows = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    listed: list[str] = []
    for names, stated in rows:
        parts = re.findall(r"`([\w.]+)`", names)
        listed += parts
        lines = sum(lines_of(PACKAGE / name) for name in parts)
        assert abs(lines - int(stated)) <= max(0.1 * lines, 20), (names, lines)
    modules = {path.name for path in PACKAGE.glob("*.py")}
    modules |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(listed) == sorted(modules)
