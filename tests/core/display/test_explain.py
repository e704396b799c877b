"""Explanations of shapes and of routines."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.shape.language.shape_terms import RowKind
from ocannl_core.shape.solving.derivations import Certainty

NETWORK = """\
import ocannl_core as oc
x = oc.placeholder("x", batch=[32], output=[2])
w1 = oc.param("w1")
h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
w2 = oc.param("w2")
difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])
loss = oc.einsum("...|... => 0", difference * difference)
"""


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session
    linecache.cache.pop("program.py", None)


def run(text: str) -> SimpleNamespace:
    """Return the variables of a program whose lines messages show as those of program.py."""
    linecache.cache["program.py"] = (len(text), None, text.splitlines(keepends=True), "program.py")
    variables: dict[str, object] = {}
    exec(compile(text, "program.py", "exec"), variables)
    return SimpleNamespace(**variables)


def closed(text: str) -> SimpleNamespace:
    """Return the variables of a program after closing its last tensor."""
    model = run(text)
    tensors = [value for value in vars(model).values() if isinstance(value, oc.Tensor)]
    assert tensors[-1].info
    return model


def test_the_explanation_of_an_open_parameter_names_axes_and_bounds() -> None:
    model = run(NETWORK)
    assert str(oc.explain(model.w1)) == snapshot("""\
w1: ..w1.input..,2->..w1.output..
  made by parameter w1, at program.py:3: w1 = oc.param("w1")
  batch row: no axes, stated
  input row: at least 1 axis, ..w1.input..,2
    by input row of the first operand, against the output row of the second operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    bound: an operand has no further axes, so that none are needed
    bound: no operation computes the tensor: closing takes this from its uses
  input axis -1: 2, inferred
    by input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
  output row: open
    bound: ..matmul.output.. has at least the axes of ..w1.output.. [output row of the first operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))]
    bound: no operation computes the tensor: closing takes this from its uses\
""")


def test_a_parameter_after_closing_names_constraints_and_guesses() -> None:
    model = closed(NETWORK)
    assert str(oc.explain(model.w1)) == snapshot("""\
w1: 2->8
  made by parameter w1, at program.py:3: w1 = oc.param("w1")
  batch row: no axes, stated
  input row: 1 axis, guessed
    by input row of the first operand, against the output row of the second operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    guessed in stage `rows of leaves`: a tensor that no operation computes has as many axes as its uses allow or imply; none without informative uses
  input axis -1: 2, inferred
    by input axis -1 of the first operand, against the output axis -1 of the second operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
  output row: 1 axis, guessed
    guessed in stage `rows of leaves`: a tensor that no operation computes has as many axes as its uses allow or imply; none without informative uses
  output axis -1: 8, guessed
    by output axis -1 of the first operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    and output axis -1 of the first operand of add, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    and output axis -1 of the second operand of add, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    guessed in stage `sizes of leaves`: a tensor that no operation computes takes sizes from its uses; 1 without informative uses\
""")


def test_the_explanation_of_a_result_names_its_default() -> None:
    model = closed(NETWORK)
    assert str(oc.explain(model.difference)) == snapshot("""\
sub: 32|3
  made by sub, at program.py:6: difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])
  batch row: 1 axis, guessed
    by batch row of the first operand of sub, at program.py:6: difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])
    and batch row of the second operand of matmul, at program.py:6: difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])
    and batch row of the first operand of relu, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
    and 2 more
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  batch axis -1: 32, inferred
    by batch axis -1 of the second operand of matmul, at program.py:4: h = oc.relu(w1 @ x + oc.param("b1", output=[8]))
  input row: no axes, guessed
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  output row: 1 axis, guessed
    by output row of the second operand of sub, at program.py:6: difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  output axis -1: 3, inferred
    by output axis -1 of the second operand of sub, at program.py:6: difference = w2 @ h - oc.placeholder("target", batch=[32], output=[3])\
""")


def test_stated_sizes_are_stated() -> None:
    model = run(NETWORK)
    assert str(oc.explain(model.x)) == snapshot("""\
