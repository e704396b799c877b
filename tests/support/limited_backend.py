"""The interpreter under another name, on a device that lacks parts of the language."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.ir.numbers.primitives import EVERY_PRIMITIVE, Op, Primitives, VectorOp
from ocannl_core.ir.target import Capability, Target


def limited(name: str = "limited", /, hooks: Any = None, **facts: Any) -> Target:
    """Register the interpreter under a name; its target has all capabilities, but for `facts`.

    Args:
        hooks: Further hooks by name.
    """
    facts = {"capabilities": tuple(Capability), "has_fma": True, **facts}
    target = Target(name, **facts)

    @hookimpl
    def ocannl_targets() -> TargetReport:
        return TargetReport((target,))

    module = ModuleType(name)
    vars(module).update(vars(ocannl_interp))
    vars(module)["ocannl_targets"] = ocannl_targets
    found: dict[str, Callable[..., Any]] = hooks or {}
    for hook, function in found.items():
        setattr(module, hook, hookimpl(function))
    manager.register(name, module)
    return manager.select(name)[1]


def all_but(*lacking: Op | VectorOp) -> Primitives:
    """Return all primitives but some."""
    return tuple(op for op in EVERY_PRIMITIVE if op not in lacking)


def capabilities_but(*lacking: Capability) -> tuple[Capability, ...]:
    """Return all capabilities but some."""
    return tuple(each for each in Capability if each not in lacking)
