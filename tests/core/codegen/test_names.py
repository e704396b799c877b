"""No name of a kernel hides another one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.names import NameRole
from ocannl_core.ir.indexing import StaticIndex, VarIndex
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import (
    Allocate,
    AxisKind,
    Binary,
    Block,
    For,
    LoadMerge,
    Scope,
    Stmt,
    Store,
    Ternary,
    Verbatim,
)
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_core.ir.numbers.primitives import BinaryOp, TernaryOp

_TYPES = r"(?:const )?(?:__auto_type|float|float32x\d+|int64_t)"
_DECLARED = re.compile(rf"{_TYPES} \*?(?:restrict )?([a-z]\w*)(?= =|;|,|\)|\[)")


class _Parts(Dialect):
    has_vectors = True
    partitions_loops = True


def hidden(text: str) -> list[str]:
    """Return the names whose declaration hides another one."""
    scopes: list[set[str]] = [set()]
    found = []
    for line in text.splitlines():
        opens = line.endswith("{")
        if line.strip().startswith("}"):
            scopes.pop()
        if opens and "for (" in line:
            scopes.append(set())
        for name in _DECLARED.findall(line):
            if any(name in scope for scope in scopes):
                found.append(name)
            scopes[-1].add(name)
        if opens and "for (" not in line:
            scopes.append(set())
    return found


def everything(build) -> tuple[str, list[str]]:
    """Return a kernel with names of all roles but one, and all that it declares."""
    out, x, w = build.node("out", 4, 2, 8), build.node("x", 4, 2, 3), build.node("w", 3, 8)
    copy, small = build.node("copy", 3, 4096), build.node("small", 3)
    sums = build.node("sums", 2, 8)
    step = StaticIndex("step", 4)
    b, i, j, k = build.vars(4)

    def unrolled(var, extent: int, *body: Stmt) -> For:
        return For(var, 0, extent, Block(body), AxisKind.UNROLLED)

    def rows(node, place, value) -> For:
        return unrolled(i, 2, For(j, 0, 8, Block((Store(node, place, value),)), AxisKind.VECTOR))

    place = (VarIndex(i), VarIndex(j))
    row, cell = (VarIndex(k),), (VarIndex(k), VarIndex(j))
    factors = build.load(x, VarIndex(b), VarIndex(i), *row), build.load(copy, *cell)
    total = build.load(sums, *place)
    first = LoadMerge(x, (VarIndex(step), VarIndex(i), VarIndex(k)), float32)
    scaled = Binary(BinaryOp.MUL, total, build.load(small, *row), float32)
    added = Ternary(TernaryOp.FMA, *factors, total, float32)
    body = (
        Allocate(copy, Scope.KERNEL),
        Allocate(small, Scope.KERNEL),
        Allocate(sums, Scope.THREAD),
        build.loop([(k, 3), (j, 8)], Store(copy, cell, build.load(w, *cell))),
        build.loop([(k, 3)], Store(small, row, build.load(w, *row, *row))),
        For(k, 0, 3, Block(tuple(rows(sums, place, value) for value in (first, added, scaled)))),
        rows(out, (VarIndex(b), *place), total),
    )
    loop = Block((For(b, 0, 4, Block(body), AxisKind.PARALLEL),))
    nest = Kernel(loop, (out, x, w), (step,), "", is_parallel=True)
    text = render_kernel(nest, build.table, _Parts()).text
    return text, _DECLARED.findall(text)


def test_no_name_of_a_kernel_hides_another_one(build):
    text, declared = everything(build)
    letters = {name[0] for name in declared if name[1:].partition("_")[0].isdigit()}
    # maps of boxes are parameters of kernels with asynchronous products alone
    roles = [role for role in NameRole if role is not NameRole.BOXES]
    assert letters == {role.value for role in roles}  # or this would prove nothing
    assert hidden(text) == []


def test_hidden_names_are_found(build):
    text, _ = everything(build)
    clash = re.sub(rf"\b{NameRole.PLACE.value}(\d)", rf"{NameRole.PRIVATE.value}\1", text)
    assert hidden(clash)[:1] == ["p0"]


def test_variables_of_loops_are_no_names_of_anything_else(build):
    out = build.node("out", *[2] * 12)
    axes = build.vars(12)
    store = Store(out, tuple(map(VarIndex, axes)), build.load(out, *map(VarIndex, axes)))
    text = build.kernel(build.loop([(axis, 2) for axis in axes], store)).text
    assert len(re.findall(r"for \(int64_t (\w+)", text)) == 12
    assert hidden(text) == []


def test_staged_code_cannot_hide_the_names_of_its_nodes(build):
    out = build.node("out", 2)
    (i,) = build.vars(1)
    meaning = build.loop([(i, 2)], Store(out, (VarIndex(i),), build.load(out, VarIndex(i))))
    verbatim = Verbatim("c", "float a0 = $0[1]; $0[0] = a0;", Block((meaning,)))
    with pytest.raises(CodegenError, match="must not use the names"):
        build.kernel(verbatim)
    build.kernel(replace(verbatim, text="float other = $0[1]; $0[0] = other;"))
