"""Parameters of a model by name."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Set, ValuesView
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ocannl_core.base.errors import UsageError
from ocannl_core.base.identity import ById

if TYPE_CHECKING:
    from ocannl_core.tensor.graph.tensor import Tensor


class Parameters(Set["Tensor"]):
    """Parameters, oldest first: a set of tensors that also maps names to them.

    Iteration, `in` and `==` treat the parameters as a set, as in `ctx.copy_from(other,
    loss.params)`; `[]`, `get`, `keys`, `values` and `items` treat them as the mapping
    `dict(loss.params)`.

    A name is the path of the blocks around the parameter, and its own name: `mlp.L1.w`. Equal names
    are numbered by age (`mlp2.L1.w`), so that a program which builds the same model has the same
    names. Labels keep names independent of the order.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._members = frozenset(parameters)
        self._tensors = tuple(sorted(self._members, key=lambda tensor: tensor.id))

    @cached_property
    def _by_name(self) -> dict[str, Tensor]:
        taken: set[str] = set()
        scopes: dict[tuple[ById, ...], str] = {}
        names: dict[str, Tensor] = {}
        for parameter in self._tensors:
            path = ""
            key: tuple[ById, ...] = ()
            for scope in parameter.scopes:
                key = (*key, ById(scope))
                if key not in scopes:
                    scopes[key] = unique_name(path + scope.title, taken)
                path = scopes[key] + "."
            names[unique_name(path + parameter.label[0], taken)] = parameter
        return names

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, member: object) -> bool:
        if isinstance(member, str):
            return member in self._by_name
        return member in self._members

    def __hash__(self) -> int:
        return self._hash()

    def __getitem__(self, name: str) -> Tensor:
        """Return the parameter of a name.

        Raises:
            UsageError: if there is none.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UsageError.at_caller(
                "A parameter is found by the path of its blocks and its name.",
                found=repr(name),
                fix="the names are "
                + (", ".join(self._by_name) or "none: there are no parameters"),
            )
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return the parameter of a name, or another value if there is none."""
        return self._by_name.get(name, default)

    def keys(self) -> KeysView[str]:
        """Return the names, oldest parameter first."""
        return self._by_name.keys()

    def values(self) -> ValuesView[Tensor]:
        """Return the parameters, oldest first."""
        return self._by_name.values()

    def items(self) -> ItemsView[str, Tensor]:
        """Return pairs of name and parameter, oldest first."""
        return self._by_name.items()

    def name_of(self, parameter: Tensor) -> str:
        """Return the name of a parameter.

        Raises:
            UsageError: if it is not in the set.
        """
        for name, tensor in self._by_name.items():
            if tensor is parameter:
                return name
        raise UsageError.at_caller(
            "A tensor has a name among the parameters that it is one of.", found=repr(parameter)
        )

    @classmethod
    def _from_iterable(cls, tensors: Iterable[Any]) -> Any:
        return frozenset(tensors)

    def __repr__(self) -> str:
        entries = ", ".join(f"{name}: {tensor.shape}" for name, tensor in self.items())
        return f"<parameters {entries}>" if entries else "<parameters: none>"


def unique_name(name: str, taken: set[str]) -> str:
    """Return the name, numbered if it is taken, and add it to the taken ones."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}{number}"
    taken.add(free)
    return free
