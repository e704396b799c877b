"""The operators of a model, before it is applied."""

from __future__ import annotations

import onnx

from ocannl_onnx import operators as _operators  # noqa: F401  (fills the table)
from ocannl_onnx.reading import all_nodes
from ocannl_onnx.registry import MICROSOFT, STANDARD, find, versions


def operators_of(model: onnx.ModelProto) -> dict[str, tuple[int, str]]:
    """Return the number of nodes of each operator, with the reason why it is refused, or "".

    Nodes of subgraphs and of the model's own functions count once.
    """
    opsets = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in model.opset_import}
    functions = {(each.domain, each.name) for each in model.functions}
    found: dict[str, tuple[int, str]] = {}
    nodes = [*all_nodes(model.graph.node)]
    for function in model.functions:
        nodes += all_nodes(function.node)
    for node in nodes:
        domain = STANDARD if node.domain == "ai.onnx" else node.domain
        if (node.domain, node.op_type) in functions:
            continue
        name = f"{domain}::{node.op_type}" if domain else node.op_type
        count, reason = found.get(name, (0, ""))
        found[name] = (count + 1, reason or _refusal(domain, node.op_type, opsets.get(domain)))
    return found


def _refusal(domain: str, name: str, version: int | None) -> str:
    if version is None:
        return f"the model states no version of the domain {domain!r}"
    if find(domain, name, version) is not None:
        return ""
    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        if domain == MICROSOFT:
            return "no implementation here"
        return f"the standard has no such operator in version {version}"
    if schema.has_function or schema.has_context_dependent_function:
        return ""
    ranges = ", ".join(f"{a} to {b}" if b else f"{a} and later" for a, b in versions(domain, name))
    return f"implemented for operator sets {ranges}" if ranges else "no implementation here"
