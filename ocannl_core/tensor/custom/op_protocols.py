"""Interfaces of ops and their applications, for validation, calls and differentiation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ocannl_core.base.origin import Origin
from ocannl_core.ir.external import NativeCode
from ocannl_core.tensor.custom.variables import ObjectResult
from ocannl_core.tensor.graph.tensor import Tensor

Array = np.ndarray[Any, Any]

Storage = list[Any]
"""A list of one element: the value of an output, or None."""

Aliases = Mapping[int | None, Sequence[int]]
"""For an output, the positions of the inputs with which it shares memory."""


class OpInterface(Protocol):
    """An op; see `Op` for its members."""

    @property
    def name(self) -> str: ...

    @property
    def default_output(self) -> int | None: ...

    @property
    def destroy_map(self) -> Aliases: ...

    @property
    def view_map(self) -> Aliases: ...

    @property
    def broadcasts(self) -> bool: ...

    @property
    def line_axis(self) -> int | None: ...

    def perform(self, node: Any, inputs: Sequence[Array], output_storage: list[Storage]) -> None:
        """Compute the outputs."""
        ...

    def native(self, language: str, node: Any) -> NativeCode | None:
        """Return the code of an application in the language of a backend, or None."""
        ...


class ApplyInterface(Protocol):
    """An application of an op; see `Apply` for its members."""

    @property
    def op(self) -> OpInterface: ...

    @property
    def origin(self) -> Origin: ...

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def outputs(self) -> Sequence[Tensor | ObjectResult]: ...

    @property
    def results(self) -> tuple[Tensor, ...]:
        """The outputs that are tensors."""
        ...

    @property
    def destroyed(self) -> tuple[int, ...]:
        """The positions of the inputs that the op destroys."""
        ...

    def is_equivalent(self, other: Any) -> bool:
        """Return True for equal ops on inputs and outputs of equal types."""
        ...
