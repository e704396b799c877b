"""Names of public modules that are imported at their first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ocannl_core.base.renamed import old_name, warn_of_old
from ocannl_core.tensor.messages.call_errors import guard, public_title
from ocannl_core.tensor.messages.foreign_modules import missing_name


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

    def load(name: str) -> Any:
        if name not in places:
            if (renamed := old_name(f"{title}.{name}")) is not None:
                new, value = renamed
                warn_of_old(f"{title}.{name}", new)
                return value()
            raise missing_name(title, name, namespace["__all__"])
        module = import_module(places[name])
        together = [each for each, place in places.items() if place == places[name]]
        namespace.update({each: getattr(module, each) for each in together})
        if prepare is not None:
            prepare(namespace, together)
        guard(namespace, together)
        return namespace[name]

    return load


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
