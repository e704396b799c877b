"""Lint for the prose of docstrings, comments and commit titles.

    python tools/prose_lint.py            # exit status 1 and a line for each finding

These rules hold:

- No docstring begins with a word of `OPENINGS`: a summary is a noun phrase of the field or an
  imperative.
- *what* and *whatever* are fewer than `MOST_RELATIVES` per 1000 words of the docstrings and
  comments of a distribution, and of the documentation outside of code: the noun of the field takes
  the place of a relative clause.
- No name of a test contains a word of `NOT_IN_TESTS`: a test is named after the behaviour of the
  code, without persons and relative clauses.
- Titles of commits since the merge base with the main branch are `area: imperative`, one idea each.
  Without history, as in an unpacked archive, they are not checked.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = {
    "ocannl_core": ("ocannl_core",),
    "ocannl_interp": ("plugins/ocannl_interp",),
    "ocannl_cpu_c": ("plugins/ocannl_cpu_c",),
    "ocannl_cuda": ("plugins/ocannl_cuda",),
    "ocannl_cuda_emulator": ("plugins/ocannl_cuda_emulator",),
    "ocannl_opencl": ("plugins/ocannl_opencl",),
    "ocannl_mpi": ("plugins/ocannl_mpi",),
    "tests and tools": ("tests", "tools", "benchmarks", "examples", "docs", ".ci", "conftest.py"),
}
"""The folders and files of each distribution; the last one is of those that are not installed."""

PAGES = ("docs", "README.md", "CONTRIBUTING.md", "plugins")
"""The folders and files of the documentation, in Markdown."""

OPENINGS = ("What", "Which", "How", "Where", "Whether", "Returns", "Yields")
MOST_RELATIVES = 1.0
NOT_IN_TESTS = frozenset(
    {"what", "whatever", "told", "asks", "asked", "knows", "nobody", "somebody", "anybody"}
)
MAIN_BRANCHES = ("main", "origin/main")

_OPENING = re.compile(rf"\s*({'|'.join(OPENINGS)})\b")
_CODE = re.compile(r"`[^`]*`")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z']+")
_RELATIVES = {"what", "whatever"}
_SKIPPED = {"build", "dist", "_build", "__pycache__"}

_TITLE = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: (?P<word>[\w'-]+)(?P<rest>.*)")
_REVERT = re.compile(r'Revert ".*"')
_VERBS_IN_ED = {"bleed", "breed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed"}
_VERBS_IN_ING = {"bring", "ping", "ring", "string", "swing"}
_VERBS_IN_S = ("ss", "us", "as", "is")
"""Endings of imperatives in s: pass, focus, bias. Other words in s are third persons or plurals."""
_NO_VERBS = {"a", "all", "an", "each", "how", "it", "no", "one", "some", "the", "what", "where"}


@dataclass(frozen=True, slots=True)
class Text:
    """A docstring or a comment, with the line that it begins at."""

    line: int
    text: str
    is_docstring: bool


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings of a module, attribute docstrings included, and its comments."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for stmt in body if isinstance(body, list) else ():
            match stmt:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield Text(stmt.lineno, text, True)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], token.string, False)


def forbidden_opening(docstring: str) -> str | None:
    """Return the first word of a docstring if it is a forbidden one."""
    found = _OPENING.match(docstring)
    return found[1] if found else None


def count_words(text: str) -> tuple[int, int]:
    """Return the numbers of words and of *what* and *whatever*, outside of code in backticks."""
    words = [word.lower() for word in _WORD.findall(_CODE.sub(" ", text))]
    return len(words), sum(word in _RELATIVES for word in words)


def title_problem(title: str) -> str | None:
    """Return the reason for which a commit title is refused."""
    if _REVERT.fullmatch(title):
        return None
    found = _TITLE.fullmatch(title)
    if found is None:
        return "a title is `area: imperative`"
    word = found["word"].lower()
    if ";" in found["rest"]:
        return "a commit is one idea; this title joins several"
    is_participle = (word.endswith("ed") and word not in _VERBS_IN_ED) or (
        word.endswith("ing") and word not in _VERBS_IN_ING
    )
    is_third_person = word.endswith("s") and not word.endswith(_VERBS_IN_S)
    if is_participle or is_third_person or word in _NO_VERBS:
        return f"{found['word']!r} is no imperative"
    return None


def forbidden_test_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each test whose name contains a word of `NOT_IN_TESTS`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        if not NOT_IN_TESTS.isdisjoint(node.name.split("_")):
            yield node.lineno, node.name


def modules(places: Sequence[str], root: Path = ROOT, pattern: str = "*.py") -> list[Path]:
    """Return the files of a pattern in folders, and the files that are named themselves."""
    found: list[Path] = []
    for place in places:
        path = root / place
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = (each for each in path.rglob(pattern))
            found += [p for p in inside if _SKIPPED.isdisjoint(p.relative_to(root).parts)]
    return sorted(found)


def lint_distribution(name: str, paths: Sequence[Path], root: Path = ROOT) -> list[str]:
    """Return the findings about the files of one distribution.

    The files with most uses of *what* are listed if the distribution exceeds its share.
    """
    findings: list[str] = []
    words = 0
    uses: dict[Path, int] = {}
    for path in paths:
        place = path.relative_to(root)
        source = path.read_text(encoding="utf-8")
        for line, test in forbidden_test_names(source):
            findings.append(f"{place}:{line}: {test} contains a word of NOT_IN_TESTS")
        for each in texts(source):
            opening = forbidden_opening(each.text) if each.is_docstring else None
            if opening is not None:
                findings.append(f"{place}:{each.line}: a docstring begins with {opening!r}")
            count, relatives = count_words(each.text)
            words += count
            if relatives:
                uses[place] = uses.get(place, 0) + relatives
    return findings + rate_problem(name, words, uses)


def lint_pages(paths: Sequence[Path], root: Path = ROOT) -> list[str]:
    """Return the findings about pages in Markdown."""
    words = 0
    uses: dict[Path, int] = {}
    for path in paths:
        text = _CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))
        count, relatives = count_words(text)
        words += count
        if relatives:
            uses[path.relative_to(root)] = relatives
    return rate_problem("documentation", words, uses)


def rate_problem(name: str, words: int, uses: Mapping[Path, int]) -> list[str]:
    """Return the finding that *what* exceeds its share of a number of words, if it does."""
    rate = 1000 * sum(uses.values()) / max(words, 1)
    if rate <= MOST_RELATIVES:
        return []
    worst = sorted(uses, key=lambda place: (-uses[place], place))[:5]
    most = ", ".join(f"{place} ({uses[place]})" for place in worst)
    return [
        f"{name}: {rate:.2f} of 1000 words are 'what' or 'whatever', and {MOST_RELATIVES} may be; "
        f"most in {most}"
    ]


def new_titles(root: Path = ROOT) -> list[tuple[str, str]]:
    """Return hash and title of each commit since the merge base with the main branch.

    Merges are left out. Without Git, history or a main branch, there are none.
    """
    for branch in MAIN_BRANCHES:
        base = _git(root, "merge-base", "HEAD", branch)
        if base is not None:
            log = _git(root, "log", "--no-merges", "--format=%h %s", f"{base.strip()}..HEAD") or ""
            return [(line.partition(" ")[0], line.partition(" ")[2]) for line in log.splitlines()]
    return []


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of a Git command; None if it fails."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, encoding="utf-8"
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def lint(root: Path = ROOT) -> list[str]:
    """Return all findings, one line each."""
    findings: list[str] = []
    for name, places in DISTRIBUTIONS.items():
        findings += lint_distribution(name, modules(places, root), root)
    findings += lint_pages(modules(PAGES, root, "*.md"), root)
    for commit, title in new_titles(root):
        problem = title_problem(title)
        if problem is not None:
            findings.append(f"commit {commit} ({title}): {problem}")
    return findings


def main() -> int:
    """Print the findings, and return 1 if there are any."""
    findings = lint()
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings" if findings else "Prose: all rules hold.")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
