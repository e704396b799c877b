"""Curves: as characters and as pictures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc

SVG = "{http://www.w3.org/2000/svg}"


def test_curves_are_drawn_with_characters() -> None:
    drawn = oc.curves({"up": [0, 1, 2, 3], "down": ([0, 3], [3, 0])}, x_name="steps")
    assert str(drawn) == snapshot("""\
3 ┤o                                                              *
  ┤
  ┤
  ┤
  ┤
2 ┤                                          *
  ┤
  ┤
  ┤
  ┤
1 ┤                     *
  ┤
  ┤
  ┤
  ┤
0 ┤*                                                              o
  └────────────────────────────────────────────────────────────────
   0                            steps                             3
   * up   o down\
""")


def polylines(drawn: Any) -> list[str]:
    root = ElementTree.fromstring(drawn.svg())
    return [each.attrib["points"] for each in root.iter(f"{SVG}polyline")]


def test_a_higher_number_stands_higher() -> None:
    (line,) = polylines(oc.curves([1.0, 4.0, 2.0]))
    first, second, third = (float(point.split(",")[1]) for point in line.split())
    assert second < third < first


def test_numbers_that_are_not_finite_are_gaps() -> None:
    assert len(polylines(oc.curves([1.0, 2.0, float("nan"), 1.0, 3.0, float("inf")]))) == 2
    assert len(polylines(oc.curves([1.0, 2.0, 0.0, 1.0, 3.0], log=True))) == 2


def test_a_logarithmic_axis_makes_ratios_equal() -> None:
    (line,) = polylines(oc.curves([1.0, 10.0, 100.0], log=True))
    first, second, third = (float(point.split(",")[1]) for point in line.split())
    assert first - second == pytest.approx(second - third, abs=0.2)


def test_many_points_are_merged() -> None:
    (line,) = polylines(oc.curves(np.random.default_rng(0).random(100_000)))
    assert len(line.split()) <= 1200


@pytest.mark.parametrize("numbers", [[5.0], [2.0, 2.0], [-1e300, 1e300], [0.0]])
def test_extreme_ranges_are_drawn(numbers: list[float]) -> None:
    drawn = oc.curves(numbers)
    assert "nan" not in drawn.svg()
    assert str(drawn)


@pytest.mark.parametrize(
    ("count", "ticks"),
    [
        (2, ["0", "1"]),
        (7, ["0", "2", "4", "6"]),
        (900, ["0", "200", "400", "600", "800"]),
        (180, ["0", "50", "100", "150"]),
    ],
)
def test_steps_are_marked_at_round_numbers(count: int, ticks: list[str]) -> None:
    root = ElementTree.fromstring(oc.curves(list(range(count))).svg())
    found = [each.text for each in root.iter(f"{SVG}text") if each.get("text-anchor") == "middle"]
    assert found == ticks


@pytest.mark.parametrize(
    ("numbers", "log", "marks"),
    [
        ([-0.99997, 1.0], False, ["-0.5", "0", "0.5", "1"]),
        ([0.993, 1.0], False, ["0.994", "0.996", "0.998", "1"]),
        ([0.0, 123456.0], False, ["0", "50000", "100000"]),
        ([3.0, 70.0], True, ["5", "10", "20", "50"]),
        ([1e-5, 2.0], True, ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]),
        ([6.0, 7.0], True, ["6", "7"]),
        ([1e-300, 1e300], True, None),
    ],
)
def test_numbers_are_marked_at_round_ones(
    numbers: list[float], log: bool, marks: list[str] | None
) -> None:
    root = ElementTree.fromstring(oc.curves(numbers, log=log).svg())
    found = [each.text for each in root.iter(f"{SVG}text") if each.get("text-anchor") == "end"]
    assert 2 <= len(found) <= 12
    assert marks in (None, found)


def test_the_history_of_a_training_loop_is_drawn_over_epochs() -> None:
    run = SimpleNamespace(
        losses=np.array([4.0, 3.0, 2.0, 1.0]), epoch_losses=[3.5, 1.5], evaluations=[3.0, 2.0]
    )
    drawn = oc.curves(run)
    assert [curve.name for curve in drawn.curves] == ["loss", "evaluation"]
    assert drawn.curves[0].xs == (0.5, 1.0, 1.5, 2.0)
    assert drawn.curves[1].xs == (1.0, 2.0)
    assert drawn.x_name == "epochs"


def test_texts_are_escaped(tmp_path: Path) -> None:
    oc.curves({"<a&b>": [1, 2]}, title="<&>").save(tmp_path / "c.svg")
    root = ElementTree.parse(tmp_path / "c.svg").getroot()
    assert "— <a&b>" in {each.text for each in root.iter(f"{SVG}text")}


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "Curves have numbers"),
        ({}, "Curves have numbers"),
        ([float("nan")], "none that is finite"),
        ({"a": ([1, 2], [1.0])}, r"a: positions of shape \(2,\), numbers of shape \(1,\)"),
        ({"a": "text"}, "a: str"),
        ({"a": [[1.0], [2.0]]}, "A curve is a sequence of numbers"),
    ],
)
def test_other_series_are_refused(series: Any, message: str) -> None:
    with pytest.raises(oc.UsageError, match=message):
        oc.curves(series)


def test_numbers_below_zero_have_no_logarithm() -> None:
    with pytest.raises(oc.UsageError, match="positive and finite"):
        oc.curves([-1.0, 0.0], log=True)
