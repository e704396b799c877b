"""Network blocks with the textbook definitions; sizes that follow from data or hidden widths are
inferred.
"""

from ocannl_core.nn.attention import attention, causal_mask, multi_head_attention
from ocannl_core.nn.convolution import conv2d, max_pool2d
from ocannl_core.nn.layers import repeat_layers
from ocannl_core.nn.normalization import batch_norm, layer_norm
from ocannl_core.nn.perceptron import dense, mlp
from ocannl_core.nn.statistics import mean, softmax, variance

__all__ = [
    "attention",
    "batch_norm",
    "causal_mask",
    "conv2d",
    "dense",
    "layer_norm",
    "max_pool2d",
    "mean",
    "mlp",
    "multi_head_attention",
    "repeat_layers",
    "softmax",
    "variance",
]
