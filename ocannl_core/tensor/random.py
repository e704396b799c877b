"""Counter-based random numbers: a cell's value depends on the tensor's identity, the seed and the
cell's offset alone.

    word(cell) = threefry4x32(threefry4x32(identity, seed), offset)
"""

from __future__ import annotations

import math
from typing import Any

from ocannl_core.assign.nodes import Constant, RangeOverOffsets
from ocannl_core.dtypes import DType, uint4x32, uint32
from ocannl_core.ops import BinaryOp, UnaryOp
from ocannl_core.shape.terms import Shape, closed_shape
from ocannl_core.tensor import session as sessions
from ocannl_core.tensor.leaves import filled, word
from ocannl_core.tensor.operation import Operation
from ocannl_core.tensor.pointwise import lift
from ocannl_core.tensor.session import Session
from ocannl_core.tensor.tensor import Tensor

threefry4x32 = lift("threefry4x32", BinaryOp.THREEFRY4X32)


def _to_word(v: Any, v1: Any) -> None:
    v[:] = _as_word(v1)


def _to_uniform(v: Any, v1: Any) -> None:
    v[:] = _as_uniform(v1)


class _Conversion(Operation):
    """A primitive whose result has a fixed format."""

    def result_dtype(self, dtypes: object, session: Session) -> DType:
        return uint4x32 if self.primitive is UnaryOp.WORD else session.default_dtype


_as_word = _Conversion(name="word", operands=1, logic=".", forward=_to_word, primitive=UnaryOp.WORD)
_as_uniform = _Conversion(
    name="uniform", operands=1, logic=".", forward=_to_uniform, primitive=UnaryOp.UNIFORM
)


def uniform(*, label: str | None = None) -> Tensor:
    """Returns random numbers in [0, 1), in whatever shape their use asks for."""
    session = sessions.current()
    shape = session.environment.fresh_shape(name="offsets")
    offsets = filled(session, RangeOverOffsets, shape, uint32, "offsets")
    identity = word(session, lambda: offsets.id, "identity")
    seed = word(session, lambda: session.seed & (2**64 - 1), "seed")
    result: Tensor = _as_uniform(
        threefry4x32(threefry4x32(identity, seed), _as_word(offsets)), label=label or "uniform"
    )
    return result


def scaled_uniform(shape: Shape) -> Tensor:
    """Returns the default initialiser: uniform, centred, with variance 1 / fan-in.

    Fan-in is the number of cells of the input axes of the given shape. Without input axes the range
    is [-0.25, 0.25).
    """
    session = sessions.current()

    def width() -> Constant:
        inputs = session.environment.view(shape).input.sizes
        return Constant(2.0 * math.sqrt(3.0 / max(math.prod(inputs), 1)) if inputs else 0.5)

    scale = filled(session, width, closed_shape(), session.default_dtype, "scale")
    result: Tensor = (uniform() - 0.5) * scale
    return result