x: 32|2
  made by placeholder x, at program.py:2: x = oc.placeholder("x", batch=[32], output=[2])
  batch row: 1 axis, stated
  batch axis -1: 32, stated
  input row: no axes, stated
  output row: 1 axis, stated
  output axis -1: 2, stated\
""")
    (batch, inputs, output) = oc.explain(model.x).rows
    assert {batch.certainty, inputs.certainty, output.certainty} == {Certainty.STATED}
    assert [axis.dim.n for axis in (*batch.axes, *output.axes)] == [32, 2]


def test_an_open_size_is_bounded_by_its_uses_and_by_positions() -> None:
    model = run("""\
import ocannl_core as oc
q = oc.einsum("i;j => ij", oc.param("a"), oc.param("b"))
z = q * oc.placeholder("x", output=[1, 7])
y = oc.einsum("2i => i", q)
""")
    assert str(oc.explain(model.q)) == snapshot("""\
einsum: ..einsum.batch..|..einsum.input..->..einsum.output..,$57,$58
  made by einsum "i; j => ij", at program.py:2: q = oc.einsum("i;j => ij", oc.param("a"), oc.param("b"))
  batch row: open
    bound: ..mul.batch.. has at least the axes of ..einsum.batch.. [batch row of the first operand of mul, at program.py:3: z = q * oc.placeholder("x", output=[1, 7])]
    bound: ..$69.. has at least the axes of ..einsum.batch.. [batch row of the first operand of einsum "2i => i", at program.py:4: y = oc.einsum("2i => i", q)]
    bound: an operand has no further axes, so that none are needed
  input row: open
    bound: ..mul.input.. has at least the axes of ..einsum.input.. [input row of the first operand of mul, at program.py:3: z = q * oc.placeholder("x", output=[1, 7])]
    bound: ..$73.. has at least the axes of ..einsum.input.. [input row of the first operand of einsum "2i => i", at program.py:4: y = oc.einsum("2i => i", q)]
    bound: an operand has no further axes, so that none are needed
  output row: at least 2 axes, ..einsum.output..,$57,$58
    by output row of the result of einsum "i; j => ij", at program.py:2: q = oc.einsum("i;j => ij", oc.param("a"), oc.param("b"))
    bound: ..mul.output.. has at least the axes of ..einsum.output.. [output row of the first operand of mul, at program.py:3: z = q * oc.placeholder("x", output=[1, 7])]
    bound: ..$70.. has at least the axes of ..einsum.output.. [output row of the first operand of einsum "2i => i", at program.py:4: y = oc.einsum("2i => i", q)]
    bound: an operand has no further axes, so that none are needed
  output axis -2: open
    bound: at least 3 [output axis -2 of the first operand of einsum "2i => i", at program.py:4: y = oc.einsum("2i => i", q)]
    bound: an operand has size 1, so that it need not be larger [output axis -2 of the second operand of mul, at program.py:3: z = q * oc.placeholder("x", output=[1, 7])]
    bound: equal to i, unless that is 1 [output axis -2 of the result of einsum "i; j => ij", at program.py:2: q = oc.einsum("i;j => ij", oc.param("a"), oc.param("b"))]
  output axis -1: open
    bound: 7 or 1 [output axis -1 of the first operand of mul, at program.py:3: z = q * oc.placeholder("x", output=[1, 7])]
    bound: i or 1 [output axis -1 of the first operand of einsum "2i => i", at program.py:4: y = oc.einsum("2i => i", q)]
    bound: equal to j, unless that is 1 [output axis -1 of the result of einsum "i; j => ij", at program.py:2: q = oc.einsum("i;j => ij", oc.param("a"), oc.param("b"))]\
""")
    first, second = oc.explain(model.q).rows[2].axes
    assert first.certainty is second.certainty is Certainty.OPEN
    assert [bound.text for bound in first.bounds] == snapshot(
        [
            "at least 3",
            "an operand has size 1, so that it need not be larger",
            "equal to i, unless that is 1",
        ]
    )
    assert [bound.text for bound in second.bounds] == snapshot(
        ["7 or 1", "i or 1", "equal to j, unless that is 1"]
    )


def test_an_open_size_of_a_window_shows_the_formula_that_waits() -> None:
    model = run("""\
