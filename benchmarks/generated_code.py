"""Write the code that is generated for the benchmark networks, one file per workload.

Two revisions of the project generate the same code where the files are equal:

    python benchmarks/generated_code.py before
    git switch ...
    python benchmarks/generated_code.py after
    diff -r before after
"""

from __future__ import annotations

import argparse
import itertools
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import comparison  # noqa: F401 - before NumPy: it limits the threads
from workloads import attention, block, convolutions, own, positions, products, rows, training

from ocannl_core.backend.loaded_backend import Backend
from ocannl_core.base import settings


class _GeneratedError(Exception):
    """Carries generated code out of a compilation, before a compiler starts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="cpu_c")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    def stop(self: Backend, source: Any, *rest: object) -> None:
        raise _GeneratedError(source.text)

    modules = (rows, positions, convolutions, training, block, attention, products)
    for work in itertools.chain.from_iterable(each.workloads() for each in modules):
        for name, make in own.contenders(work, options.backend).items():
            title = re.sub(r"\W+", "-", f"{work.name} {name}").strip("-")
            with (
                tempfile.TemporaryDirectory() as cache,
                settings.overrides(cache_dir=cache),
                mock.patch.object(Backend, "compile", stop),
            ):
                try:
                    make()
                except _GeneratedError as generated:
                    (options.folder / f"{title}.txt").write_text(str(generated), encoding="utf-8")


if __name__ == "__main__":
    main()
