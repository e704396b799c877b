"""Fusion over shared rows: softmax, layer norm, and attention on processors.

    s = q @ k.T                       for each block of rows:
    m = max(s); e = exp(s - m)   -->      scores, statistics and weights of these rows alone
    o = (e / sum(e)) @ v                  o of these rows

- `choose` groups neighbors over the same rows; `recompute_matrices` lets the group of the backward
  pass compute matrices again.
- Emission on a processor, a block of rows at a time: `apply`, with `skipped_columns` (by `masks`)
  and `buffer_reuse`.
- Emission on thread blocks, a row at a time: `on_blocks`, `private_rows`.

Attention on thread blocks runs a tile of rows and columns at a time: `passes.kernels.attention`.
"""
