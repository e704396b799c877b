"""The boundary between users and the package: errors about arguments, and names on demand.

A public module holds each of its functions with a boundary around it: an exception that leaves the
function is compared with the arguments of the call. If an argument does not fit the annotation of
its parameter, that is the error reported. A call that succeeds pays for one more call of Python,
and for a check of its flags. Calls from inside the package do not pass the boundary: modules import
functions from where they are defined. A name is imported at its first use (`load_on_demand`).
"""

from __future__ import annotations

import inspect
import os
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial, wraps
from importlib import import_module
from inspect import Parameter, Signature, isclass, isfunction
from types import NoneType, TracebackType
from typing import Any, get_args, get_origin

from ocannl_core.base.deferred_annotations import annotations_of_call, signature_of
from ocannl_core.base.errors import MissingAttributeError, OcannlError, UsageError, add_line
from ocannl_core.base.fast_dataclass import OnFirstUse
from ocannl_core.base.origin import is_inside
from ocannl_core.base.renamed import old_name, warn_of_old
from ocannl_core.tensor.messages.annotations import annotation_of, fits, in_words
from ocannl_core.tensor.messages.foreign_names import missing_name

_NAMES: dict[str, tuple[str, ...]] = {
    "dim": ("axis",),
    "dims": ("axis",),
    "keepdim": ("keepdims",),
    "correction": ("ddof",),
    "unbiased": ("ddof=0 or 1",),
    "lr": ("learning_rate",),
    "p": ("rate",),
    "label_smoothing": ("smoothing",),
    "ignore_index": ("ignore",),
    "kernel_size": ("kernel", "window"),
    "pool_size": ("window",),
    "padding": ("padded=True or False",),
    "strides": ("stride",),
    "filters": ("channels",),
    "out_channels": ("channels",),
    "units": ("output=[...]",),
    "out_features": ("output=[...]",),
    "batch_size": ("batch", "loader=oc.data.Loader(x, y, batch=32)"),
    "drop_last": ('last="drop" or "short"',),
    "validation_data": ("evaluation=oc.train.Evaluation(judge, loader, [x, y], accuracy)",),
    "verbose": ("progress=True or False",),
    "clipnorm": ("clip_norm",),
    "low": ("min",),
    "high": ("max",),
    "weight": ('reduction="none", and oc.sum(weights[ids] * losses) / oc.sum(weights[ids])',),
    "a_min": ("min",),
    "a_max": ("max",),
    "eps": ("epsilon",),
    "epsilon": ("eps",),
    **dict.fromkeys(["b1", "b2", "beta_1", "beta_2"], ("betas=(0.9, 0.999)",)),
    "num_classes": ("classes",),
    "negative_slope": ("slope",),
    "use_bias": ("bias",),
    "num_embeddings": ("entries",),
    "embedding_dim": ("width",),
    "hidden_size": ("width",),
    "num_groups": ("groups",),
    **dict.fromkeys(["num_heads", "nhead", "n_head"], ("heads",)),
    **dict.fromkeys(["num_layers", "n_layer"], ("layers",)),
    "dim_feedforward": ("hidden",),
    "vocab_size": ("vocabulary",),
}
"""Names of arguments in PyTorch, Keras and NumPy, and their names here, with values where a value
has another form.
"""

_OMITTED = {
    "activation": "apply it to the result, as in oc.relu(oc.nn.dense(x, output=[64]))",
    **dict.fromkeys(
        ("input", "in_features", "in_channels", "input_dim", "input_shape", "input_size"),
        "sizes of inputs are inferred",
    ),
    **dict.fromkeys(
        ("num_features", "num_channels", "embed_dim", "normalized_shape"),
        "sizes of inputs are inferred",
    ),
    "device": "a context is a device: oc.Context(...) compiles and runs what is given to it",
}
"""Names of arguments that have no counterpart, and what stands in their place."""

