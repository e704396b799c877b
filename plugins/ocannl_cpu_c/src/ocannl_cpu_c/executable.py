"""A compiled routine, and its link to memory: every address is resolved before the first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ocannl_core.errors import LinkError
from ocannl_core.host_arrays import interior
from ocannl_core.loopir.nodes import CallExternal
from ocannl_core.node import NodeInfo, TensorNode
from ocannl_core.target import Buffer, Launcher
from ocannl_cpu_c.loader import Loaded, ffi, load
from ocannl_cpu_c.memory import Array, CBuffer, address, zeros
from ocannl_cpu_c.source import CSource, Launch

Buffers = Mapping[TensorNode, Buffer]
Part = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CExecutable:
    """The compiled code of one routine.

    Attributes:
        source: The code.
        kernels: Its kernels by symbol.
    """

    source: CSource
    kernels: Mapping[str, Loaded]

    @classmethod
    def compiled(cls, source: CSource) -> CExecutable:
        """Returns the routine with its kernels loaded.

        Raises:
            CompileError: if there is no compiler, or it rejects the code.
        """
        return cls(source, load(source.kernels))

    def link(self, buffers: Buffers, merge_buffers: Buffers | None = None) -> Launcher:
        """Returns a callable that runs the routine over these buffers.

        Args:
            buffers: The memory of every parameter.
            merge_buffers: The merge buffers of the nodes of which the routine reads one.

        Raises:
            LinkError: if a buffer is missing, belongs to another backend, or does not fit its node.
        """
        return _Linker(self, buffers, merge_buffers or {}).launcher()


class _Linker:
    """The memory of one link, and the tables that point into it."""

    def __init__(self, executable: CExecutable, buffers: Buffers, merges: Buffers) -> None:
        plan = executable.source.plan
        self._nodes = plan.nodes
        self._steps = executable.source.steps
        self._kernels = executable.kernels
        self._merges = merges
        self._arrays = {node: self._array(node, buffers, "buffer") for node in plan.params}
        self._arrays |= {node: zeros(plan.nodes[node]) for node in plan.scratch}
        self._cells = ffi.new("int64_t[]", max(len(plan.indices), 1))
        self._index_cells = {index: self._cells + k for k, index in enumerate(plan.indices)}
        self._count = len(plan.indices)
        # C holds addresses of all these; the launcher keeps them alive
        self._kept: list[object] = [self._arrays, self._cells]

    def launcher(self) -> Launcher:
        parts = self._parts()
        cells, count, kept = self._cells, self._count, self._kept

        if count == 0 and len(parts) == 1:
            run = parts[0]

            def launch_at_once(
                values: Sequence[int], _run: Part = run, _kept: object = kept
            ) -> None:
                _run()

            return launch_at_once

        def launch(values: Sequence[int], _kept: object = kept) -> None:
            if len(values) != count:
                raise LinkError(
                    f"The routine takes {count} static indices.", found=f"{len(values)} given"
                )
            for position, value in enumerate(values):
                cells[position] = value
            for part in parts:
                part()

        return launch

    def _parts(self) -> list[Part]:
        """Returns calls of the dispatcher and calls into Python, in turn."""
        parts: list[Part] = []
        pending: list[Launch] = []
        for step in self._steps:
            if isinstance(step, Launch):
                pending.append(step)
                continue
            if pending:
                parts.append(self._dispatch(pending))
                pending = []
            parts.append(self._external(step))
        if pending:
            parts.append(self._dispatch(pending))
        return parts

    def _dispatch(self, launches: Sequence[Launch]) -> Part:
        table = ffi.new("struct step[]", len(launches))
        for entry, launch in zip(table, launches, strict=True):
            entry.kernel = self._kernels[launch.kernel].kernel
            entry.args = self._args(launch)
        self._kept.append(table)
        run, count = self._kernels[launches[0].kernel].run, len(launches)
        return lambda: run(table, count)

    def _args(self, launch: Launch) -> Any:
        pointers = [ffi.cast("void *", address(self._arrays[node])) for node in launch.arguments]
        for node in launch.merges:
            array = self._array(node, self._merges, "merge buffer")
            self._kept.append(array)
            pointers.append(ffi.cast("void *", address(array)))
        pointers += [self._index_cells[index] for index in launch.indices]
        args = ffi.new("void *[]", pointers)
        self._kept.append(args)
        return args

    def _external(self, call: CallExternal) -> Part:
        inputs = [interior(self._arrays[node], self._nodes[node]) for node in call.inputs]
        outputs = [interior(self._arrays[node], self._nodes[node]) for node in call.outputs]
        return lambda: call.op.perform(inputs, outputs)

    def _array(self, node: TensorNode, buffers: Buffers, what: str) -> Array:
        buffer = buffers.get(node)
        if not isinstance(buffer, CBuffer):
            raise LinkError(
                f"Linking gives a {what} of this backend for every node that needs one.",
                found="none" if buffer is None else f"one of {buffer.target}",
                where=repr(node),
                fix=f"allocate its {what} before linking",
            )
        _check_fit(node, buffer.info, self._nodes[node], what)
        return buffer.array


def _check_fit(node: TensorNode, given: NodeInfo, needed: NodeInfo, what: str) -> None:
    if (given.dtype, given.buffer_dims) != (needed.dtype, needed.buffer_dims):
        raise LinkError(
            f"A {what} has the number format and the extents of its node.",
            found=f"{given.dtype} {list(given.buffer_dims)} for "
            f"{needed.dtype} {list(needed.buffer_dims)}",
            where=repr(node),
        )
