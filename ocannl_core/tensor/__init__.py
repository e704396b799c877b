"""Tensors, operations with gradients, blocks and recorded code."""

from ocannl_core.tensor.operations import operators as operators  # binds the operators of tensors
