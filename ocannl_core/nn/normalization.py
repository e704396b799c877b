"""Normalisation by mean and variance."""

from __future__ import annotations

from ocannl_core.nn.statistics import OVER_OUTPUTS, mean
from ocannl_core.tensor.network_blocks import op
from ocannl_core.tensor.parameters import param
from ocannl_core.tensor.pointwise_operations import add, mul, recip_sqrt, sub
from ocannl_core.tensor.required_shapes import require_shapes
from ocannl_core.tensor.tensor import Tensor


@op
def layer_norm(x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Normalise every position of the batch by itself, then scale and shift it.

    Shapes: `b|n` to `b|n`, with parameters `gamma` and `beta` of shape `n`, 1 and 0 at first. `n`
    may be any number of axes; mean and variance are over all of them.

    Args:
        x: The features.
        epsilon: Added to the variance.
    """
    difference = x - mean(OVER_OUTPUTS, x)
    scale = recip_sqrt(mean(OVER_OUTPUTS, difference * difference) + epsilon)
    gamma, beta = param("gamma", init=1.0), param("beta", init=0.0)
    require_shapes("...|..n..; ..n..; ..n..", x, gamma, beta)
    result: Tensor = gamma * (difference * scale) + beta
    return result


@op
def batch_norm(
    x: Tensor,
    *,
    axes: str = "...|..features..",
    features: str = "..features..",
    epsilon: float = 1e-5,
) -> Tensor:
    """Normalise every feature by its mean and variance in this batch, then scale and shift it.

    Shapes: those of `x`, with parameters `gamma` and `beta` of the shape of the features, 1 and 0
    at first.

    Args:
        x: The features.
        axes: Names of the axes of `x`.
        features: The axes that are not reduced; mean and variance are over the others. By default
            all output axes. The channels of images `b|h,w,c` are `axes="...|h, w, ..c.."` and
            `features="..c.."`.
        epsilon: Added to the variance, which is that of the batch, divided by the number of cells.
    """
    statistics, feature_wise = f"{axes} => {features}", f"{axes}; {features} => {axes}"
    center = mean(statistics, x)
    difference = sub(x, center, logic=feature_wise)
    scale = recip_sqrt(mean(statistics, difference * difference) + epsilon)
    gamma, beta = param("gamma", init=1.0), param("beta", init=0.0)
    require_shapes(f"{axes}; {features}; {features}", x, gamma, beta)
    scaled = mul(difference, scale * gamma, logic=feature_wise)
    result: Tensor = add(scaled, beta, logic=feature_wise)
    return result
