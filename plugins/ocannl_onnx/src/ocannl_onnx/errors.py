"""Errors about ONNX models."""

from __future__ import annotations

import ocannl_core as oc


class OnnxError(oc.OcannlError):
    """A model is invalid, or was used in a way that its inputs exclude."""


class UnsupportedOperatorError(OnnxError):
    """A model contains what this importer cannot express.

    Attributes:
        operator: The operator's type, with its domain unless that is the standard's.
        reason: The reason, without the place.
    """

    def __init__(self, operator: str, reason: str, *, where: str, fix: str = "") -> None:
        self.operator = operator
        self.reason = reason
        super().__init__(f"{operator} cannot be imported: {reason}.", where=where, fix=fix)


class StepName(str):
    """The name, among the inputs of a value, of what is no input of the model: the number and the
    state of a step of a loop, which are known where the loop is unrolled, or an extent.
    """

    __slots__ = ()


EXTENT = StepName("an extent at run time")
"""The name for values that follow from the size of an axis with an extent at run time."""


def described(inputs: frozenset[str]) -> str:
    """Return the inputs of a value in words."""
    names = sorted(each for each in inputs if not isinstance(each, StepName))
    steps = sorted({str(each) for each in inputs if isinstance(each, StepName)})
    parts = [f"the input {', '.join(names)}"] if names else []
    return " and ".join([*parts, *steps])


class UnknownValueError(UnsupportedOperatorError):
    """A number that decides a shape or a structure is only known at run time.

    Attributes:
        inputs: The names of the model's inputs on which the number depends.
    """

    def __init__(
        self,
        operator: str,
        role: str,
        inputs: frozenset[str],
        *,
        where: str,
        reason: str = "",
        fix: str = "",
    ) -> None:
        self.inputs = frozenset(each for each in inputs if not isinstance(each, StepName))
        names = ", ".join(sorted(self.inputs))
        reason = reason or (
            f"its {role} decides a shape and depends on {described(inputs)}"
            if inputs
            else f"its {role} decides a shape and is not known"
        )
        constant = f"give {names} as an array, not as a tensor: its values become constants"
        super().__init__(
            operator, reason, where=where, fix="; ".join(filter(None, (names and constant, fix)))
        )


class NoCounterpartError(OnnxError):
    """An expression contains what ONNX cannot express.

    Attributes:
        operation: The name of the operation.
        reason: The reason, without the place.
    """

    def __init__(self, operation: str, reason: str, *, where: str, fix: str = "") -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(f"{operation} cannot be exported: {reason}.", where=where, fix=fix)
