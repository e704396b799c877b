"""Generated C gives a compiler nothing to complain about."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from ocannl_core.base import settings
from ocannl_core.base.errors import CodegenError
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.prelude.prelude import headers_of, helper_names
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.indexing import VarIndex, fresh_var
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import (
    AxisKind,
    Binary,
    Block,
    Const,
    Expr,
    Fill,
    For,
    Load,
    Store,
    Ternary,
    Unary,
)
from ocannl_core.ir.loops.traverse import nodes_of
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import bfloat16, float16, float32, float64
from ocannl_core.ir.numbers.primitives import HASHES, BinaryOp, TernaryOp, UnaryOp
from ocannl_cpu_c.cache import DiskCache
from ocannl_cpu_c.dialect import DIALECT, ThreadedC
from ocannl_cpu_c.linking import Libraries
from ocannl_cpu_c.loader import load

from .processors import processors

GOLDENS = sorted((Path(__file__).parents[3] / "tests" / "golden").glob("*.c"))
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")
OF_WORDS = {UnaryOp.WORD, UnaryOp.UNIFORM}


def complaints(source: Path, *flags: str) -> str:
    command = ["cc", *STRICT, *flags, "-c", str(source), "-o", str(source) + ".o"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.stem)
def test_kernels_compile_without_warnings(golden, tmp_path):
    source = tmp_path / golden.name
    source.write_text(golden.read_text())
    assert complaints(source) == ""


def test_the_whole_prelude_compiles_without_warnings(tmp_path):
    source = tmp_path / "prelude.c"
    source.write_text(DIALECT.prelude(helper_names(DIALECT.words.files)))
    assert complaints(source, "-Wno-unused-function") == ""


@pytest.mark.parametrize("arch", processors("x86-64", "haswell", "cooperlake") or ("native",))
def test_conversions_of_vectors_are_standard_c_but_for_extensions(arch, tmp_path):
    source = tmp_path / "conversions.c"
    functions = ("low", "high", "joined", "lookup", "truncated")
    names = [f"float32x{lanes}_{each}" for lanes in (8, 16) for each in functions]
    source.write_text(DIALECT.prelude(names))
    flags = ("-Wpedantic", "-Wno-unused-function", "-Wno-psabi", f"-march={arch}")
    assert complaints(source, *flags) == ""


def kernels_of_all_operations() -> Iterator[KernelText]:
    """Yield a kernel of each operation on each format of floats, and of constants and fills."""
    i = fresh_var()
    for dtype in (float32, float64, float16, bfloat16):
        x, y = TensorNode(0, ("x",)), TensorNode(1, ("y",))
        nodes = {node: NodeInfo(dtype, (40,)) for node in (x, y)}
        a = Load(x, (VarIndex(i),), dtype)
        values: list[Expr] = [Const(math.inf, dtype), Const(math.nan, dtype), Const(0.0, dtype)]
        values += [Unary(op, a, dtype) for op in UnaryOp if op not in OF_WORDS]
        values += [Binary(op, a, a, dtype) for op in BinaryOp if op not in HASHES]
        values += [Ternary(op, a, a, a, dtype) for op in TernaryOp]
        for value, kind in product(values, (AxisKind.SERIAL, AxisKind.VECTOR)):
            lanes = 8 if dtype is float64 else 16
            loop = For(i, 0, lanes, Block((Store(y, (VarIndex(i),), value),)), kind)
            for dialect in (Dialect(), ThreadedC()):
                with suppress(CodegenError):
                    body = Block((loop,))
                    yield render_kernel(Kernel(body, nodes_of(body), ()), nodes, dialect)
        yield render_kernel(Kernel(Block((Fill(y, 0.0),)), (y,), ()), nodes, Dialect())


@pytest.mark.parametrize("arch", processors("x86-64", "cooperlake") or ("native",))
def test_functions_called_by_kernels_are_declared(arch, tmp_path):
    kernels = {each.symbol: each for each in kernels_of_all_operations()}
    assert len(kernels) > 200
    by_needs: dict[frozenset[str], list[KernelText]] = {}
    for each in kernels.values():
        by_needs.setdefault(headers_of(each.helpers), []).append(each)
    assert len(by_needs) > 2
    for number, alike in enumerate(by_needs.values()):
        source = tmp_path / f"{number}.c"
        source.write_text(DIALECT.unit(alike))
        # GCC has extensions that -Wpedantic does not know
        flags = ("-std=gnu11", "-Wno-unused-function", "-Wno-psabi", f"-march={arch}")
        assert complaints(source, *flags) == ""


def test_kernels_without_functions_are_linked_with_nothing(tmp_path, monkeypatch):
    with settings.overrides(cache_dir=str(tmp_path)):
        linked: list[Libraries] = []
        real = DiskCache.start

        def start(self, file):
            linked.append(file.libraries)
            return real(self, file)

        monkeypatch.setattr(DiskCache, "start", start)
        for op, libraries in ((UnaryOp.NEG, Libraries.NONE), (UnaryOp.TRUNC, Libraries.C)):
            x, y = TensorNode(0, ("x",)), TensorNode(1, ("y",))
            nodes = {node: NodeInfo(float64, (5,)) for node in (x, y)}
            i = fresh_var()
            value = Unary(op, Load(x, (VarIndex(i),), float64), float64)
            loop = For(i, 0, 5, Block((Store(y, (VarIndex(i),), value),)))
            kernel = render_kernel(Kernel(Block((loop,)), (x, y), ()), nodes, ThreadedC())
            assert load([kernel])[kernel.symbol] is not None
            assert linked.pop() is libraries
