"""Pieces of networks, each written once for every framework that runs it.

A workload is a pure function or a loss to be minimised. `functions` and `steps` say what that is;
the modules of this folder beside them hold the workloads; `own`, `in_torch` and `in_jax` know how
one framework runs any of them.
"""
