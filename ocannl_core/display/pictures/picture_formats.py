"""Pictures: objects with a text, an SVG file, and files of further formats.

Their colors are legible on white, also in shades of grey.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path

from ocannl_core.base.errors import UsageError
from ocannl_core.base.files.new_files import write_text

INK, FAINT, PAPER = "#222222", "#999999", "#ffffff"
"""The colors of lines and texts, of what stands behind them, and of the ground."""

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_text(text: str) -> str:
    """Return a text for XML; characters that XML excludes stand as in a Python string."""
    return escape(_NOT_XML.sub(lambda found: ascii(found[0])[1:-1], text))


def svg_start(width: float, height: float, title: str = "") -> Iterator[str]:
    """Yield the opening tag of a picture, its title, and its ground."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'{size} font-family="sans-serif" font-size="11">'
    )
    if title:
        yield f"<title>{xml_text(title)}</title>"
    yield f'<rect {size} fill="{PAPER}"/>'


def svg_text(x: float, y: float, content: str, anchor: str, color: str = INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">'
        f"{xml_text(content)}</text>"
    )


class Picture:
    """A picture; `str` is its form in characters, and notebooks show the SVG file."""

    __slots__ = ()

    @abstractmethod
    def svg(self) -> str:
        """Return the picture as SVG; its layout needs no other program."""

    def formats(self) -> Mapping[str, Callable[[], str]]:
        """Return the functions that write the picture, by the endings of file names."""
        return {".svg": self.svg, ".txt": self.__str__}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file in the format of the ending of its name: `.svg`, `.txt`, and for graphs also
        `.dot`, `.gv` and `.mmd`.

        Raises:
            UsageError: for another ending, or a file that cannot be written.
        """
        found, formats = Path(path), self.formats()
        if found.suffix not in formats:
            raise UsageError.at_caller(
                f"The ending of a picture's name is one of {', '.join(formats)}.",
                found=str(found),
                fix=str(found.with_suffix(".svg")),
            )
        text = formats[found.suffix]()
        try:
            write_text(found, text + "\n")
        except (OSError, ValueError) as error:
            raise UsageError.at_caller(
                "A picture is saved as a file of the user.",
                found=str(error),
                fix="choose another folder",
            ) from error

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str:
        return self.svg()
