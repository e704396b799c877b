"""A plugin of mypy: membership of tensors in sequences is no test of identity.

`tensor in [a, b]` compares with `==`, which on tensors is an operation and gives a tensor. The same
holds for `index`, `count` and `remove`. Sets and dictionaries compare identities first, and tensors
have unique hashes; elsewhere write `any(each is tensor for each in found)`.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.checker import TypeChecker
from mypy.maptype import map_instance_to_supertype
from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, TupleType, Type, UnionType, get_proper_type

_COMPARING = frozenset({"__contains__", "index", "count", "remove"})
_EXPRESSION = "ocannl_core.tensor.graph.expression.Expression"
_HASHED = frozenset({"typing.AbstractSet", "typing.Mapping", "typing.KeysView"})


class IdentityPlugin(Plugin):
    """The plugin."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """Return the check of a call of a method that compares items."""
        return _checked if fullname.rpartition(".")[2] in _COMPARING else None


def _checked(context: MethodContext) -> Type:
    if any(map(_has_expression, _items(context.type))):
        assert isinstance(context.api, TypeChecker)
        errors = context.api.errors
        # mypy withholds the errors of `in` until it has tried all members of a union
        withheld, errors._watchers = errors._watchers, []
        context.api.fail(
            "Items are compared with ==, which on tensors is an operation; compare with `is`",
            context.context,
        )
        errors._watchers = withheld
    return context.default_return_type


def _items(container: Type) -> list[Type]:
    """Return the types of the items of a sequence; none of a container that hashes them."""
    container = get_proper_type(container)
    if isinstance(container, TupleType):
        return list(container.items)
    if not isinstance(container, Instance):
        return []
    bases = {each.fullname: each for each in container.type.mro}
    if bases.keys() & _HASHED or "typing.Iterable" not in bases:
        return []
    return list(map_instance_to_supertype(container, bases["typing.Iterable"]).args)


def _has_expression(item: Type) -> bool:
    item = get_proper_type(item)
    if isinstance(item, UnionType):
        return any(map(_has_expression, item.items))
    return isinstance(item, Instance) and item.type.has_base(_EXPRESSION)


def plugin(version: str) -> type[Plugin]:
    """Return the plugin."""
    return IdentityPlugin
