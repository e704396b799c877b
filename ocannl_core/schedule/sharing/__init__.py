"""What several threads may share of a kernel, and the memory that each needs."""
