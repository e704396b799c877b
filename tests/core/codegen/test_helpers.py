"""Definitions of helpers in the files of the package."""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.resources import files

import pytest

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.prelude.elementwise import vector_function
from ocannl_core.codegen.prelude.prelude import PreludeWords, closure, helper_names, prelude
from ocannl_core.codegen.prelude.vector_types import Vector
from ocannl_core.codegen.text.helper import UNFUSED, read_helpers
from ocannl_core.ir.numbers.primitives import HASHES, PRIMITIVES

FILES = sorted(each.name for each in (files("ocannl_core.codegen") / "c").iterdir())
LEAST_FAR = 22


def test_definitions_are_read_by_name_without_their_markers():
    found = read_helpers("scalars.h")["float16_bits"]
    assert found.needs == ("half_bits",)
    assert found.text == ("INLINE uint16_t float16_bits(float x) {\n  return half_bits(x, 13);\n}")


@pytest.mark.parametrize("file", FILES)
def test_every_marker_of_a_file_is_understood(file):
    text = (files("ocannl_core.codegen") / "c" / file).read_text()
    assert len(read_helpers(file)) == text.count("///") > 0
    assert not any("///" in each.text for each in read_helpers(file).values())


def test_a_helper_needs_every_other_one_that_it_mentions():
    names = set(helper_names())
    for name in names:
        mentioned = set(re.findall(r"\w+", definition(name))) & names - {name}
        assert mentioned <= set(closure([name])), name


def test_a_definition_follows_those_that_it_needs():
    order = closure(["sin_float32", "float8_e5m2_round", "threefry4x32"])
    for position, name in enumerate(order):
        needed = set(closure([name])) - {name}
        assert needed <= set(order[:position])


@pytest.mark.parametrize("name", ["madd_float32", "madd_float64", "float32x8_madd"])
def test_the_target_decides_if_a_multiply_add_is_fused(name):
    fused, unfused = prelude([name]), prelude([name, UNFUSED])
    assert re.search(r"madd\w*\(.*\{\n  return \w*fmaf?\(a, b, c\);\n\}", fused)
    assert re.search(r"madd\w*\(.*\{\n  return a \* b \+ c;\n\}", unfused)


def test_no_definition_of_numbers_depends_on_fused_instructions_of_the_compiler():
    for name in helper_names():
        assert not re.search(r"__FMA__|FEATURE_FMA|FAST_FMA", definition(name)), name


@pytest.mark.parametrize("op", PRIMITIVES, ids=lambda op: op.value.name)
def test_primitives_with_vector_code_in_the_table_have_it(op):
    row = op.value
    has_code = vector_function(row.name, Vector("float32", 8)) is not None
    assert row.has_vector_code == (has_code and op not in HASHES)


def test_far_angles_are_reduced_by_two_over_pi_modulo_four():
    quarters = 2 / pi(256)
    high, low = [], []
    for exponent in range(LEAST_FAR, 128):
        rest = quarters * Fraction(2) ** (exponent - 23)
        rest -= 4 * ((rest + 2) // 4)
        # 29 bits, whose products with the 24 bits of a float32 are exact, and a remainder
        high.append(float(Fraction(round(rest * 2**27), 2**27)))
        low.append(float(rest - Fraction(high[-1])))
    text = read_helpers("float32_math.h")["quarters"].text
    found = [
        [float.fromhex(each) for each in part.split(",")] for part in re.findall(r"{([^}]*)}", text)
    ]
    assert found == [high, low]
    assert text.count(f"[{128 - LEAST_FAR}]") == 2


def definition(name: str) -> str:
    """Return the text of a helper without those that it needs."""
    *needed, _ = closure([name])
    return prelude([name]).removeprefix(prelude(needed)).strip()


def pi(bits: int) -> Fraction:
    """Return pi to a number of bits, by Machin's formula."""
    one = 1 << (bits + 16)

    def arctangent_of_reciprocal(n: int) -> int:
        total = term = one // n
        divisor, sign = 1, -1
        while term:
            term //= n * n
            divisor += 2
            total += sign * (term // divisor)
            sign = -sign
        return total

    return Fraction(16 * arctangent_of_reciprocal(5) - 4 * arctangent_of_reciprocal(239), one)


def test_a_helper_that_no_file_defines_is_an_error_that_says_how_to_define_it(tmp_path):
    file = tmp_path / "helpers.h"
    file.write_text("INLINE float unit_tanh(float x) {\n  return x;\n}\n")  # without its name
    with pytest.raises(CodegenError) as caught:
        prelude(["unit_tanh"], PreludeWords(files=(str(file),)))
    assert caught.value.found == f"unit_tanh, and its files are {file}"
    assert "`/// unit_tanh`" in caught.value.fix


def test_a_replacement_of_no_helper_is_an_error():
    words = PreludeWords(own=(("tanhf", "INLINE float tanhf(float x);"),))
    with pytest.raises(CodegenError, match="tanhf, and its files are none"):
        prelude(["madd_float32"], words)
