"""Layout of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc


@pytest.fixture(autouse=True)
def session() -> Iterator[oc.Session]:
    with oc.Session(seed=42) as session:
        yield session


def text(tensor: oc.Tensor, **options: int) -> str:
    """Return a table without the spaces that end its lines."""
    lines = str(oc.table(tensor, **options)).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def test_a_weight_has_outputs_down_and_inputs_across() -> None:
    assert text(oc.tensor([(1, 2, 3), (4, 5, 6.25)], label="w")) == snapshot("""\
w: 3->2, float32
        │ input
 output │    0     1     2
────────┼──────────────────
      0 │ 1.00  2.00  3.00
      1 │ 4.00  5.00  6.25\
""")


def test_a_vector_is_one_row_and_its_basis_is_shown() -> None:
    assert text(oc.tensor(np.arange(4), basis="rgba", label="x")) == snapshot("""\
x: 4:rgba, int64
 output rgba
 0  1  2  3
─────────────
 0  1  2  3\
""")


def test_a_number_stands_beside_the_name() -> None:
    assert text(oc.tensor(0.5, label="s")) == "s: (), float32 = 0.5"


def test_a_table_of_a_tensor_without_cells_states_that() -> None:
    assert text(oc.tensor(np.zeros((2, 0)))) == "literal: 2,0, float32, no cells"


def test_a_batch_of_matrices_is_a_block_for_each() -> None:
    cells = np.arange(12).reshape(2, 2, 3) / 2
    assert text(oc.tensor(cells, batch_axes=1, input_axes=1, label="m")) == snapshot("""\
m: 2|3->2, float32

batch 0
        │ input
 output │   0    1    2
────────┼───────────────
      0 │ 0.0  0.5  1.0
      1 │ 1.5  2.0  2.5

batch 1
        │ input
 output │   0    1    2
────────┼───────────────
      0 │ 3.0  3.5  4.0
      1 │ 4.5  5.0  5.5\
""")


def test_long_axes_are_shown_at_both_ends() -> None:
    cells = np.arange(1000).reshape(20, 50)
    assert text(oc.tensor(cells, batch_axes=1, label="data"), edge=2) == snapshot("""\
data: 20|50, int64
       │ output
 batch │   0    1  …   48   49
───────┼───────────────────────
     0 │   0    1  …   48   49
     1 │  50   51  …   98   99
     … │   …    …  …    …    …
    18 │ 900  901  …  948  949
    19 │ 950  951  …  998  999\
""")


def test_of_many_blocks_the_outermost_are_shown() -> None:
    cells = np.arange(300).reshape(10, 10, 1, 3)
    assert text(oc.tensor(cells, batch_axes=2, label="m"), edge=1) == snapshot("""\
m: 10,10|1,3, int64

batch 0, 0
                 │ output (2 of 2)
 output (1 of 2) │ 0  1  2
─────────────────┼─────────────────
               0 │ 0  1  2

…

batch 0, 9
                 │ output (2 of 2)
 output (1 of 2) │  0   1   2
─────────────────┼─────────────────
               0 │ 27  28  29

…

batch 9, 0
                 │ output (2 of 2)
 output (1 of 2) │   0    1    2
─────────────────┼─────────────────
               0 │ 270  271  272

…

batch 9, 9
                 │ output (2 of 2)
 output (1 of 2) │   0    1    2
─────────────────┼─────────────────
               0 │ 297  298  299\
""")


def test_settings_limit_the_shown_cells() -> None:
    third = oc.tensor([1 / 3] * 5)
    assert "0.3333" in text(third)
    with oc.base.settings.overrides(print_decimals=2, print_edge=1):
        assert text(third).splitlines()[-1] == " 0.33  …  0.33"
    assert "0.333333 " in text(third, decimals=6)


@pytest.mark.parametrize("options", [{"decimals": 0}, {"edge": -1}])
def test_counts_are_positive(options: dict[str, int]) -> None:
    with pytest.raises(oc.UsageError, match="is a positive number"):
        oc.table(oc.tensor([1]), **options)


def test_cells_that_only_a_context_has_need_one() -> None:
    with pytest.raises(oc.UsageError, match="are in a context") as caught:
        oc.table(oc.param("w", init=1.0))
    assert "oc.table(x, ctx)" in caught.value.fix


@pytest.mark.parametrize("show", [oc.table, oc.tree])
def test_tensors_are_printed(show: Callable[[object], object]) -> None:
    with pytest.raises(oc.UsageError, match="first the tensor"):
        show([1, 2])


class Balance(HTMLParser):
    """Collector of open tags and the texts between tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data)


def test_notebooks_show_the_same_cells_escaped() -> None:
    table = oc.table(oc.tensor([(1, 2), (3, 4)], basis=["<b>", None], label="w & <i>"))
    page = Balance()
    page.feed(table._repr_html_())
    assert page.open == []
    assert page.texts == snapshot(
        [
            "w & <i>: 2->2:<b>, float32",
            "input",
            "output <b>",
            "0",
            "1",
            "0",
            "1.0",
            "2.0",
            "1",
            "3.0",
            "4.0",
        ]
    )
    assert "<i>" not in table._repr_html_()
    assert "script" not in table._repr_html_()


def test_a_table_of_blocks_is_a_caption_and_a_table_for_each() -> None:
    page = Balance()
    page.feed(oc.table(oc.tensor(np.zeros((10, 2, 1))), edge=1)._repr_html_())
    assert page.open == []
    assert [t for t in page.texts if t.startswith(("output 0", "output 9", "…"))] == snapshot(
        ["output 0", "…", "output 9"]
    )
