"""The front of a WebAssembly module: a JavaScript module, and its types for TypeScript.

import { load } from "./model.mjs";
const model = await load();
const { loss } = model.train({ x, t });
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from math import prod

from ocannl_core.codegen.export.header import STATUS
from ocannl_core.codegen.export.model import ALIGNMENT, ExportedTensor, FileContent

EXPORTS = ("init", "cells")
"""The functions of every module, beside its own."""

_ARRAYS: Mapping[str, str] = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "int8": "Int8Array",
    "int16": "Int16Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "uint16": "Uint16Array",
    "uint32": "Uint32Array",
    "uint64": "BigUint64Array",
    "float16": "Uint16Array",
    "bfloat16": "Uint16Array",
}
"""The typed arrays of number formats; other formats of 8 bits, and packed ones, are bytes."""


_SAFE = 2**53 - 1
"""The greatest number up to which all integers are numbers of JavaScript."""


def symbols(model: FileContent) -> tuple[str, ...]:
    """Return the names that the WebAssembly module exports."""
    names = (*EXPORTS, *(each.name for each in model.functions))
    return (*(f"{model.prefix}_{name}" for name in names), "__heap_base")


def javascript(model: FileContent) -> str:
    """Return the JavaScript module."""
    functions = {
        each.name: {
            "inputs": [_argument(tensor) for tensor in each.inputs],
            "outputs": [_argument(tensor) for tensor in each.outputs],
            "indices": [
                [index.name, max(index.least, -_SAFE), min(index.most, _SAFE)]
                for index in each.indices
            ],
        }
        for each in model.functions
    }
    tensors = {
        each.name: [number, _array_of(each), prod(each.info.dims)]
        for number, each in enumerate(model.tensors)
    }
    facts = {
        "prefix": model.prefix,
        "stateBytes": model.state_bytes,
        "weightsBytes": 0 if model.are_inside else len(model.weights),
        "alignment": ALIGNMENT,
        "functions": functions,
        "tensors": tensors,
        "status": [text for _, text in STATUS],
    }
    text = json.dumps(facts)
    return _template("model.mjs.in").replace("$FACTS", text).replace("$PREFIX", model.prefix)


def declarations(model: FileContent) -> str:
    """Return the types of the JavaScript module."""
    lines = []
    for each in model.functions:
        given = [f"{tensor.name}: {_array_of(tensor)}" for tensor in each.inputs]
        given += [f"{index.name}: number" for index in each.indices]
        made = "; ".join(f"{tensor.name}: {_array_of(tensor)}" for tensor in each.outputs)
        arguments = "; ".join(given)
        lines.append(f"  {each.name}(given: {{ {arguments} }}): {{ {made} }};")
    names = " | ".join(json.dumps(each.name) for each in model.tensors)
    methods = "\n".join(lines)
    return _template("model.d.ts.in").replace("$METHODS", methods).replace("$NAMES", names)


def _array_of(tensor: ExportedTensor) -> str:
    return _ARRAYS.get(str(tensor.info.dtype), "Uint8Array")


def _argument(tensor: ExportedTensor) -> list[object]:
    """Return the name, the typed array, and the extents of an argument."""
    info = tensor.info
    if info.dtype.is_packed:
        return [tensor.name, "Uint8Array", [info.nbytes]]
    dims = [
        size if isinstance(size, int) else [size, dim]
        for size, dim in zip(tensor.sizes, info.dims, strict=True)
    ]
    return [tensor.name, _array_of(tensor), dims]


def _template(name: str) -> str:
    return files("ocannl_core.codegen.export").joinpath(name).read_text(encoding="utf-8")
