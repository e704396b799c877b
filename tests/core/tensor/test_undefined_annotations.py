"""Functions and classes of users whose annotations name types that only type checkers import.

As of Python 3.14 such a module needs no `from __future__ import annotations`, and has none here.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import ocannl_core as oc
from ocannl_core import backend_api
from ocannl_core.base.deferred_annotations import annotations_of, signature_of
from ocannl_core.ir.serialization.schema import record_of
from ocannl_core.tensor.messages.annotations import fits

TEXT = """
import dataclasses
from typing import TYPE_CHECKING, Protocol

import ocannl_core as oc
from ocannl_core import backend_api

if TYPE_CHECKING:
    from somewhere import Known


@oc.op
def layer(x: Known, *, factor: Known = 3) -> Known:
    return x * factor


def cell(i: Known, j: Known) -> Known:
    return 10 * i + j


def ones(shape: Known) -> Known:
    return 1.0


def total(v: Known, v1: Known, v2: Known) -> None:
    v[:] = v1 + v2


class Sized(Protocol):
    size: Known


@backend_api.dataclass(frozen=True, slots=True)
class Slotted:
    first: int
    second: Known | None = None


@dataclasses.dataclass(frozen=True)
class Pair:
    first: int
    second: Known


@dataclasses.dataclass(frozen=True)
class Number:
    value: int
"""


@pytest.fixture(scope="module")
def user() -> Any:
    needed = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    module = type(sys)("user_of_undefined_annotations")
    sys.modules[module.__name__] = module
    exec(compile(needed + TEXT, __file__, "exec", dont_inherit=True), vars(module))
    yield module
    del sys.modules[module.__name__]


def computed(tensor: oc.Tensor) -> Any:
    ctx = oc.Context("interp")
    ctx.compile(oc.train.forward(tensor))()
    return ctx[tensor]


def test_a_block_is_applied_and_printed(user: Any) -> None:
    assert computed(user.layer(oc.tensor([1.0, 2.0]))).tolist() == [3, 6]
    assert "layer(x: " in repr(user.layer)
    with pytest.raises(oc.UsageError, match="The positional parameters of layer are the tensors"):
        user.layer()(1.0, 2.0)


def test_annotations_are_any_objects() -> None:
    def doubled(x: Any, *, how: Any = "") -> Any:
        return x * 2.0

    doubled.__annotations__["how"] = ["one", "other"]
    assert computed(oc.op(doubled)(oc.tensor([1.0]), how="one")).tolist() == [2]


def test_functions_make_cells_initial_values_and_operations(user: Any) -> None:
    assert computed(oc.from_function(user.cell, output=[2, 2])).tolist() == [[0, 1], [10, 11]]
    assert str(oc.param("w", init=user.ones, output=[2], input=[3]).shape) == "3->2"
    total = oc.define_operation("total", forward=user.total)
    assert computed(total(oc.tensor([1.0]), 2.0)).tolist() == [3]


def test_names_of_annotations_need_no_values(user: Any) -> None:
    assert list(annotations_of(user.Sized)) == ["size"]
    assert list(annotations_of(object)) == []
    assert list(signature_of(user.cell).parameters) == ["i", "j"]


def test_a_protocol_has_the_members_that_it_annotates(user: Any) -> None:
    assert fits(np.zeros(2), user.Sized)
    assert not fits(2, user.Sized)


def test_data_classes_for_backends_are_as_those_of_the_standard_library(user: Any) -> None:
    assert user.Slotted(1) == user.Slotted(1, None) != user.Slotted(2)
    assert backend_api.replace(user.Slotted(1), second=2) == user.Slotted(1, 2)


def test_records_with_fields_of_unknown_types_are_no_data(user: Any) -> None:
    assert record_of(user.Pair) is None
    assert record_of(user.Number) is not None
