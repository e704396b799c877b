"""`make torture`: damages a small cache, compilers and disks; every result must be right.

    bytes       every byte of every file, changed
    cuts        every file, cut off at every length; large ones at every 61st
    foreign     every file and directory: gone, exchanged with another one, or something else
    compilers   stopped, or writing part of an object
    disks       file systems of every size up to the needed one (root only)
    parallel    processes that share a cache, while files are damaged and processes are killed

Each case is a process of its own that compiles and runs a program: it must end well, with the right
numbers, and within a minute. They are forks of one that has imported everything; a compiler that
remembers its results keeps the cases short.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np

import ocannl_core as oc
from ocannl_core.base import settings
from ocannl_core.base.fast_dataclass import dataclass
from ocannl_core.base.files import directory
from ocannl_cpu_c import background_compilation, loader

LIMIT = 60
"""Seconds after which a case hangs."""

_STUB = """#!/bin/sh
case "$*" in *-dM*) exec cc "$@";; esac
for each in "$@"; do
  [ "$last" = -o ] && out=$each
  case "$each" in *.c) source=$each;; esac
  last=$each
done
source=$(basename "$source")
known={store}/$source.so
if [ ! -e "$known" ]; then
  cc "$@" || exit
  cp "$out" "$known.$$" && mv "$known.$$" "$known"
fi
{fault}
exec cp "$known" "$out"
"""


def compute() -> bytes:
    """Compile and run a program of two kernels; return the bits of its results."""
    oc.reset()
    x = oc.tensor(np.arange(12, dtype=np.float32).reshape(3, 4), batch_axes=1)
    index = oc.static_index("i", range=3)
    y = oc.exp(x[index] / 7.0)
    total = oc.einsum("... => 0", y * y)
    context = oc.Context("cpu_c")
    routine = context.compile(oc.train.forward(total), bindings=[index], keep=[y, total])
    found = []
    for number in (2, 0):
        routine(i=number)
        found += [context[y].tobytes(), context[total].tobytes()]
    return b"".join(found)


def forget() -> None:
    """Bring the process back to where a new one starts."""
    for known in (
        loader._loaded,
        loader._libraries,
        loader._pools,
        loader._found_runtime,
        loader._passed,
    ):
        known.clear()
    directory._swept.clear()
    directory._temporary.clear()


@dataclass(frozen=True, slots=True)
class Place:
    """The directory and the program of cases.

    Attributes:
        base: A directory for everything.
        command: The compiler.
        expected: The bits of the right results.
    """

    base: Path
    command: Path
    expected: bytes

    def start(self, folder: Path, command: Path | None = None) -> int:
        """Start a process that compiles and runs the program; return its number."""
        process = os.fork()
        if process:
            return process
        status = 4
        try:
            os.setpgid(0, 0)
            said = os.open(folder.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.alarm(LIMIT)
            forget()
            warnings.simplefilter("ignore")
            with settings.overrides(cache_dir=str(folder), cpu_c__cc=str(command or self.command)):
                status = 0 if compute() == self.expected else 3
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            with suppress(BaseException):
                background_compilation.stop()
                for each in directory._temporary:
                    shutil.rmtree(each, ignore_errors=True)
            os._exit(status)

    def run(self, folder: Path, command: Path | None = None) -> str:
        """Return the defect of a run; empty if it is right."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.start(folder, command), 0)[1])
        return self.told(status, folder)

    def told(self, status: int, folder: Path) -> str:
        meaning = {0: "", 3: "wrong numbers", 4: "an error", -signal.SIGALRM: "a hang"}
        if status in (0, 3, -signal.SIGALRM):
            return meaning[status]
        said = folder.with_suffix(".said").read_text(errors="replace")
        return f"{meaning.get(status, f'ended by signal {-status}')}\n{said[-2000:]}"


@contextmanager
def place() -> Iterator[Place]:
    """Yield a place with a filled cache in `pristine`."""
    base = Path(tempfile.mkdtemp(prefix="torture-"))
    try:
        (base / "store").mkdir()
        command = stub(base, "cc", "")
        with settings.overrides(cache_dir=str(base / "warm"), cpu_c__cc=str(command)):
            expected = compute()
        gc.freeze()  # forks share objects that are never collected
        found = Place(base, command, expected)
        problem = found.run(base / "pristine")
        assert not problem, problem
        yield found
    finally:
        shutil.rmtree(base, ignore_errors=True)


def stub(base: Path, name: str, fault: str) -> Path:
    """Return a compiler that caches its outputs, and has a fault."""
    path = base / name
    path.write_text(_STUB.format(store=base / "store", fault=fault))
    path.chmod(0o755)
    return path


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is damaged in a cache.

    Attributes:
        name: A description for reports.
        path: The file or directory, relative to the cache.
        damage: Does it, given the path.
    """

    name: str
    path: str
    damage: Callable[[Path], None]

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())


def renewed(path: Path, content: bytes) -> None:
    """Write a file anew: the old one may be in use."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)


