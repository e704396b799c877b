"""Network blocks with the textbook definitions; sizes that follow from data are inferred."""

from typing import TYPE_CHECKING

from ocannl_core.nn.attention import (
    KeyValueCache,
    attention,
    causal_mask,
    key_value_cache,
    multi_head_attention,
)
from ocannl_core.nn.attention_weights import attention_weights
from ocannl_core.tensor.graph.session import make_atomic
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand, places_of

if TYPE_CHECKING:
    from ocannl_core.nn.checkpoints import gpt2_names, llama_names, resnet_names
    from ocannl_core.nn.convolution import avg_pool, conv, conv2d, max_pool, max_pool2d, resize
    from ocannl_core.nn.embeddings import embedding, learned_positions, rotary, sinusoidal_positions
    from ocannl_core.nn.generation import Generator
    from ocannl_core.nn.images import (
        basic_block,
        bottleneck_block,
        global_avg_pool,
        lenet,
        mobilenet,
        resnet,
        separable_conv,
        vgg_block,
    )
    from ocannl_core.nn.layers import dense, dropout, mlp, repeat_layers
    from ocannl_core.nn.losses import (
        accuracy,
        binary_cross_entropy,
        confusion,
        cross_entropy,
        ctc_loss,
        hinge,
        huber,
        kl_divergence,
        mean_squared_error,
        perplexity,
    )
    from ocannl_core.nn.normalization import (
        batch_norm,
        group_norm,
        instance_norm,
        layer_norm,
        rms_norm,
    )
    from ocannl_core.nn.recurrent import gru, gru_cell, lstm, lstm_cell, rnn, rnn_cell
    from ocannl_core.nn.transformers import (
        gpt,
        transformer,
        transformer_decoder,
        transformer_encoder,
        transformer_layer,
    )

# fmt: off
__all__ = [
    "Generator", "KeyValueCache", "accuracy", "attention", "attention_weights", "avg_pool",
    "basic_block", "batch_norm", "binary_cross_entropy", "bottleneck_block", "causal_mask",
    "confusion", "conv", "conv2d", "cross_entropy", "ctc_loss", "dense", "dropout", "embedding",
    "global_avg_pool", "gpt", "gpt2_names", "group_norm", "gru", "gru_cell", "hinge", "huber",
    "instance_norm", "key_value_cache", "kl_divergence", "layer_norm", "learned_positions", "lenet",
    "llama_names", "lstm", "lstm_cell", "max_pool", "max_pool2d", "mean_squared_error",
    "mlp", "mobilenet", "multi_head_attention", "perplexity", "repeat_layers", "resize", "resnet",
    "resnet_names", "rms_norm", "rnn", "rnn_cell", "rotary", "separable_conv",
    "sinusoidal_positions", "transformer", "transformer_decoder", "transformer_encoder",
    "transformer_layer", "vgg_block",
]
# fmt: on


_MODULES = {
    "checkpoints": "gpt2_names llama_names resnet_names",
    "convolution": "avg_pool conv conv2d max_pool max_pool2d resize",
    "embeddings": "embedding learned_positions rotary sinusoidal_positions",
    "generation": "Generator",
    "images": "basic_block bottleneck_block global_avg_pool lenet mobilenet resnet separable_conv "
    "vgg_block",
    "layers": "dense dropout mlp repeat_layers",
    "losses": "accuracy binary_cross_entropy confusion cross_entropy ctc_loss hinge huber "
    "kl_divergence mean_squared_error perplexity",
    "normalization": "batch_norm group_norm instance_norm layer_norm rms_norm",
    "recurrent": "gru gru_cell lstm lstm_cell rnn rnn_cell",
    "transformers": "gpt transformer transformer_decoder transformer_encoder transformer_layer",
}
"""The names that are loaded at their first use, by module. A name that its module has, too, is not
among them: importing that module would set the attribute of this name to the module.
"""
if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), places_of(__name__, _MODULES), make_atomic)
__dir__ = list_names(globals())
make_atomic(globals(), __all__)
guard(globals(), __all__)
