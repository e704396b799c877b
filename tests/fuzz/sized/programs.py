"""Random programs whose axes are long enough for schedules to matter, as data and as source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import ml_dtypes  # noqa: F401 - registers bfloat16 in NumPy
import numpy as np

from ..contraction import Undetermined
from ..notation import Invalid, Rows
from ..programs import Axes, Leaf, Program, Step
from ..reference import Call, expected_rows
from ..smaller import smaller
from .bounds import FORMATS, Array
from .formats import result_format

DATA = {
    "small": "integers(-2, 4, {dims})",
    "bits": "integers(0, 2, {dims})",
    "signs": "integers(-1, 2, {dims})",
    "wide": "integers(-99, 100, {dims})",
    "counts": "integers(0, 200, {dims})",
    "normal": "standard_normal({dims})",
    "positive": "uniform(0.5, 2.0, {dims})",
}
"""Distributions of cells, as methods of NumPy's generators."""


@dataclass(frozen=True)
class Given(Leaf):
    """A tensor that no operation computes, of a stated shape and format.

    Attributes:
        format: The number format.
        data: Which of `DATA` the cells are.
    """

    format: str = "float32"
    data: str = "small"

    @property
    def shape(self) -> Rows:
        batch, output, inputs = self.rows
        assert batch is not None
        assert output is not None
        assert inputs is not None
        return batch, output, inputs

    @property
    def expression(self) -> str:
        """The cells as Python source."""
        dims = tuple(n for row in self.shape for n in row)
        method = DATA[self.data].format(dims=dims)
        return f"np.random.default_rng({self.seed}).{method}.astype({self.format!r})"

    def array(self) -> Array:
        found: Array = np.asarray(eval(self.expression, {"np": np}))
        return found

    def source(self) -> str:
        batch, output, inputs = self.shape
        if self.kind == "tensor":
            axes = f", batch_axes={len(batch)}" if batch else ""
            axes += f", input_axes={len(inputs)}" if inputs else ""
            return f"{self.name} = oc.tensor({self.expression}{axes}, dtype={self.format!r})"
        rows = "" if self.kind == "param" else f"batch={list(batch)}, "
        rows += f"output={list(output)}, input={list(inputs)}"
        start = ", init=1" if self.kind == "param" else ""
        return f"{self.name} = oc.{self.kind}({self.name!r}, {rows}{start}, dtype={self.format!r})"


@dataclass(frozen=True)
class CaseOperation(Step):
    """An operation on earlier tensors; some have a number or a format in place of a specification.

    Attributes:
        format: The stated number format of the result, or none.
    """

    format: str = ""

    @property
    def call(self) -> Call:
        return replace(super().call, format=self.format)

    def expression(self) -> str:
        first = self.operands[0]
        if self.format:
            arguments = ", ".join(self.operands)
            text = f"oc.matmul({arguments})" if self.operation == "matmul" else super().expression()
            return f"{text[:-1]}, dtype={self.format!r})"
        match self.operation:
            case "times":
                return f"{first} * {self.spec}"
            case "plus":
                return f"{first} + {self.spec}"
            case "square":
                return f"{first} ** 2"
            case "cast":
                return f"oc.cast({first}, {self.spec!r})"
            case _:
                return super().expression()


@dataclass(frozen=True)
class UpdateRule:
    """Update after the gradients: SGD with momentum, or Adam.

    Attributes:
        losses: The results the gradients of whose sum are computed.
        rule: `none`, `sgd` or `adam`.
    """

    losses: tuple[str, ...]
    rule: str = "none"


ADAM = """@oc.cd
def adam(p):
    mean, square = oc.declare("mean"), oc.declare("square")
    mean[:] = 0.75 * mean + 0.25 * p.grad
    square[:] = 0.875 * square + 0.125 * (p.grad * p.grad)
    p -= 0.125 * mean / oc.sqrt(square + 1.0)
"""


