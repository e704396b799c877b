"""Values in tables and trees, on every device."""

from __future__ import annotations

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc


@pytest.fixture
def ctx(target: str) -> oc.Context:
    oc.reset()
    return oc.Context(target)


def trained(ctx: oc.Context) -> tuple[oc.Tensor, oc.Tensor]:
    """Return a hidden tensor and a loss whose gradients have been computed."""
    w = oc.param("w", init=[(1.0, -2.0), (0.5, 3.0)])
    x = oc.placeholder("x", batch=[2], output=[2])
    h = oc.relu(w @ x, label="h")
    loss = oc.einsum("...|... => 0", h * h, label="loss")
    step = ctx.compile(oc.train.grad_update(loss))
    ctx.init_params(loss)
    ctx[x] = [[1.0, 1.0], [2.0, 0.5]]
    step()
    return h, loss


def test_a_tree_shows_the_values_and_gradients_that_the_context_stores(ctx: oc.Context) -> None:
    _, loss = trained(ctx)
    assert str(oc.tree(loss, ctx)) == snapshot("""\
loss: einsum "...|... => 0" (1) = [19.5]
└─ mul (2|2)
   ├─ #1 h: relu (2|2)
   │  └─ matmul (2|2)
   │     ├─ w: parameter (2->2) = [1.0 -2.0; 0.5 3.0], gradient [4.0 1.0; 17.0 9.5]
   │     └─ x: placeholder (2|2) = [1.0 1.0; 2.0 0.5]
   └─ #1 h, as above\
""")


def test_all_values_and_gradients_can_be_computed_once_more(ctx: oc.Context) -> None:
    h, loss = trained(ctx)
    before = repr(ctx)
    assert str(oc.tree(loss, ctx, recompute=True)) == snapshot("""\
loss: einsum "...|... => 0" (1) = [19.5], gradient [1.0]
└─ mul (2|2) = [0.00 12.25; 1.00 6.25], gradient [1.0 1.0; 1.0 1.0]
   ├─ #1 h: relu (2|2) = [0.0 3.5; 1.0 2.5], gradient [0.0 7.0; 2.0 5.0]
   │  └─ matmul (2|2) = [-1.0 3.5; 1.0 2.5], gradient [0.0 7.0; 2.0 5.0]
   │     ├─ w: parameter (2->2) = [1.0 -2.0; 0.5 3.0], gradient [4.0 1.0; 17.0 9.5]
   │     └─ x: placeholder (2|2) = [1.0 1.0; 2.0 0.5]
   └─ #1 h, as above\
""")
    assert repr(ctx) == before
    with pytest.raises(oc.LinkError, match="keep="):
        oc.table(h, ctx)
    assert str(oc.table(h, ctx, recompute=True)) == snapshot("""\
h: 2|2, float32
       │ output
 batch │   0    1
───────┼──────────
     0 │ 0.0  3.5
     1 │ 1.0  2.5\
""")


def test_code_recorded_after_printing_computes_its_operands(ctx: oc.Context) -> None:
    x = oc.placeholder("x", output=[2])
    ctx[x] = [1.0, 2.0]
    y = x * 3.0
    oc.table(y, ctx, recompute=True)
    total = oc.declare("total", output=[2])

    @oc.cd
    def add() -> None:
        nonlocal total
        total += y

    ctx.compile(add())()
    np.testing.assert_array_equal(ctx[total], [3.0, 6.0])


def test_static_indices_get_values_to_compute_with(ctx: oc.Context) -> None:
    i = oc.static_index("i", range=3)
    data = oc.tensor([[1, 2], [3, 4], [5, 6]], batch_axes=1)
    row = data[i] * 1.0
    assert "5.0  6.0" in str(oc.table(row, ctx, recompute=True, indices={i: 2}))
    with pytest.raises(oc.UsageError, match=r"without a value: i(\n|.)*indices=\{i: 0"):
        oc.table(row, ctx, recompute=True)


def test_large_tensors_are_summed_up_in_trees(ctx: oc.Context) -> None:
    x = oc.placeholder("x", output=[100])
    ctx[x] = np.arange(100)
    assert str(oc.tree(x, ctx)) == "x: placeholder (100) = 0.0 to 99.0, mean 49.5"


def test_a_table_of_a_tensor_without_a_value_names_the_fix(ctx: oc.Context) -> None:
    w = oc.param("w", init=1.0, output=[2], input=[])
    with pytest.raises(oc.LinkError, match="init_params"):
        oc.table(w, ctx)
    ctx.init_params(w)
    assert str(oc.table(w, ctx)) == snapshot("""\
w: 2, float32
 output
   0    1
──────────
 1.0  1.0\
""")
