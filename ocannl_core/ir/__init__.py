"""The languages: number formats and primitives, indices, assignments, loops, kernels."""
