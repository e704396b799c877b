"""A character-level GPT on this project's own documentation, with text sampled from a cache.

`python examples/char_gpt.py` trains for less than a minute, prints the loss (the mean of `-log` of
the probability of a character) on pages that it was not trained on, and writes a text.

Training and writing are two routines with the same parameters. The first sees whole windows. A call
of the second takes one character, stores its keys and values in a cache, draws the next character
from the distribution, and stores that, so that no number passes through Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ocannl_core as oc

Codes = npt.NDArray[np.int32]


@oc.op
def layer(
    x: oc.Tensor, mask: oc.Tensor, memory: Any = None, at: Any = None, *, heads: int, width: int
) -> oc.Tensor:
    """Return a transformer layer of `positions|width`. With a memory of keys and values, `x` is the
    position `at` alone, and is added to it.
    """
    normal, size = oc.nn.layer_norm(x), width // heads
    queries = (oc.param("w_q", output=[heads, size]) @ normal) / size**0.5
    keys, values = (oc.param(name, output=[heads, size]) @ normal for name in ("w_k", "w_v"))
    if memory is not None:
        memory[0][at : at + 1], memory[1][at : at + 1] = keys, values
        keys, values = memory
    x = x + oc.param("w_o") @ oc.nn.attention(queries, keys, values, mask)
    hidden = oc.gelu(oc.nn.dense(oc.nn.layer_norm(x), output=[4 * width]))
    return x + oc.nn.dense(oc.nn.dropout(hidden, rate=0.1))


class Shape(NamedTuple):
    """The sizes of a network."""

    characters: int
    length: int = 64
    layers: int = 2
    heads: int = 4
    width: int = 64


@oc.op
def gpt(
    ids: oc.Tensor, places: oc.Tensor, mask: oc.Tensor, memories: Any, at: Any, *, shape: Shape
) -> oc.Tensor:
    """Return a score for each character that could follow each position."""
    x = oc.nn.embedding(ids, entries=shape.characters, width=shape.width, label="characters")
    x = x + oc.nn.embedding(places, entries=shape.length, width=shape.width, label="places")
    for memory in memories:
        x = layer(x, mask, memory, at, heads=shape.heads, width=shape.width)
    return oc.nn.dense(oc.nn.layer_norm(x), output=[shape.characters])


def documentation() -> tuple[str, str]:
    """Return the text to train on, and the text of every eighth page."""
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").rglob("*.md"))
    texts = [page.read_text(encoding="ascii", errors="ignore") for page in pages]
    held_out = texts[::8]
    return "".join(text for k, text in enumerate(texts) if k % 8), "".join(held_out)


class Writer:
    """A network, trained by the constructor.

    Attributes:
        losses: The mean loss of each part of training.
        held_out: The loss on the held-out text.
        model: The network.
    """

    def __init__(
        self, texts: tuple[str, str], steps: int = 500, batch: int = 24, **sizes: int
    ) -> None:
        self.alphabet = "".join(sorted(set("".join(texts))))
        known, other = (np.array([self.alphabet.index(c) for c in t], np.int32) for t in texts)
        shape = self.shape = Shape(len(self.alphabet), **sizes)
        length, self.model = shape.length, gpt(shape=shape)
        ids, following = (
            oc.placeholder(name, batch=[batch, length], dtype="int32") for name in ("ids", "next")
        )
        places = oc.tensor(np.arange(length), batch_axes=1, dtype="int32")
        mask, nothing = oc.nn.causal_mask(length), [None] * shape.layers
        loss = oc.nn.cross_entropy(self.model(ids, places, mask, nothing, None), following)
        with oc.evaluation():
            value = oc.nn.cross_entropy(self.model(ids, places, mask, nothing, None), following)

        rate = oc.train.cosine(4e-3, steps=steps, warmup=steps // 10)
        optimiser = oc.train.AdamW(learning_rate=rate, weight_decay=0.05, clip_norm=1.0)
        ctx = self.ctx = oc.Context()
        ctx.init_params(loss)
        step = ctx.compile(oc.train.grad_update(loss) + optimiser.update(loss))
        evaluate = ctx.compile(oc.train.forward(value))
        loader = oc.data.Loader(*oc.data.windows(known, length), batch=batch, shuffle=True)
        self.losses = oc.train.fit(step, loader, [ids, following], loss=loss, steps=steps).losses
        found = []
        others = oc.data.windows(other, length, stride=length)
        for ctx[ids], ctx[following] in oc.data.Loader(*others, batch=batch):
            evaluate()
            found.append(ctx.item(value))
        self.held_out = float(np.mean(found))
        self._compile_writing()

    def _compile_writing(self) -> None:
        """Compile the routine that writes the character after a position."""
        shape, at = self.shape, oc.static_index("at", range=self.shape.length - 1)
        size = shape.width // shape.heads
        memories = [
            [oc.declare(name, batch=[shape.length], output=[shape.heads, size]) for name in "kv"]
            for _ in range(shape.layers)
        ]
        self.text = oc.declare("text", batch=[shape.length], dtype="int32")
        self.given, self.heat = (oc.placeholder(name, output=[]) for name in ("given", "heat"))
        place = oc.cast(oc.number(at), "int32")
        seen = oc.tensor(np.arange(shape.length), input_axes=1, dtype="int32") <= place

        @oc.cd
        def write() -> None:
            here = self.text[at : at + 1]
            with oc.evaluation():
                scores = self.model(here, place, seen, memories, at)
            noise = -oc.log(-oc.log(oc.uniform(counter=at) + 1e-9) + 1e-9)
            drawn = oc.require_shape(scores + self.heat * noise, f"1|{shape.characters}")
            chosen = oc.argmax(drawn, axis=-1)
            self.text[at + 1 : at + 2] = oc.where(
                oc.number(at + 1) < self.given, self.text[at + 1 : at + 2], chosen
            )

        self.write = self.ctx.compile(write(), bindings=[at])

    def continue_text(self, prompt: str, heat: float = 0.8) -> str:
        """Return a text that begins with the prompt."""
        codes = np.zeros(self.shape.length, np.int32)
        codes[: len(prompt)] = [self.alphabet.index(each) for each in prompt]
        self.ctx[self.text], self.ctx[self.given], self.ctx[self.heat] = codes, len(prompt), heat
        for at in range(self.shape.length - 1):
            self.write(at=at)
        return "".join(self.alphabet[code] for code in self.ctx[self.text])


def main(arguments: Sequence[str] | None = None) -> Writer:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--prompt", default="The compiler")
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        writer = Writer(documentation(), options.steps)
        print(f"held-out loss {writer.held_out:.3f} of {np.log(len(writer.alphabet)):.3f} at first")
        print(writer.continue_text(options.prompt))
    return writer


if __name__ == "__main__":
    main()
