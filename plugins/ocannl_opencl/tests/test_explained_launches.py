"""Explanations of launches that several kernels share."""

from __future__ import annotations

import ocannl_core as oc
from ocannl_core.ir.kernels.transforms import schedule_text


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
    (found,) = second.apart
    assert [node.name for node in found.nodes] == ["x", "y"]
    lines = str(explained).splitlines()
    start = 0
    for part in first.parts:
        end = start + part.blocks - 1
        blocks = f"block {start}" if start == end else f"blocks {start} to {end}"
        at = lines.index(f"     {blocks} of {part.threads} threads: {part.title}")
        assert lines[at + 1] == f"       schedule: {schedule_text(part.schedule)}"
        start = end + 1
    assert "     apart from the launch before: one depends on the other, by x, y" in lines
