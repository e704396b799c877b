"""Rendering of tensor cores, WGMMA and asynchronous copies, which CUDA alone has."""
