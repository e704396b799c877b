"""The state of rendering a kernel, which the renderers of its statements share."""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.base.errors import CodegenError
from ocannl_core.base.renamed import takes_old_keywords
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.addresses import Addresses
from ocannl_core.codegen.text.helper import MATH
from ocannl_core.codegen.text.names import KernelNames
from ocannl_core.codegen.text.precedence import CExpr, call
from ocannl_core.codegen.text.writer import KernelWriter
from ocannl_core.ir.indexing import AxisIndex
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import Gather, Load, LoadMerge
from ocannl_core.ir.loops.ranges import is_in_bounds, static_ranges
from ocannl_core.ir.loops.traverse import merge_reads
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import DType, uint4x32

MOST_LANES = 16


class NotVectorizedError(Exception):
    """A vector loop has an operation without a vector form; it is rendered as a plain loop."""


class RenderState:
    """The state at the current point of a kernel.

    Attributes:
        ranges: The values of the variables of the loops around.
        limits: The greatest values of some indices inside the loops around.
    """

    @takes_old_keywords("oc.backend_api.rendering.RenderState")
    def __init__(
        self, kernel: Kernel, nodes: Mapping[TensorNode, NodeInfo], dialect: Dialect
    ) -> None:
        self.dialect = dialect
        self.merges = merge_reads(kernel.body)
        self.names = KernelNames(kernel.arguments, self.merges, kernel.indices)
        self.writer = KernelWriter(self.names)
        self.positions = Addresses(self.names, self.info, self.writer)
        self.ranges = static_ranges(kernel.indices)
        self.limits: list[tuple[AxisIndex, int]] = []
        self.written: set[TensorNode] = set()
        self._nodes = nodes

    def info(self, node: TensorNode) -> NodeInfo:
        """Return the extents and the format of a node."""
        if node not in self._nodes:
            raise CodegenError("Every node of a kernel has extents and a format.", found=node.name)
        return self._nodes[node]

    def is_inside(self, load: Load | LoadMerge | Gather) -> bool:
        """Return True if an access is certainly in bounds, but for a computed position."""
        dims = self.info(load.node).buffer_dims
        return is_in_bounds(load.indices, dims, self.ranges, self.limits)

    def note_type(self, dtype: DType) -> None:
        """Note that the text mentions the type of a format."""
        if dtype is uint4x32:
            self.writer.helpers.add("uint4x32")

    def helper(self, name: str, *arguments: CExpr) -> CExpr:
        """Return the call of a helper."""
        self.writer.helpers.add(name)
        return call(name, *arguments)

    def c_library(self, name: str, dtype: DType, *arguments: CExpr) -> CExpr:
        """Return the call of a function of the C library."""
        self.writer.helpers.add(MATH)
        return call(self.dialect.function(name, dtype), *arguments)
