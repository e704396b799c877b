"""Row fusion: kernels over the same rows run together, row by row."""
