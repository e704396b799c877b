"""A character-level GPT on this project's own documentation, with text sampled from a cache.

`python examples/char_gpt.py` trains for less than a minute, prints the loss (the mean of `-log` of
the probability of a character) on pages that it was not trained on, and writes a text. `--picture`
saves the attention weights of all heads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ocannl_core as oc


def documentation() -> tuple[str, str]:
    """Return the text to train on, and the text of every eighth page."""
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").rglob("*.md"))
    texts = [page.read_text(encoding="ascii", errors="ignore") for page in pages]
    held_out = texts[::8]
    return "".join(text for k, text in enumerate(texts) if k % 8), "".join(held_out)


class Writer:
    """A network, trained by the constructor.

    Attributes:
        losses: The loss of each step.
        held_out: The loss on the held-out text.
    """

    def __init__(
        self,
        texts: tuple[str, str],
        steps: int = 500,
        *,
        batch: int = 24,
        length: int = 64,
        layers: int = 2,
        heads: int = 4,
        width: int = 64,
    ) -> None:
        alphabet = self.alphabet = "".join(sorted(set("".join(texts))))
        known, other = (np.array([alphabet.index(c) for c in t], np.int32) for t in texts)
        ids, following = (
            oc.placeholder(name, batch=[batch, length], dtype="int32") for name in ("ids", "next")
        )
        sizes = {"layers": layers, "heads": heads, "width": width // heads, "length": length}
        self.model = oc.nn.gpt(vocabulary=len(alphabet), **sizes, tied=False)
        loss = oc.nn.cross_entropy(self.model(ids), following)
        with oc.evaluation():
            value = oc.nn.cross_entropy(self.model(ids), following)

        rate = oc.train.cosine(4e-3, steps=steps, warmup=steps // 10)
        optimizer = oc.train.AdamW(learning_rate=rate, weight_decay=0.05, clip_norm=1.0)
        self.ctx = oc.Context()
        self.ctx.init_params(loss)
        step = self.ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        judge = self.ctx.compile(oc.train.forward(value))
        loader = oc.data.Loader(*oc.data.windows(known, length), batch=batch, shuffle=True)
        self.losses = oc.train.fit(step, loader, [ids, following], loss=loss, steps=steps).losses
        others = oc.data.windows(other, length, stride=length)
        inputs = [ids, following]
        self.held_out = oc.train.evaluate(
            judge, oc.data.Loader(*others, batch=batch), inputs, value
        )
        self.generate = oc.nn.Generator(self.ctx, self.model)

    def continue_text(self, prompt: str, temperature: float = 0.7) -> str:
        """Return a text that begins with the prompt."""
        codes = [self.alphabet.index(each) for each in prompt]
        return "".join(self.alphabet[n] for n in self.generate(codes, temperature=temperature))

    def attention(self, text: str) -> Any:
        """Return a picture of the weights of all heads, layer by layer."""
        codes = np.array([[self.alphabet.index(each) for each in text]], np.int32)
        with oc.evaluation(), oc.nn.attention_weights() as found:
            self.model(oc.tensor(codes, batch_axes=2))
        (weights,) = found.values()
        self.ctx.compile(oc.train.forward(weights))()
        layers = self.ctx[weights][:, 0]  # layer, head, query, key
        names = [f"layer {k}, head {h}" for k, h in np.ndindex(layers.shape[:2])]
        cells, marks = layers.reshape(-1, len(text), len(text)), text.replace(" ", "_")
        return oc.heatmap(cells, rows=marks, columns=marks, names=names, across=layers.shape[1])


def main(arguments: Sequence[str] | None = None) -> Writer:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--prompt", default="The compiler")
    parser.add_argument("--picture", type=Path, help="a file for the attention weights")
    options = parser.parse_args(arguments)
    with oc.Session(seed=0):
        writer = Writer(documentation(), options.steps)
        print(f"held-out loss {writer.held_out:.3f} of {np.log(len(writer.alphabet)):.3f} at first")
        print(writer.continue_text(options.prompt))
        if options.picture:
            writer.attention("the shape of the loss").save(options.picture)
    return writer


if __name__ == "__main__":
    main()