def exchanged(path: Path, at: int, byte: int) -> None:
    content = path.read_bytes()
    renewed(path, content[:at] + bytes([byte]) + content[at + 1 :])


def shortened(path: Path, size: int) -> None:
    renewed(path, path.read_bytes()[:size])


def bytes_of(folder: Path) -> Iterator[Case]:
    for file in files(folder):
        content = file.read_bytes()
        for at, byte in enumerate(content):
            flipped = byte ^ (1 << at % 8 if at % 3 else 0xFF)
            yield Case(
                f"byte {at} of {len(content)}: {byte:02x} became {flipped:02x}",
                str(file.relative_to(folder)),
                partial(exchanged, at=at, byte=flipped),
            )


def cuts_of(folder: Path) -> Iterator[Case]:
    for file in files(folder):
        whole = file.stat().st_size
        for size in range(0, whole, 1 if whole < 4096 else 61):
            yield Case(
                f"{size} of {whole} bytes",
                str(file.relative_to(folder)),
                partial(shortened, size=size),
            )


def removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        removed(path)
        make(path)

    return damage


def full_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("something")


def bound(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
        os.rename("s", path.name)
    finally:
        os.chdir(here)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


FOREIGN: dict[str, Callable[[Path], None]] = {
    "is gone": removed,
    "is a pipe": instead(os.mkfifo),
    "is a socket": instead(bound),
    "is an empty directory": instead(Path.mkdir),
    "is a full directory": instead(full_folder),
    "is an empty file": instead(Path.touch),
    "is a huge file": instead(huge),
    "is a link to itself": instead(lambda path: path.symlink_to(path.name)),
    "is a link to nothing": instead(lambda path: path.symlink_to("nowhere")),
    "is a link to zeros": instead(lambda path: path.symlink_to("/dev/zero")),
    "is a link to a directory": instead(lambda path: path.symlink_to("/tmp")),
    "every user can write to it": lambda path: path.chmod(0o777),
    "cannot be read": lambda path: path.chmod(0),
    "cannot be written": lambda path: path.chmod(0o500),
}


def foreign_of(folder: Path) -> Iterator[Case]:
    every = [folder, *sorted(folder.rglob("*"))]
    for path in every:
        relative = str(path.relative_to(folder))
        for name, damage in FOREIGN.items():
            yield Case(name, relative, damage)
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield Case("zeros", relative, partial(renewed, content=bytes(len(content))))
        yield Case("longer", relative, partial(renewed, content=content + b"more"))
        yield Case("a second name", relative, lambda path: os.link(path, f"{path}.twin"))
        for other in every:
            if other.is_file() and other != path:
                yield Case(
                    f"has the content of {other.relative_to(folder)}",
                    relative,
                    partial(renewed, content=other.read_bytes()),
                )


def damaged(where: Place, cases: Sequence[Case], worker: int) -> Iterator[str]:
    """Yield the defects of a run after each damage."""
    folder = where.base / f"worker-{worker}"
    for case in cases:
        if folder.is_symlink() or folder.exists():
            removed(folder)
        shutil.copytree(where.base / "pristine", folder, symlinks=True)
        case.damage(folder / case.path if case.path != "." else folder)
        problem = where.run(folder)
        if problem:
            yield f"{case}: {problem}"


def compilers(where: Place, sizes: Sequence[int]) -> Iterator[str]:
    """Yield the defects of runs with faulty compilers, which fail once for each file."""
    once = (
        'cache=$(readlink -f "$(dirname "$out")/../.."); mark={base}/mark-{number}-$source; '
        '[ -e "$mark" ] || {{ touch "$mark"; {fault}; }}'
    )
    faults = [f'head -c {size} "$known" > "$out"; exit 0' for size in sizes]
    faults += [
        f'head -c {size} "$known" > "$out"; kill -{end} $$'
        for size in (0, 999)
        for end in ("KILL", "TERM", "SEGV")
    ]
    faults += [
        'head -c 5000 /dev/zero > "$out"; exit 0',
        'echo "nothing" > "$out"; exit 0',
        'mkdir "$out"; exit 0',
        'ln -s /dev/zero "$out"; exit 0',
        'mkfifo "$out"; exit 0',
        'echo "No space left on device" >&2; exit 1',
        'rm -rf "$cache/cpu_c"; exec cp "$known" "$out"',
        'chmod 777 "$cache"; exec cp "$known" "$out"',
    ]
    for number, fault in enumerate(faults):
        text = once.format(base=where.base, number=number, fault=fault)
        command = stub(where.base, f"faulty-{number}", text)
        folder = where.base / f"by-faulty-{number}"
        for attempt in ("first", "second"):
            problem = where.run(folder, command)
            if problem:
                yield f"compiler: {fault}: {attempt} run: {problem}"
        if list(folder.rglob("*.tmp")):
            yield f"compiler: {fault}: leaves unfinished files"


def disks(where: Place, sizes: Sequence[int]) -> Iterator[str]:
    """Yield the defects of runs on small file systems."""
    mounted, link = where.base / "disk", where.base / "disk-cache"
    mounted.mkdir()
    link.symlink_to(mounted / "cache")  # the output of a run is beside it
    for size in sizes:
        options = f"size={size}k,mode=0700"
        mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(mounted)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            print("disks: this system mounts nothing", flush=True)
            return
        try:
            for attempt in ("first", "second"):
                problem = where.run(link)
                if problem:
                    yield f"disk of {size} kB: {attempt} run: {problem}"
        finally:
            subprocess.run(["umount", "--lazy", str(mounted)], check=False)


def parallel(where: Place, rounds: int, seed: int) -> Iterator[str]:
    """Yield the defects of runs that share a cache with each other, damage and sudden ends."""
    choose = random.Random(seed)
    for number in range(rounds):
        folder = where.base / f"shared-{number}"
        running = {where.start(folder): f"run {each}" for each in range(6)}
        for _ in range(choose.randrange(12)):
            time.sleep(choose.random() * 0.02)
            found = files(folder)
            if found and choose.random() < 0.7:
                victim = choose.choice(found)
                with suppress(OSError):
                    content = bytearray(victim.read_bytes())
                    if content:
                        content[choose.randrange(len(content))] ^= 1 + choose.randrange(255)
                    with victim.open("r+b") as file:  # under those who use it
                        file.write(content[: choose.choice([len(content), len(content) // 2])])
            elif running and choose.random() < 0.3:
                killed = choose.choice(list(running))
                os.kill(killed, signal.SIGKILL)
                os.waitpid(killed, 0)
                del running[killed]
        for process, name in running.items():
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            problem = where.told(status, folder)
            if problem:
                yield f"parallel, round {number}, {name}: {problem}"
        problem = where.run(folder)
        if problem:
            yield f"parallel, round {number}, afterwards: {problem}"
        if list(folder.rglob("*.tmp")):
            yield f"parallel, round {number}: unfinished files of killed processes are left"


Work = Callable[[int], Iterator[str]]


def shared_out(jobs: int, work: Work) -> list[str]:
    """Return the defects that workers find; each is a fork with a number."""
    readers = []
    for worker in range(jobs):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            status = 0
            try:
                with os.fdopen(writer, "w") as out:
                    for line in work(worker):
                        out.write(line.replace("\n", "\n    ") + "\n")
                        out.flush()
            except BaseException:
                traceback.print_exc()
                status = 1
            os._exit(status)
        os.close(writer)
        readers.append(os.fdopen(reader))
    found = [line.rstrip("\n") for each in readers for line in each]
    for _ in readers:
        if os.wait()[1] != 0:
            found.append("a worker failed")
    return found


def chosen(cases: Iterator[Case], sample: int | None, seed: int) -> list[Case]:
    every = list(cases)
    if sample is None or sample >= len(every):
        return every
    return random.Random(seed).sample(every, sample)


KINDS = ("bytes", "cuts", "foreign", "compilers", "disks", "parallel")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sample", type=int, help="so many cases of each kind; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    failed = 0
    # the forks start compilers beside themselves only if they think that there is room
    os.sched_getaffinity = lambda process: {0, 1}  # type: ignore[assignment]
    with place() as where:
        pristine = where.base / "pristine"
        damages = {"bytes": bytes_of, "cuts": cuts_of, "foreign": foreign_of}
        for kind in given.only:
            start = time.monotonic()
            count: int
            if kind in damages:
                cases = chosen(damages[kind](pristine), given.sample, given.seed)
                count = len(cases)
                found = shared_out(
                    given.jobs,
                    lambda worker, cases=cases: damaged(where, cases[worker :: given.jobs], worker),  # type: ignore[misc]
                )
            else:
                count, work = _other(kind, where, given.sample, given.seed)
                found = shared_out(1, work)
            for line in found:
                print(line, flush=True)
            failed += len(found)
            print(f"{kind}: {count} cases in {time.monotonic() - start:.0f} s", flush=True)
    print("every result was right" if not failed else f"{failed} lines about wrong results")
    return 1 if failed else 0


def _other(kind: str, where: Place, sample: int | None, seed: int) -> tuple[int, Work]:
    """Return the number of cases of a kind, and the function that runs them."""
    match kind:
        case "compilers":
            largest = max(file.stat().st_size for file in (where.base / "store").iterdir())
            sizes = range(0, largest, 997 if sample is None else largest // max(1, sample // 8))
            return len(sizes) + 14, lambda _: compilers(where, sizes)
        case "disks":
            kilobytes = range(4, 164, 4) if sample is None else (8, 64)
            return len(kilobytes), lambda _: disks(where, kilobytes)
        case _:
            rounds = 100 if sample is None else max(1, sample // 12)
            return rounds, lambda _: parallel(where, rounds, seed)


if __name__ == "__main__":
    sys.exit(main())
