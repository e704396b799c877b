"""Inlining: computing the cells of a node where they are read, so that the node needs no memory.

`computation` says what the definition of a node is and what can be one, `solve` finds the iteration
that writes a given cell, `substitute` builds the expression for it, `zeros` leaves out additions to
zero, `readers` tells how a reader goes through the cells, `remove` takes out what nothing needs,
and `decide` runs through a routine and chooses.
"""
