"""Training and evaluation: two programs of one model that share its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_evaluating: ContextVar[bool] = ContextVar("ocannl_evaluation", default=False)


@contextmanager
def evaluation() -> Iterator[None]:
    """Build expressions for evaluation: dropout is the identity, and normalisation reads running
    statistics.

        with oc.evaluation():
            scores = net(images)

    Applied to the same block as in training, it shares the parameters and the statistics.
    """
    token = _is_evaluating.set(True)
    try:
        yield
    finally:
        _is_evaluating.reset(token)


def is_evaluating() -> bool:
    """Return True inside `with oc.evaluation():`."""
    return _is_evaluating.get()
