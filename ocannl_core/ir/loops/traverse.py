"""Iterative walks over the loop language: children, folds, rewrites, accesses, substitution.

No walk recurses, so that Python's stack does not limit the depth of an expression. A rewrite
without changes returns its argument itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import (
    AxisIndex,
    IndexVar,
    LoopVar,
    StaticIndex,
    VarIndex,
    fresh_var,
    has_static,
    substitute,
    variables,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import TernaryOp

Node = ir.Stmt | ir.Expr
Result = TypeVar("Result")
SomeNode = TypeVar("SomeNode", bound=Node)
Replacement = ir.Stmt | Sequence[ir.Stmt]
"""The replacement of a statement: one statement, or several spliced into the enclosing block."""


_Inside = Callable[[Any], tuple[Node, ...]]


def _only(name: str) -> _Inside:
    found = attrgetter(name)
    return lambda node: (found(node),)


_INSIDE: dict[type[Node], _Inside | None] = {
    **dict.fromkeys((ir.Load, ir.Const, ir.LocalRead, ir.IndexValue, ir.LoadMerge, ir.ConstBits)),
    **dict.fromkeys(
        (ir.Remark, ir.Fill, ir.DeclareLocal, ir.Allocate, ir.Barrier, ir.Prefetch, ir.CallExternal)
    ),
    ir.CheckPositions: None,
    ir.Repeat: None,  # a routine of its own
    **dict.fromkeys((ir.For, ir.Scoped, ir.Verbatim), _only("body")),
    **dict.fromkeys((ir.Store, ir.SetLocal, ir.SubgroupReduce), _only("value")),
    **dict.fromkeys((ir.StoreVector, ir.Unary), _only("arg")),
    ir.Block: attrgetter("stmts"),
    ir.Binary: attrgetter("left", "right"),
    ir.Ternary: attrgetter("first", "second", "third"),
    ir.Gather: _only("position"),
    ir.Scatter: attrgetter("position", "value"),
}
"""The children of the nodes of a class, in execution order; None for leaves. This is a table and
not a `match` because it is the hottest query of the compiler.
"""


def children(node: Node) -> tuple[Node, ...]:
    """Return the children of a node, in execution order."""
    inside = _INSIDE[type(node)]
    return () if inside is None else inside(node)


Assignment = ir.Store | ir.SetLocal | ir.StoreVector | ir.Scatter


def values_of(stmt: Assignment) -> tuple[ir.Expr, ...]:
    """Return the expressions of an assignment, in execution order."""
    return cast(tuple[ir.Expr, ...], children(stmt))


def operands_of(node: Node) -> tuple[Node, ...]:
    """Return the children of a node, but none of an inlined computation."""
    return () if isinstance(node, ir.Scoped) else children(node)


def operands_with_certainty(expr: ir.Expr) -> Iterator[tuple[ir.Expr, bool]]:
    """Yield the operands of an expression, each with True if it is always evaluated."""
    is_choice = isinstance(expr, ir.Ternary) and expr.op is TernaryOp.WHERE
    for position, operand in enumerate(operands_of(expr)):
        yield cast(ir.Expr, operand), not (is_choice and position)


def unconditional_subexpressions(expr: ir.Expr) -> Iterator[ir.Expr]:
    """Yield an expression and the subexpressions that it evaluates unconditionally.

    Inlined computations are leaves.
    """
    pending = [expr]
    while pending:
        found = pending.pop()
        yield found
        pending += [each for each, is_certain in operands_with_certainty(found) if is_certain]


def walk(root: Node) -> Iterator[Node]:
    """Yield a node and its descendants in preorder."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        inside = _INSIDE[type(node)]
        if inside is not None:
            pending += inside(node)[::-1]


