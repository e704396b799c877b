"""Summaries of models: the shapes, parameters, bytes and operations of their blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import prod
from operator import attrgetter
from typing import Any, assert_never

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.graphs import reachable
from ocannl_core.base.identity import ById
from ocannl_core.base.text_tables import aligned_rows
from ocannl_core.display.cells import compile_aside
from ocannl_core.ir.assignments import nodes as assignments
from ocannl_core.ir.assignments.nodes import AssignSequence
from ocannl_core.ir.indexing import traversals
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, TernaryOp, UnaryOp
from ocannl_core.tensor.computations.computation import forward
from ocannl_core.tensor.graph.definitions import ResultOfLoop, ancestors
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock

_OPERATIONS: Mapping[Op, int] = {
    UnaryOp.IDENTITY: 0,
    BinaryOp.FIRST: 0,
    BinaryOp.SECOND: 0,
    TernaryOp.FMA: 2,
}
"""The number of operations of a primitive, where it is not 1."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A block, or a parameter.

    Attributes:
        depth: The number of blocks around it.
        name: Its title, or the parameter's name.
        shape: The shape of its result, or of the parameter.
        parameters: The number of cells of the parameters that it made, inner blocks included; a
            parameter that an earlier application made does not count again.
        nbytes: The bytes of these parameters.
        operations: The number of operations of its forward code, inner blocks included; an addition
            and a multiplication are two, a function is one.
        is_parameter: True for a parameter.
    """

    depth: int
    name: str
    shape: str
    parameters: int
    nbytes: int
    operations: int
    is_parameter: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """A table of a model; `str` gives text, notebooks show HTML."""

    rows: tuple[SummaryRow, ...]
    """Blocks in the order of their first operations, each followed by its own parameters."""
    parameters: int
    """The number of cells of all parameters."""
    trained: int
    """The number of cells of parameters that training changes."""
    nbytes: int
    """The bytes of all parameters and statistics."""
    operations: int
    """The number of operations of the forward code."""
    external: int = 0
    """The number of calls of user-written operations, whose work is not counted."""

    def __str__(self) -> str:
        table = self._table()
        head, *lines = aligned_rows(table, numbers=len(table[0]) - 2)
        rule = "─" * len(head)
        return "\n".join([head, rule, *lines, rule, self._totals()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        heads, *lines = self._table()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
        body = "\n".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{"left" if k < 2 else "right"};white-space:pre">'
                f"{escape(cell)}</td>"
                for k, cell in enumerate(cells)
            )
            + "</tr>"
            for cells in lines
        )
        return f"<table>\n<tr>{head}</tr>\n{body}\n</table>\n<div>{escape(self._totals())}</div>"

    def _table(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = [("block", "shape", "parameters", "bytes", "operations")]
        for row in self.rows:
            counts = (row.parameters, row.nbytes, 0 if row.is_parameter else row.operations)
            texts = (f"{count:,}" if count else "" for count in counts)
            found.append(("  " * row.depth + row.name, row.shape, *texts))
        return found

    def _totals(self) -> str:
        fixed = self.parameters - self.trained
        text = f"{self.parameters:,} parameters"
        text += f" ({fixed:,} of them not trained)" if fixed else ""
        text += f", {self.nbytes:,} bytes; {self.operations:,} operations forward"
        calls = f" and {self.external} external calls"
        return text + (calls if self.external else "")


def summary(tensor: Tensor) -> Summary:
    """Return a table of the blocks and parameters behind a tensor; `print` shows it.

    Each block has the shape of its result, its parameters, their bytes, and the operations of its
    forward code. Counting them makes shapes final, as compiling does.

    Args:
        tensor: The output of a model, or its loss.

    Raises:
        UsageError: if it is no tensor.
        ShapeError: if shapes contradict each other, or leave a parameter's size open.
    """
    if not isinstance(tensor, Tensor):
        raise UsageError.at_caller(
            "oc.summary counts the parameters behind a tensor.",
            found=f"{type(tensor).__name__}: {tensor!r}",
            fix="oc.summary(net(x)), where x is a placeholder",
        )
    with compile_aside(tensor.session):
        code = forward(tensor)
        program = code.resolve()
        known = code.tensors().values()
    graph = _with_bodies(ancestors([tensor]))
    count = _Count({each.id: each for each in (*known, *graph)}, tensor)
    count.add(program.body, 1)
    parameters = [each for each in graph if each.is_parameter]
    return Summary(
        tuple(_rows(_sections(graph), count.operations, 0)),
        sum(each.size for each in parameters),
        sum(each.size for each in parameters if each.grad is not None),
        sum(map(_nbytes, (*parameters, *tensor.statistics))),
        sum(count.operations.values()),
        count.external,
    )


def _with_bodies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors and the tensors that a step of each loop computes, oldest first."""

    def inside(tensor: Tensor) -> tuple[Tensor, ...]:
        definition = tensor.definition
        return definition.loop.body if isinstance(definition, ResultOfLoop) else ()

    return sorted(reachable(tensors, inside), key=attrgetter("id"))


