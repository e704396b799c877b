"""The same programs for several processors and compilers: those that this machine can run.

A processor with wide vectors runs the code for narrow ones, and one with narrow vectors emulates
the instructions on wide ones.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.loops.nodes import Unary
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.ir.target import Target
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c import compiler, devices

from .float32_functions import FUNCTIONS, LARGEST_ERROR_OF_ALL, errors
from .processors import processors, settings_for

Array = np.ndarray[Any, Any]

_CLANG = ("clang", *(f"clang-{version}" for version in range(30, 13, -1)))
_WIDTHS = (1, 3, 6, 8, 13, 17)
_POWERS = (lambda x: x**0.3, lambda x: np.power(x, np.float64(np.float32(0.3))))
_ARCHES = processors("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4") or ("native",)


@pytest.fixture(
    scope="module", params=[f"{command} {arch}" for command in ("gcc", "clang") for arch in _ARCHES]
)
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    """Choose a compiler and a processor, and returns the processor."""
    command, arch = request.param.split()
    found = next(filter(shutil.which, _CLANG if command == "clang" else (command,)), None)
    if found is None:
        pytest.skip(f"{command} is not installed")
    with oc.settings.overrides(**settings_for(arch, found)):
        yield arch


def _computed(tensors: dict[str, oc.Tensor]) -> dict[str, Array]:
    """Return the cells of several tensors, computed by one routine."""
    context = oc.Context("cpu_c")
    code = [oc.train.forward(each) for each in tensors.values()]
    total = code[0]
    for each in code[1:]:
        total += each
    routine = context.compile(total, keep=list(tensors.values()))
    routine()
    return {name: np.array(context[each]) for name, each in tensors.items()}


def test_the_target_has_the_features_of_the_configured_processor(target: str) -> None:
    found = compiler.find()
    expected = {"x86-64": 16, "x86-64-v2": 16, "x86-64-v3": 32, "x86-64-v4": 64}
    assert found.vector_bytes == expected.get(target, found.vector_bytes)
    assert target == "native" or found.has_fma is (expected[target] > 16)
    details = devices.report().details
    (arch,) = (flag for flag in found.flags if flag.startswith("-march="))
    assert any(each.startswith(f"processor {arch.removeprefix('-march=')}: ") for each in details)


def test_elementary_functions_are_within_two_units(target: str) -> None:
    random = np.random.default_rng(4)
    x = random.uniform(-20, 20, (3, 133)).astype(np.float32)
    x[0, :10] = [0.0, -0.0, np.inf, np.nan, 1e-40, 3e7, -1e30, 88.9, -100.0, 1e-30]
    x[1] /= 20
    functions = FUNCTIONS | {"pow": _POWERS}
    with oc.Session(), oc.settings.overrides(allow_nan=True):
        tensor = oc.tensor(x, batch_axes=1)
        found = _computed({name: ours(tensor) for name, (ours, _) in functions.items()})
    for name, (_, exact) in functions.items():
        with np.errstate(all="ignore"):
            away = errors(found[name], exact(x.astype(np.float64)))
        assert away.max() <= LARGEST_ERROR_OF_ALL, name


def test_rows_of_every_width_are_normalized(target: str) -> None:
    random = np.random.default_rng(5)
    inputs = {width: random.standard_normal((6, width)).astype(np.float32) for width in _WIDTHS}
    with oc.Session():
        tensors = {width: oc.tensor(x, batch_axes=1) for width, x in inputs.items()}
        found = _computed(
            {f"{w}": oc.softmax(x, logic="...|... => ...|0") for w, x in tensors.items()}
        )
    for width, x in inputs.items():
        powers = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        expected = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found[f"{width}"], expected, rtol=2e-6)


def test_sums_in_double_precision_of_every_width(target: str) -> None:
    random = np.random.default_rng(7)
    inputs = {width: random.standard_normal((4, 6, width)) for width in _WIDTHS}
    with oc.Session():
        tensors = {
            f"{width}": oc.tensor(x, input_axes=2, dtype="float64") for width, x in inputs.items()
        }
        factor = oc.tensor(np.float64(0.5), dtype="float64")
        found = _computed({w: oc.einsum("; ... => ", factor, x) for w, x in tensors.items()})
    for width, x in inputs.items():
        np.testing.assert_allclose(found[f"{width}"], x.sum() / 2, rtol=1e-13)


def test_products_and_convolutions_of_odd_extents(target: str) -> None:
    random = np.random.default_rng(6)
    # whole numbers, whose sums are exact in every order
    a, b, image, weights = (
        random.integers(-4, 5, shape).astype(np.float32)
        for shape in ((37, 29), (29, 43), (2, 9, 11, 5), (7, 3, 3, 5))
    )
    with oc.Session():
        left, right, turned = (oc.tensor(each) for each in (a, b, np.ascontiguousarray(b.T)))
        spec = "n,1*y<+1*v,1*x<+1*u,c; o,v,u,c => n,y,x,o"
        found = _computed(
            {
                "plain": oc.einsum("ij; jk => ik", left, right),
                "turned": oc.einsum("ij; kj => ik", left, turned),
                "rows": oc.einsum("ij => i", left),
                "columns": oc.einsum("ij => j", left),
                "convolved": oc.einsum(spec, oc.tensor(image), oc.tensor(weights)),
            }
        )
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(1, 2))
    expected = {
        "plain": a @ b,
        "turned": a @ b,
        "rows": a.sum(axis=1),
        "columns": a.sum(axis=0),
        "convolved": np.einsum("nyxcvu,ovuc->nyxo", windows, weights),
    }
    for name, cells in expected.items():
        np.testing.assert_array_equal(found[name], cells)


def test_no_training_step_fuses_on_a_processor_without_fused_multiply_adds() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("needs a processor without fused multiply-adds")
    with oc.Session(), oc.settings.overrides(cpu_c__arch="x86-64-v2"):
        x = oc.tensor(np.ones((8, 40), np.float32), batch_axes=1)
        hidden = oc.tanh(oc.nn.dense(x, output=[33]))
        loss = oc.mean(oc.exp(oc.nn.dense(hidden, output=[5])) * 0.25 + 0.5)
        loss = loss + oc.mean(oc.sin(hidden) + oc.erf(hidden) + oc.pow(oc.exp(hidden), hidden))
        weights = oc.exp(hidden)
        loss = loss + oc.mean(weights / oc.einsum("...|... => ...|", weights) * hidden)
        update = oc.train.AdamW(weight_decay=0.1, learning_rate=0.01).update(loss)
        step = oc.train.grad_update(loss) + update
        routine = oc.Context("cpu_c").compile(step)
        assert "fma" not in routine.source
        assert "fma" not in routine.loop_ir


@pytest.mark.parametrize("has_fma", [False, True])
def test_a_text_has_the_same_bits_on_every_processor(has_fma: bool) -> None:
    target = replace(Target("cpu_c"), has_fma=has_fma, vector_bytes=16, vector_registers=16)
    random = np.random.default_rng(6)
    x = random.uniform(-5, 5, 133).astype(np.float32)
    found = []
    draft = Draft("p")
    given, result = draft.node("given", float32, 133), draft.node("result", float32, 133)
    i = fresh_var("i")
    value = Unary(UnaryOp.EXP, draft.load(given, i), float32)
    value = Unary(UnaryOp.TANH, Unary(UnaryOp.LOG, value, float32), float32)
    program = draft.program(loop(i, 133, draft.store(result, i, value=value)))
    for arch in processors("x86-64-v2", "x86-64-v4", "native"):
        with oc.settings.overrides(**settings_for(arch)):
            subject = replace(subject_named("cpu_c"), target=target)
            found.append(subject.run(program, {given: x})[result].tobytes())
    assert found.count(found[0]) == len(found)
