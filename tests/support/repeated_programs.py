"""Random programs that consist of equal parts, as networks of equal layers do."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import LoopVar, fresh_var
from ocannl_core.ir.loops.nodes import Block, DeclareLocal, LoopProgram, Remark, SetLocal, Stmt
from ocannl_core.ir.loops.traverse import writes
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.templates import Template, canonical_form
from ocannl_core.testing.compare import Array
from ocannl_core.testing.programs import Example
from tests.support.loop_programs import loop_programs


@st.composite
def repeated_programs(draw: st.DrawFn) -> Example:
    """Return programs that run a random program several times, each time on other nodes but for the
    parameters that it only reads, and with a remark in front of each statement.
    """
    example = draw(loop_programs())
    program = example.program
    form = canonical_form(program.body, program.nodes)
    template = Template(program.body.stmts, form.names)
    inputs = set(program.params) - set(writes(program.body))
    stmts: list[Stmt] = []
    nodes: dict[TensorNode, NodeInfo] = {}
    params: dict[TensorNode, None] = {}
    arrays: dict[TensorNode, Array] = {}
    for layer in range(draw(st.integers(2, 4))):
        names = {name: _renamed(name, layer, inputs) for name in form.names}
        for old, new in names.items():
            if isinstance(old, TensorNode):
                nodes[new] = program.nodes[old]
                if old in program.params:
                    params[new] = None
                if old in example.arrays:
                    arrays[new] = example.arrays[old]
        copy = template.bind([*names.values()], first_scalar=layer * template.scalars)
        for stmt in copy:
            if not isinstance(stmt, DeclareLocal | SetLocal):
                stmts.append(Remark(f"layer {layer}", Origin(f"layer {layer}")))
            stmts.append(stmt)
    body = Block(tuple(stmts))
    repeated = LoopProgram("repeated", tuple(params), program.indices, nodes, body)
    return Example(repeated, arrays, example.indices)


def _renamed(name: Any, layer: int, inputs: set[TensorNode]) -> Any:
    match name:
        case TensorNode() if name not in inputs:
            return TensorNode(name.id, (*name.label, f"layer{layer}"))
        case LoopVar():
            return fresh_var(name.hint, name.size)
        case _:
            return name
