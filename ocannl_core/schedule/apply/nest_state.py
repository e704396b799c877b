"""The state of a nest under a schedule, and the transforms as functions from state to state.

A schedule is folded over the nest: splits first, then the order, the kinds of the leaves, tiles,
the buffers of operands, and the loop of the accumulators, each in the order of the text.

    nest -> split* -> order -> kinds* -> tile -> pack* -> pipeline, stage, ring -> accumulate

The state says everything that the emission of loops reads: the leaves of the splits in their order,
each with a kind (`AxisKind`), and the buffers of packed operands, of a `BufferKind`. Whether blocks
of a split are equal, as on the grid of a device, or leave a remainder, is a property of the tree of
the axes. A transform checks what it needs of the state before it, and `_finish` what the transforms
need of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property, reduce
from typing import assert_never, get_args

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import VarIndex, affine, fresh_var
from ocannl_core.ir.kernels import transforms
from ocannl_core.ir.kernels.nest import Nest
from ocannl_core.ir.kernels.nest_accesses import loads_of_cells
from ocannl_core.ir.kernels.transforms import (
    Schedule,
    SetKind,
    has_neighbors,
    inner_of,
    outer_of,
    root_of,
    schedule_text,
)
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.loops.nodes import AxisKind, Resource
from ocannl_core.ir.loops.traverse import substitute_in_stmt
from ocannl_core.schedule.apply import loop_ends
from ocannl_core.schedule.apply.axis_tree import AxisTree


class BufferKind(Enum):
    """The memory of packed operands, and who fills it."""

    KERNEL = "kernel"
    """Memory of the thread that fills it."""
    TILES = "tiles"
    """The same, tile by tile, as tile registers load it."""
    GROUP = "group"
    """Memory that the threads of a block share, which fill it together."""
    STAGES = "stages"
    """Stages of such memory, which take turns: copies run ahead of their use."""
    RING = "ring"
    """Stages of such memory, which one thread fills for all."""


@dataclass(frozen=True)  # without slots: properties are cached
class NestState:
    """A nest, and the decisions of a schedule about it."""

    nest: Nest
    tree: AxisTree
    order: tuple[str, ...]
    """The leaves, outermost first; those of grid and block are around all others."""
    kinds: Mapping[str, AxisKind]
    """The kind of each leaf. Leaves to which transforms have given one come last."""
    vectors: tuple[str, ...] = ()
    """The parts of axes that are vectorized; on thread blocks, one thread loads and stores the
    cells of such a part at once.
    """
    tile: transforms.TileMatrix | None = None
    packs: tuple[transforms.Pack, ...] = ()
    """The packed operands, whose buffers are all of one kind."""
    forms: Mapping[int, transforms.StageForm] = field(default_factory=dict)
    """The forms of operands whose copies run ahead, by their position in the term."""
    copies: transforms.Pipeline | transforms.Ring | None = None
    """The loop that copies of packed operands run ahead along."""
    lanes: int = 1
    initial_stores: tuple[ir.Stmt, ...] = ()
    """Stores of initial values, if cells hold partial results."""
    sum_loop: str = ""
    """The outermost loop inside of the accumulators; "" if they are inside of all loops."""
    is_fused: bool = False
    prefetches: bool = False

    @property
    def is_on_blocks(self) -> bool:
        """True on the thread blocks of a device."""
        return self.tree.is_rounded

    @property
    def buffer_kind(self) -> BufferKind:
        """The kind of the buffers of packed operands."""
        if isinstance(self.copies, transforms.Ring):
            return BufferKind.RING
        if not self.is_on_blocks:
            return BufferKind.KERNEL if self.tile is None else BufferKind.TILES
        has_stages = self.copies is not None or self.tile is not None or self.forms
        return BufferKind.STAGES if has_stages else BufferKind.GROUP

    @property
    def pipeline(self) -> transforms.Pipeline:
        """The pipeline of a schedule that has one."""
        assert isinstance(self.copies, transforms.Pipeline)
        return self.copies

    @property
    def ring(self) -> str:
        """The axis of the ring of a schedule that has one."""
        assert isinstance(self.copies, transforms.Ring)
        return self.copies.axis

    def of_kind(self, kind: AxisKind) -> tuple[str, ...]:
        """Return the leaves of a kind, in the order in which transforms gave it to them."""
        return tuple(name for name, each in self.kinds.items() if each is kind)

    @cached_property
    def grid(self) -> tuple[str, ...]:
        """The leaves of the grid, outermost first."""
        return self.of_kind(AxisKind.GRID)

    @cached_property
    def block(self) -> tuple[str, ...]:
        """The leaves of a block; neighboring threads are along the last one."""
        return self.of_kind(AxisKind.BLOCK)

    @cached_property
    def serial(self) -> tuple[str, ...]:
        """The leaves that each thread runs."""
        return tuple(n for n in self.order if self.kinds[n].resource is not Resource.DEVICE)

    @cached_property
    def square(self) -> tuple[str, ...]:
        """The two leaves of a square whose cells are transposed; () if there is none."""
        is_square = len(self.vectors) == 2 and self.nest.reduction is None
        return self.order[-2:] if is_square else ()

    @cached_property
    def reduced_threads(self) -> tuple[str, ...]:
        """The leaves of a block along which threads share a result."""
        reduced = filter(self.tree.is_reduced, self.block)
        return tuple(name for name in reduced if self.tree.max_extent(name) > 1)

    @cached_property
    def outside(self) -> tuple[str, ...]:
        """The loops of a thread around the accumulators.

        On thread blocks, these are the serial ones outside of all terms, where threads neither
        share results nor copy operands together.
        """
        if not self.is_on_blocks:
            return self.order[: self.order.index(self.sum_loop)] if self.sum_loop else self.order
        if self.nest.reduction is None or self.packs or self.reduced_threads:
            return ()
        found: list[str] = []
        for name in self.serial:
            if self.tree.is_reduced(name) or self.kinds[name] is not AxisKind.SERIAL:
                break
            found.append(name)
        return tuple(found)

    @cached_property
    def inside(self) -> tuple[str, ...]:
        """The loops of a thread inside of the accumulators, outermost first."""
        return self.serial[len(self.outside) :]

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The loops over the cells that are accumulated together."""
        return tuple(name for name in self.inside if not self.tree.is_reduced(name))

    @cached_property
    def device_axes(self) -> frozenset[str]:
        """The axes that grid and block determine."""
        mapped = {*self.grid, *self.block}
        return frozenset(
            root for root in self.tree.axes if mapped.issuperset(self.tree.leaves(root))
        )

    def whole_block(self, axis: str) -> int:
        """Return the most iterations of an axis that run as a whole, also beyond its end."""
        leaves = self.tree.leaves(axis)
        return self.tree.count(leaf for leaf in leaves if self.kinds[leaf].is_whole)

    def expect_leaves(self, *names: str) -> None:
        """Check that axes are split no further."""
        for name in names:
            if name not in self.kinds:
                raise UsageError(
                    f"The axes after all splits are {' '.join(self.order)}.", found=name
                )


