"""Specs printed in the documents parse, and infer the stated shapes."""

from __future__ import annotations

import pytest

from ocannl_core.base.origin import Origin
from ocannl_core.shape.environment import Environment
from ocannl_core.shape.language.einsum_parser import parse_spec
from ocannl_core.shape.language.shape_terms import Shape, closed_shape
from ocannl_core.shape.projections.projections import project
from ocannl_core.shape.translation.logic import logic_from_text

ORIGIN = Origin("einsum")
CUBE = closed_shape((3, 2), (5,), (4, 6, 7))
IMAGE = closed_shape((2,), (), (8, 8, 3))
KERNEL = closed_shape((), (2, 2, 3), (5,))
STRIDE_2 = {"stride": 2}

SPELLINGS: list[tuple[str, list[Shape], dict[str, int], str]] = [
    # reductions, pointwise operations, slices
    ("...|...->... => 0", [CUBE], {}, "1"),
    ("...|... => 0", [CUBE], {}, "1"),
    ("... => 0", [CUBE], {}, "1"),
    ("...|...->... => ...|...->...", [CUBE], {}, "3,2|5->4,6,7"),
    ("...|...->... => ...->...", [CUBE], {}, "5->4,6,7"),
    ("...->... => ...->...", [CUBE], {}, "5->4,6,7"),
    ("...|...->... ; ...|...->... => ...|...->...", [CUBE, CUBE], {}, "3,2|5->4,6,7"),
    ("2...|...->... => ...|...->...", [CUBE], {}, "2|5->4,6,7"),
    ("...|... => ...|...2", [CUBE], {}, "3,2|4,6,7,3"),
    ("2..v..|... => ..v..", [CUBE], {}, "2"),
    ("..v..|ijk => ..v..kji", [CUBE], {}, "3,2,7,6,4"),
    ("ijk => kji", [CUBE], {}, "7,6,4"),
    ("ijk => ki", [CUBE], {}, "7,4"),
    # labels of one and of many characters
    ("ij;jk=>ik", [closed_shape(output=(2, 3)), closed_shape(output=(3, 4))], {}, "2,4"),
    ("row, col => col, row", [closed_shape(output=(2, 3))], {}, "3,2"),
    # strides
    ("…, i => …, 2*i", [CUBE], {}, "4,6,14"),
    ("…, i => …, 2*i + 1", [CUBE], {}, "4,6,14"),
    ("..., 2*i => ..., i", [closed_shape(output=(3, 8))], {}, "3,4"),
    ("..., 2*i+1 => ..., i", [closed_shape(output=(3, 8))], {}, "3,4"),
    # convolutions
    (
        "... | stride*oh<+kh, stride*ow<+kw, ic -> oc; kh, kw, ic -> oc => ... | oh, ow, oc",
        [closed_shape((2,), (8, 8, 3), (5,)), KERNEL],
        STRIDE_2,
        "2|4,4,5",
    ),
    (
        "... | stride*oh<+kh, stride*ow<+kw, ic; kh, kw, ic -> oc => ... | oh, ow, oc",
        [IMAGE, KERNEL],
        STRIDE_2,
        "2|4,4,5",
    ),
    (
        "... | 2*oh<+kh, 2*ow<+kw, ..ic..; kh, kw, ..ic.. -> ..oc.. => ... | oh, ow, ..oc..",
        [IMAGE, KERNEL],
        {},
        "2|4,4,5",
    ),
    (
        "... | 2*oh=+kh, 2*ow=+kw, ..ic..; kh, kw, ..ic.. -> ..oc.. => ... | oh, ow, ..oc..",
        [IMAGE, KERNEL],
        {},
        "2|4,4,5",
    ),
    (
        "... | 2*oh<+wh, 2*ow<+ww, ..c.. => ... | oh, ow, ..c..",
        [IMAGE],
        {"wh": 2, "ww": 2},
        "2|4,4,3",
    ),
    # concatenation
    ("a; b => a^b", [closed_shape(output=(2,)), closed_shape(output=(3,))], {}, "5"),
    ("a^b => a", [closed_shape(output=(5,))], {"a": 2}, "2"),
    ("a^b => b", [closed_shape(output=(5,))], {"a": 2}, "3"),
    ("a^b^c => b", [closed_shape(output=(5,))], {"a": 2, "b": 2}, "2"),
    ("3^a => a", [closed_shape(output=(5,))], {}, "2"),
]


@pytest.mark.parametrize(("spec", "operands", "values", "expected"), SPELLINGS)
def test_specs_of_the_documents_infer_as_written(
    spec: str, operands: list[Shape], values: dict[str, int], expected: str
) -> None:
    environment = Environment()
    result = environment.fresh_shape()
    logic = logic_from_text(spec, len(operands), None, values)
    environment.relate(logic, result, operands, ORIGIN)
    environment.close([result])
    closed = environment.view(result)
    assert str(closed) == expected
    projections = project(logic, closed, operands, ORIGIN)
    assert projections.lhs_dims == closed.dims
    assert str(parse_spec(spec)) == str(parse_spec(str(parse_spec(spec))))
