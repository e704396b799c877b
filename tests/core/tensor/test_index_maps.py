"""Projections that users state as text."""

from __future__ import annotations

import pytest

import ocannl_core as oc
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import FixedIndex, as_affine
from ocannl_core.ir.text import PrintedNames
from ocannl_core.tensor.graph.index_maps import index_maps

HERE = Origin("mul")


def printed(text: str, operands: int) -> str:
    """Return stated maps in the same notation, with the normal form of every index."""
    maps = index_maps(text, operands, "")
    names = PrintedNames()
    sides = [", ".join(map(names.index, side)) for side in (*maps.operands, maps.result)]
    domain = ", ".join(f"{names.variable(var)}<{extent}" for var, extent in maps.domain)
    return f"{'; '.join(sides[:-1])} => {sides[-1]} over {domain}"


@pytest.mark.parametrize(
    "text",
    [
        "i => i over i<3",
        "2*o + k; k => o over o<3, k<2",
        "i, j; j => i over i<2, j<3",
        "-i + 5 => i over i<6",
        "3*i - 2*j + 4 => i, 0, j over i<2, j<3",
        "i =>  over i<3",
    ],
)
def test_parsed_index_maps_print_as_written(text: str) -> None:
    assert printed(text, text.count(";") + 1) == text


def test_spaces_and_repeated_terms_do_not_matter() -> None:
    assert printed("i+i+1=>2*i over i<2", 1) == "2*i + 1 => 2*i over i<2"
    assert index_maps("i - i => i over i<2", 1, "").operands == ((FixedIndex(0),),)


def test_the_first_variable_of_the_domain_is_the_outermost() -> None:
    maps = index_maps("i, j => i over j<3, i<2", 1, "")
    assert [extent for _, extent in maps.domain] == [3, 2]
    assert as_affine(maps.result[0])[0][0][1] == maps.domain[1][0]


@pytest.mark.parametrize(
    "text",
    [
        "i over i<3",
        "i; j => i over i<3",
        "i => i",
        "i => i over i<0",
        "i => i over i<3, i<4",
        "i => i over i<n",
        "i j => i over i<3, j<2",
        "i*2 => i over i<3",
        "i, => i over i<3",
        "i => i => i over i<3",
        "i? => i over i<3",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(oc.SpecError, match="an index for each axis"):
        index_maps(text, 1, "")


def test_every_axis_has_an_index_that_stays_inside() -> None:
    maps = index_maps("i + 1 => i over i<3", 1, "")
    assert maps.projections((3,), [(4,)], HERE).rhs_dims == ((4,),)
    with pytest.raises(oc.ShapeError, match="one index for each axis"):
        maps.projections((3,), [(4, 1)], HERE)
    with pytest.raises(oc.ShapeError, match="positions 1 to 3 of axis 0 of operand 1"):
        maps.projections((3,), [(3,)], HERE)
    with pytest.raises(oc.ShapeError, match="positions 0 to 2 of axis 0 of the result"):
        maps.projections((2,), [(4,)], HERE)
