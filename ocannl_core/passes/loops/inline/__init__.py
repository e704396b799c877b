"""Inlining: compute the cells of a node at each read, so that the node needs no memory.

`definition` slices the statements that compute a node and checks that they can be inlined,
`invert_indices` solves for the iteration that writes a given cell, `substitute` builds the
expression for a cell, `zeros` omits additions to zero, `readers` analyses the access patterns of
readers, `remove_definitions` removes dead definitions, and `decide` runs the pass and chooses the
nodes.
"""
