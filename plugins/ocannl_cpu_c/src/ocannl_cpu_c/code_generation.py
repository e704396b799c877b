"""C code of a routine, rendered kernel by kernel while compilers work on the first ones."""

from __future__ import annotations

from ocannl_core.codegen.kernel_text import KernelText
from ocannl_core.identity import IdentityMap
from ocannl_core.kernels.nodes import Kernel, Step
from ocannl_core.kernels.stream import KernelStream
from ocannl_cpu_c.loader import compiling_ahead
from ocannl_cpu_c.source import CSource, assemble, kernel_of


def generate(kernels: KernelStream) -> CSource:
    """Return the C code of a routine, with all of its kernels handed to compilers.

    A kernel that equals an earlier one but for names shares its text.

    Raises:
        CodegenError: for a statement or number format that C cannot express.
    """
    ahead = compiling_ahead()
    rendered: IdentityMap[Step, KernelText | None] = IdentityMap()
    texts: list[KernelText | None] = []
    for step, nodes in kernels:
        first = step.like if isinstance(step, Kernel) and step.like is not None else step
        if first not in rendered:
            kernel = rendered[first] = kernel_of(first, nodes)
            if kernel is not None and ahead is not None:
                ahead.add(kernel)
        texts.append(rendered[first])
    if ahead is not None:
        ahead.close()
    return assemble(kernels.plan(), texts)
