"""Misuse of recorded code, message by message."""

from __future__ import annotations

import linecache

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc

MISUSE = {
    "leaking tensor": """\
kept = []
@oc.cd
def one():
    kept.append(c * 2.0)
    c[:] = kept[0]
@oc.cd
def two():
    c[:] = kept[0] + 1.0
one()
two()
""",
    "leaking tensor in an expression": """\
kept = []
@oc.cd
def one():
    kept.append(c * 2.0)
    c[:] = kept[0]
one()
oc.train.forward(kept[0])
""",
    "format of a primitive that makes no tensor": """\
@oc.cd
def one():
    oc.declare("d")[oc.neutral] += oc.multiply(c, x, logic="i; i => 0", dtype="float64")
one()
""",
    "stale primitive": """\
@oc.cd
def one():
    c[:] = 1.0
    product = oc.multiply(c, x, logic="i;j=>ij")
    c[:] = 2.0
    oc.declare("d")[oc.neutral] += product
one()
""",
    "leaking primitive": """\
kept = []
@oc.cd
def one():
    kept.append(oc.multiply(c, c, logic="i;j=>ij"))
    c[:] = 1.0
@oc.cd
def two():
    oc.declare("d")[:] = kept[0]
one()
two()
""",
    "assignment outside": """\
c[:] = 1.0
""",
    "assignment in another session": """\
with oc.Session():
    @oc.cd
    def one():
        c[:] = 1.0
    one()
""",
    "no gradient": """\
@oc.cd
def one():
    c[:] = oc.tensor([1.0]).grad
one()
""",
    "a list": """\
@oc.cd
def one():
    c[:] = [1.0, 2.0]
one()
""",
    "no gradient in an operation": """\
@oc.cd
def one():
    c[:] = oc.exp(oc.tensor([1.0]).grad)
one()
""",
    "quotients do not compose": """\
@oc.cd
def one():
    c[oc.neutral] += oc.divide(c, c, logic="@")
one()
""",
    "malformed projections": """\
@oc.cd
def one():
    c[:] = oc.exp(c, projections="i => j over i<2")
one()
""",
    "projections outside": """\
oc.exp(c, projections="i => i over i<2")
""",
    "projections beyond an axis": """\
@oc.cd
def one():
    c[:] = oc.exp(x, projections="1*i + 1 => i over i<2")
one().resolve()
""",
    "a plain assignment that reduces": """\
@oc.cd
def one():
    c[:] = oc.exp(x, logic="i => 0")
one().resolve()
""",
    "accumulation by an operation that reduces": """\
@oc.cd
def one():
    c[oc.matmul] = x
one()
""",
    "accumulation by a comparison": """\
@oc.cd
def one():
    c[oc.neutral, oc.less] = x
one()
""",
    "an operator after an accumulation": """\
@oc.cd
def one():
    c[oc.maximum] += x
one()
""",
    "a merge buffer in an expression": """\
@oc.cd
def one():
    c[:] = (c.merge + 1.0) * 2.0
one()
""",
    "rearranging in place": """\
@oc.cd
def one():
    c.assign(c, logic="i => i")
one()
""",
    "a slice": """\
@oc.cd
def one():
    c[oc.static_index("i"):] = 1.0
one()
""",
    "a section without a title": """\
@oc.cd
def one():
    with oc.section():
        c[:] = 1.0
one()
""",
    "gradients that nothing computes": """\
p = oc.param("p", init=[1.0, 2.0])
loss = oc.einsum("... => 0", p * p)
oc.Context("interp").compile(loss.backprop())
""",
}


@pytest.mark.parametrize("case", MISUSE)
def test_a_message_has_rule_finding_place_and_fix(case: str) -> None:
    assert message(MISUSE[case]) == MESSAGES[case]