import ocannl_core as oc
kernel = oc.param("kernel")
y = oc.einsum("i<+k; k => i", oc.placeholder("x", output=[7]), kernel)
""")
    (axis,) = oc.explain(model.y).rows[2].axes
    assert [str(bound) for bound in axis.bounds] == snapshot(
        [
            '7 = i<+k [output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:3: y = oc.einsum("i<+k; k => i", oc.placeholder("x", output=[7]), kernel)]'
        ]
    )


def test_a_size_computed_from_a_window_names_the_axes_that_it_follows_from() -> None:
    model = run("""\
import ocannl_core as oc
x = oc.placeholder("x", output=[7])
y = oc.einsum("i<+k; k => i", x, oc.param("kernel", output=[3]))
""")
    (axis,) = oc.explain(model.y).rows[2].axes
    assert [str(origin) for origin in axis.because] == snapshot(
        [
            'output axis -1 of the first operand of einsum "i<+k; k => i", at program.py:3: y = oc.einsum("i<+k; k => i", x, oc.param("kernel", output=[3]))',
            'output axis -1 of the second operand of einsum "i<+k; k => i", at program.py:3: y = oc.einsum("i<+k; k => i", x, oc.param("kernel", output=[3]))',
        ]
    )


@pytest.mark.parametrize("name", ["w1", "h", "w2", "difference", "loss"])
def test_explaining_does_not_influence_inference(name: str) -> None:
    def shapes(*, explained: bool) -> list[str]:
        with oc.Session(seed=42):
            model = run(NETWORK)
            tensors = [model.w1, model.h, model.w2, model.difference, model.loss]
            before = [str(tensor.shape) for tensor in tensors]
            for _ in range(2 if explained else 0):
                str(oc.explain(getattr(model, name)))
            during = [str(tensor.shape) for tensor in tensors]
            assert before == during
            assert model.loss.info
            return [str(tensor.shape) for tensor in tensors]

    assert shapes(explained=True) == shapes(explained=False)


def test_explaining_leaves_the_label_open() -> None:
    model = run("import ocannl_core as oc\nx = oc.number(2.0) + 1.0\n")
    oc.explain(model.x)
    model.x.relabel(("sum",))
    assert model.x.label == ("sum",)


def test_a_failed_operation_leaves_no_explanation() -> None:
    model = run(NETWORK)
    before = oc.explain(model.w1)
    with pytest.raises(oc.ShapeError):
        model.w1 @ oc.placeholder("z", output=[5])
    assert oc.explain(model.w1) == before


def test_a_deep_network_shows_the_nearest_constraints_and_keeps_all() -> None:
    model = closed("""\
import ocannl_core as oc
y = oc.placeholder("x", batch=[32], output=[2])
for _ in range(20):
    y = oc.relu(y)
""")
    explained = oc.explain(model.y)
    (axis,) = explained.rows[0].axes
    assert len(axis.because) == 20 or len(axis.because) == 1  # one line, one operation
    assert len(str(explained).splitlines()) < 30


def test_a_circle_is_a_guess_of_its_own_stage() -> None:
    model = closed("""\
import ocannl_core as oc
a = oc.einsum("i;j => ij", oc.uniform(), oc.uniform())
b = oc.relu(a)
""")
    assert str(oc.explain(model.b)) == snapshot("""\
relu: 1,1
  made by relu, at program.py:3: b = oc.relu(a)
  batch row: no axes, guessed
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  input row: no axes, guessed
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  output row: 2 axes, guessed
    by output row of the first operand of relu, at program.py:3: b = oc.relu(a)
    and output row of the result of einsum "i; j => ij", at program.py:2: a = oc.einsum("i;j => ij", oc.uniform(), oc.uniform())
    guessed in stage `rows`: a row has no more axes than its operands and uses require
  output axis -2: 1, guessed
    guessed in stage `circles`: variables in a cycle of refinements are equal, and so are a size and its only operand, if that has no other use
    guessed in stage `remaining sizes`: a size is as small as the accessed positions allow
  output axis -1: 1, guessed
    guessed in stage `circles`: variables in a cycle of refinements are equal, and so are a size and its only operand, if that has no other use
    guessed in stage `remaining sizes`: a size is as small as the accessed positions allow\
