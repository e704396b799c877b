"""`check_op` passes ops that keep their contract, and finds every way of breaking it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.tensor.custom import Apply, ObjectType, Op, TensorType, as_variable
from ocannl_core.testing import check_op
from tests.support.sample_ops import Square

X = np.array([1.0, 2.0, 3.0])
ONE, TWO = "n => n", "n; n => n"


@dataclass(frozen=True)
class Made(Op):
    """An op that calls a function."""

    function: Callable[..., Any]
    spec: str = ONE
    gradient: Any = None
    destroy_map: Any = field(default_factory=dict, hash=False)
    view_map: Any = field(default_factory=dict, hash=False)
    code: str = ""

    @property
    def grad(self) -> Any:
        return self.gradient

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> Any:
        return self.function(inputs, output_storage)

    def c_code(self, node: Apply) -> str:
        return self.code or super().c_code(node)


def result(function: Callable[..., Any]) -> Callable[..., None]:
    def perform(inputs: Any, storage: Any) -> None:
        storage[0][0] = function(*inputs)

    return perform


def problems(op: Op, *inputs: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as error:
        check_op(op, inputs or [X], **options)
    return str(error.value)


def into(storage: Any, position: int, array: Any) -> None:
    """Copy into storage, or allocate it."""
    if storage[position][0] is None:
        storage[position][0] = np.empty_like(array)
    storage[position][0][...] = array


def test_good_ops_pass() -> None:
    check_op(Made(result(lambda x: x * x), gradient=lambda x, g: [2.0 * x[0] * g[0]]), [X])
    check_op(Made(lambda x, z: into(z, 0, x[0] + 1)), [X.astype(np.float32)])
    check_op(Made(result(np.hypot), TWO), [X, X + 1])
    check_op(Made(result(lambda x: x[::-1]), view_map={0: [0]}), [X])
    check_op(Made(result(lambda x: x + 1), spec="...|n => ...|n"), [oc.tensor([X], batch_axes=1)])
    check_op(Made(result(lambda x: 3), spec="n => "), [np.array([1, 2])])
    check_op(Made(result(lambda: np.array([7.0], np.float32)), spec="=> 1"), [])


def test_destroyers_and_hidden_state_pass() -> None:
    def increment(inputs: Any, storage: Any) -> None:
        inputs[0][...] += inputs[1]
        storage[0][0] = inputs[0]

    check_op(Made(increment, TWO, destroy_map={0: [0]}), [X, X + 1])

    class Buffered(Op):
        default_output = 0

        def make_node(self, x: Any) -> Apply:
            return Apply(self, [x], [TensorType.of(x), ObjectType()])

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            (x,), (z, stored) = inputs, output_storage
            if z[0] is None or stored[0] is None:
                stored[0] = np.empty(2 * x.size)
            z[0] = stored[0][: x.size]
            np.add(x, 1, out=z[0])

    check_op(Buffered(), [X])


def test_results_that_depend_on_previous_storage_are_found() -> None:
    def accumulate(inputs: Any, storage: Any) -> None:
        if storage[0][0] is None:
            storage[0][0] = np.zeros_like(inputs[0])
        storage[0][0] += inputs[0]

    assert "result 0 is another one on storage with rubbish" in problems(Made(accumulate))


def test_a_private_cache_is_found() -> None:
    kept = np.empty(3)

    def perform(inputs: Any, storage: Any) -> None:
        storage[0][0] = np.add(inputs[0], 1, out=kept)

    assert "empty storage gets memory that was given away before" in problems(Made(perform))


def test_reuse_of_one_output_while_its_partner_is_fresh_is_found() -> None:
    def shared(inputs: Any, storage: Any) -> None:
        if storage[1][0] is None:
            storage[1][0] = np.empty(2 * len(inputs[0]))
        storage[0][0] = storage[1][0][: len(inputs[0])]
        storage[1][0][...] = 1

    found = problems(Made(shared, "n => n; 2*n"))
    assert "empty storage gets memory that was given away before" in found

    def careful(inputs: Any, storage: Any) -> None:
        if storage[0][0] is None or storage[1][0] is None:
            storage[1][0] = np.empty(2 * len(inputs[0]))
        storage[0][0] = storage[1][0][: len(inputs[0])]
        storage[1][0][...] = 1

    check_op(Made(careful, "n => n; 2*n"), [X])


def test_undeclared_changes_and_views_are_found() -> None:
    def change(inputs: Any, storage: Any) -> None:
        inputs[0][0] = 7
        storage[0][0] = inputs[0] + 1

    assert "perform changes input 0, which destroy_map does not mention" in problems(Made(change))
    found = problems(Made(result(lambda x: x[:])))
    assert "output 0 shares memory with input 0, without an entry in" in found


def test_inputs_that_must_not_be_one_array_are_found() -> None:
    def swap(inputs: Any, storage: Any) -> None:
        x, y = inputs
        storage[0][0] = x - y if x is not y else x + y

    assert "(inputs 0 and 1 are one array)" not in problems(
        Made(lambda x, z: None, TWO), X, X + 1
    )  # an error that occurs in every run is reported once

    def scratch(inputs: Any, storage: Any) -> None:
        x, y = inputs
        if np.may_share_memory(x, y):
            raise ValueError("aliased")
        storage[0][0] = x - y

    assert "ValueError: aliased (inputs 0 and 1 are one array)" in problems(
        Made(scratch, TWO), X, X + 1
    )
    check_op(Made(swap, TWO), [X, X + 1])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, z: None, "perform leaves output 0 unset"),
        (lambda x, z: x[0], "perform returns something"),
        (lambda x, z: z[0].append(1), "perform resizes or replaces storage"),
        (lambda x, z: z.__setitem__(0, [x[0] + 1]), "perform resizes or replaces storage"),
        (result(lambda x: x.astype(np.float32)), "output 0 is float32, where make_node states"),
        (result(lambda x: x[1:] + 1), "output 0 has extents [2], not [3] as inferred"),
        (result(lambda x: x / x["a"]), "perform fails on empty storage: IndexError"),
    ],
)
def test_bad_performs_are_found(function: Any, said: str) -> None:
    assert said in problems(Made(function))


def test_a_wrong_gradient_is_found() -> None:
    square = result(lambda x: x * x)
    wrong = Made(square, gradient=lambda x, g: [x[0] * g[0]])
    assert "grad for input 0 differs from central differences" in problems(wrong)
    check_op(wrong, [X], gradient=False)
    bare = Made(square, gradient=lambda x, g: g[0])
    assert "`grad` returns a list or tuple" in problems(bare)


def test_gradients_are_not_compared_where_differences_mean_nothing() -> None:
    check_op(Square(), [np.array([1, 2], oc.bfloat16.numpy)], backends=["interp"])
    check_op(Square(), [np.array([1, 2], np.int32)])


def test_a_gradient_for_one_input_alone_is_compared_for_this_one() -> None:
    product = result(lambda x, y: x * y)
    check_op(Made(product, TWO, gradient=lambda x, g: [x[1] * g[0], None]), [X, X + 1])
    wrong = Made(product, TWO, gradient=lambda x, g: [None, x[1] * g[0]])
    assert "grad for input 1" in problems(wrong, X, X + 1)


def test_native_code_that_does_something_else_is_found() -> None:
    op = Made(result(lambda x: x + 1), code="for (int i = 0; i < in0_size; ++i) out0[i] = in0[i];")
    found = problems(op)
    assert "on cpu_c:0, native code gives other results: 3 of 3 cells differ" in found
    check_op(op, [X], backends=["interp"])


def test_native_code_that_no_compiler_takes_is_found() -> None:
    assert "on cpu_c:0, with native code: " in problems(
        Made(result(lambda x: x + 1), code="out0[0] = nothing;")
    )


def test_equality_without_a_consistent_hash_is_found() -> None:
    class Careless(Made):
        def __hash__(self) -> int:
            return id(self)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Careless)

    found = problems(Careless(result(lambda x: x + 1)))
    assert "a copy is equal, and has another hash" in found


def test_an_op_that_is_not_equal_to_itself_is_found() -> None:
    class Odd(Made):
        __hash__ = Made.__hash__

        def __eq__(self, other: object) -> bool:
            return False

    assert "it is not equal to itself" in problems(Odd(result(lambda x: x + 1)))


def test_make_node_that_inspects_definitions_of_its_inputs_is_found() -> None:
    class Nosy(Op):
        def make_node(self, x: Any) -> Apply:
            x = as_variable(x)
            format = x.dtype if x.literal is not None else oc.int32
            return Apply(self, [x], [TensorType(format, x.terms)])

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = inputs[0] + 1

    assert "make_node depends on its inputs' definitions" in problems(Nosy())


def test_make_node_that_gives_other_types_every_time_is_found() -> None:
    sizes = iter(range(3, 100))

    class Growing(Op):
        def make_node(self, x: Any) -> Apply:
            return Apply(
                self, [as_variable(x)], [TensorType.sized("float64", output=[next(sizes)])]
            )

        def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
            output_storage[0][0] = np.zeros(node.results[0].shape.dims)

    assert "make_node depends on its inputs' definitions: the types" in problems(Growing())


def test_an_op_is_checked_on_cells() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="An op is checked on given cells"):
        check_op(Made(result(lambda x: x + 1)), [oc.placeholder("x", output=[3])])
