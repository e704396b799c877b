"""The prose lint accepts plain prose, and names each breach with its place."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import prose_lint
from tools.prose_lint import (
    DISTRIBUTIONS,
    RELATIVES,
    Text,
    Uses,
    british_words,
    forbidden_opening,
    forbidden_test_names,
    lint_distribution,
    lint_pages,
    modules,
    new_titles,
    text_problems,
    texts,
    title_problem,
)

ROOT = Path(__file__).resolve().parents[2]
MODULE = '''\
"""Loop-invariant code motion."""

LIMIT = 3  # of what is moved
"""How many statements move."""


def move():
    """Returns the moved statements."""
    return "what a string is not prose"
'''


def test_docstrings_of_attributes_and_comments_are_prose_and_other_strings_are_not() -> None:
    found = sorted((each.line, each.text, each.is_docstring) for each in texts(MODULE))
    assert found == [
        (1, "Loop-invariant code motion.", True),
        (3, "# of what is moved", False),
        (4, "How many statements move.", True),
        (8, "Returns the moved statements.", True),
    ]


@pytest.mark.parametrize("opening", prose_lint.OPENINGS)
def test_forbidden_openings_are_found_as_whole_words(opening: str) -> None:
    assert forbidden_opening(f"\n    {opening} the cells.") == opening
    assert forbidden_opening(f"{opening}x the cells.") is None


def test_words_are_in_american_spelling() -> None:
    british = "vectorised neighbours, an initialiser of analysed colours and centred behaviour"
    assert list(british_words(f"{british}, `optimised`")) == [
        *("vectorised", "neighbours", "initialiser", "analysed", "colours", "centred", "behaviour")
    ]
    assert not list(british_words("Otherwise a precise exercise raises noise; the center is wise."))
    (problem,) = text_problems(Text(1, "# optimise", is_docstring=False))
    assert problem == "'optimise' is not in American spelling"


def test_words_in_backticks_are_code() -> None:
    uses = Uses(RELATIVES)
    uses.count(Path("page"), "Whatever `what` is, it's what was passed.")
    assert (uses.words, uses.found) == (6, {RELATIVES: {Path("page"): 2}})


@pytest.mark.parametrize(
    ("text", "is_docstring", "problem"),
    [
        (
            "Plan.\n\n    Args:\n        plan: The plan.\n",
            True,
            "repeats its name: 'plan: The plan.'",
        ),
        ("# ----- plans ----------", False, "a bar between sections"),
    ],
)
def test_empty_descriptions_and_bars_are_found(text: str, is_docstring: bool, problem: str) -> None:
    (found,) = text_problems(Text(1, text, is_docstring))
    assert problem in found


def test_pronouns_in_place_of_nouns_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "sums.py"
    path.write_text('"""Those of the sums."""\n', encoding="utf-8")
    (finding,) = lint_distribution("core", [path], tmp_path)
    assert finding.startswith("core: 250.00 of 1000 words are 'that of' or 'those of'")


def test_findings_name_file_line_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "moving.py"
    path.write_text(MODULE, encoding="utf-8")
    findings = lint_distribution("core", [path], tmp_path)
    assert findings[:2] == [
        "moving.py:4: a docstring begins with 'How'",
        "moving.py:8: a docstring begins with 'Returns'",
    ]
    assert findings[2].endswith("and 1.0 may be; most in moving.py (1)")
    assert len(findings) == 3


def test_a_rate_below_the_limit_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text(f'"""{"Plain words. " * 500}And what else."""\n', encoding="utf-8")
    assert lint_distribution("core", [path], tmp_path) == []


def test_pages_are_prose_outside_of_code(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{'Plain. ' * 999}\n\n```text\nwhat\n```\n`what`", encoding="utf-8")
    assert lint_pages([page], tmp_path) == []
    page.write_text("What it does, and what it costs.", encoding="utf-8")
    (finding,) = lint_pages([page], tmp_path)
    assert finding.startswith("documentation: 285.71 of 1000 words")
    assert finding.endswith("most in page.md (2)")


@pytest.mark.parametrize("word", sorted(prose_lint.NOT_IN_TESTS))
def test_forbidden_words_in_names_of_tests_are_found(word: str) -> None:
    source = f"def test_code_{word}_it_computes(): ...\ndef test_{word}s_suffix(): ..."
    source += f"\ndef {word}_helps(): ..."
    assert list(forbidden_test_names(ast.parse(source))) == [(1, f"test_code_{word}_it_computes")]


@pytest.mark.parametrize(
    "title",
    [
        "shape: close rows from the left",
        "tensor, custom, passes: add operations",
        "kernel_passes/fusion: pass the domain",
        "cpu_c: bias the rounding",
        "hooks: need no driver",
        "ir: bring labels back",
        'Revert "cpu_c: stop threads"',
    ],
)
def test_titles_in_the_imperative_are_accepted(title: str) -> None:
    assert title_problem(title) is None


@pytest.mark.parametrize(
    ("title", "word"),
    [
        ("shape: closed rows", "closed"),
        ("shape: closing rows", "closing"),
        ("shape: closes rows", "closes"),
        ("docs: lines of one length", "lines"),
        ("shape: a size is repeated", "a"),
    ],
)
def test_titles_that_begin_with_something_else_are_refused(title: str, word: str) -> None:
    assert title_problem(title) == f"{word!r} is no imperative"


@pytest.mark.parametrize("title", ["close rows", "Shape: close rows", "shape:close rows", "fix"])
def test_titles_without_area_are_refused(title: str) -> None:
    assert title_problem(title) == "a title is `area: imperative`"


def test_titles_of_two_ideas_are_refused() -> None:
    problem = title_problem("shape: close rows; tests: wait longer")
    assert problem == "a commit is one idea; this title joins several"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs Git")
def test_commits_since_the_main_branch_are_read_without_merges(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "core: begin")
    git("checkout", "-q", "-b", "topic")
    git("commit", "-q", "--allow-empty", "-m", "shape: close rows")
    git("checkout", "-q", "-b", "other", "main")
    git("commit", "-q", "--allow-empty", "-m", "docs: name terms")
    git("merge", "-q", "--no-ff", "-m", "Merge branch 'topic'", "topic")
    assert {title for _, title in new_titles(tmp_path)} == {"shape: close rows", "docs: name terms"}


def test_without_history_there_are_no_titles(tmp_path: Path) -> None:
    assert new_titles(tmp_path) == []


def test_every_python_file_of_the_repository_belongs_to_one_distribution() -> None:
    found = [path for places in DISTRIBUTIONS.values() for path in modules(places, ROOT)]
    assert len(found) == len(set(found))
    for folder in ("ocannl_core", "plugins", "tests", "tools", "benchmarks", "examples"):
        assert {path for path in (ROOT / folder).rglob("*.py") if "build" not in path.parts} <= set(
            found
        )
