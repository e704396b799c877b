"""ONNX models as blocks of OCANNL for Python."""

from ocannl_onnx.errors import OnnxError, UnknownValueError, UnsupportedOperatorError
from ocannl_onnx.model import Model, Port, load

__all__ = ["Model", "OnnxError", "Port", "UnknownValueError", "UnsupportedOperatorError", "load"]
