"""The C file of an exported model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from textwrap import wrap
from typing import assert_never

import numpy as np

from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.export import header
from ocannl_core.codegen.export.model import (
    ABI,
    ALIGNMENT,
    LEAST,
    MOST,
    ExportedFunction,
    ExportedTensor,
    FileContent,
    aligned,
    argument,
)
from ocannl_core.codegen.text.routine_source import Launch, RunStep
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.kernels.nodes import RepeatedSteps
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.node import NodeInfo, TensorNode

_IndexNames = Mapping[StaticIndex, str]


def c_file(model: FileContent, dialect: Dialect) -> str:
    """Return the C file of a model."""
    return "\n".join(_File(model, dialect).lines()) + "\n"


@dataclass(slots=True)
class _File:
    """The emitter of a C file."""

    model: FileContent
    dialect: Dialect

    def lines(self) -> Iterator[str]:
        """Yield the parts of the file; a part may have several lines."""
        model = self.model
        kernels = {each.symbol: each for f in model.functions for each in f.source.kernels}
        yield _OPENING.format(prefix=model.prefix)
        yield self.dialect.unit(kernels.values())
        yield from self._tables()
        if model.are_inside:
            yield from self._weights()
        texts = ",\n      ".join(f'"{text}"' for _, text in header.STATUS)
        yield _STATE.format(
            prefix=model.prefix,
            fingerprint=model.fingerprint,
            alignment=ALIGNMENT,
            texts=texts,
            count=len(header.STATUS),
            threads=_HEAD_OF_THREADS.format(prefix=model.prefix) if model.thread_bytes else "",
        )
        if model.thread_bytes:
            yield _THREADS.format(
                prefix=model.prefix,
                upper=model.prefix.upper(),
                bad_state=self._status("BAD_STATE"),
                ok=self._status("OK"),
            )
            yield from self._shared_kernels()
        yield from self._init()
        ends = (each for f in model.functions for each in (*f.inputs, *f.outputs))
        if not all(_is_plain(each.info) for each in ends):
            yield _MOVE_CELLS
        for function in model.functions:
            yield from self._function(function)
        yield from self._cells()
        yield from self._generic_call()

    def _status(self, name: str) -> str:
        return f"{self.model.prefix.upper()}_{name}"

    def _tables(self) -> Iterator[str]:
        model, prefix = self.model, self.model.prefix
        for number, tensor in enumerate(model.tensors):
            dims, strides = _list(tensor.info.dims), _list(_strides(tensor.info))
            yield f"static const int64_t dims{number}[] = {dims}, strides{number}[] = {strides};"
            extents = [f'"{each}"' if isinstance(each, str) else "0" for each in tensor.sizes]
            extents = extents or ["0"]
            yield f"static const char *const extents{number}[] = {{{', '.join(extents)}}};"
        yield f"const struct {prefix}_tensor {prefix}_tensors[] = {{"
        for number, tensor in enumerate(model.tensors):
            info = tensor.info
            texts = f'"{tensor.name}", "{tensor.role.value}", "{info.dtype}"'
            shape = f"{len(info.dims)}, dims{number}, extents{number}, strides{number}"
            yield f"  {{{texts}, {shape}, {info.nbytes}}},"
        yield "};\n"
        for number, function in enumerate(model.functions):
            tensors = [model.number(each) for each in (*function.inputs, *function.outputs)]
            bounds = [_limit(end) for each in function.indices for end in (each.least, each.most)]
            names = ", ".join(f'"{each.name}"' for each in function.indices) or "0"
            yield f"static const int64_t tensors_of{number}[] = {_list(tensors)};"
            yield f"static const int64_t ranges_of{number}[] = {_list(bounds)};"
            yield f"static const char *const names_of{number}[] = {{{names}}};"
        yield f"const struct {prefix}_function {prefix}_functions[] = {{"
        for number, function in enumerate(model.functions):
            arrays = f"{len(function.inputs)}, {len(function.outputs)}, tensors_of{number}"
            indices = f"{len(function.indices)}, names_of{number}, ranges_of{number}"
            yield f'  {{"{function.name}", {arrays}, {indices}}},'
        yield "};\n"
        weights = 0 if model.are_inside else len(model.weights)
        counts = len(model.tensors), len(model.functions)
        facts = ABI, model.state_bytes, weights, *counts, model.thread_bytes
        yield f"const int64_t {prefix}_facts[] = {_list(facts)};\n"

    def _weights(self) -> Iterator[str]:
        """Yield the constant cells: words of their bits, read as cells."""
        model = self.model
        for number, tensor in enumerate(model.tensors):
            if tensor.weights_offset is None:
                continue
            info, start = tensor.info, tensor.weights_offset
            width = min(8, info.dtype.nbytes) if not info.dtype.is_packed else 1
            content = model.weights[start : start + info.nbytes]
            words = np.frombuffer(content, f"<u{width}").tolist() or [0]
            texts = ", ".join(f"{word:#x}" if word > 9 else str(word) for word in words)
            kind = self.dialect.storage_type(info.dtype)
            cells = f"uint{8 * width}_t words[{len(words)}]; {kind} cells[1];"
            yield f"static const union {{ {cells} }} weights{number}"
            yield f"    __attribute__((aligned({ALIGNMENT}))) = {{{{ /* {tensor.name} */"
            yield from (f"  {line}" for line in wrap(texts, header.WIDTH - 2))
            yield "}};\n"

    def _initial_cells(self, tensor: ExportedTensor) -> str:
        """Return the address of cells among the weights."""
        if self.model.are_inside:
            return f"weights{self.model.number(tensor)}.cells"
        return f"head->weights + {tensor.weights_offset}"

    def _init(self) -> Iterator[str]:
        model, upper = self.model, self.model.prefix.upper()
        yield f"int {model.prefix}_init({header.init_parameters(model)}) {{"
        yield "  struct head *const head = state;"
        yield f"  if (!state || (uintptr_t)state % {ALIGNMENT} ||"
        yield f"      state_bytes < {upper}_STATE_BYTES)"
        yield f"    return {self._status('BAD_STATE')};"
        if not model.are_inside:
            yield "  if (!weights || (uintptr_t)weights % sizeof(uint64_t) ||"
            yield f"      weights_bytes < {upper}_WEIGHTS_BYTES)"
            yield f"    return {self._status('BAD_WEIGHTS')};"
            yield "  if (*(const uint64_t *)weights != fingerprint)"
            yield f"    return {self._status('BAD_WEIGHTS')};"
        yield f"  memset(state, 0, {upper}_STATE_BYTES);"
        yield "  head->model = fingerprint;"
        if not model.are_inside:
            yield "  head->weights = weights;"
        for tensor in model.tensors:
            if tensor.offset is not None and tensor.weights_offset is not None:
                cells = self._initial_cells(tensor)
                yield f"  memcpy((char *)state + {tensor.offset}, {cells}, {tensor.info.nbytes});"
        yield f"  return {self._status('OK')};\n}}\n"

    def _function(self, function: ExportedFunction) -> Iterator[str]:
        names = {each.index: argument(each.name) for each in function.indices}
        yield f"{header.signature(self.model, function, self.dialect)} {{"
        body = list(self._steps(function, function.source.steps, names, "  ", count()))
        yield "  char *const s = state;"
        if any("head->" in line for line in body):
            yield "  const struct head *const head = state;"
        if any(isinstance(each, Launch) and each.checks for each in function.source.launches):
            yield "  int64_t failed = 0;"
        yield f"  if (!is_valid(state)) return {self._status('BAD_STATE')};"
        if function.inputs:
            missing = " || ".join(f"!{argument(each.name)}" for each in function.inputs)
            yield f"  if ({missing}) return {self._status('NULL_ARGUMENT')};"
        ranges = [(argument(i.name), i.least, i.most) for i in function.indices if i.is_bounded]
        for limit in function.limits:
            total = " + ".join(f"{factor} * {names[index]}" for factor, index in limit.terms)
            ranges.append((total, limit.low, limit.high))
        for total, low, high in ranges:
            wrong = f"{total} < {low} || {total} > {high}"
            yield f"  if ({wrong}) return {self._status('BAD_INDEX')};"
        for tensor in function.inputs:
            yield from _move(tensor, is_input=True)
        yield from body
        for tensor in function.outputs:
            yield from _move(tensor, is_input=False)
        yield f"  return {self._status('OK')};\n}}\n"

    def _steps(
        self,
        function: ExportedFunction,
        steps: Sequence[RunStep | RepeatedSteps[RunStep]],
        names: _IndexNames,
        indent: str,
        numbers: count[int],
    ) -> Iterator[str]:
        for step in steps:
            match step:
                case Launch():
                    yield from self._launch(function, step, names, indent)
                case RepeatedSteps():
                    name, last = f"step{next(numbers)}", step.count - 1
                    order = (
                        f"{name} = {last}; {name} >= 0; --{name}"
                        if step.is_reversed
                        else f"{name} = 0; {name} <= {last}; ++{name}"
                    )
                    yield f"{indent}for (int64_t {order}) {{"
                    inside = {**names, step.index: name}
                    yield from self._steps(function, step.steps, inside, f"{indent}  ", numbers)
                    yield f"{indent}}}"
                case CallExternal():
                    raise AssertionError("calls of Python are refused before")
                case _:
                    assert_never(step)

    def _launch(
        self, function: ExportedFunction, launch: Launch, names: _IndexNames, indent: str
    ) -> Iterator[str]:
        arrays = [self._argument(function, node) for node in launch.arguments]
        indices = [names[index] for index in launch.indices]
        if launch.title:
            yield f"{indent}// {header.comment(launch.title)}"
        if self._is_shared(launch):
            yield from self._shared_launch(function, launch, arrays, indices, indent)
            return
        arguments = [*arrays, *indices]
        at = function.private
        for nbytes in launch.text.private:
            arguments.append(f"(void *)(s + {at})")
            at += aligned(nbytes)
        if self.model.thread_bytes and launch.shares is not None:
            arguments += [str(bound) for count in _counts(launch) for bound in (0, count)]
        if launch.checks:
            arguments.append("&failed")
        yield header.call(launch.text.symbol, arguments, indent, ";")
        if launch.checks:
            yield f"{indent}if (failed) return {self._status('BAD_POSITION')};"

    def _is_shared(self, launch: Launch) -> bool:
        """Return True if threads share a launch; one thread alone reports failed checks."""
        return bool(self.model.thread_bytes and launch.shares and not launch.checks)

    def _shared_kernels(self) -> Iterator[str]:
        """Yield functions that run kernels for parts of their iterations."""
        launches = (each for f in self.model.functions for each in f.source.launches)
        shared = [each for each in launches if isinstance(each, Launch) and self._is_shared(each)]
        if shared:
            yield _SHARING.format(upper=self.model.prefix.upper())
        for symbol, launch in {each.text.symbol: each for each in shared}.items():
            given = [f"given->arrays[{k}]" for k in range(len(launch.arguments))]
            given += [f"given->indices[{k}]" for k in range(len(launch.indices))]
            at = 0
            for nbytes in launch.text.private:
                given.append(f"(void *)(memory + {at})")
                at += aligned(nbytes)
            given += [f"bounds[{k}]" for k in range(2 * len(_counts(launch)))]
            yield f"static void {symbol}_part("
            yield "    const struct shared *given, char *memory, const int64_t *bounds) {"
            yield "  (void)memory;"
            yield f"{header.call(symbol, given, '  ', ';')}\n}}\n"

    def _shared_launch(
        self,
        function: ExportedFunction,
        launch: Launch,
        arrays: Sequence[str],
        indices: Sequence[str],
        indent: str,
    ) -> Iterator[str]:
        outer, *inner = _counts(launch)
        yield f"{indent}{{"
        yield f"{indent}  void *const arrays[] = {{"
        for array in arrays:
            yield f"{indent}      {array.replace('const void *', 'void *')},"
        yield f"{indent}  }};"
        yield f"{indent}  const int64_t indices[] = {{{', '.join(indices) or '0'}}};"
        numbers = f"{function.private}, {outer}, {inner[0] if inner else 1}, 1"
        given = f"{launch.text.symbol}_part, s, arrays, indices, {numbers}"
        yield f"{indent}  share((struct shared){{{given}}});"
        yield f"{indent}}}"

    def _argument(self, function: ExportedFunction, node: TensorNode) -> str:
        """Return the address of a node as an argument of a kernel."""
        offset = function.scratch.get(node)
        if offset is None:
            tensor = self.model.tensor_of(node)
            offset = tensor.offset
            if offset is None:
                return f"(const void *)({self._initial_cells(tensor)})"
        return f"(void *)(s + {offset})"

    def _cells(self) -> Iterator[str]:
        yield f"void *{self.model.prefix}_cells(void *state, int tensor) {{"
        if not self.model.are_inside and any(each.offset is None for each in self.model.tensors):
            yield "  const struct head *const head = state;"
        yield "  if (!is_valid(state)) return 0;"
        yield "  switch (tensor) {"
        for number, tensor in enumerate(self.model.tensors):
            cells = f"({self._initial_cells(tensor)})" if tensor.offset is None else "state"
            start = _first_cell(tensor.info) + (tensor.offset or 0)
            yield f"    case {number}: return (char *){cells} + {start};"
        yield "    default: return 0;\n  }\n}\n"

    def _generic_call(self) -> Iterator[str]:
        prefix = self.model.prefix
        yield (
            f"int {prefix}_call(void *state, int function, const void *const *inputs,\n"
            "    void *const *outputs, const int64_t *indices) {"
        )
        yield "  (void)inputs, (void)outputs, (void)indices;"
        yield "  switch (function) {"
        for number, function in enumerate(self.model.functions):
            counts = len(function.inputs), len(function.outputs), len(function.indices)
            arguments = [
                f"{array}[{k}]"
                for array, size in zip(("inputs", "outputs", "indices"), counts, strict=True)
                for k in range(size)
            ]
            called = header.call(f"{prefix}_{function.name}", ["state", *arguments], "      ", ";")
            yield f"    case {number}:\n      return {called.lstrip()}"
        yield f"    default: return {self._status('BAD_FUNCTION')};\n  }}\n}}"


_OPENING = """\
#include "{prefix}.h"

