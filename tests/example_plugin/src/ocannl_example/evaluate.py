"""Evaluation of the steps of a plan by a tree walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ocannl_core.backend_api import CodegenError, HostCall, Kernel, Step, TensorNode
from ocannl_core.backend_api.arithmetic import Number, round_to
from ocannl_core.backend_api.loops import (
    AxisIndex,
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    For,
    IndexVar,
    Load,
    Remark,
    Stmt,
    Store,
    Ternary,
    Unary,
    value_of,
)

Arrays = Mapping[TensorNode, np.ndarray[Any, Any]]
Env = dict[IndexVar, int]


def check(part: Step | Stmt | Expr) -> None:
    """Reject a step that `run` cannot evaluate.

    Raises:
        CodegenError: naming the kind of statement or expression.
    """
    match part:
        case Kernel(body=body) | For(body=body):
            check(body)
        case Block(stmts):
            for stmt in stmts:
                check(stmt)
        case Store(value=value):
            check(value)
        case Unary(arg=arg):
            check(arg)
        case Binary(left=left, right=right):
            check(left)
            check(right)
        case Ternary(first=first, second=second, third=third):
            check(first)
            check(second)
            check(third)
        case Fill() | Remark() | Load() | Const() | HostCall():
            pass
        case _:
            raise CodegenError(
                "The example backend evaluates loops over stored nodes only.",
                found=type(part).__name__,
                fix="use another backend",
            )


def run(part: Step | Stmt, arrays: Arrays, env: Env) -> None:
    """Execute a statement; `env` holds the values of the variables in scope."""
    match part:
        case Kernel(body=body):
            run(body, arrays, env)
        case Block(stmts):
            for stmt in stmts:
                run(stmt, arrays, env)
        case For(var, start, stop, body):
            for value in range(start, stop):
                env[var] = value
                run(body, arrays, env)
        case Store(node, indices, value):
            arrays[node][_position(indices, env)] = _value(value, arrays, env)
        case Fill(node, number):
            arrays[node][...] = number


def _position(indices: Sequence[AxisIndex], env: Env) -> tuple[int, ...]:
    return tuple(value_of(index, env) for index in indices)


def _value(expr: Expr, arrays: Arrays, env: Env) -> Number:
    """Return the value of an expression, rounded to its number format after every operation."""
    match expr:
        case Load(node, indices):
            return arrays[node][_position(indices, env)].item()
        case Const(value, dtype):
            return round_to(value, dtype)
        case Unary(op, arg, dtype):
            return round_to(op.value.meaning(_value(arg, arrays, env)), dtype)
        case Binary(op, left, right, dtype):
            operands = (_value(left, arrays, env), _value(right, arrays, env))
            return round_to(op.value.meaning(*operands), dtype)
        case Ternary(op, first, second, third, dtype):
            chosen = [_value(each, arrays, env) for each in (first, second, third)]
            return round_to(op.value.meaning(*chosen), dtype)
        case _:
            raise AssertionError("check accepted an expression that run does not know")
