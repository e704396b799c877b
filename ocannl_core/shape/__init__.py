"""Shape inference: terms, constraints, the solver, and index maps of solved shapes."""
