"""Workloads that are one call of NumPy, into allocated memory."""

from __future__ import annotations

from functools import partial

import numpy as np

from workloads.functions import Attempts, Contender, Function, TrainingStep, repeat


def contenders(work: Function | TrainingStep) -> Attempts:
    """Return the workload, if NumPy does it."""
    if isinstance(work, TrainingStep) or work.numpy is None:
        return {}
    return {"numpy": partial(_function, work)}


def _function(work: Function) -> Contender:
    assert work.numpy is not None
    arguments = work.arrays()
    out = np.empty_like(work.numpy(**arguments, out=None))
    return Contender(repeat(partial(work.numpy, **arguments, out=out)), lambda: [out])
