"""Counter-based random numbers: a cell's value is a function of the tensor's identity, the seed and
the cell's offset.

    word(cell) = hash(hash(identity, seed), offset)

`hash` is Threefry-4x32, and the identity is the creation ordinal of a leaf that belongs to one
expression of random numbers. A counter, if given, is hashed in before the offset. Choices by scores
are the positions of the greatest sums of scores and random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Literal, get_args

from ocannl_core.base.errors import UsageError
from ocannl_core.base.fast_dataclass import replace
from ocannl_core.base.origin import Origin
from ocannl_core.ir.assignments.nodes import Constant, RangeOverOffsets
from ocannl_core.ir.indexing import StaticIndex
from ocannl_core.ir.numbers import dtypes
from ocannl_core.ir.numbers.primitives import BinaryOp, UnaryOp
from ocannl_core.shape.language.shape_terms import closed_shape
from ocannl_core.shape.translation.logic import Logic, NumbersOfWords
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.expression import Operand
from ocannl_core.tensor.graph.precision import Precision, choose_precision
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.axes import require_shapes, sized_axes_of
from ocannl_core.tensor.operations.literals import number
from ocannl_core.tensor.operations.reductions import argmax
from ocannl_core.tensor.primitives.operands import fill_tensor, require_operand, word_constant
from ocannl_core.tensor.primitives.operation import Operation
from ocannl_core.tensor.primitives.pointwise_operations import (
    cast,
    cos,
    identity,
    lift,
    log,
    maximum,
    mul,
    sqrt,
)

Counter = Tensor | StaticIndex | int
Distribution = Literal["uniform", "normal"]
Mode = Literal["fan_in", "fan_out", "fan_avg"]

_LEAST = {dtypes.float32: 2.0**-25, dtypes.float64: 2.0**-65}
"""Half of the least uniform number above 0, in place of 0 in logarithms."""
_SMALLEST = {dtypes.float32: 2.0**-25, dtypes.float64: 2.0**-54}
"""At most half of the least uniform number above 0, in place of 0."""


class _WordOperation(Operation):
    """A conversion to or from random words: its result has a format of its own."""

    def precision(
        self,
        operands: Sequence[Tensor],
        session: Session,
        origin: Origin,
        logic: Logic,
        dtype: dtypes.DType | str | None = None,
    ) -> Precision:
        for operand in operands:
            operand.note_use(origin)
        if self.primitive is UnaryOp.UNIFORM or self.primitive is None:
            # shorter floats are random patterns, NaN included
            return choose_precision(dtype, dtypes.promote(session.default_dtype, dtypes.float16))
        return Precision.stated(dtypes.uint4x32)


def _conversion(name: str, primitive: UnaryOp) -> Operation:
    code = lift(name, primitive).forward
    return _WordOperation(name=name, operands=1, logic=".", forward=code, primitive=primitive)


_word_of_number = _conversion("word", UnaryOp.WORD)
threefry4x32 = lift("threefry4x32", BinaryOp.THREEFRY4X32)
_threefry4x32_12 = lift("threefry4x32_12", BinaryOp.THREEFRY4X32_12)

_number_of_word = _conversion("uniform", UnaryOp.UNIFORM)
_numbers_of_word = replace(_number_of_word, forward=identity.forward, primitive=None)


def random_words(*, counter: Counter | None = None, label: str | None = None) -> Tensor:
    """Return random words of 128 bits, in the shape that follows from their use.

    Args:
        counter: A number that is hashed in: every value gives other words.
    """
    return words_of(None, counter, label)


def words_of(identity: Tensor | None, counter: Counter | None, label: str | None = None) -> Tensor:
    """Return random words of an identity; by default, of an identity of their own. Expressions that
    share an identity and a counter have the same words.
    """
    session = sessions.current()
    hashed = threefry4x32 if session.threefry_rounds == 20 else _threefry4x32_12
    shape = session.environment.fresh_shape(name="offsets")
    offsets = fill_tensor(session, RangeOverOffsets, shape, dtypes.uint32, "offsets")
    owner = offsets if identity is None else identity
    key = hashed(word_constant(session, lambda: owner.id, "identity"), _seed(session))
    if counter is not None:
        key = hashed(key, _counter(counter))
    loop = session.loop
    while loop is not None:  # other numbers in each step
        position = number(loop.index, dtype=dtypes.int64)
        loop.positions.add(position)
        key = hashed(key, word(position))
        loop = loop.outer
    result: Tensor = hashed(key, word(offsets), label=label or "words")
    return result


def _seed(session: Session) -> Tensor:
    """Return the seed that all random numbers of a session share."""
    return sessions.shared(
        session,
        ("seed",),
        lambda: word_constant(session, lambda: session.seed & (2**64 - 1), "seed"),
    )


def _counter(counter: Counter) -> Tensor:
    if not isinstance(counter, Tensor | StaticIndex | Integral):
        raise UsageError.at_caller(
            "The counter of random numbers is an integer, a static index or a tensor.",
            found=repr(counter),
        )
    return word(
        number(counter, dtype=dtypes.int64) if isinstance(counter, StaticIndex) else counter
    )


def word(value: Tensor | int, *, label: str | None = None) -> Tensor:
    """Return the bits of numbers as words of 128 bits, for keys and counters of hashes.

    The bits are the low lanes of a word. The bits of a 32-bit integer are spread over its four
    lanes; a Python integer has 64 bits.
    """
    if isinstance(value, Integral):
        bits = int(value) & (2**64 - 1)
        return word_constant(sessions.current(), lambda: bits, label or "word")
    words: Tensor = _word_of_number(value, label=label)
    return words


def uniform_of(
    words: Tensor,
    *,
    packed: bool = False,
    dtype: dtypes.DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Convert random words to numbers.

    Floats of 16 bits and more are uniform in [0, 1], where only rounding reaches 1; a float32 is
    always less than 1. Integers are the bits of a word themselves, and so are 8-bit floats, NaN and
    infinities included.

    Args:
        words: The words. When packed, they are one output axis.
        packed: True to make as many numbers of each word as fit it, which is quicker: 16, 8, 4 or 2
            of 1, 2, 4 or 8 bytes. The result has this many times the number of cells, in the shape
            that follows from its use; a shape with another number of cells is a ShapeError.
        dtype: The number format; by default the format of the uses, but no 8-bit float.
    """
    name = label or "uniform"
    if not packed:
        one_each: Tensor = _number_of_word(words, label=name, dtype=dtype)
        return one_each
    logic = NumbersOfWords(0 if dtype is None else 16 // dtypes.dtype_of(dtype).nbytes)
    return _numbers_of_word.tensor((words,), logic, label=name, dtype=dtype)


def uniform(
    *,
    counter: Counter | None = None,
    packed: bool = False,
    dtype: dtypes.DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return random numbers in [0, 1), in the shape that follows from their use.

    Numbers of float64, and of floats shorter than 32 bits, are rounded, so that 1 may occur.
    Integers are uniform over their whole format.

    Args:
        counter: An integer, a static index or a tensor that is hashed in. Without it a computation
            has the same numbers in every run; with the number of the training step as a counter,
            other ones in every step.
        packed: True to make several numbers of each random word; see `uniform_of`. By default each
            number has a word, which fits every shape.
        dtype: The number format; by default the format of the uses.
    """
    words = random_words(counter=counter)
    if dtype is not None and dtypes.dtype_of(dtype).is_float and dtypes.dtype_of(dtype).nbytes == 1:
        wide = uniform_of(words, packed=packed, dtype=dtypes.float32)
        narrow: Tensor = cast(wide, dtype, label=label or "uniform")
        return narrow
    return uniform_of(words, packed=packed, dtype=dtype, label=label)


def normal(
    *,
    counter: Counter | None = None,
    packed: bool = False,
    dtype: dtypes.DType | str | None = None,
    label: str | None = None,
) -> Tensor:
    """Return random numbers of mean 0 and variance 1, in the shape that follows from their use.

    They are computed from two uniform numbers each (Box and Muller), in float32, or in float64 if
    that is the format. No magnitude is more than 5.9 in float32, and 9.5 in float64. The number
    format is the session's default float when not given; other arguments are as for `uniform`.
    """
    wanted = dtypes.dtype_of(dtype or sessions.current().default_dtype)
    if not wanted.is_float:
        raise UsageError.at_caller("Normally distributed numbers are floats.", found=str(wanted))
    working = dtypes.float64 if wanted is dtypes.float64 else dtypes.float32
    # without a stated format the numbers may still follow the format of their uses
    stated = None if dtype is None and wanted is working else working
    radius, angle = (
        uniform(counter=counter, packed=packed, dtype=stated, label=name)
        for name in ("radius", "angle")
    )
    length = sqrt(-2.0 * log(maximum(radius, _LEAST[working])))
    name = label or "normal"
    result: Tensor = mul(length, cos((2.0 * math.pi) * angle), label=name)
    return cast(result, wanted, label=name) if wanted is not working else result


def kaiming(
    *,
    gain: float = math.sqrt(2.0),
    mode: Mode = "fan_in",
    distribution: Distribution = "uniform",
    dtype: dtypes.DType | str | None = None,
) -> Tensor:
    """Return random numbers of mean 0 and standard deviation `gain / sqrt(fan)`.

    He et al., "Delving deep into rectifiers"; the default gain is right before a relu.

    Args:
        gain: The gain of the following activation.
        mode: `"fan_in"`, the number of cells of the input axes; `"fan_out"`, of the output axes; or
            `"fan_avg"`, the mean of both. Sizes are inferred from the use of the result.
        distribution: `"uniform"` or `"normal"`.
    """
    _check_choice("mode", mode, get_args(Mode))
    return _scale_numbers(
        lambda inputs, outputs: gain / math.sqrt(_fan(mode, inputs, outputs)), distribution, dtype
    )


def xavier(
    *,
    gain: float = 1.0,
    distribution: Distribution = "uniform",
    dtype: dtypes.DType | str | None = None,
) -> Tensor:
    """Return random numbers of mean 0 and standard deviation `gain * sqrt(2 / (fan_in + fan_out))`.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks".

    Args:
        gain: The gain of the following activation.
        distribution: `"uniform"` or `"normal"`.
    """
    return kaiming(gain=gain, mode="fan_avg", distribution=distribution, dtype=dtype)


def default_initializer() -> Tensor:
    """Return the default initial values of parameters: uniform, centered, with variance 1 / fan-in.

    Without input axes the range is [-0.25, 0.25).
    """
    narrow = 0.25 / math.sqrt(3.0)
    return _scale_numbers(
        lambda inputs, _: 1.0 / math.sqrt(_fan("fan_in", inputs, ())) if inputs else narrow,
        "uniform",
        None,
    )


def _fan(mode: Mode, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> float:
    """Return the fan of a tensor by the given mode, at least 1."""
    fans = {"fan_in": math.prod(inputs), "fan_out": math.prod(outputs)}
    found = fans[mode] if mode in fans else sum(fans.values()) / 2
    return max(found, 1)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError.at_caller(
            f"The {name} of an initializer is one of {', '.join(map(repr, choices))}.",
            found=repr(value),
        )


def _scale_numbers(
    deviation: Callable[[tuple[int, ...], tuple[int, ...]], float],
    distribution: Distribution,
    dtype: dtypes.DType | str | None,
) -> Tensor:
    """Return random numbers of mean 0, whose deviation follows from input and output sizes."""
    _check_choice("distribution", distribution, get_args(Distribution))
    session = sessions.current()
    if distribution == "uniform":
        numbers, factor = uniform(dtype=dtype), math.sqrt(12.0)
        centered = numbers - 0.5
    else:
        numbers, factor = normal(dtype=dtype), 1.0
        centered = numbers

    def scale() -> Constant:
        shape = session.environment.view(numbers.terms)
        return Constant(factor * deviation(shape.input.sizes, shape.output.sizes))

    precision = choose_precision(dtype, session.default_dtype)
    result: Tensor = centered * fill_tensor(session, scale, closed_shape(), precision, "scale")
    return result


def categorical(
    scores: Tensor, *, axis: int = -1, temperature: Operand = 1.0, counter: Counter | None = None
) -> Tensor:
    """Return a position along an axis, drawn with probability `softmax(scores / temperature)`, as
    an integer of 32 bits.

    It is the position of the greatest sum of a score and a random number of Gumbel's distribution,
    so that no probabilities are computed, and a score of minus infinity is never chosen.

    Args:
        scores: The logarithms of probabilities, up to a term that is the same along the axis.
        temperature: A number or a tensor of one cell. At 0 the result is the greatest's position.
        counter: As for `uniform`: with another number in each call, calls draw independently.

    Raises:
        UsageError: if the scores are no floats, or the temperature is a negative number.
    """
    scores = require_operand(scores, "oc.categorical")
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not scores.dtype.is_float or (is_number and not temperature >= 0):
        raise UsageError.at_caller(
            "A choice has scores that are floats, and a temperature of 0 or more.",
            found=f"scores of {scores.dtype}, temperature={temperature!r}",
            fix="oc.categorical(scores, temperature=0.8)",
        )
    return drawn_position(scores, axis, temperature, counter)


def drawn_position(
    scores: Tensor,
    axis: int,
    temperature: Operand,
    counter: Counter | None,
    identity: Tensor | None = None,
) -> Tensor:
    """Return a position as `categorical` does, by the random numbers of an identity."""
    sized_axes_of(scores, "oc.categorical")
    working = dtypes.float64 if scores.dtype is dtypes.float64 else dtypes.float32
    drawn = uniform_of(words_of(identity, counter), dtype=working)
    noise = -log(maximum(-log(maximum(drawn, _SMALLEST[working])), _SMALLEST[working]))
    noisy = cast(scores, working) + temperature * noise
    # neither the random numbers nor their sum with the scores have other axes
    require_shapes("; ".join(["..b..|..n..->..i.."] * 3), scores, noise, noisy)
    found: Tensor = argmax(noisy, axis=axis)
    return found
