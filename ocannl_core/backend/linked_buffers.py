"""Memory that an executable is linked with, checked against the nodes of its plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ocannl_core.backend.protocols import Buffer
from ocannl_core.base.errors import LinkError
from ocannl_core.ir.node import NodeInfo, TensorNode

B = TypeVar("B", bound=Buffer)


def linked_buffer(
    buffers: Mapping[TensorNode, Buffer],
    node: TensorNode,
    info: NodeInfo,
    kind: type[B],
    what: str = "buffer",
    *,
    is_reached: Callable[[B], bool] | None = None,
) -> B:
    """Return the memory of a node.

    Args:
        info: The number format and the extents that it needs.
        kind: The class of the backend's buffers.
        what: "buffer" or "merge buffer", for messages.
        is_reached: Returns True for memory that the device of the executable accesses; by default
            it accesses all memory of its backend.

    Raises:
        LinkError: if there is none, if it belongs to another device, or does not fit the node.
    """
    buffer = buffers.get(node)
    if not isinstance(buffer, kind) or (is_reached is not None and not is_reached(buffer)):
        owner = "backend" if is_reached is None else "device"
        raise LinkError(
            f"Linking gives a {what} of this {owner} for every node that needs one.",
            found="none" if buffer is None else f"one of {buffer.target}",
            where=repr(node),
            fix=f"allocate its {what} before linking",
        )
    given = buffer.info
    if (given.dtype, given.buffer_dims) != (info.dtype, info.buffer_dims):
        raise LinkError(
            f"A {what} has the number format and the extents of its node.",
            found=f"{given.dtype} {list(given.buffer_dims)} for "
            f"{info.dtype} {list(info.buffer_dims)}",
            where=repr(node),
        )
    return buffer
