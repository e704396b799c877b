"""Rendering of statements and expressions of the loop language as C."""
