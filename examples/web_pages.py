"""Web pages with networks in them: recognize drawn digits, train in the browser, and write text.

`pip install ziglang; python examples/web_pages.py pages` writes the folders `pages/digits`,
`pages/moons` and `pages/gpt`; `python -m http.server -d pages` shows them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from char_gpt import Writer, documentation
from digits_data import CLASSES, PIXELS, digits
from moons import moons

import ocannl_core as oc

PAGES = Path(__file__).parent / "web"


def digits_page(folder: Path, epochs: int = 30) -> float:
    """Train a network on handwritten digits, write a page for drawing one, and return the accuracy
    on images that it was not trained on.
    """
    data = digits()
    with oc.Session(seed=0):
        network = oc.nn.mlp(hidden=[64], output=[CLASSES])
        images = oc.placeholder("images", batch=[32], output=[PIXELS])
        classes = oc.placeholder("classes", batch=[32], dtype="int32")
        loss = oc.nn.cross_entropy(network(images), classes)
        held_out = network(oc.tensor(data.test_images, batch_axes=1))
        image = oc.placeholder("image", output=[PIXELS])
        probabilities = oc.softmax(network(image), axis=-1)

        loader = oc.data.Loader(data.train_images, data.train_classes, batch=32, shuffle=True)
        ctx = oc.Context("cpu_c")
        optimizer = oc.train.Adam(learning_rate=3e-3, weight_decay=1e-4)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        ctx.init_params(loss)
        oc.train.fit(step, loader, [images, classes], loss=loss, epochs=epochs, progress=False)
        guess = ctx.compile(oc.train.forward(held_out))
        guess()
        predict = ctx.compile(oc.train.forward(probabilities))
        _write(ctx, {"predict": predict}, folder, "digits", outputs=[probabilities])
        return float((ctx[held_out].argmax(axis=-1) == data.test_classes).mean())


def moons_page(folder: Path, size: int = 50, grid: int = 41) -> None:
    """Write a page that trains a perceptron on two half moons."""
    with oc.Session(seed=0):
        network = oc.nn.mlp(hidden=[16, 16], output=[1], activation=oc.tanh)
        points = oc.placeholder("points", batch=[size], output=[2])
        classes = oc.placeholder("classes", batch=[size], output=[1])
        rate = oc.placeholder("rate")
        loss = oc.mean(oc.softplus(-classes * network(points)))
        places = np.stack(
            np.meshgrid(np.linspace(-1.5, 2.5, grid), np.linspace(1.5, -1, grid)), axis=-1
        )
        field = network(oc.tensor(places.reshape(-1, 2), batch_axes=1, dtype="float32"))

        ctx = oc.Context("cpu_c")
        update = oc.train.sgd_update(loss, learning_rate=rate, momentum=0.9)
        train = ctx.compile(oc.train.grad_update(loss) + update)
        draw = ctx.compile(oc.train.forward(field))
        ctx.init_params(loss)
        routines = {"train": train, "draw": draw}
        _write(ctx, routines, folder, "moons", outputs=[loss, field])
    known, sides = moons(400)
    cells = np.concatenate([known, sides], axis=1)
    (folder / "points.json").write_text(str(cells.round(4).tolist()))


def gpt_page(
    folder: Path, texts: tuple[str, str], steps: int = 1200, length: int = 128, width: int = 64
) -> Writer:
    """Train a character GPT, write a page on which it writes, and return it.

    The page has the function for one character; its state has the text and the cache.
    """
    with oc.Session(seed=0), oc.settings.overrides(backend="cpu_c"):
        writer = Writer(texts, steps, batch=12, length=length, width=width)
        generate = writer.generate
        _write(writer.ctx, {"write": generate.write}, folder, "gpt", {"text": generate.text})
    (folder / "alphabet.json").write_text(json.dumps(list(writer.alphabet)))
    return writer


def _write(
    ctx: oc.Context,
    routines: dict[str, oc.Routine],
    folder: Path,
    name: str,
    outputs: list[oc.Tensor] | dict[str, oc.Tensor],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ctx.export(routines, folder / f"{name}.wasm", outputs=outputs)
    shutil.copyfile(PAGES / f"{name}.html", folder / "index.html")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    accuracy = digits_page(folder / "digits")
    print(f"digits: accuracy {accuracy:.4f} on images that the network was not trained on")
    moons_page(folder / "moons")
    writer = gpt_page(folder / "gpt", documentation())
    print(f"gpt: loss {writer.held_out:.3f} on text that the network was not trained on")
    for page in (folder / "digits", folder / "moons", folder / "gpt"):
        served = sum(
            each.stat().st_size for each in page.iterdir() if each.suffix not in (".c", ".h")
        )
        print(f"{page}: {served:,} bytes to serve")


if __name__ == "__main__":
    main()
