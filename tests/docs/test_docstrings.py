"""The pages of docstrings describe every public name, in the words of the code."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ocannl_core as oc
from ocannl_core import backend_api

pytest.importorskip("sphinx")

from docs.docstrings import description, markdown, members, public_names, signature

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference" / "names"
MODULES = [
    name
    for page in sorted(PAGES.glob("*.md"))
    for name in re.findall(r"^```{docstrings} (\S+)$", page.read_text("utf-8"), re.MULTILINE)
]


def test_every_public_module_has_its_docstrings_on_a_page() -> None:
    public = [oc, *(getattr(oc, n) for n in oc.__all__ if isinstance(getattr(oc, n), ModuleType))]
    names = [path.stem for path in Path(backend_api.__path__[0]).glob("[a-z]*.py")]
    expected = {module.__name__ for module in public} | {backend_api.__name__}
    assert expected | {f"{backend_api.__name__}.{name}" for name in names} == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_every_name_has_a_description(name: str) -> None:
    module = import_module(name)
    for each in public_names(module):
        first, _, *body = description("m", each, getattr(module, each))
        assert re.match(rf":{{3,5}}{{py:\w+}} m\.{each}\b", first)
        assert body[0].strip(), f"{name}.{each} has no description"


def test_the_members_of_a_class_are_those_that_pages_name() -> None:
    names = [name for name, _ in members(oc.Context)]
    assert {"compile", "init_params", "copy_from"} <= set(names)
    assert not any(name.startswith("_") for name in names)


def test_an_operation_is_described_by_its_operands_and_meaning() -> None:
    first, _, text, *_ = description("oc", "add", oc.add)
    assert first.startswith(":::{py:function} oc.add(a, b, *, logic=None,")
    assert text == "Return `a + b`, cell by cell."


def test_sections_of_docstrings_become_lists() -> None:
    text = (
        "Return x.\n\nArgs:\n    x: A number,\n        or none.\n    *rest: Others.\n\nText `a`.\n"
    )
    assert markdown(text).splitlines() == [
        "Return x.",
        "",
        "**Args**",
        "",
        "- `x`: A number,",
        "    or none.",
        "- `*rest`: Others.",
        "",
        "Text `a`.",
    ]


def test_signatures_have_the_defaults_that_a_program_could_have() -> None:
    def call(self: object, a: int, /, b: int = 3, *, c: str = "x", d: object = object) -> None: ...

    assert signature("oc.call", call) == "oc.call(a, b=3, *, c='x', d=...)"
    assert signature("oc.value", 3) == "oc.value"
