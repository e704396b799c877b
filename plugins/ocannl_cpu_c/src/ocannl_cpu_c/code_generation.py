"""C code of a routine, rendered kernel by kernel while compilers work on the first ones."""

from __future__ import annotations

from functools import partial

from ocannl_core.backend_api import KernelStream, LeafStep, NodeInfos, Target
from ocannl_core.backend_api.c_family import Dialect, render_step, render_steps
from ocannl_core.backend_api.launches import KernelText, RoutineSource
from ocannl_cpu_c import background_compilation
from ocannl_cpu_c.background_compilation import BackgroundCompilation
from ocannl_cpu_c.dialect import dialect_of
from ocannl_cpu_c.loader import begin_compilation


def generate(kernels: KernelStream, target: Target) -> RoutineSource:
    """Return the C code of a routine, with all of its kernels handed to compilers, unless the
    device is described only.

    A kernel that equals an earlier one but for names shares its text.

    Raises:
        CodegenError: for a statement or number format that C cannot express.
    """
    compilation = begin_compilation() if target.has_device else None
    dialect = dialect_of(target)
    render = partial(_rendered, dialect=dialect, compilation=compilation)
    try:
        rendered = list(render_steps(kernels, render))
        if compilation is not None:
            compilation.close()
        return RoutineSource.of(kernels.plan(), rendered, dialect)
    except (KeyboardInterrupt, SystemExit):  # the kernels will not be loaded
        background_compilation.stop()
        raise


def _rendered(
    step: LeafStep, nodes: NodeInfos, dialect: Dialect, compilation: BackgroundCompilation | None
) -> KernelText | None:
    kernel = render_step(step, nodes, dialect)
    if kernel is not None and compilation is not None:
        compilation.add(kernel)
    return kernel
