"""Conformance check for user-written operations.

oc.testing.check_op(Fft(), [np.random.default_rng(0).normal(size=(4, 8))])
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ocannl_core.backend import manager
from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError, MissingGradientError, OcannlError, UsageError
from ocannl_core.runtime.context import Context
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.tensor.computations.computation import Computation, forward, gradient_update
from ocannl_core.tensor.custom.op import Apply, Op
from ocannl_core.tensor.custom.variables import as_variable
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.parameters import param, placeholder
from ocannl_core.tensor.operations.contractions import einsum
from ocannl_core.tensor.operations.literals import tensor as literal
from ocannl_core.tensor.primitives.pointwise_operations import add, mul
from ocannl_core.testing.compare import Array, Tolerance, difference

_STEPS = {"float64": (1e-5, 1e-6), "float32": (1e-2, 2e-2)}
"""Step and accepted error of central differences, by number format."""


def check_op(
    op: Op,
    inputs: Sequence[Any],
    *,
    gradient: bool = True,
    ulps: int = 4,
    backends: Sequence[str] | None = None,
) -> None:
    """Raise AssertionError with all violations of an op's contract.

    Checked are: equality and hash; new nodes of the same inputs and of other tensors of the same
    types; `perform` on empty, reused and arbitrary storage, and on inputs that are one array;
    undeclared changes of inputs and undeclared views; `grad` against central differences; and every
    backend, with and without the op's native code.

    Args:
        inputs: One input each: arrays, which keep their number format, numbers, or literal tensors
            for inputs with batch or input axes. Gradients are most precise in float64.
        gradient: Compares `grad`, where the op defines it, with central differences.
        ulps: The largest accepted difference of backends, in units in the last place.
        backends: The devices to run on, as `NAME` or `NAME:DEVICE`; by default all devices that
            support calls out of compiled code.
    """
    names = _targets() if backends is None else backends
    check = _Check(op, _samples(inputs), ulps)
    check.identity()
    check.nodes()
    check.performs()
    if not check.problems:
        check.backends(names, lenient=backends is None)
        if gradient and check.usable and getattr(op, "grad", None) is not None:
            check.gradient()
    if check.problems:
        raise AssertionError(f"{op!r} breaks its contract:\n- " + "\n- ".join(check.problems))


@dataclass(frozen=True, slots=True)
class _Sample:
    """An input: its cells, and its shape."""

    array: Array
    shape: Shape

    def tensor(self, array: Array | None = None) -> Tensor:
        """Return a literal of this shape, with other cells if given."""
        return literal(
            self.array if array is None else array,
            batch_axes=len(self.shape.batch.sizes),
            input_axes=len(self.shape.input.sizes),
            dtype=self.array.dtype,
        )

    def placeholder(self, name: str) -> Tensor:
        """Return a tensor of the same type without cells."""
        shape = self.shape
        return placeholder(
            name,
            batch=shape.batch.sizes,
            input=shape.input.sizes,
            output=shape.output.sizes,
            dtype=np.dtype(self.array.dtype).name,
        )


def _samples(inputs: Sequence[Any]) -> list[_Sample]:
    with Session():
        found = []
        for each in inputs:
            tensor = as_variable(each, each.dtype if isinstance(each, np.ndarray) else None)
            if tensor.literal is not None:
                found.append(_Sample(tensor.literal, tensor.shape))
            elif not isinstance(each, Tensor):
                found.append(_Sample(np.asarray(each, tensor.dtype.numpy), tensor.shape))
            else:
                raise UsageError.at_caller(
                    "An op is checked on given cells.",
                    found=repr(each),
                    fix="give an array, a number, or oc.tensor(array, batch_axes=..., ...)",
                )
        return found


def _targets() -> list[str]:
    return [str(t) for backend in manager.load_all() for t in backend.targets().targets]


@dataclass(slots=True)
class _Check:
    """The check of one op, and the violations found so far."""

    op: Op
    samples: list[_Sample]
    ulps: int
    problems: list[str] = field(default_factory=list)
    usable: list[str] = field(default_factory=list)
    """The devices that ran the op."""

    def require(self, holds: bool, problem: str) -> None:
        if not holds and problem not in self.problems:
            self.problems.append(problem)

    def node(self) -> Apply:
        return self.op.make_node(*(sample.tensor() for sample in self.samples))

    def identity(self) -> None:
        op = self.op
        self.require((op == op) is True and (op != op) is False, "it is not equal to itself")
        try:
            again = copy.copy(op)
            self.require(hash(op) == hash(op), "its hash changes")
            self.require(
                op != again or hash(op) == hash(again), "a copy is equal, and has another hash"
            )
        except TypeError as error:
            self.require(False, f"it has no hash, or cannot be copied: {error}")

    def nodes(self) -> None:
        with Session():
            tensors = [sample.tensor() for sample in self.samples]
            one, other = self.op.make_node(*tensors), self.op.make_node(*tensors)
            self.require(
                one.is_equivalent(other), "make_node gives nodes of other types for the same inputs"
            )
        with Session():
            wanted = self.node()
            _close(wanted)
            others = [s.placeholder(f"x{i}") for i, s in enumerate(self.samples)]
            try:
                found = self.op.make_node(*others)
                _close(found)
            except OcannlError as error:
                problem = f"{type(error).__name__}: {error.rule} {error.found}"
                self.require(False, f"make_node depends on its inputs' definitions: {problem}")
                return
            self.require(
                [(t.dtype, t.shape) for t in found.results]
                == [(t.dtype, t.shape) for t in wanted.results],
                "make_node depends on its inputs' definitions: the types of outputs differ",
            )

    def performs(self) -> None:
        with Session():
            node = self.node()
            _close(node)
            _Runs(self, node, [sample.array for sample in self.samples]).run_all()
            if not self.problems:
                self.same_input(node)

    def same_input(self, node: Apply) -> None:
        """Pass one array as two inputs of one type: results must not depend on identity."""
        first = self.samples[0] if self.samples else None
        twice = [
            k
            for k, sample in enumerate(self.samples[1:], start=1)
            if first is not None
            and sample.array.dtype == first.array.dtype
            and sample.shape == first.shape
            and not self.op.destroy_map
        ]
        for k in twice:
            arrays = [sample.array for sample in self.samples]
            arrays[k] = arrays[0]
            _Runs(self, node, arrays, f" (inputs 0 and {k} are one array)").run_all()

    def backends(self, names: Sequence[str], *, lenient: bool) -> None:
        expected = self.run_perform()
        for name in names:
            for python in (True, False):
                with Session(), settings.overrides(python_ops=python):
                    try:
                        self.backend(name, expected, "perform" if python else "native code")
                        self.usable.append(name)
                    except CodegenError as error:
                        self.require(lenient, f"on {name}: {error}")

    def run_perform(self) -> list[Array]:
        with Session():
            node = self.node()
            _close(node)
            return self.run(node, [sample.array.copy() for sample in self.samples])

    def run(self, node: Apply, arrays: list[Array]) -> list[Array]:
        """Return the outputs of `perform` that are tensors."""
        storage: list[list[Any]] = [[None] for _ in node.outputs]
        self.op.perform(node, arrays, storage)
        return [
            np.asarray(cell[0], tensor.dtype.numpy).reshape(tensor.shape.dims).copy()
            for cell, tensor in zip(storage, node.outputs, strict=True)
            if isinstance(tensor, Tensor)
        ]

    def backend(self, name: str, expected: list[Array], what: str) -> None:
        # ops may destroy computed inputs, not literals
        variables = [mul(sample.tensor(), 1) for sample in self.samples]
        node = self.op.make_node(*variables)
        context = Context(name)
        try:
            routine = context.compile(forward_code(node), keep=list(node.results))
            for _ in range(2):
                routine()
                for tensor, wanted in zip(node.results, expected, strict=True):
                    text = difference(
                        context[tensor], wanted, tensor.dtype, Tolerance(self.ulps, 1e-30)
                    )
                    self.require(not text, f"on {name}, {what} gives other results: {text}")
        except CodegenError:
            raise
        except OcannlError as error:
            self.require(False, f"on {name}, with {what}: {error}")

    def gradient(self) -> None:
        """Compare the gradient of a weighted sum of all outputs with central differences.

        Without an input of a format in `_STEPS`, nothing is compared.
        """
        if not any(sample.array.dtype.name in _STEPS for sample in self.samples):
            return
        try:
            found = self.gradients(self.usable[0])
        except MissingGradientError:
            return
        except OcannlError as error:
            self.require(False, f"grad: {error}")
            return
        for position, (sample, array) in enumerate(zip(self.samples, found, strict=True)):
            if array is None:
                continue
            step, bound = _STEPS[sample.array.dtype.name]
            wanted = self.differences(position, step)
            scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
            wrong = float(np.max(np.abs(array - wanted), initial=0.0)) / scale
            self.require(
                wrong <= bound,
                f"grad for input {position} differs from central differences by {wrong:.2g} "
                f"of the largest:\n{array}\ninstead of\n{wanted}",
            )

    def gradients(self, backend: str) -> list[Array | None]:
        """Return the gradients of the weighted sum for the inputs that are float numbers."""
        with Session():
            variables = []
            for position, sample in enumerate(self.samples):
                variable = sample.tensor()
                if sample.array.dtype.name in _STEPS:
                    zero = param(
                        f"p{position}", output=[], input=[], init=0.0, dtype=variable.dtype
                    )
                    variable = add(variable, zero)  # gives the parameter a gradient
                variables.append(variable)
            node = self.op.make_node(*variables)
            _close(node)
            sums = [
                einsum("...|...->... => 0", mul(result, weights))
                for result, weights in zip(node.results, _weights(node), strict=True)
                if weights is not None
            ]
            loss = functools.reduce(add, sums)
            kept = [variable.grad for variable in variables if variable.grad is not None]
            context = Context(backend)
            routine = context.compile(gradient_update(loss), keep=kept)
            context.init_params(loss)
            routine()
            reached = {term.input for term in node.backward()}
            return [
                context[v.grad] if v.grad is not None and v in reached else None for v in variables
            ]

    def differences(self, position: int, step: float) -> Array:
        """Return central differences of the weighted sum in the cells of one input."""
        arrays = [sample.array for sample in self.samples]
        with Session():
            node = self.node()
            _close(node)
            weights = [None if w is None else w.literal for w in _weights(node)]

            def total(offset: int, change: float) -> float:
                given = [array.copy() for array in arrays]
                given[position].reshape(-1)[offset] += change
                found = zip(self.run(node, given), weights, strict=True)
                return sum(
                    float(np.sum(array.astype(np.float64) * weight))
                    for array, weight in found
                    if weight is not None
                )

            cells = [
                (total(k, step) - total(k, -step)) / (2 * step)
                for k in range(arrays[position].size)
            ]
            return np.array(cells).reshape(arrays[position].shape)


def _weights(node: Apply) -> list[Tensor | None]:
    """Return a tensor of different numbers for each output that has a gradient."""
    found: list[Tensor | None] = []
    for result in node.results:
        dims = result.shape.dims
        numbers = np.cos(np.arange(math.prod(dims)) + 1.0).reshape(dims)
        sample = _Sample(numbers.astype(result.dtype.numpy), result.shape)
        found.append(sample.tensor() if result.dtype.is_float else None)
    return found


def _close(node: Apply) -> None:
    """Infer the shapes of a node's inputs and outputs."""
    tensors = [*node.inputs, *node.results]
    tensors[0].session.environment.close([tensor.terms for tensor in tensors])


