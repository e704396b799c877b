"""Summaries: the blocks of a model, their shapes, parameters, bytes and operations."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    with oc.Session(seed=1), oc.settings.overrides(backend="interp"):
        yield


@oc.op
def network(x: oc.Tensor) -> oc.Tensor:
    return oc.nn.dense(oc.relu(oc.nn.dense(x, output=[8])), output=[2])


def test_a_model_is_a_table_of_its_blocks() -> None:
    x = oc.placeholder("x", batch=[16], output=[4])
    assert str(oc.summary(network(x))) == snapshot("""\
block       shape  parameters  bytes  operations
────────────────────────────────────────────────
network     16|2           58    232       1,824
  dense     16|8           40    160       1,152
    weight  4->8           32    128
    bias    8               8     32
  dense2    16|2           18     72         544
    weight  8->2           16     64
    bias    2               2      8
────────────────────────────────────────────────
58 parameters, 232 bytes; 1,824 operations forward\
""")


def test_operations_are_counted_by_the_domains_of_the_code() -> None:
    a, b = oc.tensor(np.ones((3, 5))), oc.tensor(np.ones((5, 7)))
    product = oc.einsum("ij; jk => ik", a, b)
    assert oc.summary(product).operations == 2 * 3 * 5 * 7
    assert oc.summary(oc.exp(product)).operations == 2 * 3 * 5 * 7 + 3 * 7
    assert oc.summary(a.T).operations == 0


def test_the_steps_of_a_loop_count_once_each() -> None:
    xs = oc.placeholder("xs", batch=[6, 4], output=[3])
    _, last = oc.scan(lambda h, x: (oc.tanh(h + x), None), 0.0, xs)
    assert oc.summary(last).operations == 6 * 4 * 3 * 2


def test_an_evaluation_shows_the_parameters_of_training() -> None:
    model = network()
    model(oc.placeholder("x", batch=[16], output=[4]))
    with oc.evaluation():
        result = model(oc.placeholder("other", batch=[2], output=[4]))
    found = oc.summary(result)
    assert [row.name for row in found.rows if not row.is_parameter] == [
        *("network", "dense", "dense2")
    ]
    assert found.parameters == 58


def test_shared_parameters_count_once_and_operations_twice() -> None:
    model = network()
    x = oc.placeholder("x", batch=[16], output=[4])
    once = oc.summary(model(x))
    twice = oc.summary(model(x) + model(2.0 * x))
    assert twice.parameters == once.parameters
    assert twice.rows[0].operations == 2 * once.operations


def test_untrained_parameters_and_statistics_are_counted() -> None:
    x = oc.placeholder("x", batch=[16], output=[4])
    fixed = oc.param("fixed", output=[4], requires_grad=False)
    found = oc.summary(oc.nn.batch_norm(x * fixed))
    assert (found.parameters, found.trained) == (12, 8)
    assert found.nbytes == 4 * (12 + 4 + 4) + 4
    assert "(4 of them not trained)" in str(found)
    assert found.rows[0].name == "fixed"


def test_the_table_is_html_in_notebooks() -> None:
    text = oc.summary(network(oc.placeholder("x", batch=[16], output=[4])))._repr_html_()
    root = ElementTree.fromstring(f"<div>{text}</div>")
    assert len(list(root.iter("tr"))) == 8


def test_only_tensors_have_a_summary() -> None:
    with pytest.raises(oc.UsageError):
        oc.summary(network)  # type: ignore[arg-type]


def test_repeated_layers_count_once_for_each_repetition() -> None:
    x = oc.placeholder("x", batch=[16], output=[4])
    block = oc.nn.dense(output=[4])
    once = oc.summary(oc.nn.dense(output=[4])(x))
    often = oc.summary(oc.nn.repeat_layers(block, x, layers=3))
    assert often.rows[0].shape == once.rows[0].shape == "16|4"
    assert often.rows[0].operations == 3 * once.rows[0].operations == often.operations
    assert often.rows[0].parameters == 3 * once.rows[0].parameters


def test_blocks_in_loops_over_time_have_shapes_and_operations() -> None:
    x = oc.placeholder("x", batch=[5, 2], output=[4])
    y, _ = oc.nn.rnn(x, width=3, layers=2)
    rows = [row for row in oc.summary(y).rows if not row.is_parameter]
    assert all(row.shape and row.operations for row in rows), rows
    assert sum(row.operations for row in rows if row.depth == 0) == oc.summary(y).operations
