"""Kernels as instructions, run by a builder that executes each one as it is appended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.backend import manager
from ocannl_core.backend_api import (
    Buffer,
    Capability,
    KernelStream,
    Launcher,
    NodeInfo,
    Target,
    TargetReport,
    TensorNode,
    hookimpl,
)
from ocannl_core.backend_api.arithmetic import EVERY_PRIMITIVE, from_bits, round_to
from ocannl_core.backend_api.instructions import (
    InstructionBuilder,
    KernelInstructions,
    MachineType,
    instruction_source,
)
from ocannl_core.backend_api.launches import Launch, RoutineSource
from ocannl_core.backend_api.memory import Arena, DeviceMemory, RoutineMemory, transfer
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.instructions.floats import FloatLayout
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.dtypes import DType, bits_of
from ocannl_core.ir.numbers.primitives import UnaryOp
from ocannl_core.testing.allowances import Allowances, Outcome
from ocannl_core.testing.conformance import BackendConformance
from ocannl_core.testing.corpora import primitive_edges
from ocannl_core.testing.subject import subject_named
from tests.support.limited_backend import all_but, limited

NUMPY = {
    MachineType.BIT: np.bool_,
    MachineType.I8: np.int8,
    MachineType.I16: np.int16,
    MachineType.I32: np.int32,
    MachineType.I64: np.int64,
    MachineType.HALF: np.float16,
    MachineType.SINGLE: np.float32,
    MachineType.DOUBLE: np.float64,
}
BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.divide,
    "frem": np.fmod,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "lshr": np.right_shift,
    "ashr": np.right_shift,
    "udiv": np.floor_divide,
    "urem": np.remainder,
    "sdiv": lambda a, b: type(a)(
        math.trunc(int(a) / int(b)) if abs(int(a)) < 2**52 else exact(a, b)
    ),
    "srem": np.fmod,
}
COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "no": lambda a, b: a != a or b != b,
}
FUNCTIONS = {op.value.function: op.value.meaning for op in EVERY_PRIMITIVE if op.value.function}
"""The exact functions; they are rounded to the format."""


def exact(a: Any, b: Any) -> int:
    size = abs(int(a)) // abs(int(b))
    return size if (a < 0) == (b < 0) else -size


class Left(Exception):
    """The kernel has ended before its last statement."""


class Executor:
    """Runs each instruction; loops append their body repeatedly, branches only where they hold."""

    def __init__(self, *, has_half: bool) -> None:
        self.has_half = has_half

    def constant(self, kind: MachineType, number: float) -> Any:
        if kind in (MachineType.SINGLE, MachineType.DOUBLE):
            assert isinstance(number, float)
        else:
            assert -(1 << (kind.bits - 1)) <= number < 1 << (kind.bits - 1)
        return NUMPY[kind](number)

    def binary(self, operation: str, a: Any, b: Any) -> Any:
        if operation.startswith("index_"):
            exact_result = {"index_add": int(a) + int(b), "index_mul": int(a) * int(b)}[operation]
            assert abs(exact_result) < 2**63
            return np.int64(exact_result)
        assert type(a) is type(b), operation
        assert operation.startswith("f") == np.issubdtype(type(a), np.floating)
        if operation in ("shl", "lshr", "ashr"):
            assert 0 <= b < 8 * a.itemsize
        if operation[0] == "u" or operation == "lshr":
            return BINARY[operation](unsigned(a), unsigned(b)).view(type(a))
        result = BINARY[operation](a, b)
        assert type(result) is type(a)
        return result

    def compare(self, predicate: str, a: Any, b: Any) -> Any:
        assert type(a) is type(b)
        is_float = np.issubdtype(type(a), np.floating)
        known = {"oeq", "olt", "ole", "une", "uno"}
        assert predicate in (known if is_float else {"eq", "ne", "slt", "sle", "ult", "ule"})
        if predicate in ("ult", "ule"):
            a, b = unsigned(a), unsigned(b)
        return np.bool_(COMPARE[predicate[-2:]](a, b))

    def cast(self, operation: str, value: Any, kind: MachineType) -> Any:
        bits = 8 * value.itemsize
        match operation:
            case "bitcast":
                return value.view(NUMPY[kind])
            case "trunc" | "sext" | "fpext" | "fptrunc":
                assert (kind.bits < bits) == operation.endswith("trunc")
                return value.astype(NUMPY[kind])
            case "zext":
                assert kind.bits > bits
                return unsigned(value).astype(NUMPY[kind])
            case "sitofp":
                return NUMPY[kind](value)
            case "uitofp":
                return NUMPY[kind](unsigned(value))
            case "fptoui":
                assert 0 <= value < 2.0**kind.bits
                return np.uint64(value).astype(NUMPY[kind])
        raise AssertionError(operation)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        assert type(condition) is np.bool_
        assert type(a) is type(b)
        return a if condition else b

    def function(self, name: str, kind: MachineType, operands: Sequence[Any]) -> Any:
        assert all(type(each) is NUMPY[kind] for each in operands)
        given = [float(each) for each in operands]
        found = math.copysign(*given) if name == "copysign" else self._meaning(name, given)
        return NUMPY[kind](round_to(found, dtypes.dtype_of(NUMPY[kind])))

    def _meaning(self, name: str, given: Sequence[float]) -> Any:
        if name in ("floor", "ceil", "trunc", "rint") and given[0] == round_if_finite(given[0]):
            return given[0]
        found = FUNCTIONS[name](*given)
        return math.copysign(found, given[0]) if name in ("ceil", "trunc", "rint") else found

    def local(self, kind: MachineType, count: int = 1) -> Any:
        return np.full(np.dtype(NUMPY[kind]).itemsize * count, 0xAA, np.uint8)

    def load(self, array: Any, index: Any, kind: MachineType) -> Any:
        return self._cell(array, index, kind)[0]

    def store(self, array: Any, index: Any, kind: MachineType, value: Any) -> None:
        assert type(value) is NUMPY[kind]
        self._cell(array, index, kind)[0] = value

    def _cell(self, array: Any, index: Any, kind: MachineType) -> Any:
        size = np.dtype(NUMPY[kind]).itemsize
        assert type(index) is np.int64
        assert index >= 0
        cell = array[int(index) * size : (int(index) + 1) * size]
        assert cell.size == size
        return cell.view(NUMPY[kind])

    def loop(self, start: Any, stop: Any, body: Callable[[Any], None]) -> None:
        for number in range(int(start), int(stop)):
            body(np.int64(number))

    def branch(self, condition: Any, body: Callable[[], None]) -> None:
        assert type(condition) is np.bool_
        if condition:
            body()

    def choose(
        self,
        condition: Any,
        kinds: Sequence[MachineType],
        first: Callable[[], Sequence[Any]],
        second: Callable[[], Sequence[Any]],
    ) -> Sequence[Any]:
        found = first() if condition else second()
        assert [type(each) for each in found] == [NUMPY[kind] for kind in kinds]
        return found

    def leave(self) -> None:
        raise Left


def unsigned(value: Any) -> Any:
    return value.view(f"u{value.itemsize}")


def round_if_finite(number: float) -> float:
    return float(round(number)) if math.isfinite(number) else number


class Island:
    """Memory with addresses of its own."""

    def __init__(self, nbytes: int) -> None:
        self.cells = np.zeros(nbytes, np.uint8)

    def read(self, address: int, nbytes: int) -> Any:
        return self.cells[address : address + nbytes].tobytes()

    def write(self, address: int, data: Any) -> None:
        array = np.frombuffer(data, np.uint8)
        self.cells[address : address + array.size] = array


SIZE = 1 << 24
DEVICE = Target(
    "executor",
    capabilities=(
        Capability.EXTERNAL_CALLS,
        Capability.MERGE_BUFFERS,
        Capability.POSITION_CHECKS,
        Capability.REPETITIONS,
        Capability.SCATTERS,
    ),
)


class Compiled:
    def __init__(self, plugin: Plugin, source: RoutineSource) -> None:
        self.plugin = plugin
        self.source = source

    def link(
        self,
        buffers: Mapping[TensorNode, Buffer],
        merge_buffers: Mapping[TensorNode, Buffer] | None = None,
    ) -> Launcher:
        memory = RoutineMemory(self.plugin.memory, self.source.plan, buffers, merge_buffers)
        return memory.launcher(self.source.steps, self._function)

    def _function(self, launch: Launch, addresses: Sequence[int]) -> Callable[[], None]:
        kernel = self.plugin.kernels[launch.text.text]
        assert len(addresses) == kernel.arguments
        cells = [self.plugin.island.cells[each:] for each in addresses]
        return partial(execute, kernel, cells, has_half=self.plugin.has_half)


def execute(kernel: KernelInstructions, arrays: Sequence[Any], *, has_half: bool) -> None:
    builder: InstructionBuilder = Executor(has_half=has_half)
    with np.errstate(all="ignore"), suppress(Left):
        kernel.append(builder, arrays)


class Plugin:
    """A backend with the builder as its device."""

    OCANNL_API = (1, 1)

    def __init__(self, *, has_half: bool) -> None:
        self.has_half = has_half
        self.kernels: dict[str, KernelInstructions] = {}
        self.island = Island(SIZE)
        self.memory = DeviceMemory(DEVICE, self.island, Arena(64, SIZE - 64))

    @hookimpl
    def ocannl_targets(self) -> TargetReport:
        return TargetReport((DEVICE,))

    @hookimpl
    def ocannl_generate(self, kernels: KernelStream) -> RoutineSource:
        return instruction_source(kernels, self._write, "instructions", stack_limit=256)

    def _write(self, symbol: str, kernel: KernelInstructions) -> str:
        text = f"{symbol} of {len(self.kernels)}"
        self.kernels[text] = kernel
        return text

    @hookimpl
    def ocannl_compile(self, source: RoutineSource) -> Compiled:
        return Compiled(self, source)

    @hookimpl
    def ocannl_allocate(self, info: NodeInfo) -> Any:
        return self.memory.allocate(info)

    @hookimpl
    def ocannl_transfer(self, destination: Buffer, source: Buffer) -> Any:
        return transfer(destination, source)


pytestmark = pytest.mark.usefixtures("fresh_plugins")


def register(*, has_half: bool) -> None:
    manager.refresh()
    manager.register("executor", Plugin(has_half=has_half))


@pytest.mark.parametrize("vector_bytes", [0, 32])
@pytest.mark.parametrize("fallback", [False, True], ids=["own", "fallback"])
def test_an_explanation_names_vectors_that_are_plain_loops(
    monkeypatch: pytest.MonkeyPatch, vector_bytes: int, fallback: bool
) -> None:
    device = replace(DEVICE, vector_bytes=vector_bytes, vector_registers=16)
    monkeypatch.setitem(globals(), "DEVICE", device)
    register(has_half=True)
    limited("tiny", primitives=all_but(UnaryOp.EXP))
    with oc.Session():
        y = oc.exp(oc.placeholder("x", output=[64]))
        ctx = oc.Context("tiny", fallback="executor") if fallback else oc.Context("executor")
        found = oc.explain(ctx.compile(oc.train.forward(y)))
    assert [each.has_plain_tiles for each in found.kernels] == [vector_bytes > 0]


@pytest.mark.slow
class TestExecutor(BackendConformance):
    oracle_name = "interp"
    expected_failures: ClassVar = {
        "test_generating_code_twice_gives_the_same_text": "texts are numbered"
    }

    @pytest.fixture
    def target(self, fresh_plugins: None) -> str:
        register(has_half=False)
        return "executor"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["fma", "max", "div", "mod", "pow", "sign", "where", "neg"])
def test_primitives_have_their_meaning_at_the_edges(wanted: str) -> None:
    register(has_half=True)
    given = f"primitives/{wanted}"
    results = primitive_edges.results(
        subject_named("executor"), subject_named("interp"), Allowances(), given
    )
    found = list(results)
    assert found
    assert [each for each in found if each.outcome is not Outcome.PASSED] == []


def program() -> oc.Tensor:
    """Return a result of sums, a gather, random numbers, branches and several formats."""
    table = oc.tensor(np.arange(12, dtype=np.float16).reshape(4, 3) - 5, dtype="float16")
    rows = oc.take(table, oc.tensor([3, 0, 2], dtype="int32"))
    noise = oc.random.uniform_of(oc.random.words(), dtype="float16")
    scores = oc.where(rows > 0, rows, rows * 0.5) + noise
    whole = oc.floor_divide(oc.tensor([7, -7, 9], dtype="int8"), 2)
    return oc.softmax(scores) * 0.5 + oc.cast(whole, "float16")


@pytest.mark.parametrize("has_half", [True, False])
def test_a_program_has_the_bits_of_the_interpreter(has_half: bool) -> None:
    register(has_half=has_half)
    found = []
    for backend in ("executor", "interp"):
        with oc.Session():
            result = program()
            ctx = oc.Context(backend)
            ctx.compile(oc.train.forward(result))()
            found.append(ctx[result])
    assert np.array_equal(*found)
    assert len(np.unique(found[0])) > 6


NARROW = [each for each in dtypes.ALL if each.is_narrow]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_each_pattern_of_a_narrow_float_is_its_number(dtype: DType) -> None:
    layout, b = FloatLayout.of(dtype), Executor(has_half=False)
    with np.errstate(all="ignore"):
        for pattern in range(0, 1 << layout.bits, 1 if layout.bits == 8 else 37):
            number = float(layout.decode(b, np.int32(pattern)))
            expected = from_bits(pattern, dtype)
            assert number == expected or (number != number and expected != expected)
            if number == number:
                assert int(layout.encode(b, np.float32(number))) == pattern


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(number=st.floats(width=32) | st.floats(-600, 600, width=32))
def test_singles_are_rounded_to_narrow_floats(number: float, dtype: DType) -> None:
    layout, b = FloatLayout.of(dtype), Executor(has_half=False)
    with np.errstate(all="ignore"):
        found = int(layout.encode(b, np.float32(number)))
    sign = 1 << (layout.bits - 1)
    expected = bits_of(round_to(number, dtype), dtype)
    assert (
        found & ~sign == expected & ~sign
        if number != number
        else found == expected or (found & ~sign == expected & ~sign == layout.nan)
    )
