"""Graphs turned into tensor expressions, node by node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from keyword import iskeyword
from typing import Any, NoReturn

import numpy as np
import onnx

import ocannl_core as oc
from ocannl_core import Tensor
from ocannl_onnx import bounded
from ocannl_onnx import operators as _operators  # noqa: F401  (fills the table)
from ocannl_onnx.bounded import BoundedValue
from ocannl_onnx.errors import OnnxError, UnknownValueError, UnsupportedOperatorError
from ocannl_onnx.formats import Format, format_named
from ocannl_onnx.reading import attribute_value, read_initializers
from ocannl_onnx.registry import FOLDED, MICROSOFT, STANDARD, find, versions
from ocannl_onnx.values import (
    Array,
    Item,
    Optional,
    Sequence,
    Value,
    at_end_of_step,
    inputs_of,
    product_of_extents,
    with_extents,
)

MOVED = {
    "Concat": -1,
    "Expand": 1,
    "Gather": 1,
    "Identity": 1,
    "Reshape": 1,
    "Slice": 1,
    "Split": 1,
    "Squeeze": 1,
    "Transpose": 1,
    "Unsqueeze": 1,
}
"""Operators that move cells, with the number of inputs whose cells they are; -1 for all."""

COMPARED = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
MOST_FOLDED = 1 << 16
"""Cells of the largest result that is computed when the graph is read."""
DEEPEST = 64
"""Subgraphs and functions inside each other."""
MOST_NODES = 200_000
"""Nodes of a graph with the bodies of its loops, repeated, and of its functions."""


class GraphScope:
    """The values of a graph by name; a subgraph also sees those around it.

    Attributes:
        condition: The condition, known at run time only, under which results of the graph are used;
            None if they are used in any case. Where it is false, no position of the graph is out of
            range, and no gradient leaves the graph.
    """

    def __init__(
        self, outer: GraphScope | None = None, path: str = "", condition: Tensor | None = None
    ) -> None:
        self.values: dict[str, Item] = {}
        self.outer = outer
        self.path = path
        self.depth: int = 0 if outer is None else outer.depth + 1
        around: Tensor | None = None if outer is None else outer.condition
        self.condition: Tensor | None = around if condition is None else _both(around, condition)
        self._has_condition = condition is not None
        self._outside: dict[str, Item] = {}

    def find(self, name: str) -> Item | None:
        if name in self.values:
            return self.values[name]
        if name in self._outside:
            return self._outside[name]
        found = None if self.outer is None else self.outer.find(name)
        if found is not None and self._has_condition:
            assert self.condition is not None
            found = self._outside[name] = with_gradient_under(self.condition, found)
            at_end_of_step(lambda: self._outside.pop(name, None))
        return found


class Node:
    """A node as operators see it."""

    def __init__(
        self,
        importer: Importer,
        proto: onnx.NodeProto,
        scope: GraphScope,
        version: int,
        position: int,
    ) -> None:
        self.importer = importer
        self.proto = proto
        self.scope = scope
        self.version = version
        self.position = position
        self.attributes = {each.name: each for each in proto.attribute}
        self.dependencies: frozenset[str] = frozenset()

    @property
    def operator(self) -> str:
        domain = _domain(self.proto.domain)
        return f"{domain}::{self.proto.op_type}" if domain else self.proto.op_type

    @property
    def where(self) -> str:
        """The place of the node, for messages."""
        name = f"node {self.proto.name!r}" if self.proto.name else f"node {self.position}"
        outputs = ", ".join(self.proto.output)
        inside = f" of {self.scope.path}" if self.scope.path else ""
        called = f"{self.operator} (operator set {self.version})"
        return f"{name}{inside}: {called}, which computes {outputs}"

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, tuple, array or graph."""
        proto = self.attributes.get(name)
        if proto is None:
            return default
        try:
            return attribute_value(proto)
        except (ValueError, TypeError) as error:
            raise OnnxError(
                "An attribute has the type that it states.",
                found=f"{name}: {error}",
                where=self.where,
            ) from error

    def refuse(self, reason: str, fix: str = "") -> NoReturn:
        raise UnsupportedOperatorError(self.operator, reason, where=self.where, fix=fix)

    def invalid(self, rule: str, found: str) -> NoReturn:
        raise OnnxError(rule, found=found, where=self.where)

    def known(self, value: Item | None, role: str, *, or_extents: bool = False) -> Array:
        """Return the cells of an input that decides a shape.

        Args:
            or_extents: True if sizes of axes with an extent at run time may be among them; the
                maximum stands for each.

        Raises:
            UnknownValueError: if they are known at run time only.
        """
        if not isinstance(value, Value):
            self.invalid(f"The {role} is a tensor.", f"{value!r}")
        if value.array is None:
            if value.inputs:
                has_bound = self.proto.op_type in bounded.OPERATORS
                usage = self.usage_of_bound
                raise UnknownValueError(
                    self.operator,
                    role,
                    value.inputs,
                    where=self.where,
                    fix=f"or state the greatest size: {usage}" if has_bound else "",
                )
            value.array = self.importer.evaluate(value)
        if value.extents is not None and not or_extents:
            self.refuse(
                f"its {role} follows from an extent at run time",
                "state a constant size for this axis: extents={...}",
            )
        return value.array

    def known_sizes(
        self, value: Item | None, role: str, *, or_extents: bool = False
    ) -> tuple[int, ...]:
        cells = self.known(value, role, or_extents=or_extents)
        return tuple(int(each) for each in cells.reshape(-1))

    def bound(self, *values: Value) -> int | None:
        """Return the stated bound of a size that follows from values; None if they are known, or
        the caller has stated none.
        """
        if all(each.is_known or not each.inputs for each in values):
            return None
        found = self.stated_bound
        if found is not None and self.importer.has_extents:
            self.refuse("its cells follow from an axis with an extent at run time")
        return found

    @property
    def stated_bound(self) -> int | None:
        """The bound that the caller states for the node."""
        bounds = self.importer.bounds
        return bounds.get(self.proto.name) or bounds.get(self.proto.output[0])

    @property
    def usage_of_bound(self) -> str:
        own = self.proto.name or self.proto.output[0]
        return f'load(..., bounds={{"{own}": 100}})'

    def valid_positions(self, positions: Tensor) -> Tensor:
        """Return positions; 0 in place of each where the graph's results are not used."""
        condition = self.scope.condition
        return positions if condition is None else oc.where(condition, positions, 0)

    def sized(self, tensor: Tensor, sizes: Iterable[int]) -> Tensor:
        """State the sizes of a tensor, which are then not inferred; return it."""
        if not self.importer.has_extents:
            oc.require_shape(tensor, tuple(sizes))
        return tensor

    def outputs_wanted(self) -> int:
        return len(self.proto.output)

    def wants(self, position: int) -> bool:
        """True if an output is used."""
        return len(self.proto.output) > position and bool(self.proto.output[position])

    def run_graph(
        self,
        graph: onnx.GraphProto,
        arguments: Iterable[Item],
        name: str = "",
        condition: Tensor | None = None,
    ) -> list[Item]:
        """Return the outputs of a subgraph.

        Args:
            condition: The condition, known at run time only, under which they are used.
        """
        path = f"{name or graph.name} of {self.proto.op_type}"
        scope = GraphScope(self.scope, path, condition)
        scope.values.update(
            {each.name: value for each, value in zip(graph.input, arguments, strict=False)}
        )
        return self.importer.run_graph(graph, scope)


