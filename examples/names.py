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

Codes = npt.NDArray[np.int32]


def names() -> list[str]:
    """Return the names of the list beside this file, shuffled in the same way every time."""
    listed = (Path(__file__).parent / "names.txt").read_text(encoding="utf-8").split()
    return list(np.random.default_rng(0).permutation(listed))


def examples(words: list[str]) -> tuple[Codes, Codes]:
    """Return the letters before each letter, shape (count, CONTEXT), and the letters."""
    return oc.data.contexts([[LETTERS.index(c) for c in word + "."] for word in words], CONTEXT)


def loss_of_pairs(trained: tuple[Codes, Codes], judged: tuple[Codes, Codes]) -> float:
    """Return the loss of guessing from counted pairs of letters."""
    counts = np.ones((len(LETTERS), len(LETTERS)))
    np.add.at(counts, (trained[0][:, -1], trained[1]), 1)
    shares = counts / counts.sum(1, keepdims=True)
    return float(-np.log(shares[judged[0][:, -1], judged[1]]).mean())


@oc.op
def speller(letters: oc.Tensor, *, embedding: int, hidden: int) -> oc.Tensor:
    """Return a score for each letter that could follow some letters, `batch|context`."""
    embedded = oc.nn.embedding(letters, entries=len(LETTERS), width=embedding)
    return oc.nn.mlp(embedded, hidden=[hidden], output=[len(LETTERS)], activation=oc.tanh)


class Speller:
    """A perceptron that predicts letters, trained by the constructor."""

    def __init__(self, words: list[str], epochs: int = 20, size: int = 50) -> None:
        self.ctx, self.network = oc.Context(), speller(embedding=8, hidden=64)
        letters = oc.placeholder("letters", batch=[size], output=[CONTEXT], dtype="int32")
        following = oc.placeholder("following", batch=[size], dtype="int32")
        loss = oc.nn.cross_entropy(self.network(letters), following)
        loader = oc.data.Loader(*examples(words), batch=size, shuffle=True)
        rate = oc.train.linear(0.1, steps=epochs * len(loader), final=0.0)
        optimizer = oc.train.SGD(learning_rate=rate, momentum=0.9)
        step = self.ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        self.ctx.init_params(loss)
        oc.train.fit(step, loader, [letters, following], loss=loss, epochs=epochs)

        self.last = oc.placeholder("last", output=[CONTEXT], dtype="int32")
        self.next = oc.softmax(self.network(self.last))
        self.predict = self.ctx.compile(oc.train.forward(self.next))

    def loss(self, words: list[str]) -> float:
        """Return the mean of `-log` of the probability of every letter of some names."""
        before, letters = (oc.tensor(each, batch_axes=1) for each in examples(words))
        value = oc.nn.cross_entropy(self.network(before), letters)
        self.ctx.compile(oc.train.forward(value))()
        return self.ctx.item(value)

    def name(self, rng: np.random.Generator) -> str:
        """Return an invented name."""
        codes = [0] * CONTEXT
        while len(codes) == CONTEXT or (codes[-1] != 0 and len(codes) < 20):
            self.ctx[self.last] = codes[-CONTEXT:]
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
