"""What authors of plugins and operations test with: a conformance suite, random loop programs,
exact comparison, `check_op`.
"""

from ocannl_core.testing.custom_ops import check_op

__all__ = ["check_op"]
