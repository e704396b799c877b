"""Graphs of expressions and of routines, and the formats that they are written in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from ocannl_core.display.pictures.graph import Graph
from ocannl_core.display.pictures.nodes import GraphEdge, PictureNode

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session(seed=1), oc.base.settings.overrides(backend="interp"):
        yield


@oc.op
def layer(x: oc.Tensor, *, width: int) -> oc.Tensor:
    return oc.tanh(oc.nn.dense(x, output=[width]))


@oc.op
def network(x: oc.Tensor) -> oc.Tensor:
    return layer(layer(x, width=3), width=1)


def loss_of_network() -> oc.Tensor:
    x = oc.placeholder("x", batch=[4], output=[2])
    loss = oc.einsum("...|... => 0", 0.5 * network(x) ** 2, label="loss")
    oc.Context().compile(oc.train.forward(loss))
    return loss


def test_an_expression_is_drawn_with_its_operands() -> None:
    x = oc.placeholder("x", batch=[4], output=[2])
    y = oc.einsum("...|i => ...|", 2.0 * x + oc.param("b", output=[2], init=0.0), label="y")
    oc.Context().compile(oc.train.forward(y))
    assert str(oc.graph(y)) == snapshot("""\
y
[1] x, 4|2
[2] mul, with 2, 4|2 <- [1]
[3] b, 2
[4] add, 4|2 <- [2], [3]
[5] y, einsum "...|i => ...|", 4| <- [4]\
""")


def test_blocks_at_the_depth_are_one_node_each() -> None:
    loss = loss_of_network()
    assert str(oc.graph(loss, depth=0)) == snapshot("""\
