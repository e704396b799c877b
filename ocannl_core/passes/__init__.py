"""Passes: assignments to loops, loops to loops, kernels to kernels."""
