"""`ocannl migrate`: programs with old names become programs with new ones that compute the same."""

from __future__ import annotations

import ast
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ocannl_core as oc
from ocannl_core.base.renamings import MODULES, NAMES
from ocannl_core.cli import main
from ocannl_core.cli.rewriting import rewrite

IMPORT = "import ocannl_core as oc\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # the names of the core under any name
        ("import ocannl_core as oc\noc.mul(a, b)", "import ocannl_core as oc\noc.multiply(a, b)"),
        ("import ocannl_core\nocannl_core.mul(a)", "import ocannl_core\nocannl_core.multiply(a)"),
        ("import ocannl_core as o\no.first", "import ocannl_core as o\no.primitives.first"),
        (
            "import ocannl_core.train as t\nt.Optimiser",
            "import ocannl_core.train as t\nt.Optimizer",
        ),
        (
            "from ocannl_core import train\nclass A(train.Optimiser): pass",
            "from ocannl_core import train\nclass A(train.Optimizer): pass",
        ),
        # names imported by themselves
        ("from ocannl_core import mul\nmul(a)", "from ocannl_core import multiply as mul\nmul(a)"),
        ("from ocannl_core import mul as m", "from ocannl_core import multiply as m"),
        ("from ocannl_core import first", "from ocannl_core.primitives import first"),
        (
            "from ocannl_core import random_words as w, relu",
            "from ocannl_core import relu\nfrom ocannl_core.random import words as w",
        ),
        (
            "from ocannl_core import (\n    exp,  # one\n    first,\n    sub,  # two\n)\n",
            "from ocannl_core import (\n    exp,  # one\n    subtract as sub,  # two\n)\n"
            "from ocannl_core.primitives import first\n",
        ),
        (
            "def f():\n    from ocannl_core import first, second\n    return first",
            "def f():\n    from ocannl_core.primitives import first\n"
            "    from ocannl_core.primitives import second\n    return first",
        ),
        (
            "from ocannl_core import exp, first, second",
            "from ocannl_core import exp\nfrom ocannl_core.primitives import first\n"
            "from ocannl_core.primitives import second",
        ),
        (
            "from ocannl_core import first, second, sub; x = 1",
            "from ocannl_core import subtract as sub\nfrom ocannl_core.primitives import first\n"
            "from ocannl_core.primitives import second; x = 1",
        ),
        # modules
        ("from ocannl_core.loopir import nodes", "from ocannl_core.ir.loops import nodes"),
        ("import ocannl_core.train.optimiser as m", "import ocannl_core.train.optimizer as m"),
        (
            "import ocannl_core\nimport ocannl_core.loopir.nodes\nocannl_core.loopir.nodes.Load",
            "import ocannl_core\nimport ocannl_core.ir.loops.nodes\nocannl_core.ir.loops.nodes.Load",
        ),
        # keywords
        (IMPORT + "oc.clip(x, low=0, high = 1)", IMPORT + "oc.clip(x, min=0, max = 1)"),
        (IMPORT + "x.clip(low=0)", IMPORT + "x.clip(min=0)"),
        (IMPORT + 'oc.nn.batch_norm(x, axes="a")', IMPORT + 'oc.nn.batch_norm(x, shape="a")'),
        (IMPORT + "oc.nn.resize(x, [2], axes=[0])", IMPORT + "oc.nn.resize(x, [2], axis=[0])"),
        # methods
        (
            IMPORT + "opt = oc.train.Adam(learning_rate=1)\nopt.minimise(loss)",
            IMPORT + "opt = oc.train.Adam(learning_rate=1)\nopt.minimize(loss)",
        ),
        (
            IMPORT + "def f(opt: oc.train.SGD): opt.minimise(loss)",
            IMPORT + "def f(opt: oc.train.SGD): opt.minimize(loss)",
        ),
        (
            IMPORT + "self.opt = oc.train.SGD()\nself.opt.minimise(loss)",
            IMPORT + "self.opt = oc.train.SGD()\nself.opt.minimize(loss)",
        ),
        (
            IMPORT + "def f(oc: oc.Tensor = oc.mul(1, 2)): return oc.mul",
            IMPORT + "def f(oc: oc.Tensor = oc.multiply(1, 2)): return oc.mul",
        ),
        # calls with other arguments
        (IMPORT + "oc.transpose(a + b)", IMPORT + "(a + b).T"),
        (IMPORT + "oc.transpose(oc.transpose(a[0]))", IMPORT + "a[0].T.T"),
        (
            IMPORT + 'oc.nn.softmax("i=>0", f(x), scale=2.0)',
            IMPORT + 'oc.softmax(f(x), logic="i=>0", scale=2.0)',
        ),
        (
            IMPORT + "oc.nn.softmax(x=a if b else c, spec=s)",
            IMPORT + "oc.softmax(a if b else c, logic=s)",
        ),
        (
            IMPORT + "oc.nn.mean(f'{x} => 0', oc.nn.mean(s, oc.mul(a, b)))",
            IMPORT + "oc.mean(oc.mean(oc.multiply(a, b), logic=s), logic=f'{x} => 0')",
        ),
        (
            IMPORT + 'oc.nn.variance("i=>", x, a or b)',
            IMPORT + 'oc.mean(oc.square(x - (a or b)), logic="i=>")',
        ),
        (
            "from ocannl_core.nn import softmax\nsoftmax('i=>0', x)",
            "import ocannl_core as oc\noc.softmax(x, logic='i=>0')",
        ),
        (
            "from ocannl_core.nn import dense, softmax\nsoftmax('i=>0', x)",
            "from ocannl_core.nn import dense\nimport ocannl_core as oc\n"
            "oc.softmax(x, logic='i=>0')",
        ),
        # layout
        (
            IMPORT + "y = oc.mul(  # product\n    a,\n\n    oc.neg(b))  # oc.mul\n",
            IMPORT + "y = oc.multiply(  # product\n    a,\n\n    oc.negative(b))  # oc.mul\n",
        ),
        (
            IMPORT + "é = 'é'; oc.mul(é, oc.sub(é, 1))",
            IMPORT + "é = 'é'; oc.multiply(é, oc.subtract(é, 1))",
        ),
        (
            "import ocannl_core as oc\r\noc.mul(a)\r\n",
            "import ocannl_core as oc\r\noc.multiply(a)\r\n",
        ),
    ],
)
def test_a_program_is_rewritten(old: str, new: str) -> None:
    found = rewrite(old)
    assert found.text == new
    assert rewrite(new).text == new


