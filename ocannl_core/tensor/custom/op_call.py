"""Calls of `perform` from running code: storage, checks and errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from ocannl_core.base import settings
from ocannl_core.base.errors import OcannlError, OpError, TransferError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.forks import process_lock
from ocannl_core.base.interruptions import reraise_interruption
from ocannl_core.ir.external import NativeCode
from ocannl_core.ir.host_arrays import refuse_mask
from ocannl_core.ir.numbers.dtypes import dtype_of
from ocannl_core.tensor.custom.variables import Array
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.tensor.custom.op import Apply

Cells = list[list[Any]]
"""The storage of outputs that are Python objects."""

_MARK = bytes.fromhex("a53c96e15bc72d78")
"""Bytes that no output is likely to begin with: finite numbers in every format."""


class OpCall:
    """An application of an op, as a callee of the loop language.

    The arguments are the arrays of the inputs, of the outputs that are tensors, and of inputs that
    are destroyed without an output that takes over their memory.
    """

    def __init__(self, node: Apply) -> None:
        self._node = node
        self._objects = [k for k, each in enumerate(node.outputs) if not isinstance(each, Tensor)]
        self._tensors = [k for k, each in enumerate(node.outputs) if isinstance(each, Tensor)]
        self._idle: list[Cells] = []
        self._lock = process_lock()

    @property
    def name(self) -> str:
        return self._node.op.name

    @property
    def line_axis(self) -> int | None:
        return self._node.op.line_axis

    def native(self, language: str) -> NativeCode | None:
        """Return the op's code in a language; None if the settings require Python."""
        if settings.current().python_ops:
            return None
        op = self._node.op
        try:
            code = op.native(language, self._node)
        except OcannlError:
            raise
        except Exception as error:
            raise self._error(
                f"The op {op!r} gives its code in {language}, or raises NoNativeCode.",
                f"{type(error).__name__}: {error}",
            ) from error
        if code is None:
            return None
        if not isinstance(code.body, str) or not isinstance(code.support, str):
            wrong = code.support if isinstance(code.body, str) else code.body
            raise self._error(
                f"The code of an op in {language} is a text.", f"{type(wrong).__name__}"
            )
        for title, names in (
            ("input_names", code.inputs),
            ("output_names", code.outputs),
            (f"{language}_headers", code.headers),
        ):
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise self._error(
                    f"{title} is a tuple of texts.",
                    repr(names),
                    f"{title} = ({names!r},)" if isinstance(names, str) else "",
                )
        return replace(code, origin=str(self._node.origin))

    def perform(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run the op's `perform`.

        Raises:
            OpError: if it fails, or returns invalid outputs. Inputs to be destroyed have their
                former cells then.
        """
        node = self._node
        targets = outputs[: len(node.results)]
        destroyed = {position: inputs[position].copy() for position in node.destroyed}
        given = [
            array if position in destroyed else _read_only(array)
            for position, array in enumerate(inputs)
        ]
        with self._lock:  # calls may overlap in time: the objects of one that has finished, or none
            objects = self._idle.pop() if self._idle else [[None] for _ in self._objects]
        storage = self._storage(targets, objects)
        try:
            self._run(given, storage, list(storage))
            found = [
                self._check(storage[k][0], target, k)
                for k, target in zip(self._tensors, targets, strict=True)
            ]
        except BaseException:
            for position, cells in destroyed.items():
                inputs[position][...] = cells
            raise
        _copy_out(found, targets, [inputs[position] for position in destroyed])
        with self._lock:
            self._idle.append(objects)

    def _storage(self, targets: Sequence[Array], objects: Cells) -> list[list[Any]]:
        """Return a cell for each output: with the array of the result, or an object.

        An output that shares the memory of an input starts without an array: overwriting it early
        would change the input. So does an output too small for the mark that detects unwritten
        arrays.
        """
        op = self._node.op
        storage = dict(zip(self._objects, objects, strict=True))
        for position, array in zip(self._tensors, targets, strict=True):
            is_own = position not in op.destroy_map and position not in op.view_map
            storage[position] = [array if is_own and _mark(array) else None]
        return [storage[position] for position in range(len(storage))]

    def _run(self, inputs: list[Array], storage: list[list[Any]], cells: list[list[Any]]) -> None:
        try:
            returned: Any = self._node.op.perform(self._node, inputs, storage)  # type: ignore[func-returns-value]
        except BaseException as error:
            reraise_interruption(error)
            wrote = isinstance(error, ValueError) and "read-only" in str(error)
            raise self._error(
                f"The op {self._node.op!r} failed.",
                f"{type(error).__name__}: {error}",
                "declare an input that is changed in destroy_map, or change a copy"
                if wrote
                else "",
            ) from error
        if returned is not None:
            raise self._error(
                "`perform` puts the outputs into output_storage and returns nothing.",
                f"it returned {type(returned).__name__}",
                "output_storage[0][0] = ...",
            )
        same = len(storage) == len(cells) and all(map(is_, storage, cells))
        if not same or any(len(cell) != 1 for cell in cells):
            raise self._error(
                "`perform` reads and sets element 0 of each storage, and changes no list beyond.",
                f"storage of lengths {[len(cell) for cell in storage]}",
            )

    def _check(self, value: Any, target: Array, position: int) -> Array:
        """Return a result of `perform` for an output that is a tensor."""
        what = f"output {position} of {self._node.op!r}"
        if value is None:
            raise self._unset(position, f"None for {what}")
        if isinstance(value, bool | int | float):
            try:
                value = np.asarray(value, target.dtype)
            except (OverflowError, ValueError) as error:  # 300 in uint8, NaN in int32
                raise self._error(
                    "An output that is a number fits the output's format.",
                    f"{value} for {what}, which is {target.dtype}",
                ) from error
        if not isinstance(value, np.ndarray | np.generic):
            raise self._error(
                "An output is an array, or a number where it has one cell.",
                f"{type(value).__name__} for {what}",
            )
        try:
            refuse_mask(value, what)
        except TransferError as error:
            raise self._error(error.rule, f"{error.found} in {what}", error.fix) from None
        array: Array = np.asarray(value)
        if array.dtype != target.dtype:
            raise self._error(
                "An output has the number format that make_node gave it.",
                f"{array.dtype} for {what}, which is {target.dtype}",
                f"result.astype({dtype_of(target.dtype).source}, copy=False), or another format "
                "in make_node",
            )
        if array.shape != target.shape:
            if {array.shape, target.shape} != {(), (1,)}:
                raise self._error(
                    "An output has the extents that were inferred for it.",
                    f"{_extents(array.shape)} for {what}, which is {_extents(target.shape)}",
                    "let `perform` and the op's shape constraints agree",
                )
            array = array.reshape(target.shape)
        if _same_cells(array, target) and _is_marked(target):
            raise self._unset(position, f"nothing was written to {what}")
        return array

    def _error(self, rule: str, found: str, fix: str = "") -> OpError:
        return OpError(rule, found=found, where=str(self._node.origin), fix=fix)

    def _unset(self, position: int, found: str) -> OpError:
        return self._error(
            "`perform` sets every output, in every call.",
            found,
            f"output_storage[{position}][0] = ...; or write to the array that is there, whose "
            "cells are not those of an earlier call",
        )

    def __repr__(self) -> str:
        return f"<call of {self._node!r}>"


def _mark(array: Array) -> bool:
    """Write a mark into the first cells of an array; return True if it has room for one."""
    if array.nbytes < len(_MARK):
        return False
    for index, number in _marks(array.dtype, array.shape):
        array[index] = number
    return True


def _is_marked(array: Array) -> bool:
    return array.nbytes >= len(_MARK) and all(
        array[index].tobytes() == number.tobytes()
        for index, number in _marks(array.dtype, array.shape)
    )


@lru_cache(maxsize=256)
def _marks(
    dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], np.generic], ...]:
    """Return the mark of an array: the indices of its first cells, and their values."""
    numbers = np.frombuffer(_MARK * max(1, dtype.itemsize // len(_MARK)), dtype)
    cells = (np.unravel_index(at, shape) for at in range(numbers.size))
    return tuple((tuple(map(int, cell)), numbers[at]) for at, cell in enumerate(cells))


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _copy_out(found: list[Array], targets: Sequence[Array], destroyed: list[Array]) -> None:
    """Copy results to their destinations; buffer results that overlap written memory."""
    moved = [
        (array, target)
        for array, target in zip(found, targets, strict=True)
        if not _same_cells(array, target)
    ]
    for position, (array, target) in enumerate(moved):
        written = [each for _, each in moved if each is not target]
        if any(np.may_share_memory(array, each) for each in (*written, *destroyed)):
            moved[position] = array.copy(), target
    for array, target in moved:
        target[...] = array


def _same_cells(one: Array, other: Array) -> bool:
    return (
        one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
        and one.shape == other.shape
        and one.strides == other.strides
    )


def _extents(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
