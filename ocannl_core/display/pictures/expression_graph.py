"""Graphs of expressions: tensors and their operands, with the blocks that made them as groups;
and `oc.graph`, which also draws the kernels of a routine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from numbers import Integral

from ocannl_core.base.errors import ShapeError, UsageError
from ocannl_core.base.identity import ById
from ocannl_core.display.cells import compile_aside
from ocannl_core.display.descriptions import operation_text, shape_text, tensor_name
from ocannl_core.display.pictures.graph import Graph
from ocannl_core.display.pictures.kernel_graph import kernel_graph
from ocannl_core.display.pictures.nodes import GraphEdge, Group, Kind, PictureNode
from ocannl_core.runtime.routine import Routine
from ocannl_core.tensor.computations.computation import forward
from ocannl_core.tensor.graph import definitions
from ocannl_core.tensor.graph.tensor import Tensor
from ocannl_core.tensor.models.network_blocks import BlockApplication


def graph(subject: Tensor | Routine, *, depth: int | None = None) -> Graph:
    """Return the graph of an expression, or of the kernels of a routine.

    Notebooks show it as a picture; `.svg()`, `.dot()` and `.mermaid()` are texts, and `.save(path)`
    writes one of them. Drawing an expression makes its shapes final, as compiling does; if it lacks
    the size of a parameter, it is drawn with what is known. No context is changed.

    Args:
        subject: A tensor, whose operations and operands are drawn with the blocks around them; or a
            routine, whose kernels are drawn with the memory between them.
        depth: Of an expression, the number of nested blocks whose operations are shown; 0 shows an
            outermost block as one node, None everything.

    Raises:
        UsageError: if the subject is neither, or the depth is no number of blocks.
    """
    if depth is not None and (
        not isinstance(depth, Integral) or isinstance(depth, bool) or depth < 0
    ):
        raise UsageError.at_caller(
            "The depth of a graph is a number of nested blocks.",
            found=f"depth={depth!r}",
            fix="depth=1, or depth=None for all operations",
        )
    match subject:
        case Tensor():
            return expression_graph(subject, depth)
        case Routine():
            return kernel_graph(subject.plan)
        case _:
            raise UsageError.at_caller(
                "Graphs are drawn of tensors and of routines.",
                found=f"{type(subject).__name__}: {subject!r}",
                fix="oc.graph(loss), or oc.graph(ctx.compile(...))",
            )


_Chain = tuple[BlockApplication, ...]
"""Applications of blocks, outermost first."""


def expression_graph(root: Tensor, depth: int | None) -> Graph:
    """Return the graph of an expression; its shapes become final, as by compiling.

    Where compiling would be refused, for shapes that contradict each other or leave a parameter's
    size open, they stay as they are and are drawn as far as they are known.

    Args:
        depth: The number of nested blocks whose operations are shown: an application inside of as
            many others is one node. None shows all operations.
    """
    with compile_aside(root.session), suppress(ShapeError):
        forward(root).resolve()
    tensors = [each for each in definitions.ancestors([root]) if _number_of(each) is None]
    chains = _chains(tensors)
    folded: dict[ById, list[Tensor]] = {}
    members: list[list[Tensor]] = []
    for tensor in tensors:
        chain = chains[tensor]
        is_folded = depth is not None and len(chain) > depth
        inside = folded.setdefault(ById(chain[depth or 0]), []) if is_folded else []
        inside.append(tensor)
        if len(inside) == 1:
            members.append(inside)
    rank = {tensor: number for number, tensor in enumerate(tensors)}
    members.sort(key=lambda inside: rank[inside[-1]])  # operands stand before results
    node_of = {tensor: number for number, inside in enumerate(members) for tensor in inside}
    edges = dict.fromkeys(
        (node_of[operand], node_of[tensor])
        for tensor in tensors
        for operand in tensor.operands
        if operand in node_of and node_of[operand] != node_of[tensor]
    )
    groups: dict[ById, int] = {}
    nodes = []
    for inside in members:
        chain = chains[inside[-1]]
        around = chain if depth is None else chain[:depth]
        group = tuple(
            (each.block.title, groups.setdefault(ById(each), len(groups))) for each in around
        )
        is_folded = len(around) < len(chain)
        nodes.append(
            _block(chain[len(around)], inside, group) if is_folded else _tensor(inside[0], group)
        )
    made = (GraphEdge(source, target) for source, target in edges)
    return Graph(tensor_name(root), tuple(nodes), tuple(made))


def _chains(tensors: Sequence[Tensor]) -> dict[Tensor, _Chain]:
    """Return the applications around each tensor; for a parameter, the applications around the
    first use of its block here, also if another expression made the parameter.
    """
    chains = {t: t.made_in.around if t.made_in else () for t in tensors}
    first: dict[tuple[ById, ...], _Chain] = {}
    for tensor, chain in chains.items():
        if not tensor.is_parameter:
            for length in range(1, len(chain) + 1):
                first.setdefault(tuple(ById(each.block) for each in chain[:length]), chain[:length])
    for tensor in tensors:
        if tensor.is_parameter:
            blocks = tuple(map(ById, tensor.scopes))
            chains[tensor] = first.get(blocks, chains[tensor])
    for tensor in tensors:  # a value that blocks share, such as the seed, is part of none of them
        for operand in tensor.operands:
            if operand in chains and not operand.operands and not operand.is_parameter:
                chains[operand] = _common(chains[operand], chains[tensor])
    return chains


def _common(first: _Chain, second: _Chain) -> _Chain:
    """Return the applications around both of two tensors."""
    both = takewhile(lambda pair: pair[0] is pair[1], zip(first, second, strict=False))
    return tuple(each for each, _ in both)


def _number_of(tensor: Tensor) -> float | None:
    """Return the number in every cell of a constant; None for other tensors."""
    definition = tensor.definition
    return definition.number if isinstance(definition, definitions.Filled) else None


def _tensor(tensor: Tensor, group: Group) -> PictureNode:
    details, definition = [], tensor.definition
    if isinstance(definition, definitions.Applied):
        text = operation_text(tensor).removeprefix(":").strip()
        numbers = [f"{number:g}" for each in tensor.operands if (number := _number_of(each))]
        details += [text] if text else []
        details += ["with " + ", ".join(numbers)] if numbers else []
    shape = shape_text(tensor.shape)
    details += [shape] if shape else []
    where = str(tensor.origin.location or "")
    return PictureNode(tensor_name(tensor), tuple(details), _kind(tensor), group, where)


def _kind(tensor: Tensor) -> Kind:
    match tensor.definition:
        case definitions.Placeholder() | definitions.Literal():
            return "input"
        case definitions.Declared():
            return "memory"
        case definitions.ResultOf():
            return "call"
        case _:
            return "parameter" if tensor.is_parameter else "operation"


def _block(application: BlockApplication, inside: list[Tensor], group: Group) -> PictureNode:
    """Return the node of an application whose operations are not shown."""
    shape = shape_text(inside[-1].shape)
    details = [shape] if shape else []
    parameters = [each for each in inside if each.is_parameter]
    if parameters and all(each.shape.is_closed for each in parameters):
        details.append(f"{sum(each.size for each in parameters):,} parameters")
    return PictureNode(application.block.title, tuple(details), "block", group)