@pytest.mark.parametrize(
    "program",
    [
        IMPORT + 's = "oc.mul(a)"; t = f"oc.mul {oc.exp(a)}"  # oc.mul',
        IMPORT + "import numpy as np\nnp.clip(x, low=1); np.transpose(x); np.mod(x, 2)",
        "import torch\ntorch.mul(a, b)\ntorch.neg(a)",
        "from operator import mul, sub\nimport ocannl_core\nmul(1, 2)",
        IMPORT + "def f(oc):\n    return oc.mul(1)",
        IMPORT + "[oc.mul for oc in things]",
        IMPORT + "class A:\n    oc = 1\n    x = oc.mul",
        IMPORT + "def f():\n    oc = other()\n    return oc.mul(1)",
        IMPORT + "model.mul = 1\nmodel.neg(x)\nmul = 3",
        "import ocannl_core as oc\noc = wrap(oc)\noc.mul(a)",
        IMPORT + "oc.transpose(x, 1, 0)",
        IMPORT + "oc.settings.current(); oc.custom.Op",
        "from . import mul\nfrom .ocannl_core import sub\nimport ocannl_core_tools as oc\noc.mul(a)",
        "x = 1\n",
        "",
    ],
)
def test_strings_comments_and_names_of_others_stay(program: str) -> None:
    found = rewrite(program)
    assert found.text == program
    assert found.notes == ()


