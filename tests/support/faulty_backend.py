"""The interpreter under another name, with some of its hooks replaced by faulty ones."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ocannl_core as oc
import ocannl_interp
from ocannl_core.backend import manager
from ocannl_core.backend.protocols import TargetReport
from ocannl_core.backend.specs import hookimpl
from ocannl_core.ir.target import Target


def faulty(name: str = "faulty", /, **hooks: Callable[..., Any]) -> None:
    """Register the interpreter under a name, with some of its hooks replaced."""

    @hookimpl
    def ocannl_targets() -> TargetReport:
        return TargetReport((Target(name),))

    module = ModuleType(name)
    vars(module).update(vars(ocannl_interp))
    vars(module)["ocannl_targets"] = ocannl_targets
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    manager.register(name, module)


def run(backend: str) -> list[float]:
    """Return the result of a program that calls every hook."""
    with oc.Session():
        inner = oc.tensor([1.0, 2.0]) * 3.0
        outer = oc.einsum("i; j => i,j", inner, inner)  # reads each cell of `inner` often
        ctx = oc.Context(backend)
        step = ctx.compile(oc.train.forward(outer))
        step()
        ctx.synchronize()
        found: list[float] = ctx[outer].ravel().tolist()
        return found
