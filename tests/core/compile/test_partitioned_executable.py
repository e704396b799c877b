"""Transfers between the parts of a routine: each device has the values that its parts read."""

from __future__ import annotations

from typing import Any

from ocannl_core.compile.partitioned_executable import FlowStep, Transfer, flow_of
from ocannl_core.compile.parts import Part
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import Plan, RepeatedSteps, kernel_of
from ocannl_core.ir.loops import nodes as ir
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32

NODES = {name: TensorNode(number, (name,)) for number, name in enumerate("abcd")}


def part(device: int, target: str, source: str) -> Part:
    """Return a part that computes one node from another one."""
    load = ir.Load(NODES[source], (), float32)
    body = ir.Block((ir.Store(NODES[target], (), load),))
    kernel = kernel_of(body)
    infos = {node: NodeInfo(float32, ()) for node in kernel.arguments}
    plan: Plan = Plan("part", (kernel,), kernel.arguments, (), (), infos)
    return Part(device, plan, Any)  # type: ignore[arg-type]


def repeated(*items: Part, scratch: str = "") -> RepeatedSteps[Part]:
    private = tuple(NODES[name] for name in scratch)
    index = StaticIndex("i", 3)
    return RepeatedSteps(index, 3, False, items, private)


def text(steps: tuple[FlowStep, ...]) -> list[Any]:
    """Return steps for comparison: `a01` is a transfer of a node from device 0 to 1."""
    found: list[Any] = []
    for step in steps:
        match step:
            case Transfer(node, source, destination):
                found.append(f"{node.name}{source}{destination}")
            case RepeatedSteps(steps=inside):
                found.append(text(inside))
            case Part(device):
                found.append(device)
    return found


def flow(*items: Any, params: str = "", shared: str = "") -> list[Any]:
    together = {NODES[name]: frozenset({0, 1}) for name in shared}
    return text(flow_of(items, [NODES[name] for name in params], together))


def test_values_are_copied_where_they_are_read_and_back_at_the_end() -> None:
    assert flow(part(1, "b", "a"), params="ab") == ["a01", "b01", 1, "b10"]
    assert flow(part(1, "b", "a"), params="a") == ["a01", 1]
    assert flow(part(1, "b", "a"), params="ab", shared="ab") == [1]


def test_a_value_is_copied_once() -> None:
    parts = part(1, "b", "a"), part(0, "d", "b"), part(1, "c", "a"), part(0, "d", "b")
    assert flow(*parts, params="a") == ["a01", 1, "b10", 0, 1, 0]


def test_iterations_find_values_where_the_first_one_does() -> None:
    there, back = part(1, "b", "a"), part(0, "a", "b")
    assert flow(repeated(there, back, scratch="b"), params="a") == [["a01", 1, "b10", 0]]


def test_a_value_that_no_iteration_writes_is_copied_before_the_first_one() -> None:
    assert flow(repeated(part(1, "b", "a")), params="a") == ["a01", [1]]
    assert flow(repeated(part(1, "b", "a"), part(0, "c", "a")), params="a") == ["a01", [1, 0]]


def test_a_value_of_the_iteration_before_is_copied_to_its_reader() -> None:
    """Before the first iteration, `a` has no value anywhere."""
    found = flow(repeated(part(0, "b", "a"), part(1, "a", "b")), part(0, "c", "a"), params="c")
    assert found == [["a10", 0, "b01", 1], "a10", 0]
