"""Evaluation of the steps of a plan by a tree walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ocannl_core.backend_api import CodegenError, HostCall, Kernel, RepeatedSteps, Step, TensorNode
from ocannl_core.backend_api.arithmetic import Number, TernaryOp, round_to
from ocannl_core.backend_api.loops import (
    AxisIndex,
    Binary,
    Block,
    Const,
    DeclareLocal,
    Expr,
    Fill,
    For,
    IndexValue,
    IndexVar,
    Load,
    Local,
    LocalRead,
    Remark,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    Ternary,
    Unary,
    value_of,
)

Arrays = Mapping[TensorNode, np.ndarray[Any, Any]]
Env = dict[IndexVar | Local, Any]
"""The values of the index variables and of the scalar variables in scope."""


def check(part: Step | Stmt | Expr) -> None:
    """Reject a step that `run` cannot evaluate.

    Raises:
        CodegenError: naming the kind of statement or expression.
    """
    match part:
        case For(bound=bound) if bound is not None:
            raise _refusal("a loop that ends at run time")
        case Kernel(body=body) | For(body=body) | Scoped(body=body):
            check(body)
        case RepeatedSteps(steps=steps):
            for step in steps:
                check(step)
        case Block(stmts):
            for stmt in stmts:
                check(stmt)
        case Store(value=value) | SetLocal(value=value):
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
        case Fill() | Remark() | DeclareLocal() | HostCall():
            pass
        case Load() | LocalRead() | Const() | IndexValue():
            pass
        case _:
            raise _refusal(type(part).__name__)


def _refusal(found: str) -> CodegenError:
    return CodegenError(
        "The example backend evaluates plain loops.", found=found, fix="use another backend"
    )


def run(part: Kernel | Stmt, arrays: Arrays, env: Env) -> None:
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
        case SetLocal(local, value):
            env[local] = _value(value, arrays, env)


def _position(indices: Sequence[AxisIndex], env: Env) -> tuple[int, ...]:
    return tuple(value_of(index, env) for index in indices)


def _value(expr: Expr, arrays: Arrays, env: Env) -> Number:
    """Return the value of an expression, rounded to its number format after every operation."""
    match expr:
        case Load(node, indices):
            return arrays[node][_position(indices, env)].item()
        case Const(value, dtype):
            return round_to(value, dtype)
        case IndexValue(index, dtype):
            return round_to(value_of(index, env), dtype)
        case LocalRead(local):
            return env[local]
        case Scoped(local, body):
            run(body, arrays, env)
            return env[local]
        case Ternary(TernaryOp.WHERE, condition, first, second):
            # the operand that is not chosen may not be evaluated: it may load beyond its array
            return _value(first if _value(condition, arrays, env) else second, arrays, env)
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
