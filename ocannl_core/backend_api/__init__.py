"""The interface that backends import.

A backend imports nothing of `ocannl_core` but this package. The package itself has the hooks, the
objects that cross the boundary, and the parts of a plan; its modules have the rest by subject:

- `loops`: the loop language, in which the bodies of kernels are written;
- `arithmetic`: rounding, bit patterns, and the meaning of primitives;
- `host_calls`: operations that run in Python, between kernels;
- `passes`: passes over loop programs, for the hook `ocannl_passes`;
- `parallel`: iterations of a kernel that may run on several threads, and a parallel loop;
- `queues`: queues of work with events, for asynchronous devices of this process;
- `memory`: memory of devices with addresses of their own, and the arguments of kernels in it;
- `c_family`: rendering of kernels in C and its dialects;
- `rendering`: loops that instructions of a device execute as a whole, for dialects;
- `files`: private directories and files with digests, for a cache of compiled code.
"""

from ocannl_core.backend.device_statistics import host_memory_statistics
from ocannl_core.backend.exclusive import make_exclusive, raise_overlap
from ocannl_core.backend.linked_buffers import linked_buffer
from ocannl_core.backend.protocols import (
    BACKEND_API,
    HOST,
    Buffer,
    Check,
    CheckOutcome,
    DivisibleExecutable,
    Done,
    Event,
    Executable,
    HostBuffer,
    Launcher,
    MemoryStatistics,
    Source,
    TargetReport,
)
from ocannl_core.backend.registry import refresh, register
from ocannl_core.backend.specs import hookimpl
from ocannl_core.base import settings
from ocannl_core.base.errors import (
    CodegenError,
    CompileError,
    DeviceError,
    DeviceFailure,
    LaunchLimitError,
    LinkError,
    OcannlError,
    TransferError,
    UnsupportedError,
    UsageError,
    VerifyError,
)
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.base.identity import IdentityMap
from ocannl_core.compile.memory_plan import (
    ALIGNMENT,
    Allocation,
    MemoryPlan,
    allocate_pieces,
    memory_plan,
)
from ocannl_core.ir.external import ExternalOp, NativeCode, NativeOp
from ocannl_core.ir.host_arrays import interior
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.kernels.nodes import (
    FinishedStep,
    HostCall,
    Kernel,
    LeafStep,
    NodeInfos,
    Plan,
    RepeatedSteps,
    Step,
    leaf_steps,
    nodes_written,
    private_nodes,
)
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.launch_limits import LaunchLimits, LaunchNeeds, check_launch
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.loops.traverse import merge_reads
from ocannl_core.ir.matrix_units import (
    PART_PRODUCTS,
    AsynchronousProduct,
    Digit,
    DotProduct,
    Fragment,
    MatrixInstruction,
    MatrixUnit,
    TileCosts,
    TileProduct,
)
from ocannl_core.ir.node import Margin, MemoryMode, ModeChoice, NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import (
    DType,
    bfloat16,
    bool_,
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
    uint4x32,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ocannl_core.ir.target import Capability, Target, ThreadBlocks
from ocannl_core.ir.text import PrintedNames

# fmt: off
__all__ = [
    "ALIGNMENT", "BACKEND_API", "HOST", "PART_PRODUCTS", "Allocation", "AsynchronousProduct",
    "Buffer", "CallExternal", "Capability", "Check", "CheckOutcome", "CodegenError", "CompileError",
    "DType", "DeviceError", "DeviceFailure", "Digit", "DivisibleExecutable", "Done", "DotProduct",
    "Event", "Executable", "ExternalOp", "FinishedStep", "Fragment", "HostBuffer", "HostCall",
    "IdentityMap", "Kernel", "KernelStream", "LaunchLimitError", "LaunchLimits", "LaunchNeeds",
    "Launcher", "LeafStep", "LinkError", "Margin", "MatrixInstruction", "MatrixUnit", "MemoryMode",
    "MemoryPlan", "MemoryStatistics", "ModeChoice", "NativeCode", "NativeOp", "NodeInfo",
    "NodeInfos", "OcannlError", "Plan", "PrintedNames", "RepeatedSteps", "Source", "StaticExtent",
    "StaticIndex", "Step", "Target", "TargetReport", "TensorNode", "ThreadBlocks", "TileCosts",
    "TileProduct", "TransferError", "UnsupportedError", "UsageError", "VerifyError",
    "allocate_pieces", "bfloat16", "bool_", "check_launch", "dataclass", "float8_e4m3fn",
    "float8_e5m2", "float16", "float32", "float64", "hookimpl", "host_memory_statistics", "int4",
    "int8", "int16", "int32", "int64", "interior", "leaf_steps", "linked_buffer", "make_exclusive",
    "memory_plan", "merge_reads", "nodes_written", "private_nodes", "raise_overlap", "refresh",
    "register", "replace", "settings", "uint4", "uint4x32", "uint8", "uint16", "uint32", "uint64",
]
# fmt: on