def _split(state: NestState, split: transforms.Split) -> NestState:
    tree, at = state.tree.split(split), state.order.index(split.axis)
    parts = outer_of(split.axis), inner_of(split.axis)
    order = (*state.order[:at], *parts, *state.order[at + 1 :])
    return replace(state, tree=tree, order=order, kinds=dict.fromkeys(order, AxisKind.SERIAL))


def _set_kind(state: NestState, given: SetKind) -> NestState:
    kind, axes = given.kind, given.axes
    if not (kind.on_blocks if state.is_on_blocks else kind.on_processors):
        machine = "thread blocks" if state.is_on_blocks else "a processor"
        raise UsageError(
            f"On {machine}, a schedule does not {kind.verb}.", found=schedule_text((given,))
        )
    if state.is_on_blocks and kind is AxisKind.VECTOR:  # also a part of several leaves
        return replace(state, vectors=(*state.vectors, *axes))
    state.expect_leaves(*axes)
    kinds = dict(state.kinds)
    for name in axes:
        if not kind.may_reduce and state.tree.is_reduced(name):
            raise UsageError("Reduced axes do not run in parallel.", found=name)
        if kinds.pop(name).resource is Resource.DEVICE:
            raise UsageError("An axis is mapped to the grid or to a block once.", found=name)
        kinds[name] = kind
    vectors = (*state.vectors, *axes) if kind is AxisKind.VECTOR else state.vectors
    return replace(state, kinds=kinds, vectors=vectors)


def _tile(state: NestState, tile: transforms.TileMatrix) -> NestState:
    leaves = (tile.rows, tile.lanes, tile.terms)
    state.expect_leaves(*leaves)
    if state.tile is not None:
        raise UsageError("A schedule has one tile.", found=schedule_text((tile,)))
    kinds = {} if state.is_on_blocks else dict.fromkeys(leaves, AxisKind.TILE)
    return replace(state, tile=tile, kinds={**state.kinds, **kinds})


