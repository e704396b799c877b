"""Random numbers of which several are made of each word: their format decides how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocannl_core.fast_dataclass import replace
from ocannl_core.ops import UnaryOp
from ocannl_core.shape.logic import NumbersOfWords
from ocannl_core.tensor.definitions import Applied

if TYPE_CHECKING:
    from ocannl_core.tensor.tensor import Tensor


def stands_for_words(tensor: Tensor) -> bool:
    """Returns whether a tensor holds the numbers that random words stand for."""
    definition = tensor.definition
    return isinstance(definition, Applied) and (
        definition.operation.primitive is UnaryOp.UNIFORM
        or isinstance(definition.logic, NumbersOfWords)
    )


def count_words(tensor: Tensor) -> None:
    """Settles the format of packed numbers, and relates their shape to that of the words that they
    are made of; does nothing to other tensors.

    This comes before closing: how many words there are follows from the format, and that from all
    uses.

    Raises:
        ShapeError: if the numbers are known not to be a whole number of words.
    """
    definition = tensor.definition
    if isinstance(definition, Applied) and definition.logic == NumbersOfWords(0):
        tensor.settle()
        logic = NumbersOfWords(16 // tensor.dtype.nbytes)
        tensor.definition = replace(definition, logic=logic)
        words = [operand.terms for operand in definition.operands]
        tensor.session.environment.relate(logic, tensor.terms, words, tensor.origin)
