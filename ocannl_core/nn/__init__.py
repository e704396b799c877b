"""Network blocks with the textbook definitions; sizes that follow from data or hidden widths are
inferred.
"""

from typing import NoReturn

from ocannl_core.nn.attention import attention, causal_mask, multi_head_attention
from ocannl_core.nn.convolution import avg_pool, conv, conv2d, max_pool, max_pool2d, resize
from ocannl_core.nn.dropout import dropout
from ocannl_core.nn.embedding import embedding
from ocannl_core.nn.layers import repeat_layers
from ocannl_core.nn.losses import (
    accuracy,
    binary_cross_entropy,
    cross_entropy,
    hinge,
    huber,
    kl_divergence,
    mean_squared_error,
    perplexity,
)
from ocannl_core.nn.normalization import batch_norm, layer_norm
from ocannl_core.nn.perceptron import dense, mlp
from ocannl_core.nn.statistics import mean, softmax, variance
from ocannl_core.tensor.foreign_modules import missing_name

__all__ = [
    "accuracy",
    "attention",
    "avg_pool",
    "batch_norm",
    "binary_cross_entropy",
    "causal_mask",
    "conv",
    "conv2d",
    "cross_entropy",
    "dense",
    "dropout",
    "embedding",
    "hinge",
    "huber",
    "kl_divergence",
    "layer_norm",
    "max_pool",
    "max_pool2d",
    "mean",
    "mean_squared_error",
    "mlp",
    "multi_head_attention",
    "perplexity",
    "repeat_layers",
    "resize",
    "softmax",
    "variance",
]


def __getattr__(name: str) -> NoReturn:
    raise missing_name("oc.nn", name, __all__)
