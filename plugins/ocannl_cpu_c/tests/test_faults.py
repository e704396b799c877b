"""Compilers that hang, are stopped, run out of space or write half of an object."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ocannl_core.base import settings
from ocannl_core.base.errors import CompileError, warn_once
from ocannl_core.base.files import directory as directories
from ocannl_core.base.files.digests import add_json_digest
from ocannl_core.codegen.c_family import render_kernel
from ocannl_core.codegen.dialect import Dialect
from ocannl_core.codegen.text.kernel_text import KernelText
from ocannl_core.ir.kernels.nodes import Kernel
from ocannl_core.ir.loops.nodes import Block, Fill
from ocannl_core.ir.node import NodeInfo, TensorNode
from ocannl_core.ir.numbers.dtypes import float32
from ocannl_cpu_c import background_compilation, cache, compiler, loader, object_files, processes
from ocannl_cpu_c.loader import load
from ocannl_cpu_c.translation_units import file_of

PROMPT = 20.0
"""Seconds that nothing here takes, however busy the machine is."""

Script = Callable[[str], str]
ANSWER = 'case "$*" in *-dM*) exec cc "$@";; esac'


def kernel(number: float) -> KernelText:
    out = TensorNode(0, ("out",))
    body = Block((Fill(out, number),))
    return render_kernel(Kernel(body, (out,), ()), {out: NodeInfo(float32, (4,))}, Dialect())


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Return a function that makes a compiler of shell lines; `$out` is the object."""

    def make(lines: str, *, probe: str = ANSWER) -> str:
        path = tmp_path / f"cc-{len(list(tmp_path.iterdir()))}"
        find = 'for each in "$@"; do [ "$last" = -o ] && out=$each; last=$each; done'
        path.write_text(f"#!/bin/sh\n{probe}\n{find}\n{lines}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that has loaded nothing and compiles nothing, with a cache of its own; returns the
    cache directory.
    """
    background_compilation.stop()  # of other tests
    for name in ("_loaded", "_libraries"):
        monkeypatch.setattr(loader, name, {})
    monkeypatch.setattr(directories, "_temporary", [])
    warn_once.cache_clear()
    compiler._find.cache_clear()
    with settings.overrides(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def objects_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.so"))


def failure() -> str:
    with pytest.raises(CompileError) as caught:
        load([kernel(1.5)])
    return str(caught.value)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared object."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "a.c").write_text("int a[100] = {1}; int f(int x) { return a[x]; }")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True, cwd=folder
    )
    return (folder / "a.so").read_bytes()


def test_no_beginning_of_an_object_is_a_whole_one(whole: bytes) -> None:
    assert object_files.defect_of(whole) == ""
    for size in range(len(whole)):
        assert object_files.defect_of(whole[:size]), size


def test_no_object_of_zeros_at_the_end_is_a_whole_one(whole: bytes) -> None:
    for size in range(0, len(whole) - 64, 16):
        assert object_files.defect_of(whole[:size].ljust(len(whole), b"\0")), size


@pytest.mark.parametrize(
    ("content", "lack"),
    [
        (b"", "it is empty"),
        (b"#!/bin/sh\n" * 20, "it is no ELF file"),
        (b"\x7fELF", "it ends after 4 bytes, within a header"),
        (b"\x7fELF\x02\x01\x01" + bytes(200), "it is no shared object"),
    ],
)
def test_other_things_are_no_objects(content: bytes, lack: str) -> None:
    assert object_files.defect_of(content) == lack


@pytest.mark.parametrize("kept", [0, 1, 64, 500, 4096, 9000, 14000])
def test_an_object_that_was_cut_off_is_compiled_again(
    script: Script, tmp_path: Path, kept: int
) -> None:
    once = tmp_path / "cut"
    lines = f"""cc "$@" || exit
[ -e {once} ] && exit
touch {once}
head -c {kept} "$out" > "$out.part"; mv "$out.part" "$out"
exit 0"""
    with settings.overrides(cpu_c__cc=script(lines)), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load([kernel(1.5)])
    assert once.exists()


def test_a_compiler_that_always_cuts_off_objects_is_an_error(script: Script, fresh: Path) -> None:
    command = script('cc "$@" || exit; head -c 5000 "$out" > "$out.x"; mv "$out.x" "$out"')
    with settings.overrides(cpu_c__cc=command):
        text = failure().splitlines()
    assert text[0] == snapshot("The C compiler must write shared objects that can be loaded.")
    assert text[1].endswith(
        ": it wrote no whole shared object: it ends after 5000 bytes, within a header"
    )
    assert text[2:] == snapshot(
        [
            "  try    see whether the disk is full, and set OCANNL_CACHE_DIR to a directory with space; check the compiler with OCANNL_CPU_C__CC=..."
        ]
    )
    assert not objects_in(fresh)
    assert not list(fresh.rglob("*.tmp"))


def test_a_compiler_without_output_or_file_is_an_error(script: Script) -> None:
    with settings.overrides(cpu_c__cc=script("exit 0")):
        assert "exit status 0, but no shared object" in failure()


def test_an_object_of_something_else_is_an_error(script: Script) -> None:
    """As that of a cache of compilers which mistakes one file for another."""
    lines = 'echo "int x;" | cc -shared -fPIC -o "$out" -x c -'
    with settings.overrides(cpu_c__cc=script(lines)):
        assert "does not have the kernel" in failure()


@pytest.mark.parametrize(
    "end",
    [
        "kill -KILL $$",
        "kill -TERM $$",
        'echo "gcc: fatal error: Killed signal terminated program cc1" >&2; exit 1',
        'echo "collect2: fatal error: ld terminated with signal 9 [Killed]" >&2; exit 1',
    ],
)
def test_a_compiler_that_was_stopped_is_started_again(
    script: Script, tmp_path: Path, end: str
) -> None:
    once = tmp_path / "stopped"
    lines = f'[ -e {once} ] && exec cc "$@"\ntouch {once}; echo half > "$out"\n{end}'
    with settings.overrides(cpu_c__cc=script(lines)):
        assert load([kernel(1.5)])
    assert once.exists()


def test_a_compiler_that_is_always_stopped_is_an_error(script: Script, fresh: Path) -> None:
    with settings.overrides(cpu_c__cc=script("kill -KILL $$")):
        assert "it was stopped: signal 9" in failure()
    assert not list(fresh.rglob("*.tmp"))


@pytest.mark.parametrize(
    "said",
    [
        "/usr/bin/ld: final link failed: No space left on device",
        "fatal error: error writing to /tmp/x.s: No space left on device",
        "error: unable to open output file 'x.so': 'Disk quota exceeded'",
    ],
)
def test_without_space_a_temporary_place_is_taken_after_a_warning(
    script: Script, fresh: Path, said: str
) -> None:
    lines = f"""case "$(readlink -f "$out")" in {fresh}*) echo "{said}" >&2; exit 1;; esac
