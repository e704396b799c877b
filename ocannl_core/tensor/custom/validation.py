"""Validation of the arguments of `Apply`, beside types and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ocannl_core.tensor.custom.variables import ObjectType, TensorType
from ocannl_core.tensor.graph.tensor import Tensor

if TYPE_CHECKING:
    from ocannl_core.tensor.custom.op import Op

Problem = tuple[str, str, str]
"""The rule, the violation, and the fix, as texts."""


def find_problems(op: Op, inputs: Any, types: Any) -> Iterator[Problem]:
    """Yield the problems of the inputs, the output types and the maps of an application.

    Later checks may presuppose that earlier ones found no problem.
    """
    for title, given in (("inputs", inputs), ("outputs", types)):
        if not isinstance(given, list | tuple):
            fix = f"Apply(self, [x, ...], [TensorType(dtype), ...]), with {title} in a list"
            yield f"The {title} of an Apply are a list.", f"{type(given).__name__}: {given!r}", fix
    for variable in inputs:
        if not isinstance(variable, Tensor):
            yield (
                "The inputs of an Apply are tensors.",
                f"{type(variable).__name__}: {variable!r}",
                "as_variable(x) makes a tensor of a number or an array",
            )
    for each in types:
        if not isinstance(each, TensorType | ObjectType):
            yield (
                "The outputs of an Apply are given by their types.",
                f"{type(each).__name__}: {each!r}",
                "TensorType.of(x), TensorType(dtype), or ObjectType()",
            )
    tensors = {k for k, each in enumerate(types) if isinstance(each, TensorType)}
    if not tensors:
        yield "An op has an output that is a tensor.", f"{len(types)} outputs", ""
    default = op.default_output
    if default is not None and default not in tensors:
        yield "default_output is the position of an output that is a tensor.", f"{default}", ""
    yield from _map_problems("destroy_map", op.destroy_map, len(inputs), tensors)
    yield from _map_problems("view_map", op.view_map, len(inputs), tensors)
    taken = [i for k, each in op.destroy_map.items() if k is not None for i in each]
    if len(set(taken)) < len(taken):
        yield (
            "One output at most takes over the memory of an input.",
            f"destroy_map = {dict(op.destroy_map)}",
            "",
        )


def _map_problems(
    title: str, aliases: Mapping[int | None, Sequence[int]], count: int, tensors: set[int]
) -> Iterator[Problem]:
    is_map = isinstance(aliases, Mapping)
    if not is_map or not all(isinstance(each, list | tuple) for each in aliases.values()):
        fix = f"{title} = {{0: [0]}} for the first output and the first input"
        yield f"{title} maps positions of outputs to lists of inputs.", repr(aliases), fix
    for output, sources in aliases.items():
        is_scratch = title == "destroy_map" and output is None
        if not is_scratch and (output not in tensors or len(sources) > 1):
            yield (
                f"{title} gives for an output that is a tensor one input at most.",
                f"{output}: {list(sources)}",
                "",
            )
        if any(not isinstance(i, int) or not 0 <= i < count for i in sources):
            yield (
                f"{title} names inputs by their positions.",
                f"{output}: {list(sources)}, with {count} inputs",
                "",
            )
