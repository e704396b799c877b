"""Exported models in Python: a shared library of an exported C file, called through ctypes.

This module uses the standard library alone, so that a program with exported models can have a copy
of it in place of the package.

    model = load_exported("model.so")
    (y,) = model.predict(x)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial, reduce
from math import prod
from operator import mul
from pathlib import Path
from typing import Any

_ABI = 1
_FORMATS = {
    "float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q", "bool": "B",
}  # fmt: skip
"""The characters of buffers for number formats; others are seen as unsigned integers."""

_LOADED: dict[Path, tuple[int, int, int]] = {}
"""The inode, the size and the time of each library when this process first loaded it."""


class ExportedError(ValueError):
    """A call that an exported model refuses, or a file that is none."""


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("format", ctypes.c_char_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("extents", ctypes.POINTER(ctypes.c_char_p)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("nbytes", ctypes.c_int64),
    ]


class _Function(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("tensors", ctypes.POINTER(ctypes.c_int64)),
        ("indices", ctypes.c_int64),
        ("index_names", ctypes.POINTER(ctypes.c_char_p)),
        ("ranges", ctypes.POINTER(ctypes.c_int64)),
    ]


class ExportedModel:
    """A state of an exported model, with its functions as methods.

    A function takes its inputs in order or by name, as objects with the buffer protocol (such as
    NumPy arrays), and its integer arguments by name. It returns a list of its outputs:
    `memoryview`s, of which `numpy.asarray` makes arrays without a copy. Two states of one library
    are independent.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str, weights: Path, threads: int = 1) -> None:
        self._library, self._prefix = library, prefix
        facts = (ctypes.c_int64 * 6).in_dll(library, f"{prefix}_facts")
        abi, state_bytes, weights_bytes, tensors, functions, thread_bytes = facts
        if abi != _ABI:
            raise ExportedError(f"{prefix} has the interface {abi} of exported files, not {_ABI}")
        if threads < 1 or (threads > 1 and not thread_bytes):
            raise ExportedError(
                f"{prefix} runs on one thread: export it with threads=True for more, "
                f"found {threads}"
            )
        state_bytes += (threads - 1) * thread_bytes
        self._tensors: Any = (_Tensor * tensors).in_dll(library, f"{prefix}_tensors")
        self._table = table = (_Function * functions).in_dll(library, f"{prefix}_functions")
        self._memory = ctypes.create_string_buffer(state_bytes + 64)
        self._state = ctypes.c_void_p((ctypes.addressof(self._memory) + 63) // 64 * 64)
        given: list[Any] = [self._state, ctypes.c_size_t(state_bytes)]
        if weights_bytes:
            self._weights = _mapped(weights)
            start = 8 + int.from_bytes(self._weights[:8], "little")
            if len(self._weights) < start + weights_bytes:
                raise ExportedError(f"{weights} is no file of weights of {prefix}: it is too short")
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._weights)) + start
            given += [ctypes.c_void_p(address), ctypes.c_size_t(len(self._weights) - start)]
        self._check(getattr(library, f"{prefix}_init")(*given))
        if threads > 1:
            self._use_threads(threads, state_bytes)
        self.tensors: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
            each.name.decode(): (each.role.decode(), each.format.decode(), _dims(each))
            for each in self._tensors
        }
        """The role, the number format and the extents of each tensor, by name."""
        self.functions: tuple[str, ...] = tuple(each.name.decode() for each in table)
        """The names of the functions."""
        for number, function in enumerate(table):
            setattr(self, self.functions[number], partial(self._call, number, function))

    def _use_threads(self, threads: int, state_bytes: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(threads - 1)
        body_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)

        def run(context: object, count: int, body: Any, argument: int) -> None:
            others = [pool.submit(body, argument, part) for part in range(1, count)]
            body(argument, 0)
            for each in others:
                each.result()

        signature = (ctypes.c_void_p, ctypes.c_size_t, body_type, ctypes.c_void_p)
        self._parallel_for = ctypes.CFUNCTYPE(None, *signature)(run)
        given = self._state, ctypes.c_size_t(state_bytes), ctypes.c_size_t(threads)
        use = getattr(self._library, f"{self._prefix}_threads")
        self._check(use(*given, self._parallel_for, None))

    def cells(self, name: str) -> Any:
        """Return the cells of a tensor in the state, such as a trained parameter: no copy.

        Raises:
            ExportedError: if there is none of the name, or its cells have margins between them.
        """
        if name not in self.tensors:
            raise ExportedError(f"{name!r} is no tensor of {self._prefix}: {list(self.tensors)}")
        number = list(self.tensors).index(name)
        tensor = self._tensors[number]
        find = getattr(self._library, f"{self._prefix}_cells")
        find.restype = ctypes.c_void_p
        nbytes = tensor.nbytes
        dims = _dims(tensor)
        if tensor.rank and tensor.strides[0] * dims[0] != nbytes:
            raise ExportedError(f"the cells of {name} have margins between them")
        memory = (ctypes.c_char * nbytes).from_address(find(self._state, number))
        memory._model = self  # the memory lives as long as the view
        return _view(memoryview(memory).cast("B"), tensor, dims)

    def arguments(self, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the inputs and of the outputs of a function."""
        function = self._table[self.functions.index(name)]
        ends = function.tensors[: function.inputs + function.outputs]
        names = tuple(self._tensors[each].name.decode() for each in ends)
        return names[: function.inputs], names[function.inputs :]

    def __repr__(self) -> str:
        shown = (f"{each}{self._signature(each)}" for each in self.functions)
        return f"<exported model {self._prefix}: {'; '.join(shown)}>"

    def _signature(self, name: str) -> str:
        inputs, outputs = self.arguments(name)
        indices = self._indices(self.functions.index(name))
        given = ", ".join([*inputs, *(f"{each}=..." for each in indices)])
        return f"({given}) -> [{', '.join(outputs)}]"

    def _indices(self, number: int) -> list[str]:
        """Return the names of the integer arguments of a function."""
        function = self._table[number]
        return [function.index_names[k].decode() for k in range(function.indices)]

    def _call(
        self, number: int, function: _Function, /, *inputs: Any, **keywords: Any
    ) -> list[Any]:
        name, names = self.functions[number], self._indices(number)
        others = self.arguments(name)[0][len(inputs) :]
        inputs = (*inputs, *(keywords[each] for each in others if each in keywords))
        indices = {each: value for each, value in keywords.items() if each not in others}
        if len(inputs) != function.inputs or indices.keys() != set(names):
            raise ExportedError(f"{name} takes {self._signature(name)}")
        for each, value in indices.items():
            if not hasattr(value, "__index__") or not -(2**63) <= value < 2**63:
                raise ExportedError(f"{name} takes {each} as a 64-bit integer; found {value!r}")
        tensors = [self._tensors[each] for each in function.tensors[: function.inputs]]
        views = [_view_of(name, tensor, each) for tensor, each in zip(tensors, inputs, strict=True)]
        for tensor, view in zip(tensors, views, strict=True):
            _check_input(name, tensor, view, _dims(tensor, indices))
        given = [_cells_of(each) for each in views]
        ends = function.tensors[function.inputs : function.inputs + function.outputs]
        made = [(ctypes.c_char * max(1, self._tensors[each].nbytes))() for each in ends]
        status = getattr(self._library, f"{self._prefix}_call")(
            self._state,
            ctypes.c_int(number),
            (ctypes.c_void_p * max(1, len(given)))(*map(ctypes.addressof, given)),
            (ctypes.c_void_p * max(1, len(made)))(*map(ctypes.addressof, made)),
            (ctypes.c_int64 * max(1, len(names)))(*(indices[each] for each in names)),
        )
        self._check(status)
        return [
            _view(
                memoryview(cells).cast("B"),
                self._tensors[each],
                _dims(self._tensors[each], indices),
            )
            for each, cells in zip(ends, made, strict=True)
        ]

    def _check(self, status: int) -> None:
        if status:
            text = getattr(self._library, f"{self._prefix}_status_text")
            text.restype = ctypes.c_char_p
            raise ExportedError(f"{self._prefix}: {text(status).decode()}")


def load_exported(
    path: str | os.PathLike[str],
    prefix: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    *,
    threads: int = 1,
) -> ExportedModel:
    """Return a new state of an exported model.

    Args:
        path: The shared library of the exported C file, as made by
            `cc -O2 -march=native -shared -fPIC -o model.so model.c -lm`. It runs as part of the
            program: load no library that others can write.
        prefix: The stem of the exported C file; by default that of the library.
        weights: The file of weights; by default the one beside the library.
        threads: The threads that share a call, if the file was exported for them.

    Raises:
        ExportedError: if the file is no shared library of an export, or for a single thread.
        OSError: if there is no such file.
    """
    file = Path(path).resolve()
    stem = file.stem.removeprefix("lib") if prefix is None else prefix
    beside = file.with_name(f"{stem}.safetensors") if weights is None else Path(weights)
    state = file.stat()
    try:
        library = _loaded(file, (state.st_ino, state.st_size, state.st_mtime_ns))
    except OSError as error:
        raise ExportedError(
            f"{file} is no shared library of this machine ({error}): compile the exported C file, "
            "cc -O2 -march=native -shared -fPIC -o model.so model.c -lm"
        ) from None
    if not hasattr(library, f"{stem}_call"):
        raise ExportedError(f"{file} has no functions of an exported file {stem}.c: pass prefix=")
    return ExportedModel(library, stem, beside, threads)


def _loaded(file: Path, version: tuple[int, int, int]) -> ctypes.CDLL:
    """Return a library; of a file that was written anew, a copy, as systems load a path once."""
    if _LOADED.setdefault(file, version) == version:
        return ctypes.CDLL(str(file))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return ctypes.CDLL(shutil.copy(file, folder))


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise ExportedError(f"{path} is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _dims(tensor: Any, indices: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """Return the extents of a tensor; at most, without the integer arguments of a call."""
    names = [tensor.extents[axis] for axis in range(tensor.rank)]
    given = indices or {}
    return tuple(
        tensor.dims[axis] if name is None else given.get(name.decode(), tensor.dims[axis])
        for axis, name in enumerate(names)
    )


def _cell_bytes(tensor: Any) -> int:
    letter = _FORMATS.get(tensor.format.decode())
    if letter is not None:
        return ctypes.sizeof(_ctype(letter))
    return int(tensor.strides[tensor.rank - 1]) if tensor.rank else int(tensor.nbytes)


def _ctype(letter: str) -> Any:
    return getattr(ctypes, {
        "f": "c_float", "d": "c_double", "b": "c_int8", "h": "c_int16", "i": "c_int32",
        "q": "c_int64", "B": "c_uint8", "H": "c_uint16", "I": "c_uint32", "Q": "c_uint64",
    }[letter])  # fmt: skip


def _view(memory: Any, tensor: Any, dims: tuple[int, ...]) -> Any:
    """Return the cells of a tensor without gaps; packed cells stay bytes."""
    size = _cell_bytes(tensor)
    if tensor.rank and tensor.strides[0] == 0:
        return memory
    nbytes = prod(dims) * size
    letter = _FORMATS.get(tensor.format.decode(), {1: "B", 2: "H", 4: "I", 8: "Q"}.get(size, "B"))
    if 0 in dims:  # which memoryview.cast refuses
        return memoryview(reduce(mul, reversed(dims), _ctype(letter))())
    return memory[:nbytes].cast(letter, dims)


def _view_of(function: str, tensor: Any, given: Any) -> memoryview:
    try:
        return memoryview(given)
    except (TypeError, ValueError) as error:  # ValueError: the array has cells without a character
        raise ExportedError(
            f"{function} takes {tensor.name.decode()} as an object with the buffer protocol, such "
            "as a NumPy array or array.array, and cells that no buffer describes as integers: "
            f'x.view("uint16"); found {type(given).__name__} ({error})'
        ) from None


def _check_input(function: str, tensor: Any, view: memoryview, dims: tuple[int, ...]) -> None:
    """Check the format and the extents of an input."""
    is_packed = tensor.rank > 0 and tensor.strides[0] == 0
    has_shape = is_packed or view.ndim <= 1 or view.shape == dims
    size = tensor.nbytes if is_packed else prod(dims) * _cell_bytes(tensor)
    letter = _FORMATS.get(tensor.format.decode())
    is_float = letter is not None and letter in "fd"
    code = view.format.removeprefix("<")  # of ctypes' arrays
    fits = not code.startswith((">", "!")) and (
        letter is None
        or (view.itemsize == ctypes.sizeof(_ctype(letter)) and is_float == (code in ("f", "d")))
    )
    if not (fits and view.c_contiguous and view.nbytes == size and has_shape):
        packed = f", two in a byte: {size} bytes" if is_packed else ""
        gaps = "" if view.c_contiguous else ", with gaps between them"
        raise ExportedError(
            f"{function} takes {tensor.name.decode()} as {dims} contiguous cells of "
            f"{tensor.format.decode()}{packed}; found {view.shape} of the format {view.format!r}"
            f"{gaps}"
        )


def _cells_of(view: memoryview) -> Any:
    """Return the memory of a buffer for C, a copy if it is read-only."""
    kind = ctypes.c_char * view.nbytes
    flat = view.cast("B") if view.nbytes else b""
    return (
        kind.from_buffer_copy(flat) if view.readonly or not view.nbytes else kind.from_buffer(flat)
    )
