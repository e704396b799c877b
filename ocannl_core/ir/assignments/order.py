"""Order of assignments with respect to calls that destroy inputs.

The order is stable: a call that destroys a value moves behind the other readers of the value and of
its views, together with the dependents of the call. In imperative code a call keeps its place, and
is an assignment to inputs that outlive the program:

    p[:] = update_in_place(p)
    q[:] = p                        # reads the updated cells
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field

from ocannl_core.base.errors import OpError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.assignments.nodes import (
    Assignment,
    AssignProgram,
    AssignSequence,
    ExternalCall,
    Section,
)
from ocannl_core.ir.assignments.traverse import Leaf, reads, targets
from ocannl_core.ir.node import TensorNode

Value = tuple[TensorNode, int]
"""A node, and the position of the assignment that wrote it; -1 if it was written before."""

Path = tuple[tuple[int, str], ...]
"""The sections around an assignment, outermost first: a distinguishing number and the title."""


def reorder_assignments(
    program: AssignProgram, persistent: AbstractSet[TensorNode], kept: Mapping[TensorNode, str]
) -> AssignProgram:
    """Move destroying calls behind the other readers of the values that they destroy.

    Of a persistent node that a call updates in place, a target takes over the memory.
    """
    places = list(_flatten(program.body))
    order = _AssignmentOrder([leaf for _, leaf in places], program.results, persistent, kept)
    order.scan()
    order.check()
    sequence = order.sequence()
    if sequence == sorted(sequence) and not order.unshared:
        return program
    ordered = [(places[position][0], order.leaf(position)) for position in sequence]
    return replace(program, body=_nest(ordered))


def _flatten(body: tuple[Assignment, ...], path: Path = ()) -> Iterator[tuple[Path, Leaf]]:
    for position, each in enumerate(body):
        match each:
            case Section(title, inner):
                yield from _flatten(inner, (*path, (position, title)))
            case AssignSequence(inner):
                yield from _flatten(inner, (*path, (position, "")))
            case _:
                yield path, each


def _nest(places: list[tuple[Path, Leaf]], depth: int = 0) -> tuple[Assignment, ...]:
    """Nest assignments in their sections; an interrupted section occurs twice."""
    found: list[Assignment] = []
    start = 0
    while start < len(places):
        path, leaf = places[start]
        stop = start + 1
        if len(path) == depth:
            found.append(leaf)
        else:
            while stop < len(places) and places[stop][0][: depth + 1] == path[: depth + 1]:
                stop += 1
            inner = _nest(places[start:stop], depth + 1)
            title = path[depth][1]
            found += [Section(title, inner)] if title else inner
        start = stop
    return tuple(found)


@dataclass(slots=True)
class _AssignmentOrder:
    """Dependence graph of the assignments of a program."""

    leaves: list[Leaf]
    results: AbstractSet[TensorNode]
    persistent: AbstractSet[TensorNode]
    kept: Mapping[TensorNode, str]
    before: list[set[int]] = field(default_factory=list)
    readers: dict[Value, list[int]] = field(default_factory=lambda: defaultdict(list))
    """For each value, under its oldest alias, the assignments that read it."""
    destroyers: dict[Value, int] = field(default_factory=dict)
    """For each destroyed value, under its oldest alias, the call that destroys it."""
    _writer: dict[TensorNode, int] = field(default_factory=dict)
    unshared: set[Value] = field(default_factory=set)
    """Values that need memory of their own because the shared memory is overwritten."""
    _memory: dict[TensorNode, TensorNode] = field(default_factory=dict)
    _viewed: dict[Value, Value] = field(default_factory=dict)
    _members: dict[Value, list[TensorNode]] = field(default_factory=lambda: defaultdict(list))

    def scan(self) -> None:
        """Collect values, their readers and destroyers, and the dependences between assignments."""
        since: dict[TensorNode, set[int]] = defaultdict(set)
        for position, leaf in enumerate(self.leaves):
            needed: set[int] = set()
            for node in reads(leaf):
                if node in self._writer:
                    needed.add(self._writer[node])
                self.readers[self._value(node)].append(position)
                for each in self._in_memory_of(node):
                    since[each].add(position)
            if isinstance(leaf, ExternalCall):
                self._note(leaf, position)
            written = [*targets(leaf), *self._assigned(leaf)]
            for node in written:
                if node in self._writer:
                    needed.add(self._writer[node])
                needed |= since.pop(node, set())
            for node in written:
                self._writer[node] = position
                self._memory.pop(node, None)
            if isinstance(leaf, ExternalCall):
                for target, source in leaf.shared:
                    self._memory[target] = source
            self.before.append(needed - {position})
        for node in self.results:
            self._in_memory_of(node)
        for value, position in self.destroyers.items():
            self.before[position] |= set(self.readers[value]) - {position}

    def _assigned(self, leaf: Leaf) -> list[TensorNode]:
        """Return the inputs that a call updates in place."""
        if not isinstance(leaf, ExternalCall) or not leaf.has_place:
            return []
        return [node for node in leaf.destroyed if node in self.persistent]

    def _in_memory_of(self, node: TensorNode) -> list[TensorNode]:
        """Return a node and the nodes whose memory it took over, as long as that holds its value.

        Where the memory was written since, the node has to have memory of its own.
        """
        found = [node]
        while node in self._memory:
            source = self._memory[node]
            if self._writer.get(source, -1) > self._writer[node]:
                self.unshared.add((node, self._writer[node]))
                break
            found.append(source)
            node = source
        return found

    def _value(self, node: TensorNode) -> Value:
        """Return the value that a node has now, as its oldest alias."""
        value = (node, self._writer.get(node, -1))
        oldest = self._viewed.get(value, value)
        if node not in self._members[oldest]:
            self._members[oldest].append(node)
        return oldest

    def _note(self, call: ExternalCall, position: int) -> None:
        """Record the inputs that a call destroys, and the sources of its views."""
        read = [self._value(node) for node in call.inputs]
        taken = {source for _, source in call.shared}
        for node in call.destroyed:
            value = self._value(node)
            if read.count(value) > 1:
                raise OpError(
                    "An input that an operation destroys is not another of its inputs too.",
                    found=f"{_describe(call)} destroys {node.name} and reads it twice",
                    where=str(call.origin or ""),
                    fix="give it a copy: a tensor computed from the input",
                )
            if value in self.destroyers:
                other = self.leaves[self.destroyers[value]]
                raise OpError(
                    "One operation at most destroys a value.",
                    found=f"{_describe(other)} and {_describe(call)} both destroy {node.name}",
                    where=_places(other, call),
                    fix="give one of them a copy, or the result of the other",
                )
            is_update = node in self.persistent and node in taken
            for member in self._members[value]:
                if member in self.kept and not (member is node and is_update):
                    self._refuse_loss(call, node, member)
            self.destroyers[value] = position
        for target, source in call.views:
            self._viewed[target, position] = self._value(source)

    def _refuse_loss(self, call: ExternalCall, node: TensorNode, member: TensorNode) -> None:
        what = self.kept[member]
        seen = "" if member is node else f" through its view {node.name}"
        raise OpError(
            f"A {what} keeps its cells"
            + (", unless an output takes its memory over." if what == "parameter" else "."),
            found=f"{_describe(call)} destroys the {what} {member.name}{seen}",
            where=str(call.origin or ""),
            fix="give the operation a copy: a tensor computed from it",
        )

    def check(self) -> None:
        """Refuse programs whose results are destroyed, or are needed in two versions."""
        for target, written in sorted(self.unshared, key=lambda value: (value[1], value[0].id)):
            self._check_update_is_readable(target, written)
        for node in sorted(self.results, key=lambda node: node.id):
            value = (node, self._writer.get(node, -1))
            position = self.destroyers.get(self._viewed.get(value, value))
            if position is None or node in self.persistent:
                continue
            raise OpError(
                "A value that an operation destroys is not a result of the computation.",
                found=f"{_describe(self.leaves[position])} destroys {node.name}, which is to be "
                "kept",
                where=str(self.leaves[position].origin or ""),
                fix="give the operation a copy: a tensor computed from its input",
            )

    def _check_update_is_readable(self, target: TensorNode, position: int) -> None:
        """Refuse an update in place whose output is read after another assignment to the input."""
        call = self.leaves[position]
        if not isinstance(call, ExternalCall):
            return
        for source in self._assigned(call):
            if (target, source) in call.shared and self.readers.get((source, position)):
                raise OpError(
                    "The output of an update in place is the tensor that was updated.",
                    found=f"the output of {_describe(call)} is read after another assignment to "
                    f"{source.name}",
                    where=str(call.origin or ""),
                    fix="keep a copy of it before that assignment",
                )

    def leaf(self, position: int) -> Leaf:
        """Return an assignment whose unshared outputs have memory of their own."""
        leaf = self.leaves[position]
        if not isinstance(leaf, ExternalCall):
            return leaf
        shared = tuple(
            (target, source)
            for target, source in leaf.shared
            if (target, position) not in self.unshared
        )
        return replace(leaf, shared=shared) if shared != leaf.shared else leaf

    def sequence(self) -> list[int]:
        """Return the positions in topological order, as close to program order as possible."""
        after: list[list[int]] = [[] for _ in self.leaves]
        missing = [len(each) for each in self.before]
        for position, each in enumerate(self.before):
            for earlier in each:
                after[earlier].append(position)
        ready = [position for position, count in enumerate(missing) if not count]
        found: list[int] = []
        while ready:
            position = heapq.heappop(ready)
            found.append(position)
            for later in after[position]:
                missing[later] -= 1
                if not missing[later]:
                    heapq.heappush(ready, later)
        if len(found) < len(self.leaves):
            raise self._conflict(after)
        return found

    def _conflict(self, after: list[list[int]]) -> OpError:
        """Return the error of a call in a dependence cycle."""
        for value, position in self.destroyers.items():
            reached = {position}
            pending = [position]
            while pending:
                new = [each for each in after[pending.pop()] if each not in reached]
                reached.update(new)
                pending += new
            for reader in self.readers[value]:
                if reader != position and reader in reached:
                    call, other = self.leaves[position], self.leaves[reader]
                    return OpError(
                        "An operation that destroys an input runs after every other reader of it.",
                        found=f"{_describe(call)} destroys {value[0].name}; {_describe(other)} "
                        "reads it, and depends on the result of the former",
                        where=_places(call, other),
                        fix="give the destroying operation a copy: a tensor computed from its "
                        "input",
                    )
        raise AssertionError("only destroying calls can close a circle")


def _describe(leaf: Leaf) -> str:
    if isinstance(leaf, ExternalCall):
        return leaf.origin.operation if leaf.origin else leaf.op.name
    target = ", ".join(node.name for node in targets(leaf))
    return f"{leaf.origin.operation if leaf.origin else 'an assignment'} (writes {target})"


def _places(*found: Leaf) -> str:
    return "\n".join(dict.fromkeys(str(leaf.origin) for leaf in found if leaf.origin))
