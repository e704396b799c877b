"""CUDA devices as a backend of ocannl-core."""

OCANNL_API = (1, 0)
