"""Accumulating assignments over whole tensors: what differentiation produces and lowering consumes."""
