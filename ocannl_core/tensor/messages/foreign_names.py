"""Names of NumPy and PyTorch, and their counterparts here."""

from __future__ import annotations

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
    **dict.fromkeys(["fill_", "zero_", "fill", "add_", "sub_", "mul_", "div_", "copy_"], _IN_PLACE),
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
