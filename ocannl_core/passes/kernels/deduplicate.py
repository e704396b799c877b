"""Deduplication: kernels that are equal up to renaming are scheduled once.

The layers of a network repeat each other. The scheduled kernel of the first layer is copied for the
others. A copy refers to its original, so that its code is not generated again. A store has the
kernels of other plans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol

from ocannl_core.base.context_variables import scoped
from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.indexing import LoopVar
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos, StepReplacement
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.ir.templates import Key, Label, Template, canonical_form, shares_forms


class KernelStore(Protocol):
    """Scheduled kernels of other plans for the same target under the same settings, by the
    canonical form of all that they depend on.
    """

    def find(
        self, key: Key, names: Sequence[object], titles: Sequence[str]
    ) -> StepReplacement | None:
        """Return the scheduled steps of a kernel with these names and titles, or None."""

    def keep(
        self, key: Key, names: Sequence[object], titles: Sequence[str], made: StepReplacement
    ) -> None:
        """Add the scheduled steps of a kernel."""


@dataclass(slots=True)
class _First:
    """The first of several equal kernels."""

    names: Sequence[object]
    titles: Sequence[str]
    made: StepReplacement
    template: Template | None = None

    def write(self) -> Template:
        """Return the scheduled steps as a template of copies with the same loop variables, so that
        parts that mention no node are shared.
        """
        if self.template is None:
            self.template = Template(self.made, _free_names(self.names), shares_loops=True)
        return self.template

    def copied(self, names: Sequence[object], titles: Sequence[str]) -> StepReplacement:
        labels = new_labels(labels_of(self.names), names)
        made: StepReplacement = self.write().bind(_free_names(names), labels)
        return with_titles(made, self.titles, titles)


class KernelMemo:
    """The scheduled kernels of one plan, by the canonical form of all that they depend on.

    Kernels that hold more than data are scheduled each time.

    Args:
        store: Kernels of other plans.
    """

    def __init__(self, store: KernelStore | None = None) -> None:
        self._first: dict[Key, _First] = {}
        self._store = store

    def made(
        self,
        kernel: object,
        titles: Sequence[str],
        nodes: NodeInfos,
        make: Callable[[], StepReplacement],
    ) -> StepReplacement:
        """Return the scheduled steps of a kernel, from an equal one if there is one.

        Args:
            kernel: Everything that it depends on beside `nodes`; records.
        """
        if not shares_forms():
            return make()
        try:
            key, names, _ = canonical_form(kernel, nodes)
            first = self._first.get(key)
            if first is not None:
                return _referring(first.copied(names, titles), first.made)
        except NotDataError:
            return make()
        made = None if self._store is None else self._store.find(key, names, titles)
        if made is None:
            made = make()
            if self._store is not None:
                self._store.keep(key, names, titles, made)
        self._first[key] = _First(names, titles, made)
        return made


class SharedKernels:
    """A store in memory."""

    def __init__(self) -> None:
        self._first: dict[Key, _First] = {}

    def find(
        self, key: Key, names: Sequence[object], titles: Sequence[str]
    ) -> StepReplacement | None:
        """As `KernelStore.find`."""
        first = self._first.get(key)
        return None if first is None else first.copied(names, titles)

    def keep(
        self, key: Key, names: Sequence[object], titles: Sequence[str], made: StepReplacement
    ) -> None:
        """As `KernelStore.keep`; steps that hold more than data are not kept."""
        first = _First(names, titles, made)
        with suppress(NotDataError):
            first.write()
            self._first[key] = first


_store: ContextVar[KernelStore | None] = ContextVar("_store", default=None)


@contextmanager
def kernels_in(store: KernelStore) -> Iterator[None]:
    """Take scheduled kernels from a store in the plans that are made inside, and add new ones."""
    with scoped(_store, store):
        yield


def new_memo() -> KernelMemo:
    """Return the memo of a new plan."""
    return KernelMemo(_store.get())


def _referring(made: StepReplacement, first: StepReplacement) -> StepReplacement:
    """Return the steps of a copy with `Kernel.like`, which refers to the steps of the original."""
    steps = [
        replace(copy, like=step) if isinstance(copy, Kernel) and isinstance(step, Kernel) else copy
        for copy, step in zip(made.steps, first.steps, strict=True)
    ]
    return replace(made, steps=tuple(steps))


def with_titles(made: StepReplacement, old: Sequence[str], new: Sequence[str]) -> StepReplacement:
    """Return steps with new titles in the place of old ones, also inside of joined titles."""
    titles = dict(zip(old, new, strict=True))
    steps = [
        replace(step, title=_retitled(step.title, titles)) if isinstance(step, Kernel) else step
        for step in made.steps
    ]
    return replace(made, steps=tuple(steps))


def _retitled(title: str, new: Mapping[str, str]) -> str:
    """Return a title with the titles that it consists of replaced."""
    if title in new:
        return new[title]
    longest = sorted(filter(None, new), key=len, reverse=True)
    if not longest:
        return title
    return re.sub("|".join(map(re.escape, longest)), lambda match: new[match[0]], title)


def _free_names(names: Iterable[object]) -> list[object]:
    """Return the names that a kernel does not bind: nodes and static indices."""
    return [name for name in names if not isinstance(name, LoopVar)]


def labels_of(names: Iterable[object]) -> list[Label]:
    """Return the labels of names; an empty one for what has none."""
    return [name.label if isinstance(name, TensorNode) else () for name in names]


def new_labels(old: Sequence[Label], names: Sequence[object]) -> Callable[[Label], Label]:
    """Return a function that renames labels derived from some nodes' labels."""
    pairs = zip(old, labels_of(names), strict=True)
    found = {before: after for before, after in pairs if before and after}

    def renamed(label: Label) -> Label:
        for length in range(len(label), 0, -1):
            if label[:length] in found:
                return (*found[label[:length]], *label[length:])
        return label

    return renamed
