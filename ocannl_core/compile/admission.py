"""The comparison of each kernel with the device and the backend that it is for.

A step is admitted when it is finished, right before the backend gets it, so that code generation
still overlaps with scheduling. The declarations of the target come first, then the backend's own
answer (`ocannl_refuse`).
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

from ocannl_core.base.errors import UnsupportedError
from ocannl_core.ir.kernels import nodes as kernel_ir
from ocannl_core.ir.kernels.requirements import Lack, Requirements, walk_iterations
from ocannl_core.ir.kernels.stream import KernelStream
from ocannl_core.ir.loops.nodes import LoopProgram, Remark
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.target import Target

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend


def admitted(
    kernels: KernelStream,
    optimized: LoopProgram,
    lowered: LoopProgram,
    backend: Backend,
    target: Target,
) -> KernelStream:
    """Return a stream of kernels that raises an error in the place of one that a device or its
    backend does not support.

    Args:
        optimized: The program of the kernels.
        lowered: The program as it was written, for lines of the user in errors.

    Raises:
        UnsupportedError: from the stream.
    """
    check = Admission(backend, target)
    lack = check.requirements.lack_of_program(optimized)
    if lack is None:
        return admitted_steps(kernels, check, optimized.name, lowered)
    return KernelStream(_refused(check.error(lack, "", optimized.name, lowered)))


def _refused(error: UnsupportedError) -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]:
    raise error
    yield  # a generator


def admitted_steps(
    kernels: KernelStream, check: Admission, routine: str, lowered: LoopProgram
) -> KernelStream:
    """Return a stream of the steps that a check admits.

    Raises:
        UnsupportedError: from the stream.
    """

    def checked() -> Generator[kernel_ir.FinishedStep, None, kernel_ir.Plan]:
        for step, nodes in kernels:
            found = None if check.is_known(step) else check.refusal(step, nodes)
            if found is not None:
                raise check.error(
                    found, step.title, routine, lowered, kernel_ir.nodes_written(step)
                )
            yield step, nodes
        return kernels.plan()

    return kernels if check.is_certain else KernelStream(checked())


class Admission:
    """The steps that a device and its backend support."""

    def __init__(self, backend: Backend, target: Target) -> None:
        self.requirements = Requirements(target)
        self._backend = backend
        self._target = target

    @property
    def is_certain(self) -> bool:
        """True if every step is supported."""
        return self.requirements.are_met and not self._backend.may_refuse

    def is_known(self, step: kernel_ir.LeafStep) -> bool:
        """Return True for a copy of an admitted kernel, unless the backend may refuse its names."""
        is_copy = isinstance(step, kernel_ir.Kernel) and step.like is not None
        return is_copy and not self._backend.may_refuse

    def refusal(self, step: kernel_ir.LeafStep, nodes: kernel_ir.NodeInfos) -> Lack | str | None:
        """Return the part that a step needs and the device lacks, or the reason of the backend;
        None for a step that is supported.
        """
        lack = self.requirements.lack_of(step, nodes)
        if lack is not None or not self._backend.may_refuse:
            return lack
        return self._backend.refuse(step, nodes, self._target)

    def error(
        self,
        found: Lack | str,
        title: str,
        routine: str,
        lowered: LoopProgram,
        written: tuple[TensorNode, ...] = (),
    ) -> UnsupportedError:
        """Return the error about a step that is not supported.

        Args:
            title: The title of the step; empty for the steps of a repetition.
            lowered: The program as it was written, for the line of the user.
            written: The nodes that the step writes.
        """
        node = next(iter(written), None)
        lines = lines_of(title, lowered)
        fixes = []
        if isinstance(found, Lack):
            # the statement of the user, which passes may have fused with others
            own = self.requirements.written_in(lowered, found.part) or found
            node = own.node or found.node or node
            lines = [str(own.origin)] if own.origin is not None else lines
            described = f"{found}, which {self._target} lacks"
            fixes += self._fixes(found)
        else:
            described = f"{self._backend.name} cannot compile the kernel: {found}"
        names = [] if node is None else [node.name]
        if isinstance(found, Lack) and isinstance(found.part, DType):
            every = lowered.all_nodes.items()
            names = [each.name for each, info in every if info.dtype is found.part] or names
        subject = [f"for {', '.join(names)}"] if names else []
        subject += [f"in: {title}"] if title else []
        own_name = self._backend.name
        fixes.append(f'or run such kernels elsewhere: oc.Context("{own_name}", fallback="...")')
        fixes.append("`ocannl backends` lists the others")
        fixes[0] = fixes[0].removeprefix("or ")
        return UnsupportedError(
            "A device has all parts of the language that a kernel for it needs.",
            found="\n".join((described, *subject)),
            where="\n".join(
                (*lines, f"compiling {routine} for {self._target} ({self._backend.plugin})")
            ),
            fix="\n".join(fixes),
        )

    def _fixes(self, lack: Lack) -> list[str]:
        formats = self._target.formats
        if isinstance(lack.part, DType) and formats is not None:
            return [f"use a number format of this device: {', '.join(map(str, formats))}"]
        return []


def lines_of(title: str, lowered: LoopProgram) -> list[str]:
    """Return the user's operations and lines behind a kernel.

    Args:
        title: The title of the kernel, which consists of the remarks on its statements.
        lowered: The program of the kernel, as lowered.
    """
    titles = frozenset(re.sub(_WRITTEN, "", each) for each in title.split("; "))
    remarks = (each for each in walk_iterations(lowered.body) if isinstance(each, Remark))
    found = (
        str(each.origin) for each in remarks if each.origin is not None and each.text in titles
    )
    return list(dict.fromkeys(found))


_WRITTEN = r" \(writes [^()]*\)$"
"""The end of a title, behind the remarks of its kernel."""
