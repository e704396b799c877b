"""Error messages of shape inference, those for computed sizes last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ocannl_core.base.errors import ShapeError
from ocannl_core.base.origin import Origin
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.shape.language import shape_terms
from ocannl_core.shape.language.constraints import (
    Constraint,
    DimBelow,
    DimConstraint,
    DimEqual,
    RowBelow,
    RowEqual,
    TotalElements,
)
from ocannl_core.shape.language.shape_terms import DimVar, Row, Size
from ocannl_core.shape.solving.state import SolverState


def place(cause: Constraint) -> str:
    """Return the place of a constraint: part of the operation, operation, user's line."""
    return narrow_origin(cause).place


def narrow_origin(cause: Constraint) -> Origin:
    """Return the origin of a constraint, down to the axis.

    output row of the second operand  -->  output axis -1 of the second operand
    """
    if not isinstance(cause, DimConstraint) or cause.axis is None:
        return cause.origin
    return cause.origin.at(cause.origin.detail.replace(" row", f" axis {cause.axis}"))


def _places(causes: Sequence[Constraint]) -> str:
    """Return the places of constraints, each once."""
    return "\n".join(dict.fromkeys(map(place, causes)))


_SHOWN_ORIGINS = 6


def _all(cause: Constraint, others: Sequence[Constraint]) -> str:
    """Return the places of constraints, one per line; the first ones if there are many."""
    lines = list(dict.fromkeys(each.origin.place for each in (cause, *others)))
    if len(lines) > _SHOWN_ORIGINS:
        lines[_SHOWN_ORIGINS:] = [f"and {len(lines) - _SHOWN_ORIGINS} more"]
    return "\n".join(lines)


def sizes_differ(
    one: Size,
    one_cause: Constraint,
    other: Size,
    other_cause: Constraint,
    sources: Sequence[Constraint] = (),
) -> ShapeError:
    """Return the error of two sizes, or two bases, that must be equal and differ."""
    where = _places(sources or (one_cause, other_cause))
    if one.extent is not other.extent:
        return ShapeError(
            "An extent at run time equals itself only: no number, and no other extent.",
            found=f"size {one} and size {other}"
            + (", two extents of one name" if str(one) == str(other) else ""),
            where=where,
            fix="give both axes the same extent; an axis that is 1 or missing is repeated as "
            "needed",
        )
    if one.n == other.n:
        return ShapeError(
            "Axes that meet must have the same basis.",
            found=f"basis {one.basis!r} (size {one.n}) and basis {other.basis!r} (size {other.n})",
            where=where,
            fix="convert one of the tensors, or leave the basis of one of them out",
        )
    if isinstance(one_cause, DimBelow) or isinstance(other_cause, DimBelow):
        rule = "Axes that meet must have the same size, unless the operand's size is 1."
        broadcast = "; an operand's axis that is 1 or missing is repeated as needed"
    else:
        rule, broadcast = "Axes that are the same must have the same size.", ""
    names = [name for name in _names(one_cause) if name in _names(other_cause)]
    found, fix = f"size {one} and size {other}", "change one of the sizes"
    if names:
        found += f" of `{names[0]}`"
        if one_cause.origin.at("") == other_cause.origin.at(""):
            fix += ", or give the axes different names"
    if one_cause is other_cause and _MEETING in one_cause.origin.detail:
        fix += ", or exchange inputs and outputs, as in `w.T @ x`"
    return ShapeError(rule, found=found, where=where, fix=fix + broadcast)


_MEETING = ", against "
"""Part of the detail of a constraint between the inputs and the outputs that a product sums."""


def _names(cause: Constraint) -> list[str]:
    """Return the names of axes in a constraint on sizes."""
    match cause:
        case DimEqual(left, right) | DimBelow(left, right):
            ends = left, right
        case _:
            return []
    return [dim.name for dim in ends if isinstance(dim, DimVar) and dim.name]


def too_small(
    size: Size,
    size_cause: Constraint,
    at_least: int,
    cause: Constraint,
    sources: Sequence[Constraint] = (),
) -> ShapeError:
    """Return the error of an axis without the position that is accessed."""
    if at_least == 1:
        rule = "An axis of which a position is accessed has positions."
    else:
        rule = (
            f"Position {at_least - 1} is accessed, so the axis needs at least {at_least} positions."
        )
    return ShapeError(
        rule,
        found=f"size {size}",
        where=_places(sources or (size_cause, cause)),
        fix="use a smaller index, or make the axis longer",
    )


