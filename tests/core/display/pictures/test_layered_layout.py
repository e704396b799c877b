"""Layered layout: any graph, cycles included."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.display.pictures.layered_layout import GAP, lay_out

EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20)


@given(EDGES, st.lists(st.integers(10, 90), min_size=8, max_size=8))
def test_nodes_keep_their_distance_inside_the_picture(
    edges: list[tuple[int, int]], widths: list[int]
) -> None:
    layout = lay_out([(float(width), 20.0) for width in widths], edges)
    for n, (x, y) in enumerate(layout.centers):
        assert x - widths[n] / 2 >= 0
        assert x + widths[n] / 2 <= layout.width
        assert 0 < y < layout.height
        for m in range(n):
            if layout.centers[m][1] == y:
                apart = abs(layout.centers[m][0] - x)
                assert apart >= (widths[n] + widths[m]) / 2 + GAP - 1e-6


@given(EDGES)
def test_edges_of_graphs_without_cycles_point_down(edges: list[tuple[int, int]]) -> None:
    upward = [(a, b) for a, b in edges if a < b]
    layout = lay_out([(30.0, 20.0)] * 8, upward)
    for (a, b), route in zip(upward, layout.routes, strict=True):
        heights = [y for _, y in route]
        assert heights == sorted(heights)
        assert layout.centers[a][1] < layout.centers[b][1]
        assert route[0][0] == layout.centers[a][0]
        assert route[-1][0] == layout.centers[b][0]


def test_no_nodes_make_an_empty_picture() -> None:
    layout = lay_out([], [])
    assert layout.centers == ()
    assert layout.height > 0


def test_a_chain_is_a_straight_line() -> None:
    layout = lay_out([(30.0, 20.0), (90.0, 20.0), (50.0, 20.0)], [(0, 1), (1, 2)])
    assert len({round(x, 6) for x, _ in layout.centers}) == 1


def test_a_layer_has_no_more_nodes_than_there_is_room_for() -> None:
    star = (
        [(0, leaf) for leaf in range(1, 60)]
        + [(0, 60)]
        + [(source, 60) for source in range(61, 99)]
    )
    layout = lay_out([(100.0, 20.0)] * 99, star)
    rows = Counter(y for _, y in layout.centers)
    assert max(rows.values()) * (100 + GAP) <= 1000
    assert all(layout.centers[a][1] < layout.centers[b][1] for a, b in star)


def test_parts_without_edges_between_them_stand_side_by_side() -> None:
    edges = [(0, 1), *((node, node + 1) for node in range(2, 30)), (2, 9), (3, 12), (5, 20)]
    layout = lay_out([(50.0, 20.0)] * 31, edges)
    own, others = layout.centers[:2], layout.centers[2:]
    assert min(x for x, _ in others) - max(x for x, _ in own) == pytest.approx(50.0 + GAP)
