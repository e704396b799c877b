"""Late bindings of the operators and methods of tensors.

Operations create tensors, and operators of tensors apply operations. The classes, which come first,
reach the operations through `operations` and `code`. Both are filled by
`ocannl_core.tensor.operations.operators` when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


class Operations:
    """The operations behind the operators of expressions."""

    __slots__ = (
        "abs",
        "add",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "div",
        "equal",
        "floor_divide",
        "identity",
        "less",
        "less_equal",
        "logical_and",
        "logical_not",
        "logical_or",
        "matmul",
        "mod",
        "mul",
        "neg",
        "not_equal",
        "power",
        "store_rows",
        "sub",
        "subscript",
        "take",
        "transpose",
    )

    add: Function
    logical_not: Function
    floor_divide: Function
    bitwise_xor: Function
    bitwise_or: Function
    bitwise_not: Function
    bitwise_and: Function
    abs: Function
    div: Function
    equal: Function
    identity: Function
    less: Function
    less_equal: Function
    logical_and: Function
    logical_or: Function
    matmul: Function
    mod: Function
    mul: Function
    neg: Function
    not_equal: Function
    power: Function
    store_rows: Function
    sub: Function
    subscript: Function
    take: Function
    transpose: Function


class TensorCode:
    """The functions behind the methods of tensors that return code."""

    __slots__ = ("backprop", "consume_backprop", "consume_forward", "forward", "zero_grads")

    backprop: Function
    consume_backprop: Function
    consume_forward: Function
    forward: Function
    zero_grads: Function


functions: dict[str, Function] = {}
"""The functions behind methods of tensors and behind functions of NumPy, by name."""

numpy_functions: dict[str, Function] = {}
"""Functions of NumPy with arguments of their own, by name."""

operations = Operations()
code = TensorCode()
