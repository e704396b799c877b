"""The pictures of the README and the pages are those that the programs on them draw."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import ocannl_core as oc
from tests.docs.test_examples import ROOT, run

PICTURES = ROOT / "docs" / "pictures"


def test_the_graph_in_the_readme_is_that_of_its_network(tmp_path: Path) -> None:
    module = run("README.md", "interp")
    drawn = (tmp_path / "network.svg").read_text(encoding="utf-8")
    assert drawn == (PICTURES / "network.svg").read_text(encoding="utf-8")
    assert str(oc.summary(module.scores)) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_picture_is_shown_somewhere_and_is_well_formed() -> None:
    shown = "".join(
        page.read_text(encoding="utf-8")
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    )
    pictures = sorted(PICTURES.glob("*.svg"))
    assert len(pictures) > 1
    for each in pictures:
        assert f"pictures/{each.name}" in shown
        assert ElementTree.parse(each).getroot().tag.endswith("svg")
