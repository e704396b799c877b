"""Keys of subscripts: the axes that they address, and what they refuse, with the user's line."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from tests.support.messages import run

_PROGRAM = """\
import numpy as np
i = oc.static_index("i", range=8)
x = oc.placeholder("x", batch=[4], output=[3, 5])
c = oc.declare("c", batch=[8], output=[5])
"""


def complaint(line: str) -> str:
    """Return the message of the error that a line raises, written in recorded code."""
    with pytest.raises(oc.OcannlError) as caught:
        run(
            f"{_PROGRAM}@oc.cd\ndef code():\n    {line}\noc.Context('interp').compile(code(), bindings=[i])\n"
        )
    return str(caught.value)


BAD_KEYS = [
    "x[4]",
    "x[-5]",
    "x[0, 0, 0, 0]",
    "x[..., None, ..., 0]",
    "x[1.0]",
    "x[np.float32(1)]",
    "x[True]",
    "x[np.array([0, 2])]",
    "x[[0, 2]]",
    'x["first"]',
    "x[0:1.5]",
    "x[::0]",
    "x[::True]",
    "x[i:]",
    "x[0:i]",
    "x[i:2 * i]",
    "x[i]",
    "c[0:3] = x[0, 0:2]",
    "c[0:3] = x[0:2, 0]",
    "c[:, :, 0] = 1.0",
    "x[0, i + 9]",
    "c[i:i + 9] = 1.0",
]


def test_a_bad_key_is_explained_at_its_line() -> None:
    assert {line: complaint(line) for line in BAD_KEYS} == snapshot(
        {
            "x[4]": """\
Position 4 is accessed, so the axis needs at least 5 positions.
  found  size 4
  where  batch axis 0 of the operand of x[4], at program.py:8: x[4]
         the operand is x of shape 4|3,5, made by placeholder x, at program.py:4: x = oc.placeholder("x", batch=[4], output=[3, 5])
  try    use a smaller index, or make the axis longer\
""",
            "x[-5]": """\
Position 4 is accessed, so the axis needs at least 5 positions.
  found  size 4
  where  batch axis 0 of the operand of x[-5], at program.py:8: x[-5]
         the operand is x of shape 4|3,5, made by placeholder x, at program.py:4: x = oc.placeholder("x", batch=[4], output=[3, 5])
  try    use a smaller index, or make the axis longer\
""",
            "x[0, 0, 0, 0]": """\
Every key addresses an axis of its own.
  found  4 keys for the 3 axes of shape 4|3,5
  where  x[0, 0, 0, 0], at program.py:8: x[0, 0, 0, 0]
         the operand is x of shape 4|3,5, made by placeholder x, at program.py:4: x = oc.placeholder("x", batch=[4], output=[3, 5])
  try    leave out a key; None inserts an axis\
""",
            "x[..., None, ..., 0]": """\
`...` stands once for the axes without a key.
  found  x[..., None, ..., 0]
  where  program.py:8: x[..., None, ..., 0]
  try    write : for each other axis\
""",
            "x[1.0]": """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x[1.0]
  where  program.py:8: x[1.0]
  try    convert the key with int(...)\
""",
            "x[np.float32(1)]": """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x[np.float32(1.0)]
  where  program.py:8: x[np.float32(1)]
  try    convert the key with int(...)\
""",
            "x[True]": """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x[True]
  where  program.py:8: x[True]
  try    oc.where(condition, x, 0) chooses cell by cell\
""",
            "x[np.array([0, 2])]": """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x[an array of shape (2,)]
  where  program.py:8: x[np.array([0, 2])]
  try    oc.take(x, ids) takes the positions in oc.tensor([...])\
""",
            "x[[0, 2]]": """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x[[0, 2]]
  where  program.py:8: x[[0, 2]]
  try    oc.take(x, ids) takes the positions in oc.tensor([...])\
""",
            'x["first"]': """\
A key is a position, a slice, `...` or None; positions are integers and static indices.
  found  x['first']
  where  program.py:8: x["first"]
  try    x[0], x[1:3], x[..., -1]; oc.einsum names axes, and no axis of a tensor has a name\
""",
            "x[0:1.5]": """\
The bounds of a slice are integers and static indices.
  found  x[0:1.5]
  where  program.py:8: x[0:1.5]\
""",
            "x[::0]": """\
The step of a slice is not 0.
  found  x[::0]
  where  program.py:8: x[::0]
  try    x[::-1] reverses an axis\
""",
            "x[::True]": """\