def contains(root: Node, kinds: type[Node] | tuple[type[Node], ...]) -> bool:
    """Return True if a node or one of its descendants is of a class."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, kinds):
            return True
        inside = _INSIDE[type(node)]
        if inside is not None:
            pending += inside(node)
    return False


def walk_in_loops(root: Node) -> Iterator[tuple[Node, tuple[ir.For, ...]]]:
    """Yield a node and its descendants in preorder, with the loops around each, outermost first."""
    pending: list[tuple[Node, tuple[ir.For, ...]]] = [(root, ())]
    while pending:
        node, loops = pending.pop()
        yield node, loops
        inside = (*loops, node) if isinstance(node, ir.For) else loops
        pending += [(child, inside) for child in reversed(children(node))]


def statements(root: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield a statement and the statements nested in it in preorder, none inside expressions."""
    pending: list[Any] = [root]
    while pending:
        stmt = pending.pop()
        yield stmt
        kind = type(stmt)
        if kind is ir.Block:
            pending += stmt.stmts[::-1]
        elif kind is ir.For or kind is ir.Verbatim:
            pending.append(stmt.body)


def walk_up(root: Node) -> Iterator[Node]:
    """Yield a node and its descendants in postorder, which is execution order."""
    found: list[Node] = []
    pending = [root]
    while pending:  # backwards: a node, then its children from the right
        node = pending.pop()
        found.append(node)
        inside = _INSIDE[type(node)]
        if inside is not None:
            pending += inside(node)
    return reversed(found)


def fold(
    root: Node,
    combine: Callable[[Node, tuple[Result, ...]], Result],
    inside: Callable[[Node], tuple[Node, ...]] = children,
) -> Result:
    """Return `combine(root, results of its children)`, computed children first.

    Args:
        combine: Takes a node and the results of the nodes inside it.
        inside: The children to visit; all of them by default.
    """
    found: list[tuple[Node, int]] = []
    pending = [root]
    while pending:  # backwards: a node, then its children from the right
        node = pending.pop()
        inner = inside(node)
        found.append((node, len(inner)))
        pending += inner
    results: list[Result] = []
    for node, count in reversed(found):
        if count:
            results[-count:] = [combine(node, tuple(results[-count:]))]
        else:
            results.append(combine(node, ()))
    return results[0]


def rewrite(
    root: ir.Stmt,
    on_stmt: Callable[[ir.Stmt], Replacement] | None = None,
    on_expr: Callable[[ir.Expr], ir.Expr] | None = None,
) -> ir.Block:
    """Rewrite a statement bottom-up, and return it as a block.

    Args:
        on_stmt: Replaces a statement with rewritten children; an empty tuple removes it.
        on_expr: Replaces an expression with rewritten children.
    """
    return _as_block(_flat([_rewrite(root, on_stmt, on_expr)]))


def map_stmts(root: ir.Stmt, function: Callable[[ir.Stmt], Replacement]) -> ir.Block:
    """Rewrite every statement with the function, bottom-up, and return a block."""
    return rewrite(root, on_stmt=function)


def map_exprs(root: ir.Stmt, function: Callable[[ir.Expr], ir.Expr]) -> ir.Block:
    """Rewrite every expression with the function, bottom-up, and return a block."""
    return rewrite(root, on_expr=function)


def map_expr(
    root: ir.Expr,
    on_expr: Callable[[ir.Expr], ir.Expr] | None = None,
    on_stmt: Callable[[ir.Stmt], Replacement] | None = None,
) -> ir.Expr:
    """Rewrite an expression bottom-up, including inlined computations."""
    return cast(ir.Expr, _rewrite(root, on_stmt, on_expr))


_STATEMENTS = frozenset(get_args(ir.Stmt))
"""The classes of statements: the union itself takes long to search."""
_Replacement = Node | tuple[Node, ...]
"""One node, or none or several statements that replace one."""


def _rewrite(
    root: Node,
    on_stmt: Callable[[ir.Stmt], Replacement] | None,
    on_expr: Callable[[ir.Expr], ir.Expr] | None,
) -> _Replacement:
    found: list[tuple[Any, tuple[Node, ...]]] = []
    pending = [root]
    while pending:  # backwards: a node, then its children from the right
        node = pending.pop()
        inside = _INSIDE[type(node)]
        inner = () if inside is None else inside(node)
        found.append((node, inner))
        pending += inner
    results: list[Any] = []
    for each, old in reversed(found):
        if old:
            new = results[-len(old) :]
            del results[-len(old) :]
            if not all(map(is_, new, old)):
                each = _with_children(each, new)
        if type(each) not in _STATEMENTS:
            results.append(on_expr(each) if on_expr else each)
            continue
        replacement: Any = on_stmt(each) if on_stmt else each
        if type(replacement) not in _STATEMENTS:
            several = tuple(replacement)
            replacement = several[0] if len(several) == 1 else several
        results.append(replacement)
    result: _Replacement = results[0]
    return result


