"""Extension of Sphinx: the public names of a module with their signatures and docstrings.

    ```{docstrings} ocannl_core.nn
    :prefix: oc.nn
    ```

describes each name of the module's `__all__`: functions, operations, classes with the members that
some page of the documentation names, and values. Docstrings are read as Markdown, as the pages
are. A literal such as `oc.nn.conv2d` on any page becomes a link to its description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from ocannl_core import Operation

PAGES = Path(__file__).parent
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"^    (\*{0,2}[\w., ]+): (.*)$")
_MEMBER = re.compile(r"\.(\w+)")
_NAME = re.compile(r"((?:oc|ocannl_core\.backend_api)\.[\w.]+)(\(.*)?", re.DOTALL)


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a module exports, without modules, sorted without regard to case."""
    names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    return sorted(names, key=lambda name: (name.lower(), name))


def markdown(docstring: str) -> str:
    """Return a docstring with its sections as lists."""
    lines: list[str] = []
    in_section = False
    for line in docstring.splitlines():
        section = _SECTION.match(line)
        entry = _ENTRY.match(line) if in_section else None
        if section:
            in_section = True
            lines += [f"**{section[1]}**", ""]
        elif entry:
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        elif in_section and line and not line.startswith("    "):
            in_section = False
            lines.append(line)
        else:
            lines.append(line.removeprefix("    ") if in_section else line)
    return "\n".join(lines)


def signature(name: str, value: Any) -> str:
    """Return a call as text, with defaults that can be written in a program."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parts, stars = [], False
    for each in found.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.VAR_POSITIONAL:
            stars = True
        if each.kind is each.KEYWORD_ONLY and not stars:
            parts.append("*")
            stars = True
        prefix = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={_literal(each.default)}"
        parts.append(f"{prefix}{each.name}{default}")
    return f"{name}({', '.join(parts)})"


def _literal(value: object) -> str:
    """Return a default as Python; `...` for one that no literal has."""
    text = repr(value)
    if isinstance(value, str | int | float | tuple | None) and not re.search(r"[<>]| at 0x", text):
        return text
    return "..."


@cache
def documented_members() -> frozenset[str]:
    """Return the words after a dot in the code of all pages."""
    texts = (page.read_text(encoding="utf-8") for page in PAGES.rglob("*.md"))
    return frozenset(each for text in texts for each in _MEMBER.findall(text))


def members(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties of a class that pages name and that have a docstring."""
    for name in sorted({name for base in found.__mro__[:-1] for name in vars(base)}):
        raw = inspect.getattr_static(found, name)
        if isinstance(raw, staticmethod | classmethod):
            raw = raw.__func__
        is_member = inspect.isfunction(raw) or isinstance(raw, property | cached_property)
        own = getattr(raw, "__module__", getattr(getattr(raw, "fget", None), "__module__", ""))
        if name.startswith("_") or not is_member or name not in documented_members():
            continue
        if inspect.getdoc(raw) and (own or "ocannl_core").startswith("ocannl_core"):
            yield name, raw


def description(prefix: str, name: str, value: Any) -> Iterator[str]:
    """Yield the lines of the directives for a name."""
    full = f"{prefix}.{name}"
    if inspect.isclass(value):
        yield from _directive("py:class", signature(full, value), markdown(_doc(value)), 5, False)
        for member, found in members(value):
            is_function = inspect.isfunction(found)
            kind = "py:method" if is_function else "py:property"
            text = signature(member, found) if is_function else member
            yield from _directive(kind, text, markdown(_doc(found)), 3)
        yield ":" * 5
    elif callable(value):
        yield from _directive("py:function", signature(full, value), markdown(_doc(value)), 3)
    else:
        yield from _directive("py:data", full, _value(value), 3)
    yield ""


def _directive(
    kind: str, argument: str, body: str, colons: int, is_closed: bool = True
) -> Iterator[str]:
    yield f"{':' * colons}{{{kind}}} {argument}"
    yield ""
    yield from body.splitlines()
    yield ""
    if is_closed:
        yield ":" * colons


def _doc(value: Any) -> str:
    """Return the docstring of a value; of an operation, whose arguments are those of all, the
    first paragraph.
    """
    text = inspect.getdoc(value) or _value(value)
    return text.partition("\n\n")[0] if isinstance(value, Operation) else text


def _value(value: Any) -> str:
    kind = type(value).__name__
    return f"`{value!r}`, a `{kind}`." if len(repr(value)) < 60 else f"A `{kind}`."


class Docstrings(SphinxDirective):
    """The directive `docstrings`."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Callable[[str], Any]] | None] = {"prefix": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        module = import_module(self.arguments[0])
        prefix = self.options.get("prefix", module.__name__)
        names = public_names(module)
        lines = [", ".join(f"`{prefix}.{name}`" for name in names), ""]
        for name in names:
            lines += description(prefix, name, getattr(module, name))
        parent = nodes.container()
        self.state.nested_parse(StringList(lines, source=module.__file__ or ""), 0, parent)
        return parent.children


class LinkNames(SphinxPostTransform):
    """Links from literals that are public names to their descriptions."""

    default_priority = 5

    def run(self, **arguments: Any) -> None:
        domain = self.env.get_domain("py")
        known = domain.data["objects"]
        for node in list(self.document.findall(nodes.literal)):
            found = _NAME.fullmatch(node.astext())
            if not found or found[1] not in known or isinstance(node.parent, nodes.reference):
                continue
            entry = known[found[1]]
            builder = self.app.builder
            link = make_refnode(
                builder, self.env.docname, entry.docname, entry.node_id, node.deepcopy(), found[1]
            )
            node.replace_self(link)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("docstrings", Docstrings)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
