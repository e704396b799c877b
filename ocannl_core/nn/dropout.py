"""Dropout, with other random numbers in each step of training."""

from __future__ import annotations

from numbers import Real

from ocannl_core.base.errors import UsageError
from ocannl_core.ir.numbers.dtypes import float32, int64
from ocannl_core.tensor.computations.computation import require_tensor
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Effect
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import is_evaluating
from ocannl_core.tensor.models.parameters import session_statistic
from ocannl_core.tensor.operations.axes import share_shape
from ocannl_core.tensor.operations.contractions import where
from ocannl_core.tensor.operations.random import Counter, uniform


def dropout(x: Tensor, *, rate: float = 0.5, counter: Counter | None = None) -> Tensor:
    """Return cells set to 0 with probability `rate`, and the others divided by `1 - rate`.

    Inside `with oc.evaluation():` it is `x`. The random numbers follow from the seed of the
    session, from the place of the call among its random tensors, and from the counter.

    Args:
        x: The cells; the shape is kept.
        rate: The probability, from 0 to 1; at 1 every cell is 0.
        counter: A number that selects the random numbers. By default it is the number of
            backpropagations so far, a statistic of the session, so that each step drops other
            cells.

    Raises:
        UsageError: if the rate is no probability.
    """
    require_tensor(x, "oc.nn.dropout")
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0 <= rate <= 1:
        raise UsageError.at_caller(
            "The rate of dropout is the probability of a cell to become 0.",
            found=f"rate={rate!r}",
            fix="rate=0.1",
        )
    if rate == 0 or is_evaluating():
        return x
    if rate == 1:
        return where(x == x, 0.0, 0.0 * x)
    steps = session_statistic("dropout_step", dtype=int64) if counter is None else None
    drawn = uniform(counter=steps if steps is not None else counter, dtype=float32)
    share_shape(x, drawn)
    is_kept = drawn >= rate
    result: Tensor = where(is_kept, x * (1.0 / (1.0 - rate)), 0.0)
    if steps is not None and result.session.recorder is None:
        result.add_effect(_count(result.session, steps))
    return result


def _count(session: sessions.Session, steps: Tensor) -> Effect:
    """Return the effect that counts a step, the same one for all calls of a session."""
    key = "dropout_step", "effect"
    if key not in session.applications:
        loop, session.loop = session.loop, None  # it follows the backpropagation of all its steps
        try:
            effect = Effect(_increment(steps).steps, (steps,))
            session.undo_log.put(session.applications, key, effect)
        finally:
            session.loop = loop
    found: Effect = session.applications[key]
    return found


@cd
def _increment(count: Tensor) -> None:
    count += 1
