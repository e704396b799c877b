"""The formulas of optimizers, each for one parameter.

Where PyTorch has the optimizer, names, defaults and results are as in `torch.optim`, but for the
learning rate, which has no default.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, ClassVar

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.ir.numbers.dtypes import float64
from ocannl_core.tensor.computations.computation import trained_by_name
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import declare
from ocannl_core.tensor.operations.contractions import einsum, where
from ocannl_core.tensor.primitives.pointwise_operations import (
    cast,
    equal,
    maximum,
    minimum,
    sign,
    sqrt,
)
from ocannl_core.train.guards import SUM, state_format
from ocannl_core.train.optimizer import Optimizer, Update, check_ranges, in_format
from ocannl_core.train.update_formulas import pointwise_formula


class _Elementwise(Optimizer):
    """A formula for each cell by itself."""

    is_elementwise: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class _Moments(_Elementwise):
    """A formula with moving averages of the gradient and of its square."""

    betas: tuple[float, float] = (0.9, 0.999)
    """The decays of both."""
    eps: float = 1e-8
    """A number added to a root."""


@dataclass(frozen=True, eq=False, kw_only=True)
class _Decoupling(_Moments):
    """A formula with moments whose weight decay may be no part of the gradient."""

    decoupled_weight_decay: bool = False

    @property
    def is_decoupled(self) -> bool:  # type: ignore[override]
        return self.decoupled_weight_decay


@dataclass(frozen=True, eq=False, kw_only=True)
class SGD(_Elementwise):
    """Stochastic gradient descent with momentum.

    Attributes:
        momentum: The fraction of the previous step that is kept; 0 keeps no state.
        dampening: The fraction of the gradient that momentum leaves out, after the first update.
        nesterov: True for Nesterov momentum.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_nesterov(self.nesterov, self.momentum, self.dampening)

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        g = update.g
        if self.momentum == 0:
            return g
        moved = self.momentum * update.state("momentum") + (1.0 - self.dampening) * g
        if self.dampening:
            moved = where(equal(update.t, 1.0), g, moved)
        buffer = update.keep("momentum", moved)
        return g + self.momentum * buffer if self.nesterov else buffer


@dataclass(frozen=True, eq=False, kw_only=True)
class RMSprop(_Elementwise):
    """Steps divided by the root of a moving average of squared gradients (Hinton, 2012).

    Attributes:
        alpha: The decay of the average.
        eps: A number added to the root.
        momentum: The fraction of the previous step that is kept.
        centered: True to subtract the square of the average gradient: an estimate of the variance.
    """

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        g = update.g
        square = update.average("square", g * g, self.alpha)
        if self.centered:
            mean = update.average("mean", g, self.alpha)
            square = square - mean * mean
        step = g / (sqrt(square) + self.eps)
        if self.momentum == 0:
            return step
        return update.keep("momentum", self.momentum * update.state("momentum") + step)


@dataclass(frozen=True, eq=False, kw_only=True)
class Adagrad(_Elementwise):
    """Steps divided by the root of the sum of all squared gradients (Duchi et al., 2011).

    Attributes:
        lr_decay: The learning rate is divided by `1 + lr_decay * (t - 1)`.
        initial_accumulator_value: The sum before the first update.
        eps: A number added to the root.
    """

    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        g = update.g
        total = update.keep("square_sum", update.state("square_sum") + g * g)
        step = g / (sqrt(total + self.initial_accumulator_value) + self.eps)
        return step / (1.0 + self.lr_decay * (update.t - 1.0)) if self.lr_decay else step


@dataclass(frozen=True, eq=False, kw_only=True)
class Adadelta(_Elementwise):
    """Steps in the unit of the parameter, from averages of squared gradients and squared steps
    (Zeiler, 2012).

    Attributes:
        rho: The decay of both averages.
        eps: A number added to both.
    """

    rho: float = 0.9
    eps: float = 1e-6

    def direction(self, update: Update) -> Any:
        g = update.g
        square = update.average("square", g * g, self.rho)
        step = g * (sqrt(update.state("step_square") + self.eps) / sqrt(square + self.eps))
        update.average("step_square", step * step, self.rho)
        return step


