"""Four models of names, from pairs of letters to a tree of convolutions, like makemore's.

`python examples/makemore.py` trains each for some seconds, prints its loss (the mean of `-log` of
the probability of a letter) on the names it was trained on and on others, and invents names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

LETTERS = ".abcdefghijklmnopqrstuvwxyz"
"""The first one stands before and behind every name."""

Codes = npt.NDArray[np.int32]


@oc.op
def bigram(letters: oc.Tensor) -> oc.Tensor:
    """Return a score for each letter that could follow the last one."""
    return oc.nn.embedding(letters[:, -1], entries=len(LETTERS), width=len(LETTERS), init=0.0)


@oc.op
def mlp(letters: oc.Tensor, *, normalize: bool = False) -> oc.Tensor:
    """Return scores of the next letter from vectors of all letters at once.

    The first layer contracts both axes of the vectors, the place and the feature.
    """
    h = oc.nn.dense(oc.nn.embedding(letters, entries=len(LETTERS), width=12), output=[128])
    h = oc.nn.batch_norm(h) if normalize else h
    return oc.nn.dense(oc.tanh(oc.nn.dropout(h, rate=0.2)), output=[len(LETTERS)])


@oc.op
def wavenet(letters: oc.Tensor, *, hidden: int = 64, layers: int = 3) -> oc.Tensor:
    """Return scores from a tree: each layer joins neighboring places in pairs."""
    h = oc.nn.embedding(letters, entries=len(LETTERS), width=12)
    for _ in range(layers):
        h = oc.nn.conv(h, axes=1, kernel=2, stride=2, padded=False, channels=[hidden], bias=False)
        h = oc.tanh(oc.nn.batch_norm(h, shape="...|p,..c..", features="..c.."))
        h = oc.nn.dropout(h, rate=0.2)
    return oc.nn.dense(h, output=[len(LETTERS)])


MODELS: dict[str, tuple[int, Callable[[], Any]]] = {
    "bigram": (1, bigram),
    "mlp": (3, mlp),
    "batch norm": (3, partial(mlp, normalize=True)),
    "wavenet": (8, wavenet),
}
"""The number of letters that a model sees, and the block."""


class Figures(NamedTuple):
    """The losses of a trained model, and names that it invented."""

    train: float
    held_out: float
    invented: list[str]


def names() -> list[str]:
    """Return the first names of the United States census of 1990, in a shuffled order."""
    listed = Path(__file__).with_name("census_names.txt").read_text(encoding="utf-8").split()
    return [str(name) for name in np.random.default_rng(0).permutation(listed)]


def examples(words: Sequence[str], context: int) -> tuple[Codes, Codes]:
    """Return the letters before each letter, shape (count, context), and the letters."""
    return oc.data.contexts([[LETTERS.index(c) for c in word + "."] for word in words], context)


def train(
    make: Callable[[], Any],
    context: int,
    words: Sequence[str],
    epochs: int,
    batch: int = 64,
    scale: oc.train.DynamicScale | None = None,
) -> Figures:
    """Train a model on nine tenths of the names; float16 needs a scale of the loss."""
    known, held_out = np.split(np.array(words), [len(words) * 9 // 10])
    letters = oc.placeholder("letters", batch=[batch], output=[context], dtype="int32")
    following = oc.placeholder("following", batch=[batch], dtype="int32")
    model = make()
    loss = oc.nn.cross_entropy(model(letters), following)

    loader = oc.data.Loader(*examples(known, context), batch=batch, shuffle=True)
    rate = oc.train.cosine(1e-2, steps=epochs * len(loader), warmup=20)
    optimizer = oc.train.AdamW(learning_rate=rate, weight_decay=0.01, loss_scale=scale)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(optimizer.minimize(loss))
    oc.train.fit(step, loader, [letters, following], loss=loss, epochs=epochs)

    losses = []
    for part in (known, held_out):
        before, after = (oc.tensor(each, batch_axes=1) for each in examples(part, context))
        with oc.evaluation():
            value = oc.nn.cross_entropy(oc.cast(model(before), "float32"), after)
        ctx.compile(oc.train.forward(value))()
        losses.append(ctx.item(value))
    return Figures(*losses, invent(ctx, model, letters))


def invent(ctx: oc.Context, model: Any, letters: oc.Tensor) -> list[str]:
    """Return names, one for each row of a batch, drawn letter by letter."""
    place = oc.static_index("place")
    with oc.evaluation():
        drawn = oc.categorical(model(letters), counter=place)
    draw = ctx.compile(oc.train.forward(drawn), bindings=[place])
    rows, context = letters.shape.dims
    written = np.zeros((rows, context), np.int32)
    for number in range(15):
        ctx[letters] = written[:, -context:]
        draw(place=number)
        written = np.column_stack([written, ctx[drawn]])
    texts = ["".join(LETTERS[code] for code in row) for row in written[:, context:]]
    return [text.split(".")[0] for text in texts]


def main(arguments: Sequence[str] | None = None) -> dict[str, Figures]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--names", type=int, default=None, help="of how many names; all by default")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args(arguments)
    found = {}
    print(f"{'':>10}  train  held out")
    for title in options.models:
        context, make = MODELS[title]
        with oc.Session(seed=0):
            found[title] = train(make, context, names()[: options.names], options.epochs)
        first, second, invented = found[title]
        print(f"{title:>10}  {first:.3f}     {second:.3f}  ", *invented[:5])
    return found


if __name__ == "__main__":
    main()
