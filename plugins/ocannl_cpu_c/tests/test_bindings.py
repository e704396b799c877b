"""Functions of compiled code that Python calls are declared once."""

from __future__ import annotations

from pathlib import Path

from ocannl_cpu_c import bindings, declarations


def test_the_bindings_are_those_of_the_declarations(tmp_path):
    made = tmp_path / "bindings.py"
    declarations.write(made)
    assert made.read_text() == Path(bindings.__file__).read_text(), (
        f"run python {declarations.__file__}"
    )
