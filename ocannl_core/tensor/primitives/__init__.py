"""Definition of operations: operands, specifications, and the pointwise primitives."""