def too_many_cells(shape: str, nbytes: int, where: str, name: str = "") -> ShapeError:
    """Return the error of a tensor that exceeds the address space."""
    each = f", of {nbytes} bytes each" if nbytes > 1 else ""
    return ShapeError(
        "A tensor has less than 2**63 bytes, or indices could not address it.",
        found=f"cells for the shape {shape}{each}" + (f", for {name}" if name else ""),
        where=where,
        fix="make an axis shorter, or reduce in the operation that makes the axes",
    )


def too_many_axes(
    result: Row, operand: Row, cause: RowBelow, others: Sequence[Constraint]
) -> ShapeError:
    """Return the error of an operand with more axes than the fixed result."""
    axes, wanted = (_axes(row, cause.skipped, cause.ahead) for row in (operand, result))
    found = f"{axes} against {wanted}"
    if _MEETING in cause.origin.detail:
        fix = (
            "turn surplus output axes of the second operand into batch axes, as\n"
            "oc.tensor(array, batch_axes=1) and batch=[...] do, merge them with oc.reshape,\n"
            "or give the first operand as many input axes"
            if result.dims
            else "write the operand with input axes first, as in `w @ x`; the axes of an array or "
            "of a nested\nlist are outputs, except those of input_axes=: "
            "oc.tensor([[1, 2], [3, 4]], input_axes=1)\nis a matrix; use `*` if cells should meet "
            "one by one"
        )
        return ShapeError(
            "The outputs of an operand must not have more axes than the inputs that they meet.",
            found=found,
            where=_all(cause, others),
            fix=fix,
        )
    return ShapeError(
        "An operand must not have more axes than the result that it is repeated to.",
        found=found,
        where=_all(cause, others),
        fix="reduce the surplus axes with einsum, or give the result more axes;\n"
        "if the operand's outputs should meet inputs, use `@` rather than `*`",
    )


def position_is_missing(
    operand: Row, wanted: int, cause: RowBelow, others: Sequence[Constraint]
) -> ShapeError:
    """Return the error of an operand without an axis at which a position is read."""
    return ShapeError(
        "An operand has the axis of which a position is read.",
        found=f"{_axes(operand, cause.skipped)} in place of {wanted + cause.skipped}",
        where=_all(cause, others),
        fix="give the operand this axis, or leave the position out",
    )


def axes_differ(left: Row, right: Row, cause: RowEqual, others: Sequence[Constraint]) -> ShapeError:
    """Return the error of two equal rows with different numbers of axes."""
    return ShapeError(
        "Rows that must be equal have different numbers of axes.",
        found=f"{_axes(left, cause.skipped)} and {_axes(right, cause.skipped)}",
        where=_all(cause, others),
        fix="give both rows the same number of axes"
        + ("; each index takes one batch axis" if "batch" in cause.origin.detail else ""),
    )


def self_reference(cause: Constraint, found: str, others: Sequence[Constraint]) -> ShapeError:
    """Return the error of a row that contains itself (occurs check)."""
    return ShapeError(
        "A row cannot contain itself and further axes: it would have infinitely many.",
        found=found,
        where=_all(cause, others),
        fix="give the rows of this operation explicitly, or write an einsum that names its axes",
    )


def rank_cycle(cause: Constraint, circle: Sequence[Constraint]) -> ShapeError:
    """Return the error of rows each longer than the next, in a cycle."""
    return ShapeError(
        "Rows that each need more axes than the next, in a circle, would have infinitely many.",
        found="a circle of operations in which a row gains axes",
        where=_all(cause, circle),
        fix="give the shape of one of the tensors involved explicitly",
    )


def out_of_steps(steps: int, cause: Constraint) -> ShapeError:
    """Return the error of inference that exceeds its budget."""
    return ShapeError(
        "Shape inference must come to an end within its step budget.",
        found=f"still working after {steps} steps",
        where=str(cause.origin),
        fix="give more shapes explicitly",
    )