_REBUILD: Mapping[type[Node], Callable[[Any, Sequence[Any]], Node]] = {
    ir.Binary: lambda node, new: ir.Binary(node.op, new[0], new[1], node.dtype),
    ir.Unary: lambda node, new: ir.Unary(node.op, new[0], node.dtype),
    ir.Ternary: lambda node, new: ir.Ternary(node.op, new[0], new[1], new[2], node.dtype),
    ir.Store: lambda node, new: ir.Store(node.node, node.indices, new[0], node.is_streamed),
    ir.SetLocal: lambda node, new: ir.SetLocal(node.local, new[0]),
    ir.SubgroupReduce: lambda node, new: replace(node, value=new[0]),
    ir.StoreVector: lambda node, new: replace(node, arg=new[0]),
    ir.Gather: lambda node, new: replace(node, position=new[0]),
    ir.Scatter: lambda node, new: replace(node, position=new[0], value=new[1]),
    ir.Block: lambda _, new: ir.Block(_flat(new)),
    **dict.fromkeys(
        (ir.For, ir.Scoped, ir.Verbatim),
        lambda node, new: replace(node, body=_as_block(_flat(new))),
    ),
}
"""The nodes of a class with other nodes inside."""


def _with_children(node: Node, new: Sequence[_Replacement]) -> Node:
    rebuild = _REBUILD.get(type(node))
    return node if rebuild is None else rebuild(node, new)


def with_children(node: SomeNode, inside: Sequence[ir.Expr]) -> SomeNode:
    """Return a node with other expressions inside; itself if they are the same objects."""
    is_same = all(map(is_, inside, children(node)))
    return node if is_same else cast(SomeNode, _with_children(node, inside))


def _flat(replacements: Sequence[Any]) -> tuple[Any, ...]:
    """Return nodes one after the other."""
    if tuple not in map(type, replacements):
        return tuple(replacements)
    groups = [each if isinstance(each, tuple) else (each,) for each in replacements]
    return tuple([node for group in groups for node in group])


def _as_block(stmts: tuple[ir.Stmt, ...]) -> ir.Block:
    match stmts:
        case (ir.Block() as block,):
            return block
        case _:
            return ir.Block(stmts)


def depth(root: Node) -> int:
    """Return the number of levels of an expression or statement."""
    return fold(root, lambda _, inside: 1 + max(inside, default=0))


def size(root: Node) -> int:
    """Return the number of nodes of an expression or statement."""
    return sum(1 for _ in walk(root))


_INDICES: dict[type[Node], Callable[[Any], tuple[AxisIndex, ...]]] = {
    **{kind: attrgetter("indices") for kind in _INSIDE if "indices" in kind.__match_args__},
    ir.IndexValue: lambda node: (node.index,),
    ir.For: lambda node: () if node.bound is None else (node.bound.index, node.bound.end),
    ir.CheckPositions: lambda node: tuple(
        [VarIndex(each) for each in (*node.extents, node.at_run_time) if each is not None]
    ),
}


def indices_of(node: Node) -> tuple[AxisIndex, ...]:
    """Return the axis indices of a node, without the indices of its children."""
    found = _INDICES.get(type(node))
    return () if found is None else found(node)


def free_variables(root: Node) -> tuple[LoopVar, ...]:
    """Return the free loop variables of a node, in order of first use.

    The indices of `Scoped` are ignored.
    """
    bound: set[LoopVar] = set()
    found: dict[LoopVar, None] = {}
    for node in walk_up(root):
        if isinstance(node, ir.Scoped):
            continue
        if isinstance(node, ir.For):
            bound.add(node.var)
        for index in indices_of(node):
            for var in variables(index):
                if isinstance(var, LoopVar):
                    found[var] = None
    return tuple([var for var in found if var not in bound])


