"""The work on a kernel that is left for the C compiler."""

from __future__ import annotations

from collections.abc import Collection

from ocannl_core.codegen.prelude.float32_math import REPLACED_FUNCTIONS
from ocannl_core.codegen.prelude.vector_types import PARTIAL_VECTORS
from ocannl_core.codegen.prelude.word_vectors import is_word_vector
from ocannl_core.codegen.text.kernel_text import CompilerVectorisation

_VECTORS_PER_PLAIN = 16
"""The least number of vector loops per plain loop in a kernel that counts as vector code."""


def remaining_vectorisation(
    helpers: Collection[str], plain_loops: int, vector_loops: int
) -> CompilerVectorisation:
    """Classify the work that is left in a kernel that is rendered with vectors.

    That is to vectorise loops, also loops over lanes; to keep the constants of elementary functions
    in registers; to select instructions for vectors that are smaller than a register; and to keep
    the parts of words in registers.

    Args:
        helpers: The helpers that its text uses.
        plain_loops: The number of its innermost loops that are no vectors.
        vector_loops: The number of the others.
    """
    functions = [each.partition("_")[2] for each in helpers]
    is_rare = plain_loops * _VECTORS_PER_PLAIN <= vector_loops
    is_mapped = any(each.startswith("map_") for each in functions)
    has_parts = not PARTIAL_VECTORS.isdisjoint(helpers)
    has_words = any(map(is_word_vector, helpers))
    if is_mapped or has_parts or has_words or not is_rare:
        return CompilerVectorisation.PLAIN
    if not REPLACED_FUNCTIONS.isdisjoint(functions):
        return CompilerVectorisation.FUNCTIONS
    return CompilerVectorisation.MIXED if plain_loops else CompilerVectorisation.VECTORS
