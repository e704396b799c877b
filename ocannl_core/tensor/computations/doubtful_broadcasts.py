"""Warnings about broadcasts that are probably mistakes, of computations with closed shapes.

Eight kinds pass silently otherwise. A difference or product of a prediction, `8|1`, and a target
whose numbers are along an output axis, `8`, has all pairs of the two, `8|8`. So has the quotient of
`8|3` and its norm with a new axis at the end, `norm[..., None]`, which is a batch axis there: the
shape is `8,8|3`. The difference of `x[:, None]`, `8|1,3`, and `x[None]`, `1,8|3`, has no pairs at
all: its shape is `1,8|1,3`, and each position meets itself. A tensor whose new shape has the batch
along an output axis, `8,3`, gives all pairs beside `8|3`: `8|8,3`. Data `8,3` without a batch axis
give one prediction, which is compared with all targets `8|2`. A parameter that starts as one
number, without stated sizes, has as many numbers as the tensor that it scales. A bias with input
axes makes a matrix of each vector of a batch. In `relu(x) @ w`, with the matrix on the wrong side,
`relu(x)` is broadcast along the axes that are summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations
from math import prod

from ocannl_core.base.renamed import public_title
from ocannl_core.ir.numbers.primitives import BinaryOp
from ocannl_core.shape.language.shape_terms import Row, Shape
from ocannl_core.shape.solving.derivations import Certainty
from ocannl_core.shape.translation.logic import Compose, Pointwise
from ocannl_core.shape.translation.unmatched import DoubtfulBroadcast
from ocannl_core.tensor.graph.definitions import Applied, Declared, GradientOf, Parameter, ancestors
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.primitives.specifications import ALL_PAIRS, broadcast_by_position

_NOUNS = {
    BinaryOp.ADD: "a sum",
    BinaryOp.SUB: "a difference",
    BinaryOp.MUL: "a product",
    BinaryOp.DIV: "a quotient",
}


def report_broadcasts(tensors: Iterable[Tensor]) -> None:
    """Warn about doubtful operands of tensors, or refuse them, as the settings say.

    Raises:
        ShapeError: if the setting `missing_axes` is `error`.
    """
    learned: dict[Tensor, bool] = {}
    for tensor in tensors:
        definition = tensor.definition
        if not isinstance(definition, Applied):
            continue
        if isinstance(definition.logic, Pointwise):
            for remark in _remarks(tensor, definition, learned):
                tensor.session.environment.report(remark)
        elif isinstance(definition.logic, Compose):
            matrix, other = definition.operands
            if _is_broadcast_along_input(matrix):
                tensor.session.environment.report(_broadcast_matrix(tensor, matrix, other))


def _remarks(
    tensor: Tensor, definition: Applied, learned: dict[Tensor, bool]
) -> Iterator[DoubtfulBroadcast]:
    operands, primitive = definition.operands, definition.operation.primitive
    for one, other in permutations(operands, 2):
        if _meets_the_batch_again(one, other.shape):
            yield _all_pairs_of_the_batch(tensor, one, other)
        if _meets_the_batch_by_kind(one.shape, other.shape):
            yield _no_pairs_of_the_batch(tensor, one, other, primitive)
        if _has_the_batch_as_output(one, other):
            yield _batch_as_output(tensor, one, other)
    if len(operands) != 2 or definition.operation.combine is not None:
        return
    if primitive in (BinaryOp.SUB, BinaryOp.MUL):
        for one, other in (operands, operands[::-1]):
            if not _meets_all_pairs(one.shape, other.shape):
                continue
            if _is_learned(one, learned) != _is_learned(other, learned):
                yield _all_pairs(tensor, one, other, primitive)
    if primitive is BinaryOp.SUB:
        for one, other in (operands, operands[::-1]):
            if _is_learned(one, learned) and not _is_learned(other, learned):
                for data in _data_without_batch(one, other):
                    yield _one_prediction(tensor, one, other, data)
    is_sum = primitive in (BinaryOp.ADD, BinaryOp.SUB)
    for one, other in (operands, operands[::-1]):
        if is_sum and _is_matrix_beside_data(one, other):
            yield _matrices(tensor, one, other, primitive)
        # a product with one number, as in weight decay, gives no parameter its size
        is_cause = one is not other and other.shape.size > 1
        if not is_cause or not _grows(one) or _is_update(other):
            continue
        if not (is_sum and _is_learned(other, learned)):
            yield _grown(tensor, one, other, primitive)


def _is_broadcast_along_input(tensor: Tensor) -> bool:
    """Return True if a pointwise result has input axes, and none of its operands has any."""
    definition = tensor.definition
    return (
        isinstance(definition, Applied)
        and isinstance(definition.logic, Pointwise)
        and prod(tensor.shape.input.sizes) > 1
        and all(prod(each.shape.input.sizes) == 1 for each in definition.operands)
    )


def _broadcast_matrix(tensor: Tensor, matrix: Tensor, other: Tensor) -> DoubtfulBroadcast:
    return DoubtfulBroadcast(
        "The left operand of a product has the input axes that are summed.",
        f"{matrix.describe()} of shape {matrix.shape}: its operands have no input axes, so that "
        f"each of its numbers is multiplied by a sum of {other.describe()}, of shape {other.shape}",
        "the matrix is the left operand, as in w @ x, with its columns along an input axis: "
        "oc.tensor(array, input_axes=1), oc.param(name, output=[...])",
        tensor.origin,
    )


def _is_learned(tensor: Tensor, known: dict[Tensor, bool]) -> bool:
    """Return True if a tensor depends on a parameter, as predictions do and targets do not."""
    seen, pending = {tensor}, [tensor]
    while pending:
        each = pending.pop()
        if each.is_parameter or known.get(each):
            known[tensor] = True
            return True
        for operand in each.operands:
            if operand not in seen and known.get(operand) is not False:
                seen.add(operand)
                pending.append(operand)
    known.update(dict.fromkeys(seen, False))
    return False


def _is_update(tensor: Tensor) -> bool:
    """Return True if a tensor depends on gradients or memory, as the change of a parameter by an
    optimizer does, which has the parameter's shape.
    """
    return any(isinstance(each.definition, Declared | GradientOf) for each in ancestors([tensor]))


def _meets_all_pairs(one: Shape, other: Shape) -> bool:
    """Return True if one shape has a single batch axis, and the other an output axis as long."""
    along = _repeated(one.batch)
    if len(along) != 1 or along != _repeated(other.output):
        return False
    return not any(map(_repeated, (one.output, one.input, other.batch, other.input)))


def _meets_the_batch_again(one: Tensor, other: Shape) -> bool:
    """Return True for a tensor with a number for each position of the batch, `n,1|`, beside a shape
    with output axes, `n|m`: by position each row would meet its number, but n meets the axis 1, and
    the result has both axes. A condition `n,1|m` that compares such numbers with positions,
    `oc.arange(m) < lengths[:, None]`, is broadcast likewise.
    """
    batch = one.shape.batch.sizes
    if batch[-1:] != (1,) or prod(batch) == 1:
        return False
    dims = other.dims
    if len(dims) != len(batch):
        return False
    is_fitting = all(own in (1, theirs) for own, theirs in zip(batch, dims, strict=True))
    return is_fitting and bool(other.output.sizes) and _is_of_numbers(one, batch)


def _is_of_numbers(tensor: Tensor, batch: tuple[int, ...]) -> bool:
    """Return True if a tensor has a number for each position of a batch, or is computed cell by
    cell from one that has.
    """
    while tensor.shape.output.sizes or tensor.shape.input.sizes:
        definition = tensor.definition
        if not isinstance(definition, Applied) or not isinstance(definition.logic, Pointwise):
            return False
        operands = [each for each in definition.operands if each.shape.batch.sizes == batch]
        if len(operands) != 1:
            return False
        (tensor,) = operands
    return True


def _meets_the_batch_by_kind(one: Shape, other: Shape) -> bool:
    """Return True for a shape `n,|1,m` beside one with another batch axis in place of the axis 1,
    `1,n|m` or `n,n|m`: by position, n would meet the first batch axis of the other, not the last.
    """
    first, last = one.batch.sizes, other.batch.sizes
    if len(first) + 1 != len(last) or not first or 1 in (first[-1], last[-1]):
        return False
    if len(one.output.sizes) != len(other.output.sizes) + 1 or one.output.sizes[0] != 1:
        return False
    return bool(other.output.sizes) and broadcast_by_position((one, other))


def _has_the_batch_as_output(one: Tensor, other: Tensor) -> bool:
    """Return True for a tensor without batch axes, `n,m`, that is computed from a batch, as by
    `oc.reshape(x, n, m)`, beside `n|m`: by position they would meet.
    """
    first, last = one.shape, other.shape
    batch = first.batch.sizes
    if not _repeated(first.batch) or last.batch.sizes or len(first.dims) != len(last.dims):
        return False
    pairs = zip(first.dims, last.dims, strict=True)
    if last.dims[: len(batch)] != batch or not all(a == b or 1 in (a, b) for a, b in pairs):
        return False
    is_computed = isinstance(other.definition, Applied)
    return is_computed and any(_repeated(each.shape.batch) for each in ancestors([other]))


def _repeated(row: Row) -> list[int]:
    """Return the sizes of a row that are not 1."""
    return [n for n in row.sizes if n != 1]


def _all_pairs(
    tensor: Tensor, one: Tensor, other: Tensor, primitive: BinaryOp
) -> DoubtfulBroadcast:
    assert isinstance(primitive, BinaryOp)
    name = "difference" if primitive is BinaryOp.SUB else "product"
    return DoubtfulBroadcast(
        "A prediction and its target have their numbers along the same axes.",
        f"the {name} of {one.describe()} of shape {one.shape} and {other.describe()} of shape "
        f"{other.shape} has shape {tensor.shape}: all pairs of a batch axis and an output axis",
        "give both the batch axis, with oc.tensor(array, batch_axes=1) or "
        "oc.placeholder(name, batch=[...]); where all pairs are meant, name the axes, as in "
        f'{public_title(f"oc.{primitive.value.name}")}(a, b, logic="b|0; o => b|o")',
        tensor.origin,
    )


def _data_without_batch(prediction: Tensor, target: Tensor) -> list[Tensor]:
    """Return the first data with the batch of a target as an output axis, among others, on which a
    prediction without a batch depends.
    """
    along = _repeated(target.shape.batch)
    if len(along) != 1 or _repeated(prediction.shape.batch):
        return []
    return [
        each
        for each in ancestors([prediction])
        if (each.is_placeholder or each.literal is not None)
        and _repeated(each.shape.output)[:-1][:1] == along
        and not _repeated(each.shape.batch)
    ][:1]


def _one_prediction(
    tensor: Tensor, prediction: Tensor, target: Tensor, data: Tensor
) -> DoubtfulBroadcast:
    return DoubtfulBroadcast(
        "A prediction has the batch axis of its target.",
        f"{prediction.describe()} of shape {prediction.shape}, from {data.describe()} of shape "
        f"{data.shape}, is one prediction, which is compared with each of {target.describe()}, of "
        f"shape {target.shape}",
        "give the data a batch axis, oc.tensor(array, batch_axes=1) or "
        "oc.placeholder(name, batch=[...]), as products sum over all output axes",
        tensor.origin,
    )


def _all_pairs_of_the_batch(tensor: Tensor, one: Tensor, other: Tensor) -> DoubtfulBroadcast:
    return DoubtfulBroadcast(
        "A number for each position of the batch has the batch axes of what it meets.",
        f"{other.describe()} of shape {other.shape} and {one.describe()} of shape {one.shape} have "
        f"the result {tensor.shape}: all pairs of positions of the batch",
        "without the new axis, x[..., None], which is a batch axis here, the batch axes of both "
        "meet; where all pairs are meant, the other tensor is y[None]",
        tensor.origin,
    )


def _no_pairs_of_the_batch(
    tensor: Tensor, one: Tensor, other: Tensor, primitive: object
) -> DoubtfulBroadcast:
    name = primitive.value.name if isinstance(primitive, BinaryOp) else "sub"
    return DoubtfulBroadcast(
        "Axes that meet by position are of one kind.",
        f"{one.describe()} of shape {one.shape} and {other.describe()} of shape {other.shape} have "
        f"the result {tensor.shape}: positions of the last batch axes meet, and no pairs",
        ALL_PAIRS.format(public_title(f"oc.{name}")),
        tensor.origin,
    )


def _batch_as_output(tensor: Tensor, one: Tensor, other: Tensor) -> DoubtfulBroadcast:
    axes = len(one.shape.batch.sizes)
    batch, output = list(other.shape.dims[:axes]), list(other.shape.dims[axes:])
    return DoubtfulBroadcast(
        "Tensors that have the same batch have it along batch axes.",
        f"{one.describe()} of shape {one.shape} and {other.describe()} of shape {other.shape}, "
        f"which is computed from a batch, have the result {tensor.shape}: all pairs of positions",
        "state the kinds of axes where a new shape has the batch again, "
        f"oc.reshape(x, batch={batch}, output={output}); where all pairs are meant, name the axes, "
        'as in oc.add(a, b, logic="i|...; j... => i|j...")',
        tensor.origin,
    )


def _is_matrix_beside_data(one: Tensor, other: Tensor) -> bool:
    """Return True for a parameter with input axes, and data without."""
    if not one.is_parameter or not _repeated(one.shape.input) or _repeated(other.shape.input):
        return False
    is_batch = bool(_repeated(other.shape.batch))
    return is_batch or any(each.is_placeholder for each in ancestors([other]))


def _matrices(
    tensor: Tensor, parameter: Tensor, other: Tensor, primitive: object
) -> DoubtfulBroadcast:
    name = public_title("oc.add" if primitive is BinaryOp.ADD else "oc.sub")
    return DoubtfulBroadcast(
        "A bias has the output axes of what it is added to, and no input axes.",
        f"{parameter.describe()} of shape {parameter.shape} beside {other.describe()} of shape "
        f"{other.shape}: the result has shape {tensor.shape}, a matrix for each vector",
        'state output axes, oc.param("b", output=[...]), or no axes, oc.param("b"); where matrices '
        f'are meant, name the axes, as in {name}(a, b, logic="b|o; i->o => b|i->o")',
        tensor.origin,
    )


def _grows(parameter: Tensor) -> bool:
    """Return True if no statement, but a guess, gave a parameter of one number more than that."""
    definition = parameter.definition
    is_unstated = isinstance(definition, Parameter) and definition.is_unstated_number
    if not is_unstated or parameter.shape.size <= 1:
        return False
    rows = parameter.session.environment.explain(parameter.terms)
    return any(each.certainty is Certainty.GUESSED and prod(each.row.sizes) > 1 for each in rows)


def _grown(
    tensor: Tensor, parameter: Tensor, other: Tensor, primitive: object
) -> DoubtfulBroadcast:
    known = _NOUNS.get(primitive) if isinstance(primitive, BinaryOp) else None
    noun = known or tensor.origin.operation
    return DoubtfulBroadcast(
        "A parameter that starts as one number has one number, or the sizes that are stated.",
        f"{parameter.describe()} has shape {parameter.shape}, from {noun} with {other.describe()} "
        f"of shape {other.shape}",
        "state its axes: output=[] for one number, output=[...] for those of its uses",
        tensor.origin,
    )
