"""The machinery of random numbers: words from counters, and their conversion to numbers.

`oc.uniform`, `oc.normal` and `oc.categorical` are made of it.
"""

from typing import TYPE_CHECKING

from ocannl_core.ir.numbers.dtypes import uint4x32
from ocannl_core.tensor.messages.call_errors import guard, list_names, load_on_demand
from ocannl_core.tensor.operations.random import random_words as words
from ocannl_core.tensor.operations.random import threefry4x32, uniform_of, word

__all__ = ["threefry4x32", "uint4x32", "uniform_of", "word", "words"]

if not TYPE_CHECKING:
    __getattr__ = load_on_demand(globals(), {})
__dir__ = list_names(globals())
guard(globals(), __all__)
