"""Chains of ordered float operations, which the C compiler must not vectorize.

    for i: for j: t = t + a[2 * i - j + 1]

One iteration of the loop over `i` combines several terms with a float that its iterations share.
GCC unrolls the inner loop, and takes the terms of an iteration for lanes of a vector that it adds
up in order. Until its versions 11.5, 12.4 and 13.2 it drops the permutation of their loads there
(its bug 110381), where they run backwards, and counts some of them twice. A compiler barrier in the
loop prevents the transformation. It costs little: the additions wait for each other anyway, and
long sums that matter for speed are vectors of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.ir.indexing import AxisIndex, IndexVar, variables
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk, walk_in_loops
from ocannl_core.ir.node import TensorNode

_Target = ir.Local | tuple[TensorNode, tuple[AxisIndex, ...]]


def has_ordered_chain(loop: ir.For) -> bool:
    """Return True if an iteration combines several terms with a float that iterations share."""
    private: set[ir.Local | TensorNode] = set()
    updated: set[_Target] = set()
    for node, loops in walk_in_loops(loop.body):
        match node:
            case ir.DeclareLocal(local) | ir.Scoped(local):
                private.add(local)
            case ir.Allocate(array):
                private.add(array)
            case ir.SetLocal(local, value) if local not in private:
                read = ir.LocalRead(local)
                if _updates(value, read):
                    is_only = local not in updated and _is_single(value, read)
                    if _repeated(loops) or not is_only:
                        return True
                    updated.add(local)
            case ir.Store(array, indices, value) if array not in private:
                used = {var for index in indices for var in variables(index)}
                cell = ir.Load(array, indices, value.dtype)
                if loop.var not in used and _updates(value, cell):
                    is_only = (array, indices) not in updated and _is_single(value, cell)
                    if _repeated(loops) - used or not is_only:
                        return True
                    updated.add((array, indices))
    return False


def _repeated(loops: Iterable[ir.For]) -> set[IndexVar]:
    """Return the variables of the loops that have several iterations."""
    return {each.var for each in loops if each.stop - each.start > 1}


def _updates(value: ir.Expr, target: ir.Expr) -> bool:
    """Return True if a float is computed from the earlier one."""
    return value.dtype.is_float and any(part == target for part in walk(value))


def _is_single(value: ir.Expr, target: ir.Expr) -> bool:
    """Return True if a value combines one term with the earlier one."""
    match value:
        case ir.Binary(_, left, right):
            return target in (left, right)
        case ir.Ternary(_, _, _, last):
            return last == target
        case _:
            return False
