"""Translation of assignments into ONNX graphs."""