class Importer:
    """One application of a model to values.

    Args:
        model: The model, with its weights in `weights`.
        weights: The initializers by name.
        observer: Called with each node and its outputs, for comparisons node by node.
        random: True to take random numbers of the session, which no other implementation gives.
        bounds: The greatest sizes of results whose sizes follow from data, by names of nodes or of
            their first outputs.
        weight_of_layer: Returns the entry of a stacked weight, by its name, for the layer of
            `oc.nn.repeat_layers` that is being traced.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, Value],
        observer: Any = None,
        random: bool = False,
        bounds: Mapping[str, int] | None = None,
        weight_of_layer: Callable[[str], Value] | None = None,
    ) -> None:
        self.weight_of_layer = weight_of_layer
        self.random = random
        self.bounds = dict(bounds or {})
        self.has_extents = False
        self.model = model
        self.weights = weights
        self.observer = observer
        self.opsets: dict[str, int] = {
            _domain(each.domain): each.version for each in model.opset_import
        }
        self.functions = {
            (_domain(each.domain), each.name, each.overload): each for each in model.functions
        }
        self.count = 0
        self._fresh = itertools.count()

    def run(self, arguments: Mapping[str, Item]) -> list[Item]:
        """Return the outputs of the model's graph."""
        scope = GraphScope()
        initializers = {each.name for each in self.model.graph.initializer} | {
            each.values.name for each in self.model.graph.sparse_initializer
        }
        scope.values.update({k: v for k, v in self.weights.items() if k in initializers})
        scope.values.update(arguments)
        self.has_extents = any(
            isinstance(each, Value) and not each.is_known and each.tensor.shape.extents
            for each in arguments.values()
        )
        return self.run_graph(self.model.graph, scope)

    def run_graph(self, graph: onnx.GraphProto, scope: GraphScope) -> list[Item]:
        if scope.depth > DEEPEST:
            raise OnnxError(
                f"Subgraphs and functions are at most {DEEPEST} levels deep.",
                found=f"more, at {scope.path}",
                where=scope.path,
                fix="look for a function that calls itself",
            )
        if scope.depth:
            scope.values.update(read_initializers(graph, None))
        self._run_nodes(graph.node, scope)
        return [self._output(each.name, scope, graph.name) for each in graph.output]

    def _output(self, name: str, scope: GraphScope, graph: str) -> Item:
        found = scope.find(name)
        if found is None:
            raise OnnxError(
                "Each output of a graph is computed by a node, or is an input or an initializer.",
                found=f"no node computes {name!r}",
                where=f"the outputs of the graph {graph!r}",
            )
        return found

    def _run_nodes(self, protos: Iterable[onnx.NodeProto], scope: GraphScope) -> None:
        for position, proto in enumerate(_in_order(list(protos), scope)):
            self.count += 1
            if self.count > MOST_NODES:
                raise OnnxError(
                    f"A model has at most {MOST_NODES} nodes, with loops unrolled.",
                    found="more",
                    where=scope.path or "the graph",
                )
            outputs = self._run_node(proto, scope, position)
            for name, output in zip(proto.output, outputs, strict=False):
                if name:
                    if name in scope.values:
                        raise OnnxError(
                            "A name of a graph is computed once.",
                            found=f"{name!r} again",
                            where=f"node {proto.name or position}: {proto.op_type}",
                        )
                    scope.values[name] = output

    def _run_node(self, proto: onnx.NodeProto, scope: GraphScope, position: int) -> list[Item]:
        domain = _domain(proto.domain)
        function = self.functions.get((domain, proto.op_type, proto.overload))
        version = self.opsets.get(domain)
        node = Node(self, proto, scope, version or 0, position)
        arguments: list[Item | None] = []
        for name in proto.input:
            value = scope.find(name) if name else None
            if name and value is None:
                node.invalid(
                    "An input of a node is computed before it, or given to the graph.",
                    f"nothing computes {name!r}",
                )
            arguments.append(value)
        if function is not None:
            return self._call(function, node, arguments)
        if version is None:
            node.invalid(
                "A model states the version of each operator set that it uses.",
                f"no version for the domain {domain!r}",
            )
        if not proto.input and len(proto.output) == 1 and proto.output[0] in self.weights:
            return [self.weights[proto.output[0]]]  # a constant that is a parameter
        node.dependencies = inputs_of(arguments)
        try:
            found = self._fold(node, domain, arguments)
            if found is None:
                found = self._apply(node, domain, version, arguments)
        except oc.OcannlError as error:
            if isinstance(error, OnnxError):
                raise
            raise OnnxError(
                f"{node.operator} is applied to operands that it takes.",
                found=str(error),
                where=node.where,
            ) from error
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            ZeroDivisionError,
            OverflowError,
            AttributeError,
            ArithmeticError,
        ) as error:
            raise OnnxError(
                f"{node.operator} has inputs and attributes that the standard allows.",
                found=f"{type(error).__name__}: {error}",
                where=node.where,
            ) from error
        results = self._items(node, found)
        if self.observer is not None:
            self.observer(node, results)
        return results

    def _fold(self, node: Node, domain: str, arguments: list[Item | None]) -> Any:
        """Return the outputs of a node whose inputs are all known and small; else None."""
        function = FOLDED.get((domain, node.proto.op_type))
        if function is None:
            return None
        arrays: list[Array | None] = []
        for each in arguments:
            if each is None:
                arrays.append(None)
            elif isinstance(each, Value) and each.array is not None and not each.is_weight:
                arrays.append(each.array)
            else:
                return None
        if sum(each.size for each in arrays if each is not None) > MOST_FOLDED:
            return None
        open_sizes = [
            at
            for at, each in enumerate(arguments)
            if isinstance(each, Value) and each.extents is not None
        ]
        moved = MOVED.get(node.proto.op_type, -1)
        if any(at >= moved >= 0 for at in open_sizes):
            return None  # the sizes of the result follow from an extent at run time
        with np.errstate(all="ignore"):
            found = function(node, *arrays)
        if open_sizes:
            return self._with_extents(node, function, arguments, arrays, found)
        return found

    def _with_extents(
        self,
        node: Node,
        function: Any,
        arguments: list[Item | None],
        arrays: list[Array | None],
        found: Any,
    ) -> Any:
        """Mark the results that are extents at run time, or follow from some."""
        several = found if isinstance(found, tuple | list) else [found]
        values = [Value.of_array(each) for each in several]
        moved = MOVED.get(node.proto.op_type)
        if moved is None:
            marks = [_marks(node.proto.op_type, arguments, each.array) for each in values]
        else:
            data = [
                each.extents
                if isinstance(each, Value) and each.extents is not None
                else None
                if array is None
                else np.full(array.shape, None, object)
                if moved == -1 or at < moved
                else array
                for at, (each, array) in enumerate(zip(arguments, arrays, strict=True))
            ]
            result = function(node, *data)
            marks = list(result) if isinstance(result, tuple | list) else [result]
        for at, (value, mark) in enumerate(zip(values, marks, strict=True)):
            with_extents(value, np.asarray(mark, object))
            value.computed = partial(self._number, node, arguments, at)
        return values

    def _number(self, node: Node, arguments: list[Item | None], position: int) -> Tensor:
        """Return an output of a node, computed at run time from extents."""
        applied = self._apply(node, _domain(node.proto.domain), node.version, arguments)
        found = self._items(node, applied)[position]
        assert isinstance(found, Value)
        return found.tensor

    def _apply(self, node: Node, domain: str, version: int, arguments: list[Item | None]) -> Any:
        found = find(domain, node.proto.op_type, version)
        if found is not None and any(isinstance(each, BoundedValue) for each in arguments):
            return bounded.apply(node, domain, found, arguments)
        if found is not None:
            result = found.function(node, *arguments)
            broadcasts = version >= 7 or domain != STANDARD
            if found.is_pointwise and broadcasts and isinstance(result, Tensor):
                shapes = [each.shape for each in arguments if isinstance(each, Value)]
                return Value.of_tensor(node.sized(result, np.broadcast_shapes(*shapes)))
            return result
        body = _standard_body(node, domain, version, arguments)
        if body is not None:
            return self._call(body, node, arguments)
        ranges = versions(domain, node.proto.op_type)
        if ranges:
            shown = ", ".join(f"{a} to {b}" if b else f"{a} and later" for a, b in ranges)
            node.refuse(f"it is implemented for operator sets {shown}")
        if domain == MICROSOFT or onnx.defs.has(node.proto.op_type, domain):
            node.refuse("it has no implementation here")
        node.refuse(
            f"the standard has no such operator in the domain {domain!r}",
            "add it to the model as a function of that name and domain, which "
            "onnx.helper.make_function makes of other operators",
        )

    def _call(
        self, function: onnx.FunctionProto, node: Node, arguments: list[Item | None]
    ) -> list[Item]:
        """Return the outputs of a function."""
        scope = GraphScope(None, f"function {function.name}")
        scope.depth = node.scope.depth + 1
        scope.condition = node.scope.condition
        if scope.depth > DEEPEST:
            node.invalid(
                f"Functions call each other at most {DEEPEST} levels deep.",
                "a function that calls itself",
            )
        given: list[Item | None] = [*arguments, *[None] * (len(function.input) - len(arguments))]
        for name, value in zip(function.input, given, strict=False):
            if value is not None:
                scope.values[name] = value
        missing = {
            name for name, value in zip(function.input, given, strict=False) if value is None
        }
        attributes = dict(node.attributes)
        for default in function.attribute_proto:
            attributes.setdefault(default.name, default)
        opsets = self.opsets
        self.opsets = {**opsets, **{_domain(e.domain): e.version for e in function.opset_import}}
        try:
            self._run_nodes([_bound(each, attributes, missing) for each in function.node], scope)
        finally:
            self.opsets = opsets
        results: list[Item] = []
        for name, wanted in itertools.zip_longest(function.output, node.proto.output, fillvalue=""):
            if name and wanted:
                results.append(self._output(name, scope, f"function {function.name}"))
            elif name:
                results.append(Value.of_array(np.zeros(0, np.float32)))
        return results

    def _items(self, node: Node, found: Any) -> list[Item]:
        """Return the results of an operator as values."""
        several = found if isinstance(found, tuple | list) else (found,)
        results: list[Item] = []
        for position, each in enumerate(several):
            match each:
                case Value():
                    # values that depend on no input may still be made from an operator's inputs
                    if each.array is None:
                        each.inputs |= node.dependencies
                    result: Item = each
                case Sequence() | Optional():
                    result = each
                case Tensor():
                    result = Value.of_tensor(each, inputs=node.dependencies)
                case None:
                    result = Value.of_array(np.zeros(0, np.float32))
                case _:
                    result = Value.of_array(each)
            if (
                isinstance(result, Value)
                and not isinstance(result, BoundedValue)
                and result.array is None
                and position < len(node.proto.output)
            ):
                self._name(result, node, position)
            results.append(result)
        if len(results) < sum(map(bool, node.proto.output)):
            node.refuse(f"it computes {len(results)} of {len(node.proto.output)} outputs")
        return results

    def _name(self, value: Value, node: Node, position: int) -> None:
        """Give a tensor the name of its node."""
        if value.tensor.is_placeholder or value.tensor.is_parameter:
            return
        name = node.proto.name if node.proto.name and position == 0 else node.proto.output[position]
        value.tensor.relabel((identifier(name),))

    def evaluate(self, value: Value) -> Array:
        """Return the cells of a tensor that depends on no input, by running its code."""
        context = oc.Context()
        tensor = oc.primitives.identity(value.tensor)
        context.init_params(tensor)
        context.compile(oc.train.forward(tensor), keep=[tensor])()
        cells: Array = np.asarray(context[tensor])
        return cells.reshape(value.shape).astype(value.format.numpy)

    def fresh(self, name: str) -> str:
        return f"{name}_{next(self._fresh)}"


