"""Calls of routines, specialized to their static indices: most cost a few comparisons."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from typing import Any, SupportsIndex

Accepted = tuple[tuple[str, range | None], ...]
"""The static indices of a call, and the range of each; None for no bound."""

_MISSING: Any = object()
_FILE = str(Path(__file__).with_name("<call of a routine>"))
"""The file name in tracebacks, by which frames of a call are told from frames of the caller."""


@lru_cache(maxsize=256)
def callable_class(
    routine: type[Any],
    accepted: Accepted,
    order: tuple[str, ...],
    extents: tuple[tuple[str, int], ...] = (),
) -> type[Any]:
    """Return a subclass of routines, with the same attributes, whose call takes these names.

    Integers in their ranges go straight to the code if the routine ran last, with the same
    extents, else to `_start`. All other arguments go to the call of the class itself, which raises
    the errors.

    Args:
        accepted: The static indices; the range of one does not depend on the others.
        order: The indices that the compiled code uses, in the order in which it takes them.
        extents: The extents at run time among the static indices, with their defaults.
    """
    names = [name for name, _ in accepted]
    if not all(name.isascii() and name.isidentifier() and not iskeyword(name) for name in names):
        return routine  # such names may be given as `**{name: value}`

    def otherwise(
        self: Any, positional: tuple[object, ...], given: Mapping[str, SupportsIndex]
    ) -> None:
        found = {name: value for name, value in given.items() if value is not _MISSING}
        routine.__call__(self, *positional, **found)

    called = _function(accepted, order, extents, otherwise)
    called.__doc__, called.__module__ = routine.__call__.__doc__, routine.__module__
    called.__qualname__ = routine.__call__.__qualname__
    called.__signature__ = _signature(names, dict(extents))
    content = {"__slots__": (), "__call__": called, "__doc__": routine.__doc__}
    subclass = type(routine.__name__, (routine,), content)
    subclass.__module__, subclass.__qualname__ = routine.__module__, routine.__qualname__
    return subclass


def _function(
    accepted: Accepted, order: Sequence[str], extents: Sequence[tuple[str, int]], otherwise: Any
) -> Any:
    """Return the method `__call__`."""
    names = [name for name, _ in accepted]
    own = _prefix(names)
    defaults = dict(extents)
    given = [f"{name}={defaults.get(name, f'{own}missing')}" for name in names]
    parameters = ["/", f"*{own}positional", *given]
    checks = [f"not {own}others", f"not {own}positional"]
    for name, bounds in accepted:
        checks.append(f"{own}type({name}) is {own}int")
        if bounds is not None:
            checks.append(f"{bounds.start} <= {name} < {bounds.stop}")
    values = "".join(f"{name}, " for name in order)
    sizes = "".join(f"{name}, " for name, _ in extents)
    again = f" and {own}self._run.values == ({sizes})" if extents else ""
    stated = f"({values}), ({sizes})" if extents else f"({values})"
    taken = "".join(f"{name!r}: {name}, " for name in names)
    source = f"""\
def __call__({own}self, {", ".join(parameters)}, **{own}others):
    if {" and ".join(checks)}:
        if {own}self._history.last is {own}self._run{again}:
            try:
                {own}self._launch(({values}))
            except {own}faults as {own}error:
                {own}self._raise_fault({own}error)
        else:
            {own}self._start({stated})
    else:
        {own}otherwise({own}self, {own}positional, {{{taken}**{own}others}})
"""
    meant = {"missing": _MISSING, "type": type, "int": int, "otherwise": otherwise}
    meant["faults"] = Exception
    namespace: dict[str, Any] = {own + name: value for name, value in meant.items()}
    exec(compile(source, _FILE, "exec"), namespace)
    return namespace["__call__"]


def _prefix(names: Sequence[str]) -> str:
    """Return a prefix that no index has: more underscores than any of them begins with."""
    return "_" * (1 + max((len(name) - len(name.lstrip("_")) for name in names), default=0))


def _signature(names: Sequence[str], defaults: Mapping[str, int]) -> inspect.Signature:
    """Return the signature for `help`: indices are required keywords, extents are not."""
    name = "self" if "self" not in names else f"{_prefix(names)}self"
    receiver = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
    indices = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation="SupportsIndex",
            default=defaults.get(name, inspect.Parameter.empty),
        )
        for name in names
    ]
    return inspect.Signature([receiver, *indices], return_annotation="None")
