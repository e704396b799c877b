"""Products that a library computes in the place of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.backend_api.libraries import LibraryCall, LibraryProduct, ProductOperand
from ocannl_core.base import settings
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.ir.target import Capability
from tests.support.limited_backend import all_but, capabilities_but, limited

SCHEDULED = {"vector_bytes": 32, "vector_registers": 16}


@pytest.fixture(autouse=True)
def _with_libraries(fresh_plugins: None) -> Iterator[None]:
    with settings.overrides(libraries=True):
        yield


@dataclass(frozen=True)
class Contraction:
    """Any product by `numpy.einsum`, on copies of windows."""

    product: LibraryProduct
    line_axis: int | None = None

    @property
    def name(self) -> str:
        return "einsum"

    def perform(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        product = self.product
        factors = [self._windows(inputs[0], product.left), self._windows(inputs[1], product.right)]
        names = [name for name, _ in factors]
        cells = np.einsum(
            f"{names[0]},{names[1]}->{product.result.axes}",
            *(each.astype(np.float64) for _, each in factors),
        )
        outputs[0][...] = cells

    def _windows(self, array: Any, operand: ProductOperand) -> tuple[str, Any]:
        """Return an array with an axis for each axis of the product that an operand has."""
        extents = {axis.name: axis.extent for axis in self.product.axes}
        letters = "".join(dict.fromkeys(n for at in operand.positions for n, _ in at.terms))
        grids = np.indices([extents[each] for each in letters])
        by_name = dict(zip(letters, grids, strict=True))
        shape = grids.shape[1:]
        index, is_inside = [], np.ones(shape, bool)
        for at, extent in zip(operand.positions, operand.info.dims, strict=True):
            place = np.full(shape, at.offset)
            for name, factor in at.terms:
                place = place + factor * by_name[name]
            is_inside &= (place >= 0) & (place < extent)
            index.append(np.clip(place, 0, extent - 1))
        return letters, np.where(is_inside, array[tuple(index)], 0)


OFFERED: list[LibraryProduct] = []


def ocannl_library(product: LibraryProduct) -> LibraryCall:
    OFFERED.append(product)
    return LibraryCall(Contraction(product))


def with_library(name: str = "blas", **facts: Any) -> oc.Context:
    OFFERED.clear()
    limited(name, hooks={"ocannl_library": ocannl_library}, **SCHEDULED, **facts)
    return oc.Context(name)


def values(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def both(make: Any, **facts: Any) -> tuple[Any, Any, oc.Routine]:
    """Return the cells of a tensor by a library and by the interpreter, and the former routine."""
    found = []
    for context in (with_library(**facts), oc.Context("interp")):
        with oc.Session():
            tensor = make()
            context.init_params(tensor)
            step = context.compile(oc.train.forward(tensor), keep=[tensor])
            step()
            found.append((context[tensor], step))
    return found[0][0], found[1][0], found[0][1]


def calls(routine: oc.Routine) -> list[str]:
    return [each.title for each in oc.explain(routine).kernels if each.is_external]


def test_a_product_of_matrices() -> None:
    a, b = values((5, 7)), values((6, 7))
    found, expected, step = both(lambda: oc.tensor(a, input_axes=1) @ oc.tensor(b, batch_axes=1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (product,) = OFFERED
    assert product.einsum
    assert [axis.extent for axis in product.contracted] == [7]
    assert not product.batch
    assert not product.epilogue
    assert calls(step) == [f"einsum for {product.title}"]
    assert "external call einsum for" in str(oc.explain(step))


def test_batches_of_products() -> None:
    a, b = values((3, 5, 7)), values((3, 7, 4))
    found, expected, _ = both(lambda: oc.einsum("bij;bjk=>bik", oc.tensor(a), oc.tensor(b)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (product,) = OFFERED
    assert [axis.extent for axis in product.batch] == [3]
    np.testing.assert_allclose(np.einsum(product.einsum, a, b), expected, rtol=1e-5, atol=1e-6)


def test_an_epilogue_follows_in_a_kernel_or_in_the_library() -> None:
    def make() -> oc.Tensor:
        product = oc.tensor(values((5, 7)), input_axes=1) @ oc.tensor(values((6, 7)), batch_axes=1)
        return oc.relu(product + 1.0)

    found, expected, step = both(make)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (product,) = OFFERED
    assert len(product.epilogue) == len(product.outputs) == 1
    assert not product.operands
    assert [each.is_external for each in oc.explain(step).kernels] == [True, False]

    class WithEpilogue(Contraction):
        def perform(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            super().perform(inputs, outputs)
            np.maximum(outputs[0] + 1.0, 0.0, out=outputs[0])

    def whole(product: LibraryProduct) -> LibraryCall:
        return LibraryCall(WithEpilogue(product), has_epilogue=True)

    limited("whole", hooks={"ocannl_library": whole}, **SCHEDULED)
    with oc.Session():
        y, context = make(), oc.Context("whole")
        step = context.compile(oc.train.forward(y))
        step()
        np.testing.assert_allclose(context[y], expected, rtol=1e-5, atol=1e-6)
    assert [each.is_external for each in oc.explain(step).kernels] == [True]


def test_an_accumulation_adds_to_the_sums_of_a_library() -> None:
    losses = []
    for context in (with_library(), oc.Context("interp")):
        with oc.Session():
            x = oc.tensor(values((8, 4)), batch_axes=1)
            w = oc.param("w", output=[16])
            total = oc.einsum("...|...->... => 0", oc.exp(w @ x) * (w @ x))
            context.init_params(total)
            code = oc.train.grad_update(total)
            context.compile(code)()
            losses.append(context[w.grad])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


@pytest.mark.parametrize("padded", [True, False])
def test_a_convolution_has_positions_of_two_axes(padded: bool) -> None:
    image, weights = values((2, 9, 8, 3)), values((4, 3, 3, 3))

    def make() -> oc.Tensor:
        return oc.einsum(
            "b,h+v,w+u,c; o,v,u,c => b,h,w,o", oc.tensor(image), oc.tensor(weights), padded=padded
        )

    found, expected, step = both(make)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert calls(step)
    (product,) = OFFERED
    assert not product.einsum
    windows = [at for at in product.left.positions if len(at.terms) == 2]
    assert [at.offset for at in windows] == ([-1, -1] if padded else [0, 0])


def test_training_with_a_library() -> None:
    losses = []
    for context in (with_library(), oc.Context("interp")):
        with oc.Session():
            x, y = (oc.tensor(values((8, n)), batch_axes=1) for n in (4, 3))
            error = oc.param("w2") @ oc.relu(oc.param("w1", output=[16]) @ x) - y
            loss = oc.einsum("...|...->... => 0", error * error)
            context.init_params(loss)
            code = oc.train.grad_update(loss) + oc.train.sgd_update(loss, learning_rate=0.01)
            step = context.compile(code)
            for _ in range(5):
                step()
            losses.append(context.item(loss))
            if context.target.backend == "blas":
                assert len(calls(step)) >= 3
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [{"libraries": False}, {"accumulation": "exact"}],
    ids=lambda change: "-".join(map(str, change.items())),
)
def test_settings_keep_libraries_out(change: dict[str, Any]) -> None:
    context = with_library()
    with settings.overrides(**change), oc.Session():
        product = oc.tensor(values((5, 7)), input_axes=1) @ oc.tensor(values((6, 7)), batch_axes=1)
        assert not calls(context.compile(oc.train.forward(product)))
    assert not OFFERED


def test_a_device_without_external_calls_is_offered_nothing() -> None:
    context = with_library(capabilities=capabilities_but(Capability.EXTERNAL_CALLS))
    with oc.Session():
        product = oc.tensor(values((5, 7)), input_axes=1) @ oc.tensor(values((6, 7)), batch_axes=1)
        context.compile(oc.train.forward(product))
    assert not OFFERED


def test_extents_of_calls_and_static_indices_stay_with_kernels() -> None:
    context = with_library()
    with oc.Session():
        n, row = oc.static_extent("n", max=9), oc.static_index("row", range=3)
        x = oc.placeholder("x", batch=[n], output=[7])
        table = oc.tensor(values((3, 5, 7)), batch_axes=1, input_axes=1)
        product = table[row] @ x
        assert not calls(context.compile(oc.train.forward(product), bindings=[row]))


def test_a_library_and_a_fallback_together() -> None:
    with_library(primitives=all_but(UnaryOp.TANH))
    with oc.Session():
        a, b = values((5, 7)), values((6, 7))
        y = oc.tanh(oc.tensor(a, input_axes=1) @ oc.tensor(b, batch_axes=1))
        context = oc.Context("blas", fallback="interp")
        step = context.compile(oc.train.forward(y))
        step()
        np.testing.assert_allclose(context[y], np.tanh(b @ a.T), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("answer", [3, LibraryCall("gemm")], ids=["number", "no op"])  # type: ignore[arg-type]
def test_an_answer_that_is_no_call_is_a_defect_of_the_plugin(answer: Any) -> None:
    limited("bad", hooks={"ocannl_library": lambda product: answer}, **SCHEDULED)
    with oc.Session():
        product = oc.tensor(values((5, 7)), input_axes=1) @ oc.tensor(values((6, 7)), batch_axes=1)
        code, context = oc.train.forward(product), oc.Context("bad")
        with pytest.raises(oc.HookError, match="LibraryCall"):
            context.compile(code)


def test_a_search_and_stated_schedules_leave_products_of_the_library_alone(tmp_path: Path) -> None:
    context = with_library()
    y = oc.relu(oc.tensor(values((5, 7)), input_axes=1) @ oc.tensor(values((6, 7)), batch_axes=1))
    step = context.compile(oc.train.forward(y))
    before = [(each.title, each.is_external) for each in oc.explain(step).kernels]
    assert [is_external for _, is_external in before] == [True, False]
    step.use_schedules({2: ""})
    with pytest.raises(oc.UsageError, match=r"kernel 1, einsum for .* is a call of a library"):
        step.use_schedules({1: ""})
    with settings.overrides(cache_dir=str(tmp_path)):
        assert not step.tune(budget=0.1).kernels  # the other one has no product
    assert [(each.title, each.is_external) for each in oc.explain(step).kernels] == before
