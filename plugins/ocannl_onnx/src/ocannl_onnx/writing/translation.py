"""Assignments as nodes: accumulations by their index maps, fetches, calls, and repetitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ocannl_core.assignments import (
    Accumulate,
    BinaryOp,
    ComputedIndex,
    Constant,
    ConstantBits,
    ConstantFill,
    EmbedIndex,
    ExternalCall,
    Fetch,
    FixedIndex,
    IndexMap,
    Leaf,
    LoopVar,
    NodeOperand,
    RangeOverOffsets,
    RepeatedAssignments,
    SetVector,
    StaticIndex,
    TensorNode,
    VarIndex,
    as_affine,
    leaves,
    neutral,
    reads,
    repeat_inputs,
    saturate,
    targets,
    traversals,
    variables,
)
from ocannl_onnx.formats import Format
from ocannl_onnx.writing import calls
from ocannl_onnx.writing.emitter import FLOAT32, INT64, Emitter, Size, WrittenValue
from ocannl_onnx.writing.functions import reads as names_read
from ocannl_onnx.writing.terms import Terms
from ocannl_onnx.writing.values import RANDOM, TranslatedProgram, Values
from ocannl_onnx.writing.views import Views
from ocannl_onnx.writing.writes import Writes


class Translation(Values):
    """The nodes of one graph.

    Attributes:
        rows: The nodes of which each iteration writes a row, with the axis of the rows.
        row_values: The rows that this iteration has written.
    """

    def __init__(
        self, source: TranslatedProgram, emit: Emitter, outer: Values | None = None
    ) -> None:
        super().__init__(source, emit, outer)
        self.rows: dict[TensorNode, int] = {}
        self.row_values: dict[TensorNode, str] = {}

    def run(self, body: Sequence[Any]) -> None:
        """Translate assignments in program order."""
        every = list(leaves(body))
        for leaf, owners in zip(every, self._owners(every), strict=True):
            self.leaf = leaf
            self.emit.owners = owners
            self.emit.hint = targets(leaf)[0].name
            match leaf:
                case Accumulate():
                    self.accumulate(leaf)
                case Fetch():
                    self.fetch(leaf)
                case ExternalCall():
                    self.call(leaf)
                case RepeatedAssignments():
                    self.repetition(leaf)
                case SetVector():
                    raise self.refuse(*RANDOM)

    def _owners(self, every: Sequence[Leaf]) -> list[tuple[Any, ...]]:
        """Return the applications of blocks around each assignment, outermost first. Intermediate
        nodes have no tensor: they belong to the result that follows.
        """
        found: list[tuple[Any, ...]] = []
        chain: list[Any] = []
        for leaf in reversed(every):
            tensors = [self.source.tensors.get(node) for node in targets(leaf)]
            made = [each.made_in for each in tensors if each is not None]
            if made:
                chain, application = [], made[0]
                while application is not None:
                    chain.append(application)
                    application = application.outer
            found.append(tuple(reversed(chain)))
        return found[::-1]

    def accumulate(self, leaf: Accumulate) -> None:
        target, combine = leaf.target, leaf.combine
        dtype = self.info(target).dtype
        self.format(target)
        resets = leaf.reset and combine is not BinaryOp.SECOND
        if resets:
            self.values[target] = self.spread(target, saturate(neutral(combine), dtype))
        for domain, maps in traversals(leaf.projections):
            self._nest(leaf, dict(domain), maps)

    def _nest(
        self, leaf: Accumulate, extents: dict[LoopVar, int], maps: tuple[IndexMap, ...]
    ) -> None:
        """Translate the assignment over one domain."""
        rhs = maps[1:]
        lhs = list(maps[0])
        ones: set[LoopVar] = set()
        for k, size in enumerate(self.sizes(leaf.target)):
            if lhs[k] == FixedIndex(0) and size == 1:  # so that operands keep such axes, too
                one = LoopVar(k, "one")
                ones.add(one)
                lhs[k] = VarIndex(one)
        extents |= dict.fromkeys(ones, 1)
        views = Views(self.emit, extents, self.refuse, frozenset(ones))
        kept = list(
            dict.fromkeys(
                var for index in lhs for var in variables(index) if isinstance(var, LoopVar)
            )
        )
        terms = Terms(self, leaf, views, rhs, kept)
        overlapping = terms.overlapping_windows(tuple(lhs), extents)
        if overlapping is not None:
            whole, view, index_map = overlapping
            Writes(whole, index_map).write(view, FLOAT32)
            return
        view, format = terms.accumulated()
        writes = Writes(terms, tuple(lhs))
        if leaf.target in self.rows:
            self.row_values[leaf.target] = writes.row(view, format, self.rows[leaf.target])
        else:
            writes.write(view, format)

    # Other assignments

    def fetch(self, leaf: Fetch) -> None:
        target, source = leaf.target, leaf.source
        if isinstance(source, ConstantBits) or self.info(target).dtype.name == "uint4x32":
            if isinstance(source, ConstantBits) and self.info(target).dtype.name != "uint4x32":
                bits = np.array([source.bits & (2**64 - 1)], np.uint64)
                number = bits.view(np.uint8).view(self.info(target).dtype.numpy)[0]
                exact = float(number) if self.format(target).is_float else int(number)
                self.values[target] = self.spread(target, exact)
            return  # words: an operation that reads them is refused
        format, sizes, emit = self.format(target), self.sizes(target), self.emit
        match source:
            case Constant(value):
                finite = saturate(value, self.info(target).dtype)
                self.values[target] = self.spread(target, finite)
            case ConstantFill(values):
                known = Views(emit, {}, self.refuse).known(sizes)
                array = np.resize(np.asarray(values, np.float64), known)
                self.values[target] = WrittenValue(emit.constant(array, format), format, sizes)
            case RangeOverOffsets():
                self.values[target] = WrittenValue(self._offsets(sizes, format), format, sizes)
            case EmbedIndex(index, factors):
                name = ""
                for each in (index, *factors):
                    factor = self._index_value(each)
                    name = emit("Mul", name, factor) if name else factor
                name = emit.cast(name, INT64, format)
                self.values[target] = WrittenValue(name, format, sizes, is_spread=bool(sizes))

    def _offsets(self, sizes: tuple[Size, ...], format: Format) -> str:
        """Return the row-major offset of each cell."""
        emit = self.emit
        if all(isinstance(each, int) for each in sizes):
            return emit.constant(np.arange(math.prod(sizes)).reshape(sizes), format)  # type: ignore[arg-type]
        stop = emit("ReduceProd", emit.shape(sizes), keepdims=0)
        offsets = emit("Range", emit.constant(0), stop, emit.constant(1))
        return emit.cast(emit.reshape(offsets, sizes), INT64, format)

    def _index_value(self, index: Any) -> str:
        """Return the value of an index of a call, as one int64 number."""
        terms, offset = as_affine(index)
        name = self.emit.constant(offset)
        for coefficient, var in terms:
            assert isinstance(var, StaticIndex)
            value = self.emit.index(var)
            if coefficient != 1:
                value = self.emit("Mul", value, self.emit.constant(coefficient))
            name = self.emit("Add", name, value)
        return name

    def call(self, leaf: ExternalCall) -> None:
        definition = self.source.tensors[leaf.targets[0]].definition
        op = definition.application.op
        rule = calls.RULES.get(type(op).__name__)
        if rule is None or not type(op).__module__.startswith("ocannl_core."):
            raise self.refuse(
                f"the operation {leaf.op.name} has no counterpart",
                "write it as an expression of operations of oc",
            )
        inputs = [self.value(node) for node in leaf.inputs]
        (target,) = leaf.targets
        name = rule(self.emit, op, *inputs)
        made = WrittenValue(name, self.format(target), self.sizes(target))
        self.values[target] = made

    # Repetitions

    def repetition(self, leaf: RepeatedAssignments) -> None:
        """Translate a repetition as `Scan`: over the tensors of which each iteration reads one row,
        and over the numbers of iterations if other reads or writes depend on them.
        """
        emit = self.emit
        read = set(repeat_inputs(leaf))
        rows = {
            n: axis for n in targets(leaf) if (axis := self._row_axis(leaf, n, read)) is not None
        }
        carried = [node for node in targets(leaf) if node not in rows]
        initial = [self.value(node) for node in carried]
        starts = [emit.materialized(each) for each in initial]
        t = emit.names.unique(leaf.index.name)

        def origin(index: StaticIndex) -> Callable[[Emitter], str]:
            return emit.origin(index) if index != leaf.index else lambda _: t

        body = Emitter(emit.names, emit.opset, origin, emit.library)
        inside = Translation(self.source, body, self)
        inside.rows = rows
        before = [emit.names.unique(f"{node.name}_before") for node in carried]
        for node, name, value in zip(carried, before, initial, strict=True):
            inside.values[node] = WrittenValue(name, value.format, value.sizes)
        over: list[tuple[str, int]] = []
        formats = [each.format for each in initial]
        shapes = [each.sizes for each in initial]
        ports = [*map(port, before, formats, shapes)]
        for node in repeat_inputs(leaf):
            axis = self._entry_axis(leaf, node)
            if axis is not None:
                value = self.value(node)
                name = emit.names.unique(f"{node.name}_row")
                inside.values[node] = replace(value, name=name, row_axis=axis)
                over.append((value.name, axis))
                sizes = [n for k, n in enumerate(value.sizes) if k != axis]
                ports.append(port(name, value.format, sizes))
        inside.run(leaf.body)
        body.owners, body.hint = self.emit.owners, "next"
        after = [body("Identity", body.materialized(inside.value(node))) for node in carried]
        items = [body("Identity", inside.row_values[node]) for node in rows]
        results = [*map(port, after, formats, shapes)]
        for name, (node, axis) in zip(items, rows.items(), strict=True):
            sizes = [n for k, n in enumerate(self.sizes(node)) if k != axis]
            results.append(port(name, self.format(node), sizes))
        nodes = emit.library.grouped(body.nodes, len(body.owners), {*after, *items})
        if not over or any(t in names_read(node) for node in nodes):
            over.append((emit.constant(np.arange(leaf.count)), 0))
            ports.append(port(t, INT64, ()))
        graph = helper.make_graph(nodes, leaf.index.name, ports, results)
        attributes = {
            "scan_input_axes": [axis for _, axis in over],
            "scan_input_directions": [int(leaf.is_reversed)] * len(over),
            "scan_output_axes": [*rows.values()],
            "scan_output_directions": [int(leaf.is_reversed)] * len(rows),
        }
        found = emit.several(
            "Scan",
            [*starts, *(name for name, _ in over)],
            [node.name for node in (*carried, *rows)],
            body=graph,
            num_scan_inputs=len(over),
            **{name: numbers for name, numbers in attributes.items() if any(numbers)},
        )
        for node, name in zip((*carried, *rows), found, strict=True):
            self.values[node] = WrittenValue(name, self.format(node), self.sizes(node))

    def _entry_axis(self, leaf: RepeatedAssignments, node: TensorNode) -> int | None:
        """Return the axis along which each iteration reads its own row of a tensor and nothing else
        of it; None if there is none.
        """
        if node in targets(leaf):
            return None
        outermost = [*leaves(leaf.body)]
        found: set[int] = set()
        for each in _every_leaf(leaf.body):
            if node not in reads(each):
                continue
            if not isinstance(each, Accumulate) or all(each is not one for one in outermost):
                return None
            maps = (each.projections.lhs, *each.projections.rhs)
            if any(isinstance(index, ComputedIndex) for each_map in maps for index in each_map):
                return None
            for arg, index_map in zip(each.args, each.projections.rhs, strict=True):
                if arg == NodeOperand(node):
                    axes = [k for k, i in enumerate(index_map) if leaf.index in variables(i)]
                    if len(axes) != 1 or index_map[axes[0]] != VarIndex(leaf.index):
                        return None
                    found.update(axes)
        if len(found) != 1 or self.sizes(node)[min(found)] != leaf.count:
            return None
        value = self.value(node)
        return None if value.is_spread or value.row_axis is not None else min(found)

    def _row_axis(
        self, leaf: RepeatedAssignments, node: TensorNode, read: set[TensorNode]
    ) -> int | None:
        """Return the axis of which each iteration writes one row, in turn, and reads none; None if
        there is no such axis.
        """
        inside = [each for each in _every_leaf(leaf.body) if node in targets(each)]
        is_read = node in read or any(node in reads(each) for each in _every_leaf(leaf.body))
        if is_read or len(inside) != 1 or inside[0] not in [*leaves(leaf.body)]:
            return None
        (write,) = inside
        if not isinstance(write, Accumulate) or write.combine is not BinaryOp.SECOND:
            return None
        lhs, sizes = write.projections.lhs, self.sizes(node)
        axes = [k for k, index in enumerate(lhs) if index == VarIndex(leaf.index)]
        if len(axes) != 1 or sizes[axes[0]] != leaf.count:
            return None
        extents = write.projections.extents
        for k, (index, size) in enumerate(zip(lhs, sizes, strict=True)):
            is_whole = isinstance(index, FixedIndex) and size == 1
            if isinstance(index, VarIndex) and isinstance(index.var, LoopVar):
                is_whole = (index.var.size or extents[index.var]) == size
            if k != axes[0] and not is_whole:
                return None
        return axes[0]


def _every_leaf(body: Sequence[Any]) -> Iterator[Leaf]:
    """Yield assignments and those inside of repetitions."""
    for leaf in leaves(body):
        yield leaf
        if isinstance(leaf, RepeatedAssignments):
            yield from _every_leaf(leaf.body)


def port(name: str, format: Format, sizes: Sequence[Size]) -> onnx.ValueInfoProto:
    """Return the description of a value; extents are named."""
    dims = [each if isinstance(each, int) else each.name for each in sizes]
    return helper.make_tensor_value_info(name, format.number, dims)