The step of a slice is an integer.
  found  x[::True]
  where  program.py:8: x[::True]\
""",
            "x[i:]": """\
The length of a slice is known when code is compiled; static indices only move it.
  found  x[i:]
  where  program.py:8: x[i:]
  try    x[i:i+4] has 4 positions\
""",
            "x[0:i]": """\
The length of a slice is known when code is compiled; static indices only move it.
  found  x[0:i]
  where  program.py:8: x[0:i]
  try    x[i:i+4] has 4 positions\
""",
            "x[i:2 * i]": """\
The length of a slice is known when code is compiled; static indices only move it.
  found  x[i:2*i]
  where  program.py:8: x[i:2 * i]
  try    x[i:i+4] has 4 positions\
""",
            "x[i]": """\
Position 7 is accessed, so the axis needs at least 8 positions.
  found  size 4
  where  the range of index i of x[i], at program.py:8: x[i]
         the operand is x of shape 4|3,5, made by placeholder x, at program.py:4: x = oc.placeholder("x", batch=[4], output=[3, 5])
  try    use a smaller index, or make the axis longer\
""",
            "c[0:3] = x[0, 0:2]": """\
Rows that must be equal have different numbers of axes.
  found  at least 2 axes (..?..,2,5) and 1 axis (5)
  where  output row of the target of assignment to a slice of c, at program.py:8: c[0:3] = x[0, 0:2]
         output row of the first operand of assignment to a slice of c, at program.py:8: c[0:3] = x[0, 0:2]
         the target is c_x of shape 8|..c.input..->5, made by declaration c, at program.py:5: c = oc.declare("c", batch=[8], output=[5])
         the operand is slice of shape 2,5, made by x[0, 0:2], at program.py:8: c[0:3] = x[0, 0:2]
  try    give both rows the same number of axes\
""",
            "c[0:3] = x[0:2, 0]": """\
Axes that are the same must have the same size.
  found  size 3 and size 2
  where  batch axis 0 of the target of assignment to a slice of c, at program.py:8: c[0:3] = x[0:2, 0]
         batch axis 0 of the operand of x[0:2, 0], at program.py:8: c[0:3] = x[0:2, 0]
         the target is c_x of shape 8|..c.input..->5, made by declaration c, at program.py:5: c = oc.declare("c", batch=[8], output=[5])
         the operand is slice of shape 2|5, made by x[0:2, 0], at program.py:8: c[0:3] = x[0:2, 0]
  try    change one of the sizes\
""",
            "c[:, :, 0] = 1.0": """\
Every key addresses an axis of its own.
  found  3 keys for the 2 axes of shape 8|5
  where  assignment to a slice of c, at program.py:8: c[:, :, 0] = 1.0
  try    leave out a key; None inserts an axis\
""",
            "x[0, i + 9]": """\
Position 9 is accessed, so the axis needs at least 10 positions.
  found  size 3
  where  output axis 0 of the operand of x[0, i + 9], at program.py:8: x[0, i + 9]
         the operand is x of shape 4|3,5, made by placeholder x, at program.py:4: x = oc.placeholder("x", batch=[4], output=[3, 5])
  try    use a smaller index, or make the axis longer\
""",
            "c[i:i + 9] = 1.0": """\
Position 8 is accessed, so the axis needs at least 9 positions.
  found  size 8
  where  batch axis 0 of the target of assignment to a slice of c, at program.py:8: c[i:i + 9] = 1.0
         the target is c of shape 8|..c.input..->5, made by declaration c, at program.py:5: c = oc.declare("c", batch=[8], output=[5])
  try    use a smaller index, or make the axis longer\
