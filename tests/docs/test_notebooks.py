"""Tutorials as notebooks: the same Python as on the page, which runs from the first cell to the last."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.notebooks import is_program, notebook, page_notebook
from tests.support.slow import long

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIALS = sorted(
    f"tutorial/{path.stem}"
    for path in (DOCS / "tutorial").glob("*.md")
    if is_program(path.read_text(encoding="utf-8"))
)


def test_there_are_tutorials_with_programs() -> None:
    assert {"tutorial/first_model", "tutorial/attention"} <= set(TUTORIALS)


def test_blocks_become_cells_and_links_become_titles() -> None:
    page = "# A\n\nSee {doc}`b` and {doc}`there <c>`, [d](d.md).\n\n```python\nx = 1\n```\n\n```text\n1\n```\n"
    made = notebook(page, lambda path: f"title of {path}")
    assert [(each["cell_type"], "".join(each["source"])) for each in made["cells"]] == [
        ("markdown", "# A\n\nSee *title of b* and *there*, d."),
        ("code", "x = 1"),
        ("markdown", "```text\n1\n```"),
    ]
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_has_the_python_of_its_page_in_order(name: str) -> None:
    made = page_notebook(DOCS, name)
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    code = ["".join(each["source"]) for each in made["cells"] if each["cell_type"] == "code"]
    assert code == blocks
    assert not any("{doc}" in "".join(each["source"]) for each in made["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [TUTORIALS[0], *long(TUTORIALS[1:])])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for place in ("RUNTIME", "DATA", "CONFIG"):
        monkeypatch.setenv(f"JUPYTER_{place}_DIR", str(tmp_path / place))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made = nbformat.reads(json.dumps(page_notebook(DOCS, name)), as_version=4)
    nbformat.validate(made)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(made, timeout=300, resources=resources).execute()
    assert all(each.execution_count for each in made.cells if each.cell_type == "code")
