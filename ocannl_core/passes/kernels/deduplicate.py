"""Deduplication: kernels that are equal up to renaming are scheduled once.

The layers of a network repeat each other. The scheduled kernel of the first layer is copied for the
others. A copy refers to its original, so that its code is not generated again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from ocannl_core.base.fast_dataclass import dataclass, replace
from ocannl_core.ir.kernels.nodes import Kernel, NodeInfos, StepReplacement
from ocannl_core.ir.node import TensorNode
from ocannl_core.ir.serialization.forms import NotDataError
from ocannl_core.ir.templates import Key, Label, Template, canonical_form, shares_forms


@dataclass(slots=True)
class _First:
    """The first of several equal kernels."""

    names: tuple[object, ...]
    titles: Sequence[str]
    made: StepReplacement
    template: Template | None = None

    def write(self) -> Template:
        """Return the scheduled steps as a template."""
        if self.template is None:
            self.template = Template(self.made, self.names)
        return self.template

    def copied(
        self, names: tuple[object, ...], titles: Sequence[str], *, is_referred: bool
    ) -> StepReplacement:
        """Return the steps of an equal kernel, as copies that refer to these or as its own."""
        made: StepReplacement = self.write().bind(names, _labels(self.names, names))
        new_titles = dict(zip(self.titles, titles, strict=True))
        steps = [
            replace(
                copy,
                like=(step.like or step) if is_referred else None,
                title=_retitled(copy.title, new_titles),
            )
            if isinstance(copy, Kernel) and isinstance(step, Kernel)
            else copy
            for copy, step in zip(made.steps, self.made.steps, strict=True)
        ]
        return replace(made, steps=tuple(steps))


class KernelMemo:
    """The scheduled kernels of one plan, by the canonical form of all that they depend on.

    Kernels that hold more than data are scheduled each time.

    Args:
        shared: Kernels of other plans for the same target under the same settings.
    """

    def __init__(self, shared: dict[Key, _First] | None = None) -> None:
        self._first: dict[Key, _First] = {}
        self._shared = {} if shared is None else shared

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
            first, other = self._first.get(key), self._shared.get(key)
            if (found := first or other) is not None:
                found.write()
        except NotDataError:
            return make()
        if first is not None:
            return first.copied(names, titles, is_referred=True)
        made = make() if other is None else other.copied(names, titles, is_referred=False)
        self._first[key] = own = _First(names, titles, made)
        self._shared.setdefault(key, own)
        return made


_shared: ContextVar[dict[Key, _First] | None] = ContextVar("_shared", default=None)


@contextmanager
def share_kernels() -> Iterator[None]:
    """Schedule kernels that are equal but for names once in all plans that are made inside, which
    are for one target.
    """
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def new_memo() -> KernelMemo:
    """Return the memo of a new plan."""
    return KernelMemo(_shared.get())


def _retitled(title: str, new: Mapping[str, str]) -> str:
    """Return a title with the titles that it consists of replaced."""
    longest = sorted(filter(None, new), key=len, reverse=True)
    if not longest:
        return title
    return re.sub("|".join(map(re.escape, longest)), lambda match: new[match[0]], title)


def _labels(old: Sequence[object], new: Sequence[object]) -> Callable[[Label], Label]:
    """Return a function that renames labels derived from some nodes' labels."""
    names = {
        before.label: after.label
        for before, after in zip(old, new, strict=True)
        if isinstance(before, TensorNode) and isinstance(after, TensorNode) and before.label
    }

    def renamed(label: Label) -> Label:
        for length in range(len(label), 0, -1):
            if label[:length] in names:
                return (*names[label[:length]], *label[length:])
        return label

    return renamed
