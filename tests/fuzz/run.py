"""Random programs: each runs and agrees with the reference, or is refused with a reason.

    python -m tests.fuzz.run --count 10000 --seed 1 --backend interp
    python -m tests.fuzz.run --sized --count 1000 --seed 1
    python -m tests.fuzz.run --repeatable --count 500 --seed 1
    python -m tests.fuzz.run --compilers gcc-11 clang --count 1000 --seed 1
    python -m tests.fuzz.run --junk --count 100 --seed 1
    python -m tests.fuzz.run --exported --count 10000

Every program is built in two orders; of two in three, gradients are compared as well, in half of
these those of several losses. Some have a chain of pointwise operations, as long as `--longest`. A
failure is printed as the smallest program found that still shows it: a script to run.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from random import Random
from typing import Any

import numpy as np

import ocannl_core as oc
from ocannl_core.ir.indexing import VarIndex
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.shape.language.subscripts import Position

from .author import ProgramAuthor, ProgramLimits
from .compilers import main as compilers
from .contraction import ExpectedRow, Undetermined
from .expected import gradients_of, ties_of, values_of
from .exported import main as exported
from .grid import TooLarge
from .limits import Hang, limited
from .mending import mended
from .notation import Invalid, Rows
from .programs import FORMULAS, Program, Step
from .reference import expected_rows
from .sized.run import main as sized
from .smaller import smaller

SECONDS = 20
"""A program that takes longer hangs."""
LINKS_IN_A_SECOND = 25
"""Of a chain, on a machine that does much else."""
SECONDS_FOR_SMALLER = 2
"""While looking for the smallest program."""
SECONDS_TO_SHRINK = 60
LONGEST_LINE = 1000
DRAFTS = 8
"""One program of so many stays as it is written first."""

LOSSES = (0, 1, 2, 0, 1, 3)
"""The numbers of losses of programs, in turn."""

SCOPE = ProgramLimits()

OPERATIONS = (
    "einsum", "einmax", "outer_sum", "tropical", "concat", "stack", "matmul", "fma", "transpose", "slice", "parameter", "placeholder",
    "literal", "required", "neg", "relu", "sat01", "trunc", "logical_not", "add", "sub", "mul", "maximum",
    "minimum", "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or",
    "relu_gate", "sat01_gate", "where",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Result of a program.

    Attributes:
        kind: `agrees`, `refused` and `inexact` are fine; all others are failures.
        detail: The failure, or the error of a refusal.
        shapes: The shapes as text, if they were inferred.
        losses: The results whose gradients were compared.
        ties: The maxima whose rule for equal cells decided about these gradients.
    """

    kind: str
    detail: str = ""
    shapes: tuple[tuple[str, str], ...] = ()
    losses: tuple[str, ...] = ()
    ties: frozenset[str] = frozenset()

    @property
    def exception(self) -> str:
        """The name of the class of an exception."""
        return self.detail.partition(":")[0]

    @property
    def is_failure(self) -> bool:
        return self.kind not in ("agrees", "refused", "inexact")


def outcome_of(
    program: Program,
    backend: str | None = "interp",
    *,
    keep: bool = False,
    losses: int = 0,
    apart: bool = False,
    seconds: int = SECONDS,
) -> Outcome:
    """Return the outcome of a program.

    Args:
        backend: The backend; None infers shapes only.
        keep: True to compare the results of all operations, not only unused ones.
        losses: The number of results whose gradients in the parameters are compared, too.
        apart: True to assign to a tensor between the losses.
        seconds: The time limit, without the time for its chains.
    """
    seconds += sum(step.rounds * len(step.links) for step in program.steps) // LINKS_IN_A_SECOND
    try:
        with limited(seconds), warnings.catch_warnings(), oc.Session(seed=7, dtype="float64"):
            warnings.simplefilter("ignore")  # labels that are summed at once are meant here
            return _judged(program, backend, keep, losses, apart)
    except Hang:
        return Outcome("hang", f"more than {seconds} seconds")
    except Exception as error:
        if isinstance(error.__context__, Hang):  # the interruption came at a bad moment
            return Outcome("hang", f"more than {seconds} seconds")
        return Outcome("exception", f"{type(error).__name__}: {error}")


def differentiated(program: Program, tensors: dict[str, Any], count: int) -> tuple[str, ...]:
    """Return so many results that have a gradient: first those that no step uses, then those that
    some do, then again the same.
    """
    steps = [step.name for step in reversed(program.steps)]
    found = [
        name for name in dict.fromkeys([*program.roots, *steps]) if tensors[name].grad is not None
    ]
    return tuple(islice(cycle(found), count))


