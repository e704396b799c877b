"""The values of tensors while their program is translated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ocannl_core.assignments import AssignProgram, Leaf, NodeInfo, TensorNode
from ocannl_onnx.errors import NoCounterpartError
from ocannl_onnx.formats import Format, format_named
from ocannl_onnx.writing.emitter import Emitter, Size, WrittenValue

FORMATS = frozenset(
    (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
        *(
            "int64",
            "int32",
            "int16",
            "int8",
            "int4",
            "uint64",
            "uint32",
            "uint16",
            "uint8",
            "uint4",
        ),
    )
)
"""The number formats that both the core and ONNX have."""

RANDOM = (
    "ONNX does not state how random numbers are drawn",
    "build the expression in `with oc.evaluation():` if they belong to dropout, or give the random "
    "numbers as an input",
)


@dataclass
class Stretches:
    """Cells of which parts have been written along one axis.

    Attributes:
        before: The cells before these writes.
        axis: The axis of the parts.
        parts: The written parts by their starts: the name and the end of each.
    """

    before: WrittenValue
    axis: int
    parts: dict[int, tuple[str, int]]


Cells = WrittenValue | Stretches


@dataclass(frozen=True)
class TranslatedProgram:
    """The program that is translated, with the tensors of its nodes.

    Attributes:
        program: The assignments.
        tensors: The tensors behind nodes; intermediate ones have none.
        stored: The nodes that have cells before the program runs.
        load: A function that returns the value of such a node.
    """

    program: AssignProgram
    tensors: Mapping[TensorNode, Any]
    stored: AbstractSet[TensorNode]
    load: Callable[[TensorNode], WrittenValue]


class Values:
    """The value of each tensor at this point of a graph.

    Attributes:
        outer: The values around the body of a loop.
        values: The cells of nodes that this graph has written, or has read from around it.
        leaf: The current assignment.
    """

    def __init__(
        self, source: TranslatedProgram, emit: Emitter, outer: Values | None = None
    ) -> None:
        self.source = source
        self.emit = emit
        self.outer = outer
        self.values: dict[TensorNode, Cells] = {}
        self.leaf: Leaf | None = None

    def refuse(self, reason: str, fix: str = "") -> NoCounterpartError:
        """Return the error that the current assignment has no counterpart."""
        origin = getattr(self.leaf, "origin", None)
        name = origin.operation if origin is not None else type(self.leaf).__name__
        where = str(origin.location or "") if origin is not None else ""
        return NoCounterpartError(name, reason, where=where, fix=fix)

    def info(self, node: TensorNode) -> NodeInfo:
        return self.source.program.nodes[node]

    def format(self, node: TensorNode) -> Format:
        """Return the format of a node's cells."""
        name = self.info(node).dtype.name
        if name not in FORMATS:
            if name == "uint4x32":
                raise self.refuse(*RANDOM)
            raise self.refuse(f"ONNX has no number format {name}", 'convert it: oc.cast(x, "...")')
        return format_named(name)

    def sizes(self, node: TensorNode) -> tuple[Size, ...]:
        info = self.info(node)
        extents = info.extents or (None,) * len(info.dims)
        return tuple(n if e is None else e for n, e in zip(info.dims, extents, strict=True))

    def written(self, node: TensorNode) -> Cells | None:
        """Return the cells of a node here or around; None if nothing has written or read it."""
        found = self.values.get(node)
        if found is None and self.outer is not None:
            found = self.outer.written(node)
            if isinstance(found, Stretches):
                found = self.outer.value(node)
        return found

    def value(self, node: TensorNode) -> WrittenValue:
        """Return the cells of a node."""
        found = self.written(node)
        if found is None:
            is_stored = node in self.source.stored
            found = self.source.load(node) if is_stored else self.spread(node, 0.0)
            self.values[node] = found
        if isinstance(found, Stretches):
            found = self.joined(found)
            self.values[node] = found
        return found

    def joined(self, found: Stretches) -> WrittenValue:
        """Return the cells of stretches, with the earlier cells between them."""
        axis, before = found.axis, found.before
        size = before.sizes[axis]
        assert isinstance(size, int)
        starts = sorted(found.parts)
        gaps = [*zip([0, *(found.parts[s][1] for s in starts)], [*starts, size], strict=True)]
        parts: list[str] = []
        for (start, stop), following in zip(gaps, [*starts, None], strict=True):
            if start < stop:
                parts.append(self._earlier(before, axis, start, stop))
            if following is not None:
                parts.append(found.parts[following][0])
        name = parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=axis)
        return WrittenValue(name, before.format, before.sizes)

    def _earlier(self, before: WrittenValue, axis: int, start: int, stop: int) -> str:
        if before.is_spread:
            sizes = [stop - start if k == axis else n for k, n in enumerate(before.sizes)]
            return self.emit("Expand", before.name, self.emit.shape(sizes))
        return self.emit.slice(before.name, axis, start, stop)

    def spread(self, node: TensorNode, number: float) -> WrittenValue:
        """Return one number in all cells of a node."""
        format = self.format(node)
        name = self.emit.constant(number, format)
        return WrittenValue(name, format, self.sizes(node), is_spread=True, number=number)
