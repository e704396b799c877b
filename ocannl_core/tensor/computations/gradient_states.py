"""States of gradients while the assignments of one computation are emitted.

set         assigned as a whole; a gradient that is not carries contributions of earlier code
zero        set to zero, without a contribution since
passed on   contributed to the gradients of the operands, since it was set
carried     passed on without having been set
a sum       with contributions of losses that no code has read yet
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.tensor.graph.definitions import GradientOf
from ocannl_core.tensor.graph.tensor import Tensor


@dataclass(slots=True)
class GradientStates:
    """The gradients of a computation by state."""

    passed_on: set[Tensor] = field(default_factory=set)
    carried: set[Tensor] = field(default_factory=set)
    _set: set[Tensor] = field(default_factory=set)
    _zero: set[Tensor] = field(default_factory=set)
    _losses: dict[Tensor, set[Tensor]] = field(default_factory=dict)

    def assign(self, gradient: Tensor, *, to_zero: bool = False) -> None:
        """Record that a gradient is assigned as a whole."""
        self._set.add(gradient)
        self.passed_on.discard(gradient)
        if to_zero:
            self._zero.add(gradient)

    def change(self, gradient: Tensor) -> None:
        """Record an assignment or a contribution."""
        self._zero.discard(gradient)

    def is_zero(self, gradient: Tensor) -> bool:
        """Return True if a gradient is zero in every run, as behind `oc.stop_gradient`."""
        return gradient in self._zero

    def pass_on(self, gradient: Tensor, origin: Origin) -> None:
        """Record that a gradient is passed on to the operands of an operation."""
        if gradient in self.passed_on:
            raise UsageError(
                "A gradient is passed on to operands once, when it is complete.",
                found=f"{gradient.describe()} passed on twice without being set in between",
                where=str(origin),
                fix="backpropagate the sum of the losses, or clear the gradients in between: "
                "loss.zero_grads()",
            )
        self.passed_on.add(gradient)
        if gradient not in self._set:
            self.carried.add(gradient)

    def add_losses(self, gradient: Tensor, losses: Sequence[Tensor]) -> None:
        """Record that losses have contributed to the gradient of a leaf."""
        self._losses.setdefault(gradient, set()).update(losses)

    def read(self) -> None:
        """Record that code has read a gradient, or assigned a tensor that has one."""
        self._losses.clear()

    def is_sum(self, gradient: Tensor) -> bool:
        """Return True if a gradient has contributions of losses that no code has read."""
        return gradient in self._losses

    def clear(
        self,
        tensor: Tensor,
        gradient: Tensor,
        cleared: AbstractSet[Tensor],
        roots: Sequence[Tensor],
    ) -> None:
        """Record that the gradient of a tensor is cleared for losses.

        Raises:
            UsageError: if the contribution of another loss, whose own gradient is not cleared,
                would be lost unread.
        """
        losses = [each for each in self._losses.pop(gradient, ()) if each not in cleared]
        if not losses:
            return
        one = min(losses, key=lambda each: each.id).describe()
        other = " and ".join(each.describe() for each in roots)
        raise UsageError(
            "Gradients of several losses in one computation add up; none replaces that of another "
            "one unread.",
            found=f"the gradients for {other} are cleared, and with them what {one} has "
            f"contributed to that of {tensor.describe()}",
            where=str(roots[0].origin),
            fix="to add them, write oc.train.grad_update(a) + oc.train.grad_update(b), or "
            "backpropagate the sum of the losses; to discard the first ones, clear them by name: "
            "a.zero_grads()",
        )


def no_expression(gradient: Tensor) -> UsageError:
    """Return the error for the derivative of a tensor that reads a gradient in memory."""
    assert isinstance(gradient.definition, GradientOf)
    name = "_".join(gradient.definition.tensor.label)
    return UsageError.at_caller(
        "A gradient from backpropagation is a sum in memory, to which every loss adds, and no "
        "expression of one loss: oc.gradients computes the expression, which is differentiated "
        "like any other.",
        found=f"{gradient.describe()}, on which the differentiated tensor depends",
        fix=f"(g,) = oc.gradients(loss, [{name}]), and g in place of {name}.grad",
    )