exec cc "$@\""""
    with settings.overrides(cpu_c__cc=script(lines)):
        with pytest.warns(RuntimeWarning, match=r"not kept: .*cpu_c.*No space left.*CACHE_DIR"):
            assert load([kernel(1.5)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load([kernel(2.5)])
    assert not objects_in(fresh)
    assert not list(fresh.rglob("*.tmp"))


def test_temporary_files_of_compilers_are_in_a_private_directory(
    script: Script, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write to TMPDIR could exchange the assembly."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "open"))
    lines = f"""case "$(readlink -f "$TMPDIR")" in {fresh}/tmp/*.tmp) exec cc "$@";; esac
echo "files in $TMPDIR" >&2; exit 1"""
    with settings.overrides(cpu_c__cc=script(lines)):
        assert load([kernel(1.5)])


def test_a_full_disk_is_an_error_that_names_it(script: Script) -> None:
    lines = 'echo "ld: final link failed: No space left on device" >&2; exit 1'
    with (
        settings.overrides(cpu_c__cc=script(lines)),
        pytest.warns(RuntimeWarning, match="not kept"),
    ):
        text = failure()
    assert "found  [Errno 28] No space left on device" in text
    assert "see whether the disk is full" in text


def test_a_full_disk_without_a_temporary_directory_is_an_error_that_names_both(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise OSError(errno.ENOSPC, "no directory for temporary files has room")

    assert load([kernel(2.5)])  # detection takes a directory, too
    monkeypatch.setattr(directories, "_new_temporary", fail)
    monkeypatch.setattr(directories.PrivateDirectory, "create", lambda *_: fail())
    text = failure()
    assert "The C compiler must write shared objects that can be loaded." in text
    assert "cannot be used ([Errno 28]" in text
    assert "and no temporary directory ([Errno 28]" in text


@pytest.mark.parametrize("failing", ["write", "child"])
def test_a_cache_that_cannot_be_written_is_replaced(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    real = getattr(directories.PrivateDirectory, failing)

    def full(self: directories.PrivateDirectory, *arguments: object) -> object:
        if self.path.is_relative_to(fresh):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        return real(self, *arguments)

    monkeypatch.setattr(directories.PrivateDirectory, failing, full)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert load([kernel(1.5)])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems")
def test_a_file_system_without_space_is_survived(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k,mode=0700", "none", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this system mounts nothing")
    try:
        with (
            settings.overrides(cache_dir=str(small / "cache")),
            pytest.warns(RuntimeWarning, match="No space left on device"),
        ):
            assert load([kernel(number + 0.5) for number in range(8)])
        assert not list(small.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


_PROGRAM = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import ocannl_core as oc
    print("ready", flush=True)
    try:
        x = oc.tensor([1.0, 2.0])
        oc.Context("cpu_c").compile(oc.train.forward(oc.exp(x)))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    if "stay" in sys.argv:
        sys.stdin.read()
"""


class Hanging:
    """A process whose compilers hang, and their process ids."""

    def __init__(self, command: str, folder: Path, *arguments: str) -> None:
        env = os.environ | {
            "OCANNL_CPU_C__CC": command,
            "OCANNL_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
        }
        self._started = folder / "started"
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_PROGRAM), *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> list[int]:
        """Return the compilers and their subprocesses, once there are some."""
        end = time.monotonic() + 3 * PROMPT
        while not self._started.exists():
            assert time.monotonic() < end
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.02)
        while not self._is_idle():
            assert time.monotonic() < end
        return [int(each) for each in self._started.read_text().split()]

    def _is_idle(self) -> bool:
        """Return True if the process sleeps for 0.3 s: it waits for the compiler."""
        states = []
        for _ in range(15):
            time.sleep(0.02)
            stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            states.append((stat[0], stat[11], stat[12]))  # state, user time, system time
        return set(states) == {states[0]} and states[0][0] == "S"

    def finish(self) -> str:
        try:
            return self.process.communicate(timeout=PROMPT)[0]
        finally:
            self.process.kill()


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def soon(condition: Callable[[], bool]) -> bool:
    """Return whether a condition comes true within the time that counts as prompt."""
    end = time.monotonic() + PROMPT
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def all_end(numbers: list[int]) -> bool:
    return soon(lambda: not any(map(is_alive, numbers)))


HANGS = {
    "at once": ("", 'echo $$ >> {started}\nsleep 1000 & echo $! >> {started}\nwait'),
    "when it compiles": (ANSWER, 'echo $$ >> {started}\nsleep 1000 & echo $! >> {started}\nwait'),
    "and keeps what it writes open": (ANSWER, 'echo $$ >> {started}\nexec sleep 1000'),
    "and ignores being told": (
        ANSWER,
        "trap '' TERM INT HUP\necho $$ >> {started}\nwhile :; do sleep 1; done",
    ),
}  # fmt: skip


@pytest.fixture(params=HANGS)
def hanging(
    request: pytest.FixtureRequest, script: Script, tmp_path: Path
) -> Iterator[Callable[..., Hanging]]:
    probe, lines = HANGS[request.param]
    command = script(lines.format(started=tmp_path / "started"), probe=probe)
    made: list[Hanging] = []

    def start(*arguments: str) -> Hanging:
        made.append(Hanging(command, tmp_path, *arguments))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_interrupt_ends_a_compiler_that_hangs_and_the_session_goes_on(
    hanging: Callable[..., Hanging], tmp_path: Path
) -> None:
    running = hanging("stay")
    compilers = running.wait()
    running.process.send_signal(signal.SIGINT)
    assert all_end(compilers)
    assert soon(lambda: not list((tmp_path / "cache").rglob("*.tmp")))
    assert running.process.poll() is None
    assert running.finish() == "ready\ninterrupted\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    ("hanging", "by"),
    [
        *((name, signal.SIGKILL) for name in HANGS),
        ("and ignores being told", signal.SIGTERM),
        ("when it compiles", signal.SIGHUP),
    ],
    indirect=["hanging"],
)
def test_compilers_end_with_a_process_that_is_killed(
    hanging: Callable[..., Hanging], tmp_path: Path, by: signal.Signals
) -> None:
    running = hanging()
    compilers = running.wait()
    running.process.send_signal(by)
    running.finish()
    assert all_end(compilers)
    assert load([kernel(1.5)])  # removes its leftovers
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_a_compilers_background_process_does_not_block(script: Script) -> None:
    """As servers of compilers do, which keep inherited descriptors open."""
    started = time.monotonic()
    with settings.overrides(cpu_c__cc=script('(sleep 60; :) & exec cc "$@"')):
        assert load([kernel(1.5)])
    assert time.monotonic() - started < 60


def test_a_compiler_may_print_more_than_a_pipe_holds(script: Script) -> None:
    lines = "i=0; while [ $i -lt 3000 ]; do echo 'a warning of a hundred characters, about'" + (
        " 'nothing much, but for all of it in one line'; i=$((i+1)); done; exec cc \"$@\""
    )
    with settings.overrides(cpu_c__cc=script(lines)):
        assert load([kernel(1.5)])


def test_nothing_is_watched_any_more_when_compilers_have_ended() -> None:
    assert load([kernel(1.5)])
    assert processes._watched == set()
    assert list(processes._running) == []


def test_a_watcher_that_was_killed_is_replaced(script: Script) -> None:
    assert load([kernel(1.5)])
    (watcher,) = processes._watcher
    watcher._shell.kill()
    watcher._shell.wait()
    assert load([kernel(2.5)])
    assert processes._watcher != [watcher]


def test_a_command_with_an_open_quote_is_an_error() -> None:
    with settings.overrides(cpu_c__cc="gcc 'x"):
        assert failure() == snapshot("""\
The chosen C compiler must be a command as in a shell.
  found  "gcc 'x": No closing quotation
  where  the setting cc (OCANNL_CPU_C__CC)
  try    close what is quoted, such as in "gcc '-DA=b c'"\
""")


def test_a_compiler_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cc"
    path.write_bytes(b"\x7fELF of another machine")
    path.chmod(0o755)
    with settings.overrides(cpu_c__cc=str(path)):
        assert "Exec format error" in failure()


def test_objects_that_take_a_descriptor_again_are_not_mixed_up() -> None:
    """The dynamic linker takes an object for one that it has if it has the same path."""
    for number in range(20):
        text = kernel(number + 0.5)
        load([text])
    positions = {
        key: found.positions[key] for found in loader._libraries.values() for key in found.positions
    }
    assert len(positions) == len(loader._libraries) == 20


def test_a_loaded_object_does_not_change_with_its_file(fresh: Path) -> None:
    """A file that is cut off under a process which uses it would end that."""
    load([kernel(1.5)])
    (built,) = objects_in(fresh)
    os.truncate(built, 0)
    (library,) = loader._libraries.values()
    assert loader.ffi.string(library.code.ocannl_keys)


def test_objects_are_loaded_from_files_where_memory_runs_no_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert load([kernel(1.5), kernel(2.5)])


def test_a_record_of_another_kernel_is_not_used(fresh: Path) -> None:
    """A kernel is found in the table of its object, wherever a record says that it is."""
    load([kernel(1.5)])
    load([kernel(2.5)])
    one, two = (file_of([kernel(number)]).keys[0] for number in (1.5, 2.5))
    opened = cache.open_cache(compiler.find())
    found, other = opened.find(one), opened.find(two)
    assert found is not None
    assert other is not None
    record = f"{one}.json"
    opened.compiled.kernels.write(record, add_json_digest(record, {"object": other.name}))
    loader._loaded.clear()
    assert load([kernel(1.5)])
    again = opened.find(one)
    assert again is not None
    assert again == found
