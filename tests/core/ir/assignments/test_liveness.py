"""Nodes that are written as a whole before they are read."""

from __future__ import annotations

from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    Constant,
    Fetch,
    NodeOperand,
    Scalar,
    Section,
)
from ocannl_core.ir.assignments.traverse import dead_on_entry
from ocannl_core.ir.indexing import AxisIndex, FixedIndex, LoopVar, Projections, VarIndex
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp

A, B = TensorNode(0, ("a",)), TensorNode(1, ("b",))
I = LoopVar(-1, "i")  # noqa: E741


def assign(
    target: TensorNode,
    source: TensorNode | None,
    combine: BinaryOp = BinaryOp.SECOND,
    *,
    reset: bool = False,
    at: AxisIndex | None = None,
) -> Accumulate:
    """Return an assignment over three cells."""
    maps = () if source is None else (VarIndex(I),)
    projections = Projections(
        ((I, 3),), (at or VarIndex(I),), (maps,), (3,), ((3,) if maps else (),)
    )
    operand = Scalar(1.0) if source is None else NodeOperand(source)
    return Accumulate(target, combine, reset, UnaryOp.IDENTITY, (operand,), projections)


def of(*body: Assignment) -> set[TensorNode]:
    return dead_on_entry(body, {A})


def test_a_plain_assignment_of_every_cell_overwrites() -> None:
    assert of(assign(A, B), assign(B, A)) == {A}
    assert of(Section("title", (assign(A, None),))) == {A}


def test_a_fetch_and_a_reset_overwrite() -> None:
    assert of(Fetch(A, Constant(0.0))) == {A}
    assert of(assign(A, B, BinaryOp.ADD, reset=True)) == {A}


def test_a_part_and_an_accumulation_do_not_overwrite() -> None:
    assert of(assign(A, B, at=FixedIndex(0))) == set()
    assert of(assign(A, B, BinaryOp.ADD)) == set()


def test_nodes_read_first_are_not_overwritten() -> None:
    assert of(assign(B, A), assign(A, B)) == set()
    assert of(assign(A, A)) == set()


def test_only_the_requested_nodes_are_explained() -> None:
    assert of(assign(B, None)) == set()
