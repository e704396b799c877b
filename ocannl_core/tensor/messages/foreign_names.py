"""Names of NumPy and PyTorch, on tensors and in modules, and their counterparts here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from importlib import import_module

from ocannl_core.base.errors import MissingAttributeError
from ocannl_core.base.suggestions import similar_names
from ocannl_core.tensor.messages.foreign_expressions import EXPRESSIONS

_READ = "read the cells after a routine computed them: ctx[x], or ctx.item(x) for a single number"
_DEVICE = "a context is a device: oc.Context(...) compiles and runs what is given to it"
_IN_PLACE = "inside a function decorated with @oc.cd, write c[:] = e or c += e"

ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(["numpy", "item", "value"], _READ),
    "tolist": f"{_READ}; ctx[x].tolist() is a list",
    "data": f"{_READ}; ctx[x] = array stores them",
    "detach": "oc.stop_gradient(x) has the same cells and passes no gradient on",
    "requires_grad_": "state requires_grad= where the tensor is made",
    "retain_grad": "keep gradients of results with ctx.compile(..., keep=[x.grad])",
    "zero_grad": "oc.train.grad_update(loss) clears gradients; x.zero_grads() is code that does",
    "backward": "step = ctx.compile(oc.train.grad_update(loss)) computes gradients in step()",
    "grad_fn": "x.definition.operation is the operation that computes x",
    "is_leaf": "x.definition is the source of the cells",
    "to": f"{_DEVICE}; oc.cast(x, 'float16') converts the number format",
    **dict.fromkeys(["cpu", "cuda", "device"], _DEVICE),
    "float": "oc.cast(x, 'float32') converts the number format",
    "double": "oc.cast(x, 'float64') converts the number format",
    "half": "oc.cast(x, 'float16') converts the number format",
    "bfloat16": "oc.cast(x, 'bfloat16') converts the number format",
    "int": "oc.cast(x, 'int32') converts the number format",
    "long": "oc.cast(x, 'int64') converts the number format",
    "bool": "x != 0 is 1 where a cell is not 0",
    "type": "x.dtype is the number format, and oc.cast(x, dtype) converts it",
    **dict.fromkeys(["copy", "clone"], "tensors are values of a program and need no copies"),
    **dict.fromkeys(
        ["contiguous", "is_contiguous", "stride", "strides"],
        "tensors have no strides: the cells of all are in row-major order",
    ),
    "chunk": "x.split(2) is a list of parts along an axis",
    **dict.fromkeys(["unbind", "unstack"], "tuple(x) has the tensors along the first axis"),
    **dict.fromkeys(["is_cuda", "get_device"], _DEVICE),
    **dict.fromkeys(
        ["new_zeros", "new_empty", "new_ones", "new_full"],
        "oc.zeros((2, 3), dtype=x.dtype), and oc.ones and oc.full likewise",
    ),
    "view": "x.reshape(6, 4) is the tensor in another shape",
    "view_as": "x.reshape(*y.shape) is the tensor in the shape of another",
    "reshape_as": "x.reshape(*y.shape) is the tensor in the shape of another",
    "expand": "x.broadcast_to(5, 3) is the tensor repeated; operators broadcast by themselves",
    "expand_as": "x.broadcast_to(*y.shape) is the tensor repeated; operators broadcast",
    **dict.fromkeys(["numel", "nelement"], "x.size is the number of cells"),
    "dim": "x.ndim is the number of axes",
    "t": "x.swapaxes(0, 1) exchanges two axes; x.T exchanges input and output axes",
    "mT": "x.swapaxes(-1, -2) exchanges the last two axes",
    "H": "x.T exchanges input and output axes",
    "dot": "x @ y composes input and output axes; oc.einsum('i; i => ', x, y) is a dot product",
    "mm": "x @ y composes input and output axes; oc.einsum('ij; jk => ik', x, y) names them",
    "bmm": "oc.einsum('b|ij; b|jk => b|ik', x, y) is a product of matrices for each batch",
    "matmul": "x @ y composes input and output axes; oc.einsum('ij; jk => ik', x, y) names them",
    "add": "x + y",
    "sub": "x - y",
    "mul": "x * y",
    "div": "x / y",
    "neg": "-x",
    "eq": "x == y",
    "ne": "x != y",
    "lt": "x < y",
    "gt": "x > y",
    "le": "x <= y",
    "ge": "x >= y",
    "amax": "x.max(axis=...)",
    "amin": "x.min(axis=...)",
    "ptp": "x.max(axis=...) - x.min(axis=...)",
    "nonzero": "the number of results would depend on cells; oc.where(c, a, b) keeps shapes",
    "masked_fill": "oc.where(mask, value, x)",
    "masked_select": "the number of results would depend on cells; oc.where(c, a, b) keeps shapes",
    "where": "oc.where(condition, x, y)",
    "unique": "the number of results would depend on cells: read them with ctx[x] on the host",
    "fill": _IN_PLACE,
    "name": "x.label has the parts of the name, and label= states it",
}
"""Attributes of other libraries' tensors, and what to write in their place."""