def static_indices(root: Node) -> tuple[StaticIndex, ...]:
    """Return the static indices of a node, in order of first use."""
    found: dict[StaticIndex, None] = {}
    for node in walk_up(root):
        if isinstance(node, ir.Repeat):
            inside = static_indices(node.body)
            found.update(dict.fromkeys(each for each in inside if each is not node.index))
        indices = indices_of(node)
        if indices and has_static(indices):
            every = [var for index in indices for var in variables(index)]
            found.update(dict.fromkeys(each for each in every if isinstance(each, StaticIndex)))
    return tuple(found)


def substitute_in_stmt(root: ir.Stmt, values: Mapping[IndexVar, AxisIndex]) -> ir.Block:
    """Substitute indices for index variables in a statement, and return it as a block.

    The statement may bind neither the variables nor any variable of the new indices.
    """
    return rewrite(
        root, lambda stmt: _substitute_stmt(stmt, values), lambda e: _substitute_expr(e, values)
    )


def substitute_in_expr(root: ir.Expr, values: Mapping[IndexVar, AxisIndex]) -> ir.Expr:
    """Substitute indices for index variables in an expression, as `substitute_in_stmt` does."""
    return map_expr(
        root, lambda e: _substitute_expr(e, values), lambda stmt: _substitute_stmt(stmt, values)
    )


NewLocal = Callable[[DType, TensorNode | None], ir.Local]
"""Source of unused scalar variables of a format, each for the value of a node."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """Rewrite rules that replace index variables by indices, and variables by others."""

    loops: Mapping[LoopVar, LoopVar] = MappingProxyType({})
    """The new variables of loops, by the old ones."""
    locals: Mapping[ir.Local, ir.Local] = MappingProxyType({})
    values: Mapping[IndexVar, AxisIndex] = MappingProxyType({})
    """The indices that replace index variables, new variables of loops included."""

    def on_stmt(self, stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For(var) if var in self.loops:
                stmt = replace(stmt, var=self.loops[var])
            case ir.SetLocal(local) | ir.DeclareLocal(local) | ir.SubgroupReduce(local) if (
                local in self.locals
            ):
                return replace(stmt, local=self.locals[local])
        return _substitute_stmt(stmt, self.values)

    def on_expr(self, expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.LocalRead(local) | ir.Scoped(local) if local in self.locals:
                expr = replace(expr, local=self.locals[local])
        return _substitute_expr(expr, self.values)


def fresh_names(
    root: Node,
    new_local: NewLocal | None = None,
    values: Mapping[IndexVar, AxisIndex] = MappingProxyType({}),
) -> Renaming:
    """Return a renaming of the loop variables that a node binds, and of the scalars that it
    declares.

    Args:
        new_local: Makes new scalars; None to keep them.
        values: Indices that replace variables; loops over these are left alone.
    """
    loops: dict[LoopVar, LoopVar] = {}
    scalars: dict[ir.Local, ir.Local] = {}
    for each in walk(root):
        match each:
            case ir.For(var) if var not in values and var not in loops:
                loops[var] = fresh_var(var.hint)
            case ir.Scoped(local) | ir.DeclareLocal(local) if new_local and local not in scalars:
                scalars[local] = new_local(local.dtype, local.node)
    fresh: dict[IndexVar, AxisIndex] = {old: VarIndex(new) for old, new in loops.items()}
    return Renaming(loops, scalars, {**values, **fresh})


def clone_stmt(root: ir.Stmt) -> ir.Block:
    """Copy a statement with fresh loop variables, and return it as a block."""
    renaming = fresh_names(root)
    return rewrite(root, renaming.on_stmt, renaming.on_expr)


def clone_expr(root: ir.Expr, new_local: NewLocal) -> ir.Expr:
    """Copy an expression with fresh loop variables and scalars; free variables stay."""
    renaming = fresh_names(root, new_local)
    return map_expr(root, renaming.on_expr, renaming.on_stmt)


def _substitute_stmt(stmt: ir.Stmt, values: Mapping[IndexVar, AxisIndex]) -> ir.Stmt:
    match stmt:
        case ir.Store() | ir.StoreVector() | ir.Scatter() | ir.Prefetch():
            return _substitute_indices(stmt, values)
        case ir.For(bound=ir.LoopBound()):
            return with_bound_at(stmt, values)
        case _:
            return stmt


def _substitute_indices(node: SomeNode, values: Mapping[IndexVar, AxisIndex]) -> SomeNode:
    """Return a node at other indices; the node itself if they are the same."""
    old = indices_of(node)
    new = tuple([substitute(index, values) for index in old])
    is_same = all(map(is_, new, old))
    return node if is_same else cast(SomeNode, replace(cast(Any, node), indices=new))


def with_bound_at(loop: ir.For, values: Mapping[IndexVar, AxisIndex]) -> ir.For:
    """Return a loop with indices substituted for the variables in its bound."""
    if loop.bound is None:
        return loop
    index = substitute(loop.bound.index, values)
    same = index is loop.bound.index
    return loop if same else replace(loop, bound=replace(loop.bound, index=index))


def with_loops(loops: Iterable[ir.For], body: ir.Block) -> ir.Block:
    """Return a block inside of perfectly nested loops, which are given outermost first."""
    for loop in reversed(tuple(loops)):
        body = ir.Block((replace(loop, body=body),))
    return body


def _substitute_expr(expr: ir.Expr, values: Mapping[IndexVar, AxisIndex]) -> ir.Expr:
    match expr:
        case ir.Load() | ir.LoadMerge() | ir.Gather() | ir.Scoped():
            return _substitute_indices(expr, values)
        case ir.IndexValue(old):
            new = substitute(old, values)
            return expr if new is old else replace(expr, index=new)
        case _:
            return expr


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a node."""

    node: TensorNode
    writes: bool
    indices: tuple[AxisIndex, ...] | None = None
    """The indices of the cell; None if the access covers the whole node."""
    merge: bool = False
    """True if the access is to the merge buffer of the node."""


