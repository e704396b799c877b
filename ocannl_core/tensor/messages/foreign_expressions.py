"""Functions of NumPy and PyTorch that no operation has the name of, as expressions."""

from __future__ import annotations

_GIVEN_PARTS = "x.split(2, axis=-1), or x.split([1, 3], axis=-1) with the positions of the cuts"
_WINDOWS = ("hamming", "hanning", "blackman", "bartlett")
_CORRELATION = "oc.einsum('i<+k; k => i', x, w)"
_TRIANGLE = "oc.tril(x) and oc.triu(x) keep one triangle of a matrix"

# fmt: off
EXPRESSIONS: dict[str, str] = {
    # One cell of each operand
    "hypot": "oc.sqrt(x * x + y * y)",
    "copysign": "oc.where(y < 0.0, -oc.abs(x), oc.abs(x))",
    "signbit": "x < 0.0",
    "heaviside": "oc.where(x == 0.0, y, x > 0.0)",
    **dict.fromkeys(["rad2deg", "degrees"], "x * (180 / math.pi)"),
    **dict.fromkeys(["deg2rad", "radians"], "x * (math.pi / 180)"),
    **dict.fromkeys(["positive", "real", "conj", "conjugate"], "x"),
    "frac": "x - oc.trunc(x)",
    "modf": "x - oc.trunc(x), oc.trunc(x)",
    "divmod": "x // y, x % y",
    "fix": "oc.trunc(x)",
    **dict.fromkeys(["rint", "around"], "oc.round(x)"),
    "cbrt": "oc.sign(x) * oc.abs(x) ** (1 / 3)",
    "log10": "oc.log(x) / math.log(10)",
    "logaddexp2": "oc.logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)",
    "ldexp": "x * oc.exp2(n)",
    "float_power": "x ** y",
    "rsub": "y - x",
    "sinc": "oc.where(x == 0.0, 1.0, oc.sin(math.pi * x) / (math.pi * x))",
    "arctan2": "oc.atan2(x, y)",
    **dict.fromkeys(
        ["asinh", "arcsinh"], "oc.sign(x) * oc.log(oc.abs(x) + oc.sqrt(x * x + 1.0))"
    ),
    **dict.fromkeys(["acosh", "arccosh"], "oc.log(x + oc.sqrt(x * x - 1.0))"),
    **dict.fromkeys(["atanh", "arctanh"], "(oc.log1p(x) - oc.log1p(-x)) / 2"),
    "erfc": "1.0 - oc.erf(x)",
    "ndtr": "(1.0 + oc.erf(x / math.sqrt(2))) / 2",
    "expit": "oc.sigmoid(x)",
    "logsigmoid": "oc.log_sigmoid(x)",
    "xlogy": "oc.where(x == 0.0, 0.0, x * oc.log(y))",
    "xlog1py": "oc.where(x == 0.0, 0.0, x * oc.log1p(y))",
    "entr": "-oc.where(x == 0.0, 0.0, x * oc.log(x))",
    "isposinf": "x == math.inf",
    "isneginf": "x == -math.inf",
    "isin": "(x == 1.0) | (x == 2.0)",
    "fmax": "oc.where(oc.isnan(x), y, oc.where(oc.isnan(y), x, oc.maximum(x, y)))",
    "fmin": "oc.where(oc.isnan(x), y, oc.where(oc.isnan(y), x, oc.minimum(x, y)))",
    **dict.fromkeys(["invert", "bitwise_invert"], "~n"),
    **dict.fromkeys(["left_shift", "bitwise_left_shift"], "n * 2**3"),
    **dict.fromkeys(["right_shift", "bitwise_right_shift"], "n // 2**3"),
    "frexp": "oc.bitcast(x, 'int32') // 2**23 % 256 - 126",
    "celu": "alpha * oc.elu(x / alpha)",
    "hardshrink": "oc.where(oc.abs(x) > 0.5, x, 0.0)",
    "softshrink": "oc.sign(x) * oc.relu(oc.abs(x) - 0.5)",
    "tanhshrink": "x - oc.tanh(x)",
    "threshold": "oc.where(x > 0.1, x, 20.0)",
    "prelu": "oc.where(x > 0.0, x, weight * x)",
    "addcmul": "x + weight * y * z",
    "addcdiv": "x + weight * y / z",
    # Along an axis
    "softmin": "oc.softmax(-x, axis=-1)",
    "msort": "oc.sort(x, axis=0)",
    **dict.fromkeys(["quantile", "percentile", "nanquantile", "kthvalue", "partition"],
        "oc.sort(x, axis=-1)[..., k] is the cell of position k, and oc.median(x, axis=-1)"),
    "aminmax": "oc.min(x), oc.max(x)",
    "average": "oc.sum(w * x) / oc.sum(w)",
    "count_nonzero": "oc.sum(x != 0.0)",
    "nansum": "oc.sum(oc.where(oc.isnan(x), 0.0, x))",
    "nanprod": "oc.prod(oc.where(oc.isnan(x), 1.0, x))",
    "nanmax": "oc.max(oc.where(oc.isnan(x), -math.inf, x))",
    "nanmin": "oc.min(oc.where(oc.isnan(x), math.inf, x))",
    "nanmean": "oc.sum(oc.where(oc.isnan(x), 0.0, x)) / oc.sum(~oc.isnan(x))",
    "nancumsum": "oc.cumsum(oc.where(oc.isnan(x), 0.0, x), axis=-1)",
    "nancumprod": "oc.cumprod(oc.where(oc.isnan(x), 1.0, x), axis=-1)",
    "nanargmax": "oc.argmax(oc.where(oc.isnan(x), -math.inf, x))",
    "nanargmin": "oc.argmin(oc.where(oc.isnan(x), math.inf, x))",
    **dict.fromkeys(["nanmedian", "nanstd", "nanvar", "nanpercentile"],
        "oc.where(oc.isnan(x), y, x) has cells of y where x has none"),
    "std_mean": "oc.std(x, ddof=1), oc.mean(x)",
    "var_mean": "oc.var(x, ddof=1), oc.mean(x)",
    **dict.fromkeys(["trapezoid", "trapz"], "oc.sum((x[1:] + x[:-1]) / 2)"),
    "ediff1d": "x[1:] - x[:-1]",
    "gradient": "(x[2:] - x[:-2]) / 2 for differences; oc.gradients(y, [x]) for derivatives",
    "logcumsumexp": "oc.log(oc.cumsum(oc.exp(x - oc.max(x)), axis=-1)) + oc.max(x)",
    **dict.fromkeys(["histogram", "histc"],
        "oc.scatter(oc.cast((x - low) / width, 'int32'), oc.ones_like(x), size=n)"),
    **dict.fromkeys(["digitize", "bucketize"], "oc.searchsorted(edges, x)"),
    "interp": "with k = oc.clip(oc.searchsorted(edges, x), 1, n - 1), "
        "x0 = oc.take(edges, k - 1), and x1, y0 and y1 likewise: "
        "y0 + (y1 - y0) * (x - x0) / (x1 - x0)",
    # Products
    **dict.fromkeys(["inner", "vdot"], "oc.einsum('i; i => ', x, y)"),
    "vecdot": "oc.sum(x * y, axis=-1)",
    **dict.fromkeys(["ger", "addr"], "oc.einsum('i; j => i,j', x, y)"),
    **dict.fromkeys(["mv", "matvec"], "oc.einsum('i,j; j => i', w, x)"),
    "vecmat": "oc.einsum('i; i,j => j', x, w)",
    "addmv": "b + w @ x",
    "bilinear": "oc.einsum('i; j; o,i,j => o', x, y, w)",
    **dict.fromkeys(["multi_dot", "chain_matmul"], "v @ w @ x"),
    "matrix_power": "w @ w @ w",
    "kron": "oc.reshape(oc.einsum('i,j; k,l => i,k,j,l', x, y), 6, 6)",
    "cross": "oc.roll(x, -1, -1) * oc.roll(y, 1, -1) - oc.roll(x, 1, -1) * oc.roll(y, -1, -1)",
    "cov": "with d = x - oc.mean(x, axis=1, keepdims=True): "
        "oc.einsum('i,n; j,n => i,j', d, d) / (count - 1)",
    "corrcoef": "with d = x - oc.mean(x, axis=1, keepdims=True): "
        "oc.einsum('i,n; j,n => i,j', d, d / count) / oc.einsum('i; j => i,j', s, s), "
        "where s is oc.std(x, axis=1)",
    "dist": "oc.norm(x - y)",
    "pdist": "oc.norm(oc.expand_dims(x, 1) - oc.expand_dims(x, 0), axis=-1)",
    "correlate": _CORRELATION,
    "convolve": f"{_CORRELATION} correlates; oc.flip(w) for w convolves",
    # Shapes and positions
    **dict.fromkeys(["repeat_interleave"], "oc.repeat(x, 2, axis=0)"),
    **dict.fromkeys(["movedim", "rollaxis"], "oc.moveaxis(x, 0, -1)"),
    "swapdims": "oc.swapaxes(x, 0, 1)",
    "narrow": "x[:, 1:3]",
    "select": "x[:, 2]",
    **dict.fromkeys(["tensor_split", "split_with_sizes", "array_split", "unsafe_split",
        "hsplit", "vsplit", "dsplit"], _GIVEN_PARTS),
    "glu": "with a, b = x.split(2, axis=-1): a * oc.sigmoid(b)",
    "column_stack": "oc.concat([x, y], axis=1)",
    "row_stack": "oc.concat([x, y], axis=0)",
    "dstack": "oc.concat([x, y], axis=2)",
    **dict.fromkeys(["unflatten", "atleast_1d", "atleast_2d", "atleast_3d"], "oc.reshape(x, 1, 6)"),
    "fliplr": "oc.flip(x, axis=1)",
    "flipud": "oc.flip(x, axis=0)",
    "rot90": "oc.flip(oc.swapaxes(x, 0, 1), axis=0)",
    "tri": "oc.tril(oc.ones((3, 3)))",
    **dict.fromkeys(["tril_indices", "triu_indices", "mask_indices", "tril_indices_from",
        "triu_indices_from", "diag_indices"], _TRIANGLE),
    **dict.fromkeys(["diagflat", "diag_embed"], "oc.einsum('i => i,i', x)"),
    "vander": "x[:, None] ** oc.arange(4)",
    **dict.fromkeys(["logspace", "geomspace"], "10.0 ** oc.linspace(0.0, 3.0, 4)"),
    "unravel_index": "n // 3, n % 3",
    "ravel_multi_index": "n * 3 + m",
    **dict.fromkeys(["broadcast_arrays", "broadcast_tensors"],
        "operators broadcast by themselves; oc.broadcast_to(x, 5, 3) is the tensor repeated"),
    **{name: f"x * oc.tensor(np.{name}(6))" for name in _WINDOWS},
    **{f"{name}_window": f"x * oc.tensor(np.{name}(6))" for name in _WINDOWS},
    "hann_window": "x * oc.tensor(np.hanning(6))",
    # Of images with the channels last, as in `oc.nn`
    "pixel_shuffle": "oc.reshape(oc.permute(oc.reshape(x, h, w, c, r, r), 0, 3, 1, 4, 2), "
        "h * r, w * r, c)",
    "pixel_unshuffle": "oc.reshape(oc.permute(oc.reshape(x, h, r, w, r, c), 0, 2, 4, 1, 3), "
        "h, w, c * r * r)",
    "channel_shuffle": "oc.reshape(oc.swapaxes(oc.reshape(x, h, w, groups, c), -1, -2), "
        "h, w, groups * c)",
    # Losses
    "margin_ranking_loss": "oc.mean(oc.relu(y * (b - a) + margin))",
    "triplet_margin_loss":
        "oc.mean(oc.relu(oc.norm(a - p, axis=-1) - oc.norm(a - n, axis=-1) + margin))",
    "hinge_embedding_loss": "oc.mean(oc.where(y > 0.0, x, oc.relu(margin - x)))",
    "cosine_embedding_loss": "oc.mean(oc.where(y > 0.0, 1.0 - c, oc.relu(c))), "
        "where c is the cosine similarity of two vectors",
    "soft_margin_loss": "oc.mean(oc.softplus(-y * x))",
    "multilabel_soft_margin_loss": "oc.nn.binary_cross_entropy(scores, truths)",
    "poisson_nll_loss": "oc.mean(oc.exp(x) - y * x)",
    "gaussian_nll_loss": "oc.mean(oc.log(v) + (x - y) ** 2 / v) / 2",
    # Random numbers
    "exponential": "-oc.log(1.0 - oc.uniform())",
    "gumbel": "-oc.log(-oc.log(oc.uniform()))",
    "randint_like": "oc.cast(10 * oc.uniform(), 'int32')",
    "choice": "oc.take(x, oc.categorical(scores))",
}
# fmt: on
"""Names of functions, and expressions of the same meaning for operands called x, y and z."""