_STEP = "step = ctx.compile(oc.train.forward(y)) is called, step(), and ctx[y] is its result"
_CHECKPOINT = "oc.save(path, ctx, loss) and oc.load write and read parameters"
_MODEL = "a model is a function of tensors, y = net(x); its parameters have their cells in contexts"

CONTEXT_ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(["run", "eval", "execute", "forward", "predict", "call"], _STEP),
    **dict.fromkeys(["result", "results", "output", "outputs"], _STEP),
    **dict.fromkeys(["backward", "grad", "gradients"], ATTRIBUTES["backward"]),
    **dict.fromkeys(["state_dict", "load_state_dict", "save", "load"], _CHECKPOINT),
    **dict.fromkeys(["to", "cpu", "cuda"], "a context stays on its device: oc.Context('cuda')"),
    **dict.fromkeys(["parameters", "train", "modules", "zero_grad"], _MODEL),
    "fit": "oc.train.fit(step, loader, [x, target], loss=loss)",
    **dict.fromkeys(["get", "read", "value", "numpy"], "ctx[x] is the array of a tensor x"),
    **dict.fromkeys(["set", "write", "feed", "assign"], "ctx[x] = array"),
}
"""Attributes that contexts and routines lack, and what to write in their place."""


def _same(names: str) -> dict[str, str]:
    """Return names that mean the same in both libraries."""
    return {name: name for name in names.split()}


# fmt: off
UFUNCS: dict[str, str] = {
    **_same(
        "add floor_divide mod power matmul sign floor ceil trunc exp exp2 expm1 log log2 log1p "
        "logaddexp sqrt square sin cos tan sinh cosh tanh maximum minimum less less_equal greater "
        "greater_equal equal not_equal logical_and logical_or logical_xor logical_not bitwise_and "
        "bitwise_or bitwise_xor isnan isinf isfinite divmod"
    ),
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "remainder": "mod", "float_power": "power", "negative": "neg", "positive": "identity",
    "absolute": "abs", "fabs": "abs", "rint": "round", "reciprocal": "recip", "arcsin": "asin",
    "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "invert": "bitwise_not",
}
"""Universal functions of NumPy, and the operations of the same meaning."""

FUNCTIONS: dict[str, str] = {
    **_same(
        "sum mean var std max min prod any all argmax argmin cumsum cumprod sort argsort median "
        "reshape moveaxis swapaxes expand_dims squeeze broadcast_to flip tile tril triu"
    ),
    "amax": "max", "amin": "min", "transpose": "permute", "permute_dims": "permute",
    "ravel": "flatten",
}
"""Functions of NumPy, and the operations of the same arguments."""

