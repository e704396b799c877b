"""OCANNL for Python: tensor expressions without shapes, compiled through plugin backends.

Importing loads the modules that build expressions. The compiler, the runtime and the plugin library
are loaded at the first use of `Context`, `Routine` or `hookimpl`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocannl_core import custom, nn, settings, train
from ocannl_core.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint4x32,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.errors import (
    BackendNotFoundError,
    CodegenError,
    CompileError,
    LinkError,
    LoweringError,
    MissingGradientError,
    OcannlError,
    OpError,
    SettingsError,
    ShapeError,
    ShapeWarning,
    SpecError,
    SpecWarning,
    TransferError,
    UsageError,
    VerifyError,
)
from ocannl_core.indexing import StaticExtent, StaticIndex
from ocannl_core.shape.terms import Size
from ocannl_core.tensor.assignment import neutral
from ocannl_core.tensor.computation import Computation
from ocannl_core.tensor.contractions import (
    concat,
    einmax,
    einsum,
    fma,
    interleave,
    matmul,
    outer_sum,
    stack,
    transpose,
    tropical,
    where,
)
from ocannl_core.tensor.dimension import Dimension, dim
from ocannl_core.tensor.evaluation import evaluation
from ocannl_core.tensor.gradients import gradients
from ocannl_core.tensor.literals import (
    arange,
    batch,
    from_function,
    mapped,
    number,
    offsets,
    reshape,
    tensor,
)
from ocannl_core.tensor.network_blocks import Block, op
from ocannl_core.tensor.operation import Operation, define_operation
from ocannl_core.tensor.parameters import declare, param, placeholder, static_extent, static_index
from ocannl_core.tensor.pointwise_operations import (
    add,
    cast,
    cos,
    div,
    equal,
    exp,
    exp2,
    first,
    identity,
    less,
    less_equal,
    log,
    log2,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    mod,
    mul,
    neg,
    not_equal,
    recip,
    recip_sqrt,
    relu,
    relu_gate,
    sat01,
    sat01_gate,
    second,
    sin,
    sqrt,
    stop_gradient,
    sub,
    tanh,
    trunc,
)
from ocannl_core.tensor.positions import scatter_add, take, take_along
from ocannl_core.tensor.powers import power
from ocannl_core.tensor.precision_report import precision_report
from ocannl_core.tensor.random import (
    kaiming,
    normal,
    random_words,
    threefry4x32,
    uniform,
    uniform_of,
    word,
    xavier,
)
from ocannl_core.tensor.recording import cd, section, unchanged_roots
from ocannl_core.tensor.required_shapes import require_shape, require_shapes
from ocannl_core.tensor.scan import scan
from ocannl_core.tensor.session import Session, reset
from ocannl_core.tensor.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core import testing
    from ocannl_core.display.tables import table
    from ocannl_core.display.trees import tree
    from ocannl_core.explain import explain
    from ocannl_core.hooks.specs import hookimpl
    from ocannl_core.runtime.context import Context
    from ocannl_core.runtime.routine import Routine

__version__ = "0.1.0"

_LOADED_ON_DEMAND = {
    "Context": "ocannl_core.runtime.context",
    "Routine": "ocannl_core.runtime.routine",
    "explain": "ocannl_core.explain",
    "hookimpl": "ocannl_core.hooks.specs",
    "table": "ocannl_core.display.tables",
    "tree": "ocannl_core.display.trees",
}
_MODULES_ON_DEMAND = frozenset({"testing"})


def __getattr__(name: str) -> Any:
    if name in _MODULES_ON_DEMAND:
        return import_module(f"ocannl_core.{name}")
    if name not in _LOADED_ON_DEMAND:
        raise AttributeError(f"module 'ocannl_core' has no attribute {name!r}")
    value = getattr(import_module(_LOADED_ON_DEMAND[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BackendNotFoundError",
    "Block",
    "CodegenError",
    "CompileError",
    "Computation",
    "Context",
    "DType",
    "Dimension",
    "LinkError",
    "LoweringError",
    "MissingGradientError",
    "OcannlError",
    "OpError",
    "Operation",
    "Routine",
    "Session",
    "SettingsError",
    "ShapeError",
    "ShapeWarning",
    "Size",
    "SpecError",
    "SpecWarning",
    "StaticExtent",
    "StaticIndex",
    "Tensor",
    "TransferError",
    "UsageError",
    "VerifyError",
    "add",
    "arange",
    "batch",
    "bfloat16",
    "cast",
    "cd",
    "concat",
    "cos",
    "custom",
    "declare",
    "define_operation",
    "dim",
    "div",
    "einmax",
    "einsum",
    "equal",
    "evaluation",
    "exp",
    "exp2",
    "explain",
    "first",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "fma",
    "from_function",
    "gradients",
    "hookimpl",
    "identity",
    "int32",
    "int64",
    "interleave",
    "kaiming",
    "less",
    "less_equal",
    "log",
    "log2",
    "logical_and",
    "logical_not",
    "logical_or",
    "mapped",
    "matmul",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "neutral",
    "nn",
    "normal",
    "not_equal",
    "number",
    "offsets",
    "op",
    "outer_sum",
    "param",
    "placeholder",
    "power",
    "precision_report",
    "random_words",
    "recip",
    "recip_sqrt",
    "relu",
    "relu_gate",
    "require_shape",
    "require_shapes",
    "reset",
    "reshape",
    "sat01",
    "sat01_gate",
    "scan",
    "scatter_add",
    "second",
    "section",
    "settings",
    "sin",
    "sqrt",
    "stack",
    "static_extent",
    "static_index",
    "stop_gradient",
    "sub",
    "table",
    "take",
    "take_along",
    "tanh",
    "tensor",
    "testing",
    "threefry4x32",
    "train",
    "transpose",
    "tree",
    "tropical",
    "trunc",
    "uint4x32",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unchanged_roots",
    "uniform",
    "uniform_of",
    "where",
    "word",
    "xavier",
]
