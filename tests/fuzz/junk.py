"""Junk as the arguments of every public callable: each call returns, or is refused with a reason.

    python -m tests.fuzz.run --junk --count 100 --seed 1

A refusal is an `OcannlError`, or a `TypeError` or `ValueError` that names an argument. Any other
exception is a failure, and so are hangs and crashes.
"""

from __future__ import annotations

import argparse
import inspect
import io
import resource
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ocannl_core as oc

from .limits import Hang, limited

SECONDS = 20
"""A call that takes longer hangs."""
MEMORY = 8 << 30
"""Of a process that calls; a test process has much of its own."""

CELLS = 1000
"""Larger results are not computed."""

MODULES = ("", "nn", "train", "data", "custom", "settings")

INTERNAL = frozenset(
    {
        "hookimpl",  # of pluggy
        "Communicator",  # a protocol
        "DeviceFailure",  # an enumeration
        "load_exported",  # of the standard library alone, with errors of its own
        # for authors of plugins, and for the core
        "oc.settings.as_of_now",
        "oc.settings.code_settings",
        "oc.settings.declare",
        "oc.settings.declared_plugins",
        "oc.settings.describe_plugin",
        "oc.settings.forget_plugins",
        "oc.settings.held",
        "oc.settings.of_plugin",
        "oc.settings.setting",
        "oc.settings.unread_settings",
    }
)

METHODS = frozenset(
    {"__call__", "__getitem__", "__setitem__", "__contains__", "__iter__", "__len__"}
)


class Bench:
    """Small valid objects of every kind that arguments have, each made when it is first used."""

    def __init__(self) -> None:
        self.session = oc.reset(seed=1)

    @cached_property
    def x(self) -> oc.Tensor:
        return oc.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))

    @cached_property
    def images(self) -> oc.Tensor:
        return oc.tensor(np.ones((2, 6, 6, 4), np.float32), batch_axes=1)

    @cached_property
    def ids(self) -> oc.Tensor:
        return oc.tensor(np.array([0, 2, 1], np.int32))

    @cached_property
    def scalar(self) -> oc.Tensor:
        return oc.number(2.0)

    @cached_property
    def weights(self) -> oc.Tensor:
        return oc.param("w", output=[4])

    @cached_property
    def loss(self) -> oc.Tensor:
        return oc.sum(self.weights * self.x)

    @cached_property
    def placeholder(self) -> oc.Tensor:
        return oc.placeholder("data", batch=[2], output=[4])

    @cached_property
    def index(self) -> oc.StaticIndex:
        return oc.static_index("i", range=3)

    @cached_property
    def extent(self) -> oc.StaticExtent:
        return oc.static_extent("n", max=3)

    @cached_property
    def dimension(self) -> oc.Dimension:
        return oc.dim("d")

    @cached_property
    def computation(self) -> oc.Computation:
        return oc.train.forward(self.x * 2.0)

    @cached_property
    def context(self) -> oc.Context:
        return oc.Context("interp")

    @cached_property
    def routine(self) -> oc.Routine:
        return self.context.compile(self.computation)

    @cached_property
    def block(self) -> Any:
        return oc.nn.dense(output=[3])

    @cached_property
    def optimizer(self) -> Any:
        return oc.train.AdamW(learning_rate=0.1)

    @cached_property
    def loader(self) -> Any:
        return oc.data.Loader(np.ones((6, 4), np.float32), batch=2)

    @cached_property
    def schedule(self) -> Any:
        return oc.train.cosine(0.1, steps=10)

    @cached_property
    def summary(self) -> Any:
        return oc.summary(self.loss)

    @cached_property
    def generator(self) -> Any:
        model = oc.nn.gpt(vocabulary=5, layers=1, heads=1, width=4, length=4)
        return oc.nn.Generator(self.context, model, length=4)

    @cached_property
    def foreign(self) -> oc.Tensor:
        before = self.session
        with oc.Session():
            other = oc.tensor(np.ones(4, np.float32))
        assert before is not other.session
        return other


OBJECTS = ("x", "context", "routine", "computation", "block", "session", "loader", "index", "extent", "dimension", "optimizer",
           "schedule", "summary", "generator")  # fmt: skip
