"""Addresses: index expressions in C, and pointers shared by unrolled copies of a statement.

Results are memoized by the identity of indices and expressions: unrolled loops render the same ones
repeatedly, and hashing them by value would take longer than computing the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from ocannl_core.base.errors import VerifyError
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.text.address_strength_reduction import ReducedAddressLoop
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.precedence import CExpr, Precedence, infix, negate
from ocannl_core.codegen.text.scalar_replacement import Position
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.indexing import AxisIndex, IndexVar, LoopVar, as_affine, row_major
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import free_variables, nodes_of, walk
from ocannl_core.ir.node import NodeInfo, TensorNode

_WITH_STATEMENTS = frozenset({ir.Gather, ir.Scoped})
_IMMOVABLE = _WITH_STATEMENTS | {ir.LocalRead, ir.LoadMerge}
"""Expressions to render in place: after statements, from scalars or merge buffers."""


class Addresses:
    """Addresses at the current point of a kernel."""

    def __init__(
        self, names: KernelNames, info: Callable[[TensorNode], NodeInfo], writer: KernelWriter
    ) -> None:
        self._names = names
        self._info = info
        self._writer = writer
        self._affine: IdentityMap[tuple[AxisIndex, ...], dict[TensorNode, Position]] = IdentityMap()
        self._cells: IdentityMap[ir.Block, Sequence[tuple[TensorNode, Position]]] = IdentityMap()
        self._nodes: IdentityMap[ir.Expr, AbstractSet[TensorNode]] = IdentityMap()
        self._kinds: IdentityMap[ir.Expr, AbstractSet[type]] = IdentityMap()
        self._free: IdentityMap[ir.Expr, AbstractSet[IndexVar]] = IdentityMap()

    def index(self, index: AxisIndex) -> CExpr:
        """Render an index as a sum of products.

        2 * i + 0 * j - 1  -->  2 * i - 1
        """
        products, offset = self._products(as_affine(index))
        if not products:
            return CExpr(str(offset), Precedence.UNARY if offset < 0 else Precedence.PRIMARY)
        return _add_offset(_total(products), offset)

    def _products(self, position: Position) -> tuple[list[_Product], int]:
        """Return the products of a sum, positive ones first, and its constant part."""
        terms, offset = position
        products: list[_Product] = []
        for coefficient, var in terms:
            value = self._names.index(var)
            if isinstance(value, int):
                offset += coefficient * value
            else:
                products.append((coefficient, value))
        products.sort(key=lambda product: product[0] < 0)
        return products, offset

    def position_of(self, node: TensorNode, indices: tuple[AxisIndex, ...]) -> Position:
        """Return the position of a cell in the buffer of its node."""
        positions = self._affine.find(indices)
        if positions is None:
            positions = self._affine[indices] = {}
        found = positions.get(node)
        if found is None:
            found = positions[node] = as_affine(row_major(indices, self._info(node).buffer_dims))
        return found

    def constant_position(
        self, position: Position, first: LoopVar | None = None, start: int = 0
    ) -> int:
        """Return the value of a constant position.

        Args:
            first: A variable to take as `start`.
        """
        terms, offset = position
        for coefficient, var in terms:
            value = start if var == first else self._names.index(var)
            if not isinstance(value, int):
                raise VerifyError("The position of a register is constant.", found=value)
            offset += coefficient * value
        return offset

    def cell(
        self, array: str, position: Position, shift: int = 0, *, is_packed: bool = False
    ) -> str:
        """Render a cell of an array; bytes hold several cells of a packed one, and none has an
        address.

        Unrolled copies of one statement, which differ in constants only, share a pointer:

        a0[256 * i + j] + a0[256 * i + j + 16]  -->  c0 = &a0[256 * i + j]; c0[0] + c0[16]
        """
        products, offset = self._products(position)
        offset += shift
        if not products:
            return f"{array}[{offset}]"
        if is_packed:
            return f"{array}[{_add_offset(_total(products), offset)}]"
        loop = self._writer.reduced_loop
        if (
            loop is not None
            and any(name == loop.variable for _, name in products)
            and self._names.depth_of(array) <= loop.depth
        ):
            return self._reduced_cell(loop, array, products, offset)
        total = _total(products)
        if self._writer.is_unrolled and "-" not in total.code:
            return f"{self._writer.pointer(array, total.code)}[{offset}]"
        return f"{array}[{_add_offset(total, offset)}]"

    def _reduced_cell(
        self, loop: ReducedAddressLoop, array: str, products: list[_Product], offset: int
    ) -> str:
        """Render a cell relative to a pointer that is set before the loop."""
        outside = [each for each in products if each[1] not in loop.inside]
        steps = [
            (-1 if factor < 0 else 1, loop.multiple(abs(factor)))
            if name == loop.variable
            else (factor, name)
            for factor, name in products
            if name in loop.inside
        ]
        total = _total(steps)
        if not outside:
            return f"{array}[{_add_offset(total, offset)}]"
        around = _total(outside)
        if "-" in around.code:  # the constant keeps the pointer inside of the array
            around, offset = _add_offset(around, offset), 0
        pointer = self._writer.hoist_pointer(loop, array, around.code)
        return f"{pointer}[{_add_offset(total, offset)}]"

    def is_invariant(self, loop: ReducedAddressLoop, expr: ir.Expr) -> bool:
        """Return True if an expression is loop-invariant and can be computed before the loop."""
        nodes = self.nodes_of(expr)
        return (
            self._kinds_in(expr).isdisjoint(_IMMOVABLE)
            and not self._names.in_registers(nodes)
            and loop.written.isdisjoint(nodes)
            and loop.inside.isdisjoint(map(self._names.index, self.free_variables(expr)))
            and all(self._names.depth_of(self._names.array(each)) <= loop.depth for each in nodes)
        )

    def cells_of(self, body: ir.Block) -> Sequence[tuple[TensorNode, Position]]:
        """Return the cells that the loads and stores in a block access."""
        found = self._cells.find(body)
        if found is None:
            found = self._cells[body] = [
                (each.node, self.position_of(each.node, each.indices))
                for each in walk(body)
                if isinstance(each, ir.Load | ir.Store)
            ]
        return found

    def nodes_of(self, expr: ir.Expr) -> AbstractSet[TensorNode]:
        """Return the nodes that an expression mentions."""
        found = self._nodes.find(expr)
        if found is None:
            found = self._nodes[expr] = frozenset(nodes_of(expr))
        return found

    def has_statements(self, expr: ir.Expr) -> bool:
        """Return True if rendering an expression writes statements."""
        return not self._kinds_in(expr).isdisjoint(_WITH_STATEMENTS)

    def _kinds_in(self, expr: ir.Expr) -> AbstractSet[type]:
        """Return the classes of an expression and its subexpressions."""
        found = self._kinds.find(expr)
        if found is None:
            found = self._kinds[expr] = frozenset(map(type, walk(expr)))
        return found

    def free_variables(self, expr: ir.Expr) -> AbstractSet[IndexVar]:
        """Return the index variables of an expression."""
        found = self._free.find(expr)
        if found is None:
            found = self._free[expr] = frozenset(free_variables(expr))
        return found


_Product = tuple[int, str]
"""A factor and a variable in the text."""


def _total(products: Sequence[_Product]) -> CExpr:
    """Return the sum of products, of which there is at least one."""
    total: CExpr | None = None
    for coefficient, name in products:
        size = CExpr(name)
        if abs(coefficient) != 1:
            size = CExpr(f"{abs(coefficient)} * {name}", Precedence.PRODUCT)
        if total is None:
            total = size if coefficient > 0 else negate(size)
        else:
            total = infix(total, "+" if coefficient > 0 else "-", size)
    assert total is not None
    return total


def _add_offset(total: CExpr, offset: int) -> CExpr:
    """Add a constant to a sum."""
    if offset == 0:
        return total
    return infix(total, "+" if offset > 0 else "-", CExpr(str(abs(offset))))