_CALLS = {
    "oc.placeholder": 'oc.placeholder("x", batch=[32], output=[64])',
    "oc.param": 'oc.param("w", input=[64], output=[10]); for 4 experts output=[4, 10], which '
    'oc.einsum("i->e,o => e|i->o", w) makes a batch axis',
    "oc.declare": 'oc.declare("state", output=[10])',
    "oc.static_index": 'oc.static_index("i", range=10)',
    "oc.static_extent": 'oc.static_extent("n", max=256)',
    "oc.tensor": "oc.tensor(array, batch_axes=1)",
    "oc.zeros": "oc.zeros((2, 3))",
    "oc.ones": "oc.ones((2, 3))",
    "dense": "oc.nn.dense(x, output=[64])",
    "conv": "oc.nn.conv(x, axes=1, kernel=3, channels=16)",
    "conv2d": "oc.nn.conv2d(x, kernel=3, channels=16)",
    "max_pool2d": "oc.nn.max_pool2d(x, window=2)",
    "avg_pool": "oc.nn.avg_pool(x, window=2)",
    "embedding": "oc.nn.embedding(ids, entries=100, width=64)",
    "dropout": "oc.nn.dropout(x, rate=0.1)",
    "oc.nn.dropout": "oc.nn.dropout(x, rate=0.1)",
    "oc.uniform": "low + (high - low) * oc.uniform(), which has the shape of its use; "
    "oc.require_shape(oc.uniform(), (3, 4)) states one",
    "oc.normal": "mean + deviation * oc.normal(), which has the shape of its use; "
    "oc.require_shape(oc.normal(), (3, 4)) states one",
    "x.flatten": "x.reshape(x.shape[0], -1) keeps the first axis; oc.nn.dense takes all axes",
    "oc.train.grad_update": "oc.train.grad_update(a + b), the gradients of a sum of losses",
}
"""Examples of calls, for functions whose arguments have no counterpart in another library."""


_BOUNDARY = "_ocannl_boundary"
_UNSTATED = frozenset({"capture", "label", "self"})
_FLAGS: Mapping[str, tuple[type, ...]] = {"bool": (bool,), "bool | None": (bool, NoneType)}
"""Annotations of flags, and the types of their values."""
_METHODS = frozenset({"__init__", "__call__", "__getitem__", "__setitem__", "__contains__"})


