"""Repair of refused programs, so that more of them run and become deep.

A refused operation is removed, and uses of its result use its operand. Rows of a parameter that
nothing determines are stated. Right and wrong are decided by the reference: here the project only
decides whether it accepts a program.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import reduce
from operator import add
from random import Random
from typing import Any

import numpy as np

import ocannl_core as oc

from .captures import Require
from .programs import Axes, Leaf, Program, Statement, Step

_ROUNDS = 6


def mended(program: Program, random: Random) -> Program:
    """Return the program, or one like it that is probably not refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that are summed at once are meant here
        for _ in range(_ROUNDS):
            with oc.Session(dtype="float64"):
                names: dict[str, Any] = {"oc": oc, "np": np}
                program = _accepted(program, names)
                if not program.steps or not _hides(program, names):
                    return program
            program = _stated(program, random)
    return program


def _accepted(program: Program, names: dict[str, Any]) -> Program:
    """Return the program without operations that are refused at once, and create its tensors."""
    kept: list[Statement] = []
    instead: dict[str, str] = {}
    for line in [index.declaration() for index in program.indices] + program.declarations():
        exec(line, names)
    for statement in program.statements:
        if isinstance(statement, Step):
            operands = tuple(instead.get(name, name) for name in statement.operands)
            statement = replace(statement, operands=operands)
        captured = {dim for step in kept if isinstance(step, Step) for _, dim in step.capture}
        if isinstance(statement, Require) and not captured.issuperset(statement.operands):
            continue
        try:
            exec(statement.source(), names)
        except (oc.ShapeError, oc.SpecError):
            if isinstance(statement, Leaf):
                raise
            if isinstance(statement, Step):
                instead[statement.name] = statement.operands[0]
        else:
            kept.append(statement)
    return Program(tuple(kept)).pruned


def _hides(program: Program, names: dict[str, Any]) -> bool:
    """Return True if the program as a whole is refused."""
    try:
        reduce(add, (oc.train.forward(names[root]) for root in program.roots)).resolve()
    except oc.ShapeError:
        return True
    return False


def _stated(program: Program, random: Random) -> Program:
    """Return the program with rows for the last parameter that leaves some open; without its last
    result if there is none.
    """
    for position in range(len(program.statements) - 1, -1, -1):
        statement = program.statements[position]
        if isinstance(statement, Leaf) and None in statement.rows:
            batch, output, inputs = (_row(random) if row is None else row for row in statement.rows)
            leaf = replace(statement, rows=(batch, output, inputs))
            before, after = program.statements[:position], program.statements[position + 1 :]
            return Program((*before, leaf, *after))
    return program.without(program.roots[-1])


def _row(random: Random) -> Axes:
    return tuple(random.choice([1, 2, 3]) for _ in range(random.choice([0, 1, 1, 2])))
