"""Models as blocks."""

from __future__ import annotations

import inspect
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import ocannl_core as oc
from ocannl_core import StaticExtent, Tensor
from ocannl_onnx.bounded import OPERATORS, BoundedValue
from ocannl_onnx.errors import OnnxError
from ocannl_onnx.file_names import note_file_name
from ocannl_onnx.formats import Format, format_numbered
from ocannl_onnx.graphs import Importer, identifier
from ocannl_onnx.reading import ModelFile, all_nodes, array_of, read_model
from ocannl_onnx.rerolling import rerolled
from ocannl_onnx.values import Array, Item, Optional, Sequence, Value, sizes_of

Extents = Mapping[str, int | StaticExtent | Collection[int | StaticExtent]]
"""The size of each named axis, or all sizes of an input by its name."""


LEAST_WEIGHT = 16
"""Numbers of a constant that is a parameter; shorter ones may be scales and sizes."""


@dataclass(frozen=True)
class Port:
    """An input or output of a model.

    Attributes:
        name: The name in the file.
        format: The element type; None if the value is no tensor, or the file does not say.
        sizes: For each axis a number, the name of an extent, or None; None if the file does not
            say.
        is_optional: True if an input may be left out.
    """

    name: str
    format: Format | None
    sizes: tuple[int | str | None, ...] | None
    is_optional: bool = False

    def __str__(self) -> str:
        axes = (
            "..."
            if self.sizes is None
            else ", ".join("?" if s is None else str(s) for s in self.sizes)
        )
        return f"{self.name}: {self.format or 'no tensor'}[{axes}]"


