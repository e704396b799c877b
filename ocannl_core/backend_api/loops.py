"""The loop language: statements, expressions and indices of kernel bodies, with walks and text."""

from ocannl_core.base.renamed import find_old_names
from ocannl_core.ir.indexing import (
    AffineIndex,
    AxisIndex,
    ComputedIndex,
    ConcatIndex,
    FixedIndex,
    IndexVar,
    LoopVar,
    SubAxis,
    VarIndex,
    affine,
    as_affine,
    fresh_var,
    joint_extents,
    substitute,
    value_of,
    variables,
)
from ocannl_core.ir.loops.computed_positions import check_positions, raise_failed_check
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Binary,
    Block,
    CheckPositions,
    Const,
    ConstBits,
    DeclareLocal,
    Expr,
    Fill,
    For,
    Gather,
    IndexValue,
    Load,
    LoadMerge,
    Local,
    LocalRead,
    LoopBound,
    LoopProgram,
    Prefetch,
    Remark,
    Repeat,
    Scatter,
    Scope,
    Scoped,
    SetLocal,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
    Ternary,
    Unary,
    Verbatim,
)
from ocannl_core.ir.loops.printer import to_text
from ocannl_core.ir.loops.traverse import (
    children,
    fold,
    map_exprs,
    map_stmts,
    nodes_of,
    reads,
    rewrite,
    statements,
    walk,
    writes,
)
from ocannl_core.ir.loops.unit_products import (
    ProductNest,
    RingStage,
    match_product_nest,
    match_ring_stage,
    perfect_tile,
)

# fmt: off
__all__ = [
    "AffineIndex", "Allocate", "AxisIndex", "AxisKind", "Barrier", "Binary", "Block",
    "CheckPositions", "ComputedIndex", "ConcatIndex", "Const", "ConstBits", "DeclareLocal", "Expr",
    "Fill", "FixedIndex", "For", "Gather", "IndexValue", "IndexVar", "Load", "LoadMerge", "Local",
    "LocalRead", "LoopBound", "LoopProgram", "LoopVar", "Prefetch", "ProductNest", "Remark",
    "Repeat", "RingStage", "Scatter", "Scope", "Scoped", "SetLocal", "Stmt", "Store", "StoreVector",
    "SubAxis", "SubgroupReduce", "Ternary", "Unary", "VarIndex", "Verbatim", "affine", "as_affine",
    "check_positions", "children", "fold", "fresh_var", "joint_extents", "map_exprs", "map_stmts",
    "match_product_nest", "match_ring_stage", "nodes_of", "perfect_tile", "raise_failed_check",
    "reads", "rewrite", "statements", "substitute", "to_text", "value_of", "variables", "walk",
    "writes",
]
# fmt: on

__getattr__ = find_old_names(__name__)