def forward_code(node: Apply) -> Computation:
    """Return the code that computes all outputs."""
    return functools.reduce(operator.add, [forward(result) for result in node.results])


@dataclass(slots=True)
class _Runs:
    """Runs of `perform` on the same inputs, which must give equal results."""

    check: _Check
    node: Apply
    arrays: list[Array]
    remark: str = ""

    def require(self, holds: bool, problem: str) -> None:
        self.check.require(holds, problem + self.remark)

    def run_all(self) -> None:
        """Run `perform` on every kind of storage."""
        count = len(self.node.outputs)
        first, results = self.run([[None] for _ in range(count)], "empty storage")
        if not results:
            return
        wanted = [array.copy() for array in results]
        earlier = [cell[0] for cell in first]
        fresh, found = self.run([[None] for _ in range(count)], "empty storage")
        self.same(found, wanted, "on empty storage again")
        self.apart(fresh, [each for each in earlier if isinstance(each, np.ndarray)])
        rubbish = [self.rubbish(position, earlier[position]) for position in range(count)]
        self.same(
            self.run([[each] for each in rubbish], "rubbish")[1], wanted, "on storage with rubbish"
        )
        left, found = self.run([[each] for each in earlier], "left-over storage")
        self.same(found, wanted, "on its own earlier storage")
        for missing in range(count if count > 1 else 0):
            held = [cell[0] for cell in left]
            cells = [[None if k == missing else each] for k, each in enumerate(held)]
            partly, found = self.run(cells, "partly empty storage")
            self.same(found, wanted, f"when only the storage of output {missing} is empty")
            old = [held[missing]] if isinstance(held[missing], np.ndarray) else []
            self.apart([partly[missing]], old)
            left = partly

    def rubbish(self, position: int, earlier: Any) -> Any:
        output = self.node.outputs[position]
        if not isinstance(output, Tensor):
            return earlier
        return np.full(
            output.shape.dims, np.nan if output.dtype.is_float else 99, output.dtype.numpy
        )

    def run(self, storage: list[list[Any]], what: str) -> tuple[list[list[Any]], list[Array]]:
        """Return the storage and the tensors' arrays after a run; no arrays if it fails."""
        destroyed = self.node.destroyed
        given = [array.copy() for array in self.arrays]
        for position, array in enumerate(self.arrays):
            for other in range(position):
                if self.arrays[other] is array:
                    given[position] = given[other]
        before = [array.copy() for array in given]
        cells = list(storage)
        try:
            returned: Any = self.check.op.perform(self.node, list(given), storage)  # type: ignore[func-returns-value]
        except Exception as error:
            self.require(False, f"perform fails on {what}: {type(error).__name__}: {error}")
            return storage, []
        self.require(returned is None, "perform returns something; outputs belong into storage")
        kept = len(storage) == len(cells) and all(
            a is b for a, b in zip(storage, cells, strict=True)
        )
        self.require(
            kept and all(len(cell) == 1 for cell in cells), "perform resizes or replaces storage"
        )
        for position, (array, old) in enumerate(zip(given, before, strict=True)):
            same = array.tobytes() == old.tobytes()
            self.require(
                same or position in destroyed,
                f"perform changes input {position}, which destroy_map does not mention",
            )
        return cells, self.results(cells, given)

    def results(self, cells: list[list[Any]], given: list[Array]) -> list[Array]:
        """Return copies of the arrays of tensor outputs; an empty list if one is malformed."""
        found = []
        maps = (self.check.op.destroy_map, self.check.op.view_map)
        for position, (output, cell) in enumerate(zip(self.node.outputs, cells, strict=True)):
            if not isinstance(output, Tensor):
                continue
            value, dims = cell[0], output.shape.dims
            if value is None:
                self.require(False, f"perform leaves output {position} unset")
                return []
            is_number = isinstance(value, bool | int | float)
            array = np.asarray(value, output.dtype.numpy if is_number else None)
            self.require(
                array.dtype == output.dtype.numpy,
                f"output {position} is {array.dtype}, where make_node states {output.dtype}",
            )
            scalars = {array.shape, dims} == {(), (1,)}
            self.require(
                array.shape == dims or scalars,
                f"output {position} has extents {list(array.shape)}, not {list(dims)} as inferred",
            )
            if array.dtype != output.dtype.numpy or not (array.shape == dims or scalars):
                return []
            for source, input_array in enumerate(given):
                declared = any(source in each.get(position, ()) for each in maps)
                self.require(
                    declared or not np.may_share_memory(array, input_array),
                    f"output {position} shares memory with input {source}, without an entry in "
                    "view_map or destroy_map",
                )
            found.append(array.reshape(dims).copy())
        return found

    def same(self, found: list[Array], wanted: list[Array], where: str) -> None:
        if not found:
            return
        for position, (array, expected) in enumerate(zip(found, wanted, strict=True)):
            self.require(
                array.tobytes() == expected.tobytes(), f"result {position} is another one {where}"
            )

    def apart(self, cells: list[list[Any]], earlier: list[Array]) -> None:
        """Require that empty storage is not filled with memory that was returned before."""
        for cell in cells:
            shared = isinstance(cell[0], np.ndarray) and any(
                np.may_share_memory(cell[0], each) for each in earlier
            )
            self.require(not shared, "empty storage gets memory that was given away before")
