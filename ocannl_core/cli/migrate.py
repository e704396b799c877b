"""`ocannl migrate`: rewrites programs to the names of this version.

ocannl migrate train.py models/                   rewrites files, and all of a folder
ocannl migrate --check .                          1 if a file has old names; writes nothing
ocannl migrate --diff train.py                    shows the changes; writes nothing
"""

from __future__ import annotations

import argparse
import difflib
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.new_files import replacement
from ocannl_core.cli.rewriting import rewrite

HELP = "rewrite programs to the names of this version"
DESCRIPTION = (
    "Rewrites names of earlier versions in Python programs. Comments, strings, formatting and "
    "names of other libraries stay. Prints the places that a person has to rewrite."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("paths", nargs="+", metavar="PATH", help="a program, or a folder of them")
    command.add_argument(
        "--check", action="store_true", help="write nothing; 1 if a file would change"
    )
    command.add_argument("--diff", action="store_true", help="write nothing; print the changes")


def run(arguments: argparse.Namespace) -> int:
    """Rewrite files; return 1 if one cannot be read, or, with `--check`, would change."""
    failed = changed = 0
    for path in _files(arguments.paths):
        try:
            encoding, text = _read(path)
            rewritten = rewrite(text)
        except (SyntaxError, UnicodeDecodeError, OSError, ValueError) as error:
            print(f"{path}: not rewritten: {error}", file=sys.stderr)
            failed += 1
            continue
        for note in rewritten.notes:
            print(f"{path}: {note}", file=sys.stderr)
        if rewritten.text == text:
            continue
        changed += 1
        if arguments.diff:
            _print_difference(path, text, rewritten.text)
        elif arguments.check:
            print(f"{path}: has old names")
        else:
            _write(path, rewritten.text.encode(encoding))
            print(f"{path}: rewritten")
    return 1 if failed or (arguments.check and changed) else 0


def _files(paths: Sequence[str]) -> Iterator[Path]:
    """Yield programs, and the programs in folders but hidden ones."""
    for each in paths:
        path = Path(each)
        if path.is_dir():
            yield from (
                file
                for file in sorted(path.rglob("*.py"))
                if file.is_file()
                and not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
        elif path.is_file():
            yield path
        else:
            raise UsageError(
                "`ocannl migrate` takes programs and folders.",
                found=f"{path}, which is neither",
                fix="ocannl migrate program.py",
            )


def _read(path: Path) -> tuple[str, str]:
    """Return the encoding and the text of a program, with its line ends."""
    content = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return encoding, content.decode(encoding)


def _write(path: Path, content: bytes) -> None:
    """Replace a file completely or not at all, and keep its permissions."""
    mode = path.stat().st_mode & 0o7777
    with replacement(path) as file:
        file.write(content)
    path.chmod(mode)


def _print_difference(path: Path, old: str, new: str) -> None:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
    )
    for line in lines:
        sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
