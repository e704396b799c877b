"""Axes that the device runs: the GRID and BLOCK loops of a kernel.

All axes of a kind are one number of the device, the innermost axis fastest, so that a kernel may
have any number of them, and neighbouring threads run neighbouring iterations of the innermost axis.

    for i in grid(8):                  const int i = group / 33;
      for j in grid(33):        -->    const int j = group % 33;
        for k in block(16):            const int k = thread;
"""

from __future__ import annotations

from collections.abc import Iterable

from ocannl_core.codegen.dialect import Dialect
from ocannl_core.errors import CodegenError
from ocannl_core.fast_dataclass import dataclass
from ocannl_core.identity import IdentityMap
from ocannl_core.loopir.nodes import (
    Allocate,
    AxisKind,
    Barrier,
    Block,
    CheckPositions,
    Fill,
    For,
    Scatter,
    Scope,
    Staged,
    Stmt,
    Store,
    StoreVector,
    SubgroupReduce,
)
from ocannl_core.loopir.traverse import walk
from ocannl_core.node import TensorNode

KINDS = (AxisKind.GRID, AxisKind.BLOCK)
_CHECK_BLOCKS, _CHECK_THREADS = 16, 128
"""The launch of a kernel that checks positions, whatever their number."""
_PRIVATE = frozenset({Scope.KERNEL, Scope.THREAD})


@dataclass(frozen=True, slots=True)
class DeviceAxis:
    """A loop that the device runs.

    Attributes:
        index: The number of the iteration that a thread runs, counted from the loop's start.
        is_full: True if the device runs no iterations beyond those of the loop.
    """

    index: str
    is_full: bool


@dataclass(frozen=True, slots=True)
class DeviceAxes:
    """The loops of a kernel that the device runs.

    Attributes:
        axes: The loops.
        counts: The number of thread blocks, and of the threads of each; 0 where loops run them.
    """

    axes: IdentityMap[For, DeviceAxis]
    counts: tuple[int, int]

    @property
    def launch(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The grid and the block as extents of one axis each; empty where loops run them."""
        grid, block = ((count,) if count else () for count in self.counts)
        return grid, block


def device_axes(body: Block, dialect: Dialect) -> DeviceAxes:
    """Return the loops of a kernel that the device of a dialect runs.

    Raises:
        CodegenError: if some threads of a block may not reach a barrier, or if several would run
            one store.
    """
    axes: IdentityMap[For, DeviceAxis] = IdentityMap()
    if _is_check(body) and None not in map(dialect.device_index, KINDS):
        return DeviceAxes(axes, (_CHECK_BLOCKS, _CHECK_THREADS))
    counts = []
    for kind in KINDS:
        number = dialect.device_index(kind)
        count = 0 if number is None else _most_iterations(body, kind)
        counts.append(count)
        if number is not None and count:
            _number(body, kind, number, count, count, axes)
    launched = frozenset(kind for kind, count in zip(KINDS, counts, strict=True) if count)
    if launched:
        _reject_repeated_writes(body, launched, set())
    return DeviceAxes(axes, (counts[0], counts[1]))


def _is_check(body: Block) -> bool:
    """Return True for the body of a kernel that only checks positions, in any number of threads."""
    return bool(body.stmts) and all(isinstance(stmt, CheckPositions) for stmt in body.stmts)


def _most_iterations(stmt: Stmt, kind: AxisKind) -> int:
    """Return the most iterations of nested loops of a kind; 0 if there are none."""
    own = stmt.stop - stmt.start if isinstance(stmt, For) and stmt.kind is kind else 0
    inside = max((_most_iterations(each, kind) for each in _inside(stmt)), default=0)
    return own * max(inside, 1) if own else inside


def _number(
    stmt: Stmt,
    kind: AxisKind,
    number: str,
    count: int,
    around: int,
    axes: IdentityMap[For, DeviceAxis],
) -> None:
    """Number the iterations of the loops of a kind.

    Args:
        stmt: The statement with the loops.
        kind: The kind.
        number: The number of a thread or block.
        count: The number of all of them.
        around: The iterations of all loops that share one iteration of those around.
        axes: Receives the loops.
    """
    if isinstance(stmt, For) and stmt.kind is kind:
        inside = max(_most_iterations(stmt.body, kind), 1)
        index = number if around == count else f"{number} % {around}"
        index = index if inside == 1 else f"{index} / {inside}"
        is_full = (stmt.stop - stmt.start) * inside == around
        axes[stmt] = DeviceAxis(index, is_full)
        is_partial = not is_full or stmt.bound is not None
        if kind is AxisKind.BLOCK and is_partial and _meets(stmt.body):
            raise CodegenError(
                "All iterations of a BLOCK axis meet at its barriers.",
                found=f"an axis of {stmt.stop - stmt.start} of which some threads leave out "
                "iterations",
            )
        around = inside
    for each in _inside(stmt):
        _number(each, kind, number, count, around, axes)


def _inside(stmt: Stmt) -> Iterable[Stmt]:
    match stmt:
        case Block(stmts):
            return stmts
        case For(body=body) | Staged(body=body):
            return (body,)
        case _:
            return ()


def _meets(body: Block) -> bool:
    return any(isinstance(each, Barrier | SubgroupReduce) for each in walk(body))


def _reject_repeated_writes(
    stmt: Stmt, missing: frozenset[AxisKind], private: set[TensorNode]
) -> None:
    """Check that every store to shared memory is inside axes of all kinds.

    Args:
        stmt: The statement.
        missing: The kinds of axes that are not around it.
        private: The nodes of which each thread has its own.
    """
    match stmt:
        case Store(node) | StoreVector(node) | Scatter(node) | Fill(node):
            if missing and node not in private:
                kinds = " and ".join(sorted(kind.name for kind in missing))
                raise CodegenError(
                    "A store is inside all axes of its kernel that the device runs.",
                    found=f"a store to {node.name} outside of the {kinds} axes",
                )
        case Allocate(node, scope) if scope in _PRIVATE:
            private.add(node)
        case For(kind=kind):
            missing = missing - {kind}
        case _:
            pass
    for each in _inside(stmt):
        _reject_repeated_writes(each, missing, private)
