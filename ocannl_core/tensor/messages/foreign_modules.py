"""Names in the modules of NumPy and PyTorch, and their counterparts here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module

from ocannl_core.base.errors import MissingAttributeError

_SEED = "oc.Session(seed=7) fixes all random numbers of a program"
_MODULE = "a network is a function of tensors, or a block with parameters of its own: @oc.op"
_EXACT = "oc.nn has functions in place of classes of layers: oc.nn.{} makes its parameters"

FOREIGN: dict[str, str] = {
    **dict.fromkeys(["concatenate", "cat", "vstack"], "oc.concat([x, y], axis=0)"),
    "hstack": "oc.concat([x, y], axis=1)",
    **dict.fromkeys(["array", "asarray", "as_tensor", "from_numpy"], "oc.tensor(array)"),
    "empty": "oc.zeros((2, 3))",
    "empty_like": "oc.zeros_like(x)",
    "identity": "oc.eye(3) is a matrix; oc.primitives.identity copies cells",
    "rand": "oc.uniform()",
    "randn": "oc.normal()",
    **dict.fromkeys(["randint", "integers"], "oc.cast(10 * oc.uniform(), 'int32') is below 10"),
    **dict.fromkeys(["manual_seed", "seed", "key", "PRNGKey", "default_rng"], _SEED),
    "grad": "(g,) = oc.gradients(loss, [w])",
    "value_and_grad": "oc.train.grad_update(loss) computes loss and w.grad; "
    "(g,) = oc.gradients(loss, [w]) is an expression",
    "vmap": "an operation applies to all batch axes: oc.placeholder('x', batch=[32], output=[8])",
    **dict.fromkeys(["absolute", "fabs"], "oc.abs(x)"),
    "outer": "oc.einsum('i; j => i,j', x, y)",
    **dict.fromkeys(["allclose", "isclose"], "np.allclose(ctx[x], ctx[y]), after a routine"),
    "cond": "oc.where(c, a, b)",
    "view": "oc.reshape(x, 6, 4), or x.reshape(6, 4)",
    "nan": "math.nan: Python numbers are operands",
    "inf": "math.inf: Python numbers are operands",
    "pi": "math.pi: Python numbers are operands",
    **dict.fromkeys(
        ["nonzero", "argwhere", "unique", "masked_select"],
        "the number of results would depend on cells: read them with ctx[x] on the host",
    ),
    **dict.fromkeys(["swish", "SiLU"], "oc.silu(x)"),
    "no_grad": "gradients are computed by oc.train.grad_update alone; oc.evaluation() switches "
    "dropout off",
    **dict.fromkeys(["jit", "compile"], "ctx.compile(oc.train.forward(y)) compiles"),
    "device": "a context is a device: oc.Context('cpu_c')",
    "cuda": "a context is a device: oc.Context('cuda')",
    "float": "oc.float32",
    "double": "oc.float64",
    "long": "oc.int64",
    "int": "oc.int32",
    "mm": "x @ y",
    "bmm": "oc.einsum('b|ij; b|jk => b|ik', x, y)",
    "dot": "oc.einsum('i; i => ', x, y)",
    "tensordot": "np.tensordot(x, y, axes), or oc.einsum",
    "gather": "oc.take_along(x, ids, axis)",
    "index_select": "oc.take(x, ids, axis)",
    "scatter": "oc.put_along(x, ids, values, axis)",
    "index_put": "oc.put(x, ids, values, axis)",
    "true_divide": "oc.divide(x, y)",
    "arcsin": "oc.asin(x)",
    "arccos": "oc.acos(x)",
    "arctan": "oc.atan(x)",
    "permute_dims": "oc.permute(x, 1, 0)",
    "matrix_transpose": "oc.swapaxes(x, -1, -2)",
    "take_along_axis": "oc.take_along(x, ids, axis)",
    "take_along_dim": "oc.take_along(x, ids, axis)",
    "amax": "oc.max(x, axis)",
    "amin": "oc.min(x, axis)",
    "unsqueeze": "oc.expand_dims(x, axis)",
    "optim": "oc.train has the optimizers: oc.train.AdamW",
    "functional": "the functions are in oc, as oc.relu, and in oc.nn",
    "utils": "oc.data has loaders, oc.save and oc.load checkpoints",
    **dict.fromkeys(["Module", "Sequential"], _MODULE),
    "Parameter": "oc.param('w', output=[8])",
    "linear": "oc.nn.dense(x, output=[8])",
    "conv1d": "oc.nn.conv(x, axes=1, kernel=3, channels=8)",
    "conv3d": "oc.nn.conv(x, axes=3, kernel=3, channels=8)",
    "Linear": _EXACT.format("dense(x, output=[8])"),
    "Embedding": _EXACT.format("embedding(ids, entries=100, width=8)"),
    "Conv1d": _EXACT.format("conv(x, axes=1, kernel=3, channels=8)"),
    "Conv2d": _EXACT.format("conv2d(x, kernel=3, channels=8)"),
    "Conv3d": _EXACT.format("conv(x, axes=3, kernel=3, channels=8)"),
    "LayerNorm": _EXACT.format("layer_norm(x)"),
    "BatchNorm1d": _EXACT.format("batch_norm(x)"),
    "BatchNorm2d": _EXACT.format('batch_norm(x, shape="...|h, w, ..c..", features="..c..")'),
    "GroupNorm": _EXACT.format("group_norm(x, groups=4)"),
    "PReLU": 'oc.where(x > 0.0, x, oc.param("slope", output=[], input=[], init=0.25) * x)',
    "Flatten": "nothing: oc.nn.dense contracts all output axes",
    **dict.fromkeys(["Upsample", "interpolate"], "oc.nn.resize(x, [64, 64])"),
    **dict.fromkeys(["AdaptiveAvgPool2d", "adaptive_avg_pool2d"], "oc.nn.global_avg_pool(x)"),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], "oc.nn.lstm(x, width=16), oc.nn.gru, oc.nn.rnn"),
    "MultiheadAttention": _EXACT.format("multi_head_attention(x, heads=4, width=16)"),
    "Dropout": "oc.nn.dropout(x, rate=0.1)",
    "MaxPool2d": "oc.nn.max_pool2d(x, window=2)",
    "AvgPool2d": "oc.nn.avg_pool(x, window=2)",
    "ReLU": "oc.relu(x)",
    "GELU": "oc.gelu(x)",
    "Softmax": "oc.softmax(x, axis=-1)",
    "CrossEntropyLoss": "oc.nn.cross_entropy(scores, class_ids)",
    "MSELoss": "oc.nn.mean_squared_error(prediction, target)",
    **dict.fromkeys(["L1Loss", "l1_loss"], "oc.mean(abs(prediction - target))"),
    **dict.fromkeys(["SmoothL1Loss", "HuberLoss"], "oc.nn.huber(prediction, target)"),
    **dict.fromkeys(["NLLLoss", "nll_loss"], "oc.nn.cross_entropy(log_probabilities, class_ids)"),
    **dict.fromkeys(["BCELoss", "BCEWithLogitsLoss"], "oc.nn.binary_cross_entropy(scores, truths)"),
    **dict.fromkeys(["KLDivLoss", "kl_div"], "oc.nn.kl_divergence(log_probabilities, targets)"),
    **dict.fromkeys(
        ["CosineSimilarity", "cosine_similarity"],
        "oc.sum(x * y, axis=-1) / (oc.norm(x, axis=-1) * oc.norm(y, axis=-1))",
    ),
    "DataLoader": "oc.data.Loader(images, labels, batch=32, shuffle=True)",
    "EarlyStopping": "oc.train.fit(..., evaluation=..., patience=3) stops early",
    "ModelCheckpoint": "oc.train.fit(..., checkpoint=oc.train.Checkpoint(path, loss, opt))",
    **dict.fromkeys(
        ["StepLR", "ExponentialLR", "LRScheduler", "LearningRateScheduler"],
        "oc.train.Adam(learning_rate=oc.train.exponential(...)): a schedule is a rate",
    ),
    "LambdaLR": "oc.train.Adam(learning_rate=lambda k: 1e-3 / (1 + k)): k is the number of updates",
    "CosineAnnealingLR": "oc.train.Adam(learning_rate=oc.train.cosine(1e-3, steps=1000))",
    "ReduceLROnPlateau": 'rate = oc.placeholder("rate"), oc.train.Adam(learning_rate=rate), and '
    "on_epoch= of oc.train.fit: a function that lowers ctx[rate]",
    **dict.fromkeys(
        ["clip_grad_norm_", "clip_grad_norm", "clip_by_global_norm"],
        "oc.train.Adam(..., clip_norm=1.0)",
    ),
    **dict.fromkeys(["clip_grad_value_", "clip_grad_value"], "oc.train.Adam(..., clip_value=1.0)"),
    "Optimizer": "oc.train.AdamW, and the other classes of oc.train",
}
"""Names of modules and classes elsewhere, and what to write in their place."""


_MODULES = ("oc", "oc.nn", "oc.train", "oc.data")


def missing_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error about a name that a module lacks."""
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    near = get_close_matches(name, list(known), 1, cutoff=0.75)
    if elsewhere := [each for each in _MODULES if name in _public_names(each)]:
        advice = f"{elsewhere[0]}.{name}"
    else:
        advice = f"{module}.{near[0]} is similar" if near else f"dir({module}) lists what there is"
    return MissingAttributeError.at_caller(
        f"{module} has no {name}.", found=f"{module}.{name}", fix=FOREIGN.get(name, advice)
    )


def _public_names(module: str) -> Collection[str]:
    names: Collection[str] = import_module(module.replace("oc", "ocannl_core", 1)).__all__
    return names


def missing_attribute(
    owner: object, name: str, rule: str, shown: str, counterparts: Mapping[str, str]
) -> AttributeError:
    """Return the error about an attribute that an object lacks.

    Args:
        rule: The sentence that the name ends.
        shown: The owner as messages show it.
        counterparts: The code in place of attributes of other libraries, by their names; without
            one, the error is Python's own.
    """
    if name not in counterparts:
        return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")
    return MissingAttributeError.at_caller(
        f"{rule} {name}.", found=f"{name} of {shown}", fix=counterparts[name]
    )
