"""Shape schemes: the principal shapes of the body of a block, generalized over its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ocannl_core.base.deferred_annotations import signature_of
from ocannl_core.base.errors import OcannlError, UsageError
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.shape.language.shape_terms import Shape
from ocannl_core.tensor.graph import session as sessions
from ocannl_core.tensor.graph.session import Session
from ocannl_core.tensor.graph.structures import leaves_of
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import NetworkBlock
from ocannl_core.tensor.models.parameters import declare


@dataclass(frozen=True, slots=True)
class Scheme:
    """The type of a block: relations between the shapes of its arguments, parameters and results.

    Open rows and sizes of the arguments are generalized: each application has its own. Parameters
    are shared by the applications of a block, so a size that one of them has decided is stated.
    """

    name: str
    """The title of the block."""
    arguments: dict[str, Shape]
    """The most general shape of each argument."""
    results: tuple[Shape, ...]
    """The shapes of the results, in terms of the variables of the arguments."""
    parameters: dict[str, Shape]
    """The shapes of the parameters of the block and its sub-blocks."""
    conditions: tuple[str, ...]
    """Relations between variables that no equation states."""

    def __str__(self) -> str:
        given = "; ".join(map(str, self.arguments.values()))
        made = "; ".join(map(str, self.results))
        lines = [f"{self.name}: {given} => {made}"]
        lines += [f"  parameter {name}: {shape}" for name, shape in self.parameters.items()]
        lines += [f"  where {each}" for each in self.conditions]
        return "\n".join(lines)


def scheme_of(block: NetworkBlock[Any]) -> Scheme:
    """Return the scheme of a block; neither the block nor its session changes.

    Raises:
        UsageError: if its body depends on more than it states about its arguments.
    """
    names = _arguments_of(block)
    with sessions.current().atomic() as transaction, Session() as session:
        copies = session.block_copies = {}
        given = [declare(name) for name in names]
        try:
            results = block(*given)
            for original, copy in copies.items():
                _share_sizes(original, copy)
        except (OcannlError, TypeError) as error:
            raise UsageError.at_caller(
                "The scheme of a block follows from its body alone, with arguments of any shape.",
                found=f"{block!r}, whose body needs more: {error}",
                fix="apply it, and explain the result: oc.explain(block(x))",
            ) from error
        transaction.rollback()  # operations on tensors that the body refers to
        made = [each.value for each in leaves_of(results) if isinstance(each.value, Tensor)]
        titles = [f"result{i}" for i in range(len(made))] if len(made) > 1 else ["result"]
        parameters = dict(parameters_of(copies[block]))
        arguments = {name: each.terms for name, each in zip(names, given, strict=True)}
        terms = {name: each.terms for name, each in zip(titles, made, strict=True)}
        inner = {name: each.terms for name, each in parameters.items()}
        found, conditions = session.environment.generalize(arguments, {**terms, **inner})
    return Scheme(
        block.title,
        {name: found[name] for name in arguments},
        tuple(found[name] for name in terms),
        {name: found[name] for name in inner},
        conditions,
    )


def _arguments_of(block: NetworkBlock[Any]) -> list[str]:
    """Return the names of the tensors that the body takes."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        each.name
        for each in signature_of(block.function).parameters.values()
        if each.kind in kinds and each.default is inspect.Parameter.empty
    ]


def _share_sizes(block: NetworkBlock[Any], copy: NetworkBlock[Any]) -> None:
    """State what applications of the block have decided about its parameters."""
    for name, (parameter, _) in copy.own_parameters.items():
        if name in block.own_parameters:
            known = block.own_parameters[name][0].shape
            parameter.session.environment.equate_known(parameter.terms, known, parameter.origin)
    for place, inner in copy.blocks.items():
        if place in block.blocks:
            _share_sizes(block.blocks[place], inner)


def parameters_of(block: NetworkBlock[Any], path: Sequence[str] = ()) -> list[tuple[str, Tensor]]:
    """Return the parameters of a block and of the blocks inside it, with the names of these."""
    found = [(".".join((*path, name)), each) for name, (each, _) in block.own_parameters.items()]
    for inner in block.blocks.values():
        found += parameters_of(inner, (*path, inner.title))
    return found
