"""Trainings in this project."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from results import OWN

import ocannl_core as oc
from trainings.work import CHANNELS, HEAD, HEADS, HIDDEN, LAYERS, LENGTH, Trainee, Training


@oc.op
def network(x: oc.Tensor, *, classes: int) -> oc.Tensor:
    """Return the scores of images."""
    for number, channels in enumerate(CHANNELS):
        x = oc.relu(oc.nn.conv2d(x, kernel=3, channels=[channels], label=f"conv{number}"))
        x = oc.nn.max_pool2d(x, window=2)
    x = oc.relu(oc.nn.dense(x, output=[HIDDEN], label="dense0"))
    return oc.nn.dense(x, output=[classes], label="dense1")


def contenders(work: Training, backend: str | None) -> dict[str, Callable[[], Trainee]]:
    """Return the training by compiled code."""
    return {OWN: lambda: trainee(work, backend)}


def trainee(work: Training, backend: str | None) -> Trainee:
    """Return a model with one routine for a step."""
    batches = list(zip(work.inputs, work.targets, strict=True))
    with oc.Session():
        y = oc.placeholder("y", batch=work.targets.shape[1:], dtype="int32")
        if work.kind == "cnn":
            batch, *pixels = work.inputs.shape[1:]
            x = oc.placeholder("x", batch=[batch], output=pixels)
            scores = network(x, classes=work.classes)
        else:
            x = oc.placeholder("x", batch=work.inputs.shape[1:], dtype="int32")
            sizes = {"layers": LAYERS, "heads": HEADS, "width": HEAD, "length": LENGTH}
            scores = oc.nn.gpt(x, vocabulary=work.classes, **sizes, tied=False)
        loss = oc.nn.cross_entropy(scores, y)
        optimizer = oc.train.Adam(learning_rate=work.rate)
        ctx = oc.Context(backend)
        step = ctx.compile(oc.train.grad_update(loss) + optimizer.update(loss))
        ctx.init_params(loss)
        parameters = {tensor: work.weights[_name(name)] for name, tensor in loss.params.items()}
        assert len(parameters) == len(work.weights)
        zeros = {each: np.zeros_like(ctx[each]) for each in optimizer.state.values()}

    def epoch() -> np.ndarray:
        ctx.assign({**parameters, **zeros})
        losses = []
        for ctx[x], ctx[y] in batches:
            step()
            losses.append(ctx.item(loss))
        return np.array(losses)

    return Trainee(epoch)


def _name(name: str) -> str:
    """Return the name of the weights of a parameter."""
    path = name.split(".")
    if path[0] == "network":
        return ".".join(path[1:])
    if "transformer_layer" in path:
        rest = path[path.index("transformer_layer") + 1 :]
        return "layers." + ".".join(rest[1:] if rest[0] == "attention" else rest)
    named = {"tokens.table": "tokens", "positions.embedding.table": "positions"}
    named |= {"scores.weight": "scores"}
    rest_of = ".".join(path[1:]).removeprefix("decoder.")
    return named.get(rest_of, rest_of)
