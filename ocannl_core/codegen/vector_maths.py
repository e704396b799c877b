"""Exponential functions and logarithms of vectors of `float32`, as C.

Each is a reduction of the argument and a polynomial, after S. Moshier's Cephes library: within
2 units in the last place of the exact value, over all arguments, with the right results for zeros,
infinities, NaN, overflow and numbers below the normal ones.
"""

from __future__ import annotations

from collections.abc import Sequence

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)

FUNCTIONS = ("exp", "tanh", "log")
"""What is computed here; other functions are called lane by lane."""


def vector_function(name: str, vector: str, mask: str) -> tuple[str, tuple[str, ...]]:
    """Returns the definition of a function on vectors, and the helpers that it needs.

    Args:
        name: One of `FUNCTIONS`.
        vector: The type of vectors of `float32`.
        mask: The type of integers of the same size.
    """
    bodies = {"exp": _exp, "tanh": _tanh, "log": _log}
    body = bodies[name](vector, mask)
    needs = [f"{vector}_{part}" for part in ("mad", "splat", "select")]
    if name == "tanh":
        needs.append(f"{vector}_exp")
    lines = "\n".join(f"  {line}" for line in body)
    return f"INLINE {vector} {vector}_{name}({vector} x) {{\n{lines}\n}}", (mask, *needs)


def _polynomial(vector: str, coefficients: Sequence[float], at: str) -> list[str]:
    """Returns the lines that compute a polynomial, highest power first, into `p`."""
    first, *rest = coefficients
    lines = [f"{vector} p = {vector}_splat({first!r}f);"]
    lines += [f"p = {vector}_mad(p, {at}, {vector}_splat({each!r}f));" for each in rest]
    return lines


def _exp(vector: str, mask: str) -> list[str]:
    """exp(x) = 2 ** n * exp(r) with |r| <= ln(2) / 2; the power is applied in two steps, of which
    neither overflows.
    """
    splat = f"{vector}_splat"
    return [
        f"const {vector} low = {splat}(-104.0f), high = {splat}(89.0f);",
        f"const {vector} big = {splat}(12582912.0f);  // adding it rounds to an integer",
        f"x = {vector}_select(x < low, low, x);",
        f"x = {vector}_select(x > high, high, x);",
        f"const {vector} t = {vector}_mad(x, {splat}(1.44269504f), big);",
        f"const {vector} n = t - big;",
        f"{vector} r = {vector}_mad(n, {splat}(-0.693359375f), x);",
        f"r = {vector}_mad(n, {splat}(2.12194440e-4f), r);",
        *_polynomial(vector, _EXP, "r"),
        f"p = {vector}_mad(p, r * r, r) + {splat}(1.0f);",
        f"const {mask} whole = ({mask})t - ({mask})big, half = whole >> 1;",
        f"return p * ({vector})((half + 127) << 23) * ({vector})((whole - half + 127) << 23);",
    ]


def _tanh(vector: str, mask: str) -> list[str]:
    splat = f"{vector}_splat"
    return [
        f"const {mask} sign = ({mask})x & -2147483648;",
        f"const {vector} a = ({vector})(({mask})x & 2147483647), z = x * x;",
        f"const {vector} one = {splat}(1.0f), e = {vector}_exp(a + a);",
        f"const {vector} far = one - {splat}(2.0f) / (e + one);",
        *_polynomial(vector, _TANH, "z"),
        f"const {vector} near = {vector}_mad(p * z, a, a);",
        f"return ({vector})(({mask}){vector}_select(a < {splat}(0.625f), near, far) | sign);",
    ]


def _log(vector: str, mask: str) -> list[str]:
    """log(x) = k ln(2) + log(1 + f) with 1 + f between the square roots of 1/2 and 2."""
    splat = f"{vector}_splat"
    return [
        f"const {vector} zero = {splat}(0.0f), least = {splat}(1.17549435e-38f);",
        f"const {mask} tiny = x < least;",
        f"const {vector} y = {vector}_select(tiny, x * {splat}(8388608.0f), x);",
        f"const {mask} k = (({mask})y - 0x3f3504f3) >> 23;",
        f"const {vector} f = ({vector})(({mask})y - (k << 23)) - {splat}(1.0f), z = f * f;",
        f"const {vector} n = __builtin_convertvector(k + (tiny & -23), {vector});",
        *_polynomial(vector, _LOG, "f"),
        f"p = {vector}_mad(n, {splat}(-2.12194440e-4f), p * f * z);",
        f"p = {vector}_mad({splat}(-0.5f), z, p) + f;",
        f"p = {vector}_mad(n, {splat}(0.693359375f), p);",
        f"p = {vector}_select(x < {splat}(INFINITY), p, x);  // infinity, NaN",
        f"p = {vector}_select(x == zero, {splat}(-INFINITY), p);",
        f"return {vector}_select(x < zero, {splat}(NAN), p);",
    ]
