"""The solver: from constraints to solutions, bounds and errors."""
