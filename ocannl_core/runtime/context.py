"""A context: a device, the memory of tensors on it, and the routines compiled for it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ocannl_core.backend import manager
from ocannl_core.backend.protocols import Buffer, Event
from ocannl_core.base import settings
from ocannl_core.base.errors import LinkError, ShapeError, UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.garbage import collect_if_due, note_memory, without_collections
from ocannl_core.base.origin import caller_location
from ocannl_core.compile.driver import compile_computation
from ocannl_core.compile.memory_plan import memory_plan
from ocannl_core.compile.stages import CompileOptions, Linkable
from ocannl_core.ir.host_arrays import Array
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.target import Target
from ocannl_core.runtime import (
    checks,
    given_values,
    link,
    merge,
    recompute_nodes,
    transfers,
    values,
)
from ocannl_core.runtime.device import device_of
from ocannl_core.runtime.memory import MemoryEntry, MemoryReport
from ocannl_core.runtime.routine import Routine
from ocannl_core.runtime.store import BufferStore, NodeMemory, RunRecord
from ocannl_core.tensor.graph.expression import refusal
from ocannl_core.tensor.messages.foreign_names import CONTEXT_ATTRIBUTES, missing_attribute

if TYPE_CHECKING:
    from ocannl_core.backend.manager import Backend
    from ocannl_core.runtime.export.export_routines import ExportedFiles
    from ocannl_core.tensor.computations.computation import Computation
    from ocannl_core.tensor.graph.tensor import Tensor


class Context:
    """The memory of tensors on one device; code for them is compiled in it.

    Routines compiled in one context share buffers: one reads the results of another. A node that
    a routine does not store is private to it; when a later routine stores that node, reading it
    gives the later routine's value. Code that reads a node which an earlier routine left virtual
    recomputes it, as long as its operands are unchanged.

    Args:
        backend: The name of a backend, or `name:device`; by default the setting `backend`, or else
            the best available.
        device: The ordinal among the backend's devices; by default the one it prefers.
        asynchronous: True to return from calls when the work is submitted to the queue of the
            device; by default the setting `asynchronous`. Devices of backends that are asynchronous
            themselves have no other queue.
        fallback: The backend, or several in order, for kernels that the first one does not support:
            each a name or `name:device`. By default those of the setting `fallback`; without any,
            such kernels are an `UnsupportedError`.

    Raises:
        BackendNotFoundError: if there is no such backend or device.
    """

    __slots__ = ("_store",)

    __deepcopy__ = __reduce_ex__ = refusal(
        "A context is the memory of a device: it is not copied or pickled.",
        "a copy of {}",
        "oc.save(path, ctx, loss) writes cells, other.copy_from(ctx, [w]) copies them, and "
        "ctx.child() shares them",
    )
    __enter__ = refusal(
        "A context is a value, and no context manager.",
        "with {}",
        "ctx = oc.Context(), then ctx.compile(...) and ctx[x]",
    )

    def __exit__(self, *error: object) -> None:
        """Do nothing: `__enter__` refuses."""

    def __getattr__(self, name: str) -> NoReturn:
        rule = "A context has no attribute"
        raise missing_attribute(self, name, rule, "a context", CONTEXT_ATTRIBUTES)

    def __init__(
        self,
        backend: str | None = None,
        *,
        device: int | None = None,
        asynchronous: bool | None = None,
        fallback: str | Sequence[str] | None = None,
    ) -> None:
        with settings.held(), without_collections():  # imported objects live on
            chosen, target = manager.select(backend)
        if device is not None and device != target.device:
            if backend is not None and ":" in backend:
                raise UsageError(
                    "The device of a context is named once.",
                    found=f"Context({backend!r}, device={device})",
                    fix=f"Context({chosen.name!r}, device={device})",
                )
            chosen, target = manager.select(f"{chosen.name}:{device}")
        with settings.held(), without_collections():
            others = _fallbacks(fallback, chosen, target)
        has_queue = settings.current().asynchronous if asynchronous is None else asynchronous
        found = device_of(chosen, target)
        found.check_usable()
        queue = found.queue if has_queue and chosen.is_synchronous else None
        self._store = BufferStore(found, queue=queue, fallbacks=others)

    @property
    def backend(self) -> Backend:
        return self._store.backend

    @property
    def target(self) -> Target:
        return self._store.target

    @property
    def fallback(self) -> tuple[str, ...]:
        """The devices for kernels that its own does not support, each as `name:device`."""
        return tuple(str(target) for _, target in self._store.fallbacks)

    @property
    def store(self) -> BufferStore:
        """The buffers of this context, for messages and copies that need no array in between."""
        return self._store

    def child(self) -> Context:
        """Return a context that shares this one's buffers; buffers that it adds stay its own.

        Values are shared: writing to a buffer that this context has is visible in both.
        """
        context = Context.__new__(type(self))
        own = self._store
        context._store = BufferStore(
            own.device, parent=own, queue=own.queue, fallbacks=own.fallbacks
        )
        return context

    def compile(
        self,
        computation: Computation,
        bindings: Sequence[StaticIndex] = (),
        keep: Sequence[Tensor] | None = None,
        name: str | None = None,
        *,
        inline: Sequence[Tensor] = (),
    ) -> Routine:
        """Return the routine that runs a computation over this context's memory.

        These nodes outlive a call: the computation's results (its targets, and the gradients of
        parameters), nodes that the context stores already, parameters, placeholders, literals and
        declared tensors. All others are scratch of the routine, or not stored at all.

        Args:
            bindings: The static indices that the code uses; calls give them values by name. The
                extents of axes in the code are arguments of calls without being listed.
            keep: The tensors to store instead of the results; `()` stores no result.
            name: A name for files and messages, an identifier; by default the computation's.
            inline: Tensors to compute wherever they are read, repeatedly, without memory.

        Raises:
            ShapeError: if shapes contradict each other or leave a size open.
            UsageError: if an index is not bound, or `keep` or `inline` names a tensor that the code
                does not mention.
            LinkError: if the code reads a node that it does not compute and that the context does
                not store, or a tensor named in `inline` needs memory.
            CompileError: if the backend's compiler rejects the code.
        """
        checks.check_code(computation)
        return self._compile(computation, checks.checked_options(bindings, keep, name, inline))

    def compile_all(
        self,
        computations: Sequence[Computation],
        bindings: Sequence[StaticIndex] = (),
        keep: Sequence[Tensor] | None = None,
    ) -> tuple[Routine, ...]:
        """Return a routine for each of several computations, in order, as `compile` does.

        What they have in common is done once: kernels that are equal but for names, such as those
        of a forward pass in training and in evaluation, are scheduled and compiled once.

        Args:
            computations: The computations. The second finds what the first stores, and so on.
            bindings: The static indices; each routine takes those that its code uses.
            keep: The tensors to store instead of results; each routine those that it mentions.
        """
        from ocannl_core.passes.kernels.deduplicate import SharedKernels, kernels_in

        options = replace(checks.checked_options(bindings, keep), are_shared=True)
        with kernels_in(SharedKernels()):
            routines = []
            for each in computations:
                checks.check_code(each, "computations")
                routines.append(self._compile(each, options))
            return tuple(routines)

    def _compile(self, computation: Computation, options: CompileOptions) -> Routine:
        collect_if_due()
        # other threads may allocate memory in these contexts, on which the code depends
        with self._store.history.lock, settings.held(), without_collections():
            return compile_computation(computation, options, self._store.state(), self._bind)

    def export(
        self,
        routines: Routine | Mapping[str, Routine],
        path: str | PathLike[str],
        *,
        inputs: Sequence[Tensor] | Mapping[str, Tensor] | None = None,
        outputs: Sequence[Tensor] | Mapping[str, Tensor] | None = None,
        weights: Literal["inside", "beside"] = "inside",
        target: Target | str | None = None,
        threads: bool = False,
    ) -> ExportedFiles:
        """Write routines of this context as a C file with a header, which need nothing else; or as
        a WebAssembly module with a JavaScript front.

        The functions of the file share their memory, a state that the caller provides. It begins
        with the values that the tensors have now. For the same target, results have the same bits
        as those of the routines.

        Args:
            routines: A routine, or several by the names of their C functions. A single one is
                called by its own name.
            path: The C file, such as `model.c`. Names in C begin with `model`; the header is
                `model.h`. With `model.wasm`, the C file is compiled by the package `ziglang`, and
                `model.mjs` and `model.d.ts` are the front for browsers and Node.js.
            inputs: The tensors whose cells callers pass, in the order of arguments, or by the names
                of arguments; by default the placeholders.
            outputs: The tensors whose cells functions return, likewise; by default the tensors that
                each call computes anew and keeps, but for gradients.
            weights: "inside" to write the values into the C file, "beside" to write them into
                `model.safetensors`, which programs map or read.
            target: The processor: "portable", "x86-64", "x86-64-v3", "x86-64-v4", "aarch64" or
                "wasm32", or a description of another one; by default the routines' own, for one
                thread, and "wasm32" for a WebAssembly module.
            threads: True for functions whose work the caller's threads may share, with the same
                results: `model_threads` takes the function that runs them.

        Raises:
            BackendNotFoundError: if the backend knows no processor of this name.
            CodegenError: for an operation in Python, a merge buffer, or a backend that generates
                another language than C.
            LinkError: if a tensor that the code reads has no value.
            UsageError: for names that are no identifiers, tensors that the routines do not keep,
                routines of another context, static indices without a range, or files that cannot
                be written.
        """
        from ocannl_core.runtime.export.export_routines import export

        named = {routines.name: routines} if isinstance(routines, Routine) else dict(routines)
        file = Path(path)
        if file.suffix not in (".c", ".wasm") or not named:
            raise UsageError(
                "An export writes at least one routine to a C file or a WebAssembly module.",
                found=repr(str(path)) if named else "no routines",
                fix='ctx.export(routine, "model.c"), or "model.wasm"',
            )
        if weights not in ("inside", "beside"):
            raise UsageError(
                "Weights are inside of the C file or beside it.", found=f"weights={weights!r}"
            )
        if not file.absolute().parent.is_dir():
            raise UsageError(
                "An export writes its files to a folder that exists.",
                found=str(file.absolute().parent),
                fix="create it before",
            )
        for routine in named.values():
            if not isinstance(routine, Routine) or routine.context is not self:
                raise UsageError(
                    "A context exports the routines that it has compiled.", found=repr(routine)
                )
        self.synchronize()
        exported = {name: each.exported for name, each in named.items()}
        return export(
            exported,
            file,
            self._store,
            inputs=inputs,
            outputs=outputs,
            weights=weights,
            target=target,
            threads=threads,
        )

    def link(self, routine: Routine) -> Routine:
        """Return a routine of another context bound to this one's memory, without compiling it
        again.

        Both contexts are on devices of one kind, such as `cpu_c:0` and `cpu_c:1`.

        Raises:
            LinkError: if the devices differ, the code reads a node that this context does not
                store, or it was compiled to recompute what an earlier routine there left virtual.
        """
        if not isinstance(routine, Routine):
            raise UsageError(
                "A context links routines.",
                found=f"a {type(routine).__name__}",
                fix="ctx.link(step), where step = other.compile(...); or ctx.compile(code)",
            )
        with self._store.history.lock:
            linkable = link.relinked(routine.linkable, routine.recomputed, self._store)
            return self._bind(linkable, routine.memory)

    def _bind(
        self, linkable: Linkable, origin: Mapping[TensorNode, NodeMemory] | None = None
    ) -> Routine:
        """Return compiled code bound to this context's memory.

        Args:
            origin: The memory of a routine with the same code, for literals whose array is gone.
        """
        built, code, usage = linkable.built, linkable.code, linkable.usage
        program = code.program
        memory = link.bind(code, built.plan, self._store, usage.writes, origin)
        routine = f"{program.name}, compiled at {caller_location()}"
        run = RunRecord(routine=routine, passed_on=weakref.WeakSet(program.passed_on))
        merged = usage.merged
        spaces = merge.present_memory(merged, built.plan.nodes, self._store)
        launch = link.launcher_of(built, memory, self._store, run, spaces)
        recomputed = recompute_nodes.locate(linkable.recipes, memory, self._store)
        link.record(built, linkable.nodes, usage, memory, run, self._store)
        link.bind_untouched(code, linkable.kept, built.plan, self._store, run)
        node = merged[0] if merged else None
        made = Routine(linkable, memory, launch, run, self._store, recomputed, node)
        made.context = self
        self._store.history.routines.add(made)
        run.owner = weakref.ref(made)
        note_memory(made, sum(built.plan.nodes[each].nbytes for each in built.plan.own_nodes))
        scratch = memory_plan(built.plan).nbytes
        if scratch:
            entry = MemoryEntry(made.name, "scratch", scratch, self._store.history)
            self._store.device.account.add(made, entry)
        return made

    def init_params(self, tensor: Tensor | Computation, *, reinitialize: bool = False) -> None:
        """Give every parameter and statistic that a tensor or a computation depends on its initial
        value.

        Those that have a value keep it: one set with `ctx[p] = array`, or by an earlier call.
        Parameters that the initial values depend on come first. Initial arrays are copied to the
        device; code is compiled for the other initial values.

        Args:
            tensor: The loss, any other tensor, or recorded code.
            reinitialize: Also replaces values that are there.

        Raises:
            UsageError: if it is neither.
            ShapeError: if nothing fixes the shape of a parameter.
        """
        if not callable(getattr(tensor, "parameters", None)):
            raise UsageError(
                "Parameters belong to a tensor, such as the loss, or to recorded code.",
                found=f"a {type(tensor).__name__}: {tensor!r}",
                fix="ctx.init_params(loss)",
            )
        pending = []
        arrays: dict[Tensor, Array] = {}
        for each in (*tensor.parameters(), *tensor.statistics):
            stored = self._store.find(each.node)
            if not reinitialize and stored is not None and stored.has_value:
                continue
            cells = each.initial_cells()
            if cells is not None:
                arrays[each] = cells
            else:
                pending.append(each.initialization())
        self.assign(arrays)
        if pending:
            self.compile(reduce(add, pending), name="init_params")()

    def synchronize(self) -> None:
        """Return when all submitted work of the device has finished."""
        self._store.synchronize()

    @property
    def memory(self) -> MemoryReport:
        """The memory of this context, its lineage and their routines, by label; printable."""
        return self._store.report()

    def release(self) -> None:
        """Free the memory that this context has added to its lineage.

        Its routines, and its children's that use this memory, cannot run any more. Memory is also
        freed without this call, when the program can no longer reach it.
        """
        self._store.synchronize()
        self._store.release()

    def buffer(self, tensor: Tensor) -> Buffer:
        """Return the memory of a tensor on the device, without a copy: some backends let other
        libraries access it.

        Raises:
            LinkError: if the tensor is not stored here, or has no value yet, with the reason.
        """
        stored = self._readable(tensor)
        self._store.wait_to_read(stored)
        return stored.buffer

    def __getitem__(self, tensor: Tensor) -> Array:
        """Return a copy of a tensor's cells: axes batch, output, input, without margins. An axis
        with an extent at run time has the size of the last write.

        Waits for pending work. Literals can be read in every context.

        Raises:
            LinkError: if the tensor is not stored here, or has no value yet; the message has the
                reason and the fix.
        """
        if self._store.find(_checked(tensor).node) is None and tensor.literal is not None:
            info = tensor.info
            assert tensor.literal is not None
            return values.cells_of(tensor.literal, info, tensor.describe(), "").copy()
        stored = self._readable(tensor)
        self._store.wait_to_read(stored)
        return values.read(self.backend, stored.buffer, stored.sizes())

    def __setitem__(self, tensor: Tensor, value: object) -> None:
        """Copy host data to the device: an array of the tensor's extents, or one number for all.
        An axis with an extent at run time may have any size up to the maximum. An array of another
        library in memory of the device is copied there.

        Integers and wider floats are rounded to a float tensor's format. A tensor without memory
        here gets some.

        Raises:
            ShapeError: if the extents differ, or a tensor without memory here is declared without
                sizes, and the value is one number.
            TransferError: if the numbers do not fit the tensor's format.
        """
        given_values.prepare(self._store, _checked(tensor), value).write(self._store)

    def assign(self, cells: Mapping[Tensor, object]) -> None:
        """Copy host data of several tensors to the device: of all of them, or of none.

        Every value is checked and converted, and memory is found for it, before the first copy.

        Raises:
            ShapeError, TransferError: as `ctx[tensor] = value` does; nothing has changed then.
            LinkError: if the memory of the device is too small; nothing has changed then.
        """
        with self._store.all_or_none() as new:
            prepared = [
                given_values.prepare(self._store, _checked(tensor), value, new)
                for tensor, value in cells.items()
            ]
        for each in prepared:
            each.write(self._store)

    def adopt(self, tensor: Tensor, array: object) -> None:
        """Let a tensor use memory of another library on the device, without a copy.

        Both see what the other writes. The memory lives as long as one of them uses it. Routines
        that use the tensor are linked again, which takes as long as many runs of a small one: a
        batch in new memory at each step is copied by `ctx[x] = array`.

        Args:
            array: An object that describes memory of this device, of the extents and the format of
                the tensor, such as one with `__dlpack__`.

        Raises:
            ShapeError: if the extents differ.
            TransferError: if it describes no memory of this device, or another format.
            LinkError: if the context has margins around the cells.
        """
        given_values.adopt(self._store, _checked(tensor), array)

    def copy_from(
        self, source: Context, tensors: Tensor | Iterable[Tensor] | Mapping[Any, Tensor]
    ) -> Event:
        """Copy the values of tensors from another context, on any device of any backend: of all of
        them, or of none.

        The bits are the same. Buffers are copied directly where one of the two backends
        can, else through the host. Tensors without memory here get some.

        Args:
            source: The context that has the values.
            tensors: One tensor or several, such as `loss.params` or `opt.state`; or a mapping from
                tensors of this context to tensors of the source, of equal formats and extents.

        Returns:
            The end of the copies, `event.wait()`; code and host access of both contexts wait for
            what they need by themselves.

        Raises:
            LinkError: if the source does not store one of the tensors, or it has no value there;
                nothing has changed then.
            TransferError: if two tensors of a mapping differ in format or extents, likewise.
        """
        pairs = transfers.pairs_of(tensors)
        found = [source._readable(there) for _, there in pairs]
        with self._store.history.lock, self._store.all_or_none() as new:
            places = [
                self._place(here, each, new) for (here, _), each in zip(pairs, found, strict=True)
            ]
        return transfers.all_of(
            transfers.copy(self._store, place, source._store, each)
            for place, each in zip(places, found, strict=True)
        )

    def _place(self, tensor: Tensor, source: NodeMemory, new: list[NodeMemory]) -> NodeMemory:
        """Return the memory here for a tensor that another context stores."""
        tensor.note_host_write()
        found = self._store.find(tensor.node)
        info = source.info if tensor.node is source.node else tensor.info
        if (info.dtype, info.dims) != (source.info.dtype, source.info.dims):
            raise transfers.unequal(tensor, info, source)
        if found is None:
            found = self._store.new(tensor.node, info, tensor.describe(), tensor)
            self._store.add(found)
            new.append(found)
        elif found.shared is not None and found.buffer is not source.buffer:
            link.unshare(found, self._store, tensor.describe())
        return found

    def fill_merge(
        self, tensor: Tensor, *, source: Context, streamed: bool = False, discard: bool = False
    ) -> Event:
        """Fill the merge buffer with another context's value of a tensor: recorded code of this
        context reads it as `tensor.merge`.

        A context, with its children, has one merge buffer.

        Args:
            tensor: The tensor, often the gradient of a parameter.
            source: The context that has the value.
            streamed: True to copy nothing: the routine that reads the merge buffer reads the
                source's memory. Between devices of one backend that share memory.
            discard: True to drop a content that a routine compiled to read it has not read.

        Returns:
            The end of the transfer.

        Raises:
            LinkError: if the source has no value; or if the present content has not been read.
        """
        found = source._readable(_checked(tensor))
        own = self._store.find(tensor.node)
        return merge.fill(
            self._store,
            tensor.describe(),
            source._store,
            found,
            own.info if own is not None else found.info,
            is_streamed=streamed,
            discards=discard,
        )

    def __contains__(self, tensor: Tensor) -> bool:
        """Return True if the tensor has memory here, with or without a value."""
        return self._store.find(_checked(tensor).node) is not None

    def item(self, tensor: Tensor) -> float:
        """Return the number that a tensor of one cell holds.

        Raises:
            ShapeError: if the tensor has more cells, or none.
            LinkError: as reading it does.
        """
        cells = self[tensor]
        if cells.size != 1:
            raise ShapeError(
                "item reads tensors of one cell.",
                found=f"{cells.size} cells",
                where=f"{tensor.describe()}, of shape {tensor.shape}",
                fix=f"ctx[{tensor.node.name}] gives them all as an array",
            )
        return float(cells.reshape(())[()])

    def __repr__(self) -> str:
        size = self._store.nbytes()
        return f"<context on {self.target}: {len(self._store)} tensors, {size} bytes>"

    def _readable(self, tensor: Tensor) -> NodeMemory:
        node = tensor.node
        stored = self._store.find(node)
        if stored is not None and stored.has_value:
            return stored
        where = f"{tensor.describe()}, read at {caller_location()}"
        if stored is not None:
            raise LinkError(
                "A tensor is read after something has given it a value.",
                found="it is stored, without a value so far",
                where=where,
                fix=checks.fix_for_missing_value(stored),
            )
        found, fix = "no routine compiled in this context mentions it", ""
        unstored = self._store.find_unstored(node)
        if unstored is not None:
            found, fix = f"it is {unstored[0].describe()}", unstored[0].fix(node)
        raise LinkError(
            "Only tensors that a context stores can be read from it.",
            found=found,
            where=where,
            fix=fix or checks.fix_for_unknown(tensor),
        )


def _fallbacks(
    names: str | Sequence[str] | None, chosen: Backend, target: Target
) -> tuple[tuple[Backend, Target], ...]:
    """Return the devices for kernels that the device of a context does not support."""
    if names is None:
        names = settings.current().fallback
    every = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(each, str) for each in every):
        raise UsageError.at_caller(
            "fallback= takes the name of a backend, or several.",
            found=repr(names),
            fix='oc.Context("tiny", fallback=["cpu_c", "interp"])',
        )
    found = dict.fromkeys(manager.select(each) for each in every)
    found.pop((chosen, target), None)
    for backend, other in found:
        if backend.passes(other):
            raise UsageError.at_caller(
                "A fallback compiles kernels as the passes of the core leave them.",
                found=f"{backend.name} has passes of its own",
                fix="name another backend",
            )
    return tuple(found)


def _checked(tensor: Tensor) -> Tensor:
    """Return the key of a context if it is a tensor."""
    if not isinstance(getattr(tensor, "node", None), TensorNode):
        raise UsageError(
            "A context is indexed by tensors.",
            found=f"a {type(tensor).__name__}",
            fix="a tensor that needs no gradient has None as its .grad"
            if tensor is None
            else "ctx[x], where x is the tensor itself",
        )
    return tensor