def guard(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Put the boundary around the functions and the methods of the classes of a public module."""
    module = public_title(namespace)
    for name in names:
        value = namespace.get(name)
        if not str(getattr(value, "__module__", "")).startswith("ocannl_core."):
            continue
        if isfunction(value):
            made = namespace[name] = bounded(f"{module}.{name}", value)
            made.__module__, made.__qualname__ = namespace["__name__"], name  # pickles name it
        elif isclass(value) and not issubclass(value, Exception):
            _guard_class(value)


def public_title(namespace: Mapping[str, Any]) -> str:
    """Return the name of a public module for users: `oc`, or `oc.custom`."""
    _, *inside = namespace["__name__"].split(".")
    return f"oc.{inside[-1]}" if inside else "oc"


def _guard_class(owner: type) -> None:
    for base in owner.__mro__:
        if not base.__module__.startswith("ocannl_core.") or getattr(base, "_is_protocol", False):
            continue
        hidden: Collection[str] = getattr(base, "_of_the_core", frozenset())
        for name, value in list(vars(base).items()):
            is_public = name in _METHODS or not (name.startswith("_") or name in hidden)
            if is_public and isfunction(value):
                setattr(base, name, bounded(f"{base.__name__}.{name}", value))
            elif is_public and isinstance(value, OnFirstUse):
                value.wrap(partial(bounded, f"{base.__name__}.{name}"))
            elif name == "__new__" and isinstance(value, staticmethod):
                base.__new__ = bounded(base.__name__, value.__func__)  # type: ignore[method-assign]


def bounded(title: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose exceptions name the argument that does not fit, if one does not."""
    if hasattr(function, _BOUNDARY):
        return function

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            check_flags(title, function, kwargs, args)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            refuse(error, title, function, args, kwargs)
            raise

    setattr(wrapper, _BOUNDARY, True)
    return wrapper


def called(
    title: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of a function, behind the boundary."""
    check_flags(title, function, kwargs)
    try:
        return function(*args, **kwargs)
    except Exception as error:
        refuse(error, title, function, args, kwargs)
        raise


def check_flags(
    title: str, function: Callable[..., Any], given: Mapping[str, Any], args: tuple[Any, ...] = ()
) -> None:
    """Refuse arguments that are neither True nor False before a call: every object has a truth
    value, so that `padded="valid"` would pad.
    """
    notes = annotations_of_call(function)
    for name, value in given.items():
        note = notes.get(name)  # any object, also one without a hash
        types = _FLAGS.get(note) if isinstance(note, str) else None
        if types is not None and not isinstance(value, types):
            _check(_title(title, function, args), function, {name: value}, None)


def refuse(
    error: Exception,
    title: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Raise the error about the first argument that does not fit its parameter, after a call has
    failed. Errors that explain themselves only get the line of the call, if they have none; errors
    from code of the user are left alone.
    """
    # a missing attribute that the core has read belongs to an argument that does not fit
    if isinstance(error, OcannlError) and not isinstance(error, MissingAttributeError):
        add_line(error)
        return
    if _left_the_package(error.__traceback__):
        return
    parameters = signature_of(function)
    title = _title(title, function, args)
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError as mismatch:
        described = function, *inspect.getmro(type(args[0]) if args else object)
        raise _mismatch(title, parameters, args, kwargs, mismatch, described) from None
    _check(title, function, bound.arguments, type(args[0]) if args else None)


def _title(title: str, function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return the name of a function for users; of an object that is called or made, its own."""
    if function.__name__ == "__init__" and args:
        return type(args[0]).__name__
    is_operation = function.__name__ == "__call__" and args and hasattr(args[0], "__signature__")
    return repr(args[0]) if is_operation else title


def check_fields(value: Any) -> None:
    """Refuse fields of a data class, which are used later, that do not fit their annotations."""
    owner = type(value)
    arguments = {each.name: getattr(value, each.name) for each in fields(owner) if each.init}
    _check(owner.__name__, owner.__init__, arguments, owner)


def _check(
    title: str, function: Callable[..., Any], arguments: Mapping[str, Any], owner: type | None
) -> None:
    parameters = signature_of(function).parameters
    for name, given in arguments.items():
        kind = parameters[name].kind
        values = {name: given}
        if kind is Parameter.VAR_POSITIONAL:
            values = {f"{name}[{number}]": each for number, each in enumerate(given)}
        elif kind is Parameter.VAR_KEYWORD:
            values = given
        note = annotation_of(parameters[name], function, owner)
        for text, value in values.items():
            if not fits(value, note):
                raise UsageError.at_caller(
                    f"{title} takes {in_words(note)} as {name}.",
                    found=f"{text}={_written(value)}, of type {type(value).__name__}",
                    fix=_named_function(text, value, note)
                    or _description((function, *inspect.getmro(owner or object)), name),
                ) from None
            is_path = any(get_origin(part) is os.PathLike for part in get_args(note))
            if is_path and not _names_a_file(value):
                raise UsageError.at_caller(
                    f"The name of a file has neither NUL nor halves of surrogate pairs, as {name} "
                    f"of {title}.",
                    found=_written(value),
                ) from None


def _named_function(argument: str, value: object, note: object) -> str:
    """Return the operation that a text names, where a function is expected, or nothing."""
    core = sys.modules["ocannl_core"]
    if isinstance(value, str) and "a function" in in_words(note) and value in core.__all__:
        return f"write {argument}=oc.{value}"
    return ""


def _names_a_file(value: object) -> bool:
    """Return False for a path that no file can have; True for other objects, too."""
    try:
        return not isinstance(value, str | os.PathLike) or b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _left_the_package(traceback: TracebackType | None) -> bool:
    """True if a function of the user was running."""
    import sysconfig

    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_inside(code) and not code.co_filename.startswith(("<", *libraries)):
            return True
        traceback = traceback.tb_next
    return False


def _mismatch(
    title: str,
    parameters: Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mismatch: TypeError,
    described: Iterable[object],
) -> UsageError:
    missing = re.search(r"missing a required .*'(\w+)'", str(mismatch))
    advice = (
        renamed_arguments(kwargs, parameters)
        or example_of(title)
        or _named_argument(args, kwargs, parameters)
        or (_description(described, missing[1]) if missing else "")
    )
    listed = [
        each.replace(annotation=Parameter.empty)
        for each in parameters.parameters.values()
        if each.name not in _UNSTATED
    ]
    return UsageError.at_caller(
        f"{title} takes the arguments {Signature(listed)}.", found=str(mismatch), fix=advice
    )


def renamed_arguments(given: Iterable[str], parameters: Signature) -> str:
    """Return the names here of arguments in other libraries, as advice, or nothing."""
    unknown = [each for each in given if each not in parameters.parameters]
    found = [
        f"{name if '=' in name else name + '='} for {each}="
        for each in unknown
        for name in _NAMES.get(each, ())
        if name.partition("=")[0] in parameters.parameters
    ]
    others = [_OMITTED[each] for each in unknown if each in _OMITTED]
    advice = ([f"write {', '.join(found)}"] if found else []) + list(dict.fromkeys(others))
    return "; ".join(advice)


def example_of(title: str) -> str:
    """Return a call of a function, if its arguments differ from those of other libraries."""
    return _CALLS.get(title, "")


def _named_argument(args: tuple[Any, ...], kwargs: dict[str, Any], parameters: Signature) -> str:
    """Return the keyword for a single surplus positional argument, as advice, or nothing."""
    kinds = {each.name: each.kind for each in parameters.parameters.values()}
    if Parameter.VAR_POSITIONAL in kinds.values():
        return ""
    named = [name for name, kind in kinds.items() if kind is Parameter.KEYWORD_ONLY]
    places = sum(
        kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        for kind in kinds.values()
    )
    surplus = args[places:]
    if len(surplus) != 1 or not named or named[0] in kwargs or named[0] in _UNSTATED:
        return ""
    return f"write {named[0]}={_written(surplus[0])}"


def _written(value: object) -> str:
    with suppress(Exception):
        if isfunction(value):
            return f"{value.__name__}{signature_of(value)}"
        return reprlib.repr(value)
    return "an object that cannot be printed"


def _description(described: Iterable[object], name: str) -> str:
    """Return the description of a parameter in the first docstring that has one, or nothing."""
    for each in described:
        text = getattr(each, "__doc__", None)
        entry = re.compile(rf"^    {name}: (.*(?:\n {{8}}.*)*)", re.MULTILINE)
        found = entry.search(inspect.cleandoc(text)) if isinstance(text, str) else None
        if found is not None:
            return f"{name}: {' '.join(found[1].split())}"
    return ""


def load_on_demand(
    namespace: dict[str, Any],
    places: Mapping[str, str],
    prepare: Callable[[dict[str, Any], list[str]], None] | None = None,
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a public module.

    Args:
        namespace: The globals of the module.
        places: The modules that define the names.
        prepare: A function of the globals and of names in them that have been loaded.
    """
    title = public_title(namespace)

    def prepared(found: dict[str, Any], names: list[str]) -> None:
        if prepare is not None:
            prepare(found, names)
        found["__name__"] = namespace["__name__"]  # which `guard` reads
        guard(found, names)

    def load(name: str) -> Any:
        if name not in places:
            if (renamed := old_name(f"{title}.{name}")) is not None:
                new, value = renamed
                warn_of_old(f"{title}.{name}", new)
                return value()
            raise missing_name(title, name, namespace["__all__"])
        return import_names(namespace, places, name, prepared)

    return load


def import_names(
    namespace: dict[str, Any],
    places: Mapping[str, str],
    name: str,
    prepare: Callable[[dict[str, Any], list[str]], None],
) -> Any:
    """Return a name after importing its module; it enters a namespace with the module's others.

    Args:
        places: The modules that define the names.
        prepare: A function of the values by name, which may replace them, and of their names.
    """
    module = import_module(places[name])
    together = [each for each, place in places.items() if place == places[name]]
    found = {each: getattr(module, each) for each in together}
    prepare(found, together)
    for each in together:  # another thread may have imported them
        namespace.setdefault(each, found[each])
    return namespace[name]


def places_of(package: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Return the places of names for `load_on_demand`.

    Args:
        package: The name of a package.
        modules: The names, separated by spaces, that each module of the package defines.
    """
    return {
        name: f"{package}.{module}" for module, names in modules.items() for name in names.split()
    }


def list_names(namespace: dict[str, Any]) -> Callable[[], list[str]]:
    """Return the `__dir__` of a public module: its public names, loaded or not."""
    return lambda: sorted({*namespace["__all__"], *(n for n in namespace if n.startswith("__"))})
