"""Error messages of programs, with source lines as a user would get them."""

from __future__ import annotations

import linecache

from ocannl_core.base.errors import ShapeError, SpecError

_FILE = "program.py"


def run(text: str) -> None:
    """Run a program whose lines messages show as those of program.py."""
    text = "import ocannl_core as oc\n" + text
    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    try:
        exec(compile(text, _FILE, "exec"), {})
    finally:
        linecache.cache.pop(_FILE, None)


def complaint(text: str) -> str:
    """Return the message of the error of shapes that a program raises.

    Raises:
        AssertionError: if it raises none.
    """
    try:
        run(text)
    except (ShapeError, SpecError) as error:
        return str(error)
    raise AssertionError(f"this program raises no error of shapes:\n{text}")
