"""Attention weights of a model as tensors of their own, to be shown as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.errors import UsageError
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.definitions import Loop
from ocannl_core.tensor.graph.parameter_set import unique_name
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.operations.contractions import einsum


class _Collection:
    """The weights of the attention applied in one loop, or outside of loops."""

    def __init__(self, loop: Loop | None) -> None:
        self.loop = loop
        self.weights: dict[str, Tensor] = {}
        self._taken: set[str] = set()

    def add(self, name: str, weights: Tensor) -> None:
        """Add weights under their name, numbered if it is taken."""
        self.weights[unique_name(name, self._taken)] = weights


_collection: ContextVar[_Collection | None] = ContextVar("ocannl_attention_weights", default=None)


@contextmanager
def attention_weights() -> Iterator[dict[str, Tensor]]:
    """Collect the attention weights of the models that are applied inside, by name.

        with oc.evaluation(), oc.nn.attention_weights() as weights:
            scores = model(ids)
        for name, each in weights.items():          # gpt.decoder.transformer_layer.attention
            ctx.compile(oc.train.forward(each))()
            oc.heatmap(ctx[each][0, 0]).save(f"{name}.svg")

    Shapes: `...,heads,s|t` for queries at positions `s` and keys at positions `t`, so that each
    head has a matrix whose rows sum up to 1; with groups of queries, `...,heads,groups,s|t`.
    Weights of a stack of layers have a leftmost axis, the layer. Names are the paths of the blocks,
    like the names of parameters. The weights are before dropout.
    """
    yield from _collecting()


def _collecting() -> Iterator[dict[str, Tensor]]:
    """Yield the weights that are collected until the next step of the iterator."""
    collection = _Collection(sessions.current().loop)
    with scoped(_collection, collection):
        yield collection.weights


@contextmanager
def weights_of_a_layer() -> Iterator[dict[str, Tensor] | None]:
    """Collect the weights of one layer of a stack; yield None outside of a collection."""
    if _collection.get() is None:
        yield None
    else:
        yield from _collecting()


def add_weights(weights: dict[str, Tensor]) -> None:
    """Add the weights of all layers of a stack to the collection around it."""
    collection = _collection.get()
    assert collection is not None, "no weights are collected"
    for name, each in weights.items():
        collection.add(name, each)


def note_weights(weights: Tensor, *, grouped: bool) -> None:
    """Add the weights of an attention, `...,s|t->heads`, to the collection around it, if any."""
    collection = _collection.get()
    if collection is None:
        return
    session = sessions.current()
    if session.loop is not collection.loop:
        raise UsageError.at_caller(
            "Attention weights are collected outside of loops over time, or in stacks of layers.",
            found="attention in the step of a loop",
            fix="oc.nn.repeat_layers for a stack; in oc.scan, return the weights as a value",
        )
    application = session.block
    name = ".".join(application.path) if application is not None else "attention"
    spec = "... s | t -> h g => ... h g s | t" if grouped else "... s | t -> h => ... h s | t"
    collection.add(name, einsum(spec, weights))
