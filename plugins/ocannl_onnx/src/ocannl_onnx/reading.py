"""Models read from files: attributes, initializers, external data."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from ocannl_onnx.errors import OnnxError
from ocannl_onnx.formats import Format, format_numbered
from ocannl_onnx.values import Array, Value
from ocannl_onnx.wire import MalformedError, without_weights


def attribute_value(proto: AttributeProto) -> Any:
    """Return the value of an attribute as Python's or NumPy's."""
    match proto.type:
        case AttributeProto.FLOAT:
            return proto.f
        case AttributeProto.INT:
            return proto.i
        case AttributeProto.STRING:
            return proto.s.decode("utf-8", "replace")
        case AttributeProto.TENSOR:
            return array_of(proto.t, None)
        case AttributeProto.GRAPH:
            return proto.g
        case AttributeProto.FLOATS:
            return tuple(proto.floats)
        case AttributeProto.INTS:
            return tuple(proto.ints)
        case AttributeProto.STRINGS:
            return tuple(each.decode("utf-8", "replace") for each in proto.strings)
        case AttributeProto.TYPE_PROTO:
            return proto.tp
        case _:
            raise ValueError(f"an attribute of type {proto.type}")


def array_of(proto: onnx.TensorProto, folder: Path | None, data: Array | None = None) -> Array:
    """Return the cells of a tensor in a file.

    Args:
        folder: The folder of the model, for external data.
        data: The bytes of the cells, where they were cut out of the message.

    Raises:
        OnnxError: if its sizes and its data contradict each other, or external data are missing or
            outside of the folder.
    """
    where = f"tensor {proto.name!r}"
    found = format_numbered(proto.data_type)
    if found is None:
        raise OnnxError(
            "A tensor has an element type of the standard.",
            found=f"element type {proto.data_type}",
            where=where,
        )
    dims = tuple(proto.dims)
    if any(each < 0 for each in dims):
        raise OnnxError("Sizes are not negative.", found=f"{list(dims)}", where=where)
    count = math.prod(dims)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _external(proto, found, dims, folder, where)
    if data is not None or proto.HasField("raw_data"):
        length = len(proto.raw_data) if data is None else len(data)
        needed = (count * found.bits + 7) // 8
        if found.name == "string" or length != needed:
            raise OnnxError(
                "The data of a tensor are as many bytes as its sizes say.",
                found=f"{length} bytes for {list(dims)} of {found}, which take {needed}",
                where=where,
            )
        if data is not None and found.bits >= 8:
            return data.view(found.numpy).reshape(dims)
        if data is None and found.bits >= 8:
            return np.frombuffer(proto.raw_data, found.numpy).reshape(dims)
        if data is not None:
            inner = onnx.TensorProto(dims=dims, data_type=found.number, raw_data=data.tobytes())
            return _unpacked(inner)
    elif found.name == "string":
        if len(proto.string_data) != count:
            raise OnnxError(
                "A tensor of strings has as many as its sizes say.",
                found=f"{len(proto.string_data)} for {list(dims)}",
                where=where,
            )
        texts = np.empty(count, object)
        texts[:] = [each.decode("utf-8", "replace") for each in proto.string_data]
        return texts.reshape(dims)
    elif count > 2**31:
        raise OnnxError(
            "The data of a tensor are as many as its sizes say.", found=f"{list(dims)}", where=where
        )
    try:
        return _unpacked(proto)
    except Exception as error:
        raise OnnxError(
            "The data of a tensor are as many as its sizes say.", found=str(error), where=where
        ) from error


def _unpacked(proto: onnx.TensorProto) -> Array:
    """Return the cells of a tensor whose data are in a form of their own."""
    cells: Array = numpy_helper.to_array(proto)
    return cells


def _external(
    proto: onnx.TensorProto, found: Format, dims: tuple[int, ...], folder: Path | None, where: str
) -> Array:
    """Return cells in a file beside the model, mapped."""
    entries = {each.key: each.value for each in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise OnnxError(
            "External data are in files beside the model.",
            found=f"{location!r}, of a model that was not read from a file",
            where=where,
            fix="load the model by its path",
        )
    path = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise OnnxError(
            "External data are in the folder of the model.", found=repr(location), where=where
        )
    try:
        offset = int(entries.get("offset", "0"))
        needed = (math.prod(dims) * found.bits + 7) // 8
        length = int(entries.get("length", str(needed)))
        size = os.stat(path).st_size if path.is_file() else -1
    except (ValueError, OSError) as error:
        raise OnnxError(
            "External data have a place in a file.", found=f"{entries}: {error}", where=where
        ) from error
    if size < 0:
        raise OnnxError("External data are in a file.", found=f"no file {location!r}", where=where)
    if length != needed or offset < 0 or offset + needed > size:
        raise OnnxError(
            "External data are as many bytes as the sizes say, inside of their file.",
            found=f"{length} bytes at {offset} of {size}; {list(dims)} of {found} take {needed}",
            where=where,
        )
    if found.name == "string":
        raise OnnxError("Strings are in the model itself.", found=location, where=where)
    if needed == 0:
        return np.zeros(dims, found.numpy)
    cells = np.memmap(path, np.uint8, "r", offset, (needed,))
    if found.bits < 8:
        inner = onnx.TensorProto(dims=dims, data_type=found.number, raw_data=cells.tobytes())
        return _unpacked(inner)
    return cells.view(found.numpy).reshape(dims)


def read_initializers(
    graph: onnx.GraphProto, folder: Path | None, mapped: Mapping[str, Array] = MappingProxyType({})
) -> dict[str, Value]:
    """Return the initializers of a graph; the data of those in `mapped` are not in the message."""
    values: dict[str, Value] = {}
    for proto in graph.initializer:
        cells = array_of(proto, folder, mapped.get(proto.name))
        values[proto.name] = Value.of_array(cells, format_numbered(proto.data_type), proto.name)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        values[name] = Value.of_array(dense(sparse, folder), name=name)
    return values


def dense(sparse: onnx.SparseTensorProto, folder: Path | None) -> Array:
    """Return the cells of a sparse tensor, zeros included."""
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    dims = tuple(sparse.dims)
    where = f"sparse tensor {sparse.values.name!r}"
    count = math.prod(dims)
    if any(each < 0 for each in dims) or count > 2**28:
        raise OnnxError(
            "A sparse tensor has at most 2**28 cells.", found=f"{list(dims)}", where=where
        )
    flat = np.zeros(count, values.dtype)
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    if places.size and (places.min() < 0 or places.max() >= count):
        raise OnnxError("Positions are inside of the tensor.", found=f"{list(dims)}", where=where)
    flat[places] = values
    return flat.reshape(dims)


@dataclass(frozen=True)
class ModelFile:
    """A model as it was read.

    Attributes:
        proto: The message, without the data of large initializers.
        folder: The place of external data; None for a model that was not read from a file.
        mapped: The data cut out of the message, as maps of the file, by the names of initializers.
        stacked: The initializers that have the weights of several layers along their first axis.
    """

    proto: onnx.ModelProto
    folder: Path | None = None
    mapped: Mapping[str, Array] = field(default_factory=dict)
    stacked: frozenset[str] = frozenset()

    def weights(self) -> dict[str, Value]:
        """Return the initializers."""
        return read_initializers(self.proto.graph, self.folder, self.mapped)


def read_model(path: Path) -> ModelFile:
    """Return the model in a file, whose large weights are mapped.

    Raises:
        OnnxError: if the file cannot be read, or is no model.
    """
    try:
        if path.stat().st_size == 0:
            raise OnnxError("A model has a graph.", found="an empty file", where=str(path))
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise OnnxError(
            "A model is read from a file.", found=str(error), where=str(path)
        ) from error
    try:
        content, places = without_weights(memoryview(data.data))
    except MalformedError as error:
        raise OnnxError(
            "A model file is a message of the ONNX format.", found=str(error), where=str(path)
        ) from error
    mapped = {name: data[start:end] for name, (start, end) in places.items()}
    return ModelFile(parse_model(content, str(path)), path.parent, mapped)


def parse_model(content: bytes, where: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf raises its own DecodeError, and others for hostile texts
        raise OnnxError(
            "A model file is a message of the ONNX format.", found=str(error), where=where
        ) from error
    if not model.HasField("graph"):
        raise OnnxError("A model has a graph.", found="none", where=where)
    for name in _names(model):
        if not isinstance(name, str):  # protobuf leaves texts that are no UTF-8 as bytes
            raise OnnxError("Names are texts in UTF-8.", found=repr(name), where=where)
    return model


def _names(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield all names in a model."""
    graphs, nodes = [model.graph], [each for f in model.functions for each in f.node]
    for opset in model.opset_import:
        yield opset.domain
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
        yield from (*function.attribute, *(each.domain for each in function.opset_import))
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield graph.name
            for port in (*graph.input, *graph.output):
                yield port.name
                yield from (each.dim_param for each in port.type.tensor_type.shape.dim)
            for tensor in graph.initializer:
                yield tensor.name
                yield from (text for e in tensor.external_data for text in (e.key, e.value))
            nodes += graph.node
        else:
            node = nodes.pop()
            yield from (node.name, node.op_type, node.domain, node.overload)
            yield from (*node.input, *node.output)
            for attribute in node.attribute:
                yield from (attribute.name, attribute.ref_attr_name)
                graphs += [attribute.g, *attribute.graphs]
