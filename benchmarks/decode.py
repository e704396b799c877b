"""A token of a GPT with a cache of keys and values, beside PyTorch, and the memory that it takes.

Both decode the last position of the cache. Weights are random: time and memory are compared, not
text. The memory plan shows that the routine has no copy of the cache.
"""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import harness  # before NumPy: it limits the threads
import numpy as np

import ocannl_core as oc

_VOCABULARY, _LAYERS, _HEADS, _WIDTH = 1000, 4, 8, 64
_FEATURES = _HEADS * _WIDTH


def own(length: int, backend: str | None) -> tuple[harness.TimedWork, str]:
    """Return the decoding routine, and a line about its memory."""
    with oc.Session(seed=1), oc.evaluation():
        model = oc.nn.gpt(
            vocabulary=_VOCABULARY, layers=_LAYERS, heads=_HEADS, width=_WIDTH, length=length
        )
        cache = oc.nn.key_value_cache(layers=_LAYERS, length=length, heads=_HEADS, width=_WIDTH)
        token = oc.placeholder("token", batch=[1], dtype="int32")
        place = oc.static_index("place", range=length)
        scores = oc.declare("scores")

        @oc.cd
        def decode() -> None:
            scores[:] = model(token, cache, place)

        context = oc.Context(backend)
        code = decode()
        routine = context.compile(code, bindings=[place])
        context.init_params(code)
        context[token] = [3]
        context.assign({cache.keys: 0.1, cache.values: 0.1})
    cached = 2 * 4 * _LAYERS * length * _FEATURES
    line = (
        f"memory of the routine's own nodes {routine.memory_plan.nbytes:,} bytes, "
        f"the cache {cached:,} bytes"
    )

    def run(times: int) -> None:
        for _ in range(times):
            routine(place=length - 1)

    return harness.TimedWork("compiled", run), line


def in_torch(length: int) -> list[harness.TimedWork]:
    """Return the same in PyTorch, eager and compiled; nothing where it is not installed."""
    if not importlib.util.find_spec("torch"):
        return []
    import torch
    from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

    torch.set_num_threads(harness.THREADS)

    def weights(*shape: int) -> Any:
        return torch.randn(*shape) / np.sqrt(shape[-1])

    table, places = weights(_VOCABULARY, _FEATURES), weights(length, _FEATURES)
    shapes = ((3 * _FEATURES, _FEATURES), (_FEATURES, _FEATURES))
    shapes += ((4 * _FEATURES, _FEATURES), (_FEATURES, 4 * _FEATURES))
    layers = [[weights(*shape) for shape in shapes] for _ in range(_LAYERS)]
    keys, values = torch.full((2, _LAYERS, 1, _HEADS, length, _WIDTH), 0.1).unbind(0)
    bias = torch.zeros(4 * _FEATURES)

    def decode(token: Any, place: int) -> Any:
        x = table[token] + places[place]
        for number, (attention, output, inner, outer) in enumerate(layers):
            rows = linear(layer_norm(x, (_FEATURES,)), attention, bias[: 3 * _FEATURES])
            q, k, v = rows.view(3, 1, _HEADS, 1, _WIDTH).unbind(0)
            keys[number, :, :, place : place + 1] = k
            values[number, :, :, place : place + 1] = v
            seen = slice(0, place + 1)
            mixed = scaled_dot_product_attention(
                q, keys[number][:, :, seen], values[number][:, :, seen]
            )
            x = x + linear(mixed.reshape(1, _FEATURES), output, bias[:_FEATURES])
            hidden = gelu(linear(layer_norm(x, (_FEATURES,)), inner, bias))
            x = x + linear(hidden, outer, bias[:_FEATURES])
        return layer_norm(x, (_FEATURES,)) @ table.T

    token = torch.tensor([3])

    def timed(name: str, function: Any) -> harness.TimedWork:
        def run(times: int) -> None:
            with torch.no_grad():
                for _ in range(times):
                    function(token, length - 1)

        run(1)
        return harness.TimedWork(name, run)

    return [timed("torch", decode), timed("torch compiled", torch.compile(decode, dynamic=False))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=None)
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--length", type=int, default=256, help="positions of the cache")
    given = parser.parse_args()
    work, memory = own(given.length, given.backend)
    timings = harness.compare(
        [work, *in_torch(given.length)], rounds=given.rounds, sample_seconds=0.1
    )
    print(f"a token at position {given.length - 1}, {harness.THREADS} thread(s); {memory}")
    for each in timings:
        print(f"  {each.name:16} {1e3 * each.least:8.3f} ms")


if __name__ == "__main__":
    main()
