"""Test support for authors of plugins and operations.

A conformance suite for backends, random loop programs, exact comparison, and `check_op`.
"""

from ocannl_core.testing.custom_ops import check_op

__all__ = ["check_op"]
