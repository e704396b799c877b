"""Kernels are compiled once: per process, per machine, and never again while their files are intact."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError
from ocannl_core.base.files import object_cache
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import Block, Fill
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_cpu_c import cache, compiler, loader, own_settings, translation_units
from ocannl_cpu_c.loader import load


def kernel(number: float) -> KernelText:
    out = TensorNode(0, ("out",))
    body = Block((Fill(out, number),))
    return render_kernel(Kernel(body, (out,), ()), {out: NodeInfo(float32, (4,))}, Dialect())


@pytest.fixture
def counted(tmp_path: Path) -> Callable[[], int]:
    """Make a compiler that notes its runs the one of this test; returns how many compiled something."""
    log = tmp_path / "log"
    script = tmp_path / "counting-cc"
    script.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec cc "$@"\n')
    script.chmod(0o755)

    def count() -> int:
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(" -o " in line for line in lines)

    with settings.overrides(cpu_c__cc=str(script), cache_dir=str(tmp_path / "cache")):
        yield count


def forget() -> None:
    """Bring this process back to where a new one starts."""
    loader._loaded.clear()
    loader._libraries.clear()
    compiler._find.cache_clear()


def objects(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def test_a_kernel_is_compiled_once_and_new_ones_together(counted):
    one, two, three = kernel(1.5), kernel(2.5), kernel(3.5)
    first = load([one])
    assert counted() == 1
    both = load([one, two, three])
    assert counted() == 2
    assert both[one.symbol] == first[one.symbol]
    load([three, one])
    assert counted() == 2


def test_a_later_process_compiles_nothing(counted):
    load([kernel(1.5), kernel(2.5)])
    forget()
    load([kernel(2.5)])
    load([kernel(1.5), kernel(2.5)])
    assert counted() == 1


def test_the_cache_survives_processes_and_hash_seeds(counted, tmp_path):
    program = textwrap.dedent(
        """
        import sys
        sys.path[:] = PATH + sys.path
        from ocannl_core.codegen.c_family import render_kernel
        from ocannl_core.codegen.dialect import Dialect
        from ocannl_core.ir.numbers.dtypes import float32, int32, uint4x32
        from ocannl_core.ir.indexing import FixedIndex
        from ocannl_core.ir.loops.nodes import Block, ConstBits, Const, Store, Unary, Binary
        from ocannl_core.ir.node import NodeInfo, TensorNode
        from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
        from ocannl_core.ir.kernels.nodes import Kernel
        from ocannl_cpu_c.loader import load
        from ocannl_cpu_c.translation_units import key
        out, words = TensorNode(0), TensorNode(1)
        x = Binary(BinaryOp.MOD, Const(3.0, float32), Const(2.0, float32), float32)
        x = Binary(BinaryOp.MAX, x, Unary(UnaryOp.RELU, x, float32), float32)
        w = Binary(BinaryOp.THREEFRY4X32, *[ConstBits(1, uint4x32)] * 2, uint4x32)
        zero = (FixedIndex(0),)
        body = Block((Store(out, zero, x), Store(words, zero, w)))
        nodes = {out: NodeInfo(float32, (1,)), words: NodeInfo(uint4x32, (1,))}
        kernel = render_kernel(Kernel(body, (out, words), ()), nodes, Dialect())
        load([kernel])
        print(key(kernel))
        """
    ).replace("PATH", repr([each for each in sys.path if each]))
    keys = set()
    for seed in ("0", "1", "2"):
        env = os.environ | {
            "PYTHONHASHSEED": seed,
            "OCANNL_CPU_C__CC": own_settings.current().cc or "",
            "OCANNL_CACHE_DIR": str(tmp_path / "cache"),
        }
        command = [sys.executable, "-P", "-c", program]
        result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        keys.add(result.stdout)
    assert len(keys) == 1
    assert counted() == 1


@pytest.mark.parametrize("content", [b"", b"not a shared object"])
def test_a_spoiled_object_is_built_again(counted, tmp_path, content):
    load([kernel(1.5)])
    (built,) = objects(tmp_path)
    built.unlink()  # a loaded file must not change under the process that uses it
    built.write_bytes(content)
    forget()
    loaded = load([kernel(1.5)])
    assert counted() == 2
    assert loaded[kernel(1.5).symbol]


@pytest.mark.parametrize("content", ["", "{}", '{"object": 3, "sha256": "x"}'])
def test_a_spoiled_record_is_written_again(counted, tmp_path, content):
    load([kernel(1.5)])
    (record,) = tmp_path.rglob("*.json")
    record.write_text(content)
    forget()
    load([kernel(1.5)])
    assert counted() == 2
    forget()
    load([kernel(1.5)])
    assert counted() == 2


def test_objects_of_one_processor_are_not_used_for_another(counted):
    load([kernel(1.5)])
    with settings.overrides(cpu_c__arch="x86-64" if "__x86_64__" in macros() else "armv8-a"):
        load([kernel(1.5)])
    assert counted() == 2


def test_objects_of_one_version_of_a_compiler_are_not_used_for_another(counted, tmp_path):
    load([kernel(1.5)])
    forget()
    load([kernel(1.5)])
    assert counted() == 1
    script = tmp_path / "counting-cc"
    newer = "-U__GNUC_MINOR__ -D__GNUC_MINOR__=99 -U__VERSION__ -D__VERSION__='\"99.0\"'"
    script.write_text(script.read_text().replace('exec cc "$@"', f'exec cc "$@" {newer}'))
    forget()
    load([kernel(1.5)])
    assert counted() == 2


def macros() -> dict[str, str]:
    found = compiler._macros(("cc",), ())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", ["cache", "cache/cpu_c"])
def test_a_directory_that_others_can_write_to_is_not_used(counted, tmp_path, name):
    load([kernel(1.5)])
    forget()
    (tmp_path / name).chmod(0o777)
    before = sorted(tmp_path.rglob("*"))
    with pytest.warns(RuntimeWarning, match=f"{name}: every user can write to it"):
        load([kernel(1.5)])
    assert counted() == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o777


def test_new_directories_belong_to_the_user_alone(counted, tmp_path):
    load([kernel(1.5)])
    made = [tmp_path / "cache", *(each for each in tmp_path.rglob("*/") if each.is_dir())]
    modes = {each.stat().st_mode & 0o777 for each in made if each != tmp_path}
    assert modes == {0o700}
    assert {each.stat().st_mode & 0o777 for each in tmp_path.rglob("*.json")} == {0o600}


def test_an_unusable_directory_is_replaced_after_one_warning(counted, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with settings.overrides(cache_dir=str(blocked)):
        with pytest.warns(RuntimeWarning, match="Compiled code is not kept: .*OCANNL_CACHE_DIR"):
            load([kernel(1.5)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            load([kernel(2.5)])
    assert counted() == 2
    assert blocked.read_text() == "in the way"


def test_directories_that_are_removed_during_compilation_are_replaced(tmp_path):
    """Also the temporary one that replaces the first."""
    script, log = tmp_path / "removing-cc", tmp_path / "log"
    remove = f'[ "$(wc -l < {log})" -gt 2 ] || rm -rf "$(dirname "$out")/../../cpu_c"'
    out = """out=$(echo "$*" | sed 's/.* -o \\([^ ]*\\).*/\\1/')"""
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" -o "*) {out}; echo run >> {log}; {remove};; esac\nexec cc "$@"\n'
    )
    script.chmod(0o755)
    with (
        settings.overrides(cpu_c__cc=str(script), cache_dir=str(tmp_path / "cache")),
        pytest.warns(RuntimeWarning, match="Compiled code is not kept"),
    ):
        made = load([kernel(7.25)])
    assert len(made) == 1
    assert log.read_text().count("run") == 3


def test_the_files_that_were_not_used_for_longest_go_when_there_are_many(
    counted, tmp_path, monkeypatch
):
    monkeypatch.setattr(object_cache, "_MOST_FILES", 4)
    for number in range(3):
        load([kernel(number + 0.5)])
        forget()
        for age, each in enumerate(objects(tmp_path)):
            os.utime(each, (age, age))
    left = {each.stem for each in objects(tmp_path)}
    assert 0 < len(left) < 3
    records = [each.read_text() for each in tmp_path.rglob("*.json")]
    assert len(records) == len(left)
    load([kernel(number + 0.5) for number in range(3)])  # removed kernels are compiled again


def test_many_kernels_are_compiled_side_by_side(counted, tmp_path, monkeypatch):
    monkeypatch.setattr(translation_units, "_LEAST_SECONDS", 0.0)
    kernels = [kernel(number + 0.5) for number in range(6)]
    found = translation_units.units(kernels, 2)
    assert sorted(key for each in found for key in each.keys) == sorted(
        map(translation_units.key, kernels)
    )
    assert len(found) == 2
    addresses = load(kernels)
    assert counted() >= 2
    forget()
    assert load(kernels).keys() == addresses.keys()
    assert counted() >= 2


def test_one_rejected_file_stops_the_others_and_leaves_no_trace(counted, tmp_path):
    sources = [
        cache.TranslationUnit(("good",), "int x;"),
        cache.TranslationUnit(("bad",), "no C at all"),
    ]
    opened = cache.open_cache(compiler.find())
    with pytest.raises(CompileError, match="must accept generated code"):
        opened.build(sources)
    assert not list(tmp_path.rglob("*.tmp"))
    assert opened.find("bad") is None
