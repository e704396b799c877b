"""Loops over the margins around the cells of a node."""

from __future__ import annotations

from collections.abc import Iterator

from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.loops.constants import constant
from ocannl_core.ir.loops.nodes import Block, For, Stmt, Store
from ocannl_core.ir.node import NodeInfo, TensorNode


def margin_loops(node: TensorNode, info: NodeInfo, value: float) -> Iterator[Stmt]:
    """Yield loops over the cells of the margins, each once.

    A cell in the margins of several axes belongs to the first of them: the loops over earlier axes
    run over the interior.
    """
    for axis, (dim, margin) in enumerate(zip(info.dims, info.padding, strict=True)):
        for start, stop in (
            (0, margin.left),
            (margin.left + dim, margin.left + dim + margin.right),
        ):
            if start == stop:
                continue
            bounds = [
                (m.left, m.left + n) for n, m in zip(info.dims[:axis], info.padding, strict=False)
            ]
            bounds += [(start, stop), *((0, n) for n in info.buffer_dims[axis + 1 :])]
            vars = [fresh_var() for _ in bounds]
            cell = tuple(VarIndex(var) for var in vars)
            body: Stmt = Store(node, cell, constant(value, info.dtype))
            for var, (low, high) in reversed(list(zip(vars, bounds, strict=True))):
                body = For(var, low, high, Block((body,)))
            yield body