@dataclass(frozen=True)
class SizedCase:
    """A program, its training, and the number of calls of the routine."""

    program: Program
    training: UpdateRule | None = None
    calls: int = 1

    @property
    def params(self) -> list[str]:
        """The parameters that gradients flow into."""
        if self.training is None:
            return []
        needed = set(self.training.losses)
        for step in reversed(self.program.expanded):
            if step.name in needed:
                needed.update(differentiable(step))
        return [s.name for s in self.program.leaves if s.kind == "param" and s.name in needed]

    @property
    def updated(self) -> list[str]:
        """The parameters that are updated: optimizers leave those without a gradient alone."""
        return [] if self.training is None or self.training.rule == "none" else self.params

    @property
    def compared(self) -> list[str]:
        """The parameters whose values after updates are compared: all, also those left alone."""
        return [s.name for s in self.program.leaves if s.kind == "param"] if self.updated else []

    def source(self) -> str:
        """Return the statements that build the tensors and `code`, which is to be compiled."""
        lines = [self.program.source()]
        training = self.training
        losses = () if training is None else training.losses
        codes = [f"oc.train.forward({root})" for root in self.program.roots if root not in losses]
        codes += [f"oc.train.grad_update({loss})" for loss in losses]
        if training is not None and training.rule == "sgd":
            rates = "learning_rate=0.125, momentum=0.5, weight_decay=0.25"
            if len(losses) == 1:
                codes.append(f"oc.train.sgd_update({losses[0]}, {rates})")
            else:
                codes += [f"oc.train.sgd_step({name}, {rates})" for name in self.updated]
        if training is not None and training.rule == "adam":
            lines.insert(0, ADAM)
            codes += [f"adam({name})" for name in self.params]
        return "\n".join([*lines, f"code = {' + '.join(codes)}"])

    def script(self, overrides: dict[str, object], keep: Sequence[str] | None) -> str:
        """Return a whole program that runs and prints."""
        stated = "".join(f", {name}={value!r}" for name, value in overrides.items())
        names = None if keep is None else f"[{', '.join(keep)}]"
        fills = [
            f"ctx[{leaf.name}] = {leaf.expression}"
            for leaf in self.program.leaves
            if isinstance(leaf, Given) and leaf.kind != "tensor"
        ]
        shown = list(self.program.roots if keep is None else keep) + self.compared
        lines = [
            "import ml_dtypes",
            "import numpy as np",
            "import ocannl_core as oc",
            *self.source().splitlines(),
            f"with oc.settings.overrides({stated[2:]}):",
            '    ctx = oc.Context("cpu_c")',
            f"    step = ctx.compile(code{'' if names is None else f', keep={names}'})",
            *(f"    {fill}" for fill in fills),
            f"    for _ in range({self.calls}):",
            "        step()",
            *(f"    print({name!r}, ctx[{name}])" for name in shown),
        ]
        return "\n".join(lines)


def differentiable(step: Step) -> tuple[str, ...]:
    """Return the operands that a gradient flows into."""
    match step.operation:
        case "less" | "less_equal" | "equal" | "not_equal" | "stop_gradient":
            return ()
        case "where" | "relu_gate" | "sat01_gate":
            return step.operands[1:]
        case _:
            return step.operands


def shapes_of(program: Program) -> dict[str, Rows]:
    """Return the shapes of all tensors.

    Raises:
        Invalid: if operands do not fit.
        Undetermined: if a shape does not follow from the operands.
    """
    shapes: dict[str, Rows] = {}
    for statement in program.statements:
        if isinstance(statement, Leaf):
            batch, output, inputs = statement.rows
            assert batch is not None
            assert output is not None
            assert inputs is not None
            shapes[statement.name] = (batch, output, inputs)
        else:
            shapes[statement.name] = shape_of(
                statement.call, [shapes[name] for name in statement.operands]
            )
    return shapes


