"""Check on plugins, and a plugin manager for each backend.

The manager of a backend holds its own plugin, the built-in fallbacks and the wrapper plugins. It
holds no other backend's plugin, so none can answer in its place.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pluggy

from ocannl_core.backend import host_staging
from ocannl_core.backend.protocols import BACKEND_API, VERSIONS_PAGE
from ocannl_core.backend.results import shown, text_of
from ocannl_core.backend.specs import ALL_SPECS, PROJECT
from ocannl_core.backend.time_limit import call_within
from ocannl_core.backend.wrappers import guarded
from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.interruptions import reraise_interruption

HOOK_NAMES: tuple[str, ...] = tuple(
    name for spec in ALL_SPECS for name in vars(spec) if name.startswith(f"{PROJECT}_")
)


_CORE = "ocannl_core"
_INTERFACE = f"{_CORE}.backend_api"


class PluginError(Exception):
    """A plugin cannot be used. The text is the reason, for a row of a report; the cause holds the
    details.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        self.fix = fix
        """A repair by the user or the authors; empty if none is known."""
        super().__init__(reason)


def load(read: Callable[[], object], value: str = "") -> object:
    """Return the plugin object that `read` imports.

    Args:
        read: A function that imports it.
        value: The module, or object in one, that the entry point names.

    Raises:
        PluginError: if the import raises anything, `SystemExit` included, or takes longer than the
            setting `plugin_timeout`.
    """
    try:
        return call_within(settings.current().plugin_timeout, read)
    except TimeoutError as error:
        raise PluginError(
            f"it hangs on import: {describe_hang(error)}; the limit is the setting plugin_timeout"
        ) from error
    except PluginError:
        raise
    except BaseException as error:
        reraise_interruption(error)
        other = _of_another_interface(error, value)
        raise (other or PluginError(f"it fails on import: {describe(error)}")) from error


def _of_another_interface(error: BaseException, value: str) -> PluginError | None:
    """Return the diagnosis of an import that did not find a name of the core; None for other
    errors.

    Args:
        value: The module, or object in one, that the entry point names.
    """
    match error:
        case ImportError(name=str(missing)):
            pass
        case AttributeError(obj=ModuleType(__name__=missing)):
            pass
        case _:
            return None
    if missing.partition(".")[0] != _CORE:
        return None
    stated = stated_version(value)
    ours = ".".join(map(str, BACKEND_API))
    written = "another version" if stated is None else f"version {stated[0]}.{stated[1]}"
    if stated == BACKEND_API:
        written = "another core, of the same version"
    fix = f"update the plugin or ocannl-core\nits authors find the changes in {VERSIONS_PAGE}"
    if f"{missing}.".startswith(f"{_INTERFACE}."):
        outside = ""
    else:
        outside = f"; of the core, the names of {_INTERFACE} alone stay"
    return PluginError(
        f"it was written for {written} of the backend interface, and this core has {ours}: "
        f"{describe(error)}",
        fix + outside,
    )


def stated_version(value: str) -> tuple[int, int] | None:
    """Return the `OCANNL_API` in the source code of a module that cannot be imported; None if
    there is none to be read.

    Args:
        value: The module, or object in one, that the entry point names.
    """
    try:
        spec = importlib.util.find_spec(value.partition(":")[0].strip())
        source = Path(spec.origin or "").read_text(encoding="utf-8") if spec else ""
    except Exception:  # finders of other projects may raise anything
        return None
    found = re.search(r"^OCANNL_API\b[^=\n]*=\s*\((\d+),\s*(\d+)\)", source, re.MULTILINE)
    return (int(found[1]), int(found[2])) if found else None


def describe(error: BaseException) -> str:
    """Return an exception as one line: its type, its text, and the source line that raised it."""
    text = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ").splitlines()[0]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(_HERE)
    ]
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def describe_hang(error: TimeoutError) -> str:
    """Return the end of a time limit as one line, with the source line that was running."""
    place = re.search(r" \([^()]*:\d+\)$", describe(error.__cause__)) if error.__cause__ else None
    return f"{error}{place[0] if place else ''}"