def _whole_accesses(node: ir.CallExternal | ir.Repeat) -> tuple[Access, ...]:
    read = [Access(each, False) for each in node.inputs]
    return (*read, *(Access(each, True) for each in node.outputs))


_ACCESSES: dict[type[Node], Callable[[Any], tuple[Access, ...]]] = {
    **dict.fromkeys((ir.Load, ir.Gather), lambda node: (Access(node.node, False, node.indices),)),
    **dict.fromkeys(
        (ir.Store, ir.StoreVector, ir.Scatter),
        lambda node: (Access(node.node, True, node.indices),),
    ),
    ir.LoadMerge: lambda node: (Access(node.node, False, node.indices, merge=True),),
    ir.CheckPositions: lambda node: (Access(node.node, False),),
    ir.Fill: lambda node: (Access(node.node, True),),
    **dict.fromkeys((ir.CallExternal, ir.Repeat), _whole_accesses),
}


def accesses_at(node: Node) -> tuple[Access, ...]:
    """Return the accesses of a node, without the accesses of its children."""
    found = _ACCESSES.get(type(node))
    return () if found is None else found(node)


def accesses_memory(node: Node) -> bool:
    """Return True if a node itself accesses memory."""
    return type(node) in _ACCESSES


def accesses(root: Node) -> Iterator[Access]:
    """Yield every access inside a node, in execution order."""
    for node in walk_up(root):
        found = _ACCESSES.get(type(node))
        if found is not None:
            yield from found(node)


def reads(root: Node) -> tuple[TensorNode, ...]:
    """Return the nodes that are read, in order of first use; merge buffers are ignored."""
    return _accessed(root, _READING, "inputs")


def writes(root: Node) -> tuple[TensorNode, ...]:
    """Return the nodes that are written, in order of first use."""
    return _accessed(root, _WRITING, "outputs")


def merge_reads(root: Node) -> tuple[TensorNode, ...]:
    """Return the nodes whose merge buffers are read, in order of first use."""
    return _accessed(root, {ir.LoadMerge})