""")


def test_a_routine_lists_nodes_with_mode_reason_and_bytes_and_kernels_with_titles() -> None:
    pytest.importorskip("ocannl_interp")
    model = run("""\
import ocannl_core as oc
x = oc.placeholder("x", batch=[4], output=[2])
y = oc.relu(oc.param("w", output=[3]) @ x)
step = oc.Context("interp").compile(oc.train.forward(y))
""")
    explained = oc.explain(model.step)
    assert str(explained) == snapshot("""\
routine forward: 1 kernels, 104 bytes
nodes
  x       float32 4 x 2  32 bytes   on device  because its cells come from the host
  w       float32 3 x 2  24 bytes   on device  because it is a parameter
  matmul  float32 4 x 3  no memory  virtual    because those that read it compute its cells themselves
  relu    float32 4 x 3  48 bytes   on device  because it was named in keep=, or is a result or a parameter's gradient that is kept by default
kernels
  1. relu[b, o] = relu(matmul[b, o]) (writes relu)\
""")
    assert explained.nbytes == sum(node.nbytes for node in explained.nodes)
    assert [kernel.arguments for kernel in explained.kernels] == snapshot([("w", "x", "relu")])


def test_a_tensor_whose_stores_are_dead_is_listed_with_the_reason() -> None:
    pytest.importorskip("ocannl_interp")
    model = run("""\
import ocannl_core as oc
x = oc.placeholder("x", output=[2])
table = oc.exp(x)
row = oc.arange(2) == 5.0
y = oc.where(row, table * table + table, x)
step = oc.Context("interp").compile(oc.train.forward(y))
""")
    explained = oc.explain(model.step)
    (dead,) = (node for node in explained.nodes if node.name == "exp")
    assert (dead.reason, dead.nbytes) == ("nothing that is stored depends on it", 0)
    assert dead.advice == "name it in keep= to store it"
    assert model.step.loop_ir == snapshot("""\
routine forward(x: float32[2], where: float32[2]):
    # where[o] = where(equal[o], add[o], x[o])
    for o in range(2):
        where[o] = x[o]\
""")


def test_a_dead_store_is_explained_by_the_remaining_one() -> None:
    pytest.importorskip("ocannl_interp")
    model = run("""\
import ocannl_core as oc
x = oc.placeholder("x", output=[2])
first, second = oc.declare("first"), oc.declare("second")

@oc.cd
def code(x, first, second):
    first[:] = oc.exp(x)
    first[:] = oc.sin(x)
    second[:] = first * first

step = oc.Context("interp").compile(code(x, first, second), keep=[second])
""")
    assert str(oc.explain(model.step)) == snapshot("""\
routine code: 2 kernels, 24 bytes
nodes
  x         float32 2  8 bytes  on device  because its cells come from the host
  first_x   float32 2  8 bytes  on device  because it keeps its value from one call to the next
  second_x  float32 2  8 bytes  on device  because it keeps its value from one call to the next
kernels
  1. first_x[o] = sin(x[o]) (writes first_x)
  2. second_x[o] = first_x[o] * first_x[o] (writes second_x)\
""")
    assert model.step.loop_ir == snapshot("""\
routine code(x: float32[2], first_x: float32[2], second_x: float32[2]):
    # first_x[o] = sin(x[o])
    for o in range(2):
        first_x[o] = sin(x[o])
    # second_x[o] = first_x[o] * first_x[o]
    for o in range(2):
        second_x[o] = first_x[o] * first_x[o]\
""")


def test_explaining_other_objects_than_tensors_and_routines_is_refused() -> None:
    with pytest.raises(oc.UsageError, match="Tensors, blocks and routines can be explained"):
        oc.explain(3)  # type: ignore[call-overload]


def test_the_rows_come_in_the_order_in_which_a_shape_is_written() -> None:
    model = run(NETWORK)
    kinds = [row.kind for row in oc.explain(model.x).rows]
    assert kinds == [RowKind.BATCH, RowKind.INPUT, RowKind.OUTPUT]
