"""Pieces of networks, each written once for every framework that runs it.

A workload is a pure function or a loss to be minimised. `functions` says what that is; the modules
of this folder beside it hold the workloads; `own`, `in_torch`, `in_jax`, `in_tinygrad`,
`in_pytensor` and `in_numpy` know how one framework runs any of them.
"""
