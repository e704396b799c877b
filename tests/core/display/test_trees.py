"""Layout of trees without values; printing never influences inference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session


@oc.op
def layer(x: oc.Tensor, *, hidden: int) -> oc.Tensor:
    return oc.relu(oc.param("w") @ x + oc.param("b", output=[hidden]))


def network() -> oc.Tensor:
    x = oc.placeholder("x", batch=[2], output=[3])
    h = layer(hidden=4, label="L1")(x)
    result: oc.Tensor = oc.einsum("...|... => 0", h * h + 2.0 * h, label="loss")
    return result


def test_shared_expressions_are_shown_once_and_unknown_axes_as_dots() -> None:
    assert str(oc.tree(network())) == snapshot("""\
loss: einsum "...|... => 0" (1)
└─ add (2|4)
   ├─ mul (2|4)
   │  ├─ #1 layer_L1_x: relu (2|4)
   │  │  └─ add (2|4)
   │  │     ├─ matmul (2|4)
   │  │     │  ├─ w_L1: parameter (...,3->...)
   │  │     │  └─ x: placeholder (2|3)
   │  │     └─ b_L1: parameter (...->4)
   │  └─ #1 layer_L1_x, as above
   └─ mul (2|4)
      ├─ 2
      └─ #1 layer_L1_x, as above\
""")


def test_known_shapes_are_shown() -> None:
    loss = network()
    _ = loss.info
    assert str(oc.tree(loss)) == snapshot("""\
loss: einsum "...|... => 0" (1)
└─ add (2|4)
   ├─ mul (2|4)
   │  ├─ #1 layer_L1_x: relu (2|4)
   │  │  └─ add (2|4)
   │  │     ├─ matmul (2|4)
   │  │     │  ├─ w_L1: parameter (3->4)
   │  │     │  └─ x: placeholder (2|3)
   │  │     └─ b_L1: parameter (4)
   │  └─ #1 layer_L1_x, as above
   └─ mul (2|4)
      ├─ 2
      └─ #1 layer_L1_x, as above\
""")


def test_a_tree_is_cut_at_a_depth() -> None:
    assert str(oc.tree(network(), depth=1)) == snapshot("""\
loss: einsum "...|... => 0" (1)
└─ add (2|4)
   └─ … 9 more\
""")


def test_looking_changes_nothing() -> None:
    loss = network()
    before = [(t.shape, t.has_node) for t in (loss, *loss.params)]
    oc.tree(loss)
    repr(loss)
    assert [(t.shape, t.has_node) for t in (loss, *loss.params)] == before
    assert not any(param.shape.is_closed for param in loss.params)


def test_every_kind_of_leaf_is_named() -> None:
    c = oc.declare("c", output=[2])
    parts = oc.tensor([1, 2]) + oc.tensor([3, 4], label="bias") + c + oc.number(1.5, label="half")
    assert str(oc.tree(parts)) == snapshot("""\
add (2)
├─ add (2)
│  ├─ add (2)
│  │  ├─ literal (2) = [1.0 2.0]
│  │  └─ bias: literal (2) = [3.0 4.0]
│  └─ c: declared (...|...->2)
└─ half\
""")


def test_a_deep_expression_is_printed_without_recursion() -> None:
    x = oc.tensor([1.0])
    for _ in range(1200):
        x = x + 1.0
    assert len(str(oc.tree(x)).splitlines()) == 21 + 20 + 1
    assert len(oc.tree(x, depth=None).lines) == 2401
    assert oc.tree(x, depth=None)._repr_html_().count("</details>") == 1200


def test_notebooks_fold_branches_and_escape_names() -> None:
    html = oc.tree(oc.einsum("i->0 => i", oc.tensor([(1, 2)]), label="<x>"))._repr_html_()
    assert html == snapshot("""\
<div style="font-family:monospace">
<details open><summary><b>&lt;x&gt;</b>: einsum &quot;i-&gt;0 =&gt; i&quot; (2)</summary>
<div style="margin-left:1.5em">
<div><b>literal</b> (2-&gt;1) = [1.0 2.0]</div>
</div></details>
</div>\
""")


def test_a_gradient_is_a_leaf() -> None:
    w = oc.param("w", init=1.0)
    assert w.grad is not None
    assert str(oc.tree(w.grad)) == "w_grad: gradient (...->...)"