def _judged(
    program: Program, backend: str | None, keep: bool, number_of_losses: int, apart: bool
) -> Outcome:
    names: dict[str, Any] = {"oc": oc, "np": np}
    try:
        exec(compile(program.source(), "<program>", "exec"), names)
        losses = differentiated(program, names, number_of_losses)
        exec(compile(program.code(losses, apart=apart), "<code>", "exec"), names)
        computation = names["code"]
        computation.resolve()
    except (oc.ShapeError, oc.SpecError) as error:
        return _refusal(program, error)
    tensors = {s.name: names[s.name] for s in (*program.leaves, *program.steps)}
    sizes = {dim: names[dim].size for dim in program.dims}
    unknown = [dim for dim, size in sizes.items() if size is None]
    broken = [] if unknown else [each for each in program.requires if not each.holds(sizes)]
    if unknown or broken:
        return Outcome("requirement", f"sizes {sizes}, unlike {broken or unknown}")
    texts = tuple((name, str(tensor.shape)) for name, tensor in tensors.items())
    shapes = {name: _rows(tensor.shape) for name, tensor in tensors.items()}
    for step in program.steps:
        operands = [shapes[name] for name in step.operands]
        try:
            expected = expected_rows(step.sized(sizes), operands)
        except Invalid as error:
            if _leaves_its_axis(step, operands):
                return Outcome("inexact", shapes=texts)  # decided at run time; other tests cover it
            return Outcome("accepted", f"{step.source()}: {error}\n{texts}", texts)
        except Undetermined:
            continue
        found_rows = shapes[step.name]
        if not _admits(program, step.name, expected, found_rows):
            if _admits_scalars(program, step, sizes, operands, found_rows):
                return Outcome("inexact", shapes=texts)
            detail = f"{step.source()}\nexpected {expected}\nshapes {texts}"
            is_first = _admits(program, step.name, expected, found_rows, may_stretch_first=True)
            return Outcome("stretched" if is_first else "shape", detail, texts)
    if backend is None:
        return Outcome("agrees", shapes=texts)
    leaves = {leaf.name: leaf.cells(_dims(shapes[leaf.name])) for leaf in program.leaves}
    wanted = [step.name for step in program.steps] if keep else program.roots
    try:
        values = values_of(program, shapes, leaves, sizes)
    except (TooLarge, Undetermined):
        return Outcome("inexact", shapes=texts)
    except Invalid as error:
        return Outcome("accepted", f"{error}\n{texts}", texts)
    slopes = gradients_of(program, values, losses, sizes)
    kept = [tensors[name] for name in wanted] + [tensors[name].grad for name in slopes]
    found = _run(program, backend, computation, tensors, leaves, kept if keep or slopes else None)
    for name in wanted:
        cells, right = found(tensors[name]), values[name].cells
        if cells.shape != right.shape or not np.array_equal(cells, right, equal_nan=True):
            detail = f"{name}: {cells.tolist()}\nright: {right.tolist()}\nshapes {texts}"
            return Outcome("value", detail, texts)
    for name, right in slopes.items():
        cells = found(tensors[name].grad)
        if not np.array_equal(cells, right):
            detail = f"gradient of {' + '.join(losses)} in {name}: {cells.tolist()}\nright: {right.tolist()}"
            return Outcome("gradient", f"{detail}\nshapes {texts}", texts)
    ties = ties_of(program, values, losses, sizes, slopes)
    return Outcome("agrees", "", texts, losses if slopes else (), ties)


def _admits(
    program: Program,
    name: str,
    expected: Sequence[ExpectedRow],
    rows: Rows,
    *,
    may_stretch_first: bool = False,
) -> bool:
    """Return True if a result may have some rows."""
    return all(
        row.admits(
            found,
            may_lengthen=(name, kind) in program.lengthened,
            may_stretch_first=may_stretch_first,
        )
        for kind, (row, found) in enumerate(zip(expected, rows, strict=True))
    )


def _admits_scalars(
    program: Program, step: Step, sizes: dict[str, int], operands: Sequence[Rows], rows: Rows
) -> bool:
    """Return True if a result may have some rows once single axes of size 1 are taken for none: both are
    scalars.
    """
    forms = [
        [tuple(each) for each in product(*([row, ()] if row == (1,) else [row] for row in shape))]
        for shape in operands
    ]
    for others in product(*forms):
        shapes = [(batch, output, inputs) for batch, output, inputs in others]
        try:
            if _admits(program, step.name, expected_rows(step.sized(sizes), shapes), rows):
                return True
        except (Invalid, Undetermined):
            continue
    return False


