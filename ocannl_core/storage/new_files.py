"""New files in a new directory: files that other users put there are never written to."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class NewDirectory:
    """A directory that this process created, open by descriptor, so that it cannot be exchanged.

    Args:
        path: Its path; missing parents are created.

    Raises:
        FileExistsError: if the path exists.
        OSError: if it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self._descriptor: int | None = None
        if os.open in os.supports_dir_fd:
            self._descriptor = os.open(path, _DIRECTORY)
            weakref.finalize(self, os.close, self._descriptor)
            status = os.fstat(self._descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(f"{path} belongs to user {status.st_uid}")

    def write(self, name: str, text: str) -> None:
        """Write a new file.

        Raises:
            OSError: if it exists, or cannot be written.
        """
        place = name if self._descriptor is not None else self.path / name
        descriptor = os.open(place, _NEW, 0o666, dir_fd=self._descriptor)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
