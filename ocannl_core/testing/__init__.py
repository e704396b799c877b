"""Test support for authors of plugins and operations.

A conformance suite for backends, random loop programs, exact comparison, `check_op`, and cases
of a corpus for `ocannl check-backend`.
"""

from ocannl_core.testing.corpora.reference_cases import CaseSkipped, ReferenceCase
from ocannl_core.testing.custom_ops import check_op

__all__ = ["CaseSkipped", "ReferenceCase", "check_op"]
