"""Scheduled kernels on disk with their generated text, for programs that share some of them.

    <cache directory>/kernels/<hash>    the steps of one kernel, with the text of each if it has one

A program that was edited differs from the earlier one in a few kernels. The others are found by
the canonical form of all that they depend on; they are neither scheduled nor rendered again.
Entries are data with a digest, as for whole programs (`saved_code.py`), and hold for one version of
the core and of the backend, one target, and the settings in force.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ocannl_core.base.files.digests import add_digest, strip_digest
from ocannl_core.base.files.directory import PrivateDirectory
from ocannl_core.base.identity import IdentityMap
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.codegen.text.routine_source import texts_in
from ocannl_core.ir.kernels.nodes import LeafStep, StepReplacement
from ocannl_core.ir.serialization.columns import DecodingError
from ocannl_core.ir.serialization.decode import decode
from ocannl_core.ir.serialization.encode import encode
from ocannl_core.ir.serialization.forms import NotDataError, Numbering
from ocannl_core.ir.serialization.schema import form_of
from ocannl_core.ir.templates import Key, Label
from ocannl_core.passes.kernels.deduplicate import kernels_in, labels_of, new_labels, with_titles

_MOST_ENTRIES = 4000
_FORM = form_of(tuple[StepReplacement, tuple[KernelText | None, ...]])


class SavedKernels:
    """The kernels on disk for one target.

    Args:
        directory: The directory of the entries.
        circumstances: A digest of all that kernels depend on, beside their canonical form.
    """

    def __init__(self, directory: PrivateDirectory, circumstances: str) -> None:
        self.texts: IdentityMap[LeafStep, KernelText | None] = IdentityMap()
        """The text of kernels that were read, and of those that were rendered since."""
        self._directory = directory
        self._circumstances = circumstances
        self._new: list[tuple[str, Sequence[object], Sequence[str], StepReplacement]] = []

    def find(
        self, key: Key, names: Sequence[object], titles: Sequence[str]
    ) -> StepReplacement | None:
        """As `KernelStore.find`."""
        file = self._file(key)
        content = self._directory.read(file, is_use=True)
        payload = None if content is None else strip_digest(file, content)
        if payload is None:
            return None
        head, _, value = payload.partition(b"\n")
        try:
            old_titles, old_labels = json.loads(head)
            labels = new_labels([tuple(each) for each in old_labels], names)
            made, texts = decode(value, _FORM, names, labels)
            made = with_titles(made, old_titles, titles)
            known = [each for each in zip(made.steps, texts, strict=True) if each[1] is not None]
        except (DecodingError, ValueError, TypeError):  # as in `saved_code`
            return None
        self.texts.update(known)
        return made

    def keep(
        self, key: Key, names: Sequence[object], titles: Sequence[str], made: StepReplacement
    ) -> None:
        """As `KernelStore.keep`; `used` writes them at its end."""
        self._new.append((self._file(key), names, titles, made))

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use them for the plan that is made and rendered inside, and save the others of it."""
        with kernels_in(self), texts_in(self.texts):
            yield
        self._save()

    def _save(self) -> None:
        """Write new kernels that hold no more than data; drop old ones when there are many."""
        for file, names, titles, made in self._new:
            with suppress(NotDataError, OSError):
                entry = self._entry(names, titles, made)
                self._directory.write(file, add_digest(file, entry))
        if self._new:
            self._directory.drop_old(_MOST_ENTRIES)

    def _entry(
        self, names: Sequence[object], titles: Sequence[str], made: StepReplacement
    ) -> bytes:
        texts = tuple(map(self.texts.find, made.steps))
        value = encode((made, texts), _FORM, Numbering.of(names))
        labels: list[Label] = labels_of(names)
        return json.dumps([list(titles), labels]).encode() + b"\n" + value

    def _file(self, key: Key) -> str:
        return hashlib.sha256(f"{self._circumstances}\n{key!r}".encode()).hexdigest()
