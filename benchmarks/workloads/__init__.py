"""Pieces of networks, each written once for every framework that runs it.

A workload is a pure function or a loss to be minimized. `functions` defines both; the other modules
of this folder hold the workloads; `own`, `in_torch`, `in_jax`, `in_tinygrad`, `in_pytensor` and
`in_numpy` run them, one framework each.
"""
