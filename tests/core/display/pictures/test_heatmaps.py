"""Heat maps: as characters and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.display.pictures.heatmaps import SHADES, SIGNED
from ocannl_core.display.pictures.picture_formats import PAPER

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(drawn: Any) -> list[dict[str, str]]:
    root = ElementTree.fromstring(drawn.svg())
    return [each.attrib for group in root.iter(f"{SVG}g") for each in group]


def test_a_matrix_is_drawn_with_characters_under_its_name_and_beside_its_labels() -> None:
    drawn = oc.heatmap([[0, 1], [2, 3]], rows=["a", "bc"], names=["head 0"], title="weights")
    assert str(drawn) == snapshot("""\
weights
    head 0
 a    --
bc  **@@\
""")


def test_matrices_stand_side_by_side_on_one_scale() -> None:
    cells = np.array([[[0.0, 1.0]], [[2.0, 4.0]], [[4.0, 4.0]]])
    assert str(oc.heatmap(cells, across=2)) == snapshot("""\
  ::   ==@@

@@@@\
""")


def test_negative_numbers_have_other_marks_and_colors() -> None:
    assert str(oc.heatmap([[-1.0, 0.0, 0.5]])) == "-@  +="
    colors = [each["fill"] for each in rectangles(oc.heatmap([[-1.0, 0.0, 1.0]]))]
    assert colors == [SIGNED[0], SIGNED[-1]]  # 0 is white, as the paper


def test_neighbors_of_one_shade_are_one_rectangle() -> None:
    first, second = rectangles(oc.heatmap([[1.0, 1.0, 0.0, 0.5]]))
    assert float(first["width"]) == 2 * float(second["width"])
    assert (first["fill"], second["fill"]) == (SHADES[-1], SHADES[32])
    assert SHADES[0] == PAPER


def test_numbers_that_are_not_finite_are_the_ends_of_the_scale_and_nan_is_a_gap() -> None:
    drawn = oc.heatmap([[np.inf, -np.inf, np.nan, 1.0, 3.0]])
    assert str(drawn) == "@@  ??  @@"
    assert str(oc.heatmap([[np.nan]])) == "??"


def test_a_stated_scale_is_used() -> None:
    assert str(oc.heatmap([[0.5, 1.0]], low=0, high=1)) == "==@@"
    assert str(oc.heatmap([[2.0, 2.0]])) == ""


def test_labels_are_escaped_and_left_out_where_there_are_too_many() -> None:
    drawn = oc.heatmap(np.ones((2, 50)), rows=["<s>", "&"], columns=range(50), low=0)
    texts = [each.text for each in ElementTree.fromstring(drawn.svg()).iter(f"{SVG}text")]
    assert texts == ["<s>", "&"]


def test_a_heat_map_is_saved_and_shown_in_notebooks(tmp_path: Path) -> None:
    drawn = oc.heatmap([[0.0, 1.0]])
    drawn.save(tmp_path / "map.svg")
    assert (tmp_path / "map.svg").read_text() == drawn._repr_svg_() + "\n"
    drawn.save(tmp_path / "map.txt")
    assert (tmp_path / "map.txt").read_text() == "  @@\n"
    assert repr(drawn) == str(drawn)
    with pytest.raises(oc.UsageError, match=r"\.svg"):
        drawn.save(tmp_path / "map.png")


@pytest.mark.parametrize(
    ("cells", "more", "found"),
    [
        ([1.0, 2.0], {}, "an array of shape"),
        (np.zeros((0, 3)), {}, "an array of shape"),
        ("text", {}, "str: 'text'"),
        ([[1.0, 2.0]], {"rows": ["a", "b"]}, "2 rows for 1"),
        ([[1.0, 2.0]], {"across": 0}, "across=0"),
    ],
)
def test_arrays_that_are_no_matrices_are_refused(cells: Any, more: Any, found: str) -> None:
    with pytest.raises(oc.UsageError, match=found) as caught:
        oc.heatmap(cells, **more)
    assert "test_heatmaps.py" in str(caught.value)
