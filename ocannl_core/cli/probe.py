"""A small kernel that checks whether a backend computes."""

from __future__ import annotations

import numpy as np

from ocannl_core.backend.manager import Backend
from ocannl_core.backend.protocols import HostBuffer
from ocannl_core.base.errors import LinkError
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel, Plan
from ocannl_core.ir.loops.nodes import Binary, Block, For, Load, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target

EXTENT = 96


def multiply_and_add() -> Plan:
    """Return a plan of one kernel: `c[i] = a[i] * b[i] + a[i]`."""
    a, b, c = (TensorNode(ordinal, (name,)) for ordinal, name in enumerate("abc"))
    var = fresh_var()
    at = (VarIndex(var),)
    product = Binary(BinaryOp.MUL, Load(a, at, float32), Load(b, at, float32), float32)
    total = Binary(BinaryOp.ADD, product, Load(a, at, float32), float32)
    loop = For(var, 0, EXTENT, Block((Store(c, at, total),)))
    info = NodeInfo(float32, (EXTENT,))
    return Plan(
        name="probe",
        steps=(Kernel(Block((loop,)), arguments=(a, b, c), indices=()),),
        params=(a, b, c),
        scratch=(),
        indices=(),
        nodes={a: info, b: info, c: info},
    )


def check(backend: Backend, target: Target) -> None:
    """Compile and run the kernel on a device, and compare its cells with NumPy's, bit by bit."""
    plan = multiply_and_add()
    a, b, c = plan.params
    random = np.random.default_rng(0)
    cells = {node: random.standard_normal(EXTENT).astype(np.float32) for node in (a, b)}
    executable = backend.compile(backend.generate(plan, target), target)
    buffers = {node: backend.allocate(plan.nodes[node], target) for node in plan.params}
    for node, values in cells.items():
        backend.transfer(buffers[node], HostBuffer(values, plan.nodes[node])).wait()
    backend.link(executable, buffers)([])
    backend.synchronize(target)
    result = HostBuffer(np.empty(EXTENT, np.float32), plan.nodes[c])
    backend.transfer(result, buffers[c]).wait()
    expected = cells[a] * cells[b] + cells[a]
    wrong = int(np.count_nonzero(result.array != expected))
    if wrong:
        raise LinkError(
            "A kernel of exactly rounded operations must give NumPy's result.",
            found=f"{wrong} of {EXTENT} cells differ",
            where=f"{target}, c[i] = a[i] * b[i] + a[i]",
            fix=f"this is a defect of the plugin {backend.plugin}: report it to its authors",
        )
