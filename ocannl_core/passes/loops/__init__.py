"""Optimization passes over the loop language."""