def _same(v: Any, v1: Any) -> None:
    v[:] = v1


def _gradient_under(g: Any, g1: Any, v2: Any) -> None:
    g1 += oc.where(v2, g, 0.0)


_under = oc.define_operation("under", forward=_same, gradient=_gradient_under, logic=".")
"""The first operand; a gradient flows to it where the second one, a condition, holds."""


def with_gradient_under(condition: Tensor, item: Item) -> Item:
    """Return a value to which a gradient flows only where a condition holds: infinite slopes of
    results that are not used have no part in it.
    """
    if isinstance(item, Value) and item.has_gradient:
        return item.with_tensor(lambda x: _under(x, condition))
    return item


def _both(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else oc.logical_and(one, other, dtype="bool")


def identifier(name: str) -> str:
    """Return a name of a graph as an identifier."""
    cleaned = "".join(each if each.isascii() and each.isalnum() else "_" for each in name).strip(
        "_"
    )
    cleaned = cleaned or "value"
    if iskeyword(cleaned):
        cleaned += "_"
    return cleaned if cleaned[0].isalpha() else f"t_{cleaned}"


def _domain(name: str) -> str:
    return STANDARD if name == "ai.onnx" else name


def _in_order(protos: list[onnx.NodeProto], scope: GraphScope) -> Iterable[onnx.NodeProto]:
    """Check that nodes are in topological order, as the standard demands; return them.

    Raises:
        OnnxError: if a node reads what a later one computes, which is also how a cycle looks.
    """
    makers = {name: at for at, each in enumerate(protos) for name in each.output if name}
    for at, each in enumerate(protos):
        for name in each.input:
            if name and makers.get(name, -1) >= at and scope.find(name) is None:
                later = protos[makers[name]]
                raise OnnxError(
                    "Nodes stand in topological order, without cycles.",
                    found=f"{name!r} is read before {later.op_type} {later.name!r} computes it",
                    where=f"node {each.name or at}: {each.op_type}",
                )
    return protos


def _bound(
    proto: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto], missing: set[str]
) -> onnx.NodeProto:
    """Return a node of a function's body with the attributes of the call."""
    bound = onnx.NodeProto()
    bound.CopyFrom(proto)
    del bound.attribute[:]
    for each in proto.attribute:
        if each.ref_attr_name:
            if each.ref_attr_name in attributes:
                own = bound.attribute.add()
                own.CopyFrom(attributes[each.ref_attr_name])
                own.name = each.name
        else:
            own = bound.attribute.add()
            own.CopyFrom(each)
            for graph in (own.g, *own.graphs):
                inner = [_bound(node, attributes, missing) for node in graph.node]
                del graph.node[:]
                graph.node.extend(inner)
    for position, name in enumerate(bound.input):
        if name in missing:
            bound.input[position] = ""
    return bound


