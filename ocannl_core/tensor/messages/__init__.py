"""Errors and warnings about names and arguments of other libraries."""
