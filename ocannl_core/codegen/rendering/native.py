"""Rendering of native code of an external operation as one kernel.

The body becomes a function. Arrays have the names that the operation chose; of the following
declarations, only those that the body mentions are written:

    enum { rows_size = 6 };
    const int64_t table_shape[] = {10, 4};
    typedef float table_type;

`$name` becomes a name that starts with the kernel's symbol, so that names of two operations never
clash. The operation's name is not part of the text: equal code is one kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from textwrap import dedent, indent

from ocannl_core.base.errors import OpError
from ocannl_core.base.files.digests import text_digest
from ocannl_core.codegen.dialect import Dialect, KernelParameter
from ocannl_core.codegen.text.kernel_text import KernelText, symbol_of
from ocannl_core.codegen.text.routine_source import native_arguments
from ocannl_core.ir.external import NativeCode, NativeOp
from ocannl_core.ir.loops.nodes import CallExternal
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import uint4x32, uint8
from ocannl_core.passes.kernels.parallel_loops import ParallelIterations, UniformIterations

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def render_native(
    call: CallExternal, nodes: Mapping[TensorNode, NodeInfo], dialect: Dialect
) -> KernelText | None:
    """Render the kernel of a call; return None if the operation has no code in the language.

    Its arguments are `native_arguments(call)`.

    Raises:
        OpError: if the names of arrays are no identifiers, or not one for each.
    """
    code = call.op.native(dialect.language) if isinstance(call.op, NativeOp) else None
    if code is None:
        return None
    _check_names(call, code)
    names = [*code.inputs, *code.outputs]
    first_names: dict[TensorNode, str] = {}
    lines: list[str] = []
    for node, name in zip((*call.inputs, *call.outputs), names, strict=False):
        info = nodes[node]
        is_output = name in code.outputs
        if node in first_names:
            # the same memory under a second name: a copy of the pointer, which `restrict` allows
            const = "" if is_output else "const "
            kind = dialect.storage_type(info.dtype)
            lines.append(f"{const}{kind} *const {name} = {first_names[node]};")
        else:
            first_names[node] = name
        lines += _declarations(name, info, code.body, dialect)
    parameters = [
        KernelParameter(first_names[node], nodes[node].dtype, node in call.outputs)
        for node in native_arguments(call)
    ]
    extents = [nodes[node].dims for node in call.inputs]
    workspace = code.workspace(extents) if code.workspace is not None else 0
    if not isinstance(workspace, int) or workspace < 0:
        raise OpError(
            "The workspace of native code is a number of bytes.",
            found=repr(workspace),
            where=code.origin or call.op.name,
        )
    if workspace:
        parameters.append(KernelParameter("workspace", uint8, is_written=True))
    iterations = _iterations(code, call, extents)
    shares: ParallelIterations | None = None
    if iterations is not None and dialect.partitions_loops:
        shares = ParallelIterations((iterations,))
        parameters += [KernelParameter(name, None) for name in ("begin", "end")]
    elif iterations is not None:
        lines.append(f"const {dialect.index_type} begin = 0, end = {iterations.count};")
    words = [node for node in first_names if nodes[node].dtype is uint4x32]
    helpers = (*dialect.headers, *(("uint4x32",) if words else ()))
    body = indent("\n".join([*lines, dedent(code.body).strip("\n")]), "  ")
    support = "\n".join([*(f"#include {header}" for header in code.headers), dedent(code.support)])

    def text(symbol: str) -> str:
        opening = "\n".join(dialect.opening(symbol, parameters))
        closing = "\n".join(dialect.closing(symbol, parameters))
        parts = [support.strip(), opening, body, closing]
        whole = "\n".join(part for part in parts if part) + "\n"
        return re.sub(r"\$([A-Za-z_]\w*)", rf"{symbol}_\1", whole)

    launch = str((code.grid, code.block, workspace) if workspace else (code.grid, code.block))
    definitions, author = dialect.definitions(helpers), code.origin or call.op.name
    symbol = symbol_of(dialect.language, definitions, launch, text("kernel"))
    return KernelText(
        symbol,
        text(symbol),
        helpers,
        code.grid,
        code.block,
        (workspace,) if workspace else (),
        bounds=0 if shares is None else 1,
        definitions=text_digest(definitions),
        author=author,
        shares=shares,
    )


def _iterations(
    code: NativeCode, call: CallExternal, extents: Sequence[tuple[int, ...]]
) -> UniformIterations | None:
    """Return the iterations that threads may share; None if the code states none."""
    match code.iterations(extents) if code.iterations is not None else None:
        case None:
            return None
        case (int() as count, int() | float() as work) if count >= 0 and work > 0:
            return UniformIterations(count, work)
        case found:
            raise OpError(
                "The iterations of native code are a number and the cycles of each.",
                found=repr(found),
                where=code.origin or call.op.name,
            )


def _check_names(call: CallExternal, code: NativeCode) -> None:
    names = [*code.inputs, *code.outputs]
    # outputs beyond the named ones are inputs that are used as scratch memory
    named = len(call.inputs) == len(code.inputs) and len(code.outputs) <= len(call.outputs)
    covered = set(call.outputs[len(code.outputs) :]) <= set(call.inputs)
    if not named or not covered:
        raise OpError(
            "Native code has a name for each input and each output.",
            found=f"{', '.join(names)} for {len(call.inputs)} inputs and {len(call.outputs)} "
            "outputs",
            where=code.origin or call.op.name,
        )
    wrong = [name for name in names if not _IDENTIFIER.fullmatch(name)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if wrong or repeated:
        raise OpError(
            "The names of native code are different identifiers.",
            found=", ".join(wrong or repeated),
            where=code.origin or call.op.name,
        )


def _declarations(name: str, info: NodeInfo, body: str, dialect: Dialect) -> Iterator[str]:
    used = set(_IDENTIFIER.findall(body))
    if f"{name}_size" in used:
        yield f"enum {{ {name}_size = {info.size} }};"
    if f"{name}_shape" in used:
        extents = ", ".join(map(str, info.dims)) or "1"
        yield f"const {dialect.index_type} {name}_shape[] = {{{extents}}};"
    if f"{name}_type" in used:
        yield f"typedef {dialect.storage_type(info.dtype)} {name}_type;"
