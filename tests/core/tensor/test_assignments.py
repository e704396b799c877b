"""`oc.assignments`: code as a translator reads it."""

from __future__ import annotations

import ocannl_core as oc
from ocannl_core import assignments


def test_a_translator_finds_products_by_their_index_maps() -> None:
    x = oc.placeholder("x", batch=[4], output=[3])
    y = oc.relu(oc.param("w", output=[2]) @ x)
    code = oc.train.forward(y)
    with oc.train.unchanged_roots():
        program = code.resolve()
    product, relu = assignments.leaves(program.body)
    assert isinstance(product, assignments.Accumulate)
    assert (product.combine, product.op) == (assignments.BinaryOp.ADD, assignments.BinaryOp.MUL)
    ((domain, (lhs, *rhs)),) = assignments.traversals(product.projections)
    b, o, i = (assignments.VarIndex(var) for var, _ in domain)
    assert (lhs, rhs) == ((b, o), [(o, i), (b, i)])
    assert assignments.targets(relu) == (y.node,)
    assert program.nodes[y.node].dims == (4, 2)
    assert code.tensors()[y.node] is y


def test_nodes_of_the_steps_of_loops_have_tensors_and_blocks() -> None:
    block = oc.nn.gru_cell(width=3)
    _, values = oc.scan(lambda h, x: (h + 1, oc.scan(block, 0.0, x)[1]), 0.0, _two_times())
    code = oc.train.forward(values)
    with oc.train.unchanged_roots():
        (loop,) = (
            each
            for each in assignments.leaves(code.resolve().body)
            if isinstance(each, assignments.RepeatedAssignments)
        )
    tensors = code.tensors(of_steps=True)
    inner = next(
        each
        for each in assignments.leaves(loop.body)
        if isinstance(each, assignments.RepeatedAssignments)
    )
    inside = [*assignments.leaves(inner.body)]
    nodes = {node for each in inside for node in assignments.targets(each)} & set(tensors)
    assert {"tanh", "gru_cell_carry"} <= {node.name for node in nodes}
    assert all(tensors[node].label == node.label for node in nodes)
    made = {tensors[node].made_in for node in nodes}
    assert {each.path for each in made if each is not None} == {("gru_cell",)}
    assert not set(code.tensors()) & loop.private


def _two_times() -> oc.Tensor:
    return oc.placeholder("x", batch=[2, 4, 5], output=[3])
