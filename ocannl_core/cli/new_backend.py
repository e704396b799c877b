"""`ocannl new-backend`: writes a distribution with a small backend and its tests.

    ocannl new-backend my_chip                 writes ocannl-my_chip in the working directory
    ocannl new-backend my_chip --into DIR      writes it there
    ocannl new-backend my_chip --language python    prints another language than C

The backend works as it is written: it compiles C, or prints and runs Python with a printer of its
own. Its author replaces one part after the other.
"""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path

from ocannl_core.backend.protocols import BACKEND_API
from ocannl_core.backend.registry import backend_entries
from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.new_files import write_new
from ocannl_core.base.version import __version__

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {
    "pyproject.toml": "pyproject.toml.in",
    ".github/workflows/check.yml": "check.yml.in",
    "tests/test_conformance.py": "test_conformance.py.in",
    "tests/test_training.py": "test_training.py.in",
}
_FILES_OF = {
    "c": {"README.md": "README.md.in", "src/ocannl_@NAME@/__init__.py": "backend.py.in"},
    "python": {
        "README.md": "README_python.md.in",
        "src/ocannl_@NAME@/__init__.py": "backend_python.py.in",
        "src/ocannl_@NAME@/printer.py": "printer.py.in",
    },
}
"""The files that depend on the language of the new backend."""
_TAKEN = ("COMPILER", "LANGUAGE", "OPERATORS")
"""Constants of the templates, which the device has no name of."""


HELP = "write an installable backend, with tests, to start from"
DESCRIPTION = (
    "Writes a distribution with a backend that compiles C, or prints and runs "
    "Python, and its tests. It works as it is; replace one part after the other."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("name", help="the name of the backend, an identifier in lower case")
    command.add_argument(
        "--into", metavar="DIR", help="the new directory; by default ocannl-NAME, here"
    )
    command.add_argument(
        "--language",
        choices=tuple(_FILES_OF),
        default="c",
        help="c (default) renders C; python has a printer, for languages outside the C family",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files; return 0."""
    name = arguments.name
    if taken := [str(each) for each in backend_entries() if each.name == name]:
        raise UsageError(
            "The name of a backend is not that of an installed one, whose distribution the new one "
            "would replace.",
            found=f"{name}: {taken[0]}",
            fix="choose another name",
        )
    folder = Path(arguments.into or f"ocannl-{name}")
    write_backend(name, folder, arguments.language)
    print(f"wrote {folder}; next:")
    print(f"  pip install --editable '{folder}[test]'")
    print(f"  ocannl check-backend {name}")
    return 0


def write_backend(name: str, folder: Path, language: str = "c") -> None:
    """Write the distribution of a new backend, which generates a language, into a new directory.

    Raises:
        UsageError: if the name is no identifier or the core's, or the directory exists or cannot be
            made.
    """
    is_name = name.isascii() and name.isidentifier() and name == name.lower()
    if not is_name or name.endswith("_"):  # with which names of distributions do not end
        raise UsageError(
            "The name of a backend is an identifier in lower case that ends in no underscore.",
            found=repr(name),
            fix="use letters, digits and underscores, such as my_chip",
        )
    if name == "core":
        raise UsageError(
            "The name of a backend is its own; `core` names the core.", found=repr(name)
        )
    if keyword.iskeyword(name):
        raise UsageError("The name of a backend is no keyword of Python.", found=repr(name))
    try:
        folder.mkdir(parents=True)
        for path, template in {**_FILES, **_FILES_OF[language]}.items():
            file = folder / path.replace("@NAME@", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_new(file, _text(template, name))
    except OSError as error:
        raise UsageError(
            "A new backend is written into a directory that does not exist yet.",
            found=str(error),
            fix="choose another directory with --into",
        ) from error


def backend_text(name: str) -> str:
    """Return the module of a new backend."""
    return _text("backend.py.in", name)


def _text(template: str, name: str) -> str:
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    major, minor, *_ = __version__.split(".")
    versions = f"ocannl-core>={major}.{minor},<{major}.{int(minor) + 1}"
    class_name = "".join(part.capitalize() for part in name.split("_"))
    device = name.upper() if name.upper() not in _TAKEN else f"{name.upper()}_DEVICE"
    marks = {"NAME": name, "CLASS": class_name, "DEVICE": device, "CORE": versions}
    marks["API"] = str(BACKEND_API)
    for mark, value in marks.items():
        text = text.replace(f"@{mark}@", value)
    return text
