"""References to the labels of a spec, for reading and constraining their sizes."""

from __future__ import annotations

from collections.abc import Container, Mapping

from ocannl_core.base.errors import SpecError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.origin import Origin
from ocannl_core.base.undo_log import UndoLog
from ocannl_core.shape.language.constraints import Constraint, DimEqual, RowEqual
from ocannl_core.shape.language.shape_terms import DimVar, Row, RowVar


@dataclass(slots=True, eq=False)
class DimRef:
    """A reference to a label of a spec: an axis, or the axes of a row variable.

    It is created empty, and bound by `Environment.relate(..., capture={"label": ref})`. A bound
    reference is an argument of the methods `size_of`, `set_dim` and `set_scale` of
    `Environment`; for a row variable, they refer to the product of its axes. A reference that is
    captured twice unifies the two sizes or rows.
    """

    label: str = ""
    term: DimVar | RowVar | None = None

    @property
    def captured(self) -> DimVar | RowVar:
        """The variable that the reference is bound to.

        Raises:
            UsageError: if the reference is not bound yet.
        """
        if self.term is None:
            raise UsageError(
                "A captured size belongs to a label of an operation.",
                found=f"a reference {self.label!r} that no operation has filled".replace(" ''", ""),
                fix="give it to the operation: capture=[d], or capture={'label': d}",
            )
        return self.term


def advice_on_words(name: str, labels: Container[str]) -> str:
    """Return the spelling of a spec that names a word, where its letters are labels instead."""
    if len(name) < 2 or not all(letter in labels for letter in name):
        return ""
    return f"each letter of this spec is an axis; between commas names are words: `{name},`"


def equate_captures(
    capture: Mapping[str, DimRef], labels: Mapping[str, DimVar | RowVar], origin: Origin
) -> list[Constraint]:
    """Return equations between labels of a spec and references that are bound already.

    Raises:
        SpecError: if the spec has no such label.
        UsageError: if a reference to an axis is captured as a row, or the other way round.
    """
    found: list[Constraint] = []
    first: dict[DimRef, DimVar | RowVar] = {}
    for name, ref in capture.items():
        if name not in labels:
            raise SpecError(
                "Only names that occur in the spec can be captured.",
                found=f"{name}; the spec has {', '.join(sorted(labels)) or 'no names'}",
                where=str(origin),
                fix=advice_on_words(name, labels)
                or "capture a label of an axis, or the name of a row variable",
            )
        term, known = labels[name], first.setdefault(ref, ref.term or labels[name])
        where = origin.at(f"{name}, captured again")
        if isinstance(known, DimVar) and isinstance(term, DimVar):
            found += [DimEqual(known, term, where)] if known != term else []
        elif isinstance(known, RowVar) and isinstance(term, RowVar):
            found += [RowEqual(Row(tail=known), Row(tail=term), where)] if known != term else []
        else:
            kind = "an axis" if isinstance(term, DimVar) else "a row"
            raise UsageError(
                "A reference stands for axes or for rows, not for both.",
                found=f"{name}, captured again as {kind}",
                where=str(origin),
                fix="capture it in a reference of its own, and relate the two",
            )
    return found


def bind_captures(
    capture: Mapping[str, DimRef], labels: Mapping[str, DimVar | RowVar], undo_log: UndoLog
) -> None:
    """Bind the unbound references to the labels of a spec."""
    for name, ref in capture.items():
        if ref.term is None:
            undo_log.set(ref, "label", ref.label or name)
            undo_log.set(ref, "term", labels[name])
