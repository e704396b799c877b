"""GPT-2 writes a text, with its published weights or random ones.

`python examples/gpt2.py FOLDER` reads `model.safetensors`, `vocab.json` and `merges.txt` of GPT-2,
in the layout of Hugging Face, from a folder of yours, and continues `--prompt`. Without a folder,
the weights are random, and so is the text; the sizes are those of the smallest of the four models.
Texts are cut into tokens by the package tokenizers: `pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

import ocannl_core as oc

SMALL = {"vocabulary": 50257, "length": 1024, "layers": 12, "heads": 12, "width": 64}
"""The sizes of the model of 124 million parameters; `width` is that of a head."""


class Model:
    """GPT-2 on a device, with room for a text of `length` tokens."""

    def __init__(self, sizes: dict[str, int], length: int, file: Path | None = None) -> None:
        self.ctx, self.block = oc.Context(), oc.nn.gpt(**sizes)
        self.generate = oc.nn.Generator(self.ctx, self.block, length=length)
        scores = self.block(oc.tensor([[0]], batch_axes=2, dtype="int32"))
        if file is None:
            self.ctx.init_params(scores)
        else:
            masks = ["h.*.attn.bias", "h.*.attn.masked_bias"]  # some files have them
            oc.load(file, self.ctx, scores, names=oc.nn.gpt2_names, ignore=masks)
        self.parameters = sum(each.size for each in scores.params)


def tokenizer(folder: Path) -> Any:
    """Return the byte pairs of GPT-2: `encode(text).ids`, `decode(ids)`."""
    from tokenizers import ByteLevelBPETokenizer

    files = (str(folder / name) for name in ("vocab.json", "merges.txt"))
    return ByteLevelBPETokenizer.from_file(*files)


def main(arguments: Sequence[str] | None = None) -> npt.NDArray[Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--prompt", default="A compiler is")
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    with oc.Session(seed=0):
        folder = options.folder
        model = Model(SMALL, options.length, folder and folder / "model.safetensors")
        tokens = folder and tokenizer(folder)
        ready = time.perf_counter()
        prompt = tokens.encode(options.prompt).ids if tokens else [464]
        text = model.generate(prompt, temperature=options.temperature)
    print(tokens.decode(text.tolist()) if tokens else text.tolist())
    rate = (len(text) - len(prompt)) / (time.perf_counter() - ready)
    print(f"{model.parameters:,} parameters, ready in {ready - start:.1f} s", end=", ")
    print(f"{rate:.1f} tokens per second")
    return text


if __name__ == "__main__":
    main()