class _Count:
    """The number of operations behind each tensor, and of calls of user-written operations."""

    def __init__(self, known: Mapping[int, Tensor], root: Tensor) -> None:
        self.operations: Counter[Tensor] = Counter()
        self.external = 0
        self._known = known
        self._last = root

    def add(self, body: Sequence[assignments.Assignment], times: int) -> None:
        """Count assignments that run `times` times. Assignments to an intermediate node count for
        the tensor before it. A step of a loop has copies of nodes, with their tensors' identities.
        """
        for assignment in body:
            match assignment:
                case assignments.Accumulate(target, combine, _, op, _, projections):
                    self._last = self._known.get(target.id, self._last)
                    each = _operations(op) + _operations(combine)
                    domains = (domain for domain, _ in traversals(projections))
                    cells = sum(prod(extent for _, extent in domain) for domain in domains)
                    self.operations[self._last] += times * each * cells
                case assignments.RepeatedAssignments(count=count, body=inside):
                    self.add(inside, times * count)
                case AssignSequence(inside) | assignments.Section(_, inside):
                    self.add(inside, times)
                case assignments.ExternalCall():
                    self.external += times
                case assignments.Fetch() | assignments.SetVector():
                    pass
                case _:
                    assert_never(assignment)


def _operations(op: Op | assignments.Formula) -> int:
    """Return the number of operations of a primitive or a formula for one cell."""
    if not isinstance(op, assignments.Formula):
        return _OPERATIONS.get(op, 1)
    inner = sum(_operations(arg) for arg in op.args if not isinstance(arg, int))
    return _operations(op.op) + inner


def _nbytes(tensor: Tensor) -> int:
    return tensor.size * tensor.dtype.nbytes


class _Section:
    """A block with the tensors that its body made, and the blocks in it, in order."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.tensors: list[Tensor] = []
        self.inner: dict[ById, _Section] = {}

    def every(self) -> Iterator[Tensor]:
        yield from self.tensors
        for section in self.inner.values():
            yield from section.every()


def _sections(graph: Sequence[Tensor]) -> _Section:
    """Return the tensors of a graph by the blocks that made them, one section for each block."""
    root = _Section("")
    for tensor in graph:
        section = root
        for block in _blocks(tensor):
            section = section.inner.setdefault(ById(block), _Section(block.title))
        section.tensors.append(tensor)
    return root


def _blocks(tensor: Tensor) -> Sequence[NetworkBlock[Any]]:
    """Return the blocks around a tensor, outermost first."""
    if tensor.is_parameter or tensor.is_statistic:
        return tensor.scopes
    return () if tensor.made_in is None else tensor.made_in.blocks


def _rows(section: _Section, operations: Counter[Tensor], depth: int) -> Iterator[SummaryRow]:
    for tensor in section.tensors:
        if tensor.is_parameter:
            name, shape = tensor.label[0], str(tensor.shape)
            yield SummaryRow(depth, name, shape, tensor.size, _nbytes(tensor), 0, True)
    for inner in section.inner.values():
        tensors = list(inner.every())
        computed = [each for each in tensors if not each.is_parameter]
        parameters = [each for each in tensors if each.is_parameter]
        yield SummaryRow(
            depth,
            inner.title,
            str(max(computed, key=lambda each: each.id).shape) if computed else "",
            sum(each.size for each in parameters),
            sum(map(_nbytes, parameters)),
            sum(operations[each] for each in tensors),
        )
        yield from _rows(inner, operations, depth + 1)
    rest = sum(operations[each] for each in section.tensors)
    if depth == 0 and rest:
        yield SummaryRow(0, "outside of blocks", "", 0, 0, rest)
