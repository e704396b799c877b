"""Old spellings of public names: each works, and warns once at the line of the user."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import ocannl_core as oc
from ocannl_core.base.renamed import value_of
from ocannl_core.base.renamings import CALLS, GONE, KEYWORDS, METHODS, NAMES
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.ir.kernels.nodes import kernel_of
from ocannl_core.ir.loops.nodes import Block


def _module_and_name(title: str) -> tuple[object, str]:
    owner, _, name = title.rpartition(".")
    if owner.startswith("oc.backend_api"):
        module = __import__(owner.replace("oc", "ocannl_core", 1), fromlist=["*"])
        return module, name
    return value_of(owner), name


@pytest.mark.parametrize("old", sorted(NAMES))
def test_an_old_name_is_the_new_value_and_warns_here(old: str) -> None:
    module, name = _module_and_name(old)
    owner, new = _module_and_name(NAMES[old])
    with pytest.warns(DeprecationWarning, match="until version") as caught:
        value = getattr(module, name)
    assert value is getattr(owner, new)
    (warning,) = caught
    assert warning.filename == __file__
    assert NAMES[old] in str(warning.message)
    assert f"until version {GONE}" in str(warning.message)


@pytest.mark.parametrize("old", sorted(NAMES))
def test_an_old_name_is_no_public_name_and_its_new_one_is(old: str) -> None:
    module, name = _module_and_name(old)
    assert name not in module.__all__  # type: ignore[attr-defined]
    owner, new = _module_and_name(NAMES[old])
    assert new in owner.__all__  # type: ignore[attr-defined]
    assert name not in dir(module)


def test_an_import_of_an_old_name_warns_once_at_its_line(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nfrom ocannl_core import (\n    exp,\n    mul,\n)\n")
    done = subprocess.run(
        [sys.executable, "-W", "default", str(program)], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr.count("DeprecationWarning") == 1
    assert f"{program}:2: DeprecationWarning: oc.mul is now oc.multiply." in done.stderr


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: oc.clip(x, low=0.0), "low= of oc.clip is now min="),
        (lambda x: x.clip(low=0.0), "low= of oc.clip is now min="),
        (lambda x: oc.nn.resize(x, [4], axes=[0]), "axes= of oc.nn.resize is now axis="),
        (
            lambda x: oc.nn.batch_norm(x, axes="...|..f..", features="..f.."),
            "axes= of oc.nn.batch_norm is now shape=",
        ),
        (lambda x: oc.nn.softmax("i=>0", x), r"is now oc\.softmax\(x, logic=spec\)"),
        (lambda x: oc.nn.mean("i=>0", x), r"is now oc\.mean\(x, logic=spec\)"),
        (lambda x: oc.nn.variance("i=>", x, 0.5), r"oc\.square\(x - center\)"),
        (lambda x: oc.transpose(x), r"as x\.T does"),
    ],
)
def test_a_call_with_old_arguments_works_and_warns_here(call: object, text: str) -> None:
    with oc.Session():
        x = oc.tensor([1.0, 2.0])
        with pytest.warns(DeprecationWarning, match=text) as caught:
            assert isinstance(call(x), oc.Tensor)  # type: ignore[operator]
        assert {warning.filename for warning in caught} == {__file__}


def test_the_old_method_of_an_optimizer_is_the_new_one() -> None:
    assert METHODS == {"oc.train.Optimizer": {"minimise": "minimize"}}
    with oc.Session():
        w = oc.param("w", init=[1.0, 2.0])
        opt = oc.train.SGD(learning_rate=0.1)
        with pytest.warns(DeprecationWarning, match=r"minimise is now minimize"):
            assert isinstance(opt.minimise(oc.sum(w * w)), oc.Computation)


def test_both_spellings_of_a_keyword_are_an_error() -> None:
    with oc.Session(), pytest.raises(oc.UsageError, match="low"):
        oc.clip(oc.tensor([1.0]), low=0.0, min=0.0)


@pytest.mark.parametrize(
    ("title", "rest"),
    [
        ("oc.backend_api.c_family.render_kernel", {"nodes": {}, "dialect": Dialect()}),
        ("oc.backend_api.parallel.parallel_iterations", {"nodes": {}}),
        ("oc.backend_api.rendering.RenderState", {"nodes": {}, "dialect": Dialect()}),
    ],
)
def test_a_plugin_for_version_1_0_passes_a_kernel_as_a_nest(
    title: str, rest: dict[str, object]
) -> None:
    module, name = _module_and_name(title)
    function = getattr(module, name)
    kernel = kernel_of(Block(()))
    with pytest.warns(DeprecationWarning, match=f"nest= of {title} is now kernel=") as caught:
        found = function(nest=kernel, **rest)
    assert caught[0].filename == __file__
    assert type(found) is type(function(kernel=kernel, **rest))


def test_new_spellings_do_not_warn() -> None:
    with warnings.catch_warnings(), oc.Session():
        warnings.simplefilter("error")
        x = oc.tensor([[1.0, 2.0]])
        oc.clip(x, min=0.0, max=1.0)
        oc.softmax(x, logic="i,j => i,0")
        oc.transpose(x, 1, 0)
        assert x.transpose() is not None


def test_no_old_name_has_two_entries() -> None:
    assert not NAMES.keys() & CALLS.keys()
    for title, renamed in KEYWORDS.items():
        assert not renamed.keys() & set(renamed.values()), title