_HERE = str(Path(__file__).resolve().parent)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper plugin."""

    name: str
    owner: str
    """The plugin and its distribution, for messages."""
    plugin: object


def backend_manager(name: str, plugin: object, wrappers: Sequence[Wrapper]) -> pluggy.PluginManager:
    """Return the plugin manager of a backend.

    Raises:
        PluginError: if the plugin violates the hook specifications.
    """
    check_api(plugin)
    manager = _manager_with(name, plugin)
    if not manager.hook.ocannl_targets.get_hookimpls():
        raise PluginError(
            "it does not implement ocannl_targets, the one hook that every backend needs"
        )
    manager.register(host_staging, "built-in host staging")
    for each in wrappers:
        alone = _manager_with(each.name, each.plugin)
        manager.register(guarded(alone, each.plugin, each.name, each.owner), f"wrapper {each.name}")
    return manager


def check_wrapper(name: str, plugin: object) -> None:
    """Check a plugin that wraps the hooks of every backend.

    Raises:
        PluginError: if it breaks the hook specifications or could replace a backend's result.
    """
    check_api(plugin)
    manager = _manager_with(name, plugin)
    for caller in manager.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if not implementation.wrapper:
                raise PluginError(
                    f"{caller.name} must be marked with hookimpl(wrapper=True): a wrapper observes "
                    "a backend and never answers for it"
                )


def packages_of(plugin: object) -> list[ModuleType]:
    """Return the packages around the module, or the class, of a plugin, the outermost first.

    Namespace packages are among them, and a plugin that is a package is the last one.
    """
    name = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    outer = [sys.modules.get(name[: dot.start()]) for dot in re.finditer(r"\.", name)]
    around = [*outer, sys.modules.get(name, plugin)]
    return [each for each in around if isinstance(each, ModuleType) and hasattr(each, "__path__")]


def package_of(plugin: object) -> Path | None:
    """Return the folder of the outermost package that a module is in, namespaces excepted; None for
    a module in no package, and for an object, which may come from files of other packages.
    """
    around = packages_of(plugin) if isinstance(plugin, ModuleType) else []
    files = [file for each in around if (file := getattr(each, "__file__", None)) is not None]
    return Path(files[0]).parent if files else None


def check_api(plugin: object) -> None:
    """Check that a plugin was written for this version of `BACKEND_API`.

    Raises:
        PluginError: if it states no version, one with another major number, or a later one.
    """
    try:
        stated = getattr(plugin, "OCANNL_API", None)
    except BaseException as error:
        reraise_interruption(error)
        raise PluginError(f"its OCANNL_API cannot be read: {describe(error)}") from error
    major, minor = BACKEND_API
    ours = f"({major}, {minor})"
    if stated is None:
        raise PluginError(
            f"it states no OCANNL_API; a plugin for this version states OCANNL_API = {ours}"
        )
    is_pair = type(stated) is tuple and [type(part) for part in stated] == [int, int]
    if not is_pair or min(stated) < 0:
        raise PluginError(
            f"its OCANNL_API must be two integers such as {ours}, and is {shown(stated)}"
        )
    if stated[0] != major:
        raise PluginError(
            f"it was written for version {stated[0]} of the backend interface, and this is "
            f"version {major}: update the plugin or ocannl-core",
            f"authors find the changes in {VERSIONS_PAGE}",
        )
    if stated[1] > minor:
        raise PluginError(
            f"it needs version {stated[0]}.{stated[1]} of the backend interface, and this is "
            f"version {major}.{minor}: update ocannl-core",
            f"pip install --upgrade ocannl-core; {VERSIONS_PAGE} lists the versions",
        )


class _Manager(pluggy.PluginManager):
    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """Return the mark of a hook; None for an imported function of the core, such as `transfer`,
        which some plugin has marked as a hook under the name of that hook.
        """
        module = getattr(getattr(plugin, name, None), "__module__", None) or ""
        if name not in HOOK_NAMES and module.startswith("ocannl_core."):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _manager_with(name: str, plugin: object) -> pluggy.PluginManager:
    """Return a manager holding one plugin, all of whose hooks have known names and arguments."""
    manager = _Manager(PROJECT)
    for spec in ALL_SPECS:
        manager.add_hookspecs(spec)
    try:
        for hook in HOOK_NAMES:
            implementation = getattr(plugin, hook, None)
            if implementation is not None and not hasattr(implementation, f"{PROJECT}_impl"):
                raise PluginError(
                    f"{hook} is not marked with @hookimpl, so it would never be called"
                    if callable(implementation)
                    else f"{hook} must be a function, and is {shown(implementation)}"
                )
        manager.register(plugin, name)
        manager.check_pending()
    except PluginError:
        raise
    except pluggy.PluginValidationError as error:
        raise PluginError(
            f"it does not follow the hook specifications: {_reason(error)}"
        ) from error
    except BaseException as error:
        reraise_interruption(error)
        raise PluginError(f"it cannot be registered: {describe(error)}") from error
    return manager


def _reason(error: pluggy.PluginValidationError) -> str:
    """Return the text of a validation error without the representation of the plugin object."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith("Plugin ")]
    text = "; ".join(useful or lines)
    return text.split(" in plugin ", 1)[0]
