"""Flash attention on thread blocks: two products with an online softmax between them as one kernel.

    s = q @ k.T                       for each tile of rows, for each tile of columns:
    m = max(s); e = exp(s - m)   -->      scores in registers; running maxima and sums of the rows
    o = (e / sum(e)) @ v                  o, corrected where a maximum has changed

- Analysis, over nests: `recognize_attention` finds the two products by `trace`, as data
  (`fused_attention`); `backward` finds the steps of gradients that compute scores again.
- The pass: `fuse_attention`, with the tile of `attention_tiles`.
- Emission: `attention_kernel`, with `attention_thread` (the tile of a thread), `online_softmax`
  (statistics), `tile_copies` (copies to shared memory) and `causal_mask` (tiles left out).
"""
