"""C code of a routine, rendered kernel by kernel while compilers work on the first ones."""

from __future__ import annotations

from ocannl_core.backend_api import IdentityMap, Kernel, KernelStream, LeafStep, Target
from ocannl_core.backend_api.c_family import Dialect, KernelText
from ocannl_cpu_c import background_compilation
from ocannl_cpu_c.background_compilation import BackgroundCompilation
from ocannl_cpu_c.loader import begin_compilation
from ocannl_cpu_c.source import CSource, assemble, dialect_of, kernel_of


def generate(kernels: KernelStream, target: Target) -> CSource:
    """Return the C code of a routine, with all of its kernels handed to compilers.

    A kernel that equals an earlier one but for names shares its text.

    Raises:
        CodegenError: for a statement or number format that C cannot express.
    """
    compilation = begin_compilation()
    try:
        return _generate(kernels, dialect_of(target), compilation)
    except (KeyboardInterrupt, SystemExit):  # the kernels will not be loaded
        background_compilation.stop()
        raise


def _generate(
    kernels: KernelStream, dialect: Dialect, compilation: BackgroundCompilation | None
) -> CSource:
    rendered: IdentityMap[LeafStep, KernelText | None] = IdentityMap()
    texts: list[KernelText | None] = []
    for step, nodes in kernels:
        first = step.like if isinstance(step, Kernel) and step.like is not None else step
        if first not in rendered:
            kernel = rendered[first] = kernel_of(first, nodes, dialect)
            if kernel is not None and compilation is not None:
                compilation.add(kernel)
        texts.append(rendered[first])
    if compilation is not None:
        compilation.close()
    return assemble(kernels.plan(), texts)