class Model:
    """An ONNX model: a block, whose parameters are the weights in the file.

    Attributes:
        inputs: The inputs without those that have a value in the file.
        defaults: The inputs that have one, in whose place a call may give another by name.
        outputs: The results of the graph, in its order.
        weights: The initializers by name.
        parameters: The parameters made so far, by the names in the file.
    """

    def __init__(
        self,
        file: ModelFile,
        *,
        extents: Extents | None = None,
        trainable: bool = False,
        random: bool = False,
        bounds: Mapping[str, int] | None = None,
        observer: Any = None,
    ) -> None:
        self.random = random
        self.bounds = _checked_bounds(bounds or {}, file.proto)
        proto = file.proto
        self.file = file
        self.proto = proto
        self.extents = dict(extents or {})
        self.trainable = trainable
        self.observer = observer
        self.weights = _weights(file)
        self.inputs = tuple(
            _port(each) for each in proto.graph.input if each.name not in self.weights
        )
        self.defaults = tuple(
            _port(each) for each in proto.graph.input if each.name in self.weights
        )
        self.outputs = tuple(_port(each) for each in proto.graph.output)
        self.parameters: dict[str, Tensor] = {}
        self.results: list[Item] = []
        """The outputs of the last application, as values of the graph."""
        self._names = _identifiers([each.name for each in (*self.inputs, *self.defaults)])
        self._parameter_names = _identifiers(
            [name for name, value in self.weights.items() if value.is_weight]
        )
        self._block = self._make_block()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the outputs for inputs: a tensor if there is one, else a tuple.

        An input that is a tensor is read at run time; an array, a number or a list is known when
        the graph is read, as sizes have to be. Names are those in the file, also as identifiers.
        """
        given = self._given(args, named)
        tensors = {self._names[name]: value for name, value in given.items()}
        self._block(**tensors)
        found = tuple(_as_result(each) for each in self.results)
        return found[0] if len(found) == 1 else found

    def placeholders(self, **extents: Any) -> dict[str, Tensor]:
        """Return a placeholder for each input, by name.

        Args:
            extents: Sizes that the file leaves open, beside those of `load`: of a named axis,
                or all sizes of an input by its name.
        """
        known = {**self.extents, **extents}
        result: dict[str, Tensor] = {}
        for port in self.inputs:
            axes = self.sizes_of(port, known)
            if port.format is None or not port.format.carrier or axes is None:
                if port.is_optional:
                    continue
                raise OnnxError(
                    "A placeholder is made for a tensor of numbers with a known number of axes.",
                    found=str(port),
                    where=f"input {port.name!r}",
                    fix="give the model a value for this input",
                )
            result[port.name] = oc.placeholder(
                self._names[port.name], output=axes, dtype=port.format.carrier
            )
        return result

    def sizes_of(self, port: Port, extents: Extents) -> list[int | StaticExtent] | None:
        """Return the sizes of an input; None if neither the file nor the caller states any.

        Raises:
            OnnxError: if the size of an axis is open.
        """
        stated = extents.get(port.name, extents.get(self._names.get(port.name, "")))
        if isinstance(stated, Collection):
            return list(stated)
        if port.sizes is None:
            return None
        result: list[int | StaticExtent] = []
        for axis in port.sizes:
            size = axis if isinstance(axis, int) else extents.get(axis or "")
            if not isinstance(size, int | StaticExtent):
                named = f'extents={{"{axis}": 8}}, or ' if axis else ""
                raise OnnxError(
                    "The size of each axis of an input is stated.",
                    found=f"no size for {axis or 'an axis without a name'}",
                    where=f"input {port}",
                    fix=f'{named}extents={{"{port.name}": [...]}} with all sizes of the input',
                )
            result.append(size)
        return result

    def _given(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """Return the given inputs by name."""
        ports = {each.name: each for each in (*self.inputs, *self.defaults)}
        by_identifier = {value: key for key, value in self._names.items()}
        if len(args) > len(self.inputs):
            raise OnnxError(
                f"The model takes {len(self.inputs)} inputs.",
                found=f"{len(args)}",
                fix=self._usage(),
            )
        given = {port.name: value for port, value in zip(self.inputs, args, strict=False)}
        for key, value in named.items():
            name = key if key in ports else by_identifier.get(key)
            if name is None or name in given:
                raise OnnxError(
                    "Inputs of the model are given once, by their names.",
                    found=f"{key!r}{' again' if name else ''}",
                    fix=self._usage(),
                )
            given[name] = value
        missing = [e.name for e in self.inputs if e.name not in given and not e.is_optional]
        if missing:
            raise OnnxError(
                "The model is applied to all of its inputs.",
                found=f"none for {', '.join(missing)}",
                fix=self._usage(),
            )
        return given

    def _usage(self) -> str:
        return f"model({', '.join(f'{self._names[each.name]}=...' for each in self.inputs)})"

    def _make_block(self) -> Any:
        names = list(self._names.values())

        def apply(*values: Any) -> Any:
            self._apply(dict(zip(self._names, values, strict=True)))
            # the outputs, which may be strings and sequences, keep the names of their nodes
            return oc.number(0.0)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        apply.__name__ = identifier(self.proto.graph.name or "model")
        apply.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind, default=None) for name in names]
        )
        return oc.op(apply)()

    def _apply(self, given: Mapping[str, Any]) -> None:
        """Compute `results` for inputs, inside of the block."""
        ports = {each.name: each for each in (*self.inputs, *self.defaults)}
        bound: dict[str, int] = {}
        arguments: dict[str, Item] = {}
        for name, value in given.items():
            if value is not None:
                arguments[name] = self._argument(ports[name], value, bound)
            elif ports[name].is_optional:
                arguments[name] = Optional(None)
        importer = Importer(
            self.proto,
            self._weights(arguments),
            self.observer,
            self.random,
            self.bounds,
            self._weight_of_layer,
        )
        self.results = importer.run(arguments)

    def _weights(self, given: Collection[str]) -> dict[str, Value]:
        """Return the value of each initializer that the call does not give: a parameter for a
        weight. Stacked weights become parameters inside of their layers.
        """
        stacked = self.file.stacked
        return {
            name: self._weight(name) if value.is_weight and name not in stacked else copy(value)
            for name, value in self.weights.items()
            if name not in given
        }

    def _weight(self, name: str) -> Value:
        """Return an initializer as a parameter."""
        value = self.weights[name]
        parameter = self._parameter(name, self._cells_of(value))
        self._note(name, parameter)
        return Value(value.format, value.shape, array=value.array, tensor=parameter, is_weight=True)

    def _weight_of_layer(self, name: str) -> Value:
        """Return the entry of a stacked weight for the layer that is being traced."""
        value = self.weights[name]
        dtype = value.format.carrier
        entry = self._parameter(name, oc.tensor(self._cells_of(value), batch_axes=1, dtype=dtype))
        (parameter,) = entry.params.values()
        self._note(name, parameter)
        return Value.of_tensor(entry, value.format, shape=value.shape[1:])

    def _parameter(self, name: str, init: Any) -> Tensor:
        dtype = self.weights[name].format.carrier
        called = self._parameter_names[name]
        return oc.param(called, init=init, dtype=dtype, requires_grad=self.trainable)

    def _cells_of(self, value: Value) -> Array:
        assert value.array is not None
        return value.array.astype(value.format.carrier) if value.format.is_carried else value.array

    def _note(self, name: str, parameter: Tensor) -> None:
        self.parameters[name] = parameter
        note_file_name(parameter, name)

    def _argument(self, port: Port, value: Any, bound: dict[str, int]) -> Item:
        if isinstance(value, Value | Sequence | Optional):
            return value
        if isinstance(value, Tensor):
            result: Value = Value.of_tensor(
                _with_output_axes(value),
                port.format if port.format and port.format.is_carried else None,
                frozenset({port.name}),
            )
        else:
            if isinstance(value, list) and value and not np.isscalar(value[0]):
                return Sequence(Value.of_array(np.asarray(each)) for each in value)
            cells = np.asarray(value)
            if port.format is not None and cells.dtype != port.format.numpy:
                cells = cells.astype(port.format.numpy)
            result = Value.of_array(cells, port.format)
        self._check(port, result, bound)
        return result

    def _check(self, port: Port, value: Value, bound: dict[str, int]) -> None:
        """Check the format and the shape of an input."""
        if port.format is not None and value.format != port.format:
            raise OnnxError(
                "An input has the number format that the model states.",
                found=f"{value.format}, not {port.format}",
                where=f"input {port}",
                fix=f'dtype="{port.format.carrier}"',
            )
        if port.sizes is None:
            return
        fits = len(port.sizes) == value.rank
        for axis, size in zip(port.sizes, value.shape, strict=False):
            stated: Any = bound.setdefault(axis, size) if isinstance(axis, str) else axis
            if isinstance(self.extents.get(axis if isinstance(axis, str) else ""), int):
                stated = self.extents[str(axis)]
            fits = fits and (stated is None or stated == size)
        if not fits:
            others = ", ".join(f"{name} is {size}" for name, size in bound.items())
            raise OnnxError(
                "An input has the shape that the model states.",
                found=f"{list(value.shape)}{f', where {others}' if others else ''}",
                where=f"input {port}",
            )

    def of_graph(self, proto: onnx.ModelProto) -> Model:
        """Return another graph with the weights of this model."""
        return Model(
            replace(self.file, proto=proto),
            extents=self.extents,
            trainable=self.trainable,
            random=self.random,
            bounds=self.bounds,
        )

    def serialized(self) -> bytes:
        """Return the model as one message, with all weights in it.

        Raises:
            OnnxError: if that exceeds 2 GB, the greatest message of protobuf.
        """
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        for each in proto.graph.initializer:
            if each.name in self.file.mapped:
                each.raw_data = self.file.mapped[each.name].tobytes()
            elif each.data_location == onnx.TensorProto.EXTERNAL:
                cells = self.weights[each.name].array
                assert cells is not None
                each.CopyFrom(onnx.numpy_helper.from_array(np.asarray(cells), each.name))
        try:
            content: bytes = proto.SerializeToString()
        except Exception as error:  # protobuf raises its own EncodeError
            raise OnnxError("A message has less than 2 GB.", found=str(error)) from error
        return content

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<ONNX model {self.proto.graph.name}: {inputs} -> {outputs}>"


def load(
    path: str | os.PathLike[str] | onnx.ModelProto,
    *,
    extents: Extents | None = None,
    trainable: bool = False,
    random: bool = False,
    bounds: Mapping[str, int] | None = None,
    reroll: bool = False,
) -> Model:
    """Return the model in a file as a block.

        model = ocannl_onnx.load("model.onnx")
        y = model(x=oc.placeholder("x", output=[1, 3, 224, 224], dtype="float32"))

    Args:
        path: The file, or a model made by the `onnx` package.
        extents: The sizes of axes that the file names, or all sizes of an input by its name:
            numbers, or extents at run time.
        trainable: True if weights have gradients, so that training updates them.
        random: True to draw the random numbers of a model from the session's seed: no two
            implementations of ONNX draw the same, so they are refused without it.
        bounds: The greatest sizes that data may give to results of `NonZero`, `Compress`, `Unique`
            and `NonMaxSuppression`, and the greatest numbers of iterations of a `Loop` that data
            end, by the names of these nodes or of their first outputs. An output of such a size is
            a `Bounded`.
        reroll: True to load repeated layers as one loop over stacked weights, as
            `oc.nn.repeat_layers` makes one. Reading and compiling take the time of one layer, and
            the weights of all layers are one parameter.

    Raises:
        OnnxError: if the file is no valid model, or no layers repeat each other with `reroll`.
        UnsupportedOperatorError: when the model is applied, if an operator has no counterpart.
    """
    if not isinstance(path, str | os.PathLike | onnx.ModelProto):
        raise OnnxError(
            "A model is a file, or made by the package onnx.",
            found=type(path).__name__,
            fix="onnx.load_model_from_string(content)" if isinstance(path, bytes) else "",
        )
    file = ModelFile(path) if isinstance(path, onnx.ModelProto) else read_model(Path(path))
    extents = _checked_extents(extents or {}, file.proto)
    if reroll:
        file = rerolled(file, _weights(file), trainable=trainable)
    return Model(file, extents=extents, trainable=trainable, random=random, bounds=bounds)


def _with_output_axes(tensor: Tensor) -> Tensor:
    """Return a tensor with all of its axes, in their order, as output axes."""
    sizes_of(tensor)
    rows = tensor.shape.batch, tensor.shape.output, tensor.shape.input
    batch, output, input = (
        "".join(f"{kind}{k}, " for k in range(len(row.sizes)))
        for kind, row in zip("boi", rows, strict=True)
    )
    if batch or input:
        tensor = oc.einsum(f"{batch}|{input}->{output} => {batch}{output}{input}", tensor)
    return tensor


def _checked_extents(extents: Any, proto: onnx.ModelProto) -> dict[str, Any]:
    """Return sizes of axes that inputs of the model name, and of inputs."""
    ports = [_port(each) for each in proto.graph.input]
    inputs = [port.name for port in ports]
    known = {axis for port in ports for axis in port.sizes or () if isinstance(axis, str)}
    known.update(inputs, _identifiers(inputs).values())
    stated: dict[str, Any] = dict(extents) if isinstance(extents, Mapping) else {repr(extents): 0}
    for name, size in stated.items():
        if name not in known:
            raise OnnxError(
                "Extents are sizes, by the names of axes of inputs, or of inputs.",
                found=name,
                where=f"names {', '.join(sorted(known))}",
                fix='extents={"batch": 8}',
            )
        for each in size if isinstance(size, Collection) else [size]:
            is_size = isinstance(each, Integral) and not isinstance(each, bool) and int(each) >= 0
            if not (is_size or isinstance(each, StaticExtent)):
                raise OnnxError("A size is a number of positions.", found=f"{name}: {size!r}")
    return stated


def _checked_bounds(bounds: Mapping[str, int], proto: onnx.ModelProto) -> dict[str, int]:
    """Return bounds of sizes and of iterations that data decides, each for a node of the model."""
    nodes = [*all_nodes(proto.graph.node)]
    for function in proto.functions:
        nodes += all_nodes(function.node)
    names = {
        name for node in nodes if node.op_type in OPERATORS for name in (node.name, node.output[0])
    }
    for name, bound in bounds.items():
        if name not in names:
            raise OnnxError(
                f"A bound is for a node of the model, of {', '.join(OPERATORS)}.",
                found=f"bounds of {name!r}, which is none of {sorted(filter(None, names))}",
            )
        if not isinstance(bound, Integral) or isinstance(bound, bool) or not 0 < bound < 2**31:
            raise OnnxError(
                "A bound is a number of positions or iterations, at least 1.",
                found=f"{name!r}: {bound!r}",
            )
    return {name: int(bound) for name, bound in bounds.items()}


def _as_result(item: Item) -> Any:
    match item:
        case BoundedValue():
            return item.result()
        case Value():
            if not item.format.carrier:
                return item.array
            return item.tensor
        case Sequence():
            return [_as_result(each) for each in item.items]
        case Optional():
            return None if item.item is None else _as_result(item.item)


def _weights(file: ModelFile) -> dict[str, Value]:
    """Return the initializers and the weights among the constants."""
    found = file.weights()
    for each in file.proto.graph.initializer:
        value = found[each.name]
        value.is_weight = value.format.is_float and value.rank > 0 and 0 not in value.shape
    return found | _constants(file.proto.graph)


def _constants(graph: onnx.GraphProto) -> dict[str, Value]:
    """Return the weights that some programs write as constants in place of initializers."""
    result: dict[str, Value] = {}
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
            continue
        for attribute in node.attribute:
            if attribute.name == "value" and math.prod(attribute.t.dims) >= LEAST_WEIGHT:
                value = Value.of_array(
                    array_of(attribute.t, None), format_numbered(attribute.t.data_type)
                )
                value.is_weight = value.format.is_float
                if value.is_weight:
                    result[node.output[0]] = value
    return result


def _port(proto: onnx.ValueInfoProto) -> Port:
    kind = proto.type
    is_optional = kind.HasField("optional_type")
    if is_optional:
        kind = kind.optional_type.elem_type
    if not kind.HasField("tensor_type"):
        return Port(proto.name, None, None, is_optional)
    tensor = kind.tensor_type
    sizes: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        sizes = tuple(_axis(each) for each in tensor.shape.dim)
    return Port(proto.name, format_numbered(tensor.elem_type), sizes, is_optional)


def _axis(dim: Any) -> int | str | None:
    """Return the size or the name of an axis; some programs write -1 and "?" for neither."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param if dim.dim_param not in ("", "?") else None


def _identifiers(names: list[str]) -> dict[str, str]:
    """Return an identifier for each name, all different."""
    result: dict[str, str] = {}
    uses: Counter[str] = Counter()
    for name in names:
        base = identifier(name)
        uses[base] += 1
        candidate = base if uses[base] == 1 else f"{base}_{uses[base]}"
        while candidate in result.values():
            uses[base] += 1
            candidate = f"{base}_{uses[base]}"
        result[name] = candidate
    return result
