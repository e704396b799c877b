"""Errors about assignments outside of recorded code."""

from __future__ import annotations

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import caller_location


def unrecorded_assignment(target: str, loop: str | None) -> UsageError:
    """Return the error for an assignment that nothing records.

    Args:
        target: A description of the tensor.
        loop: The name of the loop whose step is being traced; None outside of one.
    """
    where = str(caller_location() or "")
    if loop is not None:
        return UsageError(
            "A step of a loop computes tensors and assigns none.",
            found=f"an assignment to {target} in the body of {loop}",
            where=where,
            fix="return the new value as the carry, or as a value of the step",
        )
    return UsageError(
        "Assignments are recorded inside functions decorated with @oc.cd.",
        found=f"an assignment to {target} outside of one",
        where=where,
        fix="put the assignment into a function decorated with @oc.cd and compile its result",
    )
