"""Fusion over shared rows: flash attention, online softmax, softmax, layer norm.

    s = q @ k.T                       for each block of rows:
    m = max(s); e = exp(s - m)   -->      scores, statistics and weights of these rows alone
    o = (e / sum(e)) @ v                  o of these rows

Analysis, over nests:
- `choose` groups neighbours over the same rows; `recognize_attention` finds the two products of an
  attention, by `trace`, as data: `flash_attention`.
- `masks` states what a causal mask hides; `backward` and `recompute_matrices` let
  the backward pass compute matrices again.

Emission on a processor, a block of rows at a time: `apply`, with `skipped_columns`, `buffer_reuse`
and `hoist_packing`. On thread blocks, a row at a time: `on_blocks`, `private_rows`; a tile of rows
and columns at a time, with running statistics: `fuse_attention`, then `attention_tiles`,
`attention_kernel`, `attention_thread`, `online_softmax` and `tile_copies`.
"""