def _marks(operator: str, arguments: list[Item | None], found: Array | None) -> Array:
    """Return the marks of the numbers that a node computes: None where they are the same for every
    size from 0 to the maximum, an extent where they are it, a product of extents, True elsewhere.

        Where([False, True], [5, 5], [n, 1])  -->  [n, None]
        Equal([n, n + 1], [-1, -1])           -->  [None, True]
        Div([n * 4, n], [n, 2])               -->  [None, True]
    """
    assert found is not None
    operands = [each for each in arguments if isinstance(each, Value) and each.array is not None]
    cells = np.broadcast_arrays(*(each.array for each in operands if each.array is not None))
    marks = np.broadcast_arrays(
        *(np.full(each.shape, None) if each.extents is None else each.extents for each in operands)
    )
    result = np.full(found.shape, True, object)
    if cells[0].shape == found.shape and len(operands) == len(arguments):
        for at in np.ndindex(found.shape):
            numbers, own = [each[at] for each in cells], [each[at] for each in marks]
            result[at] = _mark(operator, numbers, own, found[at])
    return result


def _mark(operator: str, numbers: list[Any], marks: list[Any], found: Any) -> Any:
    """Return the mark of a number that is computed from others, by their maxima and marks."""
    if all(each is None for each in marks):
        return None
    match operator:
        case "Cast" if found.dtype.kind in "iu" and numbers[0] == found:
            return marks[0]
        case "Where" if marks[0] is None:
            return marks[1] if numbers[0] else marks[2]
        case "Add" | "Sub" if marks[1] is None and numbers[1] == 0:
            return marks[0]
        case "Add" if marks[0] is None and numbers[0] == 0:
            return marks[1]
        case "Mul" | "Div" if found.dtype.kind in "iu":
            return product_of_extents(numbers, marks, divides=operator == "Div")
        case _ if operator in COMPARED and not any(each is True for each in marks):
            lows = [n if mark is None else 0 for n, mark in zip(numbers, marks, strict=True)]
            return None if numbers[0] < lows[1] or numbers[1] < lows[0] else True
    return True