loss
[1] x, 4|2
[2] network, 4|1, 13 parameters <- [1]
[3] power, 4|1 <- [2]
[4] mul, with 0.5, 4|1 <- [3]
[5] loss, einsum "...|... => 0", 1 <- [4]\
""")
    titles = [node.title for node in oc.graph(loss, depth=1).nodes]
    assert titles[1:3] == ["layer", "layer2"]
    assert len(oc.graph(loss).nodes) == len(oc.graph(loss, depth=9).nodes) == 14


def test_a_parameter_is_in_its_block_in_every_application() -> None:
    model = network()
    first, second = (model(oc.placeholder("x", batch=[n], output=[2])) for n in (4, 5))
    oc.Context().compile(oc.train.forward(first) + oc.train.forward(second))
    assert [node.title for node in oc.graph(second, depth=0).nodes] == ["x", "network"]


def test_both_applications_of_a_block_are_drawn() -> None:
    model = network()
    x = oc.placeholder("x", batch=[4], output=[2])
    assert [n.title for n in oc.graph(model(x) + model(2.0 * x), depth=0).nodes] == [
        *("x", "network", "mul", "network", "add")
    ]


def test_a_value_that_blocks_share_is_part_of_none_of_them() -> None:
    @oc.op
    def layer(x: Any) -> Any:
        return oc.nn.dropout(oc.nn.dense(x, output=[4]), rate=0.5)

    x = oc.placeholder("x", batch=[2], output=[4])
    graph = oc.graph(layer(layer(x)), depth=1)
    (seed,) = (k for k, node in enumerate(graph.nodes) if node.title == "seed")
    assert graph.nodes[seed].group == ()
    inner = {node.group for node in graph.nodes if node.title == "dense"}
    assert len(inner) == 2
    first, _ = (k for k, node in enumerate(graph.nodes) if node.title == "dense")
    readers = {edge.target for edge in graph.edges if edge.source == first}
    assert {graph.nodes[each].group for each in readers} == {graph.nodes[first].group}


def test_kernels_of_a_training_step_fit_a_page() -> None:
    x = oc.placeholder("x", batch=[4], output=[8])
    y = oc.nn.mlp(x, hidden=[8] * 6, output=[3])
    loss = oc.nn.mean_squared_error(y, oc.tensor(np.ones((4, 3)), batch_axes=1))
    step = oc.Context("interp").compile(oc.train.Adam(learning_rate=0.1).minimize(loss))
    root = ElementTree.fromstring(oc.graph(step).svg())
    rows: dict[str, float] = {}
    for box in root.findall(f"{SVG}g/{SVG}rect"):
        bottom = float(box.get("y", "")) + float(box.get("height", "")) / 2
        rows[f"{bottom:.0f}"] = rows.get(f"{bottom:.0f}", 0.0) + float(box.get("width", ""))
    assert max(rows.values()) <= 1000
    titles = [each.text or "" for each in root.iter(f"{SVG}text") if each.get("font-weight")]
    assert max(len(each) for each in titles if each[0].isdigit()) <= 28


def test_shapes_are_inferred_before_they_are_drawn() -> None:
    y = network(oc.placeholder("x", batch=[4], output=[2]))
    drawn = oc.graph(y, depth=1)
    assert [node.lines for node in drawn.nodes] == [
        ("x", "4|2"),
        ("layer", "4|3", "9 parameters"),
        ("layer2", "4|1", "4 parameters"),
    ]


def test_an_expression_without_the_size_of_a_parameter_is_drawn_and_stays_open() -> None:
    w = oc.param("w")
    y = w @ oc.placeholder("x", batch=[4], output=[2])
    before = str(w.shape)
    assert oc.graph(y).nodes[0].details == ("...,2->...",)
    assert str(w.shape) == before


def test_kernels_are_drawn_with_the_memory_between_them() -> None:
    x = oc.placeholder("x", batch=[4], output=[2])
    w = oc.param("w", output=[3])
    loss = oc.einsum("...|... => 0", oc.exp(w @ x), label="loss")
    with oc.base.settings.overrides(backend="interp"):
        step = oc.Context().compile(oc.train.grad_update(loss))
    drawn = oc.graph(step)
    kinds = [node.kind for node in drawn.nodes]
    assert kinds.count("kernel") == len(step.plan.kernels)
    memory = {node.title for node in drawn.nodes if node.kind == "memory"}
    assert memory == {"w", "x", "loss", "w_grad"}
    assert all(edge.source < edge.target for edge in drawn.edges)
    labels = {edge.label for edge in drawn.edges}
    assert labels - {""}  # memory of the routine's own


def test_the_steps_of_a_loop_are_a_group() -> None:
    xs = oc.placeholder("xs", batch=[5, 4], output=[3])
    _, last = oc.scan(lambda h, x: (oc.tanh(h + x), None), 0.0, xs)
    step = oc.Context().compile(oc.train.forward(last))
    groups = {node.group[0][0] for node in oc.graph(step).nodes if node.group}
    assert any(text.startswith("5 times") for text in groups)


def hostile() -> Graph:
    """Return a graph with every character that a format gives a meaning."""
    names = ['a"b', "c\\d", "<e> & f", "g|h]", "#i;", "j\nk", "end"]
    nodes = [PictureNode(n, (n,), group=(('x"<y>', k % 2),), note=n) for k, n in enumerate(names)]
    return Graph('t"<', tuple(nodes), (GraphEdge(0, 1, 'l"|<'), GraphEdge(1, 2)))


def test_characters_that_xml_excludes_leave_a_picture_well_formed() -> None:
    label = "a\x00\x1b\x0b\ud800\ufffe\uffff<&b"
    x = oc.tensor([1.0, 2.0], label=label)
    root = ElementTree.fromstring(oc.graph(x * 2.0).svg())
    text = " ".join(root.itertext())
    assert r"a\x00\x1b\x0b\ud800\ufffe\uffff<&b" in text
    ElementTree.fromstring(oc.curves({label: [1.0, 2.0]}).svg())
    ElementTree.fromstring(oc.heatmap(np.eye(2), title=label).svg())


def test_texts_are_escaped_in_every_format() -> None:
    drawn = hostile()
    root = ElementTree.fromstring(drawn.svg())
    shown = [each.text for each in root.iter(f"{SVG}text")]
    assert "<e> & f" in shown
    assert 'a"b' in shown
    quoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", drawn.dot())
    assert '"' not in quoted.replace("\n", "")
    assert not re.search(r'"[^"\n]*[<>][^"\n]*"', drawn.mermaid().replace("<br/>", ""))


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    text = oc.graph(loss_of_network()).svg()
    assert "<script" not in text
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


def test_nodes_of_a_picture_do_not_overlap() -> None:
    root = ElementTree.fromstring(oc.graph(loss_of_network()).svg())
    boxes = [
        [float(each.attrib[key]) for key in ("x", "y", "width", "height")]
        for each in root.iter(f"{SVG}rect")
        if "x" in each.attrib
    ]
    assert len(boxes) == 14
    for n, (x, y, w, h) in enumerate(boxes):
        for x2, y2, w2, h2 in boxes[:n]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


@pytest.mark.parametrize(
    ("name", "start"), [("g.svg", "<svg"), ("g.dot", "digraph"), ("g.mmd", "flowchart")]
)
def test_a_file_has_the_format_of_its_name(tmp_path: Path, name: str, start: str) -> None:
    oc.graph(loss_of_network()).save(tmp_path / name)
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_other_endings_depths_and_subjects_are_refused(tmp_path: Path) -> None:
    drawn = oc.graph(loss_of_network())
    with pytest.raises(oc.UsageError, match=r"one of \.svg, \.dot"):
        drawn.save(tmp_path / "g.png")
    with pytest.raises(oc.UsageError, match="number of nested blocks"):
        oc.graph(loss_of_network(), depth=-1)
    with pytest.raises(oc.UsageError, match="of tensors and of routines"):
        oc.graph(np.zeros(3))  # type: ignore[arg-type]
