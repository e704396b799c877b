"""Tensors, slots and sessions, and the graph of definitions that tensors form."""