def _standard_body(
    node: Node, domain: str, version: int, arguments: list[Item | None]
) -> onnx.FunctionProto | None:
    """Return the body by which the standard defines an operator; None if it has none."""
    try:
        schema = onnx.defs.get_schema(node.proto.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        body = schema.get_function_with_opset_version(
            max((v for v in schema.function_opset_versions if v <= version), default=version)
        )
    elif schema.has_context_dependent_function:
        types = []
        for each in arguments:
            proto = onnx.TypeProto()
            if isinstance(each, Value):
                proto = onnx.helper.make_tensor_type_proto(each.format.number, each.shape)
            types.append(proto.SerializeToString())
        usable = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        body = schema.get_context_dependent_function_with_opset_version(
            max(usable, default=version), node.proto.SerializeToString(), types
        )
    else:
        return None
    if not body:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(body)
    if not any(_domain(each.domain) == STANDARD for each in function.opset_import):
        standard = version if domain == STANDARD else node.importer.opsets.get(STANDARD)
        function.opset_import.add(domain="", version=standard or onnx.defs.onnx_opset_version())
    for name in schema.attributes:
        default = schema.attributes[name].default_value
        if default.name and name not in node.attributes and default.type:
            function.attribute_proto.add().CopyFrom(default)
    return function


def carried(name: str) -> Format:
    return format_named(name)