def _pack(state: NestState, pack: transforms.Pack) -> NestState:
    """Return the state with the buffer of an operand, whose axes cover the operand."""
    reduction = state.nest.reduction
    factors: tuple[ir.Expr, ...] = reduction.factors if reduction else ()
    if reduction is None and state.is_on_blocks:
        factors = loads_of_cells(state.nest)
    if not factors:
        raise UsageError("Packing and accumulating need a reduction.", found="a nest without one")
    if pack.operand >= len(factors):
        raise UsageError(
            f"Operands of this nest are numbered from 0 to {len(factors) - 1}.",
            found=str(pack.operand),
        )
    if any(each.operand == pack.operand for each in state.packs):
        raise UsageError("An operand is packed once.", found=str(pack.operand))
    if pack.inside is not None:
        state.expect_leaves(pack.inside)
    tree, serial = state.tree, state.serial
    is_once = pack.inside is None and (reduction is None or not state.is_on_blocks)
    if not is_once and (reduction is None or pack.inside not in serial):
        raise UsageError(
            "A factor of the term is packed inside of a serial loop of a thread, a load of cells "
            "without a reduction once.",
            found=schedule_text((pack,)),
        )
    cut = serial.index(pack.inside) + 1 if pack.inside is not None else 0
    outer = {*state.grid, *state.block, *serial[:cut]}
    mentioned = {leaf for root in tree.axes_of(factors[pack.operand]) for leaf in tree.leaves(root)}
    covered = [leaf for axis in pack.axes for leaf in tree.leaves(axis)]
    missing = [leaf for leaf in mentioned if leaf not in outer and leaf not in covered]
    # the threads of a block fill its cells together
    bound = [leaf for leaf in covered if leaf in outer and not state.is_on_blocks]
    if missing or bound or len(set(covered)) < len(covered):
        raise UsageError(
            "A packed buffer has the axes of the operand inside its loop, each once.",
            found=f"{schedule_text((pack,))}: missing {missing}, fixed already {bound}",
        )
    return replace(state, packs=(*state.packs, pack))


def _copy_ahead(state: NestState, copies: transforms.Pipeline | transforms.Ring) -> NestState:
    if state.copies is not None:
        raise UsageError("A schedule has one pipeline or ring.", found=schedule_text((copies,)))
    return replace(state, copies=copies)


def _accumulate(state: NestState, given: transforms.AccumulateAt) -> NestState:
    if state.nest.reduction is None:
        raise UsageError("Packing and accumulating need a reduction.", found="a nest without one")
    state.expect_leaves(given.over)
    return replace(state, sum_loop=given.over, is_fused=given.fused, prefetches=given.prefetch)


def _apply(state: NestState, transform: transforms.Transform) -> NestState:
    if isinstance(transform, _ON_BLOCKS) and not state.is_on_blocks:
        raise UsageError(
            "A schedule for a processor has no such transform.", found=schedule_text((transform,))
        )
    match transform:
        case transforms.Split():
            return _split(state, transform)
        case transforms.Order():
            return replace(state, order=state.tree.ordered(transform))
        case SetKind():
            return _set_kind(state, transform)
        case transforms.TileMatrix():
            return _tile(state, transform)
        case transforms.Shuffle():
            return replace(state, lanes=max(state.lanes, transform.lanes))
        case transforms.Pack():
            return _pack(state, transform)
        case transforms.Pipeline() | transforms.Ring():
            return _copy_ahead(state, transform)
        case transforms.StageForm():
            return replace(state, forms={**state.forms, transform.operand: transform})
        case transforms.AccumulateAt():
            return _accumulate(state, transform)
        case _:
            assert_never(transform)


_ON_BLOCKS = (transforms.Pipeline, transforms.StageForm, transforms.Ring, transforms.Shuffle)
"""Transforms of schedules for thread blocks."""


def apply_transforms(nest: Nest, schedule: Schedule, *, is_on_blocks: bool = False) -> NestState:
    """Return the state of a nest after all transforms of a schedule.

    Args:
        is_on_blocks: True for the threads of a block, even if none of the axes is mapped to them.

    Raises:
        UsageError: for a schedule that does not fit the nest.
    """
    given = {each.kind.resource for each in schedule if isinstance(each, SetKind)}
    is_rounded = is_on_blocks or Resource.DEVICE in given
    tree = AxisTree({axis.name: axis for axis in nest.axes}, is_rounded=is_rounded)
    order = tree.natural_order
    first = NestState(nest, tree, order, dict.fromkeys(order, AxisKind.SERIAL))
    kinds = get_args(transforms.Transform)
    ordered = sorted(schedule, key=lambda each: kinds.index(type(each)))
    return _finish(reduce(_apply, ordered, first))


