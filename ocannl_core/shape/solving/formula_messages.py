"""Error messages for computed sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ocannl_core.base.errors import ShapeError
from ocannl_core.ir.indexing import StaticExtent
from ocannl_core.shape.language import shape_terms
from ocannl_core.shape.language.constraints import DimEqual, TotalElements
from ocannl_core.shape.solving.messages import place
from ocannl_core.shape.solving.state import SolverState


def substitute_known(state: SolverState, dim: shape_terms.Dim) -> shape_terms.Dim:
    """Return a size with the known sizes substituted."""
    return shape_terms.with_plain_dims(dim, lambda each: state.size(each) or each)


def _places(state: SolverState, equation: DimEqual) -> Iterator[str]:
    """Yield the places of an equation and of the sizes in it."""
    yield place(equation)
    for side in (equation.left, equation.right):
        for var in shape_terms.dim_variables(side):
            known = state.values.get(state.find(var))
            if known is not None:
                yield place(known.cause)


def _where(state: SolverState, equation: DimEqual) -> str:
    return "\n".join(dict.fromkeys(_places(state, equation)))


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
    places = (place for equation in system for place in _places(state, equation))
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
