"""Passes that a backend adds to those of the core."""

from ocannl_core.passes.loops.pipeline import NamedPass

__all__ = ["NamedPass"]