def _axes(row: Row, skipped: int, ahead: int = 0) -> str:
    """Return the number of axes of a row whose outer axes may be omitted, and the row."""
    number = len(row.dims) + skipped + ahead
    if number == 0 and row.tail is None:
        return "no axes"
    count = "1 axis" if number == 1 else f"{number} axes"
    if row.tail is not None:
        count = f"at least {count}"
    text = re.sub(r"\$\d+", "?", str(row))  # the size plays no part
    shown = [*(["..."] if ahead else []), text, *(["..."] if skipped else [])]
    return f"{count} ({','.join(filter(None, shown))})"


def substitute_known(state: SolverState, dim: shape_terms.Dim) -> shape_terms.Dim:
    """Return a size with the known sizes substituted."""
    return shape_terms.with_plain_dims(dim, lambda each: state.size(each) or each)


def _equation_places(state: SolverState, equation: DimEqual) -> Iterator[str]:
    """Yield the places of an equation and of the sizes in it."""
    yield place(equation)
    for side in (equation.left, equation.right):
        for var in shape_terms.dim_variables(side):
            known = state.values.get(state.find(var))
            if known is not None:
                yield place(known.cause)


def _where(state: SolverState, equation: DimEqual) -> str:
    return "\n".join(dict.fromkeys(_equation_places(state, equation)))


def computed_from_extent(
    state: SolverState, equation: DimEqual, extent: StaticExtent
) -> ShapeError:
    """Return the error of a size that is computed from an extent at run time."""
    text, formula = _ends(state, equation)
    return ShapeError(
        "An axis with an extent at run time is traversed as a whole: no window or stride runs "
        "along it, and it is no part of another axis.",
        found=f"{text} for {formula}, where {extent} is the extent of an axis",
        where=_where(state, equation),
        fix=f"give the axis a constant size, such as {extent.maximum}, and mask the positions "
        "beyond",
    )


def counted_extent(constraint: TotalElements, extent: StaticExtent) -> ShapeError:
    """Return the error of a number of cells that depends on an extent at run time."""
    return ShapeError(
        "Axes are counted or reshaped if their sizes are constant.",
        found=f"an axis of the extent {extent}",
        where=str(constraint.origin),
        fix=f"leave the axis out of the reshaped ones, or give it a constant size, such as "
        f"{extent.maximum}",
    )


def _ends(state: SolverState, equation: DimEqual) -> tuple[str, str]:
    """Return the axis and its formula as text, with the known sizes substituted."""
    left, right = equation.left, equation.right
    if not isinstance(left, shape_terms.DimVar | shape_terms.Size):
        left, right = right, left
    whole = substitute_known(state, left)
    text = f"size {whole}" if isinstance(whole, shape_terms.Size) else str(whole)
    return text, _formula(right, substitute_known(state, right))


def _formula(dim: shape_terms.Dim, shown: shape_terms.Dim) -> str:
    return str(dim) if str(dim) == str(shown) or "$" in str(dim) else f"{dim} = {shown}"


def formula_fails(state: SolverState, equation: DimEqual, left: int, right: int) -> ShapeError:
    """Return the error of an equation of known sizes that does not hold."""
    whole, formula = _ends(state, equation)
    if shape_terms.ONE_WRITTEN in (equation.left, equation.right):
        return ShapeError(
            "An axis of which only position 0 is written has 1 position.",
            found=whole,
            where=_where(state, equation),
            fix="name the axis in place of 0, or read it as an axis of size 1",
        )
    computed = (
        left if not isinstance(equation.left, shape_terms.DimVar | shape_terms.Size) else right
    )
    return ShapeError(
        "An axis must have the size that its stride, window or parts give.",
        found=f"{whole} and {formula}, which is {computed}",
        where=_where(state, equation),
        fix=_advice(state, equation),
    )


def does_not_divide(state: SolverState, equation: DimEqual) -> ShapeError:
    """Return the error of an equation without integer solutions."""
    affine = _affine(equation)
    if affine is None:
        rule = "Sizes are whole numbers."
    elif affine.window is None or affine.window.padded:
        rule = "Incompatible stride: the size of a strided axis must be a multiple of the stride."
    elif state.size(affine.over) is not None:
        rule = "The kernel dimension cannot be inferred: no kernel has the span that is left."
    else:
        rule = "Incompatible stride: the last position of a window must end where its axis ends."
    return _broken(rule, state, equation)


