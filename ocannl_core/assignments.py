"""The assignments of code: a program of tensors, once its shapes are known.

`code.resolve()` returns an `AssignProgram`. Each `Accumulate` in it states, for all values of the
loop variables in its domain, `target[...] = target[...] combine op(args[...])`, where every tensor
has an index map, and `op` is a primitive or a formula of several. Translators into other languages
read these, as lowering to loops does; `split_formulas` leaves one primitive to each assignment.
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
    Formula,
    Merge,
    NodeOperand,
    Operand,
    RangeOverOffsets,
    RepeatedAssignments,
    Scalar,
    Section,
    SetVector,
)
from ocannl_core.ir.assignments.split_formulas import split_formulas
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
    "EmbedIndex", "ExternalCall", "Fetch", "FetchSource", "FixedIndex", "Formula", "IndexMap",
    "Leaf", "LoopVar", "Margin", "Merge", "NodeInfo", "NodeOperand", "Op", "Operand", "Projections",
    "RangeOverOffsets", "RepeatedAssignments", "Scalar", "Section", "SetVector", "StaticExtent",
    "StaticIndex", "SubAxis", "TensorNode", "TernaryOp", "UnaryOp", "VarIndex", "as_affine",
    "joint_extents", "leaves", "neutral", "reads", "repeat_inputs", "row_major", "saturate",
    "split_formulas", "targets", "traversals", "variables", "working_format",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), {})
__dir__ = list_names(globals())
