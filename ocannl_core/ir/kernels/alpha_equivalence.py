"""Canonical text of a nest, equal for alpha-equivalent nests and for no others:

axis i from 0 of 128
axis j from 0 of 512
axis k from 0 of 784 reduced
ADD float32: MUL:float32 0[1*i+0, 1*k+0]:float32 1[1*j+0, 1*k+0]:float32
from 0x0.0p+0:float32
2[1*i+0, 1*j+0] = RELU:float32 result
array 0 float32 128 784
array 1 float32 512 784
array 2 float32 128 512
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ocannl_core.ir.indexing import AxisIndex, IndexVar, StaticIndex, as_affine
from ocannl_core.ir.kernels.nest import KernelNest
from ocannl_core.ir.kernels.nodes import NodeInfos
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import walk
from ocannl_core.ir.node import TensorNode


def canonical_text(nest: KernelNest, nodes: NodeInfos) -> str:
    """Return the canonical text of a nest that vector registers can compute."""
    return "\n".join(_Text(nest, nodes).lines())


def digest(text: str) -> str:
    """Return a file name for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class _Text:
    """The numbers that nodes, static indices and variables of loops around have in one text."""

    def __init__(self, nest: KernelNest, nodes: NodeInfos) -> None:
        self._nest = nest
        self._infos = nodes
        self._vars: dict[IndexVar, str] = {axis.var: axis.name for axis in nest.axes}
        self._nodes: dict[TensorNode, int] = {}
        self._around = 0

    def lines(self) -> Iterator[str]:
        for axis in self._nest.axes:
            kind = " shifting" if axis.is_shifting else " reduced" if axis.is_reduced else ""
            end = "" if axis.bound is None else self._end(axis.bound)
            yield f"axis {axis.name} from {axis.start} of {axis.extent}{kind}{end}"
        reduction = self._nest.reduction
        if reduction is not None:
            yield f"{reduction.op.name} {reduction.dtype}: {self._expr(reduction.term)}"
            yield f"from {self._expr(reduction.initial)}"
            if reduction.may_pair:
                yield "products of pairs"
            if reduction.is_widened:
                yield "widened"
        for store in self._nest.epilogue:
            yield f"{self._cell(store.node, store.indices)} = {self._expr(store.value)}"
        for node, number in self._nodes.items():
            info = self._infos[node]
            yield f"array {number} {info.dtype} {' '.join(map(str, info.buffer_dims))}"

    def _expr(self, expr: ir.Expr) -> str:
        return " ".join(self._token(each) for each in walk(expr) if isinstance(each, ir.Expr))

    def _token(self, expr: ir.Expr) -> str:
        match expr:
            case ir.Load(node, indices, dtype):
                return f"{self._cell(node, indices)}:{dtype}"
            case ir.LocalRead():
                return "result"
            case ir.Const(value, dtype):
                return f"{float(value).hex()}:{dtype}"
            case ir.ConstBits(bits, dtype):
                return f"bits {bits}:{dtype}"
            case ir.IndexValue(index, dtype):
                return f"index {self._index(index)}:{dtype}"
            case (
                ir.Unary(op, _, dtype) | ir.Binary(op, _, _, dtype) | ir.Ternary(op, _, _, _, dtype)
            ):
                return f"{op.name}:{dtype}"
            case _:
                raise AssertionError(f"{type(expr).__name__} is nothing that vectors compute")

    def _cell(self, node: TensorNode, indices: tuple[AxisIndex, ...]) -> str:
        number = self._nodes.setdefault(node, len(self._nodes))
        return f"{number}[{', '.join(map(self._index, indices))}]"

    def _index(self, index: AxisIndex) -> str:
        terms, offset = as_affine(index)
        parts = sorted(f"{factor}*{self._name(var)}" for factor, var in terms)
        return "+".join([*parts, str(offset)])

    def _end(self, bound: ir.LoopBound) -> str:
        return f" while {self._index(bound.index)} < {self._index(bound.end)}"

    def _name(self, var: IndexVar) -> str:
        if var not in self._vars:
            kind = "s" if isinstance(var, StaticIndex) else "o"
            self._vars[var] = f"{kind}{self._around}"
            self._around += 1
        return self._vars[var]
