"""The content of an exported C file, before its text.

A model is a block of memory of a fixed layout, its *state*, and functions over it. The state holds
everything that changes; cells that no function writes are constants of the file, or of a block of
weights that the caller keeps.

    state     | head | tensors | scratch, shared by all functions | private buffers of threads |
    weights   | initial cells of tensors, and constant tensors |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.rounding import round_up
from ocannl_core.codegen.text.routine_source import RoutineSource
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.loops.usage import IndexBound
from ocannl_core.ir.node import NodeInfo, TensorNode

ABI = 1
"""The version of the interface of exported files."""

LEAST, MOST = -(2**63), 2**63 - 1
"""The range of the integer arguments of C."""

ALIGNMENT = 64
"""Bytes: the alignment of a state, and of each tensor in it."""


def aligned(nbytes: int) -> int:
    """Return the next multiple of the alignment."""
    return round_up(nbytes, ALIGNMENT)


class Role(Enum):
    """The use of a tensor by callers; the value is its name in the table of tensors."""

    INPUT = "input"
    """Cells that a caller gives to a function."""
    OUTPUT = "output"
    """Cells that a function gives to its caller."""
    CONSTANT = "constant"
    """Cells that no function writes."""
    STATE = "state"
    """Cells that functions write and later calls read, such as trained parameters."""


INNER_NAMES = re.compile(
    r"s|state|head|failed|dims|strides|arrays|indices|step\d+|weights\d*|state_bytes|weights_bytes|"
    r"fingerprint|memcpy|memset|is_valid|move_cells|share|k_[0-9a-f]{16}(_part)?"
)
"""Names inside of exported functions, which arguments in C have with an underscore."""


def argument(name: int | str) -> str:
    """Return the spelling in C of an argument, or of a size that is one."""
    text = str(name)
    return f"{text}_" if INNER_NAMES.fullmatch(text.lower()) else text


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A tensor with memory that outlives a call."""

    node: TensorNode
    name: str
    """Its name, unique in the file; `argument` has the spelling in C."""
    sizes: tuple[int | str, ...]
    """The cells along each axis, or the name of the integer argument that states them."""
    info: NodeInfo
    role: Role
    offset: int | None
    """The first byte of its memory in the state; None for a constant."""
    weights_offset: int | None
    """The first byte of its initial cells among the weights; None without any."""


@dataclass(frozen=True, slots=True)
class IndexArgument:
    """An integer argument of a function: a static index, or the extent of an axis."""

    index: StaticIndex
    name: str
    least: int = LEAST
    """The least value that the function accepts."""
    most: int = MOST
    """The greatest one."""

    @property
    def is_bounded(self) -> bool:
        """True if some values are refused."""
        return (self.least, self.most) != (LEAST, MOST)


@dataclass(frozen=True, slots=True)
class ExportedFunction:
    """A routine as a C function."""

    name: str
    source: RoutineSource
    """Its kernels and their launches."""
    inputs: tuple[ExportedTensor, ...]
    """The tensors that callers give, in the order of arguments."""
    outputs: tuple[ExportedTensor, ...]
    """The results, in the order of arguments. A tensor that is an input as well has another name
    here.
    """
    indices: tuple[IndexArgument, ...]
    """Its integer arguments, in order."""
    limits: tuple[IndexBound, ...]
    """Further limits, each of several indices together."""
    scratch: Mapping[TensorNode, int]
    """The first byte of each node of its own, in the state."""
    private: int
    """The first byte of the memory of a kernel's private buffers, in the state."""


@dataclass(frozen=True, slots=True)
class FileContent:
    """Everything that an exported file consists of."""

    prefix: str
    """The beginning of all its names, an identifier."""
    functions: tuple[ExportedFunction, ...]
    tensors: tuple[ExportedTensor, ...]
    """The tensors with memory that outlives a call."""
    state_bytes: int
    """The size of the state, for one thread."""
    thread_bytes: int
    """The memory of each further thread, behind the state; 0 if one thread runs all."""
    weights: bytes
    """The cells of the weights, each at its offset."""
    are_inside: bool
    """True if the file contains the weights."""
    weights_at: int
    """The first byte of the weights in their file."""
    remarks: tuple[str, ...]
    """Sentences about the code for the reader of the header."""
    library: tuple[str, ...]
    """The functions of the C library that it calls, besides `memcpy` and `memset`."""
    fingerprint: int
    """A number that states of other models do not begin with."""

    def tensor_of(self, node: TensorNode) -> ExportedTensor:
        """Return the tensor of a node."""
        return next(each for each in self.tensors if each.node is node)

    def number(self, tensor: ExportedTensor) -> int:
        """Return the number of a tensor, also under the name of an output, in the table."""
        return next(k for k, each in enumerate(self.tensors) if each.node is tensor.node)
