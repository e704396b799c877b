"""Lint for the prose of docstrings, comments and commit titles.

    python tools/prose_lint.py            # exit status 1 and a line for each finding

These rules hold:

- No docstring begins with a word of `OPENINGS`: a summary is a noun phrase of the field or an
  imperative.
- The words of `LIMITS` are rare in the docstrings and comments of a distribution, and *what* in the
  tests and in the documentation outside of code, too: the noun of the field takes the place of a
  relative clause, and the subject is named.
- No argument's description repeats its name, as in `plan: The plan.`
- No comment is a bar between sections: modules divide ideas.
- Words are spelled as in identifiers, in American English: a search for a word finds all its uses.
- No name of a test contains a word of `NOT_IN_TESTS`: a test is named after the behavior of the
  code, without persons and relative clauses.
- Titles of commits since the merge base with the main branch are `area: imperative`, one idea each.
  Without history, as in an unpacked archive, they are not checked.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
    "ocannl_onnx": ("plugins/ocannl_onnx",),
    "tests and tools": ("tests", "tools", "benchmarks", "examples", "docs", ".ci", "conftest.py"),
}
"""The folders and files of each distribution; the last one is of those that are not installed."""

PAGES = ("docs", "README.md", "CONTRIBUTING.md", "plugins")
"""The folders and files of the documentation, in Markdown."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most uses of some words in 1000."""

    name: str
    pattern: re.Pattern[str]
    most: float


RELATIVES = Limit("'what' or 'whatever'", re.compile(r"\bwhat(?:ever)?\b", re.IGNORECASE), 1.0)
PRONOUNS = Limit(
    "'that of' or 'those of'", re.compile(r"\bth(?:at|ose)\s+of\b", re.IGNORECASE), 1.0
)
LIMITS = (RELATIVES, PRONOUNS)

OPENINGS = ("What", "Which", "How", "Where", "Whether", "Returns", "Yields")
NOT_IN_TESTS = frozenset(
    {"what", "whatever", "told", "asks", "asked", "knows", "nobody", "somebody", "anybody"}
)
MAIN_BRANCHES = ("main", "origin/main")

_OPENING = re.compile(rf"\s*({'|'.join(OPENINGS)})\b")
_CODE = re.compile(r"`[^`]*`")
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"[A-Za-z']+")
_REPEATED = re.compile(r"^\s+(\w+): (?:The|An?|Its|Their) \1\.$", re.MULTILINE)
_STRING_OR_COMMENT = re.compile(
    r'''("""|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*''', re.DOTALL
)
_BAR = re.compile(r"#\s*[-=]{4,}")
_BRITISH = re.compile(
    r"\b(\w+)is(?:e|ed|es|ing|ations?|ers?)\b|\b\w+ys(?:ed|ing)\b|"
    r"\b(?:behavi|col|fav|neighb)our\w*|\bcentred?\b",
    re.IGNORECASE,
)
_IN_ISE = {
    *("adv", "ar", "compr", "conc", "exerc", "no", "prec", "prem", "prom"),
    *("r", "ra", "rev", "superv", "surpr"),
}
"""Stems of words in -ise that American English spells so, too; others end in -wise."""
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


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, those inside of others included."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(tree, name, None)
        for each in inside if isinstance(inside, list) else ():
            yield each
            yield from statements(each)


def texts(source: str, tree: ast.Module | None = None) -> Iterator[Text]:
    """Yield the docstrings of a module, attribute docstrings included, and its comments."""
    for stmt in statements(tree or ast.parse(source)):
        match stmt:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Text(stmt.lineno, text, True)
    line = at = 0
    for found in _STRING_OR_COMMENT.finditer(source):
        line, at = line + source.count("\n", at, found.start()), found.start()
        if found[0].startswith("#"):
            yield Text(line + 1, found[0], False)


def forbidden_opening(docstring: str) -> str | None:
    """Return the first word of a docstring if it is a forbidden one."""
    found = _OPENING.match(docstring)
    return found[1] if found else None


def british_words(text: str) -> Iterator[str]:
    """Yield the words outside of code in backticks that are not in American spelling."""
    for found in _BRITISH.finditer(_CODE.sub(" ", text)):
        stem = (found[1] or "").lower()
        if stem not in _IN_ISE and not stem.endswith("w"):
            yield found[0]


class Uses:
    """The words of some texts, and the uses of limited ones in each file."""

    def __init__(self, *limits: Limit) -> None:
        self.words = 0
        self.found: dict[Limit, dict[Path, int]] = {limit: {} for limit in limits}

    def count(self, path: Path, text: str) -> None:
        """Count the words of a text outside of code in backticks."""
        prose = _CODE.sub(" ", text)
        self.words += len(_WORD.findall(prose))
        for limit, found in self.found.items():
            number = len(limit.pattern.findall(prose))
            if number:
                found[path] = found.get(path, 0) + number

    def problems(self, name: str) -> list[str]:
        """Return a finding for each limit that is exceeded, with the files of most uses."""
        findings = []
        for limit, found in self.found.items():
            rate = 1000 * sum(found.values()) / max(self.words, 1)
            if rate > limit.most:
                worst = sorted(found, key=lambda place: (-found[place], place))[:5]
                most = ", ".join(f"{place} ({found[place]})" for place in worst)
                findings.append(
                    f"{name}: {rate:.2f} of 1000 words are {limit.name}, and {limit.most} may be; "
                    f"most in {most}"
                )
        return findings


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


def forbidden_test_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each test whose name contains a word of `NOT_IN_TESTS`."""
    for node in statements(tree):
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


def lint_distribution(
    name: str, paths: Sequence[Path], root: Path = ROOT, limits: Sequence[Limit] = LIMITS
) -> list[str]:
    """Return the findings about the files of one distribution.

    The files with most uses are listed where the distribution exceeds a limit.
    """
    findings: list[str] = []
    uses = Uses(*limits)
    for path in paths:
        place = path.relative_to(root)
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        for line, test in forbidden_test_names(tree):
            findings.append(f"{place}:{line}: {test} contains a word of NOT_IN_TESTS")
        for each in texts(source, tree):
            findings += [f"{place}:{each.line}: {problem}" for problem in text_problems(each)]
            uses.count(place, each.text)
    return findings + uses.problems(name)


def text_problems(text: Text) -> Iterator[str]:
    """Yield the reasons for which a docstring or comment is refused."""
    for word in british_words(text.text):
        yield f"{word!r} is not in American spelling"
    if not text.is_docstring:
        if _BAR.match(text.text):
            yield "a comment is a bar between sections"
        return
    opening = forbidden_opening(text.text)
    if opening is not None:
        yield f"a docstring begins with {opening!r}"
    for found in _REPEATED.finditer(text.text):
        yield f"an argument repeats its name: {found[0].strip()!r}"


def lint_pages(paths: Sequence[Path], root: Path = ROOT) -> list[str]:
    """Return the findings about pages in Markdown."""
    uses = Uses(RELATIVES)
    findings: list[str] = []
    for path in paths:
        place = path.relative_to(root)
        text = _CODE_BLOCK.sub("", path.read_text(encoding="utf-8"))
        findings += [f"{place}: {w!r} is not in American spelling" for w in british_words(text)]
        uses.count(place, text)
    return findings + uses.problems("documentation")


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
        limits = LIMITS if name in places[0] else (RELATIVES,)
        findings += lint_distribution(name, modules(places, root), root, limits)
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
