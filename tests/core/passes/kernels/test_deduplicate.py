"""Deduplication of kernels, and the names of their copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ocannl_core.ir.indexing import StaticIndex, VarIndex
from ocannl_core.ir.kernels.nodes import Kernel, StepReplacement
from ocannl_core.ir.loops.nodes import Block, Const, Store
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32, float64
from ocannl_core.passes.kernels.deduplicate import KernelMemo

Info = Mapping[TensorNode, NodeInfo]


def kernel(name: str, extent: int = 8, value: float = 1.0) -> tuple[TensorNode, Store]:
    node = TensorNode(0, (name,))
    return node, Store(
        node, (VarIndex(StaticIndex(f"{name}_index", extent)),), Const(value, float32)
    )


def maker(node: TensorNode, store: Store, calls: list[str]) -> Callable[[], StepReplacement]:
    def make() -> StepReplacement:
        calls.append(node.name)
        row = TensorNode(7, (*node.label, "row"))
        nest = Kernel(
            Block((store,)), (node,), (), f"copies for {node.name} = 1 (writes {node.name})"
        )
        return StepReplacement((nest,), (row,), {row: NodeInfo(float32, (3,))})

    return make


def made(
    alike: KernelMemo, calls: list[str], name: str, info: NodeInfo | None = None, **options: float
) -> tuple[TensorNode, StepReplacement]:
    node, store = kernel(name, **options)  # type: ignore[arg-type]
    nodes = {node: info or NodeInfo(float32, (8,))}
    titles = [f"{name} = 1 (writes {name})"]
    return node, alike.made(store, titles, nodes, maker(node, store, calls))


def test_the_second_one_is_a_copy_with_names_of_its_own() -> None:
    alike, calls = KernelMemo(), list[str]()
    _, first = made(alike, calls, "one")
    node, second = made(alike, calls, "two")
    assert calls == ["one"]
    (nest,) = second.steps
    assert isinstance(nest, Kernel)
    assert nest.like is first.steps[0]
    assert nest.arguments == (node,)
    assert nest.title == "copies for two = 1 (writes two)"
    (row,) = second.scratch
    assert row.label == ("two", "row")
    assert list(second.nodes) == [row]
    assert row not in first.scratch


def test_a_third_one_is_like_the_first() -> None:
    alike, calls = KernelMemo(), list[str]()
    results = [made(alike, calls, name)[1].steps[0] for name in ("one", "two", "three")]
    assert [getattr(each, "like", None) for each in results] == [None, results[0], results[0]]


def test_kernels_that_are_not_alpha_equivalent_are_scheduled_separately() -> None:
    alike, calls = KernelMemo(), list[str]()
    made(alike, calls, "one")
    made(alike, calls, "longer", NodeInfo(float32, (9,)))
    made(alike, calls, "wider", NodeInfo(float64, (8,)))
    made(alike, calls, "bounded", extent=7)
    made(alike, calls, "other", value=2.0)
    assert calls == ["one", "longer", "wider", "bounded", "other"]


def test_kernels_that_are_no_plain_data_are_scheduled_each_time() -> None:
    alike, calls = KernelMemo(), list[str]()
    for name in ("one", "two"):
        node, store = kernel(name)
        result = alike.made((store, lambda: None), [name], {}, maker(node, store, calls))
        assert len(result.steps) == 1
    assert calls == ["one", "two"]
