"""Types and helper functions that generated C mentions."""
