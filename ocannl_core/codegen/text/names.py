"""Canonical names within one kernel: alpha-equivalent kernels have the same text.

A name is the letter of its `NameRole` and a number. A loop variable is named for the depth of its
loop, so sibling loops share names; the bounds of a partition are words with a number (`first1`).
Labels and hints never appear. Verbatim code writes `$0`, `$1` and so on for the names of arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from enum import Enum, unique
from textwrap import dedent
from typing import Any

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.text.scalar_replacement import RegisterFile
from ocannl_core.ir.indexing import IndexVar, LoopVar, StaticIndex
from ocannl_core.ir.loops.nodes import Local, Verbatim
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import TensorNode

_LOOP_LETTERS = "ijkmnpqr"


@unique
class NameRole(Enum):
    """The role of a name in a kernel; the value is its first letter.

    All letters differ, and within one role the numbers differ, so no name shadows another.
    """

    ARGUMENT = "a"
    MERGE = "m"
    STATIC = "s"
    PRIVATE = "p"
    PLACE = "c"
    ARRAY = "t"
    VARIABLE = "v"
    BOXES = "b"

    def name_of(self, number: int) -> str:
        """Return the name with this number."""
        return f"{self.value}{number}"


class KernelNames:
    """The names in scope at the current point of the text.

    Attributes:
        depth: The number of loops around the current point.
        registers: The local arrays that are kept in variables.
    """

    def __init__(
        self,
        arguments: Sequence[TensorNode],
        merges: Sequence[TensorNode],
        indices: Sequence[StaticIndex],
    ) -> None:
        self._arrays = {
            node: NameRole.ARGUMENT.name_of(number) for number, node in enumerate(arguments)
        }
        self._merges = {node: NameRole.MERGE.name_of(number) for number, node in enumerate(merges)}
        self._vars: dict[IndexVar, str | int] = {
            index: NameRole.STATIC.name_of(number) for number, index in enumerate(indices)
        }
        self._locals: dict[Local, str] = {}
        self.registers: dict[TensorNode, RegisterFile] = {}
        self._register_tables: list[dict[TensorNode, Any]] = [self.registers]
        self._private: dict[TensorNode, str] = {}
        self.depth = 0
        self._depths: dict[str, int] = {}
        self._allotted = dict.fromkeys(NameRole, 0)

    def array(self, node: TensorNode) -> str:
        """Return the name of a node's memory.

        Raises:
            CodegenError: if the node is neither an argument of the kernel nor allocated in it.
        """
        if node not in self._arrays:
            raise CodegenError(
                "A kernel mentions only nodes that it is given or allocates.", found=node.name
            )
        return self._arrays[node]

    def depth_of(self, array: str) -> int:
        """Return the number of loops around the declaration of an array, 0 for a parameter."""
        return self._depths.get(array, 0)

    def merge(self, node: TensorNode) -> str:
        """Return the name of a node's merge buffer."""
        return self._merges[node]

    def index(self, var: IndexVar) -> str | int:
        """Return the name of an index variable, or its value if it has only one.

        Raises:
            CodegenError: if no enclosing loop binds it and it is no static index of the kernel.
        """
        if var not in self._vars:
            raise CodegenError(
                "A kernel mentions only variables of enclosing loops and its static indices.",
                found=var.name if isinstance(var, StaticIndex) else var.hint,
            )
        return self._vars[var]

    def local(self, local: Local) -> str:
        """Return the name of a scalar.

        Raises:
            CodegenError: if it is not declared here.
        """
        if local not in self._locals:
            raise CodegenError(
                "A scalar variable is declared before it is used, in an enclosing block.",
                found=f"variable {local.id}" + (f" of {local.node.name}" if local.node else ""),
            )
        return self._locals[local]

    def _allot(self, role: NameRole) -> str:
        number = self._allotted[role]
        self._allotted[role] += 1
        return role.name_of(number)

    def fresh(self) -> str:
        """Return the name of a new variable."""
        return self._allot(NameRole.VARIABLE)

    def fresh_pointer(self) -> str:
        """Return the name of a new pointer variable."""
        return self._allot(NameRole.PLACE)

    def declare(self, local: Local) -> str:
        """Name a scalar for the rest of the block."""
        self._locals[local] = self.fresh()
        return self._locals[local]

    def allocate(self, node: TensorNode) -> str:
        """Name a local array for the rest of the block."""
        name = self._arrays[node] = self._allot(NameRole.ARRAY)
        self._depths[name] = self.depth
        return name

    def allocate_private(self, node: TensorNode) -> str:
        """Name a buffer that is private to each thread, for the rest of the block.

        All its allocations share one name.
        """
        if node not in self._private:
            self._private[node] = self._allot(NameRole.PRIVATE)
        self._arrays[node] = self._private[node]
        return self._arrays[node]

    def allocate_registers(self, node: TensorNode, lanes: Mapping[int, int]) -> RegisterFile:
        """Name the variables of a local array for the rest of the block."""
        file = RegisterFile(self._allot(NameRole.ARRAY), lanes)
        self.registers[node] = file
        return file

    def register_table(self) -> dict[TensorNode, Any]:
        """Return a new table of local arrays that registers of instructions hold; at the end of a
        block it loses the entries of the block.
        """
        self._register_tables.append({})
        return self._register_tables[-1]

    @property
    def has_registers(self) -> bool:
        """True if local arrays are in registers of any kind."""
        return any(self._register_tables)

    def in_registers(self, nodes: AbstractSet[TensorNode]) -> bool:
        """Return True if some of these local arrays are in registers of any kind."""
        return any(not table.keys().isdisjoint(nodes) for table in self._register_tables)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Open a scope, and drop its declarations at its end."""
        arrays, local_names = dict(self._arrays), dict(self._locals)
        registers = [dict(table) for table in self._register_tables]
        yield
        self._arrays, self._locals = arrays, local_names
        for table, outer in zip(self._register_tables, registers, strict=True):
            table.clear()
            table.update(outer)

    @contextmanager
    def loop(self, var: LoopVar) -> Iterator[str]:
        """Name the variable of a loop inside the loop."""
        depth = self.depth
        letters = _LOOP_LETTERS
        name = letters[depth] if depth < len(letters) else f"i{depth}"
        self.depth += 1
        with _Binding(self._vars, var, name):
            yield name
        self.depth -= 1

    def bind(self, var: LoopVar, value: int) -> AbstractContextManager[None]:
        """Bind a loop variable to the value of a single iteration."""
        return _Binding(self._vars, var, value)


class _Binding(AbstractContextManager[None]):
    """A binding of a variable while a block is rendered.

    A class instead of a generator, since unrolled loops bind their variable once per iteration.
    """

    __slots__ = ("_meaning", "_outer", "_var", "_vars")

    def __init__(
        self, variables: dict[IndexVar, str | int], var: LoopVar, meaning: str | int
    ) -> None:
        self._vars = variables
        self._var = var
        self._meaning = meaning
        self._outer: str | int | None = None

    def __enter__(self) -> None:
        self._outer = self._vars.get(self._var)
        self._vars[self._var] = self._meaning

    def __exit__(self, *raised: object) -> None:
        if self._outer is None:
            del self._vars[self._var]
        else:
            self._vars[self._var] = self._outer


def verbatim_text(verbatim: Verbatim, array: Callable[[TensorNode], str]) -> str:
    """Return the text of verbatim code, with the names of arrays in place of `$0`, `$1` and so on.

    Args:
        array: Names the array of a node.

    Raises:
        CodegenError: if the text uses these names, or a node that its body does not mention.
    """
    mentioned = nodes_of(verbatim.body)
    given = {array(node) for node in mentioned}
    hidden = sorted(given.intersection(re.findall(r"\w+", verbatim.text)))
    if hidden:
        raise CodegenError(
            "Verbatim code must not use the names that the kernel gives to nodes.",
            found=", ".join(hidden),
            fix="write $0, $1, ... for the nodes, and call variables by longer names",
        )

    def name(match: re.Match[str]) -> str:
        position = int(match[1])
        if position >= len(mentioned):
            raise CodegenError(
                f"Verbatim code names nodes from $0 to ${len(mentioned) - 1}.", found=match[0]
            )
        return array(mentioned[position])

    return dedent(re.sub(r"\$(\d+)", name, verbatim.text)).strip("\n")
