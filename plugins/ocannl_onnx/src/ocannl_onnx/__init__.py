"""ONNX models as blocks of OCANNL for Python."""

from ocannl_onnx.errors import NoCounterpartError, OnnxError, UnknownValueError, UnsupportedError
from ocannl_onnx.model import Model, Port, load
from ocannl_onnx.saving import save

__all__ = [
    "Model",
    "NoCounterpartError",
    "OnnxError",
    "Port",
    "UnknownValueError",
    "UnsupportedError",
    "load",
    "save",
]