def message(text: str) -> str:
    """Return the error of a program whose lines messages show as those of program.py."""
    before = """\
import ocannl_core as oc
c = oc.declare("c", output=[2])
x = oc.placeholder("x", output=[2])
"""
    lines = (before + text).splitlines(keepends=True)
    linecache.cache["program.py"] = (len(before + text), None, lines, "program.py")
    try:
        with pytest.raises(oc.OcannlError) as error:
            exec(compile(before + text, "program.py", "exec"), {})
    finally:
        del linecache.cache["program.py"]
    return str(error.value)


MESSAGES = snapshot(
    {
        "leaking tensor": """\
A tensor made in recorded code has its value there: it is no part of other code.
  found  <applied mul: 2>, recorded in one, at program.py:12: one()
  where  program.py:11: c[:] = kept[0] + 1.0
  try    assign it to a tensor declared outside of that function, c = oc.declare("c"), or make the tensor outside\
""",
        "leaking tensor in an expression": """\
A tensor made in recorded code has its value there: it is no part of other code.
  found  <applied mul: 2>, recorded in one, at program.py:9: one()
  where  program.py:10: oc.train.forward(kept[0])
  try    assign it to a tensor declared outside of that function, c = oc.declare("c"), or make the tensor outside\
""",
        "format of a primitive that makes no tensor": """\
A primitive that an assignment applies makes no tensor that could have a format.
  found  mul with dtype='float64'
  where  mul, at program.py:6: oc.declare("d")[oc.neutral] += oc.multiply(c, x, logic="i; i => 0", dtype="float64")
  try    convert an operand with oc.cast, or state the format of the assigned tensor\
""",
        "stale primitive": """\
An operation whose reduction an assignment states is read by that assignment.
  found  mul "i; j => ij" of <declared c: ..c.batch..|..c.input..->2>, <placeholder x: 2>, of which an operand has been written since
  where  assignment to d, at program.py:9: oc.declare("d")[oc.neutral] += product
  try    write it in the assignment itself\
""",
        "leaking primitive": """\
An operation whose reduction an assignment states is read by that assignment.
  found  mul "i; j => ij" of <declared c: ..c.batch..|..c.input..->2>, <declared c: ..c.batch..|..c.input..->2>, written in one, at program.py:12: one()
  where  assignment to d, at program.py:11: oc.declare("d")[:] = kept[0]
  try    write it in the assignment itself\
""",
        "assignment outside": """\
Assignments are recorded inside functions decorated with @oc.cd.
  found  an assignment to <declared c: ..c.batch..|..c.input..->2> outside of one
  where  program.py:4: c[:] = 1.0
  try    put the assignment into a function decorated with @oc.cd and compile its result\
""",
        "assignment in another session": """\
Tensors of different sessions do not mix.
  found  <declared c: ..c.batch..|..c.input..->2> of another session assigned to
  where  program.py:7: c[:] = 1.0
  try    build both inside one `with oc.Session():`, or without any\
""",
        "no gradient": """\
Assignments take tensors, merge buffers and numbers.
  found  None
  where  program.py:6: c[:] = oc.tensor([1.0]).grad
  try    a tensor that needs no gradient has None as its .grad: assign gradients of parameters and of tensors that depend on them\
""",
        "no gradient in an operation": """\
Operands are tensors and numbers.
  found  NoneType as an operand of exp
  where  program.py:6: c[:] = oc.exp(oc.tensor([1.0]).grad)
  try    a tensor that needs no gradient has None as its .grad; oc.scan returns the values of the steps, None if they return none, \
and then the last carry\
""",
        "quotients do not compose": """\
Composition is for products and sums: quotients and powers do not compose.
  found  div with logic="@"
  where  program.py:6: c[oc.neutral] += oc.divide(c, c, logic="@")
  try    multiply by oc.reciprocal(b), or write a specification\
""",
        "malformed projections": """\
Projections state an index for each axis, and the range of each variable.
  found  j, which has no range in 'i => j over i<2'
  where  exp, at program.py:6: c[:] = oc.exp(c, projections="i => j over i<2")
  try    write them as in projections="2*o + k; k => o over o<3, k<2"\
""",
        "projections outside": """\
Projections are stated for a primitive that an assignment applies.
  found  exp with projections='i => i over i<2'
  where  exp, at program.py:4: oc.exp(c, projections="i => i over i<2")
  try    inside a function decorated with @oc.cd, write c[oc.neutral] += oc.multiply(a, b, projections="...")\
""",
        "projections beyond an axis": """\
Stated projections stay inside the axes.
  found  positions 1 to 2 of axis 0 of operand 1, whose size is 2, in '1*i + 1 => i over i<2'
  where  assignment to c, at program.py:6: c[:] = oc.exp(x, projections="1*i + 1 => i over i<2")\
""",
        "a plain assignment that reduces": """\
A plain assignment writes each cell once: reductions accumulate.
  found  an assignment whose operands have axes that the target has not
  where  assignment to c, at program.py:6: c[:] = oc.exp(x, logic="i => 0")
  try    write c[oc.neutral] += ..., c[oc.neutral, oc.maximum] = ..., or use oc.einsum\
""",
        "accumulation by an operation that reduces": """\
Accumulation needs an operation with a neutral element.
  found  oc.matmul
  where  program.py:6: c[oc.matmul] = x
  try    use +=, -=, *=, /=, **=, |=, &= or c[oc.maximum] = e, c[oc.minimum] = e, c[oc.primitives.relu_gate] = e\
""",
        "accumulation by a comparison": """\
Accumulation needs an operation with a neutral element.
  found  oc.less
  where  program.py:6: c[oc.neutral, oc.less] = x
  try    use +=, -=, *=, /=, **=, |=, &= or c[oc.maximum] = e, c[oc.minimum] = e, c[oc.primitives.relu_gate] = e\
""",
        "an operator after an accumulation": """\
An assignment names its accumulating operation once.
  found  c[oc.maximum], read or followed by an operator
  where  program.py:6: c[oc.maximum] += x
  try    write c[oc.maximum] = e, or c[oc.neutral, oc.maximum] = e to start afresh\
""",
        "a merge buffer in an expression": """\
A merge buffer, or an operation whose reduction an assignment states, is assigned as it is.
  found  add of <declared c: ..c.batch..|..c.input..->2>.merge, 1.0
  where  program.py:6: c[:] = (c.merge + 1.0) * 2.0
  try    inside a function decorated with @oc.cd, write p.grad += p.grad.merge or c[oc.neutral] += oc.multiply(a, b, logic=...)\
""",
        "a list": """\
Assignments take tensors, merge buffers and numbers.
  found  [1.0, 2.0]
  where  program.py:6: c[:] = [1.0, 2.0]
  try    wrap arrays and lists with oc.tensor(...)\
""",
        "a slice": """\
The length of a slice is known when code is compiled; static indices only move it.
  found  c[i:]
  where  program.py:6: c[oc.static_index("i"):] = 1.0
  try    x[i:i+4] has 4 positions\
""",
        "a section without a title": """\
A section has a title.
  found  oc.section()
  where  program.py:6: with oc.section():
  try    with oc.section("update of", p):\
""",
        "gradients that nothing computes": """\
Every node that code reads is computed by it or stored in the context.
  found  gradient p_grad (program.py:4: p = oc.param("p", init=[1.0, 2.0])): not in the context, and not computed here
         gradient mul_grad (program.py:5: loss = oc.einsum("... => 0", p * p)): not in the context, and not computed here
         gradient einsum_grad (program.py:5: loss = oc.einsum("... => 0", p * p)): not in the context, and not computed here
  where  compiling backprop
  try    put oc.train.grad_update(loss) in front, or its pieces: loss.forward(), loss.zero_grads(), loss.grad[:] = 1, loss.backprop()
         or give gradients values from the host, as in ctx[p.grad] = array\
""",
        "rearranging in place": """\
An assignment that states how axes are rearranged or reduced reads other tensors than it writes.
  found  identity "i => i" of <declared c: ..c.batch..|..c.input..->2>
  where  assignment to c, at program.py:6: c.assign(c, logic="i => i")
  try    assign to another tensor, or compute it apart: c[:] = oc.einsum(spec, c)\
""",
    }
)
