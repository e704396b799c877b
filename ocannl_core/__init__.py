"""OCANNL for Python: tensor expressions without shapes, compiled through plugin backends.

Importing loads the modules that build most expressions. The compiler, the runtime and the plugin
library are loaded at the first use of `Context`, `Routine` or `hookimpl`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ocannl_core.base import settings
from ocannl_core.base.errors import (
    BackendNotFoundError,
    CheckpointError,
    CodegenError,
    CompileError,
    DataError,
    DeviceError,
    DeviceFailure,
    DivergenceError,
    HookError,
    LaunchLimitError,
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
    UnsupportedError,
    UsageError,
    ValueGuardError,
    VerifyError,
)
from ocannl_core.base.moved import find_moved_modules
from ocannl_core.base.version import __version__ as __version__
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.numbers.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int4,
    int8,
    int16,
    int32,
    int64,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.ir.numbers.dtypes import bool_ as bool
from ocannl_core.shape.language.shape_terms import Size
from ocannl_core.tensor.computations.computation import Computation
from ocannl_core.tensor.computations.recording import cd, section
from ocannl_core.tensor.graph.assignment import neutral
from ocannl_core.tensor.graph.expression import functions
from ocannl_core.tensor.graph.session import Session, atomic, make_atomic, reset
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand, places_of
from ocannl_core.tensor.models.network_blocks import NetworkBlock, evaluation, op
from ocannl_core.tensor.models.parameters import (
    declare,
    param,
    placeholder,
    static_extent,
    static_index,
)
from ocannl_core.tensor.operations.activations import (
    clip,
    elu,
    gelu,
    greater,
    greater_equal,
    hardsigmoid,
    hardswish,
    hardtanh,
    isfinite,
    isinf,
    isnan,
    leaky_relu,
    log_sigmoid,
    logaddexp,
    logical_xor,
    mish,
    relu6,
    rsqrt,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    square,
)
from ocannl_core.tensor.operations.activations import power as pow
from ocannl_core.tensor.operations.axes import require_shape, require_shapes
from ocannl_core.tensor.operations.contractions import einmax, einsum, fma, matmul, where
from ocannl_core.tensor.operations.literals import arange, batch, from_function, number, tensor
from ocannl_core.tensor.operations.random import categorical, kaiming, normal, uniform, xavier
from ocannl_core.tensor.operations.reductions import (
    all,
    any,
    argmax,
    argmin,
    log_softmax,
    logsumexp,
    max,
    mean,
    min,
    norm,
    prod,
    softmax,
    std,
    sum,
    var,
)
from ocannl_core.tensor.primitives import pointwise_operations
from ocannl_core.tensor.primitives.dimension import Dimension, dim
from ocannl_core.tensor.primitives.operation import Operation, define_operation
from ocannl_core.tensor.primitives.pointwise_operations import *  # noqa: F403
from ocannl_core.tensor.primitives.pointwise_operations import div as divide
from ocannl_core.tensor.primitives.pointwise_operations import mod as remainder
from ocannl_core.tensor.primitives.pointwise_operations import mul as multiply
from ocannl_core.tensor.primitives.pointwise_operations import neg as negative
from ocannl_core.tensor.primitives.pointwise_operations import recip as reciprocal
from ocannl_core.tensor.primitives.pointwise_operations import sub as subtract

if TYPE_CHECKING:
    from ocannl_core import assignments, data, nn, primitives, random, testing, train
    from ocannl_core.backend.specs import hookimpl
    from ocannl_core.data.checkpoints.load import load
    from ocannl_core.data.checkpoints.save import save
    from ocannl_core.data.checkpoints.stored import Stored
    from ocannl_core.display.explain import explain
    from ocannl_core.display.pictures.curves import curves
    from ocannl_core.display.pictures.expression_graph import graph
    from ocannl_core.display.pictures.heatmaps import heatmap
    from ocannl_core.display.summary import summary
    from ocannl_core.display.tables import table
    from ocannl_core.display.trees import tree
    from ocannl_core.display.views import show
    from ocannl_core.runtime.context import Context
    from ocannl_core.runtime.export.exported import load_exported
    from ocannl_core.runtime.routine import Routine
    from ocannl_core.runtime.target_code import TargetCode, compile_for
    from ocannl_core.tensor import custom
    from ocannl_core.tensor.computations.precision_report import precision_report
    from ocannl_core.tensor.custom.ordering import argsort, median, searchsorted, sort, topk
    from ocannl_core.tensor.custom.scans import cummax, cummin, cumprod, cumsum
    from ocannl_core.tensor.operations.filled import (
        eye,
        full,
        full_like,
        linspace,
        ones,
        ones_like,
        zeros,
        zeros_like,
    )
    from ocannl_core.tensor.operations.gradients import gradients
    from ocannl_core.tensor.operations.positions import put, put_along, scatter, take, take_along
    from ocannl_core.tensor.operations.rearrangement import (
        broadcast_to,
        concat,
        expand_dims,
        flatten,
        moveaxis,
        permute,
        reshape,
        squeeze,
        stack,
        swapaxes,
        transpose,
    )
    from ocannl_core.tensor.operations.repetition import (
        flip,
        one_hot,
        pad,
        repeat,
        roll,
        tile,
        tril,
        triu,
    )
    from ocannl_core.tensor.operations.scan import scan, scan_while

_LOADED_ON_DEMAND = places_of(
    "ocannl_core",
    {
        "backend.specs": "hookimpl",
        "data.checkpoints.load": "load",
        "data.checkpoints.save": "save",
        "data.checkpoints.stored": "Stored",
        "display.explain": "explain",
        "display.pictures.curves": "curves",
        "display.pictures.expression_graph": "graph",
        "display.pictures.heatmaps": "heatmap",
        "display.summary": "summary",
        "display.tables": "table",
        "display.trees": "tree",
        "display.views": "show",
        "runtime.context": "Context Routine",
        "runtime.export.exported": "load_exported",
        "runtime.target_code": "TargetCode compile_for",
        "tensor.computations.precision_report": "precision_report",
        "tensor.operations.filled": "eye full full_like linspace ones ones_like zeros zeros_like",
        "tensor.operations.gradients": "gradients",
        "tensor.operations.positions": "scatter",
        "tensor.operations.scan": "scan scan_while",
    },
)
_MODULES_ON_DEMAND = {
    "custom": "ocannl_core.tensor.custom",
    **{
        name: f"ocannl_core.{name}"
        for name in ("assignments", "data", "nn", "primitives", "random", "testing", "train")
    },
}

find_moved_modules()


__dir__ = list_names(globals())


if not TYPE_CHECKING:  # type checkers accept every name of a module with `__getattr__`

    def __getattr__(name: str) -> Any:
        """Return a name that is loaded at its first use."""
        is_module = name in _MODULES_ON_DEMAND
        return import_module(_MODULES_ON_DEMAND[name]) if is_module else _load(name)


# fmt: off
__all__ = [
    "BackendNotFoundError", "CheckpointError", "CodegenError", "CompileError", "Computation",
    "Context", "DType", "DataError", "DeviceError", "DeviceFailure", "Dimension", "DivergenceError",
    "HookError", "LaunchLimitError", "LinkError", "LoweringError", "MissingGradientError",
    "NetworkBlock", "OcannlError", "OpError", "Operation", "Routine", "Session", "SettingsError",
    "ShapeError", "ShapeWarning", "Size", "SpecError", "SpecWarning", "StaticExtent", "StaticIndex",
    "Stored", "TargetCode", "Tensor", "TransferError", "UnsupportedError", "UsageError",
    "ValueGuardError", "VerifyError", "all", "any", "arange", "argmax", "argmin", "argsort",
    "assignments", "atomic", "batch", "bfloat16", "bool", "broadcast_to", "categorical", "cd",
    "clip", "compile_for", "concat", "cummax", "cummin", "cumprod", "cumsum", "curves", "custom",
    "data", "declare", "define_operation", "dim", "divide", "einmax", "einsum", "elu", "evaluation",
    "expand_dims", "explain", "eye", "flatten", "flip", "float8_e4m3fn", "float8_e5m2", "float16",
    "float32", "float64", "fma", "from_function", "full", "full_like", "gelu", "gradients", "graph",
    "greater", "greater_equal", "hardsigmoid", "hardswish", "hardtanh", "heatmap", "hookimpl",
    "int4", "int8", "int16", "int32", "int64", "isfinite", "isinf", "isnan", "kaiming",
    "leaky_relu", "linspace", "load", "load_exported", "log_sigmoid", "log_softmax", "logaddexp",
    "logical_xor", "logsumexp", "matmul", "max", "mean", "median", "min", "mish", "moveaxis",
    "multiply", "negative", "neutral", "nn", "norm", "normal", "number", "one_hot", "ones",
    "ones_like", "op", "pad", "param", "permute", "placeholder", "pow", "precision_report",
    "primitives", "prod", "put", "put_along", "random", "reciprocal", "relu6", "remainder",
    "repeat", "require_shape", "require_shapes", "reset", "reshape", "roll", "rsqrt", "save",
    "scan", "scan_while", "scatter", "searchsorted", "section", "selu", "settings", "show",
    "sigmoid", "silu", "softmax", "softplus", "softsign", "sort", "square", "squeeze", "stack",
    "static_extent", "static_index", "std", "subtract", "sum", "summary", "swapaxes", "table",
    "take", "take_along", "tensor", "testing", "tile", "topk", "train", "transpose", "tree", "tril",
    "triu", "uint4", "uint8", "uint16", "uint32", "uint64", "uniform", "var", "where", "xavier",
    "zeros", "zeros_like",
]
# fmt: on
__all__ += pointwise_operations.__all__

_load = load_on_demand(
    globals(),
    {n: place for n, place in functions.places.items() if n in __all__} | _LOADED_ON_DEMAND,
    make_atomic,
)
make_atomic(functions, functions)
functions.prepare = make_atomic
make_atomic(globals(), __all__)
guard(globals(), __all__)
guard(vars(settings), ("describe", "other_arguments", "overrides"))
