"""The instructions of a language, which a backend writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeAlias

Value: TypeAlias = Any
"""A number in a register, or an array in memory, as the builder represents it."""


class MachineType(Enum):
    """A type of registers and memory; the value is its name in LLVM.

    Integers have no sign: instructions do. `BIT` is the result of comparisons, and `HALF` a type of
    memory, of which builders without `has_half` see nothing.
    """

    BIT = "i1"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    HALF = "half"
    SINGLE = "float"
    DOUBLE = "double"

    @property
    def bits(self) -> int:
        return _BITS[self]


_BITS = dict(zip(MachineType, (1, 8, 16, 32, 64, 16, 32, 64), strict=True))


class InstructionBuilder(Protocol):
    """Appends instructions to a kernel; each method returns the value of its instruction.

    Instructions have the names and the meaning of LLVM's, but for integers: results wrap, and a
    shift is less than the number of bits.

    Attributes:
        has_half: True if `HALF` can be loaded, stored, and cast from and to `SINGLE`.
    """

    has_half: bool

    def constant(self, kind: MachineType, number: float) -> Value:
        """Return a number; an integer is in the signed range of its bits."""
        ...

    def binary(self, operation: str, a: Value, b: Value) -> Value:
        """Return the result of one of `add sub mul sdiv udiv srem urem and or xor shl lshr ashr` of
        two integers, or of `fadd fsub fmul fdiv frem` of two floats.

        `frem` is exact and has the sign of `a`, as `fmod` of C. `and`, `or` and `xor` also combine
        bits. Indices are computed by `index_add` and `index_mul`, which never overflow.
        """
        ...

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        """Return the `BIT` of a comparison: `eq ne slt sle ult ule` of integers, `oeq olt ole` of
        floats, which do not hold for NaN, `une`, which does, or `uno`, which holds for NaN only.
        """
        ...

    def cast(self, operation: str, value: Value, kind: MachineType) -> Value:
        """Return a value in another type, by `trunc zext sext` among integers, `fpext fptrunc`
        among floats, `sitofp uitofp fptoui` between them, or `bitcast` between types of one size.

        The operand of `fptoui` is finite and in range; `fptrunc` rounds to even.
        """
        ...

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """Return `a` where a `BIT` is 1, else `b`."""
        ...

    def function(self, name: str, kind: MachineType, operands: Sequence[Value]) -> Value:
        """Return a function of the C library, named as for `double`, of `SINGLE` or `DOUBLE`."""
        ...

    def local(self, kind: MachineType, count: int = 1) -> Value:
        """Return an array on the stack of the kernel."""
        ...

    def load(self, array: Value, index: Value, kind: MachineType) -> Value:
        """Return an element of an array, which is seen as one of the type."""
        ...

    def store(self, array: Value, index: Value, kind: MachineType, value: Value) -> None:
        """Write an element of an array."""
        ...

    def loop(self, start: Value, stop: Value, body: Callable[[Value], None]) -> None:
        """Append a loop over `I64` from `start` to before `stop`; `body` appends one iteration."""
        ...

    def branch(self, condition: Value, body: Callable[[], None]) -> None:
        """Append what `body` appends, to run where a `BIT` is 1."""
        ...

    def choose(
        self,
        condition: Value,
        kinds: Sequence[MachineType],
        first: Callable[[], Sequence[Value]],
        second: Callable[[], Sequence[Value]],
    ) -> Sequence[Value]:
        """Return the values of these types that one of two functions appends, of which one runs."""
        ...

    def leave(self) -> None:
        """End the kernel, inside of a branch."""
        ...
