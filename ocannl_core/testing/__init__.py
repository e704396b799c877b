"""Test support for authors of plugins and operations.

A conformance suite for backends, random loop programs, exact comparison, `check_op`, and cases
of a corpus for `ocannl check-backend`.
"""

import sys

from ocannl_core.testing.corpora.reference_cases import CaseSkipped, ReferenceCase
from ocannl_core.testing.custom_ops import check_op

__all__ = ["CaseSkipped", "ReferenceCase", "check_op"]


def explain_assertions() -> None:
    """Let pytest, if it runs, explain failed assertions of the suites that are imported later."""
    pytest = sys.modules.get("pytest")
    suites = (f"{__name__}.{each}" for each in ("conformance", "contexts", "training"))
    if pytest is not None:
        pytest.register_assert_rewrite(*(each for each in suites if each not in sys.modules))


explain_assertions()