/* Products and sums are fused where this text says so, and nowhere else. GCC 12 drops conversions
   of pairs of numbers, and mixes up the masks of loads. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off", "no-tree-slp-vectorize", "no-thread-jumps")
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
"""

_STATE = """\
/* The beginning of a state. */
struct head {{
  uint64_t model;
  const char *weights;
{threads}}};

static const uint64_t fingerprint = UINT64_C({fingerprint:#018x});

static int is_valid(const void *state) {{
  return state && (uintptr_t)state % {alignment} == 0 &&
         ((const struct head *)state)->model == fingerprint;
}}

const char *{prefix}_status_text(int status) {{
  static const char *const texts[] = {{
      {texts}}};
  return status < 0 || status >= {count} ? "unknown status" : texts[status];
}}
"""

_HEAD_OF_THREADS = """\
  {prefix}_parallel_for *parallel_for;
  void *context;
  size_t threads;
"""

_SHARING = """\
/* A kernel whose iterations threads share: so many outer ones, with so many inner ones each. */
struct shared {{
  void (*kernel)(const struct shared *given, char *memory, const int64_t *bounds);
  char *state;
  void *const *arrays;
  const int64_t *indices;
  int64_t private_at; /* the memory of the first part in the state */
  int64_t outer, inner;
  int64_t parts;
}};

/* Run a part: some inner iterations of one outer iteration at a time, or all of several. */
static void run_part(void *argument, size_t part) {{
  const struct shared *const given = argument;
  const int64_t number = (int64_t)part, inner = given->inner, all = given->outer * inner;
  const int64_t most = all / given->parts, rest = all % given->parts;
  int64_t first = most * number + (number < rest ? number : rest);
  const int64_t end = first + most + (number < rest);
  char *const memory = number ? given->state + {upper}_STATE_BYTES +
                                    (number - 1) * {upper}_THREAD_BYTES
                              : given->state + given->private_at;
  while (first < end) {{
    const int64_t row = first / inner, column = first % inner, left = end - first;
    const int is_whole = column == 0 && left >= inner;
    const int64_t rows = is_whole ? left / inner : 1;
    const int64_t stop = is_whole || left >= inner - column ? inner : column + left;
    const int64_t bounds[] = {{row, row + rows, column, stop}};
    given->kernel(given, memory, bounds);
    first += rows * (stop - column);
  }}
}}

static void share(struct shared given) {{
  const struct head *const head = (const void *)given.state;
  const int64_t all = given.outer * given.inner;
  if (head->parallel_for) given.parts = (int64_t)head->threads < all ? (int64_t)head->threads : all;
  if (given.parts > 1)
    head->parallel_for(head->context, (size_t)given.parts, run_part, &given);
  else
    run_part(&given, 0);
}}
"""

_THREADS = """int {prefix}_threads(void *state, size_t state_bytes, size_t threads,
    {prefix}_parallel_for *parallel_for, void *context) {{
  struct head *const head = state;
  if (!is_valid(state)) return {bad_state};
  if (parallel_for && (threads < 1 || state_bytes < {upper}_STATE_BYTES ||
                       threads - 1 > (state_bytes - {upper}_STATE_BYTES) / {upper}_THREAD_BYTES))
    return {bad_state};
  head->parallel_for = parallel_for;
  head->context = context;
  head->threads = threads;
  return {ok};
}}
"""

_MOVE_CELLS = """\
/* Copy between the cells of a tensor in memory and cells without gaps. */
static void move_cells(char *cells, char *compact, const int64_t *dims, const int64_t *strides,
                       int rank, int64_t nbytes, int is_input) {
  if (rank == 1) {
    if (is_input)
      memcpy(cells, compact, (size_t)(dims[0] * nbytes));
    else
      memcpy(compact, cells, (size_t)(dims[0] * nbytes));
    return;
  }
  int64_t inside = nbytes;
  for (int axis = 1; axis < rank; ++axis) inside *= dims[axis];
  for (int64_t i = 0; i < dims[0]; ++i)
    move_cells(cells + i * strides[0], compact + i * inside, dims + 1, strides + 1, rank - 1,
               nbytes, is_input);
}
"""


def _move(tensor: ExportedTensor, *, is_input: bool) -> Iterator[str]:
    """Yield the copy between an argument and the memory of its tensor."""
    info, name = tensor.info, argument(tensor.name)
    assert tensor.offset is not None
    address = f"s + {tensor.offset + _first_cell(info)}"
    if _is_plain(info):
        ends = f"{address}, {name}" if is_input else f"{name}, {address}"
        yield f"  {'' if is_input else f'if ({name}) '}memcpy({ends}, {info.nbytes});"
        return
    dims = ", ".join(map(argument, tensor.sizes))
    yield f"  {'' if is_input else f'if ({name}) '}{{"
    yield f"    const int64_t dims[] = {{{dims}}}, strides[] = {_list(_strides(info))};"
    ends = f"{address}, (char *){name}"
    shape = f"{len(info.dims)}, {info.dtype.nbytes}"
    yield f"    move_cells({ends}, dims, strides, {shape}, {int(is_input)});\n  }}"


def _counts(launch: Launch) -> list[int]:
    """Return the iterations that threads share, of outer loops and of those right inside."""
    assert launch.shares is not None
    levels = launch.shares.outer, launch.shares.inner
    return [sum(run.count for run in runs) for runs in levels if runs]


def _is_plain(info: NodeInfo) -> bool:
    """Return True if the cells of a node have no gaps in its memory."""
    return not info.extents and info.buffer_dims == info.dims


def _strides(info: NodeInfo) -> tuple[int, ...]:
    """Return the bytes from one position of each axis to the next; 0 for packed cells."""
    dims = info.buffer_dims
    nbytes = 0 if info.dtype.is_packed else info.dtype.nbytes
    return tuple(nbytes * prod(dims[axis + 1 :]) for axis in range(len(dims)))


def _first_cell(info: NodeInfo) -> int:
    """Return the bytes of a node's memory in front of its first cell."""
    lefts = [margin.left for margin in info.padding] or [0] * len(info.dims)
    return sum(left * stride for left, stride in zip(lefts, _strides(info), strict=True))


def _limit(value: int) -> int | str:
    """Return an integer for C, in which the digits of the least one are no literal."""
    return {LEAST: "INT64_MIN", MOST: "INT64_MAX"}.get(value, value)


def _list(values: Sequence[int | str]) -> str:
    return "{" + (", ".join(map(str, values)) or "0") + "}"
