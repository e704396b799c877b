"""Gradients of operations as expressions, derived from their gradient code."""
