"""Addresses of cells follow from their indices, however short the life of an index tuple is."""

from __future__ import annotations

from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.indexing import FixedIndex
from ocannl_core.ir.loops.nodes import Const, Load, Unary
from ocannl_core.ir.numbers.primitives import UnaryOp


def positions_of(build, node):
    names = KernelNames((node,), (), ())
    return Addresses(names, lambda each: build.table[each], KernelWriter(names))


def test_index_tuples_that_are_freed_do_not_lend_their_positions_to_later_ones(build):
    out = build.node("out", 40, 9)
    positions = positions_of(build, out)
    found = [positions.position_of(out, (FixedIndex(row), FixedIndex(2))) for row in range(40)]
    assert found == [((), 9 * row + 2) for row in range(40)]


def test_equal_index_tuples_have_the_positions_of_their_nodes(build):
    narrow, wide = build.node("narrow", 4, 3), build.node("wide", 4, 5)
    positions = positions_of(build, narrow)
    indices = (FixedIndex(2), FixedIndex(1))
    assert positions.position_of(narrow, indices) == ((), 7)
    assert positions.position_of(wide, indices) == ((), 11)


def test_expressions_that_are_freed_do_not_lend_their_nodes_to_later_ones(build):
    nodes = [build.node(f"x{k}", 3) for k in range(40)]
    positions = positions_of(build, nodes[0])
    for node in nodes:
        load = Load(node, (FixedIndex(0),), build.table[node].dtype)
        assert positions.nodes_of(Unary(UnaryOp.SIN, load, load.dtype)) == {node}
        assert not positions.has_statements(Const(1.0, load.dtype))
