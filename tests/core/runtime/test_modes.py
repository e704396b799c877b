"""A backend chooses among the memory modes that the core leaves open."""

from __future__ import annotations

from types import ModuleType

import pytest

import ocannl_core as oc
import ocannl_interp
from ocannl_core.hooks import manager
from ocannl_core.hooks.specs import hookimpl
from ocannl_core.node import MemoryMode, NodeInfo, Reason, TensorNode
from ocannl_core.target import Target, TargetReport


def keeper() -> ModuleType:
    """The interpreter, with an opinion about memory modes."""

    @hookimpl
    def ocannl_targets() -> TargetReport:
        return TargetReport((Target("keeper"),))

    @hookimpl
    def ocannl_resolve_mode(
        node: TensorNode, info: NodeInfo, candidates: tuple[MemoryMode, ...], target: Target
    ) -> MemoryMode | None:
        return MemoryMode.ON_DEVICE

    module = ModuleType("keeper")
    vars(module).update(vars(ocannl_interp))
    vars(module).update(ocannl_targets=ocannl_targets, ocannl_resolve_mode=ocannl_resolve_mode)
    return module


def test_a_node_that_could_be_local_stays_when_the_backend_wants_it() -> None:
    manager.register("keeper", keeper())
    try:
        with oc.Session():
            inner = oc.tensor([1.0, 2.0]) * 3.0
            outer = oc.einsum("i; j => i,j", inner, inner)  # reads each cell often
            ctx = oc.Context("keeper")
            step = ctx.compile(oc.train.forward(outer))
            step()
            assert ctx[inner].tolist() == [3.0, 6.0]
            assert step.placements[inner.node].reason is Reason.BACKEND_CHOICE
            plain = oc.Context("interp")
            plain.compile(oc.train.forward(outer))()
            with pytest.raises(oc.LinkError, match="read more often than max_visits"):
                plain[inner]
    finally:
        manager.refresh()
