"""Optimisation passes over the loop language."""