def nodes_of(root: Node) -> tuple[TensorNode, ...]:
    """Return every node whose memory or merge buffer is accessed, in order of first use."""
    return _accessed(root, _ACCESSING, "inputs", "outputs")


def allocated_nodes(root: ir.Stmt) -> tuple[TensorNode, ...]:
    """Return the nodes allocated inside a statement, in order; values allocate none."""
    found = (stmt.node for stmt in statements(root) if isinstance(stmt, ir.Allocate))
    return tuple(dict.fromkeys(found))


_READING = frozenset((ir.Load, ir.Gather, ir.CheckPositions))
_WRITING = frozenset((ir.Store, ir.StoreVector, ir.Scatter, ir.Fill))
_ACCESSING = _READING | _WRITING | {ir.LoadMerge}


def _accessed(root: Node, kinds: Set[type[Any]], *of_calls: str) -> tuple[TensorNode, ...]:
    """Return the nodes that parts of some classes mention, in order of first use.

    Args:
        of_calls: The fields of calls, and of repetitions, that mention others.
    """
    found: dict[TensorNode, None] = {}
    each: Any
    for each in walk_up(root):
        kind = type(each)
        if kind in kinds:
            found[each.node] = None
        elif kind is ir.CallExternal or kind is ir.Repeat:
            for field in of_calls:
                found.update(dict.fromkeys(getattr(each, field)))
    return tuple(found)


def flattened(body: ir.Block, *, keeps_scopes: bool = False) -> Iterator[ir.Stmt]:
    """Yield the statements of a block, and of the blocks in it.

    Args:
        keeps_scopes: True to yield inner blocks with declarations, which end there, as they are.
    """
    pending: list[ir.Stmt] = list(reversed(body.stmts))
    while pending:
        stmt = pending.pop()
        if isinstance(stmt, ir.Block) and not (keeps_scopes and declares(stmt.stmts)):
            pending.extend(reversed(stmt.stmts))
        else:
            yield stmt


def declares(stmts: Iterable[ir.Stmt]) -> bool:
    """Return True if statements declare a scalar or allocate a node for the rest of their block."""
    return any(isinstance(each, ir.DeclareLocal | ir.Allocate) for each in stmts)


def locals_of(root: Node) -> tuple[ir.Local, ...]:
    """Return the scalar variables of a node, in order of first use."""
    found: dict[ir.Local, None] = {}
    for node in walk(root):
        if isinstance(
            node, ir.LocalRead | ir.Scoped | ir.SetLocal | ir.DeclareLocal | ir.SubgroupReduce
        ):
            found[node.local] = None
    return tuple(found)


def introduced_locals(root: Node) -> tuple[ir.Local, ...]:
    """Return the scalar variables declared inside a node, in order."""
    found = (n.local for n in walk(root) if isinstance(n, ir.Scoped | ir.DeclareLocal))
    return tuple(dict.fromkeys(found))


def free_locals(root: Node) -> tuple[ir.Local, ...]:
    """Return the free scalar variables of a node, in order."""
    introduced = set(introduced_locals(root))
    return tuple(local for local in locals_of(root) if local not in introduced)


def rename_local(root: ir.Stmt, old: ir.Local, new: ir.Local) -> ir.Block:
    """Replace a scalar variable by another in a statement, and return it as a block."""
    renaming = Renaming(locals={old: new})
    return rewrite(root, renaming.on_stmt, renaming.on_expr)


def remove_unused_nodes(program: ir.LoopProgram) -> ir.LoopProgram:
    """Remove unused parameters, nodes and allocations from a program."""
    used = frozenset(nodes_of(program.body))
    if used == program.nodes.keys():
        return program

    def without_unused(stmt: ir.Stmt) -> Replacement:
        return () if isinstance(stmt, ir.Allocate) and stmt.node not in used else stmt

    allocates = contains(program.body, ir.Allocate)
    return replace(
        program,
        params=tuple(node for node in program.params if node in used),
        nodes={node: info for node, info in program.nodes.items() if node in used},
        body=map_stmts(program.body, without_unused) if allocates else program.body,
    )