def shape_of(call: Call, operands: Sequence[Rows]) -> Rows:
    """Return the shape of a result; raises Invalid or Undetermined."""
    expected = expected_rows(call, operands)
    if not all(row.is_certain for row in expected):
        raise Undetermined
    batch, output, inputs = (row.sizes for row in expected)
    return batch, output, inputs


_SMALLER_SIZES = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257)


def smaller_cases(case: SizedCase) -> list[SizedCase]:
    """Return cases that are simpler in one way."""
    found = []
    if case.calls > 1:
        found.append(replace(case, calls=case.calls - 1))
    training = case.training
    if training is not None:
        found.append(replace(case, training=None))
        if len(training.losses) > 1:
            for loss in training.losses:
                rest = tuple(each for each in training.losses if each != loss)
                found.append(replace(case, training=replace(training, losses=rest)))
        if training.rule != "none":
            found.append(replace(case, training=replace(training, rule="none")))
    programs = _cut(case.program) + smaller(case.program) + _shrunk(case.program)
    for program in programs:
        if training is None:
            found.append(replace(case, program=program))
        else:
            names = {step.name for step in program.steps}
            kept = tuple(loss for loss in training.losses if loss in names)
            tried = dict.fromkeys([kept, *((root,) for root in program.roots)])
            found += [
                replace(case, program=program, training=replace(training, losses=losses))
                for losses in tried
                if losses
            ]
    return [each for each in found if _is_whole(each)]


def _is_whole(case: SizedCase) -> bool:
    try:
        shapes_of(case.program)
    except (Invalid, Undetermined, ValueError, IndexError):
        return False
    return case.training is None or bool(case.params)


def _cut(program: Program) -> list[Program]:
    """Return programs in which a result is a given tensor instead of computed."""
    try:
        shapes = shapes_of(program)
    except (Invalid, Undetermined):
        return []
    formats = formats_of(program)
    found = []
    for position, statement in enumerate(program.statements):
        users = [step for step in program.steps if statement.name in step.operands]
        if isinstance(statement, Step) and users:
            rows: tuple[Axes, Axes, Axes] = shapes[statement.name]
            form = formats[statement.name]
            data = "bits" if FORMATS[form].is_integer else "normal"
            for kind in ("tensor", "param"):
                if kind == "tensor" or not rows[0]:
                    leaf = Given(statement.name, kind, rows, position, format=form, data=data)
                    rest = program.statements
                    found.append(Program((*rest[:position], leaf, *rest[position + 1 :])).pruned)
    return found


def formats_of(program: Program) -> dict[str, str]:
    """Return the number formats of all tensors."""
    formats: dict[str, str] = {}
    for statement in program.statements:
        if isinstance(statement, Given):
            formats[statement.name] = statement.format
        elif isinstance(statement, Step):
            operands = [FORMATS[formats[name]] for name in statement.operands]
            formats[statement.name] = result_format(statement.call, operands).name
    return formats


def _shrunk(program: Program) -> list[Program]:
    """Return programs in which all axes of some size are shorter."""
    sizes = {n for leaf in program.leaves for row in leaf.rows for n in row or ()}
    sizes |= {n for step in program.steps for _, n in step.context.values}
    found = []
    for size in sorted(sizes, reverse=True):
        for other in [*_SMALLER_SIZES, size - 1]:
            if other < size:
                found.append(Program(tuple(_resized(s, size, other) for s in program.statements)))
    return found


def _resized(statement: Leaf | Step, size: int, other: int) -> Leaf | Step:
    def changed(row: Axes) -> Axes:
        return None if row is None else tuple(other if n == size else n for n in row)

    if isinstance(statement, Leaf):
        batch, output, inputs = statement.rows
        return replace(statement, rows=(changed(batch), changed(output), changed(inputs)))
    values = tuple((k, other if n == size else n) for k, n in statement.context.values)
    return replace(statement, context=replace(statement.context, values=values))


def cells_of(rows: Rows) -> int:
    return prod(n for row in rows for n in row)
