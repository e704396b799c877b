"""Alpha-equivalence: equality of code up to the names of its bound variables."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import assert_never

from ocannl_core.base.identity import ById
from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node, children
from ocannl_core.ir.node import TensorNode

Storage = TensorNode | ir.Local
Key = tuple[Hashable, ...]


def canonical_key(root: Node, version: Callable[[Storage], int] = lambda storage: 0) -> Key:
    """Return a key that two nodes share exactly if they are alpha-equivalent.

    Bound variables are numbered in the order of their binding.

    Args:
        version: The version of the contents of a node, or of a free scalar, at this point.
    """
    return _key(root, _Namer(version))


def _key(root: Node, namer: _Namer) -> Key:
    parts: list[Hashable] = []
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        inside = [child for child in children(node) if not isinstance(child, ir.Remark)]
        parts.append((type(node).__name__, len(inside), namer.token(node)))
        pending.extend(reversed(inside))
    return tuple(parts)


class _Namer:
    """The numbers of bound variables."""

    def __init__(self, version: Callable[[Storage], int]) -> None:
        self._version = version
        self._bound: dict[indexing.IndexVar | ir.Local, int] = {}
        self._count = 0

    def token(self, node: Node) -> Hashable:
        """Return the part of the key that a node contributes without its children."""
        match node:
            case ir.Load(array, indices, dtype) | ir.LoadMerge(array, indices, dtype):
                return array, self._version(array), self._indices(indices), dtype
            case ir.Gather(array, indices, axis, _, dtype, beyond):
                places = self._indices(indices)
                return array, self._version(array), places, axis, dtype, float(beyond).hex()
            case ir.LocalRead(local) | ir.SetLocal(local):
                return self._local(local)
            case ir.SubgroupReduce(local, _, op, lanes):
                return self._local(local), op, lanes
            case ir.Scoped(local) | ir.DeclareLocal(local):
                return self._bind(local), local.dtype
            case (
                ir.Unary(op, _, dtype) | ir.Binary(op, _, _, dtype) | ir.Ternary(op, _, _, _, dtype)
            ):
                return op, dtype
            case ir.Const() | ir.ConstBits():
                return node
            case ir.IndexValue(index, dtype):
                return self._index(index), dtype
            case ir.For(var, start, stop, _, kind, traced, bound):
                number = self._bind(var)
                end = None if bound is None else (self._index(bound.index), bound.extent)
                return number, start, stop, kind, traced, end
            case ir.Store(array, indices, _, is_streamed):
                return array, self._indices(indices), is_streamed
            case ir.StoreVector(array, indices, length):
                return array, self._indices(indices), length
            case ir.Scatter(array, indices, axis):
                return array, self._indices(indices), axis
            case ir.CheckPositions(array, extent, axis, extents):
                return array, self._version(array), extent, axis, extents
            case ir.Fill(array, value):
                return array, float(value).hex()
            case ir.Prefetch(array, indices):
                return array, self._indices(indices)
            case ir.Allocate(array, scope):
                return array, scope
            case ir.CallExternal(op, inputs, outputs):
                return ById(op), inputs, outputs
            case ir.Staged(language, text):
                return language, text
            case ir.Repeat(index, count, is_reversed, body, inputs, outputs, complete, private):
                accessed = inputs, outputs, complete, private
                return self._bind(index), count, is_reversed, accessed, _key(body, self)
            case ir.Barrier(pending):
                return pending
            case ir.Block() | ir.Remark():
                return None
            case _:
                assert_never(node)

    def _bind(self, variable: indexing.IndexVar | ir.Local) -> int:
        self._count += 1
        self._bound[variable] = self._count
        return self._count

    def _local(self, local: ir.Local) -> Hashable:
        return self._bound.get(local) or (local, self._version(local))

    def _indices(self, indices: tuple[indexing.AxisIndex, ...]) -> Hashable:
        return tuple([self._index(index) for index in indices])

    def _index(self, index: indexing.AxisIndex) -> Hashable:
        match index:
            case indexing.FixedIndex() | indexing.SubAxis():
                return index
            case indexing.VarIndex(var):
                return self._bound.get(var, var)
            case indexing.AffineIndex(terms, offset):
                return tuple([(c, self._bound.get(var, var)) for c, var in terms]), offset
            case indexing.ComputedIndex(operand, at):
                return operand, self._indices(at)
            case indexing.ConcatIndex(parts):
                return tuple([p if isinstance(p, int) else self._bound.get(p, p) for p in parts])
            case _:
                assert_never(index)
