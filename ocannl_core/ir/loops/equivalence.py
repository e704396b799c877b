"""Alpha-equivalence: equality of code up to the names of its bound variables.

A part of a routine has free names: the nodes, and the variables of the code around it. They are
compared by identity, so a key is good for one program. `ir.canonical` names whole nests and
programs, in which every name is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from ocannl_core.ir import indexing
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import Node
from ocannl_core.ir.node import TensorNode

Storage = TensorNode | ir.Local
Key = tuple[Hashable, ...]

_BINDERS = {ir.For: "var", ir.Scoped: "local", ir.DeclareLocal: "local", ir.Repeat: "index"}
"""The fields that bind a variable."""
_LEAVES = frozenset(
    {ir.Const, ir.Local, indexing.LoopVar, indexing.StaticIndex, indexing.StaticExtent}
)
_LANGUAGE = frozenset({ir.__name__, indexing.__name__})


def alpha_key(root: Node, version: Callable[[Storage], int] = lambda storage: 0) -> Key:
    """Return a key that two nodes share exactly if they are alpha-equivalent.

    It lists classes and fields in the order of a walk; a bound variable is the number of its
    binding.

    Args:
        version: The version of the contents of a node, or of a free scalar, at this point.
    """
    bound: dict[object, int] = {}
    parts: list[Hashable] = []
    pending: list[object] = [root]
    while pending:
        part = pending.pop()
        kind: Any = type(part)
        if compared := _compared_fields(kind):
            parts.append(kind)
            if kind in _BINDERS:
                variable = getattr(part, _BINDERS[kind])
                bound[variable] = len(parts)
                parts.append(variable.dtype if isinstance(variable, ir.Local) else None)
            pending += [getattr(part, name) for name in compared]
        elif isinstance(part, tuple):
            inside = [each for each in part if type(each) is not ir.Remark]
            parts.append(len(inside))
            pending += reversed(inside)
        elif isinstance(part, TensorNode):
            parts.append((part, version(part)))
        elif isinstance(part, ir.Local):
            parts.append(bound.get(part) or (part, version(part)))
        elif isinstance(part, indexing.LoopVar | indexing.StaticIndex):
            parts.append(bound.get(part, part))
        elif isinstance(part, float):  # equal to an integer of the same value; a NaN equals itself
            is_whole = part.is_integer() and str(part) != "-0.0"
            parts.append(part if is_whole else part.hex())
        else:
            parts.append(part)
    return tuple(parts)


@cache
def _compared_fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a class of the language that distinguish code, the last one first; none
    for other classes, for names, and for constants, which compare by bit pattern.
    """
    if kind.__module__ not in _LANGUAGE or kind in _LEAVES or not is_dataclass(kind):
        return ()
    names = [each.name for each in fields(kind) if each.compare]
    if kind is ir.Scoped:
        names.remove("indices")  # of a load that it replaces
    return tuple(reversed(names))
