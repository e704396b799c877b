"""Train a perceptron to spell first names, letter by letter, and generate new ones.

`python examples/names.py` trains a perceptron on the last three letters, compares it with counts of
pairs of letters, and prints generated names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

LETTERS = ".abcdefghijklmnopqrstuvwxyz"
"""The first one stands before and behind every name."""
CONTEXT = 3

Array = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int64]


def names() -> list[str]:
    """Return the names of the list beside this file, shuffled in the same way every time."""
    listed = (Path(__file__).parent / "names.txt").read_text(encoding="utf-8").split()
    return list(np.random.default_rng(0).permutation(listed))


def examples(words: list[str]) -> tuple[Codes, Codes]:
    """Return the letters before each letter, shape (count, CONTEXT), and the letters."""
    windows = []
    for word in words:
        codes = [LETTERS.index(letter) for letter in "." * CONTEXT + word + "."]
        windows += [codes[k : k + CONTEXT + 1] for k in range(len(word) + 1)]
    table = np.array(windows)
    return table[:, :-1], table[:, -1]


def one_hot(codes: Codes) -> Array:
    return np.eye(len(LETTERS), dtype=np.float32)[codes]


def loss_of_pairs(trained: tuple[Codes, Codes], judged: tuple[Codes, Codes]) -> float:
    """Return the loss of guessing from counted pairs of letters."""
    counts = np.ones((len(LETTERS), len(LETTERS)))
    np.add.at(counts, (trained[0][:, -1], trained[1]), 1)
    shares = counts / counts.sum(1, keepdims=True)
    return float(-np.log(shares[judged[0][:, -1], judged[1]]).mean())


@oc.op
def speller(x: oc.Tensor, *, embedding: int, hidden: int) -> oc.Tensor:
    """Return a score for each letter that could follow; `x` is one-hot, `batch|context,letter`."""
    table = oc.param("embedding", output=[embedding])
    embedded = oc.einsum("...| p, c; c -> e => ...| p, e", x, table)
    h = oc.tanh(oc.param("w1") @ embedded + oc.param("b1", output=[hidden], init=0.0))
    return oc.param("w2", output=[len(LETTERS)]) @ h + oc.param("b2", init=0.0)


def cross_entropy(scores: oc.Tensor, letters: oc.Tensor, count: int) -> oc.Tensor:
    likelihood = oc.nn.softmax("...|... => ...|0", scores) * letters
    return -oc.einsum("...|0 => 0", oc.log(oc.einsum("...|c => ...|0", likelihood))) / count


class Speller:
    """A perceptron that predicts letters, trained by the constructor."""

    def __init__(self, words: list[str], epochs: int = 20, size: int = 50) -> None:
        before, letters = examples(words)
        batches = len(letters) // size
        self.ctx, self.network = oc.Context(), speller(embedding=8, hidden=64)
        i = oc.static_index("i", range=batches)
        xs = oc.placeholder("xs", batch=[batches, size], output=[CONTEXT, len(LETTERS)])
        ys = oc.placeholder("ys", batch=[batches, size], output=[len(LETTERS)])
        loss = cross_entropy(self.network(xs[i]), ys[i], size)
        rate = oc.placeholder("rate")
        update = oc.train.sgd_update(loss, learning_rate=rate, momentum=0.9)
        step = self.ctx.compile(oc.train.grad_update(loss) + update, bindings=[i])
        self.ctx.init_params(loss)
        order = np.random.default_rng(1)
        for epoch in range(epochs):
            kept = order.permutation(len(letters))[: batches * size].reshape(batches, size)
            self.ctx[xs], self.ctx[ys] = one_hot(before[kept]), one_hot(letters[kept])
            self.ctx[rate] = 0.1 * (1 - epoch / epochs)
            for number in range(batches):
                step(i=number)

        self.last = oc.placeholder("last", output=[CONTEXT, len(LETTERS)])
        self.next = oc.nn.softmax("...|... => ...|0", self.network(self.last))
        self.predict = self.ctx.compile(oc.train.forward(self.next))

    def loss(self, words: list[str]) -> float:
        """Return the mean of `-log` of the probability of every letter of some names."""
        before, letters = examples(words)
        x, y = oc.tensor(one_hot(before), batch_axes=1), oc.tensor(one_hot(letters), batch_axes=1)
        value = cross_entropy(self.network(x), y, len(letters))
        self.ctx.compile(oc.train.forward(value))()
        return self.ctx.item(value)

    def name(self, rng: np.random.Generator) -> str:
        """Return an invented name."""
        codes = [0] * CONTEXT
        while len(codes) == CONTEXT or (codes[-1] != 0 and len(codes) < 20):
            self.ctx[self.last] = one_hot(np.array(codes[-CONTEXT:]))
            self.predict()
            shares = self.ctx[self.next].astype(np.float64)
            codes.append(int(rng.choice(len(LETTERS), p=shares / shares.sum())))
        return "".join(LETTERS[code] for code in codes).strip(".")


def main() -> None:
    words = names()
    known, new = words[:-100], words[-100:]
    model = Speller(known)
    print(f"pairs of letters: loss {loss_of_pairs(examples(known), examples(new)):.3f}")
    print(f"perceptron:       loss {model.loss(new):.3f}")
    rng = np.random.default_rng(2)
    print("invented:", ", ".join(model.name(rng) for _ in range(12)))


if __name__ == "__main__":
    main()
