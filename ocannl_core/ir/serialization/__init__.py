"""Encoding of frozen dataclasses as bytes, for files and for keys: data only."""
