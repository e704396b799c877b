"""Text of assignments, in the notation of user code.

    # model.py:12: c = w @ x
    c[neutral][b, o] += w[o, i] * x[b, i]   # over b<64, o<8, i<32

`c[neutral][...]` resets the cells to the neutral element first; `max=` accumulates with `max`. The
user's line stands above its assignments, once for consecutive ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from ocannl_core.ir.assignments import nodes as assign
from ocannl_core.ir.assignments.traverse import Leaf
from ocannl_core.ir.indexing import AxisIndex, ComputedIndex, IndexMap
from ocannl_core.ir.numbers.primitives import BinaryOp, Op
from ocannl_core.ir.text import (
    ATOM,
    PrintedNames,
    Text,
    accumulation_symbol,
    application,
    axis_texts,
    number_text,
    subscript,
)


def to_text(program: assign.AssignProgram) -> str:
    """Return a program as text: its name, the shape of every node, and one line per assignment.

    Nodes are marked as `input` if the program does not compute them, as `kept` if they keep their
    cells between runs, starting from zero, and as `result`.
    """
    names = PrintedNames()
    if not program.nodes and not program.body:
        return f"{program.name}: nothing is assigned"
    lines = [f"{program.name}:"]
    for node, info in program.nodes.items():
        marks = ["kept"] * (node in program.fresh)
        marks += ["input"] * (node not in program.embedded and node not in program.fresh)
        marks += ["result"] * (node in program.results)
        padding = "".join(f" +{m.left}/{m.right}" for m in info.padding)
        shape = f"{info.dtype}[{', '.join(axis_texts(info.dims, info.extents))}]{padding}"
        lines.append(
            f"  {names.node(node)}: {shape}" + (f"  # {', '.join(marks)}" if marks else "")
        )
    lines += _lines(program.body, names)
    return "\n".join(lines)


def _lines(body: Sequence[assign.Assignment], names: PrintedNames) -> list[str]:
    lines: list[str] = []
    line_above = ""
    pending = [(each, 1) for each in reversed(body)]
    while pending:
        assignment, depth = pending.pop()
        margin = "  " * depth
        match assignment:
            case assign.AssignSequence(inner):
                pending += [(each, depth) for each in reversed(inner)]
            case assign.Section(title, inner):
                lines.append(f'{margin}section "{title}":')
                line_above = ""
                pending += [(each, depth + 1) for each in reversed(inner)]
            case assign.RepeatedAssignments(body=inner):
                lines.append(f"{margin}{assignment_text(assignment, names)}:")
                line_above = ""
                pending += [(each, depth + 1) for each in reversed(inner)]
            case _:
                origin = _origin(assignment)
                if origin and origin != line_above:
                    lines.append(f"{margin}# {origin}")
                    line_above = origin
                lines.append(margin + _with_domain(assignment, names))
    return lines


def _origin(assignment: Leaf) -> str:
    """Return the user's line of an assignment; empty for constants."""
    if isinstance(assignment, assign.Fetch) and isinstance(
        assignment.source, assign.Constant | assign.ConstantBits
    ):
        return ""
    origin = assignment.origin
    return str(origin.location or origin.operation) if origin is not None else ""


def _with_domain(assignment: Leaf, names: PrintedNames) -> str:
    with names.scope():
        text = assignment_text(assignment, names)
        if (
            not isinstance(assignment, assign.Accumulate | assign.SetVector)
            or not assignment.projections.domain
        ):
            return text
        domain = assignment.projections.domain
        ranges = ", ".join(f"{names.variable(var)}<{var.size or extent}" for var, extent in domain)
        return f"{text}   # over {ranges}"


def assignment_text(assignment: Leaf, names: PrintedNames) -> str:
    """Return one assignment as text, without its domain and origin."""
    match assignment:
        case assign.Accumulate(target, combine, reset, op, args, projections):
            for var, _ in projections.domain:
                names.variable(var)
            values: list[Text] = []

            def index_text(index: AxisIndex) -> str:
                if isinstance(index, ComputedIndex):
                    return values[index.operand][0]
                return names.index(index)

            maps = (projections.lhs, *projections.rhs)
            has_position = any(ComputedIndex in map(type, index_map) for index_map in maps)
            pairs = list(zip(args, projections.rhs, strict=True))
            values = [_operand(arg, index_map, names) for arg, index_map in pairs]
            if has_position:
                values = [_operand(arg, index_map, names, index_text) for arg, index_map in pairs]
            if op is BinaryOp.FIRST and has_position:
                value = values[0][0]  # the other operand is printed inside of an index
            else:
                value, _ = _value(op, values)
            resets = reset and combine is not BinaryOp.SECOND
            cell = names.node(target) + ("[neutral]" if resets else "")
            text = index_text if has_position else names.index
            cell = subscript(cell, map(text, projections.lhs))
            return f"{cell} {accumulation_symbol(combine)} {value}"
        case assign.SetVector(target, arg, projections):
            value, _ = _operand(arg, projections.rhs[0], names)
            return f"{names.cell(target, projections.lhs)}... = lanes({value})"
        case assign.Fetch(target, source):
            return f"{names.node(target)}[:] = {_source(source, names)}"
        case assign.RepeatedAssignments(index, count, is_reversed):
            return names.repetition(index, count, is_reversed)
        case assign.ExternalCall(op, inputs, targets):
            written = ", ".join(f"{names.node(node)}[:]" for node in targets)
            return f"{written} = {op.name}({', '.join(map(names.node, inputs))})"
        case _:
            assert_never(assignment)


def _operand(
    operand: assign.Operand,
    index_map: IndexMap,
    names: PrintedNames,
    index_text: Callable[[AxisIndex], str] | None = None,
) -> Text:
    index_text = index_text or names.index
    match operand:
        case assign.NodeOperand(node):
            return subscript(names.node(node), map(index_text, index_map)), ATOM
        case assign.Merge(node):
            return subscript(f"{names.node(node)}.merge", map(index_text, index_map)), ATOM
        case assign.Scalar(value):
            return number_text(value), ATOM
        case _:
            assert_never(operand)


def _value(op: Op | assign.Formula, operands: Sequence[Text]) -> Text:
    """Return a primitive of operands, or a formula."""
    if not isinstance(op, assign.Formula):
        return application(op, operands)
    args = [operands[arg] if isinstance(arg, int) else _value(arg, operands) for arg in op.args]
    return application(op.op, args)


def _source(source: assign.FetchSource, names: PrintedNames) -> str:
    match source:
        case assign.Constant(value):
            return number_text(value)
        case assign.ConstantBits(bits):
            return f"bits({bits:#x})"
        case assign.ConstantFill(values):
            return f"repeat({', '.join(map(number_text, values))})"
        case assign.RangeOverOffsets():
            return "offsets()"
        case assign.EmbedIndex(index, factors):
            return " * ".join(map(names.index, (index, *factors)))
        case _:
            assert_never(source)
