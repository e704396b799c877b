"""The test suites of the `onnx` package, run on a backend, with a summary by reason.

python -m plugins.ocannl_onnx.tests.node_cases --backend interp --match '^test_cast'
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

LIMIT = 120
"""Seconds of the processor for a case."""


class LimitExceededError(Exception):
    """A case took too long. It is no `TimeoutError`, which would mean a device that hangs."""


@dataclass
class Outcome:
    """The result of a case.

    Attributes:
        status: "agrees", "refused" (by name and reason), "wrong" (other numbers) or "failed".
        operator: The operator that was refused.
        reason: Why.
        constants: The inputs that were read when the graph was built.
    """

    name: str
    status: str
    operator: str = ""
    reason: str = ""
    constants: tuple[str, ...] = ()
    seconds: float = 0.0
    trace: str = ""


def load_cases(kind: str) -> dict[str, Any]:
    """Return the cases of a suite by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        return {each.name: each for each in load_model_tests(kind=kind)}


@contextmanager
def only(names: Collection[str]) -> Iterator[None]:
    """Have the package make node cases of these names, and few others; all take ten seconds.

    It makes them in functions `export...` of classes, which are called as modules are imported, and
    which have the beginnings of names as constants.
    """
    from onnx.backend.test.case import base

    make = base._Exporter.__init__

    def make_some(cls: type, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> None:
        chosen = {
            key: value
            for key, value in members.items()
            if not key.startswith("export") or _may_make(value.__func__.__code__, names)
        }
        make(cls, name, bases, chosen)

    def forget() -> None:
        for module in list(sys.modules):
            if module.startswith("onnx.backend.test.case.node"):
                del sys.modules[module]

    forget()
    base._Exporter.__init__ = make_some
    try:
        yield
    finally:
        base._Exporter.__init__ = make
        forget()


def _may_make(code: CodeType, names: Collection[str]) -> bool:
    """Return True if a function makes a case of one of some names, or names none."""
    begun = [text.partition("%")[0].partition("{")[0] for text in _texts(code)]
    return not begun or any(name.startswith(each) for name in names for each in begun)


def _texts(code: CodeType) -> Iterator[str]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _texts(each)
        elif isinstance(each, str) and each.startswith("test_"):
            yield each


def data_sets(case: Any, model: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the inputs and outputs of a case; suites other than `node` have them in files."""
    if case.data_sets is not None:
        import onnx

        def plain(item: Any) -> Any:
            return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item

        return [([plain(i) for i in a], [plain(o) for o in b]) for a, b in case.data_sets]
    if case.model_dir is None:  # networks without their weights, with one expected output
        own = {each.name for each in model.graph.initializer}
        port = next(each for each in model.graph.input if each.name not in own)
        sizes = [each.dim_value or 1 for each in port.type.tensor_type.shape.dim]
        count = int(np.prod(sizes))
        x = (np.arange(count).reshape(sizes) / count).astype(np.float32)
        path = light_model(case)
        return [
            ([x], [_read(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0].type)])
        ]
    found = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        sets: list[list[Any]] = [[], []]
        for own, kind, ports in (
            (sets[0], "input", model.graph.input),
            (sets[1], "output", model.graph.output),
        ):
            for at in range(len(list(folder.glob(f"{kind}_*.pb")))):
                own.append(_read(folder / f"{kind}_{at}.pb", ports[at].type))
        found.append((sets[0], sets[1]))
    return found


def light_model(case: Any) -> Path:
    """Return the file of a network of the suite `real`, which comes with the package."""
    import onnx

    return Path(onnx.__file__).parents[1] / case.url


def _read(path: Path, kind: Any) -> Any:
    import onnx

    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        sequence = onnx.SequenceProto()
        sequence.ParseFromString(content)
        return onnx.numpy_helper.to_list(sequence)
    if kind.HasField("optional_type"):
        optional = onnx.OptionalProto()
        optional.ParseFromString(content)
        return onnx.numpy_helper.to_optional(optional)
    tensor = onnx.TensorProto()
    tensor.ParseFromString(content)
    return onnx.numpy_helper.to_array(tensor)


def run_case(case: Any, backend: str) -> Outcome:
    """Run a case, and compare its outputs with the expected ones."""
    import onnx
    from onnx.backend.test.runner import Runner

    from ocannl_onnx import UnsupportedOperatorError, load
    from ocannl_onnx.backend import PreparedModel

    start = time.perf_counter()
    prepared = None

    def outcome(status: str, operator: str = "", reason: str = "", trace: str = "") -> Outcome:
        constants = tuple(sorted(prepared.constants)) if prepared else ()
        return Outcome(
            case.name,
            status,
            operator,
            reason,
            constants,
            round(time.perf_counter() - start, 2),
            trace,
        )

    def expire(*_: Any) -> None:
        raise LimitExceededError(f"more than {LIMIT} s")

    signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        if case.model is not None:
            model, prepared = case.model, PreparedModel(load(case.model), backend)
        else:
            path = Path(case.model_dir) / "model.onnx" if case.model_dir else light_model(case)
            model = onnx.load(path)
            prepared = PreparedModel(load(path), backend)
        for inputs, expected in data_sets(case, model):
            found = prepared.run(inputs)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compare(Runner, expected, found, case.rtol, case.atol)
        return outcome("agrees")
    except UnsupportedOperatorError as error:
        return outcome("refused", error.operator, error.reason)
    except AssertionError as error:
        return outcome("wrong", _operators(case), " ".join(str(error).split())[:300])
    except Exception as error:
        return outcome(
            "failed",
            _operators(case),
            f"{type(error).__name__}: {error}"[:600],
            traceback.format_exc()[-3000:],
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def compare(runner: Any, expected: Any, found: Any, rtol: float, atol: float) -> None:
    """Compare as the runner of the package does, which has no scalars in sequences."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, list | tuple):
            assert isinstance(other, list | tuple), f"{type(other)} for a sequence"
            compare(runner, one, other, rtol, atol)
        else:
            runner.assert_similar_outputs([one], [other], rtol, atol)


def _operators(case: Any) -> str:
    if case.model is None:
        return ""
    return "+".join(sorted({each.op_type for each in case.model.graph.node}))


import ocannl_onnx.backend  # noqa: E402, F401  (before processes are forked)

_CASES: dict[str, Any] = {}
_BACKEND = "interp"


def _work(name: str) -> Outcome:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    return run_case(_CASES[name], _BACKEND)


def run_suite(
    kind: str, backend: str, names: list[str], cases: dict[str, Any], processes: int
) -> list[Outcome]:
    """Run cases in parallel."""
    global _BACKEND
    _CASES.update(cases)
    _BACKEND = backend
    if processes <= 1:
        return [_work(name) for name in names]
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=200) as pool:
        return list(pool.imap_unordered(_work, names, chunksize=4))


def summary(outcomes: list[Outcome], limit: int = 60) -> str:
    """Return counts by status, and the reasons of those that do not agree, the most frequent first."""
    lines = [
        ", ".join(
            f"{n} {status}" for status, n in Counter(o.status for o in outcomes).most_common()
        )
    ]
    groups: dict[str, list[str]] = defaultdict(list)
    for each in outcomes:
        if each.status != "agrees":
            key = f"{each.status} {each.operator}: {re.sub(chr(10) + '.*', '', each.reason)[:160]}"
            groups[key].append(each.name)
    for key, names in sorted(groups.items(), key=lambda item: -len(item[1]))[:limit]:
        lines.append(
            f"{len(names):4} {key}   [{', '.join(n.removeprefix('test_') for n in names[:3])}]"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="interp")
    parser.add_argument(
        "--suite",
        default="node",
        choices=["node", "simple", "pytorch-operator", "pytorch-converted", "real"],
    )
    parser.add_argument("--match", default="")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 8))
    parser.add_argument("--save", type=Path, help="a JSON file for the outcomes; others in it stay")
    parser.add_argument(
        "--only",
        choices=["agrees", "refused", "wrong", "failed"],
        nargs="*",
        help="cases with these outcomes in --from",
    )
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--limit", type=int, default=60)
    given = parser.parse_args(arguments)
    cases = load_cases(given.suite)
    names = [name for name in cases if re.search(given.match, name)]
    if given.only:
        known = {each["name"]: each for each in json.loads(given.source.read_text())}
        names = [name for name in names if name in known and known[name]["status"] in given.only]
    start = time.perf_counter()
    outcomes = run_suite(given.suite, given.backend, names, cases, given.processes)
    print(summary(outcomes, given.limit))
    print(
        f"{len(outcomes)} cases of {given.suite} on {given.backend} in {time.perf_counter() - start:.0f} s"
    )
    if given.trace:
        for each in outcomes:
            if each.trace:
                print(each.name, each.trace, sep="\n")
    if given.save:
        old = json.loads(given.save.read_text()) if given.save.exists() else []
        merged = {each["name"]: each for each in old} | {
            each.name: asdict(each) for each in outcomes
        }
        given.save.write_text(
            json.dumps(sorted(merged.values(), key=lambda e: e["name"]), indent=0)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
