"""The kernel language: nodes, nests of independent cells, and analyses on them."""