@dataclass(frozen=True, eq=False, kw_only=True)
class Adam(_Moments):
    """Adaptive moments (Kingma and Ba, 2015), with L2 weight decay.

    Attributes:
        betas: The decays of the averages of the gradient and of its square.
        eps: A number added to the root.
        amsgrad: True for the largest average of the square so far, in place of the last one.
    """

    amsgrad: bool = False

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        first, second = self.betas
        mean = update.average("first_moment", update.g, first)
        square = update.average("second_moment", update.g * update.g, second)
        if self.amsgrad:
            square = update.keep("largest", maximum(update.state("largest"), square))
        # one division for each cell: powers of the corrections are shared by all parameters
        root = sqrt(square) * update.correction(second, power=-0.5) + self.eps
        return mean * update.correction(first, power=-1.0) / root


@dataclass(frozen=True, eq=False, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Attributes are as for `Adam`.
    """

    weight_decay: Any = 0.01
    is_decoupled: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Adamax(_Moments):
    """Adam with the largest magnitude, decayed, in place of the root of the average square (Kingma
    and Ba, 2015).

    Attributes:
        betas: The decays of the average gradient and of the largest magnitude.
        eps: A number added to the magnitudes.
    """

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        g = update.g
        mean = update.average("first_moment", g, self.betas[0])
        size = maximum(g, -g) + self.eps
        largest = update.keep("largest", maximum(self.betas[1] * update.state("largest"), size))
        return mean / update.correction(self.betas[0]) / largest


@dataclass(frozen=True, eq=False, kw_only=True)
class NAdam(_Decoupling):
    """Adam with Nesterov momentum (Dozat, 2016).

    Attributes:
        betas: The decays of the averages of the gradient and of its square.
        eps: A number added to the root.
        momentum_decay: The speed at which the momentum approaches the first beta.
        decoupled_weight_decay: True for decay that is no part of the gradient.
    """

    momentum_decay: float = 4e-3

    @pointwise_formula
    def direction(self, update: Update) -> Any:
        first, second = self.betas
        now = self._momentum(update.t)
        after = self._momentum(update.t + 1.0)
        earlier = where(equal(update.t, 1.0), 1.0, update.state("momentum_product"))
        product = update.keep("momentum_product", earlier * now)
        mean = update.average("first_moment", update.g, first)
        square = update.average("second_moment", update.g * update.g, second)
        root = sqrt(square / update.correction(second)) + self.eps
        own = update.g * ((1.0 - now) / (1.0 - product))
        return (own + mean * (after / (1.0 - product * after))) / root

    def _momentum(self, t: Any) -> Any:
        return self.betas[0] * (1.0 - 0.5 * 0.96 ** (t * self.momentum_decay))


@dataclass(frozen=True, eq=False, kw_only=True)
class RAdam(_Decoupling):
    """Adam that corrects the variance of its first steps (Liu et al., 2020).

    Attributes:
        betas: The decays of the averages of the gradient and of its square.
        eps: A number added to the root.
        decoupled_weight_decay: True for decay that is no part of the gradient.
    """

    def direction(self, update: Update) -> Any:
        first, second = self.betas
        mean = update.average("first_moment", update.g, first) / update.correction(first)
        square = update.average("second_moment", update.g * update.g, second)
        limit = 2.0 / (1.0 - second) - 1.0
        t = cast(update.t, float64)  # large numbers cancel
        power = second**t
        length = limit - 2.0 * t * (power / (1.0 - power))
        known = maximum(length, 5.0)
        ratio = (known - 4.0) * (known - 2.0) * limit / (known * (limit - 4.0) * (limit - 2.0))
        rectified, scale = (cast(each, update.p.dtype) for each in (length > 5.0, sqrt(ratio)))
        root = sqrt(update.correction(second)) / (sqrt(square) + self.eps)
        return mean * where(rectified, scale * root, 1.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rprop(_Elementwise):
    """Steps that follow the sign of the gradient alone, for full batches (Riedmiller and Braun,
    1993).

    Attributes:
        etas: The factors of a step after a change of sign, and after none.
        step_sizes: The smallest and the largest step.
    """

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)

    def direction(self, update: Update) -> Any:
        agreement = update.g * update.state("previous")
        return sign(update.keep("previous", where(agreement < 0.0, 0.0, update.g)))

    def moved(self, update: Update) -> Any:
        agreement = update.g * update.state("previous")
        is_first = equal(update.t, 1.0)
        size = where(is_first, update.rate, update.state("step_size"))
        shorter, longer = size * self.etas[0], size * self.etas[1]
        size = where(agreement > 0.0, longer, where(agreement < 0.0, shorter, size))
        smallest, largest = self.step_sizes
        size = update.keep("step_size", minimum(maximum(size, smallest), largest))
        return update.p - self.direction(update) * size


@dataclass(frozen=True, eq=False, kw_only=True)
class Lion(_Elementwise):
    """The sign of an interpolation between momentum and gradient (Chen et al., 2023).

    Weight decay is decoupled.

    Attributes:
        betas: The weight of the momentum in the interpolation, and its decay.
    """

    betas: tuple[float, float] = (0.9, 0.99)
    is_decoupled: ClassVar[bool] = True

    def direction(self, update: Update) -> Any:
        first, second = self.betas
        step = sign(first * update.state("momentum") + (1.0 - first) * update.g)
        update.average("momentum", update.g, second)
        return step


@dataclass(frozen=True, eq=False, kw_only=True)
class LAMB(Adam):
    """Adam with steps scaled to the norm of each parameter, for large batches (You et al., 2020).

    Where the norm of the parameter or of its step is 0, the step is not scaled.
    """

    is_elementwise: ClassVar[bool] = False

    eps: float = 1e-6
    trust: float = 0.0
    """The weight decay inside of the scaled step."""

    def direction(self, update: Update) -> Any:
        p = update.p
        step = super().direction(update) + self.trust * p
        norm, length = sqrt(einsum(SUM, p * p)), sqrt(einsum(SUM, step * step))
        is_scaled = equal(norm * length, 0.0)
        return step * where(is_scaled, 1.0, norm / length)


@dataclass(frozen=True, eq=False, kw_only=True)
class Muon(Adam):
    """Momentum made orthogonal by Newton-Schulz iterations (Jordan et al., 2024).

    Parameters without input axes are updated by AdamW. Weight decay is decoupled.

    Attributes:
        momentum: The fraction of the previous step that is kept.
        nesterov: True for Nesterov momentum.
        ns_steps: The number of iterations.
        ns_coefficients: The coefficients of the quintic polynomial.
        others: The factor of the learning rate for parameters without input axes.
    """

    is_elementwise: ClassVar[bool] = False

    weight_decay: Any = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    others: float = 1.0
    is_decoupled: ClassVar[bool] = True

    def direction(self, update: Update) -> Any:
        output, inputs = matrix_sizes(update.p)
        if inputs is None or output is None:
            return self.others * super().direction(update)
        buffer = update.average("momentum", update.g, self.momentum)
        g = self.momentum * buffer + (1.0 - self.momentum) * update.g if self.nesterov else buffer
        x = self._orthogonalized(g, is_wide=output <= inputs)
        return max(1.0, output / inputs) ** 0.5 * x

    def _orthogonalized(self, g: Any, *, is_wide: bool) -> Any:
        a, b, c = self.ns_coefficients
        x = g / maximum(sqrt(einsum(SUM, g * g)), 1e-7)
        for _ in range(self.ns_steps):
            gram = x @ x.T if is_wide else x.T @ x
            poly = b * gram + c * (gram @ gram)
            x = a * x + (poly @ x if is_wide else x @ poly)
        return x


@dataclass(frozen=True, eq=False, kw_only=True)
class Adafactor(Optimizer):
    """Squared gradients as an outer product of their means over inputs and over outputs (Shazeer
    and Stern, 2018). Weight decay is decoupled. The learning rate of update t is at most `1 /
    sqrt(t)`, but for the decay.

    Attributes:
        beta2_decay: The decay of the averages at update t is `1 - t**beta2_decay`.
        eps: A number below which a squared gradient counts as this number, and the smallest root
            mean square of a parameter that scales its steps.
        d: The largest root mean square of a step.
    """

    beta2_decay: float = -0.8
    eps: tuple[float, float] = (1e-14, 1e-3)
    d: float = 1.0
    is_decoupled: ClassVar[bool] = True

    def direction(self, update: Update) -> Any:
        p, g, t = update.p, update.g, update.t
        output, inputs = matrix_sizes(p)
        decay = 1.0 - t**self.beta2_decay
        square = g * g
        if output is None or inputs is None:
            variance = maximum(update.average("square", square, decay), self.eps[0])
        else:
            rows = einsum("...|..i..->..o.. => ..o..", square) / inputs
            columns = einsum("...|..i..->..o.. => ..i..->0", square) / output
            rows = update.average("rows", rows, decay)
            columns = update.average("columns", columns, decay)
            total = einsum(SUM, rows) / output
            variance = rows * columns / maximum(total, self.eps[0])
            variance = maximum(variance, self.eps[0])
        step = g / sqrt(variance)
        count = (output or 1) * (inputs or 1)
        excess = sqrt(einsum(SUM, step * step) / count) / self.d
        size = sqrt(einsum(SUM, p * p) / count)
        return step * (maximum(size, self.eps[1]) / maximum(excess, 1.0))

    def moved(self, update: Update) -> Any:
        p = update.p if update.decay is None else update.p - update.rate * update.decay
        return p - minimum(update.rate, 1.0 / sqrt(update.t)) * self.direction(update)


@dataclass(frozen=True, eq=False, kw_only=True)
class ScheduleFreeAdamW(_Moments):
    """AdamW with averaged iterates in place of a decaying learning rate (Defazio et al., 2024).

    The parameters are the points at which gradients are taken; the averages, which evaluation uses,
    are in `averages`. Weight decay is decoupled: a part of the steps of the iterates.

    Attributes:
        betas: The interpolation between averages and iterates, and the decay of the squares.
        eps: A number added to the root.
    """

    is_decoupled: ClassVar[bool] = True

    def direction(self, update: Update) -> Any:
        square = update.average("second_moment", update.g * update.g, self.betas[1])
        step = update.g / (sqrt(square) + self.eps)
        return step if update.decay is None else step + update.decay

    def moved(self, update: Update) -> Any:
        p, (first, second) = update.p, self.betas
        rate = update.rate * sqrt(update.correction(second))
        is_first = equal(update.t, 1.0)
        largest = update.keep("largest_rate", maximum(update.state("largest_rate"), rate))
        weight = largest * largest
        total = update.keep("weight_sum", update.state("weight_sum") + weight)
        iterate = where(is_first, p, update.state("iterate"))
        iterate = update.keep("iterate", iterate - rate * self.direction(update))
        mean = where(is_first, p, update.state("average"))
        share = where(equal(total, 0.0), 0.0, weight / total)  # before the first positive rate
        mean = update.keep("average", mean * (1.0 - share) + iterate * share)
        update.publish_average("average")
        return first * mean + (1.0 - first) * iterate


def matrix_sizes(p: Tensor) -> tuple[int | None, int | None]:
    """Return the numbers of output and of input cells of a parameter, None for a row without axes.

    The shape is closed.
    """
    _ = p.info
    output, inputs = (row.sizes for row in (p.shape.output, p.shape.input))
    return prod(output) if output else None, prod(inputs) if inputs else None


def _check_nesterov(nesterov: bool, momentum: float, dampening: float = 0.0) -> None:
    """Refuse Nesterov momentum where there is none, or dampened one, which has no meaning."""
    if nesterov and (momentum == 0 or dampening != 0):
        raise UsageError.at_caller(
            "Nesterov momentum is momentum without dampening.",
            found=f"nesterov=True with momentum={momentum!r} and dampening={dampening!r}",
            fix="momentum=0.9, nesterov=True",
        )


@cd
def sgd_step(
    p: Tensor,
    *,
    learning_rate: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    """Update one parameter against its gradient.

    Steps of a parameter of less than 32 bits, and the momentum, are computed and kept in float32.

    Args:
        learning_rate: The step size; a placeholder of one cell can be changed between calls.
        momentum: The fraction of the previous step that is kept; 0 keeps no state.
        weight_decay: The multiple of the parameter added to its gradient.
        nesterov: True for Nesterov momentum.

    Raises:
        UsageError: if the tensor has no gradient.
    """
    if p.grad is None:
        raise UsageError.at_caller(
            "A step follows the gradient of a tensor.",
            found=f"{p!r}, which has none",
            fix="oc.param(...), or requires_grad=True where it is made",
        )
    check_ranges(
        "sgd_step", learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    _check_nesterov(nesterov, momentum)
    dtype = state_format(p)
    delta = declare("sgd_delta", dtype=dtype)
    delta[:] = in_format(p.grad, dtype) + weight_decay * in_format(p, dtype)
    if momentum > 0:
        velocity = declare("sgd_momentum", dtype=dtype)
        velocity[:] = momentum * velocity + delta
        if nesterov:
            delta += momentum * velocity
        else:
            delta[:] = velocity
    p -= learning_rate * delta


@cd
def sgd_update(
    loss: Tensor,
    *,
    learning_rate: float | Tensor,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    params: Iterable[Tensor] | None = None,
) -> None:
    """Update every parameter that gradients of a loss flow into, or the parameters in `params=`;
    for the other arguments see `sgd_step`.

    Raises:
        UsageError: if no gradient flows into any parameter.
    """
    for p in trained_by_name(loss, params, "oc.train.sgd_update").values():
        sgd_step(
            p,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
