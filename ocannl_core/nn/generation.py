"""Text generation: sequences that a language model continues token by token, from a cache."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ocannl_core.base.errors import UsageError
from ocannl_core.base.rounding import power_above
from ocannl_core.ir.numbers.dtypes import float32, float64, int32, int64
from ocannl_core.nn.attention import KeyValueCache, key_value_cache
from ocannl_core.tensor.computations.recording import cd
from ocannl_core.tensor.custom.ordering import topk
from ocannl_core.tensor.custom.scans import cumsum
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock, evaluation
from ocannl_core.tensor.models.parameters import declare, placeholder, static_index
from ocannl_core.tensor.operations.axes import require_shape, sized_axes_of
from ocannl_core.tensor.operations.literals import number
from ocannl_core.tensor.operations.random import drawn_position
from ocannl_core.tensor.operations.reductions import min as least
from ocannl_core.tensor.primitives.pointwise_operations import cast, exp, maximum, where

if TYPE_CHECKING:
    from ocannl_core.runtime.context import Context
    from ocannl_core.runtime.routine import Routine

_SHORT = 8
"""The greatest number of tokens of a prompt that is read token by token."""

_LEAST = 1e-30
"""The least temperature and probability; smaller ones, 0 included, are replaced by it."""

Tokens = npt.NDArray[np.int32]


class Generator:
    """Continuation of sequences of tokens by a language model.

        model = oc.nn.gpt(vocabulary=256, layers=2, heads=4, width=16, length=64)
        ...
        generate = oc.nn.Generator(ctx, model)
        tokens = generate(prompt, 40, temperature=0.8)

    A call of the routine `write` takes the token at a position, stores its keys and values in a
    cache, draws the next token, and stores that, so that no number passes through the host. Longer
    prompts are read by one call of another routine, which is compiled for a power of two of tokens
    and fills the rest with padding: each cached position is written again before it is read.
    The parameters have the values that the context holds.

    Attributes:
        length: The greatest number of tokens of a sequence, the prompt included.
        cache: The keys and values.
        text: The sequences, token by token.
        write: The routine for one token, with the static index `at`, that draws from all tokens.
            `top_k` and `top_p` have routines of their own, one for each `top_k`.
    """

    def __init__(
        self,
        ctx: Context,
        model: NetworkBlock[Tensor],
        *,
        length: int | None = None,
        batch: int = 1,
        cache: KeyValueCache | None = None,
    ) -> None:
        """Compile the routines.

        Args:
            ctx: The context that has the parameters.
            model: A block `model(ids, cache, position)` that returns the scores of the next token
                at every position, such as `oc.nn.gpt`.
            length: The greatest number of tokens of a sequence; by default the model's own.
            batch: The number of sequences that are continued together.
            cache: The cache of the model, of that length and batch; by default one for the
                configuration of `oc.nn.gpt`.

        Raises:
            UsageError: if the model has no such configuration, or no room for two tokens.
        """
        config: dict[str, Any] = getattr(model, "config", {})
        room = length if length is not None else config.get("length")
        is_gpt = all(name in config for name in ("layers", "heads", "width"))
        if room is None or room < 2 or (cache is None and not is_gpt):
            raise UsageError.at_caller(
                "A generator has a cache for two tokens or more, for the layers and heads of its "
                "model.",
                found=f"length={room!r} and the model {model!r}",
                fix="oc.nn.Generator(ctx, oc.nn.gpt(...), length=64), or a cache for another model",
            )
        self.length: int = room
        self._ctx, self._model, self._batch = ctx, model, batch
        if cache is None:
            cache = key_value_cache(
                layers=config["layers"],
                length=room,
                heads=config.get("kv_heads") or config["heads"],
                width=config["width"],
                batch=[batch],
            )
        self.cache = cache
        self._readers: dict[int, tuple[Tensor, Routine]] = {}
        self._writers: dict[int | None, Routine] = {}
        self._at = static_index("at", range=room - 1)
        self.text: Tensor = declare("text", batch=[batch, room], output=[], input=[], dtype=int32)
        self._temperature = placeholder("temperature", output=[])
        self._seed = placeholder("seed", output=[], dtype=int64)
        self._top_p = placeholder("top_p", output=[])
        self._given = placeholder("given", output=[], dtype=int32)
        self.write: Routine = self._writer(None)

    def __call__(
        self,
        prompt: Any,
        count: int | None = None,
        *,
        temperature: float = 1.0,
        seed: int = 0,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> Tokens:
        """Return sequences that begin with a prompt.

        Args:
            prompt: The first tokens of a sequence; or of several ones of the same length, along the
                first axis.
            count: The number of tokens to add; by default as many as there is room for.
            temperature: The divisor of scores, as in `oc.categorical`; at 0 the likeliest follows.
            seed: A number that selects the random numbers.
            top_k: The number of tokens, the likeliest ones, from which each is drawn.
            top_p: A probability: each token is drawn from the smallest set of the likeliest ones
                whose probabilities at this temperature, among the `top_k` tokens, reach it. Either
                set has all tokens whose scores equal its least one.

        Raises:
            UsageError: if the prompt is empty, is none of integers, has sequences of several
                lengths, or the sequence is too long; if the temperature is below 0, or `top_k` or
                `top_p` would leave no token.
        """
        is_count = isinstance(top_k, Integral) and not isinstance(top_k, bool) and top_k >= 1
        is_share = isinstance(top_p, Real) and not isinstance(top_p, bool) and 0 < top_p <= 1
        if (top_k is not None and not is_count) or (top_p is not None and not is_share):
            raise UsageError.at_caller(
                "Tokens are drawn from the top_k likeliest ones, an integer of 1 or more, whose "
                "probabilities reach top_p, which is above 0 and at most 1.",
                found=f"top_k={top_k!r}, top_p={top_p!r}",
                fix="generate([3, 1, 4], 10, top_k=50, top_p=0.9)",
            )
        is_divisor = isinstance(temperature, Real) and temperature >= 0
        if isinstance(temperature, bool) or not is_divisor:
            raise UsageError.at_caller(
                "The temperature that divides scores is a number of 0 or more.",
                found=f"temperature={temperature!r}",
                fix="generate([3, 1, 4], 10, temperature=0.8); at 0 the likeliest token follows",
            )
        try:
            given = np.asarray(prompt)
        except ValueError as error:
            raise UsageError.at_caller(
                "Sequences that are continued together begin with prompts of one length.",
                found=f"prompts of lengths {', '.join(str(np.size(each)) for each in prompt)}",
                fix="a call for each, or for all of one length: "
                "oc.nn.Generator(ctx, model, batch=2) continues two at a time",
            ) from error
        rows = given[None] if given.ndim == 1 else given
        start = rows.shape[-1] if rows.ndim == 2 else 0
        added = self.length - start if count is None else count
        if (
            not start
            or rows.shape[0] not in (1, self._batch)
            or rows.dtype.kind not in "iu"
            or not 0 <= added <= self.length - start
        ):
            raise UsageError.at_caller(
                f"A generator continues {self._batch} sequence{'s' * (self._batch > 1)} of at "
                f"least one token, an integer, to at most {self.length} tokens.",
                found=f"a prompt of {given.dtype} and shape {given.shape}, and count={count!r}",
                fix="generate([3, 1, 4], 10); oc.nn.Generator(..., length=, batch=) states both",
            )
        ctx = self._ctx
        tokens = np.zeros((self._batch, self.length), np.int32)
        tokens[:, :start] = rows
        ctx[self.text], ctx[self._given] = tokens, start
        ctx[self._temperature], ctx[self._seed] = temperature, seed
        write = self.write
        if top_k is not None or (top_p is not None and top_p < 1):
            write = self._writer(int(top_k or 0))
            ctx[self._top_p] = 1.0 if top_p is None else top_p
        first = 0
        if start > _SHORT:
            first = start - 1
            prompt, read = self._reader(first)
            ctx[prompt] = tokens[:, : prompt.shape.dims[1]]
            read()
        for place in range(first, start - 1 + added):
            write(at=place)
        found = np.array(ctx[self.text][:, : start + added])
        return found[0] if given.ndim == 1 and self._batch == 1 else found

    def _writer(self, top_k: int | None) -> Routine:
        """Return the routine that draws one token from the `top_k` likeliest, or, if that is 0,
        from all down to the placeholder `top_p`; None for a draw from all.
        """
        if top_k not in self._writers:
            at = self._at

            @cd
            def write_next() -> None:
                scores = self._model(self.text[:, at : at + 1], self.cache, at)
                require_shape(scores, f"{self._batch},1|_")
                if top_k is not None:
                    scores = likeliest(scores, top_k, self._top_p, self._temperature)
                counter = self._seed * self.length + number(at, dtype=int64)
                # by one identity, so that a seed means the same in all routines
                drawn = drawn_position(scores, -1, self._temperature, counter, self._seed)
                following = self.text[:, at + 1 : at + 2]
                is_given = number(at + 1, dtype=int32) < self._given
                self.text[:, at + 1 : at + 2] = where(is_given, following, drawn)

            with evaluation():
                self._writers[top_k] = self._ctx.compile(write_next(), bindings=[at])
        return self._writers[top_k]

    def _reader(self, count: int) -> tuple[Tensor, Routine]:
        """Return the routine that reads at least a number of tokens, and its placeholder."""
        size = min(power_above(count), self.length)
        if size not in self._readers:
            prompt = placeholder("prompt", batch=[self._batch, size], output=[], dtype=int32)

            @cd
            def read_prompt() -> None:
                self._model(prompt, self.cache)

            with evaluation():
                self._readers[size] = prompt, self._ctx.compile(read_prompt())
        return self._readers[size]


def likeliest(scores: Tensor, top_k: int, top_p: Tensor, temperature: Tensor) -> Tensor:
    """Return the scores of the likeliest tokens, and minus infinity for all others.

    Args:
        top_k: The number of tokens that are kept; 0 for all of them.
        top_p: The probability that the kept ones of the `top_k` tokens reach together.
    """
    own = sized_axes_of(scores, "oc.nn.Generator")
    tokens = own.known_size(len(own) - 1)
    scores = cast(scores, float64 if scores.dtype is float64 else float32)
    ordered, _ = topk(scores, min(top_k or tokens, tokens))
    # without a shift exp overflows; a difference of 0 stays 0 at any temperature
    weights = exp((ordered - ordered[..., :1]) / maximum(temperature, _LEAST))
    reached = cumsum(weights, axis=-1)
    below = reached - weights < maximum(top_p, _LEAST) * reached[..., -1:]
    # at 1 all are kept, also those too unlikely to change the sum
    is_kept = where(top_p < 1.0, below, 1.0)
    bound = least(where(is_kept, ordered, float("inf")), axis=-1, keepdims=True)
    return where(scores < bound, float("-inf"), scores)
