"""`ocannl checkpoint show FILE`: lists the arrays of a file; nothing in it is executed."""

from __future__ import annotations

import argparse

from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.data.checkpoints.load import saved_shapes
from ocannl_core.data.checkpoints.sources import OWN, opened

_SHOWN = ("step", "seed", "dtype", "version", "optimizer", "loader")
_LONGEST = 200


HELP = "show the content of a checkpoint"
DESCRIPTION = "Shows the content of a checkpoint, without executing anything in it."


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="list names, formats, shapes and sizes")
    show.add_argument("file", help="a file of the safetensors format, or an .npz file")
    show.add_argument(
        "--verify",
        action="store_true",
        help="also read every array, and compare it with its checksum",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table; return 0."""
    with opened(arguments.file) as source:
        shapes = saved_shapes(source)
        rows = [("name", "format", "shape", "bytes")]
        for each in source.arrays.values():
            shape = shapes.get(each.name) or f"[{', '.join(map(str, each.shape))}]"
            rows.append((_plain(each.name), each.title, _plain(shape), f"{each.nbytes:,}"))
            if arguments.verify:
                source.read(each.name)
        print("\n".join(aligned_rows(rows, numbers=1)))
        total = sum(each.nbytes for each in source.arrays.values())
        print(f"\n{len(source.arrays)} arrays, {total:,} bytes")
        for key in _SHOWN:
            if (text := source.metadata.get(OWN + key)) is not None:
                print(f"{key}: {_plain(text)}")
        for key, text in source.metadata.items():
            if not key.startswith(OWN):
                print(f"{_plain(key)}: {_plain(text)}")
    return 0


def _plain(text: str) -> str:
    """Return a text without characters that a terminal would act upon."""
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in shown)