@pytest.mark.parametrize(
    ("program", "note"),
    [
        (IMPORT + "\nf = oc.nn.softmax", "line 3: oc.nn.softmax is now oc.softmax(x, logic=spec)"),
        (IMPORT + "oc.nn.mean(*arguments)", "line 2: oc.nn.mean is now oc.mean(x, logic=spec)"),
        (IMPORT + "oc.transpose(x, label='t')", "line 2: oc.transpose is now x.T"),
        (IMPORT + "opt.minimise(loss)", "line 2: .minimise of an optimizer is now .minimize"),
    ],
)
def test_a_place_that_a_person_has_to_rewrite_is_named(program: str, note: str) -> None:
    found = rewrite(program)
    assert (found.text, found.notes) == (program, (note,))


@pytest.mark.parametrize("old", sorted(NAMES))
def test_every_renamed_value_is_rewritten(old: str) -> None:
    module, _, name = old.rpartition(".")
    place = module.replace("oc", "ocannl_core", 1)
    for program in (f"import {place} as m\nm.{name}\n", f"from {place} import {name}\n"):
        found = rewrite(program)
        assert found.notes == ()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            space: dict[str, Any] = {}
            exec(found.text, space)
            new_owner, _, new_name = NAMES[old].rpartition(".")
            owner = __import__(new_owner.replace("oc", "ocannl_core", 1), fromlist=["*"])
            if "m" not in space:
                assert space[name] is getattr(owner, new_name)


@pytest.mark.parametrize("old", sorted(MODULES))
def test_every_moved_module_is_rewritten(old: str) -> None:
    found = rewrite(f"import ocannl_core.{old} as m\n").text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(found, {})


STYLES = (
    ("import ocannl_core as oc\n", "oc.", "oc.nn."),
    ("import ocannl_core\n", "ocannl_core.", "ocannl_core.nn."),
    (
        "from ocannl_core import (mul, sub, neg, power, clip, where, first,\n    recip_sqrt, nn, "
        "relu_gate, exp)\n",
        "",
        "nn.",
    ),
)
LEAVES = ("x", "y")


def _expressions(prefix: str, nn: str) -> st.SearchStrategy[str]:
    """Return expressions of matrices in old spellings, whose values stay small."""

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.sampled_from(["mul", "sub", "relu_gate", "first"])
        unary = st.sampled_from(
            [
                "{p}neg({a})",
                "{p}clip({a}, low=-1.0, high=1.0)",
                "{p}clip({a}, high=0.5)",
                "({a}).clip(low=-0.5)",
                "{p}power({p}clip({a}, -1.0, 1.0), 2)",
                "{p}recip_sqrt(1.0 + {p}mul({a}, {a}))",
                '{n}softmax("i, j => i, 0", {a})',
                '{n}softmax(x={a}, spec="i, j => 0, j", scale=0.5)',
                '{a} - {n}mean("i, j => 0, j", {a})',
                '{a} + {n}variance("i, j => 0, j", {a}, 0.5)',
            ]
        )
        return st.one_of(
            st.builds(lambda f, a, b: f"{prefix}{f}({a}, {b})", binary, inner, inner),
            st.builds(lambda f, a: f"({f.format(p=prefix, n=nn, a=a)})", unary, inner),
        )

    return st.recursive(st.sampled_from(LEAVES), extend, max_leaves=6)


PROGRAMS = st.sampled_from(STYLES).flatmap(
    lambda style: _expressions(style[1], style[2]).map(
        lambda expression: (
            f"{style[0]}\ndef build(x, y):\n    # in old spellings\n    return {expression}\n"
        )
    )
)


