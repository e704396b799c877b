"""Staged code, with the names of a kernel's arrays."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import dedent

from ocannl_core.base.errors import CodegenError
from ocannl_core.ir.loops.nodes import Staged
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import TensorNode


def staged_text(staged: Staged, array: Callable[[TensorNode], str]) -> str:
    """Return the text of staged code, with the names of arrays in place of `$0`, `$1` and so on.

    Args:
        staged: The staged code.
        array: Names the array of a node.

    Raises:
        CodegenError: if the text uses these names itself, or mentions a node that its body does
            not.
    """
    mentioned = nodes_of(staged.body)
    given = {array(node) for node in mentioned}
    hidden = sorted(given.intersection(re.findall(r"\w+", staged.text)))
    if hidden:
        raise CodegenError(
            "Staged code must not use the names that the kernel gives to nodes.",
            found=", ".join(hidden),
            fix="write $0, $1, ... for the nodes, and call variables by longer names",
        )

    def name(match: re.Match[str]) -> str:
        position = int(match[1])
        if position >= len(mentioned):
            raise CodegenError(
                f"Staged code names nodes from $0 to ${len(mentioned) - 1}.", found=match[0]
            )
        return array(mentioned[position])

    return dedent(re.sub(r"\$(\d+)", name, staged.text)).strip("\n")
