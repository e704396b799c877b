"""ONNX models as blocks of OCANNL for Python, and expressions as ONNX models."""

import ocannl_core as oc
from ocannl_onnx.errors import (
    NoCounterpartError,
    OnnxError,
    UnknownValueError,
    UnsupportedOperatorError,
)
from ocannl_onnx.model import Model, Port, load
from ocannl_onnx.saving import save

__all__ = [
    "Model",
    "NoCounterpartError",
    "OnnxError",
    "Port",
    "UnknownValueError",
    "UnsupportedOperatorError",
    "load",
    "save",
]

oc.custom.skip_lines_of(__file__)
