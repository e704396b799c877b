"""From an optimized loop program to kernels and the order in which they run, stage by stage."""
