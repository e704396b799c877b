"""Passes that a backend adds to those of the core."""

from ocannl_core.passes.pipeline import NamedPass

__all__ = ["NamedPass"]
