"""The steps of a schedule as values, and their notation.

A `Schedule` is a tuple of transforms of one nest. Its axes are named by letters, outermost loop
first: `i, j, k, m, ...`. Splitting an axis `j` names its parts `j0` (which block) and `j1` (where
inside the block), whose parts are `j10` and `j11`, and so on.

    split j 32; split j1 16; split i 14 evenly; order j0 i0 k i1 j10 j11;
    unroll i1; unroll j10; vectorize j11; pack 1 inside j0 as k j1; accumulate over k fused

On a device with thread blocks, some axes belong to the grid, and some to a block:

    split i 64; split i1 4; split j 64; split j1 16; split k 16; grid i0 j0; block i10 j11;
    order i0 j0 i10 j11 k0 k1 i11 j10; unroll i11; unroll j10;
    pack 0 inside k0 as k1 i1; pack 1 inside k0 as k1 j1; accumulate over k0 fused

With matrix instructions, a tile belongs to a subgroup of threads, and copies run ahead:

    split i 128; split i1 64; split i11 16; split i111 8; split j 128; split j1 32; split j11 8;
    split j111 2; split k 32; split k1 16; grid i0 j0; block i10 j10 i1111 j1110;
    order i0 j0 i10 j10 i1111 j1110 k0 k10 i110 j110 i1110 j1111 k11;
    tile i1110 j1111 k11; pack 0 inside k0 as i1 k1; pack 1 inside k0 as k1 j1;
    pipeline k0 in 3; stage 0 by 8 pitch 40; stage 1 by 8 pitch 136; accumulate over k0 fused

With asynchronous products (WGMMA), a warp of its own copies the operands into a ring of stages:

    split i 128; split i1 64; split i11 16; split i111 8; split j 256; split j1 8; split j11 2;
    split k 256; split k1 64; grid i0 j0; block i10 i110 i1111 j110;
    order i0 j0 i10 i110 i1111 j110 k0 k10 j10 i1110 j111 k11; unroll j10; unroll i1110;
    unroll j111; tile i1110 j111 k11; pack 0 inside k10 as i1 k11; pack 1 inside k10 as k11 j1;
    ring k10; accumulate over k0 fused

A `KernelSchedule` also says how nests run together: the schedule of each nest follows the axes
whose loops they share, and the decisions about the nodes that they write come last.

    rows i; split j 16; vectorize j1; accumulate over j0; rows i; rows i along; fold 1; stream 2

Flash attention walks along its columns once, in tiles: the schedule of its first nest states the
rows and columns of a tile.

    rows i k j by 64 on 128; walk m by 32

The notation is complete: `parse_schedule(schedule_text(schedule)) == schedule`, and likewise
`parse_kernel_schedule`. Each transform states its own: `{field}` stands for the value of a field,
`[...]` for a part that is left out where its last field has its default, and `{field: text}` for a
text that stands for True. A kind of an axis states its verb (`AxisKind`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache, lru_cache
from typing import Any, ClassVar, get_args

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.loops.axis_kinds import VERBS, AxisKind

AXIS_LETTERS = "ijkmnpqrstuvw"
"""Names of the axes of a nest, outermost first."""


def root_of(part: str) -> str:
    """Return the axis of which a name denotes a part."""
    return part[0]


def outer_of(part: str) -> str:
    """Return the name of the loop over the blocks of a part that is split."""
    return f"{part}0"


def inner_of(part: str) -> str:
    """Return the name of the inside of a block of a part that is split."""
    return f"{part}1"


def parent_of(part: str) -> str:
    """Return the part that was split into this one and another one."""
    return part[:-1]


def is_outer(part: str) -> bool:
    """Return True for a loop over blocks."""
    return part.endswith("0")


def is_inner(part: str) -> bool:
    """Return True for the inside of a block."""
    return part.endswith("1")


def has_neighbors(part: str) -> bool:
    """Return True if the iterations of a part are neighbors along its axis: no block is between."""
    return "0" not in part


class Notated:
    """A transform that states its notation."""

    __slots__ = ()
    notation: ClassVar[str]

    def __init_subclass__(cls, notation: str = "") -> None:
        if notation:  # not for the copy of a class with slots
            cls.notation = notation


@dataclass(frozen=True, slots=True)
class Split(Notated, notation="split {axis} {size}{evenly: evenly}"):
    """An axis becomes blocks of `size` iterations. The last block is the remainder, as code of
    its own, so that no iteration is guarded.

    Attributes:
        size: The iterations of a block.
        evenly: True if instead all blocks are as large as each other, or smaller by one, and
            `size` is the largest they may be.
    """

    axis: str
    size: int
    evenly: bool = False


class Splits(list[Split]):
    """The splits of a schedule, while a rule makes them."""

    def cut(self, part: str, *sizes: int, evenly: bool = False) -> tuple[str, ...]:
        """Split a part of an axis into blocks, these into smaller ones, and so on.

        Args:
            sizes: The iterations of a block, the largest first.

        Returns:
            The loops over blocks, outermost first, and the inside of the smallest ones.
        """
        outer: list[str] = []
        for size in sizes:
            self.append(Split(part, size, evenly))
            outer.append(outer_of(part))
            part = inner_of(part)
        return (*outer, part)


@dataclass(frozen=True, slots=True)
class Order(Notated, notation="order {axes}"):
    """The axes that are left after all splits, outermost first."""

    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetKind(Notated):
    """Axes have a kind: `unroll i1`, `vectorize j11`, `dot k1`, `parallelize j0`, `grid i0 j0`,
    `block i1 j1`.

    Of a vectorized axis on thread blocks, one thread loads and stores all iterations at once. With
    an axis of the grid or of a block, blocks of a split are all equal, and iterations beyond an
    axis are left out one by one; packed operands are in the memory that the threads of a block
    share. Threads of a block along its last axis are neighbors; along reduced axes they have
    partial results, which are combined in a tree of fixed order.

    Operands that are packed along a dot product stay in their narrow format, as the instruction
    widens them.
    """

    kind: AxisKind
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TileMatrix(Notated, notation="tile {rows} {lanes} {terms}[ in {parts} parts][ of {shape}]"):
    """A product of matrices is one instruction: the innermost axes are the axes of tile registers,
    with the terms in pairs inside.

    Remainders of tiles are padded with zeros, in the packed copies of both operands; cells beyond
    the extents are computed, too, and not stored.

    On a device with thread blocks the axes run over the cells of a tile that one thread has, and
    over all terms of the tile. Axes of the block make it the tile of a subgroup.

    Attributes:
        terms: The reduced axis, of which each iteration is a pair of terms.
        parts: The number of narrow numbers that add up to each factor. The product of two factors
            is the sum of the products of their parts, without the products of the least parts.
        shape: The rows, columns and terms of a tile in tile registers.
    """

    rows: str
    lanes: str
    terms: str
    parts: int = 1
    shape: tuple[int, ...] = (16, 16, 32)


@dataclass(frozen=True, slots=True)
class Shuffle(Notated, notation="shuffle {lanes}"):
    """Threads that share a result exchange it without memory, in groups of neighbors.

    These are the last steps of the tree of partial results, which has the same order without them.
    """

    lanes: int
    """The greatest number of neighbors, a power of two."""


@dataclass(frozen=True, slots=True)
class Pack(Notated, notation="pack {operand}[ inside {inside}] as {axes}"):
    """A factor of the reduced term is computed into a buffer first, and read from there. On thread
    blocks, a load in a nest without a reduction may be packed, too.

    The buffer holds the cells that one iteration of `inside` reads, laid out along `axes`: the axes
    of the inner loops are contiguous for every index map of the operand.
    """

    operand: int
    """The position of the factor in the term, or load in the epilogue, from the left."""
    inside: str | None
    """The axis in each iteration of which the buffer is filled; None for once."""
    axes: tuple[str, ...]
    """The axes of the buffer, outermost first."""


@dataclass(frozen=True, slots=True)
class Pipeline(Notated, notation="pipeline {axis} in {stages}"):
    """The copies of packed operands run some iterations of an axis ahead of their use."""

    axis: str
    """The axis inside of which the operands are packed."""
    stages: int
    """The number of iterations whose copies are in shared memory at a time."""


@dataclass(frozen=True, slots=True)
class StageForm(
    Notated, notation="stage {operand}[ by {width}] pitch {pitch}[ skip {skip} after {rows}]"
):
    """The form of a packed operand whose copies run ahead."""

    operand: int
    """The position of the factor in the term, from the left."""
    width: int
    """The neighboring cells that one instruction copies; 0 if a thread computes them."""
    pitch: int
    """The cells from one row of the copy to the next one."""
    skip: int = 0
    """The cells that are left out after each group of rows."""
    rows: int = 0
    """The rows of such a group; 0 for none."""


@dataclass(frozen=True, slots=True)
class Ring(Notated, notation="ring {axis}"):
    """Each iteration of an axis has a stage of its own in shared memory, with the operands that are
    packed inside of it. One thread copies all of a stage, which a copy engine may do in its place;
    the threads of a block multiply it tile by tile.
    """

    axis: str


@dataclass(frozen=True, slots=True)
class AccumulateAt(Notated, notation="accumulate over {over}{fused: fused}{prefetch: prefetch}"):
    """A reduction collects in registers while the axis `over` and all inside it run.

    Reduced axes outside of it make partial results, which are added to the cells in memory. Axes
    inside that are reduced and unrolled or vectorized have accumulators of their own, which are
    combined at the end.

    Attributes:
        over: The outermost axis that registers survive.
        fused: True if products are added without rounding them first.
        prefetch: True if the cells that results are combined with come near the processor while the
            axis runs, some in each part of it.
    """

    over: str
    fused: bool = False
    prefetch: bool = False


@dataclass(frozen=True, slots=True)
class FuseRows(
    Notated, notation="rows {axes}[ by {size}][ in {groups}][ on {threads}]{is_along: along}"
):
    """The axes of a nest whose loops it shares with other nests; what follows is inside of them.

    Attributes:
        axes: The axes, outermost first.
        size: The number of rows of the last axis that run together; for the first nest.
        groups: The number of parts of the outermost loop, each of which has its own partial
            results of sums over rows; for the first nest.
        is_along: True if the nest runs in the loops of the nest before, whose schedule it has.
        threads: The threads of a block that run each row, while the grid runs the rows; 0 where one
            thread runs a row. For the first nest.
    """

    axes: tuple[str, ...]
    size: int = 1
    groups: int = 1
    is_along: bool = False
    threads: int = 0


@dataclass(frozen=True, slots=True)
class WalkTiles(Notated, notation="walk {axis} by {size}{on_tiles: on tiles}"):
    """The threads of a block walk along an axis tile by tile, with a running result of everything
    that is reduced along it; of nests that run together, for the first one.

    Attributes:
        size: The iterations of a tile.
        on_tiles: True if matrix instructions multiply.
    """

    axis: str
    size: int
    on_tiles: bool = False


@dataclass(frozen=True, slots=True)
class FoldStorage(Notated, notation="fold {written}"):
    """A node that nests running together write has the size of one row."""

    written: int
    """Its position among the nodes that they write, in the order of the program."""


@dataclass(frozen=True, slots=True)
class Inline(Notated, notation="inline {written}"):
    """A node that nests running together write is computed where they read it."""

    written: int


@dataclass(frozen=True, slots=True)
class StreamStores(Notated, notation="stream {written}"):
    """The rows of a node go to memory past the caches, once they are complete."""

    written: int


Transform = (
    Split
    | Order
    | SetKind
    | TileMatrix
    | Shuffle
    | Pack
    | Pipeline
    | StageForm
    | Ring
    | AccumulateAt
)
"""A step of the schedule of one nest, in the order of application."""
Schedule = tuple[Transform, ...]
"""The schedule of one nest."""
GroupTransform = FuseRows | WalkTiles | FoldStorage | Inline | StreamStores
"""A decision about nests that run together."""
KernelSchedule = tuple[Transform | GroupTransform, ...]
"""The schedule of a kernel: of one nest, or of nests that run together."""


def set_kinds(kind: AxisKind, axes: Iterable[str]) -> tuple[SetKind, ...]:
    """Return transforms that give a kind to each of some axes."""
    return tuple(SetKind(kind, (name,)) for name in axes)


def axes_of_kind(schedule: Schedule, kind: AxisKind) -> tuple[str, ...]:
    """Return the axes to which a schedule gives a kind."""
    return tuple(
        axis
        for each in schedule
        if isinstance(each, SetKind) and each.kind is kind
        for axis in each.axes
    )


def schedule_text(schedule: KernelSchedule) -> str:
    """Return the notation of a schedule: its transforms, separated by semicolons."""
    return "; ".join(map(_text, schedule))


def parse_schedule(text: str) -> Schedule:
    """Return the schedule of one nest that a text denotes.

    Raises:
        UsageError: for a text that is no schedule.
    """
    return _parse(text, get_args(Transform))


def parse_kernel_schedule(text: str) -> KernelSchedule:
    """Return the schedule of a kernel that a text denotes.

    Raises:
        UsageError: for a text that is no schedule.
    """
    return _parse(text, get_args(Transform | GroupTransform))


def _parse(text: str, kinds: Iterable[type[Any]]) -> tuple[Any, ...]:
    by_verb = {kind.notation.partition(" ")[0]: kind for kind in kinds if kind is not SetKind}
    parts = [" ".join(part.split()) for part in text.split(";")]
    return tuple(_transform(part, by_verb) for part in parts if part)


_AXIS = rf"[{AXIS_LETTERS}][01]*"
_VALUES = {
    "FuseRows.axes": f"[{AXIS_LETTERS}](?: [{AXIS_LETTERS}])*",
    "operand": r"\d+",
    "written": r"\d+",
    "int": r"[1-9]\d*",
    "TileMatrix.shape": r"[1-9]\d* [1-9]\d* [1-9]\d*",
    "tuple[str, ...]": f"{_AXIS}(?: {_AXIS})*",
}
"""Texts of a field, by its name or else its type; axes without an entry."""
_FIELD = r"\{(\w+)(?::([^}]*))?\}"
_OPTIONAL = r"\[([^]]*)\]"


@lru_cache(4096)
def _text(transform: Transform | GroupTransform) -> str:
    if isinstance(transform, SetKind):
        return f"{transform.kind.verb} {' '.join(transform.axes)}"
    defaults = {each.name: _default(each) for each in fields(transform)}

    def optional(part: re.Match[str]) -> str:
        *_, (last, _) = re.findall(_FIELD, part[1])
        return "" if getattr(transform, last) == defaults[last] else part[1]

    def shown(field: re.Match[str]) -> str:
        value = getattr(transform, field[1])
        if field[2]:
            return field[2] if value else ""
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)

    return re.sub(_FIELD, shown, re.sub(_OPTIONAL, optional, transform.notation))


def _transform(text: str, kinds: Mapping[str, Any]) -> Transform | GroupTransform:
    """Return the transform that a text denotes, among kinds by their verbs."""
    verb, _, rest = text.partition(" ")
    if verb in VERBS and re.fullmatch(_VALUES["tuple[str, ...]"], rest):
        return SetKind(VERBS[verb], tuple(rest.split()))
    kind = kinds.get(verb)
    found = None if kind is None else _form(kind).fullmatch(text)
    if kind is None or found is None:
        first, second, *others = kinds
        verbs = [first, second, *VERBS, *others]
        raise UsageError(
            f"A schedule is made of {', '.join(verbs[:-1])} and {verbs[-1]}.",
            found=repr(text),
            fix="for example: split j 16; order i j0 k j1; vectorize j1; accumulate over k",
        )
    made: Transform | GroupTransform = kind(*(_value(f, found[f.name]) for f in fields(kind)))
    return made


@cache
def _form(kind: type[Any]) -> re.Pattern[str]:
    """Return the texts of a kind of transform, with a group for each field."""
    types = {each.name: str(each.type) for each in fields(kind)}

    def group(field: re.Match[str]) -> str:
        name, flag = field.groups()
        known = (f"{kind.__name__}.{name}", name, types[name])
        values = next((_VALUES[each] for each in known if each in _VALUES), _AXIS)
        return f"(?P<{name}>{flag})?" if flag else f"(?P<{name}>{values})"

    return re.compile(re.sub(_FIELD, group, re.sub(_OPTIONAL, r"(?:\1)?", kind.notation)))


def _value(field: Field[Any], text: str | None) -> object:
    """Return the value of a field; the default for an optional part that is not there."""
    if text is None:
        return _default(field)
    match str(field.type):
        case "int":
            return int(text)
        case "bool":
            return True
        case "tuple[str, ...]":
            return tuple(text.split())
        case "tuple[int, ...]":
            return tuple(map(int, text.split()))
        case _:
            return text


def _default(field: Field[Any]) -> object:
    none = 0 if field.type == "int" else None
    return none if field.default is MISSING else field.default
