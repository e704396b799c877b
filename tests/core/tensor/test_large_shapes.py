"""Tensors with more cells than indices can address are refused, whether or not they are stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from inline_snapshot import snapshot

import ocannl_core as oc
from tests.support.messages import complaint


def _placed(*sizes: int) -> oc.Tensor:
    return oc.placeholder("x", output=list(sizes))


def _outer() -> oc.Tensor:
    return oc.einsum("i;j=>ij", _placed(2**31), _placed(2**32))


def _padded() -> oc.Tensor:
    return oc.einsum("i=+k => i", _placed(2**61 - 1), values={"k": 3})


MAKERS: list[Callable[[], oc.Tensor]] = [
    lambda: _placed(2**62) * 2,
    lambda: _placed(2**61) * 2,
    lambda: _placed(2**64) * 2,
    lambda: _placed(2**32, 2**32) * 2,
    lambda: _placed(2**62, 2**62, 0) * 2,
    lambda: oc.param("w", output=[2**62], init=0.0) * 2,
    lambda: oc.einsum("i=>", oc.param("w", output=[2**62], init=0.0)),
    lambda: oc.einsum("i=>ij", _placed(2), values={"j": 2**62}),
    lambda: oc.einsum("i=>ij", _placed(2), values={"j": 2**70}),
    lambda: oc.einsum(f"i=>i {2**62}", _placed(2)),
    lambda: oc.einsum(f"i=>{2**62}*i", _placed(2)),
    lambda: oc.concat("a; b => a^b", _placed(2**60), _placed(2**60)),
    lambda: oc.uniform() * _placed(2**62),
    lambda: oc.einsum("i=>", _placed(1), values={"i": 2**63}),
    _outer,
    lambda: oc.einsum("ij=>", _outer()),
    _padded,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_tensor_that_cannot_be_addressed_is_refused(
    make: Callable[[], oc.Tensor], backend: str
) -> None:
    with pytest.raises(oc.ShapeError, match=r"2\*\*63"):
        oc.Context(backend).compile(oc.train.forward(make()))


def test_the_largest_shapes_are_inferred() -> None:
    assert _placed(2**61 - 1).info.nbytes == 2**63 - 4
    assert _placed(2**40, 0).info.size == 0


@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_a_tensor_that_memory_has_no_room_for_is_named(backend: str) -> None:
    w, x = oc.param("w", output=[2**58]), oc.placeholder("x", output=[2**58])
    context = oc.Context(backend)
    with pytest.raises(oc.LinkError, match="no room for 1,152,921,504,606,846,976 bytes") as caught:
        context.compile(oc.train.forward(oc.einsum("i=>", w)))
    assert caught.value.where.startswith("parameter w (test_large_shapes.py:")
    with pytest.raises(oc.LinkError, match="fit into the memory of its device") as caught:
        context[x] = 1.0
    assert caught.value.where.startswith("placeholder x (test_large_shapes.py:")
    assert x not in context


@pytest.mark.parametrize("size", [2**19, 2**20])
def test_memory_that_a_routine_keeps_for_itself_is_limited(size: int) -> None:
    x = oc.placeholder("x", output=[size])
    cells = oc.exp(oc.einsum("i;j;k=>ijk", x, x, x))
    total = oc.einsum("...=>", cells * oc.einmax("ijk=>i00", cells))
    with (
        oc.settings.overrides(max_visits=0),
        pytest.raises(oc.LinkError, match="a routine keeps for itself") as caught,
    ):
        oc.Context("cpu_c").compile(oc.train.forward(total))
    assert caught.value.found.startswith("no room for ")
    assert caught.value.where.startswith("compiling forward, at test_large_shapes.py:")


def test_the_error_names_the_tensor_and_its_line() -> None:
    assert complaint('x = oc.placeholder("x", output=[2**62, 2])') == snapshot("""\
A tensor has less than 2**63 bytes, or indices could not address it.
  found  cells for the shape 4611686018427387904,2, for x
  where  program.py:2: x = oc.placeholder("x", output=[2**62, 2])
  try    make an axis shorter, or reduce in the operation that makes the axes\
""")
    assert complaint("""\
x = oc.placeholder("x", output=[2**31])
y = oc.einsum("i;j=>ij", x, x)
oc.Context("interp").compile(oc.train.forward(y))
""") == snapshot("""\
A tensor has less than 2**63 bytes, or indices could not address it.
  found  cells for the shape 2147483648,2147483648, of 4 bytes each
  where  tensor einsum (program.py:3: y = oc.einsum("i;j=>ij", x, x))
  try    make an axis shorter, or reduce in the operation that makes the axes\
""")
