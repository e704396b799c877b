"""Reduction of failing programs to smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .captures import Require, kept
from .notation import SpecContext
from .programs import Leaf, Program, Statement, Step, used_operands
from .reference import CONTRACTIONS
from .specs import simpler_specs


def smaller(program: Program) -> list[Program]:
    """Return programs for one of the results alone, with one statement less, or with a simpler
    one.
    """
    found = [program.without(root) for root in program.roots if len(program.roots) > 1]
    for position, statement in enumerate(program.statements):
        rest = program.statements[:position] + program.statements[position + 1 :]
        users = [s for s in program.steps if statement.name in s.operands]
        if not users:
            found.append(Program(rest))
        elif isinstance(statement, Step):
            found += [
                Program(tuple(_using(s, statement.name, operand) for s in rest))
                for operand in dict.fromkeys(statement.operands)
            ]
        found += [
            Program((*program.statements[:position], simpler, *program.statements[position + 1 :]))
            for simpler in _plainer(statement)
        ]
    return [candidate.pruned for candidate in found if candidate.steps]


def _using(statement: Statement, old: str, new: str) -> Statement:
    if not isinstance(statement, Step):
        return statement
    operands = tuple(new if name == old else name for name in statement.operands)
    return replace(statement, operands=operands)


def _simpler(leaf: Leaf) -> list[Leaf]:
    """Return leaves with an axis less."""
    found = []
    for kind, row in enumerate(leaf.rows):
        for axis in range(len(row or ())):
            assert row is not None
            rows = list(leaf.rows)
            rows[kind] = row[:axis] + row[axis + 1 :]
            found.append(replace(leaf, rows=(rows[0], rows[1], rows[2])))
            if row[axis] > 1:
                rows[kind] = (*row[:axis], row[axis] - 1, *row[axis + 1 :])
                found.append(replace(leaf, rows=(rows[0], rows[1], rows[2])))
    if leaf.basis is not None:
        found.append(replace(leaf, basis=None))
    if leaf.kind == "placeholder":
        found.append(replace(leaf, kind="tensor"))
    return found


def _plainer(step: Statement) -> Sequence[Statement]:
    """Return smaller leaves, steps with a simpler spec, or with less stated beside it."""
    if isinstance(step, Leaf):
        return _simpler(step)
    if isinstance(step, Require) or step.operation == "max_pool2d":
        return []
    if step.links:
        return _shorter(step)
    if step.operation not in CONTRACTIONS:
        return []
    found = [
        replace(step, spec=spec, capture=kept(step.capture, spec, step.context))
        for spec in simpler_specs(step.spec)
    ]
    found += [replace(step, capture=step.capture[:-1])] if step.capture else []
    padded, values = step.context.padded, step.context.values
    for position in range(len(values)):
        rest = values[:position] + values[position + 1 :]
        found.append(replace(step, context=SpecContext(padded, rest)))
    if padded is not None:
        found.append(replace(step, context=SpecContext(None, values)))
    return found


def _shorter(step: Step) -> list[Step]:
    """Return chains with fewer rounds or links, and a single link as a plain operation."""
    found = [replace(step, rounds=n) for n in (step.rounds // 2, step.rounds - 1) if n]
    for position in range(len(step.links)):
        rest = step.links[:position] + step.links[position + 1 :]
        if rest:
            operands, links = used_operands(step.operands, rest)
            found.append(replace(step, operands=operands, links=links))
    if step.rounds == len(step.links) == 1:
        found += step.expanded()
    return found
