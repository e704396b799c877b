"""The version of the library, and the end of its old names."""

__version__ = "0.1.0"

GONE = "0.3"
"""The version in which old names stop working; `docs/reference/releases.md` states the policy."""
