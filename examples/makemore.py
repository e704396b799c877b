"""Four models of names, from pairs of letters to a tree of convolutions, like makemore's.

`python examples/makemore.py` trains each for some seconds, prints its loss (the mean of `-log` of
the probability of a letter) on the names it was trained on and on others, and invents names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

LETTERS = ".abcdefghijklmnopqrstuvwxyz"
"""The first one stands before and behind every name."""

Codes = npt.NDArray[np.int32]
Model = Callable[..., oc.Tensor]


@oc.op
def bigram(letters: oc.Tensor) -> oc.Tensor:
    """Return a score for each letter that could follow the last one."""
    return oc.nn.embedding(letters[:, -1], entries=len(LETTERS), width=len(LETTERS), init=0.0)


@oc.op
def mlp(letters: oc.Tensor, *, hidden: int, normalise: bool = False) -> oc.Tensor:
    """Return scores of the next letter from vectors of all letters at once.

    The first layer contracts both axes of the vectors, the place and the feature.
    """
    h = oc.nn.dense(oc.nn.embedding(letters, entries=len(LETTERS), width=12), output=[hidden])
    h = oc.nn.batch_norm(h) if normalise else h
    return oc.nn.dense(oc.tanh(oc.nn.dropout(h, rate=0.2)), output=[len(LETTERS)])


@oc.op
def wavenet(letters: oc.Tensor, *, hidden: int, layers: int) -> oc.Tensor:
    """Return scores from a tree: each layer joins neighbouring places in pairs."""
    h = oc.nn.embedding(letters, entries=len(LETTERS), width=12)
    for _ in range(layers):
        h = oc.nn.conv(h, axes=1, kernel=2, stride=2, padded=False, channels=[hidden], bias=False)
        h = oc.tanh(oc.nn.batch_norm(h, axes="...|p,..c..", features="..c.."))
        h = oc.nn.dropout(h, rate=0.2)
    return oc.nn.dense(h, output=[len(LETTERS)])


MODELS: dict[str, tuple[int, Callable[[], Model]]] = {
    "bigram": (1, lambda: bigram()),
    "mlp": (3, lambda: mlp(hidden=128)),
    "batch norm": (3, lambda: mlp(hidden=128, normalise=True)),
    "wavenet": (8, lambda: wavenet(hidden=64, layers=3)),
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
    coded = [[LETTERS.index(each) for each in "." * context + word + "."] for word in words]
    windows = [code[k : k + context + 1] for code in coded for k in range(len(code) - context)]
    table = np.array(windows, np.int32)
    return table[:, :-1], table[:, -1]


def train(
    make: Callable[[], Model], context: int, words: Sequence[str], epochs: int, batch: int = 64
) -> Figures:
    """Train a model on nine tenths of the names."""
    known, held_out = np.split(np.array(words), [len(words) * 9 // 10])
    letters = oc.placeholder("letters", batch=[batch], output=[context], dtype="int32")
    following = oc.placeholder("following", batch=[batch], dtype="int32")
    model = make()
    loss = oc.nn.cross_entropy(model(letters), following)

    loader = oc.data.Loader(*examples(known, context), batch=batch, shuffle=True)
    rate = oc.train.cosine(1e-2, steps=epochs * len(loader), warmup=20)
    optimiser = oc.train.AdamW(learning_rate=rate, weight_decay=0.01)
    ctx = oc.Context()
    ctx.init_params(loss)
    step = ctx.compile(oc.train.grad_update(loss) + optimiser.update(loss))
    oc.train.fit(step, loader, [letters, following], loss=loss, epochs=epochs)

    def judge(words: Sequence[str]) -> float:
        before, after = examples(words, context)
        with oc.evaluation():
            value = oc.nn.cross_entropy(
                model(oc.tensor(before, batch_axes=1)), oc.tensor(after, batch_axes=1)
            )
        ctx.compile(oc.train.forward(value))()
        return ctx.item(value)

    with oc.evaluation():
        chances = oc.softmax(model(letters), axis=-1)
    return Figures(judge(known), judge(held_out), invent(ctx, letters, chances))


def invent(ctx: oc.Context, letters: oc.Tensor, chances: oc.Tensor) -> list[str]:
    """Return names, one for each row of a batch."""
    predict = ctx.compile(oc.train.forward(chances))
    random = np.random.default_rng(1)
    rows, context = letters.shape.dims
    written = np.zeros((rows, context), np.int32)
    for _ in range(15):
        ctx[letters] = written[:, -context:]
        predict()
        reached = random.random((rows, 1)) < ctx[chances].cumsum(axis=1)
        written = np.column_stack([written, reached.argmax(axis=1)])
    texts = ["".join(LETTERS[code] for code in row) for row in written[:, context:]]
    return [text.split(".")[0] for text in texts]


def main(arguments: Sequence[str] | None = None) -> dict[str, Figures]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--names", type=int, default=None, help="of how many names; all by default")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args(arguments)
    found = {}
    for title in options.models:
        context, make = MODELS[title]
        with oc.Session(seed=0):
            figures = train(make, context, names()[: options.names], options.epochs)
        found[title] = figures
        print(f"{title:>10}: train {figures.train:.3f}, held out {figures.held_out:.3f}", end="   ")
        print(*figures.invented[:6])
    return found


if __name__ == "__main__":
    main()