TENSORS = ("x", "x", "images", "ids", "scalar", "weights", "loss", "placeholder", "foreign")

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, -1, -7, True, 1.0, 0.5, -0.5, 2**31, 2**63, -(2**63), 10**30, 1e30, float("inf"), float("nan"), 3j, np.int64(2),
    np.float32(0.5), np.array(2), Decimal("1.5"), Fraction(1, 3),
)  # fmt: skip
TEXTS = (
    "", "a", "x", "no such", "float32", "int32", "mean", "none", "-1", "...|...", "ij; jk => ik", "... => ...", "a\nb", "\0", "é", b"bytes",
    "/", "folder/none",
)  # fmt: skip
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: None, object, lambda: ..., lambda: slice(None), lambda: slice(0, 2**63), list, dict, tuple, set, lambda: [0, 1], lambda: (1, 0),
    lambda: [None], lambda: ["a"], lambda: {"a": 1}, lambda: {1: "a"}, lambda: [[1, 2], [3]], lambda: [-1], lambda: [2**40], lambda: (0, 0),
    lambda: (1, 2, 3, 4, 5), lambda: np.ones(3), lambda: np.zeros((0, 2)), lambda: np.array(["a"]), lambda: np.array([None]),
    lambda: np.array([], int), lambda: lambda *a, **k: None, lambda: lambda x, *a, **k: x, lambda: len, lambda: int, lambda: oc,
    lambda: oc.relu, lambda: oc.nn.dense, lambda: oc.float32, lambda: oc.neutral, lambda: Path("p"), lambda: iter([1]), lambda: range(3),
    lambda: ValueError("v"), lambda: [1.5], lambda: {"w": 0}, lambda: NotImplemented, io.BytesIO,
)  # fmt: skip


@dataclass(frozen=True)
class Door:
    """A public callable.

    Attributes:
        title: Its name, as users write it.
        get: The callable itself, from the objects of a case.
        parameters: Its parameters, without `self`.
    """

    title: str
    get: Callable[[Bench], Callable[..., Any]]
    parameters: tuple[inspect.Parameter, ...]


def doors() -> list[Door]:
    """Return every public callable: functions, operations, classes, and methods of objects."""
    found = []
    for module_name in MODULES:
        module = getattr(oc, module_name) if module_name else oc
        title = f"oc.{module_name}." if module_name else "oc."
        for name in module.__all__ if hasattr(module, "__all__") else _public(module):
            value = getattr(module, name)
            if (
                not callable(value)
                or inspect.isabstract(value)
                or not INTERNAL.isdisjoint({name, title + name})
                or (isinstance(value, type) and issubclass(value, BaseException))
            ):
                continue
            found.append(Door(title + name, lambda bench, value=value: value, _parameters(value)))
    for name in OBJECTS:
        value = getattr(Bench(), name)
        for method in sorted({*_public(type(value)), *METHODS}):
            owner = next((each for each in type(value).__mro__ if method in vars(each)), object)
            if not owner.__name__.startswith("_") and inspect.isroutine(vars(owner).get(method)):
                found.append(
                    Door(
                        f"{name}.{method}",
                        lambda bench, name=name, method=method: getattr(
                            getattr(bench, name), method
                        ),
                        _parameters(getattr(value, method)),
                    )
                )
    return found


def _public(owner: Any) -> set[str]:
    here = getattr(owner, "__name__", "")
    hidden = getattr(owner, "_of_the_core", ())
    return {
        name
        for name in dir(owner)
        if not (name.startswith("_") or name in hidden)
        and (isinstance(owner, type) or getattr(getattr(owner, name), "__module__", None) == here)
    }


def _parameters(value: Any) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return (inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),)


def junk(random: Random, bench: Bench) -> Any:
    """Return any object."""
    kind = random.randrange(5)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(TEXTS)
    if kind == 2:
        return getattr(bench, random.choice(TENSORS))
    if kind == 3:
        return getattr(bench, random.choice(OBJECTS))
    return random.choice(OTHERS)()


_BY_NAME: Mapping[str, tuple[str | Callable[[], Any], ...]] = {
    "x": ("x", "images", "scalar"), "a": ("x",), "b": ("x",), "ids": ("ids",), "targets": ("ids", "x"), "scores": ("x",), "loss": ("loss",),
    "tensor": ("x", "loss"), "ctx": ("context",), "step": ("routine",), "subject": ("loss", "computation"), "loader": ("loader",),
    "model": ("block",), "queries": ("images",), "keys": ("images",), "values": ("images", "x"), "inputs": (lambda: [],), "xs": ("images",),
    "optimizer": ("optimizer",), "i": ("index",), "y": ("loss",), "init": ("x",), "computation": ("computation",), "steps": (lambda: 10,),
    "args": ("x",), "operands": ("x",), "function": (lambda: oc.relu, lambda: len), "spec": (lambda: "... => ...", lambda: "ij; jk => ik"),
    "axis": (lambda: 0, lambda: -1), "name": (lambda: "p",), "path": (lambda: "p.safetensors",), "learning_rate": (lambda: 0.1,),
    "batch": (lambda: 2,), "axes": (lambda: 2, lambda: 0), "positions": ("ids",), "predictions": ("x",),
}  # fmt: skip
"""Valid arguments for parameters of these names."""