def _finish(state: NestState) -> NestState:
    """Check what the transforms need of each other, and choose the loop of the accumulators."""
    if state.is_on_blocks:
        return _finish_on_blocks(state)
    state = _finish_kinds(state)
    reduction = state.nest.reduction
    if reduction is None:
        return state
    order, tree = state.order, state.tree
    shifts = [at for at, name in enumerate(order) if tree.axes[root_of(name)].is_shifting]
    least = max(shifts, default=-1) + 1
    if not state.sum_loop:
        # without reduced axes, accumulators are allocated inside of all loops
        first = next(filter(tree.is_reduced, order[least:]), "")
        state = replace(state, sum_loop=first)
    found = f"accumulate over {state.sum_loop}"
    if any(map(tree.is_reduced, state.outside)):
        if not state.nest.holds_partial_results:
            raise UsageError(
                "A reduced axis runs outside of the accumulators only where cells hold partial "
                "results.",
                found=found,
            )
        if not state.nest.is_resumable:
            state = _initialize_cells(state)
    if len(state.outside) < least:
        raise UsageError("Axes that shift the cells run outside of the accumulators.", found=found)
    return state


def _finish_kinds(state: NestState) -> NestState:
    """Check the kinds of leaves beside each other."""
    order, kinds = state.order, state.kinds
    vectors = [name for name in order if kinds[name] is AxisKind.VECTOR]
    dots = [name for name in order if kinds[name] is AxisKind.DOT]
    if joint := loop_ends.joint_terms(state.tree, kinds):
        raise UsageError("An axis that ends at run time is reduced term by term.", found=joint)
    if vectors and vectors != list(state.square or order[: len(order) - len(dots)][-1:]):
        raise UsageError("The innermost axis alone is vectorized.", found=" ".join(vectors))
    is_valid = not dots or loop_ends.is_valid_dot(state.tree, order, dots, vectors)
    if state.tile is None and not is_valid:
        raise UsageError(
            "The axis of a dot product is the inside of a reduced axis split by two or four, "
            "inside of a vectorized axis.",
            found=" ".join(dots),
        )
    if state.square:  # of the rest
        return replace(state, kinds={**kinds, state.square[0]: AxisKind.SERIAL})
    return state


def _initialize_cells(state: NestState) -> NestState:
    """Store initial values before anything else, and continue from the stored values.

    c[i] = 0.0 + sum of x[i, k]  -->  for i: c[i] = 0.0
                                      for k0: for i: c[i] = c[i] + sum of x[i, k0, k1]
    """
    nest, reduction = state.nest, state.nest.required_reduction
    (store,) = nest.epilogue
    stmts: tuple[ir.Stmt, ...] = (replace(store, value=reduction.initial),)
    for axis in reversed(nest.output_axes):
        var = fresh_var(axis.var.hint)
        body = substitute_in_stmt(ir.Block(stmts), {axis.var: affine([(1, var)], axis.start)})
        bound = axis.bound_at(VarIndex(var))
        stmts = (ir.For(var, 0, axis.extent, body, bound=bound),)
    cell = ir.Load(store.node, store.indices, reduction.dtype)
    continued = replace(nest, reduction=replace(reduction, initial=cell))
    return replace(state, nest=continued, initial_stores=stmts)


def _finish_on_blocks(state: NestState) -> NestState:
    tree, vectors = state.tree, state.vectors
    if any(not _is_vector(state, name) for name in vectors) or len(vectors) > 1:
        raise UsageError(
            "A thread loads and stores neighboring iterations of one axis at once, which is "
            "neither that of the grid nor of a block.",
            found=", ".join(f"vectorize {name}" for name in vectors),
        )
    reduction = state.nest.reduction
    is_partly_packed = reduction is not None and 0 < len(state.packs) < len(reduction.factors)
    if is_partly_packed and any(tree.exceeds(axis.name) for axis in state.nest.axes):
        raise UsageError(
            "Where blocks exceed an axis, all factors of the term are packed or none.",
            found=f"{len(state.packs)} packed factors",
        )
    written_out = {name: AxisKind.UNROLLED for name in vectors if name in state.serial}
    return replace(state, kinds={**state.kinds, **written_out})


def _is_vector(state: NestState, name: str) -> bool:
    """Return True if a part of an axis has neighboring iterations, all in one thread."""
    is_part = name in state.tree.splits or name in state.serial
    return is_part and has_neighbors(name) and set(state.tree.leaves(name)) <= set(state.serial)
