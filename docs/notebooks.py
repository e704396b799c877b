"""Extension of Sphinx: each tutorial as a notebook, made of the same page, with a link on it.

A block of Python becomes a cell of code, the text between blocks a cell of text. Links to other
pages become their titles, since a notebook that was downloaded has no pages beside it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "tutorial/"
_BLOCK = re.compile(r"^```python\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r"\{doc\}`(?:([^`<]+?)\s*<)?([^`<>]+)>?`")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://)[^)]+\)")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def is_program(text: str) -> bool:
    """Return True for a page with a program in several blocks."""
    return len(_BLOCK.findall(text)) > 1


def notebook(text: str, title_of: Any) -> dict[str, Any]:
    """Return a page as a notebook in the format nbformat 4.5.

    Args:
        text: The page in Markdown.
        title_of: A function from the path in a link to the title of the page.
    """
    cells = []
    pieces = _BLOCK.split(text)
    for number, piece in enumerate(pieces):
        if not piece.strip():
            continue
        is_code = number % 2 == 1
        source = piece if is_code else _without_links(piece.strip(), title_of)
        cell: dict[str, Any] = {
            "cell_type": "code" if is_code else "markdown",
            "id": f"cell-{number}",
            "metadata": {},
            "source": source.splitlines(keepends=True),
        }
        cells.append(cell | ({"execution_count": None, "outputs": []} if is_code else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _without_links(text: str, title_of: Any) -> str:
    text = _ROLE.sub(lambda found: f"*{found[1] or title_of(found[2])}*", text)
    return _LINK.sub(lambda found: found[1], text)


def page_notebook(folder: Path, name: str) -> dict[str, Any]:
    """Return the notebook of the page with a name, such as `tutorial/first_model`."""

    def title_of(path: str) -> str:
        page = folder / PurePosixPath(name).parent / f"{path}.md"
        found = _HEADING.search(page.read_text(encoding="utf-8"))
        return found[1] if found else path

    return notebook((folder / f"{name}.md").read_text(encoding="utf-8"), title_of)


def _link(app: Sphinx, name: str, source: list[str]) -> None:
    if name.startswith(FOLDER) and is_program(source[0]):
        file = f"{PurePosixPath(name).name}.ipynb"
        link = f'<a href="{file}" download>This page as a notebook</a>'
        source[0] = _HEADING.sub(lambda found: f"{found[0]}\n\n{link}", source[0], count=1)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for name in sorted(app.env.found_docs):
        path = Path(app.srcdir, f"{name}.md")
        if name.startswith(FOLDER) and is_program(path.read_text(encoding="utf-8")):
            text = json.dumps(page_notebook(Path(app.srcdir), name), indent=1, ensure_ascii=False)
            Path(app.outdir, f"{name}.ipynb").write_text(text + "\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _link)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
