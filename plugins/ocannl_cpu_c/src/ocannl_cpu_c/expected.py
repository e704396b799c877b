"""Kernels that were told of before the plan that they belong to.

Each is written as soon as it is known, and compilers work on the first ones while the others are
still scheduled. A plan that never comes leaves nothing but files that nobody asks for.
"""

from __future__ import annotations

import threading
from dataclasses import field

from ocannl_core.codegen.kernel_text import KernelText
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.identity import IdentityMap
from ocannl_core.kernels.nodes import Kernel, NodeInfos, Plan, Step
from ocannl_cpu_c.background_compilation import Ahead
from ocannl_cpu_c.loader import compiling_ahead
from ocannl_cpu_c.source import CSource, generate, kernel_of

_MOST = 1000
"""More kernels than this belong to plans that never came."""


@dataclass(slots=True)
class _Kernels:
    """The kernels of the next plan of a thread.

    Attributes:
        ahead: Takes them for compilers; None if they are compiled later.
        written: The text of each step.
    """

    ahead: Ahead | None = field(default_factory=compiling_ahead)
    written: IdentityMap[Step, KernelText] = field(default_factory=IdentityMap)

    def kernel(self, step: Step, nodes: NodeInfos) -> KernelText | None:
        """Returns the kernel of a step, which compilers know of then."""
        if isinstance(step, Kernel) and step.like is not None:
            step = step.like
        known = self.written.find(step)
        if known is not None:
            return known
        kernel = kernel_of(step, nodes)
        if kernel is not None:
            self.written[step] = kernel
            if self.ahead is not None:
                self.ahead.add(kernel)
        return kernel


class _Threads(threading.local):
    """What each thread is told of, until its plan comes."""

    kernels: _Kernels | None = None


_threads = _Threads()


def expect(nest: Kernel, nodes: NodeInfos) -> None:
    """Writes a kernel of the next plan.

    Raises:
        CodegenError: for what C cannot express.
    """
    if _threads.kernels is None or len(_threads.kernels.written) >= _MOST:
        _threads.kernels = _Kernels()
    _threads.kernels.kernel(nest, nodes)


def source_of(plan: Plan) -> CSource:
    """Returns the C code of a plan; all of its kernels are given to compilers.

    Raises:
        CodegenError: for what C cannot express.
    """
    kernels, _threads.kernels = _threads.kernels or _Kernels(), None
    source = generate(plan, kernels.kernel)
    if kernels.ahead is not None:
        kernels.ahead.close()
    return source
