"""Passes that a backend adds to the core's."""

from ocannl_core.passes.loops.pipeline import NamedPass

__all__ = ["NamedPass"]