UFUNC_METHODS: dict[tuple[str, str], str] = {
    ("add", "reduce"): "sum", ("add", "accumulate"): "cumsum",
    ("multiply", "reduce"): "prod", ("multiply", "accumulate"): "cumprod",
    ("maximum", "reduce"): "max", ("maximum", "accumulate"): "cummax",
    ("minimum", "reduce"): "min", ("minimum", "accumulate"): "cummin",
    ("logical_and", "reduce"): "all", ("logical_or", "reduce"): "any",
}
# fmt: on
"""Methods of universal functions of NumPy, and the operations of the same meaning."""

IN_PLACE: dict[str, str] = {
    "put": "oc.put(x, ids, values) is a new tensor",
    "put_along_axis": "oc.put_along(x, ids, values, axis) is a new tensor",
    "place": "oc.where(mask, values, x) is a new tensor",
    "putmask": "oc.where(mask, values, x) is a new tensor",
    "copyto": "c[:] = x, in a function decorated with @oc.cd",
    "fill_diagonal": "oc.where(mask, value, x) is a new tensor",
}
"""Functions of NumPy that change their argument, and what to write in their place."""


_SEED = "oc.Session(seed=7) fixes all random numbers of a program"
_MODULE = "a network is a function of tensors, or a block with parameters of its own: @oc.op"
_EXACT = "oc.nn has functions in place of classes of layers: oc.nn.{} makes its parameters"


