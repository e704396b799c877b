"""Layouts of other programs: the arrays of a file that hold a tensor, and the way they do."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from numbers import Integral

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.host_arrays import Array

LAYER = "{layer}"
"""The place of a layer's number in the name of an array."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The array of a file that holds a tensor: `part`, `shape` and `transpose` in this order, then
    the tensor's extents.

        oc.Stored("h.{layer}.attn.c_attn.weight", part=(0, 3), axis=1, transpose=(1, 0))

    is the first third of the columns of a matrix, transposed, for each layer of a stack.

    Attributes:
        name: The name in the file. With `{layer}`, there is an array for each position along the
            leading axis of the tensor, numbered from 0.
        part: The number of a part, and the number of equal parts along `axis`; None for all.
        axis: The axis of the file's array that is cut in parts.
        shape: The extents before the axes are permuted, one of them may be -1; None for its own.
        transpose: The order of its axes in the tensor, as for `np.transpose`; None for its own.
        prefix: A beginning that the names of a file may have.
    """

    name: str
    part: tuple[int, int] | None = None
    axis: int = 0
    shape: tuple[int, ...] | None = None
    transpose: tuple[int, ...] | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        is_part = self.part is None or (len(self.part) == 2 and 0 <= self.part[0] < self.part[1])
        numbers = (self.axis, *(self.shape or ()), *(self.transpose or ()))
        is_order = self.transpose is None or sorted(self.transpose) == list(
            range(len(self.transpose))
        )
        are_numbers = all(isinstance(n, Integral) and not isinstance(n, bool) for n in numbers)
        if not (is_part and is_order and are_numbers and isinstance(self.name, str) and self.name):
            raise UsageError.at_caller(
                "The layout of an array is its name, a part as (number, parts), an axis, a shape, "
                "and an order of axes.",
                found=repr(self),
                fix='oc.Stored("weight", part=(0, 3), axis=1, transpose=(1, 0))',
            )

    @property
    def is_layered(self) -> bool:
        """Return True if each layer has an array of its own."""
        return LAYER in self.name

    def in_file(self, names: Iterable[str]) -> Stored:
        """Return the layout with the name as a file with these names has it."""
        if not self.prefix or not any(name.startswith(self.prefix) for name in names):
            return self
        return replace(self, name=self.prefix + self.name, prefix="")

    def names(self, layers: int) -> tuple[str, ...]:
        """Return the names of the arrays."""
        if not self.is_layered:
            return (self.name,)
        return tuple(self.name.replace(LAYER, str(layer)) for layer in range(layers))

    def problem(self, shape: tuple[int, ...], needed: tuple[int, ...]) -> str:
        """Return why an array does not hold the cells of a tensor, or nothing."""
        sizes = list(shape)
        if self.part is not None:
            if not -len(sizes) <= self.axis < len(sizes) or sizes[self.axis] % self.part[1]:
                return f"{self.part[1]} parts along axis {self.axis}"
            sizes[self.axis] //= self.part[1]
        if self.shape is not None:
            given = prod(n for n in self.shape if n != -1)
            is_open = self.shape.count(-1) == 1 and given and not prod(sizes) % given
            if given != prod(sizes) and not is_open:
                return f"{sizes} as {list(self.shape)}"
        axes = sizes if self.shape is None else list(self.shape)
        if self.transpose is not None and len(self.transpose) != len(axes):
            return f"{len(axes)} axes in the order {self.transpose}"
        if prod(sizes) != prod(needed):
            return f"{prod(sizes)} cells for {prod(needed)}"
        return ""

    def read(self, array: Array, needed: tuple[int, ...]) -> Array:
        """Return the cells of a tensor from an array of the file."""
        if self.part is not None:
            number, parts = self.part
            width = array.shape[self.axis] // parts
            place: list[slice] = [slice(None)] * array.ndim
            place[self.axis] = slice(number * width, (number + 1) * width)
            array = array[tuple(place)]
        if self.shape is not None:
            array = array.reshape(self.shape)
        if self.transpose is not None:
            array = array.transpose(self.transpose)
        return array.reshape(needed)
