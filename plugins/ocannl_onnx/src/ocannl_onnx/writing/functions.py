"""Functions of the file, one for each structure of a block."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import onnx
from onnx import helper

DOMAIN = "ocannl"
"""The domain of the functions."""


@dataclass(frozen=True)
class OwnedNode:
    """A node with the applications of blocks around it, outermost first."""

    proto: onnx.NodeProto
    owners: tuple[Any, ...]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for each in node.attribute:
        if each.type == onnx.AttributeProto.GRAPH:
            yield each.g


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node reads, those that its graphs take from around included."""
    yield from filter(None, node.input)
    for graph in subgraphs(node):
        own = {each.name for each in graph.input} | {each.name for each in graph.initializer}
        for inner in graph.node:
            yield from (name for name in reads(inner) if name not in own)
            own.update(inner.output)
        yield from (each.name for each in graph.output if each.name not in own)


def rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Replace names of values in a node and in its graphs."""
    for values in (node.input, node.output):
        for k, name in enumerate(values):
            values[k] = names.get(name, name)
    for graph in subgraphs(node):
        for port in (*graph.input, *graph.output):
            port.name = names.get(port.name, port.name)
        for inner in graph.node:
            rename(inner, names)


def needed(nodes: Sequence[OwnedNode], outputs: AbstractSet[str]) -> list[OwnedNode]:
    """Return the nodes on which outputs depend."""
    wanted = set(outputs)
    found: list[OwnedNode] = []
    for each in reversed(nodes):
        if wanted.intersection(each.proto.output):
            wanted.update(reads(each.proto))
            found.append(each)
    return found[::-1]


@dataclass
class Library:
    """The functions of a file; blocks of equal structure share one.

    Attributes:
        functions: The functions by their names.
    """

    opset: int
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)
    _by_body: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def grouped(
        self, nodes: Sequence[OwnedNode], depth: int, outputs: AbstractSet[str]
    ) -> list[onnx.NodeProto]:
        """Return nodes with a call in place of the nodes of each block.

        Args:
            nodes: The nodes in an order in which they can run.
            depth: The number of applications around all nodes.
            outputs: The values that are read afterwards.
        """
        alive = needed(nodes, outputs)
        units = _units(alive, depth)
        readers: dict[str, set[int]] = {}
        for k, unit in enumerate(units):
            for each in unit.nodes:
                for name in reads(each.proto):
                    readers.setdefault(name, set()).add(k)
        result: list[onnx.NodeProto] = []
        for k, unit in enumerate(units):
            if unit.owner is None:
                result.append(unit.nodes[0].proto)
                continue
            made = [name for each in unit.nodes for name in each.proto.output]
            read = [n for n in made if n in outputs or readers.get(n, {k}) != {k}]
            result.append(self._call(unit, depth, read))
        return result

    def _call(self, unit: _Unit, depth: int, outputs: Sequence[str]) -> onnx.NodeProto:
        """Return a call of the function of a block, which is made if no equal one exists."""
        made = {name for each in unit.nodes for name in each.proto.output}
        inputs = list(
            dict.fromkeys(n for each in unit.nodes for n in reads(each.proto) if n not in made)
        )
        body = self.grouped(unit.nodes, depth + 1, set(outputs))
        block = unit.owner.block
        name = re.sub(r"\W", "_", block.name).strip("_")
        key = self._function("", inputs, outputs, body, _numbered).SerializeToString(
            deterministic=True
        )
        if (name, key) not in self._by_body:
            count = 1
            while (unique := name if count == 1 else f"{name}_{count}") in self.functions:
                count += 1
            self._by_body[name, key] = unique
            self.functions[unique] = self._function(unique, inputs, outputs, body, _shortened)
        return helper.make_node(
            self._by_body[name, key],
            inputs,
            outputs,
            name="/" + "/".join((*unit.owner.path, outputs[0] if outputs else "")),
            domain=DOMAIN,
        )

    def _function(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        body: Sequence[onnx.NodeProto],
        spelling: Callable[[str, int], str],
    ) -> onnx.FunctionProto:
        """Return nodes as a function, with names of values of its own."""
        names = _renamed(inputs, body, spelling)
        copies = [onnx.NodeProto() for _ in body]
        for copy, node in zip(copies, body, strict=True):
            copy.CopyFrom(node)
            rename(copy, names)
            copy.name = ""
        return helper.make_function(
            DOMAIN,
            name,
            [names[each] for each in inputs],
            [names[each] for each in outputs],
            copies,
            [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)],
        )


def _numbered(name: str, number: int) -> str:
    """Return a name that equal structures have in common."""
    return f"v{number}"


def _shortened(name: str, number: int) -> str:
    """Return a name without the number that makes it unique in the model."""
    return re.sub(r"_\d+$", "", name)


def _renamed(
    inputs: Sequence[str], body: Sequence[onnx.NodeProto], spelling: Callable[[str, int], str]
) -> dict[str, str]:
    """Return other names of the values of a body, spelled in order of appearance."""
    names: dict[str, str] = {}
    taken: set[str] = set()

    def add(name: str) -> None:
        if name and name not in names:
            base = spelling(name, len(names))
            unique, count = base, 1
            while unique in taken:
                unique, count = f"{base}_{count}", count + 1
            taken.add(unique)
            names[name] = unique

    def visit(node: onnx.NodeProto) -> None:
        for name in node.input:
            add(name)
        for graph in subgraphs(node):
            for port in graph.input:
                add(port.name)
            for inner in graph.node:
                visit(inner)
            for port in graph.output:
                add(port.name)
        for name in node.output:
            add(name)

    for name in inputs:
        add(name)
    for node in body:
        visit(node)
    return names


@dataclass
class _Unit:
    """Nodes that become one: all nodes of an application, or a single one."""

    owner: Any
    nodes: list[OwnedNode]


def _units(nodes: Sequence[OwnedNode], depth: int) -> list[_Unit]:
    """Return the nodes of each application at a depth, and other nodes, in an order in which they
    can run. An application whose nodes cannot run together is taken apart.
    """
    apart: set[Any] = set()
    while True:
        units: list[_Unit] = []
        by_owner: dict[Any, _Unit] = {}
        for each in nodes:
            owner = each.owners[depth] if len(each.owners) > depth else None
            if owner is None or owner in apart:
                units.append(_Unit(None, [each]))
            elif owner in by_owner:
                by_owner[owner].nodes.append(each)
            else:
                by_owner[owner] = _Unit(owner, [each])
                units.append(by_owner[owner])
        ordered, stuck = _in_order(units)
        if not stuck:
            return ordered
        apart.update(unit.owner for unit in stuck if unit.owner is not None)


def _in_order(units: Sequence[_Unit]) -> tuple[list[_Unit], list[_Unit]]:
    """Return units in an order in which they can run, and those that depend on themselves."""
    producer = {
        name: k for k, unit in enumerate(units) for each in unit.nodes for name in each.proto.output
    }
    before = [
        {producer[n] for each in unit.nodes for n in reads(each.proto) if n in producer} - {k}
        for k, unit in enumerate(units)
    ]
    after: dict[int, list[int]] = {}
    for k, earlier in enumerate(before):
        for each in earlier:
            after.setdefault(each, []).append(k)
    waits = [len(each) for each in before]
    ready = [k for k, count in enumerate(waits) if count == 0]  # in order, so it is a heap
    ordered: list[_Unit] = []
    while ready:
        k = heappop(ready)
        ordered.append(units[k])
        for following in after.get(k, ()):
            waits[following] -= 1
            if waits[following] == 0:
                heappush(ready, following)
    return ordered, [units[k] for k, count in enumerate(waits) if count > 0]