def _leaves_its_axis(step: Step, operands: Sequence[Rows]) -> bool:
    """Return True if a static index without a range has a value that its axis has no position for."""
    axes = [size for row in operands[0] for size in row]
    return any(
        index.name and index.extent is None and index.value >= size
        for index, size in zip(step.indices, axes, strict=False)
    )


def _run(
    program: Program,
    backend: str,
    computation: Any,
    tensors: dict[str, Any],
    leaves: dict[str, Any],
    keep: list[Any] | None,
) -> Any:
    indices = _static_indices(tensors, program)
    context = oc.Context(backend)
    routine = context.compile(computation, bindings=list(indices.values()), keep=keep)
    for leaf in program.leaves:
        if leaf.kind != "tensor":
            context[tensors[leaf.name]] = leaves[leaf.name]
    routine(**{index.name: index.value for index in program.indices})
    return lambda tensor: context[tensor]


def _static_indices(tensors: dict[str, Any], program: Program) -> dict[str, Any]:
    """Return the static indices, as the slices hold them."""
    found = {}
    for step in program.steps:
        if step.operation == "slice":
            logic = tensors[step.name].definition.logic
            for key in logic.keys:
                match key:
                    case Position(VarIndex(index)):
                        found[index.name] = index
    return found


def _rows(shape: Shape) -> Rows:
    return shape.batch.sizes, shape.output.sizes, shape.input.sizes


def _dims(rows: Rows) -> list[int]:
    return [n for row in rows for n in row]


def _refusal(program: Program, error: oc.OcannlError) -> Outcome:
    """Return the outcome of a refused program."""
    text = f"{type(error).__name__}: {error}"
    if not any(name in error.where for name in OPERATIONS):
        return Outcome("unnamed", text)
    if "step budget" in text:
        return Outcome("hang", text)
    if _is_surely_valid(program):
        return Outcome("rejected", text)
    return Outcome("refused", text)


def _is_surely_valid(program: Program) -> bool:
    """Return True if all shapes follow from the leaves and fit."""
    shapes: dict[str, Rows] = {}
    if program.requires or any(leaf.basis for leaf in program.leaves):
        return False
    for leaf in program.leaves:
        batch, output, inputs = leaf.rows
        if batch is None or output is None or inputs is None:
            return False
        shapes[leaf.name] = (batch, output, inputs)
    for step in program.steps:
        try:
            operands = [shapes[name] for name in step.operands]
            batch_row, output_row, input_row = expected_rows(step.call, operands)
        except (Invalid, Undetermined):
            return False
        if not (batch_row.is_certain and output_row.is_certain and input_row.is_certain):
            return False
        shapes[step.name] = (batch_row.sizes, output_row.sizes, input_row.sizes)
    return True


def draft_of(seed: int, number: int, scope: ProgramLimits = SCOPE) -> Program:
    """Return one of the programs of a seed as it is written first; half of them are refused."""
    return ProgramAuthor(Random(f"{seed} {number}"), scope).program()


def program_of(seed: int, number: int, scope: ProgramLimits = SCOPE) -> Program:
    """Return a program of a seed, mostly without refused operations."""
    draft = draft_of(seed, number, scope)
    if number % DRAFTS == 0:
        return draft
    try:
        with limited(SECONDS):
            found = mended(draft, Random(number))
    except (Hang, Exception):
        return draft  # the outcome shows its error
    return found if found.steps else draft


def examined(seed: int, number: int, backend: str, scope: ProgramLimits) -> Outcome:
    """Return the outcome of one program, in its own order and in another one."""
    return examined_program(program_of(seed, number, scope), number, backend)


def examined_program(program: Program, number: int, backend: str) -> Outcome:
    """Return the outcome of a program, in its own order and in another one.

    Args:
        number: The source of choices: the gradients that are compared, the other order.
        backend: The device.
    """
    outcome = _outcome(program, number, backend)
    if outcome.is_failure:
        return outcome
    return _in_another_order(program, number, outcome)


def _outcome(program: Program, number: int, backend: str, seconds: int = SECONDS) -> Outcome:
    losses, apart = _losses_of(number)
    return outcome_of(
        program, backend, keep=number % 2 == 0, losses=losses, apart=apart, seconds=seconds
    )


def _losses_of(number: int) -> tuple[int, bool]:
    """Return the number of losses of a program, and whether something stands between them."""
    return LOSSES[number % len(LOSSES)], number // len(LOSSES) % 2 == 1


