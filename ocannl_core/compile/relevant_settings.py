"""Settings that the results of compilation depend on."""

from __future__ import annotations

from dataclasses import fields

from ocannl_core.base import settings

_WITHOUT_EFFECT = frozenset(
    {
        "asynchronous",
        "cache_dir",
        "device_memory",
        "dump_dir",
        "plugin_timeout",
        "profile",
        "trusted_directories",
    }
)
# fmt: off
_OF_THE_FRONT_END = frozenset((
    "allow_nan", "backend", "default_dtype", "disable_plugins", "fallback", "fill_limit",
    "half_constant_cutoff", "host_devices", "load_plugins", "missing_axes", "param_dtype",
    "print_decimals", "print_edge", "python_ops", "seed", "strict_plugins", "threefry_rounds",
    "warn_summed_once",
))
# fmt: on
"""Settings whose effect shows in the lowered program, or in the choice of the device."""
_OF_TUNING = frozenset({"tune", "tune_budget", "tune_placements"})


def relevant_settings(backend: str) -> list[tuple[str, object]]:
    """Return the settings that generated code may depend on, also those of the backend."""
    return _except(_WITHOUT_EFFECT) + settings.code_settings(backend)


def settings_after_lowering() -> list[tuple[str, object]]:
    """Return the settings that the code of a lowered program may depend on, but for settings of
    tuning. All that are not known to be without effect are among them.
    """
    return _except(_WITHOUT_EFFECT | _OF_THE_FRONT_END | _OF_TUNING)


def _except(left_out: frozenset[str]) -> list[tuple[str, object]]:
    chosen = settings.current()
    names = sorted(each.name for each in fields(chosen) if each.name not in left_out)
    return [(name, getattr(chosen, name)) for name in names]
