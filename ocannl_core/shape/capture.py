"""Names of a spec that a program can ask about, and say more of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ocannl_core.errors import SpecError, UsageError
from ocannl_core.origin import Origin
from ocannl_core.shape.terms import DimVar, RowVar


@dataclass(slots=True, eq=False)
class DimRef:
    """What a name in one application of a spec stands for: an axis, or the axes of a row variable.

    Made empty, filled by `Environment.relate(..., capture={"label": ref})`; afterwards
    `Environment` answers `size_of(ref)`, and takes `set_dim`, `set_equal` and `set_scale`. Of a row
    variable, the product of its axes is meant.
    """

    label: str = ""
    term: DimVar | RowVar | None = None

    @property
    def captured(self) -> DimVar | RowVar:
        """What the name stands for.

        Raises:
            UsageError: if no operation has filled the reference yet.
        """
        if self.term is None:
            raise UsageError(
                "A captured size belongs to a label of an operation.",
                found=f"a reference {self.label!r} that no operation has filled".replace(" ''", ""),
                fix="give it to the operation: capture={'label': ref}",
            )
        return self.term


def fill(
    capture: Mapping[str, DimRef], labels: Mapping[str, DimVar | RowVar], origin: Origin
) -> None:
    """Binds references to the names of a spec.

    Raises:
        SpecError: if the spec has no such name; then none is bound.
    """
    for name in capture:
        if name not in labels:
            raise SpecError(
                "Only names that occur in the spec can be captured.",
                found=f"{name}; the spec has {', '.join(sorted(labels)) or 'no names'}",
                where=str(origin),
                fix="capture a label of an axis, or the name of a row variable",
            )
    for name, ref in capture.items():
        ref.label, ref.term = name, labels[name]