def too_short(state: SolverState, equation: DimEqual, *, itself: bool) -> ShapeError:
    """Return the error of a negative size, or of an empty window."""
    affine = _affine(equation)
    if itself:
        rule = "A size cannot be computed from itself."
    elif affine is None:
        rule = "The parts of a concatenated axis must not exceed its size."
    elif affine.window is None or affine.window.padded:
        rule = "A strided axis must not be shorter than its positions require."
    elif state.size(affine.over) is not None and state.size(affine.window.kernel) is None:
        rule = (
            "The kernel dimension cannot be inferred: the span of the window would not be positive."
        )
    else:
        rule = "A window must fit into its axis: the span of the kernel exceeds the size."
    return _broken(rule, state, equation)


def _broken(rule: str, state: SolverState, equation: DimEqual) -> ShapeError:
    whole, formula = _ends(state, equation)
    found, fix = f"{whole} and {formula}", _advice(state, equation)
    return ShapeError(rule, found=found, where=_where(state, equation), fix=fix)


def part_without_cells(state: SolverState, equation: DimEqual) -> ShapeError:
    """Return the error of a concatenated axis with an empty part."""
    whole, formula = _ends(state, equation)
    return ShapeError(
        "Every part of a concatenated axis has cells, unless its tensor is stated to have none.",
        found=f"{whole} and {formula}",
        where=_where(state, equation),
        fix="make the whole axis longer, or another part shorter",
    )


def contradictory(state: SolverState, system: Sequence[DimEqual]) -> ShapeError:
    """Return the error of equations that are contradictory as a system."""
    found = (" and ".join(_ends(state, equation)) for equation in system)
    places = (place for equation in system for place in _equation_places(state, equation))
    return ShapeError(
        "Sizes must satisfy the equations of all operations together.",
        found="\n".join(found),
        where="\n".join(dict.fromkeys(places)),
        fix="change a stride, a window or a part, or state the sizes of one of the tensors",
    )


def bases_of_formula_differ(state: SolverState, equation: DimEqual, bases: list[str]) -> ShapeError:
    """Return the error of an axis and positions on it with different bases."""
    whole, formula = _ends(state, equation)
    return ShapeError(
        "Axes that meet must have the same basis.",
        found=f"basis {bases[0]!r} and basis {bases[1]!r}: {whole} and {formula}",
        where=_where(state, equation),
        fix="convert one of the tensors, or leave the basis of one of them out",
    )


def _affine(equation: DimEqual) -> shape_terms.AffineDim | None:
    for side in (equation.left, equation.right):
        if isinstance(side, shape_terms.AffineDim):
            return side
    return None


def _advice(state: SolverState, equation: DimEqual) -> str:
    if guessed := _guessed_labels(state, equation):
        return f"state the size of a label that was guessed: values={{{guessed[0]!r}: ...}}"
    affine = _affine(equation)
    if affine is None:
        return "change the size of one of the parts, or of the whole"
    if affine.window is None:
        return "crop or extend the axis to a multiple of the stride"
    if affine.window.padded:
        return (
            "crop or extend the axis to a multiple of the stride,\n"
            "or use a window that stays inside (`<`); blocks of oc.nn take floor=True"
        )
    return (
        "crop or extend the axis, or let the window reach into margins (`=`);\n"
        "blocks of oc.nn take floor=True, which leaves out the cells behind the last window"
    )


def _guessed_labels(state: SolverState, equation: DimEqual) -> list[str]:
    """Return the labels in a formula whose sizes are guesses."""
    computed = [
        side for side in (equation.left, equation.right) if not isinstance(side, shape_terms.DimVar)
    ]
    variables = dict.fromkeys(var for side in computed for var in shape_terms.dim_variables(side))
    return [
        var.name
        for var in variables
        if var.name.isidentifier() and state.find(var) in state.guesses
    ]


def count_fails(constraint: TotalElements, found: str) -> ShapeError:
    """Return the error of rows that cannot have the number of cells."""
    return ShapeError(
        "The number of cells must be the one that is demanded.",
        found=found,
        where=str(constraint.origin),
        fix="change the shape, or the number of values",
    )


def counts_differ(
    constraint: TotalElements, found: str, others: Sequence[TotalElements]
) -> ShapeError:
    """Return the error of two contradictory numbers of cells of the same axes."""
    places = [each.origin.place for each in (constraint, *others)]
    return ShapeError(
        "All demands on the number of cells of a row must agree.",
        found=found,
        where="\n".join(dict.fromkeys(places)),
        fix="change the shape, or one of the numbers of values",
    )
