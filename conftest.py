"""Profiles of Hypothesis: the same examples in every run, new ones on request.

`HYPOTHESIS_PROFILE=explore make test` draws new examples; its failures are defects like any other.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
