"""Numbers in the documentation equal those of the code."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from ocannl_core import backend_api
from ocannl_core.backend.plugins import HOOK_NAMES
from ocannl_core.backend.specs import ALL_SPECS
from ocannl_core.backend_api import loops
from ocannl_core.ir.indexing import LoopVar, StaticIndex
from ocannl_core.ir.kernels.nodes import HostCall, Kernel, Plan, RepeatedSteps
from ocannl_core.ir.loops.nodes import AxisKind, Expr, Local, LoopBound, Scope, Stmt
from ocannl_core.ir.node import Margin, NodeInfo
from ocannl_core.ir.target import Target, ThreadBlocks
from ocannl_core.passes.kernels.pipeline import nest_passes, plan_passes
from ocannl_core.passes.loops.decisions import Decisions
from ocannl_core.passes.loops.pipeline import core_passes
from ocannl_core.testing.conformance import BackendConformance

ROOT = Path(__file__).resolve().parents[2]
NUMERALS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
)


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        ("README.md", f"with up to {NUMERALS[len(HOOK_NAMES)]} functions"),
        (
            "docs/howto/write_a_backend.md",
            f"has the {len(get_args(Stmt))} classes of statements and the {len(get_args(Expr))} "
            "of expressions",
        ),
        ("docs/howto/write_a_printer.md", f"closed union of {len(get_args(Stmt))} classes"),
        ("docs/howto/write_a_printer.md", f"closed union of {len(get_args(Expr))} classes"),
    ],
)
def test_a_count_on_a_page_equals_that_of_the_code(page: str, claim: str) -> None:
    assert claim in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_number_of_programs_is_that_of_the_gallery() -> None:
    gallery = (ROOT / "docs/tutorial/gallery.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+\.py`.*?) \|", gallery, re.MULTILINE)
    (several,) = (row.count("`, `") + 1 for row in rows if "`, `" in row)
    others = len(rows) - 1
    index = " ".join((ROOT / "docs/index.md").read_text(encoding="utf-8").split())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"gallery](tutorial/gallery.md) has {NUMERALS[others]} more" in index
    assert f"gallery](docs/tutorial/gallery.md) has {NUMERALS[others + several]} programs" in readme


def test_every_count_of_the_functions_of_a_backend_in_the_readme_is_the_same() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert set(re.findall(r"up to (\w+) functions", text)) == {NUMERALS[len(HOOK_NAMES)]}


PRINTER = (ROOT / "docs/howto/write_a_printer.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("node", [*get_args(Stmt), *get_args(Expr)], ids=lambda node: node.__name__)
def test_the_page_for_printers_has_the_fields_of_every_node(node: type) -> None:
    names = ", ".join(field.name for field in fields(node))
    assert f"| `{node.__name__}({names})` |" in PRINTER


@pytest.mark.parametrize(
    "part",
    [
        Local,
        LoopBound,
        LoopVar,
        StaticIndex,
        NodeInfo,
        Margin,
        Plan,
        Kernel,
        HostCall,
        RepeatedSteps,
    ],
    ids=lambda part: part.__name__,
)
def test_the_page_for_printers_has_the_fields_of_parts(part: type) -> None:
    names = ", ".join(field.name for field in fields(part))
    assert f"| `{part.__name__}({names})` |" in PRINTER


def test_the_page_for_printers_has_every_scope() -> None:
    rows = PRINTER.split("| scope | shared by |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([A-Z]+)` \|", rows, re.MULTILINE) == [scope.name for scope in Scope]


def test_all_that_the_page_for_printers_explains_is_in_the_interface() -> None:
    named = set(re.findall(r"^\| `([A-Z]\w+)\(", PRINTER, re.MULTILINE))
    assert named <= {*backend_api.__all__, *loops.__all__}


def test_the_reference_of_printing_has_the_notation_of_every_node() -> None:
    page = (ROOT / "docs/reference/printing.md").read_text(encoding="utf-8")
    rows = page.split("| node | text |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)))
    assert set(named) == {node.__name__ for node in (*get_args(Stmt), *get_args(Expr))}
    assert all(f"`{scope.value} x: float32[4]`" in rows for scope in Scope)


def test_the_page_for_printers_has_every_kind_of_loop() -> None:
    rows = PRINTER.split("## Kinds of loops")[1].split("\n\n")[2]
    assert re.findall(r"`([A-Z]+)`", rows) == [kind.name for kind in AxisKind]


def test_the_page_for_printers_names_fields_of_targets() -> None:
    rows = PRINTER.split("## Fields of Target")[1].split("## Errors")[0]
    named = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)))
    known = {field.name for field in fields(Target)}
    assert set(named) <= known


@pytest.mark.parametrize("hook", HOOK_NAMES)
def test_the_reference_of_hooks_has_their_parameters(hook: str) -> None:
    (specification,) = [vars(each)[hook] for each in ALL_SPECS if hook in vars(each)]
    parameters = [name for name in inspect.signature(specification).parameters if name != "self"]
    page = (ROOT / "docs/reference/hooks.md").read_text(encoding="utf-8")
    assert f"### {hook}({', '.join(parameters)})\n" in page


@pytest.mark.parametrize("page", ["asynchronous_backends", "write_a_backend"])
def test_tests_of_the_suite_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / f"docs/howto/{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    assert all(hasattr(BackendConformance, name) for name in named)


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN = [page for page in PAGES if page.parent.name in ("explanation", "reference", ROOT.name)]
"""The pages that name modules of the repository; the others name those of users, too."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_table_has_the_columns_of_its_header(page: Path) -> None:
    lines = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\|\n)+", lines, re.MULTILINE)
    for table in tables:
        rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert set(rows) == {rows[0]}, table.splitlines()[0]
        assert re.fullmatch(r"\|[ :|-]+\|", table.splitlines()[1]), table.splitlines()[0]


@pytest.mark.parametrize("page", OWN, ids=lambda page: page.name)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    folders = ("ocannl_core", "plugins", "tests", "docs", "benchmarks", "examples", "tools")
    known = {
        f"/{path.relative_to(ROOT)}" for name in folders for path in (ROOT / name).rglob("*.py")
    }
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text("utf-8"))
    users = {"train.py", "model.py", "program.py"}
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in known)}
    assert missing <= users


BLOCKS = ThreadBlocks(
    max_threads=256,
    threads=256,
    local_bytes=48 << 10,
    registers=255,
    subgroup=32,
    processors=80,
    vector_bytes=16,
)
TARGETS = [Target("a", vector_registers=16), Target("b", thread_blocks=BLOCKS)]


def test_the_passes_are_those_of_the_pipelines_in_their_order() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    _, loops, kernels = re.split(r"^## Passes over \w+$", text, flags=re.MULTILINE)
    listed = re.findall(r"^\| ([\w -]+) \| `", loops, re.MULTILINE)
    assert listed == [each.name for each in core_passes(Decisions({}))]
    table = kernels[: kernels.index("**Why nests are recognized")]
    listed = re.findall(r"^\| ([\w -]+) \| `", table, re.MULTILINE)
    for target in TARGETS:
        passes = (*plan_passes(target), *nest_passes(target, lambda _: None))
        names = [name for name, _ in passes]
        assert [name for name in listed if name in names] == names
