"""The interface of ONNX for backends, as its test suites and its scoreboard use it."""

from __future__ import annotations

from collections.abc import Sequence as PythonSequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

import ocannl_core as oc
from ocannl_onnx.bounded import BoundedValue
from ocannl_onnx.errors import OnnxError, UnknownValueError
from ocannl_onnx.formats import format_of
from ocannl_onnx.model import Model, load
from ocannl_onnx.values import Item, Optional, Sequence, Value


class PreparedModel(BackendRep):  # type: ignore[misc]
    """A model that runs with arrays.

    An input whose values decide shapes becomes a constant of the compiled code. The results are
    compiled once for each such constant, and for the shapes of the other inputs.

    Attributes:
        constants: The inputs that the last run read when the graph was built.
    """

    def __init__(self, model: Model, backend: str | None) -> None:
        self.model = model
        self.backend = backend
        self.constants: frozenset[str] = frozenset()

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        if isinstance(inputs, list | tuple):
            ports = (*self.model.inputs, *self.model.defaults)
            if len(inputs) > len(ports):
                raise OnnxError(f"The model takes {len(ports)} inputs.", found=f"{len(inputs)}")
            given = {port.name: value for port, value in zip(ports, inputs, strict=False)}
        else:
            given = dict(inputs)
        given = {name: value for name, value in given.items() if value is not None}
        while True:
            try:
                return self._run(given)
            except UnknownValueError as error:
                if not error.inputs - self.constants:
                    raise
                self.constants |= error.inputs

    def _run(self, given: dict[str, Any]) -> tuple[Any, ...]:
        with oc.Session(), oc.settings.overrides(allow_nan=True):
            cells: list[tuple[oc.Tensor, Any]] = []
            arguments = {
                name: self._argument(name, value, cells, name not in self.constants)
                for name, value in given.items()
            }
            self.model._block = self.model._make_block()
            self.model(**arguments)
            results = self.model.results
            tensors = [each for item in results for each in _tensors(item)]
            # a result that is an input or a weight is copied
            copies = [oc.primitives.identity(each) for each in tensors]
            found: list[Any] = []
            if copies:
                context = oc.Context(self.backend) if self.backend else oc.Context()
                code = sum(
                    (oc.train.forward(each) for each in copies[1:]), oc.train.forward(copies[0])
                )
                routine = context.compile(code, keep=copies)
                for copy in copies:
                    context.init_params(copy)
                for tensor, value in cells:
                    with suppress(oc.LinkError):  # the results do not depend on it
                        context[tensor] = value
                routine()
                found = [np.asarray(context[each]) for each in copies]
            remaining = iter(found)
            return tuple(_result(item, remaining) for item in results)

    def _argument(
        self, name: str, value: Any, cells: list[tuple[oc.Tensor, Any]], is_tensor: bool
    ) -> Any:
        if isinstance(value, list):
            return Sequence(self._argument(name, each, cells, is_tensor) for each in value)
        array = np.asarray(value)
        found = format_of(array)
        if found is None or not found.carrier or not is_tensor:
            return Value.of_array(array, found)
        label = f"input_{len(cells)}"
        tensor = oc.placeholder(label, output=list(array.shape), dtype=found.carrier)
        cells.append((tensor, array.astype(found.carrier) if found.is_carried else array))
        return Value.of_tensor(tensor, found, frozenset({name}), array.shape)


class OcannlBackend(Backend):  # type: ignore[misc]
    """The backends of OCANNL; subclasses state one by name."""

    backend: str | None = None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        return PreparedModel(load(model), cls.backend)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: PythonSequence[Any],
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        arrays = [np.asarray(each) for each in inputs]
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(node.input, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        return cls.run_model(onnx.helper.make_model(graph), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class InterpreterBackend(OcannlBackend):
    """The reference interpreter."""

    backend = "interp"


class CBackend(OcannlBackend):
    """Compiled C."""

    backend = "cpu_c"


def _tensors(item: Item) -> list[oc.Tensor]:
    match item:
        case BoundedValue():
            result = item.result()
            return [result.cells, result.count]
        case Value():
            return [] if item.is_known else [item.tensor]
        case Sequence():
            return [each for inner in item.items for each in _tensors(inner)]
        case Optional():
            return [] if item.item is None else _tensors(item.item)


def _result(item: Item, remaining: Any) -> Any:
    match item:
        case BoundedValue():
            cells, count = next(remaining), int(next(remaining))
            return np.take(cells, range(count), axis=item.axis).astype(item.format.numpy)
        case Value():
            if item.array is not None:
                return item.array
            return next(remaining).reshape(item.shape).astype(item.format.numpy)
        case Sequence():
            return [_result(each, remaining) for each in item.items]
        case Optional():
            return None if item.item is None else _result(item.item, remaining)


prepare = OcannlBackend.prepare
run_model = OcannlBackend.run_model
run_node = OcannlBackend.run_node
supports_device = OcannlBackend.supports_device
