"""`oc.show`: one entry that picks a view by the type of its subject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.display.views import VIEWS


@pytest.fixture
def x() -> oc.Tensor:
    return oc.relu(oc.tensor([[1.0, -2.0], [3.0, 4.0]]), label="rows")


def test_a_tensor_is_shown_as_its_expression_and_beside_a_context_as_its_cells(
    x: oc.Tensor,
) -> None:
    shown = oc.show(x)
    assert (shown.view, str(shown.value)) == ("tree", str(oc.tree(x)))
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(x))()
    shown = oc.show(x, ctx)
    assert (shown.view, str(shown.value)) == ("table", str(oc.table(x, ctx)))
    assert str(shown).startswith(str(oc.table(x, ctx)).rstrip())


def test_several_tensors_are_shown_one_after_the_other(x: oc.Tensor) -> None:
    ctx, y = oc.Context("interp"), oc.tensor([5.0, 6.0])
    ctx.compile(oc.train.forward(x) + oc.train.forward(y))()
    shown = oc.show({"a": x, "b<": y}, ctx)
    assert shown.view == "table"
    a, b = (str(oc.table(each, ctx)).rstrip("\n") for each in (x, y))
    assert str(shown.value) == f"a:\n{a}\n\nb<:\n{b}"
    html = shown._repr_mimebundle_().get("text/html")
    assert html is None or "b&lt;" in html
    listed = oc.show([x, y])
    assert (listed.view, str(listed.value).count("\n\n")) == ("tree", 1)
    assert str(listed.value).startswith("0 rows:\n")
    with pytest.raises(oc.UsageError, match="live in a context"):
        oc.show({"a": x}, view="table")
    with pytest.raises(oc.UsageError, match="has the views"):
        oc.show({"a": x}, view="heatmap")


def test_the_other_views_are_named_and_can_be_called(x: oc.Tensor) -> None:
    shown = oc.show(x)
    assert shown.others == tuple(
        f"oc.show(..., view={name!r})"
        for name in ("summary", "explain", "graph", "precision_report")
    )
    assert str(shown).endswith("More: " + ", ".join(shown.others))
    for call in shown.others:
        name = call.partition("'")[2].rstrip("')")
        assert str(oc.show(x, view=name).value) == str(VIEWS[name](x))


@pytest.mark.parametrize(
    ("subject", "view"),
    [
        ([3.0, 2.0, 1.0], "curves"),
        ({"loss": [3.0, 2.0]}, "curves"),
        (np.array([1.0, 2.0]), "curves"),
        (np.eye(3), "heatmap"),
    ],
)
def test_numbers_are_shown_as_pictures(subject: Any, view: str) -> None:
    shown = oc.show(subject)
    assert shown.view == view
    assert str(shown.value) == str(VIEWS[view](subject))
    assert "image/svg+xml" in shown._repr_mimebundle_()


def test_code_and_routines_have_views_of_their_own(x: oc.Tensor) -> None:
    code = oc.train.forward(x)
    assert oc.show(code).view == "precision_report"
    step = oc.Context("interp").compile(code)
    assert str(oc.show(step).value) == str(oc.explain(step))
    assert oc.show(step, view="graph").view == "graph"


def test_options_are_arguments_of_the_view(x: oc.Tensor) -> None:
    assert str(oc.show(x, depth=0).value) == str(oc.tree(x, depth=0))


def test_a_subject_without_a_view_is_refused(x: oc.Tensor) -> None:
    with pytest.raises(oc.UsageError, match=r"oc\.show shows tensors, routines"):
        oc.show("text")
    with pytest.raises(oc.UsageError, match=r"A Tensor has the views tree, summary"):
        oc.show(x, view="curves")
    with pytest.raises(oc.UsageError, match=r"oc\.show\(x, ctx, view='table'\)"):
        oc.show(x, view="table")


def test_every_view_is_a_public_function() -> None:
    assert all(name in oc.__all__ for name in VIEWS)
