"""A minimal tensor layer: enough to compile code whose assignments a test writes down itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pytest

from ocannl_core.ir.assignments.nodes import (
    Accumulate,
    Assignment,
    AssignProgram,
    Constant,
    Fetch,
    NodeOperand,
    Operand,
    Scalar,
)
from ocannl_core.ir.indexing import (
    AxisIndex,
    LoopVar,
    Projections,
    StaticIndex,
    VarIndex,
    fresh_var,
)
from ocannl_core.ir.node import Margin, NodeInfo, TensorNode
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType
from ocannl_core.ir.numbers.primitives import BinaryOp, Op, UnaryOp
from ocannl_core.runtime.context import Context


@dataclass(frozen=True, eq=False)
class ToyTensor:
    """A tensor with a closed shape whose axes are all output axes."""

    node: TensorNode
    info: NodeInfo
    kind: str
    literal: np.ndarray[Any, Any] | None = None
    initial_value: float = 0.0
    needs: tuple[ToyTensor, ...] = ()
    scopes: tuple[()] = ()

    @property
    def shape(self) -> str:
        return ",".join(map(str, self.info.dims))

    def note_memory(self) -> None:
        pass

    def note_host_write(self) -> None:
        pass

    @property
    def is_parameter(self) -> bool:
        return self.kind == "parameter"

    @property
    def is_placeholder(self) -> bool:
        return self.kind == "placeholder"

    @property
    def is_statistic(self) -> bool:
        return self.kind == "statistic"

    @property
    def is_gradient(self) -> bool:
        return self.kind == "gradient"

    def describe(self) -> str:
        return f"{self.kind} {self.node.name} (model.py:{self.node.id})"

    def parameters(self) -> tuple[ToyTensor, ...]:
        found = {t for need in self.needs for t in need.parameters()}
        return tuple(
            sorted(found | ({self} if self.is_parameter else set()), key=lambda t: t.node.id)
        )

    @property
    def statistics(self) -> tuple[ToyTensor, ...]:
        return ()

    def initial_cells(self) -> None:
        return None

    def initialization(self) -> ToyComputation:
        fill = Fetch(self.node, Constant(self.initial_value))
        own = frozenset({self})
        return ToyComputation((fill,), (self,), own, own, f"init_{self.node.name}")


@dataclass(frozen=True, eq=False)
class ToyComputation:
    """Assignments with their tensors."""

    statements: tuple[Assignment, ...]
    used: tuple[ToyTensor, ...]
    embedded: frozenset[ToyTensor]
    results: frozenset[ToyTensor]
    name: str
    infos: Mapping[TensorNode, NodeInfo] = field(default_factory=dict)

    def __add__(self, other: ToyComputation) -> ToyComputation:
        return ToyComputation(
            self.statements + other.statements,
            self.used + other.used,
            self.embedded | other.embedded,
            self.results | other.results,
            f"{self.name}_{other.name}",
            {**self.infos, **other.infos},
        )

    def resolve(self) -> AssignProgram:
        return AssignProgram(
            self.statements,
            {t.node: self.infos.get(t.node, t.info) for t in self.used},
            frozenset(t.node for t in self.embedded),
            frozenset(t.node for t in self.used if t.kind == "declared"),
            frozenset(t.node for t in self.results),
            self.name,
        )

    def literals(self) -> Mapping[TensorNode, np.ndarray[Any, Any]]:
        return {t.node: t.literal for t in self.used if t.literal is not None}

    def tensors(self) -> Mapping[TensorNode, ToyTensor]:
        return {t.node: t for t in self.used}


class Toy:
    """Factory of tensors, assignments over them, and computations."""

    def __init__(self) -> None:
        self._ids = count()

    def tensor(
        self,
        name: str,
        *dims: int,
        kind: str = "tensor",
        dtype: DType = dtypes.float32,
        margins: tuple[Margin, ...] = (),
        needs: Sequence[ToyTensor] = (),
    ) -> ToyTensor:
        node = TensorNode(next(self._ids), (name,))
        return ToyTensor(node, NodeInfo(dtype, dims, margins), kind, needs=tuple(needs))

    def placeholder(self, name: str, *dims: int, **more: Any) -> ToyTensor:
        return self.tensor(name, *dims, kind="placeholder", **more)

    def declared(self, name: str, *dims: int) -> ToyTensor:
        return self.tensor(name, *dims, kind="declared")

    def literal(self, name: str, array: np.ndarray[Any, Any]) -> ToyTensor:
        node = TensorNode(next(self._ids), (name,))
        info = NodeInfo(dtypes.dtype_of(array.dtype), array.shape)
        return ToyTensor(node, info, "literal", literal=array)

    def parameter(self, name: str, *dims: int, value: float) -> ToyTensor:
        """Return a parameter that starts as one number everywhere."""
        node = TensorNode(next(self._ids), (name,))
        info = NodeInfo(dtypes.float32, dims)
        return ToyTensor(node, info, "parameter", initial_value=value)

    def statement(
        self,
        spec: str,
        target: ToyTensor,
        op: Op,
        *args: ToyTensor | float,
        combine: BinaryOp = BinaryOp.SECOND,
        reset: bool = False,
        **statics: StaticIndex,
    ) -> Accumulate:
        """Return `target = target combine op(*args)` with index maps such as `"ik,kj->ij"`.

        A letter given as a keyword is a static index; an empty operand is a number.
        """
        inputs, output = spec.split("->")
        operands = inputs.split(",")
        letters = dict.fromkeys(c for c in output + inputs if c.isalpha() and c not in statics)
        variables: dict[str, LoopVar | StaticIndex] = {c: fresh_var(c) for c in letters}
        variables.update(statics)
        extents: dict[str, int] = {}
        for text, arg in zip([*operands, output], [*args, target], strict=True):
            if isinstance(arg, ToyTensor):
                extents.update(zip(text, arg.info.dims, strict=True))

        def index_map(text: str) -> tuple[AxisIndex, ...]:
            return tuple(VarIndex(variables[c]) for c in text)

        projections = Projections(
            tuple((var, extents[c]) for c, var in variables.items() if isinstance(var, LoopVar)),
            index_map(output),
            tuple(map(index_map, operands)),
            target.info.dims,
            tuple(arg.info.dims if isinstance(arg, ToyTensor) else () for arg in args),
        )
        given: tuple[Operand, ...] = tuple(
            NodeOperand(arg.node) if isinstance(arg, ToyTensor) else Scalar(arg) for arg in args
        )
        return Accumulate(target.node, combine, reset, op, given, projections)

    def copy(self, target: ToyTensor, source: ToyTensor) -> Accumulate:
        letters = "ijkl"[: len(target.info.dims)]
        return self.statement(f"{letters}->{letters}", target, UnaryOp.IDENTITY, source)

    def fill(self, target: ToyTensor, value: float) -> Fetch:
        return Fetch(target.node, Constant(value))

    def code(
        self,
        *statements: Assignment,
        uses: Sequence[ToyTensor],
        defines: Sequence[ToyTensor] = (),
        results: Sequence[ToyTensor] | None = None,
        name: str = "routine",
        infos: Mapping[ToyTensor, NodeInfo] | None = None,
    ) -> ToyComputation:
        """Return a computation; its results default to the nodes that it defines."""
        return ToyComputation(
            statements,
            tuple(dict.fromkeys([*uses, *defines])),
            frozenset(defines),
            frozenset(defines if results is None else results),
            name,
            {t.node: info for t, info in (infos or {}).items()},
        )


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def context() -> Context:
    """A context of the reference interpreter."""
    return Context("interp")
