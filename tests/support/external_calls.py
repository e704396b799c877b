"""External operations for tests of loop programs."""

from __future__ import annotations

from typing import Any


class CopyCall:
    """A call that copies its input."""

    name = "copy"
    line_axis: int | None = None

    def perform(self, inputs: Any, outputs: Any) -> None:
        outputs[0][...] = inputs[0]
