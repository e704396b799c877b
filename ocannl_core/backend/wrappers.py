"""Wrapper plugins under guard: each may observe the result of a hook, and not change it.

The guard of a wrapper runs it step by step. A wrapper that fails, swallows an error, or returns
something else than the result that it was given is named in the error, not the backend inside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from types import ModuleType
from typing import Any, cast

import pluggy

from ocannl_core.backend.results import shown, text_of
from ocannl_core.base.errors import HookError
from ocannl_core.base.interruptions import reraise_interruption

Steps = Generator[None, Any, Any]


def guarded(manager: pluggy.PluginManager, plugin: object, name: str, owner: str) -> object:
    """Return a plugin with the hooks of a wrapper, each under guard.

    Args:
        owner: The plugin and its distribution, for messages.
    """
    module = ModuleType(f"guarded {name}")  # pluggy registers hashable objects
    for caller in manager.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                function = cast("Callable[..., Steps]", implementation.function)
                watched = _Watched(function, caller.name, name, owner)
                setattr(module, caller.name, watched.hook())
    return module


class _Watched:
    """One hook of a wrapper."""

    def __init__(
        self, function: Callable[..., Steps], hook_name: str, name: str, owner: str
    ) -> None:
        self._function = function
        self._hook_name = hook_name
        self._name = name
        self._owner = owner

    def hook(self) -> Callable[..., Steps]:
        """Return the hook under guard, with the parameters of the wrapper's own."""

        @wraps(self._function)
        def run(*arguments: object) -> Steps:
            steps = self._start(arguments)
            try:
                result = yield
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                self._pass_error(steps, error)
                raise
            self._pass_result(steps, result)
            return result

        return run

    def _start(self, arguments: tuple[object, ...]) -> Steps:
        try:
            steps = self._function(*arguments)
            next(steps)
        except StopIteration as end:
            raise self._fault("it ended before its yield, so no plugin would run") from end
        except BaseException as error:
            reraise_interruption(error)
            raise self._fault(f"it raised {_described(error)}") from error
        return steps

    def _pass_result(self, steps: Steps, result: object) -> None:
        """Run the wrapper to its end, with the result of the hook."""
        before = _content(result)
        try:
            steps.send(result)
        except StopIteration as end:
            if end.value is not result:
                found = f"it returned {shown(end.value)} in the place of {shown(result)}"
                raise self._fault(found, "end it with: result = yield; return result") from None
            if not _is_same(_content(result), before):
                raise self._fault(f"it changed the result to {shown(result)}") from None
        except BaseException as error:
            reraise_interruption(error)
            raise self._fault(f"it raised {_described(error)}") from error
        else:
            steps.close()
            raise self._fault("it has a second yield")

    def _pass_error(self, steps: Steps, error: BaseException) -> None:
        """Run the wrapper to its end, with an error of the hook that it must let through."""
        try:
            steps.throw(error)
        except StopIteration as end:
            found = f"it returned {shown(end.value)} in the place of {_described(error)}"
            raise self._fault(f"it swallowed an error: {found}") from error
        except BaseException as raised:
            if raised is not error:
                reraise_interruption(raised)
            if raised is not error:
                found = f"it raised {_described(raised)} in the place of {_described(error)}"
                raise self._fault(found) from raised
        else:
            steps.close()
            raise self._fault("it has a second yield") from error

    def _fault(self, found: str, fix: str = "") -> HookError:
        advice = f"OCANNL_DISABLE_PLUGINS={self._name} leaves it out; its authors should repair it"
        return HookError(
            "A wrapper observes the result of a hook, and passes it on as it is.",
            found=f"{self._hook_name}: {found}",
            where=f"wrapper {self._name}, {self._owner}",
            fix=f"{fix}\n{advice}" if fix else advice,
        )


def _described(error: BaseException) -> str:
    text = text_of(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _content(result: object) -> object:
    """Return a copy of a result that a wrapper can change in place."""
    return [_content(each) for each in result] if isinstance(result, list) else result


def _is_same(found: object, expected: object) -> bool:
    """Return True if two results are the same objects, list by list."""
    if isinstance(found, list) and isinstance(expected, list):
        pairs = zip(found, expected, strict=False)
        return len(found) == len(expected) and all(_is_same(a, b) for a, b in pairs)
    return found is expected
