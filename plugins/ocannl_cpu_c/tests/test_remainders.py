"""`mod` and `floor_div` of float32 in vectors: the bits of the interpreter, at every width."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.codegen.prelude.prelude import prelude
from ocannl_core.codegen.text.helper import UNFUSED
from ocannl_core.ir.indexing import fresh_var
from ocannl_core.ir.kernels.nodes import Plan
from ocannl_core.ir.loops.nodes import Binary
from ocannl_core.ir.numbers.dtypes import DType, bfloat16, float16, float32
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.ir.target import Target
from ocannl_core.passes.kernels.pipeline import schedule_for
from ocannl_core.testing.drafts import Draft, loop
from ocannl_core.testing.subject import subject_named
from ocannl_cpu_c.compiler import find

from .processors import processors, settings_for

Array = np.ndarray[Any, Any]
OPERATIONS = (BinaryOp.MOD, BinaryOp.FLOOR_DIV)
LANES = (2, 4, 8, 16)
ARCHES = processors("x86-64-v2", "x86-64-v3", "x86-64-v4", "native")
COUNT = 4096
_POSITIVE = [1.0, 3.0, 0.1, 2.0**29, 2.0**52, 1e-45, 1e-39, 2.0**-126, 3e38, 0.99999994, np.inf]
SPECIAL = np.array([0.0, -0.0, np.nan, *_POSITIVE, *(-x for x in _POSITIVE)], np.float32)


def pairs() -> tuple[Array, Array]:
    """Return operands: special values, random bits, and quotients near whole numbers of any
    size.
    """
    random = np.random.default_rng(8)
    special = [each.ravel() for each in np.meshgrid(SPECIAL, SPECIAL)]
    anywhere = [bits_drawn(random), bits_drawn(random)]
    near = [random.uniform(-9, 9, COUNT), random.uniform(-9, 9, COUNT)]
    small = [random.integers(-99, 99, COUNT) * 1e-45, random.integers(-9, 9, COUNT) * 1e-45]
    divisors = random.uniform(-2, 2, COUNT).astype(np.float32)
    turns = np.trunc(random.uniform(1, 2, COUNT) * 2.0 ** random.integers(0, 60, COUNT))
    multiples = (turns * divisors).astype(np.float32)
    beside = np.nextafter(multiples, random.choice([-np.inf, np.inf], COUNT).astype(np.float32))
    whole = [random.integers(-99, 99, COUNT), random.integers(-9, 9, COUNT)]
    exact = ([multiples, divisors], [beside, divisors], whole)
    groups = zip(special, anywhere, near, small, *exact, strict=True)
    with np.errstate(invalid="ignore"):  # NaN of any bits
        first, second = (np.concatenate(each).astype(np.float32) for each in groups)
    size = first.size // max(LANES) * max(LANES)
    return first[:size], second[:size]


def bits_drawn(random: np.random.Generator) -> Array:
    return random.integers(0, 2**32, COUNT).astype(np.uint32).view(np.float32)


def expected(op: BinaryOp, first: Array, second: Array) -> Array:
    """Return the meaning of an operation, rounded to float32."""
    values = map(op.value.meaning, first.tolist(), second.tolist())
    with np.errstate(all="ignore"):
        return np.array([float(each) for each in values]).astype(np.float32)


def assert_same_bits(found: Array, wanted: Array) -> None:
    numbers = ~np.isnan(wanted)
    assert found[numbers].tobytes() == wanted[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()


def compiled(folder: Path, *, has_fma: bool) -> ctypes.CDLL:
    """Return C functions on arrays, for every operation, as numbers and as vectors of all
    widths.
    """
    source, target = folder / "code.c", folder / "code.so"
    names, text = [] if has_fma else [UNFUSED], []
    for op in (each.value.name for each in OPERATIONS):
        names.append(f"{op}_float32")
        text.append(function(f"{op}_1", 1, f"to[i] = {op}_float32(a[i], b[i]);"))
        for lanes in LANES:
            vector = f"float32x{lanes}"
            names += [vector, f"{vector}_{op}"]
            x, y = (f"*(const {vector}_cells *)&{each}[i]" for each in "ab")
            body = f"*({vector}_cells *)&to[i] = {vector}_{op}({x}, {y});"
            text.append(function(f"{op}_{lanes}", lanes, body))
    headers = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
    source.write_text(f"{headers}{prelude(names)}\n{''.join(text)}")
    find().start(source, target).finish()
    return ctypes.CDLL(str(target))


def function(name: str, lanes: int, body: str) -> str:
    head = f"void {name}(const float *a, const float *b, float *to, int count)"
    return f"{head} {{\n  for (int i = 0; i < count; i += {lanes}) {{\n    {body}\n  }}\n}}\n"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("has_fma", [True, False])
def test_lanes_have_the_bits_of_the_meaning(has_fma: bool, arch: str, tmp_path: Path) -> None:
    first, second = pairs()
    with oc.settings.overrides(**settings_for(arch)):
        library = compiled(tmp_path, has_fma=has_fma)
    pointer = ctypes.POINTER(ctypes.c_float)
    for op in OPERATIONS:
        wanted = expected(op, first, second)
        for lanes in (1, *LANES):
            found = np.zeros_like(first)
            cells = [each.ctypes.data_as(pointer) for each in (first, second, found)]
            library[f"{op.value.name}_{lanes}"](*cells, ctypes.c_int(first.size))
            assert_same_bits(found, wanted)


def test_the_order_of_far_quotients_among_others_does_not_matter(tmp_path: Path) -> None:
    library = compiled(tmp_path, has_fma=True)
    pointer = ctypes.POINTER(ctypes.c_float)
    for lane in range(16):
        first, second = np.full(16, 7.5, np.float32), np.full(16, -2.0, np.float32)
        first[lane] = 3e30
        for op in OPERATIONS:
            found = np.zeros_like(first)
            cells = [each.ctypes.data_as(pointer) for each in (first, second, found)]
            library[f"{op.value.name}_16"](*cells, ctypes.c_int(16))
            assert_same_bits(found, expected(op, first, second))


def scheduled(plan: Plan, target: Target) -> Plan:
    return schedule_for(plan, target).plan()


PROCESSORS: dict[str, dict[str, Any]] = {
    "wide": {"vector_bytes": 64, "vector_registers": 32, "has_fma": True},
    "narrow": {"vector_bytes": 32, "vector_registers": 16, "has_fma": True},
    "unfused": {"vector_bytes": 16, "vector_registers": 16, "has_fma": False},
}


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: op.value.name)
def test_kernels_have_the_bits_of_the_interpreter(
    op: BinaryOp, dtype: DType, processor: str
) -> None:
    """Rows of 37 cells end with a part of a register; one divisor of each row is for all cells."""
    rows, columns = 24, 37
    draft, i, j = Draft("p"), fresh_var("i"), fresh_var("j")
    x, y = (draft.node(name, dtype, rows, columns) for name in "xy")
    each, one = (draft.node(name, dtype, rows, columns) for name in ("each", "one"))
    divisors = (draft.load(y, i, j), draft.load(y, i, 3))
    stores = (
        draft.store(to, i, j, value=Binary(op, draft.load(x, i, j), divisor, dtype))
        for to, divisor in zip((each, one), divisors, strict=True)
    )
    program = draft.program(*(loop(i, rows, loop(j, columns, store)) for store in stores))
    first, second = pairs()
    chosen = np.random.default_rng(2).choice(first.size, (rows, columns))
    with np.errstate(all="ignore"):
        arrays = {x: first[chosen].astype(dtype.numpy), y: second[chosen].astype(dtype.numpy)}
    wanted = subject_named("interp").run(program, arrays)
    subject = subject_named("cpu_c")
    subject = replace(subject, target=replace(subject.target, **PROCESSORS[processor]))
    lanes = f"float32x{PROCESSORS[processor]['vector_bytes'] // 4}_{op.value.name}("
    assert lanes in subject.generate(program, scheduled).text
    found = subject.run(program, arrays, (), scheduled)
    for to in (each, one):
        assert_same_bits(found[to].astype(np.float32), wanted[to].astype(np.float32))
