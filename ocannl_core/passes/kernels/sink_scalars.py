"""Sink scalars into the loops and stores that read them.

    v = f(s)
    for i in range(1000):     -->   for i in range(1000):
      w = h(i)                        x[i] = g(f(s), h(i)) * h(i)
      x[i] = g(v, w) * w

The first was moved out of the loop, the second holds a common subexpression: right where one thread
runs all iterations in the order of the program. Without them the loop is a nest, to which schedules
apply. `hoist_scalars` moves values that no loop changes out of the scheduled loops again; on thread
blocks each thread keeps its own, since no variable outlives a thread. Vector code computes equal
values once.
"""

from __future__ import annotations

from functools import partial

from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.kernels.nest import flat_statements, with_flat_values
from ocannl_core.ir.kernels.nest_recognition import kernel_nest, perfect_loops
from ocannl_core.ir.kernels.nodes import Kernel, LeafStep, NodeInfos, Plan, StepReplacement
from ocannl_core.ir.kernels.stream import map_steps
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops import traverse
from ocannl_core.schedule.machine_model import MAX_EXPRESSION_DEPTH, MAX_EXPRESSION_NODES


def sink_scalars(plan: Plan, *, only_nests: bool = False) -> Plan:
    """Return a plan whose kernels read no scalar that is computed in front of their loops, and none
    that is computed in loops which are a nest without it.

    Args:
        only_nests: True to leave kernels as they are that are no nests without the scalars either.
    """
    return map_steps(plan, partial(_sunk, only_nests=only_nests))


def _sunk(step: LeafStep, nodes: NodeInfos, *, only_nests: bool) -> StepReplacement:
    if isinstance(step, Kernel):
        front = _with_values(step.body)
        body = _with_values_in_loops(front or step.body)
        if body is None or kernel_nest(body, nodes) is None:
            is_kept = front is None or (only_nests and kernel_nest(front, nodes) is None)
            body = None if is_kept else front
        if body is not None:
            step = replace(step, body=body)
    return StepReplacement((step,))


def _with_values_in_loops(body: ir.Block) -> ir.Block | None:
    """Return loops without the scalars inside; None if a reduction would repeat one."""
    loops, stmts = perfect_loops(body)
    if not loops or not any(isinstance(each, ir.SetLocal) for each in stmts):
        return None
    if any(isinstance(each, ir.For) for each in stmts):
        return None
    declared = {each.local for each in stmts if isinstance(each, ir.DeclareLocal)}
    scopes = (each for stmt in stmts for each in traverse.walk(stmt) if isinstance(each, ir.Scoped))
    if any(
        isinstance(e, ir.LocalRead) and e.local in declared
        for s in scopes
        for e in traverse.walk(s)
    ):
        return None
    found = _with_values(ir.Block(stmts))
    return found and traverse.with_loops(loops, found)


def _with_values(body: ir.Block) -> ir.Block | None:
    """Return the body without its scalars; None without any, or if the value of one may change."""
    stmts = flat_statements(body)
    if not any(isinstance(stmt, ir.SetLocal) for stmt in stmts):
        return None
    written = set(traverse.writes(body))
    declared: set[ir.Local] = set()
    values: dict[ir.Local, ir.Expr] = {}
    rest: list[ir.Stmt] = []
    for stmt in stmts:
        match stmt:
            case ir.DeclareLocal(local):
                declared.add(local)
            case ir.SetLocal(local, value):
                value = traverse.map_expr(
                    with_flat_values(value), lambda expr: _value_of(expr, values)
                )
                is_fixed = written.isdisjoint(traverse.reads(value)) and not traverse.contains(
                    value, ir.Scoped
                )
                is_small = (
                    traverse.depth(value) <= MAX_EXPRESSION_DEPTH
                    and traverse.size(value) <= MAX_EXPRESSION_NODES
                )
                if local in values or not is_fixed or not is_small:
                    return None
                values[local] = value
            case _:
                rest.append(stmt)
    if not values or declared != set(values):
        return None
    changed = (
        each.local
        for stmt in rest
        for each in traverse.walk(stmt)
        if isinstance(each, ir.SetLocal | ir.SubgroupReduce)
    )
    if not values.keys().isdisjoint(changed):
        return None
    return traverse.map_exprs(ir.Block(tuple(rest)), lambda expr: _value_of(expr, values))


def _value_of(expr: ir.Expr, values: dict[ir.Local, ir.Expr]) -> ir.Expr:
    return values.get(expr.local, expr) if isinstance(expr, ir.LocalRead) else expr
