"""The assignments of code: a program of tensors, once its shapes are known.

`code.resolve()` returns an `AssignProgram`. Each `Accumulate` in it states, for all values of the
loop variables in its domain, `target[...] = target[...] combine op(args[...])`, where every tensor
has an index map. Translators into other languages read these, as lowering to loops does.
"""

from typing import TYPE_CHECKING

from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    AssignSequence,
    Constant,
    ConstantBits,
    ConstantFill,
    EmbedIndex,
    ExternalCall,
    Fetch,
    FetchSource,
    Merge,
    NodeOperand,
    Operand,
    RangeOverOffsets,
    RepeatedAssignments,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.ir.assignments.traverse import Leaf, leaves, reads, repeat_inputs, targets
from ocannl_core.ir.indexing import (
    AffineIndex,
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexMap,
    LoopVar,
    Margin,
    Projections,
    StaticExtent,
    StaticIndex,
    SubAxis,
    VarIndex,
    as_affine,
    joint_extents,
    row_major,
    traversals,
    variables,
)
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import saturate
from ocannl_core.ir.numbers.primitives import (
    BinaryOp,
    Op,
    TernaryOp,
    UnaryOp,
    neutral,
    working_format,
)
from ocannl_core.tensor.messages.call_errors import list_names, load_on_demand

# fmt: off
__all__ = [
    "Accumulate", "AffineIndex", "AssignProgram", "AssignSequence", "Assignment", "AxisIndex",
    "BinaryOp", "ComputedIndex", "ConcatIndex", "Constant", "ConstantBits", "ConstantFill",
    "EmbedIndex", "ExternalCall", "Fetch", "FetchSource", "FixedIndex", "IndexMap", "Leaf",
    "LoopVar", "Margin", "Merge", "NodeInfo", "NodeOperand", "Op", "Operand", "Projections",
    "RangeOverOffsets", "RepeatedAssignments", "Scalar", "Section", "SetVector", "StaticExtent",
    "StaticIndex", "SubAxis", "TensorNode", "TernaryOp", "UnaryOp", "VarIndex", "as_affine",
    "joint_extents", "leaves", "neutral", "reads", "repeat_inputs", "row_major", "saturate",
    "targets", "traversals", "variables", "working_format",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), {})
__dir__ = list_names(globals())
