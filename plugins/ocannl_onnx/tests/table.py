"""Writes the table of `docs/reference/onnx.md`: the suites of the `onnx` package, and each refusal.

python -m plugins.ocannl_onnx.tests.table [--backends interp cpu_c] [--from DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path

from plugins.ocannl_onnx.tests.node_cases import Outcome, load_cases, run_suite

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "onnx.md"
BEGIN, END = "<!-- table: make onnx-table -->", "<!-- end of the table -->"
SUITES = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")


def outcomes_of(suite: str, backend: str, folder: Path | None, processes: int) -> list[Outcome]:
    """Return the outcomes of a suite, from a file of `node_cases --save` if there is one."""
    path = None if folder is None else folder / f"{backend}-{suite}.json"
    if path is not None and path.exists():
        return [Outcome(**each) for each in json.loads(path.read_text())]
    cases = load_cases(suite)
    outcomes = run_suite(suite, backend, list(cases), cases, processes)
    if path is not None:
        path.write_text(json.dumps([asdict(each) for each in outcomes], indent=0))
    return outcomes


def table(results: dict[tuple[str, str], list[Outcome]]) -> str:
    """Return the text between the marks of the page."""
    import onnx

    backends = list(dict.fromkeys(backend for _, backend in results))
    lines = [
        f"With `onnx` {onnx.__version__}:",
        "",
        "| suite | cases | " + " | ".join(f"agree on `{each}`" for each in backends) + " |",
        "|---|--:|" + "--:|" * len(backends),
    ]
    for suite in dict.fromkeys(suite for suite, _ in results):
        counts = [
            str(sum(o.status == "agrees" for o in results[suite, backend]))
            if (suite, backend) in results
            else "-"
            for backend in backends
        ]
        total = max(len(found) for (own, _), found in results.items() if own == suite)
        lines.append(f"| {suite} | {total} | {' | '.join(counts)} |")
    constants = sum(
        bool(each.constants) and each.status == "agrees"
        for (suite, backend), found in results.items()
        if (suite, backend) == ("node", backends[0])
        for each in found
    )
    lines += [
        "",
        f"In {constants} of the node cases an input decides a shape, such as the new shape of `Reshape`: it is given as an array,",
        "and the others as tensors.",
        "",
        "| operator | outcome | cases | reason |",
        "|---|---|--:|---|",
    ]
    groups: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for (suite, _), found in results.items():
        for each in found:
            if each.status != "agrees":
                reason = re.sub(r"\s+", " ", each.reason).split(" First")[0][:160]
                groups[each.operator or suite, each.status, reason.replace("|", "/")].add(each.name)
    order = Counter({key: len(names) for key, names in groups.items()})
    for key, count in sorted(order.items(), key=lambda item: (-item[1], item[0])):
        operator, status, reason = key
        lines.append(f"| {operator} | {status} | {count} | {reason} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="*", default=["interp", "cpu_c"])
    parser.add_argument("--suites", nargs="*", default=SUITES, choices=SUITES)
    parser.add_argument("--from", dest="folder", type=Path, help="saved outcomes, where there are")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    results = {
        (suite, backend): outcomes_of(suite, backend, given.folder, given.processes)
        for suite in given.suites
        for backend in given.backends
        # networks of pictures are too slow for an interpreter of Python
        if (suite, backend) != ("real", "interp")
    }
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}", encoding="utf-8")
    wrong = [o.name for found in results.values() for o in found if o.status in ("wrong", "failed")]
    print("\n".join(wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main())
