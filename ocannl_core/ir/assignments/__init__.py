"""Accumulating assignments over whole tensors: made by differentiation, consumed by lowering."""