""",
        }
    )


def test_the_axes_of_a_subscripted_parameter_are_stated_where_they_could_be_anything() -> None:
    with oc.Session():
        w, x = oc.param("w", output=[6]), oc.tensor([1.0, 2.0])
        scores = w[..., 1:3] @ x
        with pytest.raises(oc.ShapeError, match=r'oc\.param\("w", input=\[\.\.\.\]\)'):
            _ = scores.info


def test_subscripts_wait_for_shapes_that_are_inferred_later() -> None:
    with oc.Session():
        c, x = oc.declare("c"), oc.tensor(np.zeros((3, 4)), batch_axes=1)

        @oc.cd
        def code() -> None:
            c[0:2] = 1.0
            c[:, -1] += 2.0
            c[:] = c + x

        context = oc.Context("interp")
        context.compile(code())()
        assert context[c].tolist() == [[1, 1, 1, 3], [1, 1, 1, 3], [0, 0, 0, 2]]


def test_keys_count_the_axes_of_a_computed_tensor_where_they_are_written() -> None:
    with oc.Session():
        y = oc.placeholder("x", output=[3]) + 1.0
        with pytest.raises(oc.ShapeError) as caught:
            y[0, 0]
        assert caught.value.found == "2 keys for the 1 axis of shape 3"
        taken = y[0]
        with pytest.raises(oc.ShapeError, match=r"add\[0\]"):
            oc.require_shape(y, "3->3")
        assert str(taken.shape) == "()"


def test_the_size_of_a_sliced_axis_is_not_guessed() -> None:
    with oc.Session():
        b = oc.declare("b")
        oc.require_shape(b, "n")
        part = b[0:2] + 1.0
        with pytest.raises(oc.ShapeError, match="size of a sliced axis is known"):
            _ = part.info


@pytest.mark.parametrize("key", [slice(0, 2), -1, slice(None, None, -1)])
def test_keys_that_need_a_size_given_at_run_time_are_refused(key: object) -> None:
    with oc.Session():
        n = oc.static_extent("n", max=8)
        x = oc.placeholder("x", batch=[n], output=[4])
        code = oc.train.forward(x[key] + 1.0)
        with pytest.raises(oc.ShapeError, match="Positions counted from the end"):
            oc.Context("interp").compile(code, bindings=[n])
        with pytest.raises(oc.UsageError, match="A key is a position"):
            x[n]


def test_positions_taken_from_a_row_that_is_open_have_its_axes() -> None:
    """The size of the reshaped tensor is known once its shape is read."""
    x = oc.reshape(oc.moveaxis(oc.placeholder("x", output=[5, 2]), 0, 0), output=[5, 2])
    columns = oc.einsum("nc => c | n", x)

    def follow(order: oc.Tensor, column: oc.Tensor) -> tuple[oc.Tensor, None]:
        return oc.take(order, oc.cast(oc.take(column, order), "int64")), None

    _, order = oc.scan(follow, oc.tensor(np.arange(5)), columns)
    assert order.shape.dims == (5,)


@pytest.mark.parametrize("is_first", [False, True])
def test_rows_above_those_of_other_subscripts_are_counted_after_them(is_first: bool) -> None:
    with oc.Session():
        xs, mask = oc.placeholder("xs", batch=[12, 8], output=[5]), oc.placeholder("m", batch=[8])
        u, b = oc.param("u", output=[4], input=[4]), oc.param("b", output=[4])

        def step(h: oc.Tensor, x: oc.Tensor) -> tuple[oc.Tensor, oc.Tensor]:
            h = oc.tanh(x + (u @ h + b))
            return h, h

        hs, _ = oc.scan(step, 0.0, oc.nn.dense(xs, output=[4]))
        kept = oc.tensor(np.arange(12.0), batch_axes=1)[:, None] < mask
        parts = (kept, hs[:, :, 0]) if is_first else (hs[:, :, 0], kept)
        product = parts[0] * parts[1]
        assert str(product.shape) == "12,8|"
        assert str(oc.softmax(product, axis=0).shape) == "12,8|"
        oc.train.forward(product).resolve()


_OPEN: dict[str, Callable[[oc.Tensor, oc.Tensor], oc.Tensor]] = {
    "taken": lambda x, ids: oc.take(x, ids, axis=-1)[..., 1:],
    "taken in front": lambda x, ids: oc.take(x, ids, axis=0)[:, 1:],
    "taken at batches": lambda x, ids: oc.take(x, ids.T, axis=-1)[:, 1:],
    "one position": lambda x, ids: oc.take(x, ids, axis=-1)[1],
    "a function": lambda x, ids: oc.tanh(oc.take(x, ids, axis=-1))[:2, 1:],
    "twice": lambda x, ids: oc.take(oc.take(x, ids, axis=-1), ids, axis=0)[1:, 1:],
    "of a part": lambda x, ids: oc.take(x[:2], ids, axis=-1)[:, 1:],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _OPEN)
def test_keys_wait_for_the_axes_of_taken_positions(name: str) -> None:
    shapes: list[str] = []
    for is_stated in (True, False):
        with oc.Session():
            cells, ids = oc.tensor(np.zeros((3, 4))), oc.tensor([0, 2, 1], dtype="int32")
            weights = oc.param("w", output=[3, 4]) if is_stated else oc.param("w")
            part = _OPEN[name](cells * weights, ids)
            part.session.environment.close([part.terms])
            shapes.append(str(part.shape))
    assert shapes[0] == shapes[1]