def _in_another_order(program: Program, number: int, outcome: Outcome) -> Outcome:
    other = outcome_of(program.reordered(Random(number)), None)
    if sorted(other.shapes) != sorted(outcome.shapes):
        return Outcome("order", f"{outcome}\nin another order: {other}")
    return outcome


def reduced(program: Program, number: int, outcome: Outcome, backend: str) -> Program:
    """Return the smallest program found with the same kind of failure."""
    kind = outcome.kind

    def fails(candidate: Program) -> bool:
        found = _outcome(candidate, number, backend, SECONDS_FOR_SMALLER)
        if kind == "order" and not found.is_failure:
            return any(
                _in_another_order(candidate, number + attempt, found).is_failure
                for attempt in range(10)
            )
        is_same = kind != "exception" or found.exception == outcome.exception
        return found.kind == kind and is_same

    tried = {program}
    until = time.monotonic() + SECONDS_TO_SHRINK
    progress = True
    while progress:
        progress = False
        for candidate in smaller(program):
            if candidate in tried or time.monotonic() > until:
                continue
            tried.add(candidate)
            if fails(candidate):
                program, progress = candidate, True
                break
    return program


def report(seed: int, number: int, outcome: Outcome, backend: str, scope: ProgramLimits) -> str:
    """Return a failure as text: the failure of the smallest program, and the program."""
    small = reduced(program_of(seed, number, scope), number, outcome, backend)
    again = _outcome(small, number, backend)
    if outcome.kind == "order":
        again = _in_another_order(small, number, again)
    detail = "\n".join(
        f"# {line[:LONGEST_LINE]}" for line in (again.detail or outcome.detail).splitlines()
    )
    script = small.script(backend, _losses_in(again), apart=_losses_of(number)[1])
    return f"# ----- program {number} of seed {seed}: {outcome.kind}\n{detail}\n{script}\n"


def _losses_in(outcome: Outcome) -> list[str]:
    """Return the results whose gradients are wrong."""
    found = re.match(r"gradient of (.+) in \w+:", outcome.detail)
    return found[1].split(" + ") if found else []


def main() -> int:
    """Run the programs that the command line selects; return 1 if there were failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="how many programs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--backend", default="interp")
    parser.add_argument("--also", default="cpu_c", help="a second backend, for a share of them")
    parser.add_argument("--share", type=int, default=50, help="one program of so many runs there")
    parser.add_argument("--without", nargs="*", default=[], choices=sorted(FORMULAS))
    parser.add_argument(
        "--longest", type=int, default=3000, help="how many operations chains have at most"
    )
    parser.add_argument("--stop-after", type=int, default=10, help="how many failures to report")
    parser.add_argument(
        "--sized", action="store_true", help="programs with long axes; its options: --sized --help"
    )
    parser.add_argument(
        "--repeatable",
        action="store_true",
        help="compares C texts between processes; its options: --repeatable --help",
    )
    parser.add_argument(
        "--compilers",
        action="store_true",
        help="compares C compilers with the interpreter; its options: --compilers --help",
    )
    parser.add_argument(
        "--junk",
        action="store_true",
        help="junk as arguments of public callables; its options: --junk --help",
    )
    parser.add_argument(
        "--exported",
        action="store_true",
        help="calls exported files under sanitizers; its options: --exported --help",
    )
    if "--junk" in sys.argv[1:]:
        from .junk import main as junk

        return junk([each for each in sys.argv[1:] if each != "--junk"])
    if "--sized" in sys.argv[1:]:
        return sized([each for each in sys.argv[1:] if each != "--sized"])
    if "--repeatable" in sys.argv[1:]:
        from .repeatable import main as repeatable

        return repeatable([each for each in sys.argv[1:] if each != "--repeatable"])
    if "--exported" in sys.argv[1:]:
        return exported([each for each in sys.argv[1:] if each != "--exported"])
    if "--compilers" in sys.argv[1:]:
        return compilers([each for each in sys.argv[1:] if each != "--compilers"])
    arguments = parser.parse_args()
    scope = ProgramLimits(FORMULAS - set(arguments.without), arguments.longest)
    counts: Counter[str] = Counter()
    failures = 0
    started = time.monotonic()
    for number in range(arguments.first, arguments.first + arguments.count):
        backends = [arguments.backend]
        if arguments.also and number % arguments.share == 0:
            backends.append(arguments.also)
        for backend in backends:
            outcome = examined(arguments.seed, number, backend, scope)
            counts[outcome.kind] += 1
            if outcome.is_failure:
                failures += 1
                print(report(arguments.seed, number, outcome, backend, scope), flush=True)
                break
        if failures >= arguments.stop_after:
            break
    print(f"{dict(counts)} in {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
