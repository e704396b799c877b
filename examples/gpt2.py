"""GPT-2 writes a text, with its published weights or random ones.

`python examples/gpt2.py FOLDER` reads `model.safetensors`, `vocab.json` and `merges.txt` of GPT-2,
in the layout of Hugging Face, from a folder of yours, and continues `--prompt`. Without a folder,
the weights are random, and so is the text; the sizes are those of the smallest of the four models.

A call of the routine takes one token, stores its keys and values in a cache, and writes the next
token.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gpt2_tokens import Tokens

import ocannl_core as oc


class Sizes(NamedTuple):
    """The sizes of a model."""

    vocabulary: int = 50257
    positions: int = 1024
    width: int = 768
    heads: int = 12
    layers: int = 12


@oc.op
def attention(
    x: oc.Tensor, seen: oc.Tensor, memory: Any, at: oc.StaticIndex, *, sizes: Sizes
) -> oc.Tensor:
    """Return the values of all positions up to this one, weighted by their keys."""
    size = sizes.width // sizes.heads
    projected = oc.nn.dense(x, output=[3, sizes.heads, size], label="c_attn")
    queries, keys, values = (projected[:, part] for part in range(3))
    memory[0][at : at + 1], memory[1][at : at + 1] = keys, values
    found = oc.nn.attention(queries / size**0.5, *memory, seen)
    return oc.nn.dense(found, output=[sizes.width], label="c_proj")


@oc.op
def mlp(x: oc.Tensor, *, width: int) -> oc.Tensor:
    hidden = oc.gelu(oc.nn.dense(x, output=[4 * width], label="c_fc"), approximate="tanh")
    return oc.nn.dense(hidden, output=[width], label="c_proj")


@oc.op
def layer(
    x: oc.Tensor, seen: oc.Tensor, memory: Any, at: oc.StaticIndex, *, sizes: Sizes
) -> oc.Tensor:
    x = x + attention(
        oc.nn.layer_norm(x, label="ln_1"), seen, memory, at, sizes=sizes, label="attn"
    )
    return x + mlp(oc.nn.layer_norm(x, label="ln_2"), width=sizes.width)


def small() -> oc.Tensor:
    """Return the initial values of the tables."""
    return 0.02 * oc.normal()


@oc.op
def gpt2(
    token: oc.Tensor, seen: oc.Tensor, memories: Any, at: oc.StaticIndex, *, sizes: Sizes
) -> oc.Tensor:
    """Return a score for each token that could follow the one at a position."""
    wte = oc.param("wte", output=[sizes.vocabulary, sizes.width], init=small)
    wpe = oc.param("wpe", output=[sizes.positions, sizes.width], init=small)
    x = oc.take(wte, token) + wpe[at]
    for number, memory in enumerate(memories):
        x = layer(x, seen, memory, at, sizes=sizes, label=f"h{number}")
    return oc.einsum("...|n; |v, n => ...|v", oc.nn.layer_norm(x, label="ln_f"), wte)


def name_in_file(name: str) -> str:
    """Return the name of a parameter in a file: `gpt2.h3.ln_1.gamma` is `h.3.ln_1.weight` there."""
    name = name.removeprefix("gpt2.")
    name = re.sub(r"^h(\d+)\.", r"h.\1.", name)
    name = name.replace("gamma", "weight").replace("beta", "bias")
    return f"{name}.weight" if name in ("wte", "wpe") else name


def axes_in_file(sizes: Sizes) -> dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]]:
    """Return functions to our axes: weights there are inputs by outputs, without axes of heads."""
    heads = (sizes.heads, sizes.width // sizes.heads)
    return {
        "*.c_attn.weight": lambda a: a.T.reshape(3, *heads, -1),
        "*.c_attn.bias": lambda a: a.reshape(3, *heads),
        "*.attn.c_proj.weight": lambda a: a.T.reshape(-1, *heads),
        "*.weight": lambda a: a.T,
    }


class Model:
    """GPT-2 on a device, with room for a text of `length` tokens."""

    def __init__(self, sizes: Sizes, length: int) -> None:
        self.sizes, self.length = sizes, length
        at = oc.static_index("at")
        size = sizes.width // sizes.heads
        memories = [
            [oc.declare(name, batch=[length], output=[sizes.heads, size]) for name in "kv"]
            for _ in range(sizes.layers)
        ]
        self.text = oc.declare("text", batch=[length], dtype="int32")
        self.given, self.heat = (oc.placeholder(name, output=[]) for name in ("given", "heat"))
        self.block = gpt2(sizes=sizes)
        self.scores = oc.declare("scores", batch=[1], output=[sizes.vocabulary])
        seen = oc.tensor(np.arange(length), input_axes=1, dtype="int32") <= oc.number(at)

        @oc.cd
        def write() -> None:
            self.scores[:] = self.block(self.text[at : at + 1], seen, memories, at)
            draws = oc.require_shape(oc.uniform(counter=at), f"1|{sizes.vocabulary}")
            noise = -oc.log(-oc.log(draws + 1e-9) + 1e-9)
            chosen = oc.argmax(self.scores + self.heat * noise, axis=-1)
            following = self.text[at + 1 : at + 2]
            self.text[at + 1 : at + 2] = oc.where(oc.number(at + 1) < self.given, following, chosen)

        self.ctx = oc.Context()
        code = write()
        self.write = self.ctx.compile(code, bindings=[at])
        self.ctx.init_params(code)

    def load(self, file: Path) -> None:
        """Read the weights of a file; masks that some files have are left out."""
        transpose = axes_in_file(self.sizes)
        loaded = oc.load(
            file, self.ctx, self.block, names=name_in_file, transpose=transpose, strict=False
        )
        if loaded.missing:
            raise ValueError(f"{file} lacks {', '.join(loaded.missing)}")

    def continue_text(self, prompt: Sequence[int], heat: float = 0.0) -> npt.NDArray[np.int32]:
        """Return a text that begins with the prompt; at heat 0 the likeliest tokens follow."""
        tokens = np.zeros(self.length, np.int32)
        tokens[: len(prompt)] = prompt
        self.ctx[self.text], self.ctx[self.given], self.ctx[self.heat] = tokens, len(prompt), heat
        for at in range(self.length - 1):
            self.write(at=at)
        return np.asarray(self.ctx[self.text], np.int32)


def main(arguments: Sequence[str] | None = None) -> npt.NDArray[np.int32]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--prompt", default="A compiler is")
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--heat", type=float, default=0.8)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with oc.Session(seed=0):
        model, tokens = Model(Sizes(), options.length), None
        if options.folder is not None:
            model.load(options.folder / "model.safetensors")
            tokens = Tokens(options.folder)
        ready = time.perf_counter()
        prompt = [464] if tokens is None else tokens.encode(options.prompt)
        text = model.continue_text(prompt, options.heat)
    print(text.tolist() if tokens is None else tokens.decode(text))
    rate = (options.length - 1) / (time.perf_counter() - ready)
    print(f"ready in {ready - start:.1f} s, {rate:.1f} tokens per second")
    return text


if __name__ == "__main__":
    main()
