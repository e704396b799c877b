"""Passes over plans of kernels, from an optimized loop program to code generation."""
