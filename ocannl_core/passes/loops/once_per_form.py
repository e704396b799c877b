"""Passes over statements, run once for statements that are equal up to names.

A pass is *local* if it treats the groups of a program one by one: some statements without loops,
and the next one with loops, which may share scalars. Its result for a group depends on the group,
on facts about the nodes in it, and on settings, but on no other group and on no name. The layers of
a network, written as a Python loop, repeat each other; so do forward passes for training and for
evaluation. A local pass runs on the first of the groups that have one canonical form, and its
result is bound to the names of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from operator import is_

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.traverse import contains, nodes_of, remove_unused_nodes
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.ir.templates import CanonicalForm, Key, Template, canonical_form, shares_forms

Run = Callable[[ir.LoopProgram], ir.LoopProgram]

_LOOP_FREE = (ir.Store, ir.StoreVector, ir.Scatter, ir.SetLocal, ir.DeclareLocal, ir.Remark)
_KEPT = (ir.Allocate, ir.CallExternal, ir.CheckPositions, ir.Repeat)
"""Statements that local passes leave as they are: each is a group of its own."""
_END = ir.Remark("")
"""A statement behind a group: passes treat the last block of a program differently."""
_MOST_TOKENS = 1_000_000
"""The tokens of all forms that are known at a time, about 30 MB."""


def no_fact(node: TensorNode) -> Hashable:
    """Return nothing: a pass depends on formats and extents alone."""
    return None


@dataclass(frozen=True, slots=True)
class LocalPass:
    """A local pass."""

    name: str
    """Distinguishes passes."""
    run: Run
    """The pass, over whole programs."""
    options: Hashable = None
    """All else that it depends on, beside the statements."""
    fact: Callable[[TensorNode], Hashable] = no_fact
    """The facts about a node that it depends on, beside format and extents."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The result for groups of one form."""

    changed: Template | None
    """The statements after the passes; None if the passes change no statement."""
    used: tuple[int, ...]
    """The positions of the names that the statements access."""


class _Results:
    """The results of passes, by settings and forms; forgotten when the forms are too large."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, Key], _Known] = {}
        self._tokens = 0

    def find(self, settings: Hashable, form: Key) -> _Known | None:
        return self._known.get((settings, form))

    def add(self, settings: Hashable, form: Key, result: _Known) -> None:
        if self._tokens + len(form) > _MOST_TOKENS:
            self._known, self._tokens = {}, 0
        self._tokens += len(form)
        self._known[settings, form] = result


_results = _Results()


def is_loop_free(stmt: ir.Stmt) -> bool:
    """Return True if a statement has no loops, and so shares a kernel with its neighbors."""
    if isinstance(stmt, ir.Block):
        return all(map(is_loop_free, stmt.stmts))
    return isinstance(stmt, _LOOP_FREE) and not contains(stmt, ir.For)


def run_local(program: ir.LoopProgram, passes: Sequence[LocalPass]) -> ir.LoopProgram:
    """Return a program after local passes, each of which sees one group after the other."""
    groups = list(_groups(program.body.stmts))
    facts = {
        node: (info, *[each.fact(node) for each in passes]) for node, info in program.nodes.items()
    }
    forms = _forms(groups, facts)
    if forms is None:
        for each in passes:
            program = each.run(program)
        return program
    settings = tuple((each.name, each.options) for each in passes)
    scalar = 1 + max((number for form in forms if form for number in form.scalars), default=-1)
    stmts: list[ir.Stmt] = []
    used: set[TensorNode] = set()
    for position, (group, form) in enumerate(zip(groups, forms, strict=True)):
        if form is None:
            stmts += group
            used.update(nodes_of(group[0]))
            continue
        is_last = position == len(groups) - 1
        key = (*settings, is_last), form.key
        known = _results.find(*key) if shares_forms() else None
        if known is None:
            known = _run_on(group, form, program, passes, is_last=is_last)
            _results.add(*key, known)
        used.update([form.names[at] for at in known.used])
        if known.changed is None:
            stmts += group
        else:
            stmts += known.changed.bind(form.names, first_scalar=scalar)
            scalar += known.changed.scalars
    if len(stmts) == len(program.body.stmts) and all(map(is_, stmts, program.body.stmts)):
        return program
    program = replace(program, body=ir.Block(tuple(stmts)))
    return program if used == program.nodes.keys() else remove_unused_nodes(program)


def _groups(stmts: Sequence[ir.Stmt]) -> Iterator[tuple[ir.Stmt, ...]]:
    """Yield the groups of statements, each of which ends with one that has loops.

    A group has all uses of its scalars. The cuts between kernels are another matter: they come
    later (`passes/kernels/split_kernels.py`), also inside of a group.
    """
    start = 0
    for end, stmt in enumerate(stmts, 1):
        if isinstance(stmt, _KEPT) and start < end - 1:
            yield tuple(stmts[start : end - 1])
            start = end - 1
        if not is_loop_free(stmt) or end == len(stmts):
            yield tuple(stmts[start:end])
            start = end


def _forms(
    groups: Sequence[tuple[ir.Stmt, ...]], facts: Mapping[TensorNode, object]
) -> list[CanonicalForm | None] | None:
    """Return the forms of groups, None for statements that are kept; None if a group is more than
    data, or if two share a variable or a scalar.
    """
    found: list[CanonicalForm | None] = []
    bound: set[object] = set()
    count = 0
    for group in groups:
        if isinstance(group[0], _KEPT):
            found.append(None)
            continue
        try:
            form = canonical_form(group, facts, names_remarks=True)
        except NotDataError:
            return None
        own = [name for name in form.names if name.__class__ is LoopVar]
        bound.update(own, form.scalars)
        count += len(own) + len(form.scalars)
        found.append(form)
    return found if count == len(bound) else None


def _run_on(
    group: tuple[ir.Stmt, ...],
    form: CanonicalForm,
    program: ir.LoopProgram,
    passes: Sequence[LocalPass],
    *,
    is_last: bool,
) -> _Known:
    """Return the result of passes for one group."""
    infos = {node: program.nodes[node] for node in form.names if node in program.nodes}
    body = ir.Block(group if is_last else (*group, _END))
    part = ir.LoopProgram(program.name, tuple(infos), program.indices, infos, body)
    for each in passes:
        part = each.run(part)
    stmts = tuple(stmt for stmt in part.body.stmts if stmt is not _END)
    accessed = frozenset(nodes_of(ir.Block(stmts)))
    used = tuple(at for at, name in enumerate(form.names) if name in accessed)
    is_same = len(stmts) == len(group) and all(map(is_, stmts, group))
    return _Known(None if is_same else Template(stmts, form.names), used)
