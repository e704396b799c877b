"""Check that a lowered program fits the context that it is compiled for.

The checks find the nodes that code reads, and how each gets its value: the code computes it, the
context stores it, the host gives it, or an earlier routine has a definition of it, which is put in
front of the code. All errors that depend on the context alone are raised here, before any pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from ocannl_core.base.errors import LinkError, UsageError
from ocannl_core.compile.context_state import ContextState
from ocannl_core.compile.lowered_code import LoweredCode
from ocannl_core.compile.recipes import recipes_for
from ocannl_core.compile.stages import CheckedProgram, CompileOptions, CompileRequest, ResolvedCode
from ocannl_core.ir.assignments.traverse import partial_targets
from ocannl_core.ir.indexing import StaticExtent, StaticIndex
from ocannl_core.ir.node import MemoryMode, Placement, Reason, TensorNode

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


def check_program(
    code: ResolvedCode, lowered: LoweredCode, options: CompileOptions, context: ContextState
) -> CheckedProgram:
    """Return a program with the nodes that it stores, recomputes and inlines.

    Args:
        options: The arguments of `Context.compile`.
        context: What the context holds.

    Raises:
        UsageError: if an index is not bound, or an option names a tensor outside of the code.
        LinkError: if a node that is read has no value, or the merge buffer holds another node.
    """
    name, keep, bindings = code.program.name, options.keep, options.bindings
    if options.are_shared:
        bindings = tuple(index for index in bindings if index in lowered.indices)
        if keep is not None:
            keep = tuple(tensor for tensor in keep if tensor.node in code.program.nodes)
    bindings = _with_extents(bindings, lowered)
    _check_bindings(lowered.indices, bindings, name)
    usage, kept_in_part = lowered.facts.usage, lowered.facts.partly_written
    check_merge_buffer(usage.merged, context, name)
    missing = missing_nodes(code, usage.reads_first | kept_in_part, context)
    recipes = recipes_for(missing, context, name)
    lowered = lowered.with_recipes(recipes, context)
    check_presence(code, missing - {each.node for each in recipes}, context)
    read_again = frozenset(node for each in recipes for node in each.definition.operands)
    stored = stored_nodes(code, context, keep, read_again, usage.writes)
    inlined = _requested_nodes(code, options.inline)
    device = context.backend, context.target
    request = CompileRequest(lowered, stored, inlined, *device, fallbacks=context.fallbacks)
    return CheckedProgram(request, bindings)


def _with_extents(
    bindings: tuple[StaticIndex, ...], program: LoweredCode
) -> tuple[StaticIndex, ...]:
    """Return bindings and the extents at run time that a program mentions, each once."""
    found = [index for index in program.indices if isinstance(index, StaticExtent)]
    found += [each for info in program.nodes.values() for each in info.extents if each is not None]
    return (*bindings, *dict.fromkeys(each for each in found if each not in bindings))


def _check_bindings(
    indices: Sequence[StaticIndex], bindings: Sequence[StaticIndex], name: str
) -> None:
    """Raise UsageError unless the bindings differ in name and include every index of the code."""
    names = [binding.name for binding in bindings]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise UsageError(
            "The static indices of a routine have different names: they are its keyword arguments.",
            found="several named " + ", ".join(repeated),
            where=f"compiling {name}",
            fix='give each its own name: oc.static_index("row"), oc.static_index("column")',
        )
    unbound = [index.name for index in indices if index not in bindings]
    if unbound:
        raise UsageError(
            "Every static index that code uses is bound when it is compiled.",
            found="unbound: " + ", ".join(unbound),
            where=f"compiling {name}",
            fix=f"ctx.compile(..., bindings=[{', '.join(unbound)}])",
        )


def check_merge_buffer(nodes: tuple[TensorNode, ...], context: ContextState, routine: str) -> None:
    """Raise LinkError if the merge buffer holds another node than code reads."""
    if not nodes or context.merged is None or context.merged[0] in nodes:
        return
    raise LinkError(
        "The merge buffer of a context holds the node whose copy the code reads.",
        found=f"it holds {context.merged[1]}, and the code reads "
        + ", ".join(f"{node.name}.merge" for node in nodes),
        where=f"compiling {routine}",
        fix="\n".join(f"ctx.fill_merge({node.name}, source=other)" for node in nodes),
    )


def partial_candidates(code: ResolvedCode) -> tuple[TensorNode, ...]:
    """Return the nodes with values from outside of which an assignment may write some cells."""
    return tuple(
        node
        for node in partial_targets(code.program.body)
        if code.comes_from_outside(node) or code.is_gradient(node)
    )


def missing_nodes(
    code: ResolvedCode, reads_first: AbstractSet[TensorNode], context: ContextState
) -> AbstractSet[TensorNode]:
    """Return the nodes that the code reads and neither computes nor finds stored."""
    return frozenset(
        node
        for node in reads_first
        if (node not in code.program.fresh or node in context.unstored)
        and node not in code.literals
        and not code.comes_from_outside(node)
        and node not in context.stored
    )


def check_presence(
    code: ResolvedCode, missing: AbstractSet[TensorNode], context: ContextState
) -> None:
    """Raise LinkError if nodes are missing, with the calls that would provide them."""
    if not missing:
        return
    found, fixes = [], []
    for node in sorted(missing, key=lambda each: each.id):
        unstored = context.unstored.get(node)
        if node in code.program.embedded:
            found.append(f"{code.describe(node)}: read first, and computed later in the same code")
            fixes.append(f"put the code that computes {node.name} before its reads")
            fixes.append(f"or give it a value from the host before: ctx[{node.name}] = array")
        elif unstored is None:
            found.append(f"{code.describe(node)}: not in the context, and not computed here")
            fixes += _fixes_for_absent(node, code)
        else:
            found.append(f"{code.describe(node)}: {unstored.describe()}")
            fixes.append(
                f"compute it in {code.program.name}, too: x.forward() in front of the first use of "
                "a tensor x that needs it"
            )
            fixes.append(f"or {unstored.fix(node)}")
    raise LinkError(
        "Every node that code reads is computed by it or stored in the context.",
        found="\n".join(found),
        where=f"compiling {code.program.name}",
        fix="\n".join(dict.fromkeys(fixes)),
    )


def _fixes_for_absent(node: TensorNode, code: ResolvedCode) -> list[str]:
    """Return the calls that provide a node without a value."""
    if code.is_gradient(node):
        return [
            "put oc.train.grad_update(loss) in front, or its pieces: loss.forward(), "
            "loss.zero_grads(), loss.grad[:] = 1, loss.backprop()",
            "or give gradients values from the host, as in ctx[p.grad] = array",
        ]
    return [
        f"add the code that computes {node.name} in front: oc.train.forward({node.name})",
        f"or give it a value from the host: ctx[{node.name}] = array",
    ]


def stored_nodes(
    code: ResolvedCode,
    context: ContextState,
    keep: Sequence[Tensor] | None,
    read_again: AbstractSet[TensorNode],
    writes: AbstractSet[TensorNode],
) -> dict[TensorNode, Placement]:
    """Return the nodes that outlive the calls of a routine, with the reasons.

    These are the results, or the nodes in `keep` instead; and in any case nodes that the context
    stores already, parameters, placeholders, literals and declared nodes.

    Args:
        keep: The tensors to store instead of the results.
        read_again: Operands from which the code recomputes virtual tensors of earlier routines.

    Raises:
        UsageError: if `keep` names a tensor that is neither mentioned nor stored.
    """
    program = code.program
    kept = program.results if keep is None else {tensor.node for tensor in keep}
    for tensor in keep or ():
        if tensor.node not in program.nodes and tensor.node not in context.stored:
            raise UsageError(
                "keep= names tensors that the compiled code computes.",
                found=f"{tensor.describe()}, which it does not mention",
                where=f"compiling {program.name}",
                fix=f"put its code in front, as in oc.train.forward({tensor.node.name}) + ...: "
                "behind an update of parameters, its values are computed again, with the new ones",
            )
    reasons = {node: _reason_to_store(node, code, context, kept) for node in program.nodes}
    reasons.update(dict.fromkeys(read_again - reasons.keys(), Reason.USED_ELSEWHERE))
    constants = code.literals.keys() - writes
    return {
        node: _place_of(node, reason, is_constant=node in constants)
        for node, reason in reasons.items()
        if reason is not None
    }


def _place_of(node: TensorNode, reason: Reason, *, is_constant: bool) -> Placement:
    """Return the placement of a stored node; the array of a constant stays on the host, too."""
    if not is_constant:
        return Placement(MemoryMode.ON_DEVICE, reason)
    constant = Placement(MemoryMode.EFFECTIVELY_CONSTANT, reason)
    return constant.refine(Placement(MemoryMode.HOSTED, reason), node)


def _requested_nodes(code: ResolvedCode, inline: Sequence[Tensor]) -> frozenset[TensorNode]:
    """Return the nodes of tensors that are to be inlined."""
    for tensor in inline:
        if tensor.node not in code.program.nodes:
            raise UsageError(
                "inline= names tensors that the compiled code computes.",
                found=f"{tensor.describe()}, which it does not mention",
                where=f"compiling {code.program.name}",
                fix=f"leave it out, or add its code, such as oc.train.forward({tensor.node.name})",
            )
    return frozenset(tensor.node for tensor in inline)


def _reason_to_store(
    node: TensorNode, code: ResolvedCode, context: ContextState, kept: AbstractSet[TensorNode]
) -> Reason | None:
    tensor = code.tensors.get(node)
    if tensor is not None and tensor.is_parameter:
        return Reason.PARAMETER
    if node in code.literals or (tensor is not None and tensor.is_placeholder):
        return Reason.HOST_DATA
    if node in code.program.fresh or (tensor is not None and tensor.is_statistic):
        return Reason.DECLARED
    if node in kept:
        return Reason.KEPT
    if node in context.stored:
        return Reason.USED_ELSEWHERE
    return None
