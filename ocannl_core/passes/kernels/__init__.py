"""Passes over plans of kernels, from an optimised loop program to code generation."""
