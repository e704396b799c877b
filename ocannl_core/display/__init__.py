"""Printing: tensors as tables, expressions as trees, both as text and as HTML for notebooks."""
