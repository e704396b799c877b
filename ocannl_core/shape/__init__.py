"""Shape inference: terms, constraints, the solver, and the index maps that follow from solved
shapes.
"""