def argument(random: Random, bench: Bench, parameter: inspect.Parameter) -> Any:
    """Return junk, or a value that the parameter may take."""
    if random.random() < 0.45:
        return junk(random, bench)
    if parameter.name in _BY_NAME:
        chosen = random.choice(_BY_NAME[parameter.name])
        return getattr(bench, chosen) if isinstance(chosen, str) else chosen()
    note = str(parameter.annotation)
    if note.startswith("int"):
        return random.choice((1, 2))
    if note.startswith("float"):
        return 0.5
    if note.startswith("bool"):
        return True
    if note.startswith("Tensor"):
        return bench.x
    return junk(random, bench)


def arguments(
    random: Random, bench: Bench, parameters: tuple[inspect.Parameter, ...]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments for parameters of this kind."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            positional += [
                argument(random, bench, each) for _ in range(random.choice((0, 1, 1, 2, 3)))
            ]
        elif each.kind is each.VAR_KEYWORD:
            if random.random() < 0.1:
                named[random.choice(("junk", "lr", "dim"))] = junk(random, bench)
        elif each.default is not each.empty and random.random() < 0.7:
            if each.kind is each.POSITIONAL_ONLY:
                break
        elif each.kind is each.KEYWORD_ONLY or (
            each.default is not each.empty and each.kind is not each.POSITIONAL_ONLY
        ):
            named[each.name] = argument(random, bench, each)
        elif random.random() < 0.98:
            positional.append(argument(random, bench, each))
    if random.random() < 0.02:
        named["junk"] = junk(random, bench)
    return positional, named


@dataclass(frozen=True)
class Failure:
    """A call that ended as none may end.

    Attributes:
        call: The callable and its arguments.
        kind: The class of the exception, or `hang`.
        error: The exception.
    """

    call: str
    kind: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.call}\n    {self.kind}: {str(self.error)[:300]}"


def is_refusal(error: BaseException, door: Door) -> bool:
    """True of an exception that explains which argument it refuses."""
    if isinstance(error, oc.OcannlError):
        return not isinstance(error, oc.VerifyError)
    if isinstance(error, OSError):
        return error.filename is not None
    if isinstance(error, TypeError | ValueError):
        return any(each.name in str(error) for each in door.parameters) or "argument" in str(error)
    return False


def failures(seed: int, count: int, chosen: Iterable[Door]) -> Iterator[Failure]:
    """Call public callables so many times each; yield calls that fail otherwise than by refusal."""
    for door in chosen:
        for number in range(count):
            failure = call(door, Random(f"{seed} {door.title} {number}"))
            if failure is not None:
                yield failure


def call(door: Door, random: Random) -> Failure | None:
    """Return the failure of a call with random arguments, if it fails."""
    bench = Bench()
    function = door.get(bench)
    args, kwargs = arguments(random, bench, door.parameters)
    written = ", ".join(
        [*map(_written, args), *(f"{name}={_written(value)}" for name, value in kwargs.items())]
    )
    text = f"{door.title}({written})"
    try:
        with warnings.catch_warnings(), limited(SECONDS), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            use(function(*args, **kwargs), bench)
            return None
    except Hang as hang:
        return Failure(text, "hang", hang)
    except Exception as error:
        return None if is_refusal(error, door) else Failure(text, type(error).__name__, error)


def use(result: Any, bench: Bench) -> None:
    """Enter, compile, run or evaluate the result of a call."""
    if isinstance(result, oc.Tensor):
        if result.session is bench.session and (result.size or 0) <= CELLS:
            bench.context.init_params(result)
            routine = bench.context.compile(oc.train.forward(result))
            routine()
            bench.context[result]
    elif isinstance(result, oc.train.Schedule):
        result(0)
    elif isinstance(result, oc.train.Optimizer):
        bench.context.compile(result.update(bench.loss))
    elif isinstance(result, oc.data.Loader):
        next(iter(result), None)
    elif isinstance(result, oc.custom.Op):
        use(result(bench.x), bench)
    elif hasattr(result, "__enter__"):
        with result:
            pass


def _written(value: Any) -> str:
    with suppress(Exception):
        return repr(value)[:120]
    return f"<{type(value).__name__}>"


def main(arguments: Sequence[str]) -> int:
    """Print failures; return 1 if there were some."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many calls of each callable")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a part of the names of callables: oc.nn.")
    chosen = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found = 0
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        selected = [door for door in doors() if chosen.only in door.title]
        for failure in failures(chosen.seed, chosen.count, selected):
            found += 1
            print(failure, flush=True)
    print(f"{found} failures in {chosen.count} calls of each of {len(selected)} callables")
    return 1 if found else 0