def _all(names: str, advice: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


_CUSTOM = "oc.custom.Op makes an operation of a function of NumPy or SciPy"

FOREIGN: dict[str, str] = {
    **EXPRESSIONS,
    **IN_PLACE,
    **dict.fromkeys(["concatenate", "cat", "vstack"], "oc.concat([x, y], axis=0)"),
    "hstack": "oc.concat([x, y], axis=1)",
    **dict.fromkeys(["array", "asarray", "as_tensor", "from_numpy"], "oc.tensor(array)"),
    "empty": "oc.zeros((2, 3))",
    "empty_like": "oc.zeros_like(x)",
    "identity": "oc.eye(3) is a matrix; oc.primitives.identity copies cells",
    **dict.fromkeys(
        ["rand", "rand_like"],
        "oc.uniform() has the shape of its use; oc.require_shape(oc.uniform(), '32|64') states it",
    ),
    **dict.fromkeys(
        ["randn", "randn_like"],
        "oc.normal() has the shape of its use; oc.require_shape(oc.normal(), '32|64') states it",
    ),
    **dict.fromkeys(["randint", "integers"], "oc.cast(10 * oc.uniform(), 'int32') is below 10"),
    **dict.fromkeys(["manual_seed", "seed", "key", "PRNGKey", "default_rng"], _SEED),
    "grad": "(g,) = oc.gradients(loss, [w])",
    "value_and_grad": "oc.train.grad_update(loss) computes loss and w.grad; "
    "(g,) = oc.gradients(loss, [w]) is an expression",
    "vmap": "an operation applies to all batch axes: oc.placeholder('x', batch=[32], output=[8])",
    **dict.fromkeys(["absolute", "fabs"], "oc.abs(x)"),
    "outer": "oc.einsum('i; j => i,j', x, y)",
    **dict.fromkeys(["allclose", "isclose"], "np.allclose(ctx[x], ctx[y]), after a routine"),
    **dict.fromkeys(
        ["scatter_add", "index_add", "segment_sum", "scatter_reduce", "segment_max"],
        "oc.scatter(ids, rows, size=n) adds up rows by position, with combine=oc.maximum the "
        "greatest; added to x, it is index_add",
    ),
    "bincount": "oc.scatter(ids, oc.ones_like(ids), size=n)",
    **dict.fromkeys(
        ["jacobian", "jacrev", "jacfwd", "vjp", "hessian", "hvp"],
        "(g,) = oc.gradients(y, [x], grad_y=v) is the product of v and the derivatives of y; the "
        "gradient of a gradient is one with a Hessian",
    ),
    "jvp": "with u = oc.zeros_like(y) and (g,) = oc.gradients(y, [x], grad_y=u), "
    "oc.gradients(g, [u], grad_y=v) has the derivative of y in the direction v",
    "bernoulli": "oc.uniform() < probability",
    "multinomial": "oc.categorical(scores), where scores are logarithms of probabilities",
    "distributions": "oc.categorical(scores), oc.normal() and oc.uniform() draw numbers",
    **dict.fromkeys(
        ["randperm", "permutation"],
        "a permutation is made on the host; oc.data.Loader(..., shuffle=True) has one",
    ),
    "set_default_dtype": 'oc.Session(dtype="float64")',
    "newaxis": "None in a subscript: x[:, None], or oc.expand_dims(x, axis)",
    "lerp": "x + weight * (y - x)",
    **dict.fromkeys(["addmm", "baddbmm"], "b + w @ x"),
    "diag": "x.diagonal() of a matrix; oc.einsum('i => i,i', x) is a matrix with that diagonal",
    **dict.fromkeys(["clamp_min", "clamp_max"], "oc.clip(x, min=0.0), or max="),
    "fmod": "x - y * oc.trunc(x / y); oc.remainder has the sign of the divisor",
    "nan_to_num": "oc.where(oc.isfinite(x), x, 0.0)",
    **dict.fromkeys(
        ["cdist", "pairwise_distance"],
        'oc.norm(oc.subtract(x, y, logic="i|...; j|... => i,j|..."), axis=-1)',
    ),
    **_all(
        "linalg inv inverse svd qr cholesky solve det eigh eig eigvals eigvalsh svdvals slogdet "
        "logdet lu lu_factor lu_solve lstsq pinv pinverse matrix_exp matrix_rank solve_triangular "
        "triangular_solve cholesky_solve cholesky_inverse",
        "oc.norm and oc.einsum; a loop of oc.scan, as docs/howto/loop_over_time.md has it for "
        f"Cholesky's factor; {_CUSTOM}",
    ),
    **_all(
        "fft ifft rfft irfft fft2 ifft2 rfft2 stft istft",
        "a product with the matrices of cosines and sines is a discrete Fourier transform; "
        f"{_CUSTOM}",
    ),
    **_all(
        "lgamma gammaln digamma psi polygamma erfinv ndtri log_ndtr i0 i0e i1 i1e igamma gammainc "
        "gammaincc zeta betaln erfcx gcd lcm",
        _CUSTOM,
    ),
    **_all(
        "gamma beta dirichlet poisson binomial laplace cauchy standard_normal shuffle",
        "arrays of NumPy's generators are data: oc.data.Loader; oc.normal() and oc.uniform() "
        "draw numbers in a routine",
    ),
    **dict.fromkeys(
        ["autocast", "is_autocast_enabled", "GradScaler"],
        "dtype= of parameters and operations states formats; docs/reference/precisions.md",
    ),
    **dict.fromkeys(
        ["set_num_threads", "get_num_threads"], "the setting threads: OCANNL_THREADS=2"
    ),
    **dict.fromkeys(
        ["get_rng_state", "set_rng_state", "initial_seed"],
        "oc.Session(seed=7), and a counter for each draw: docs/reference/random.md",
    ),
    **dict.fromkeys(
        ["set_default_device", "get_default_device"], "the setting backend: OCANNL_BACKEND=cuda"
    ),
    "set_printoptions": "np.set_printoptions: values are arrays",
    "is_tensor": "isinstance(x, oc.Tensor)",
    **dict.fromkeys(["while_loop", "fori_loop"], "oc.scan and oc.scan_while"),
    **dict.fromkeys(
        ["dynamic_slice", "slice_in_dim"], "x[k : k + 3], where k = oc.static_index('k')"
    ),
    **dict.fromkeys(["savez", "savez_compressed", "savetxt"], _CHECKPOINT),
    **dict.fromkeys(
        ["loadtxt", "genfromtxt", "fromfile", "frombuffer", "from_dlpack"], "oc.tensor(array)"
    ),
    **dict.fromkeys(["scalar_tensor", "asanyarray", "ascontiguousarray"], "oc.tensor(array)"),
    **dict.fromkeys(["array_equal", "array_equiv"], "np.array_equal(ctx[x], ctx[y])"),
    "range": "oc.arange(8)",
    "cumulative_sum": "oc.cumsum(x, axis=-1)",
    "cumulative_prod": "oc.cumprod(x, axis=-1)",
    "normalize": "x / oc.norm(x, axis=-1)",
    "logit": "oc.log(x) - oc.log1p(-x)",
    "meshgrid": "oc.einsum('i => i, j', x, values={'j': 4}), and 'j => i, j' for the other axis",
    "unfold": "oc.einsum('...|i<+k => ...|i, k', x, values={'k': 3})",
    "gumbel_softmax": "oc.softmax(scores - oc.log(-oc.log(oc.uniform(counter=k))), axis=-1), with "
    "k = oc.static_index('k') for other numbers in each call",
    "weight_norm": "oc.einsum('i->o; o => i->o', w, scale / oc.norm(w, axis=1)) is the weight",
    "spectral_norm": "w / oc.sum(u * (w @ v)), with u and v of one step of the power iteration",
    **dict.fromkeys(
        ["EmbeddingBag", "embedding_bag"], "oc.scatter(bags, oc.take(table, ids), size=n)"
    ),
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
    "utils": "oc.data has loaders, oc.save and oc.load checkpoints; clip_norm= of an optimizer "
    "clips gradients",
    **dict.fromkeys(
        ["rearrange", "reduce"],
        "oc.einsum('b, c => c, b', x) names axes; oc.permute and oc.reshape count them",
    ),
    **dict.fromkeys(["Module", "Sequential", "ModuleList", "ModuleDict"], _MODULE),
    "Parameter": "oc.param('w', output=[8])",
    "linear": "oc.nn.dense(x, output=[8])",
    "conv1d": "oc.nn.conv(x, axes=1, kernel=3, channels=8)",
    "conv3d": "oc.nn.conv(x, axes=3, kernel=3, channels=8)",
    **dict.fromkeys(
        ["ConvTranspose2d", "conv_transpose2d"],
        "oc.nn.conv(x, axes=2, kernel=2, channels=8, stride=2, transposed=True)",
    ),
    "Linear": _EXACT.format("dense(x, output=[8])"),
    "Embedding": _EXACT.format("embedding(ids, entries=100, width=8)"),
    "Conv1d": _EXACT.format("conv(x, axes=1, kernel=3, channels=8)"),
    "Conv2d": _EXACT.format("conv2d(x, kernel=3, channels=8)"),
    "Conv3d": _EXACT.format("conv(x, axes=3, kernel=3, channels=8)"),
    "LayerNorm": _EXACT.format("layer_norm(x)"),
    "BatchNorm1d": _EXACT.format("batch_norm(x)"),
    "BatchNorm2d": _EXACT.format('batch_norm(x, shape="...|h, w, ..c..", features="..c..")'),
    "GroupNorm": _EXACT.format("group_norm(x, groups=2)"),
    "PReLU": 'oc.where(x > 0.0, x, oc.param("slope", output=[], input=[], init=0.25) * x)',
    "Flatten": "nothing: oc.nn.dense contracts all output axes",
    **dict.fromkeys(
        ["Upsample", "upsample", "interpolate", "upsample_bilinear", "upsample_nearest"],
        "oc.nn.resize(x, [64, 64])",
    ),
    **dict.fromkeys(["AdaptiveAvgPool2d", "adaptive_avg_pool2d"], "oc.nn.global_avg_pool(x)"),
    **dict.fromkeys(
        ["LSTM", "GRU", "RNN"], "oc.nn.lstm, oc.nn.gru and oc.nn.rnn: sequences are T,N|C"
    ),
    "scaled_dot_product_attention": "oc.nn.attention(queries / math.sqrt(width), keys, values, "
    "mask)",
    "MultiheadAttention": _EXACT.format("multi_head_attention(x, heads=4, width=16)"),
    "Dropout": "oc.nn.dropout(x, rate=0.1)",
    "MaxPool2d": "oc.nn.max_pool2d(x, window=2)",
    **dict.fromkeys(["AvgPool2d", "avg_pool2d"], "oc.nn.avg_pool(x, window=2)"),
    **{f"max_pool{n}d": f"oc.nn.max_pool(x, axes={n}, window=2)" for n in (1, 3)},
    **{f"avg_pool{n}d": f"oc.nn.avg_pool(x, axes={n}, window=2)" for n in (1, 3)},
    **{f"adaptive_max_pool{n}d": f"oc.max(x, axis={(*range(-n - 1, -1),)})" for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": f"oc.nn.global_avg_pool(x, axes={n})" for n in (1, 3)},
    **{
        f"conv_transpose{n}d": f"oc.nn.conv(x, axes={n}, kernel=2, channels=8, stride=2, "
        "transposed=True)"
        for n in (1, 3)
    },
    **dict.fromkeys(
        ["dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"],
        "oc.nn.dropout(x, rate=0.1)",
    ),
    "ReLU": "oc.relu(x)",
    "GELU": "oc.gelu(x)",
    "Softmax": "oc.softmax(x, axis=-1)",
    "CrossEntropyLoss": "oc.nn.cross_entropy(scores, class_ids)",
    **dict.fromkeys(["MSELoss", "mse_loss"], "oc.nn.mean_squared_error(prediction, target)"),
    **dict.fromkeys(["L1Loss", "l1_loss"], "oc.mean(abs(prediction - target))"),
    **dict.fromkeys(
        ["SmoothL1Loss", "HuberLoss", "smooth_l1_loss", "huber_loss"],
        "oc.nn.huber(prediction, target)",
    ),
    **dict.fromkeys(["NLLLoss", "nll_loss"], "oc.nn.cross_entropy(log_probabilities, class_ids)"),
    **dict.fromkeys(
        ["BCELoss", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits"],
        "oc.nn.binary_cross_entropy(scores, truths)",
    ),
    "CTCLoss": "oc.nn.ctc_loss(scores, targets, lengths=, target_lengths=)",
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
    tensor = import_module("ocannl_core").Tensor
    fix = (
        FOREIGN.get(name)
        or next((f"{each}.{name}" for each in _MODULES if name in _public_names(each)), "")
        or ATTRIBUTES.get(name)
        or (f"x.{name} is a method of tensors" if hasattr(tensor, name) else "")
        or (_IN_PLACE if name.endswith("_") else "")
        or _similar(module, name, known)
        or f"dir({module}) lists what there is"
    )
    return MissingAttributeError.at_caller(
        f"{module} has no {name}.", found=f"{module}.{name}", fix=fix
    )


def missing_method(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error about an attribute that tensors lack."""
    fix = (
        ATTRIBUTES.get(name)
        or FOREIGN.get(name)
        or next((f"{each}.{name}(x)" for each in _MODULES if name in _public_names(each)), "")
        or (_IN_PLACE if name.endswith("_") else "")
        or _similar("x", name, known)
        or "dir(x) lists what a tensor has"
    )
    return MissingAttributeError.at_caller(
        f"A tensor has no attribute {name}.", found=f"x.{name}", fix=fix
    )


def _similar(owner: str, name: str, known: Iterable[str]) -> str:
    near = similar_names(name, known, cutoff=0.75)
    return f"{owner}.{near[0]} is similar" if near else ""


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
