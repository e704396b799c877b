"""The merge buffer of a lineage of contexts: a copy of one node from another context.

ctx.fill_merge(p.grad, source=other)     # `p.grad.merge`, in code compiled in ctx, reads it
"""

from __future__ import annotations

from collections.abc import Mapping

from ocannl_core.backend.protocols import Buffer, Done, Event
from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.runtime import transfers, values
from ocannl_core.runtime.store import BufferStore, MergeContent, NodeMemory


def fill(
    store: BufferStore,
    tensor_name: str,
    source: BufferStore,
    stored: NodeMemory,
    info: NodeInfo,
    *,
    is_streamed: bool,
    discards: bool,
) -> Event:
    """Fill the merge buffer of a context.

    Args:
        is_streamed: True to read the source's memory when the reader runs.
        discards: True to drop a content that a compiled routine has not read.

    Raises:
        LinkError: if the present content has not been read by a routine compiled for it.
        UsageError: if devices of two backends are to share memory.
    """
    held = store.history.merged
    if held is not None and not held.is_read and not discards:
        _check_read(store, held, tensor_name)
    node = stored.node
    if is_streamed:
        if store.backend is not source.backend:
            raise UsageError(
                "A merge buffer streams between devices of one backend, which read each other's "
                "memory.",
                found=f"streamed=True from {source.target} to {store.target}",
                where=tensor_name,
                fix="leave out streamed=True: the cells are copied",
            )
        content = MergeContent(node, tensor_name, stored, stored, source, stored.written_at())
        store.history.merge_filled(content)
        return Done()
    cells = memory_for(node, info, store)
    event = transfers.copy(store, cells, source, stored)
    content = MergeContent(node, tensor_name, cells, None, store, 0)
    store.history.merge_filled(content)
    return event


def memory_for(node: TensorNode, info: NodeInfo, store: BufferStore) -> NodeMemory:
    """Return the memory of the merge buffer in a layout; nodes of one layout share it."""
    memory = store.history.merge_memory
    cells = memory.get(info)
    if cells is None:
        name = f"merge buffer of {node.name}"
        cells = memory[info] = store.new(node, info, name, kind="merge buffer")
    cells.node = node
    return cells


def check_at_run(node: TensorNode, store: BufferStore, routine: str) -> MergeContent:
    """Return the content that a routine is about to read.

    Raises:
        LinkError: if the merge buffer is empty, or holds another node; or if the memory that is
            streamed was written since.
    """
    held = store.history.merged
    if held is None or held.node is not node:
        raise LinkError(
            "A routine that reads a merge buffer runs after a transfer has filled it.",
            found=f"it reads {node.name}.merge, and the merge buffer "
            + ("is empty" if held is None else f"holds {held.name}"),
            where=f"running {routine}",
            fix=f"ctx.fill_merge({node.name}, source=other)",
        )
    streamed = held.streamed_from
    if streamed is not None and streamed.written_at() != held.written_at:
        raise LinkError(
            "A streamed merge buffer is read before its source is written again.",
            found=f"{held.name} was written on {held.source.target} since fill_merge",
            where=f"running {routine}",
            fix=f"run {routine} before that, or copy: leave out streamed=True",
        )
    return held


def buffer_for(content: MergeContent, info: NodeInfo, store: BufferStore) -> Buffer:
    """Return the cells of a merge buffer in the layout that a routine needs."""
    cells = content.cells
    if _layout(cells.info) == _layout(info):
        return cells.buffer
    content.source.wait_to_read(cells)
    found = memory_for(content.node, info, store)
    store.wait_to_write(found)
    values.write(store.backend, found.buffer, values.read(store.backend, cells.buffer))
    return found.buffer


def present_memory(
    nodes: tuple[TensorNode, ...], infos: Mapping[TensorNode, NodeInfo], store: BufferStore
) -> dict[TensorNode, Buffer]:
    """Return the merge buffers that code is linked with before its first run."""
    found: dict[TensorNode, Buffer] = {}
    for node in nodes:
        held = store.history.merged
        if held is not None and _layout(held.cells.info) == _layout(infos[node]):
            found[node] = held.cells.buffer
        else:
            found[node] = memory_for(node, infos[node], store).buffer
    return found


def _layout(info: NodeInfo) -> tuple[object, ...]:
    return info.dtype, info.dims, info.padding


def _check_read(store: BufferStore, held: MergeContent, name: str) -> None:
    waiting = [each for each in store.history.routines if each.merged is held.node]
    if not waiting:
        return
    routines = ", ".join(sorted(each.name for each in waiting))
    raise LinkError(
        "A merge buffer is filled again after the routine that reads it has run.",
        found=f"it holds {held.name}, which {routines} has not read",
        where=f"filling the merge buffer with {name}",
        fix=f"run {routines} first, or drop the content: fill_merge(..., discard=True)",
    )