@given(PROGRAMS)
def test_a_rewritten_program_runs_without_a_warning_and_gives_the_same_bits(program: str) -> None:
    new = rewrite(program)
    assert new.notes == ()
    assert rewrite(new.text).text == new.text
    assert "# in old spellings" in new.text
    ast.parse(new.text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        before = _bits(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        after = _bits(new.text)
    assert after == before


def _bits(program: str) -> bytes:
    """Return the bits that a program computes."""
    space: dict[str, Any] = {}
    exec(compile(program, "program.py", "exec"), space)
    cells = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
    with oc.Session():
        result = space["build"](oc.tensor(cells), oc.tensor(cells[::-1]))
        if not isinstance(result, oc.Tensor):
            return bytes(str(result), "utf-8")
        ctx = oc.Context("interp")
        ctx.compile(oc.train.forward(result))()
        bits: bytes = ctx[result].tobytes()
        return bits


def test_the_command_rewrites_files_and_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = IMPORT + "oc.mul(a)\n", IMPORT + "oc.multiply(a)\n"
    inner = tmp_path / "package" / "module.py"
    inner.parent.mkdir()
    inner.write_text(old)
    script = tmp_path / "script.py"
    script.write_text(old)
    script.chmod(0o755)
    (tmp_path / "package" / ".hidden").mkdir()
    (hidden := tmp_path / "package" / ".hidden" / "module.py").write_text(old)
    (tmp_path / "package" / "folder.py").mkdir()
    os.mkfifo(tmp_path / "package" / "pipe.py")
    assert main(["migrate", "--check", str(script)]) == 1
    assert script.read_text() == old
    assert main(["migrate", "--diff", str(script)]) == 0
    assert script.read_text() == old
    assert "+oc.multiply(a)" in capsys.readouterr().out
    assert main(["migrate", str(script), str(tmp_path / "package")]) == 0
    assert script.read_text() == inner.read_text() == new
    assert script.stat().st_mode & 0o777 == 0o755
    assert hidden.read_text() == old
    assert main(["migrate", "--check", str(script), str(inner)]) == 0


def test_line_ends_encodings_and_links_stay(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\r\nimport ocannl_core as oc\r\n\r\noc.mul('é')  # é\r\n"
    file, link = tmp_path / "program.py", tmp_path / "link.py"
    file.write_bytes(text.encode("latin-1"))
    link.symlink_to(file)
    assert main(["migrate", str(link)]) == 0
    assert file.read_bytes() == text.replace("mul", "multiply").encode("latin-1")
    assert link.is_symlink()
    marked = "\ufeffimport ocannl_core as oc\noc.mul(1)".encode()
    file.write_bytes(marked)
    assert main(["migrate", str(file)]) == 0
    assert file.read_bytes() == marked.replace(b"mul", b"multiply")


def test_a_file_that_is_no_program_stays_and_the_others_are_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other = tmp_path / "a.py", tmp_path / "b.py"
    broken.write_text("import ocannl_core as oc\noc.mul(")
    other.write_text(IMPORT + "oc.mul(a)")
    assert main(["migrate", str(tmp_path)]) == 1
    assert broken.read_text().endswith("oc.mul(")
    assert other.read_text() == IMPORT + "oc.multiply(a)"
    assert f"{broken}: not rewritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("env('OCANNL_CC', 'OCANNL_CC is')", "env('OCANNL_CPU_C__CC', 'OCANNL_CC is')"),
        ("args = ['--ocannl_cc', 'gcc']", "args = ['--ocannl_cpu_c__cc', 'gcc']"),
        (
            "from ocannl_core import settings\nsettings.overrides(cuda_graphs=True, tune='off')",
            "from ocannl_core import settings\nsettings.overrides(cuda__graphs=True, tune='off')",
        ),
    ],
)
def test_settings_get_new_names(old: str, new: str) -> None:
    assert rewrite(old).text == new


def test_a_path_that_does_not_exist_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "nowhere.py"]) == 1
    assert "takes programs and folders" in capsys.readouterr().err
