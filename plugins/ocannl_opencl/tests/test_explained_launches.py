"""Explanations of launches that several kernels share."""

from __future__ import annotations

import ocannl_core as oc


def test_explain_shows_the_parts_of_a_launch_and_the_reasons_for_others_apart() -> None:
    a, b = (oc.placeholder(name, output=[size]) for name, size in (("a", 41), ("b", 75)))
    x, y = oc.exp(a, label="x"), oc.exp(b, label="y")
    z = oc.einsum("i; j => i,j", x, y, label="z")
    code = oc.train.forward(z)
    routine = oc.Context("opencl").compile(code, keep=[x, y, z])
    explained = oc.explain(routine)
    first, second = explained.kernels
    assert [part.title for part in first.parts] == [
        "x[o] = exp(a[o]) (writes x)",
        "y[o] = exp(b[o]) (writes y)",
    ]
    assert [part.threads for part in first.parts] == [41, 64]
    (found,) = second.apart
    assert [node.name for node in found.nodes] == ["x", "y"]
    lines = str(explained).splitlines()
    assert "     block 0 of 41 threads: x[o] = exp(a[o]) (writes x)" in lines
    assert "     blocks 1 to 2 of 64 threads: y[o] = exp(b[o]) (writes y)" in lines
    assert "     apart from the launch before: one depends on the other, by x, y" in lines
