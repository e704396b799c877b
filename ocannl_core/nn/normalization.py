"""Normalization by mean and variance, or by the mean square."""

from __future__ import annotations

from numbers import Real

from ocannl_core.base.errors import UsageError
from ocannl_core.base.origin import Origin, caller_location
from ocannl_core.ir.numbers.dtypes import int32
from ocannl_core.nn.sizes import count_of_axes, positive_integers
from ocannl_core.nn.statistics import OVER_OUTPUTS, mean_and_correction
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.graph.definitions import Effect
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import is_evaluating, op
from ocannl_core.tensor.models.parameters import param, statistic
from ocannl_core.tensor.operations.activations import formats_of, widened
from ocannl_core.tensor.operations.axes import require_shapes, sized_axes_of
from ocannl_core.tensor.operations.contractions import where
from ocannl_core.tensor.operations.reductions import in_format_of, wide_mean
from ocannl_core.tensor.operations.reductions import mean_along as mean
from ocannl_core.tensor.primitives import pointwise_operations as pointwise


@op
def layer_norm(x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    """Normalize every position of the batch by itself, then scale and shift it.

    Shapes: `b|n` to `b|n`, with parameters `gamma` and `beta` of shape `n`, 1 and 0 at first. `n`
    may be any number of axes; mean and variance are over all of them.

    Args:
        epsilon: Added to the variance.
    """
    normal = _normalized(x, OVER_OUTPUTS, epsilon)
    gamma, beta = param("gamma", init=1.0), param("beta", init=0.0)
    result: Tensor = gamma * normal + beta
    require_shapes("...|..n..; ...|..n..; ..n..; ..n..", x, result, gamma, beta)
    return result


@op
def rms_norm(x: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Divide every position of the batch by the root of its mean square, then scale it.

    Shapes: `b|n` to `b|n`, with a parameter `gamma` of shape `n`, 1 at first. `n` may be any number
    of axes; the mean is over all of them.

    Args:
        epsilon: Added to the mean square.
    """
    gamma, cells = param("gamma", init=1.0), widened(x)
    scale = pointwise.recip_sqrt(mean(OVER_OUTPUTS, cells * cells) + epsilon)
    result: Tensor = gamma * pointwise.mul(cells, scale, dtype=formats_of(x)[1])
    require_shapes("...|..n..; ...|..n..; ..n..", x, result, gamma)
    return result


@op
def group_norm(x: Tensor, *, groups: int, axes: int = 2, epsilon: float = 1e-5) -> Tensor:
    """Normalize every group of channels of every example by itself, then scale and shift channels.

    Shapes: `b|l..., c` to `b|l..., c`, with parameters `gamma` and `beta` of shape `c`, 1 and 0 at
    first. The number of channels must be known.

    Args:
        groups: The number of groups, which divides the channels; mean and variance are over the
            positions and the channels of a group.
        axes: The number of axes `l...` between the batch and the channels.
        epsilon: Added to the variance.
    """
    own = sized_axes_of(x, "group_norm")
    channels = own.known_size(own.position(-1))
    rule, found = "Groups divide the channels.", f"groups={groups!r} of {channels} channels"
    (groups,) = positive_integers([groups], rule, found, "groups=1")
    if channels % groups:
        raise UsageError.at_caller(rule, found=found)
    places = "".join(f"l{k}, " for k in range(count_of_axes(axes)))
    width = channels // groups
    joined, split = f"...|{places}{width}*g<+c", f"...|{places}g, c"
    parts = pointwise.identity(x, logic=f"{joined} => {split}", values={"c": width})
    over = f"{split} => ...|{'0, ' * axes}g, 0"
    normal = pointwise.identity(
        _normalized(parts, over, epsilon), logic=f"{split} => {joined}", values={"c": width}
    )
    return _scaled_channels(normal, places)


@op
def instance_norm(x: Tensor, *, axes: int = 2, epsilon: float = 1e-5) -> Tensor:
    """Normalize every channel of every example by itself, then scale and shift it.

    Shapes: `b|l..., c` to `b|l..., c`, with parameters `gamma` and `beta` of shape `c`, 1 and 0 at
    first.

    Args:
        axes: The number of axes `l...` over which mean and variance are, as well as the batch.
        epsilon: Added to the variance.
    """
    places = "".join(f"l{k}, " for k in range(count_of_axes(axes)))
    normal = _normalized(x, f"...|{places}c => ...|{'0, ' * axes}c", epsilon)
    return _scaled_channels(normal, places)


def _normalized(x: Tensor, over: str, epsilon: float) -> Tensor:
    """Return cells minus their mean along a specification, divided by their standard deviation."""
    narrow, x = formats_of(x)[1], widened(x)
    difference = x - wide_mean(over, x)
    scale = pointwise.recip_sqrt(mean(over, difference * difference) + epsilon)
    normal: Tensor = pointwise.mul(difference, scale, dtype=narrow)
    return normal


def _scaled_channels(x: Tensor, places: str) -> Tensor:
    gamma, beta = param("gamma", init=1.0), param("beta", init=0.0)
    require_shapes(f"...|{places}c; c; c", x, gamma, beta)
    return gamma * x + beta


@op
def batch_norm(
    x: Tensor,
    *,
    shape: str = "...|..features..",
    features: str = "..features..",
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> Tensor:
    """Normalize every feature by its mean and variance, then scale and shift it.

    In training, mean and variance are computed over the batch, and `oc.train.grad_update` moves
    running statistics towards them: `running_mean`, 0 at first, and `running_variance`, 1 at first,
    as `ctx.init_params` sets them. Inside `with oc.evaluation():` the running statistics are read.

    The shape of `x` is kept. Parameters: `gamma`, 1 at first, and `beta`, 0 at first, of the shape
    of the features.

    Args:
        shape: The shape of `x`, with names of its axes.
        features: The axes that are not reduced; mean and variance are over the others. By default
            all output axes. The channels of images `b|h,w,c` are `shape="...|h, w, ..c.."` and
            `features="..c.."`.
        epsilon: Added to the variance of the batch, which is divided by the number of cells.
        momentum: The part by which running statistics move, 0 to 1. The running variance follows
            the variance of the population, estimated from the batch.

    Raises:
        UsageError: for a momentum out of range.
        ShapeError: at compilation, if a batch has one cell for each feature, and so no variance.
    """
    if not isinstance(momentum, Real) or isinstance(momentum, bool) or not 0 <= momentum <= 1:
        raise UsageError.at_caller(
            "The momentum of batch normalization is the part by which running statistics move.",
            found=f"momentum={momentum!r}",
            fix="momentum=0.1",
        )
    feature_wise = f"{shape}; {features} => {shape}"
    running_mean = statistic("running_mean")
    running_variance = statistic("running_variance", start=1.0)
    gamma, beta = param("gamma", init=1.0), param("beta", init=0.0)
    require_shapes(
        f"{shape}; {features}; {features}; {features}; {features}",
        *(x, gamma, beta, running_mean, running_variance),
    )
    stored = x.session.param_dtype
    if is_evaluating():
        center, variance = (_beside(x, each) for each in (running_mean, running_variance))
        difference = pointwise.sub(widened(x), center, logic=feature_wise)
        scale = pointwise.recip_sqrt(variance + epsilon)
        scale = scale if stored is None else pointwise.cast(scale, difference.dtype)
    else:
        statistics = f"{shape} => {features}"
        cells = widened(x)
        center = wide_mean(statistics, cells)
        difference = pointwise.sub(cells, center, logic=feature_wise)
        squares = difference * difference
        batch_variance, correction = mean_and_correction(statistics, squares)
        scale = pointwise.recip_sqrt(batch_variance + epsilon)
        count = statistic("batches", dtype=int32, is_scalar=True)
        if x.session.loop is not None:
            raise UsageError.at_caller(
                "Running statistics follow one batch for each backpropagation; a step of a loop "
                "has one batch for each of many steps.",
                found=f"oc.nn.batch_norm in the body of {x.session.loop.name}",
                fix="use oc.nn.layer_norm there, or build it inside `with oc.evaluation():`",
            )
        if x.session.recorder is None:
            found = (
                in_format_of(x, each) if stored is None else pointwise.cast(each, stored)
                for each in (center, batch_variance * correction)
            )
            follow = _follow(running_mean, running_variance, count, *found, momentum)
            center.add_effect(Effect(follow.steps, (running_mean, running_variance, count)))
    scale = scale * _beside(x, gamma)
    scaled = pointwise.mul(difference, scale, logic=feature_wise, dtype=formats_of(x)[1])
    return pointwise.add(scaled, beta, logic=feature_wise)


def _beside(x: Tensor, parameter: Tensor) -> Tensor:
    """Return a parameter, which follows the format of `x`, in the one that `x` is computed in."""
    if not x.dtype.is_narrow:
        return parameter
    parameter.note_use(Origin("batch_norm", caller_location()), x.dtype)
    return widened(parameter)


@cd
def _follow(
    running_mean: Tensor,
    running_variance: Tensor,
    count: Tensor,
    center: Tensor,
    variance: Tensor,
    momentum: float,
) -> None:
    """Move running statistics towards the mean and variance of a batch."""
    kept = 1.0 - momentum
    running_mean[:] = kept * running_mean + momentum * center
    # 0 without init_params and without a value of the user
    is_unset = pointwise.logical_and(
        pointwise.equal(count, 0), pointwise.equal(running_variance, 0.0)
    )
    before = where(is_unset, 1.0, running_variance)
    running_variance[:] = kept * before + momentum * variance
    count += 1
