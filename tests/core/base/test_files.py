"""Directories and files that only the user can have written, and their replacements."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ocannl_core.base.errors import CompileError, warn_once
from ocannl_core.base.files import directory as directories
from ocannl_core.base.files import new_files, trust
from ocannl_core.base.files.digests import (
    add_digest,
    add_json_digest,
    strip_digest,
    strip_json_digest,
)
from ocannl_core.base.files.directory import (
    open_private,
    private_directory,
    temporary_directory,
    unfinished_directory,
)
from ocannl_core.base.files.new_files import replacement, write_new, write_text
from ocannl_core.base.files.trust import UntrustedError

OTHER = 65001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def reason(path: Path) -> str:
    """Return why a directory is not private."""
    with pytest.raises(UntrustedError) as caught:
        open_private(path)
    return str(caught.value).replace(str(path), "PATH")


def test_a_missing_directory_is_made_for_the_user_alone(tmp_path: Path) -> None:
    made = open_private(tmp_path / "a" / "b", create=True)
    made.write("name", b"content")
    assert made.read("name") == b"content"
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "a").rglob("*")} == {0o700, 0o600}
    with pytest.raises(FileNotFoundError):
        open_private(tmp_path / "c")


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o1777])
def test_a_directory_that_everybody_writes_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert reason(tmp_path) == "PATH: every user can write to it"


@as_root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "inner").mkdir(parents=True)
    os.chown(theirs, OTHER, OTHER)
    assert reason(theirs) == "PATH: it belongs to user 65001"


@as_root
def test_a_group_of_others_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, OTHER)
    tmp_path.chmod(0o770)
    assert reason(tmp_path) == "PATH: it can be written by group 65001"


def test_a_group_of_the_user_alone_is_as_good_as_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o770)
    for has_one_member in (True, False):
        monkeypatch.setattr(trust, "_has_one_member", lambda group, one=has_one_member: one)
        if has_one_member:
            open_private(tmp_path)
        else:
            assert "can be written by group" in reason(tmp_path)


def test_links_of_the_user_are_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir(mode=0o700)
    (tmp_path / "far" / "inner").mkdir(mode=0o700)
    (tmp_path / "absolute").symlink_to(tmp_path / "far")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "relative").symlink_to("../absolute/inner")
    open_private(tmp_path / "near" / "relative").write("name", b"x")
    assert (tmp_path / "far" / "inner" / "name").read_bytes() == b"x"


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="Too many levels"):
        open_private(tmp_path / "one")


def test_a_directory_that_was_opened_to_others_since_is_not_used_any_more(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    open_private(place, create=True)
    place.chmod(0o777)
    assert "every user" in reason(place)


def test_a_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    open_private(place, create=True)
    shutil.rmtree(place)
    open_private(place, create=True).write("name", b"x")
    assert (place / "name").read_bytes() == b"x"


def test_a_directory_that_was_exchanged_is_another_one(tmp_path: Path) -> None:
    held = open_private(tmp_path / "cache", create=True)
    held.write("name", b"mine")
    (tmp_path / "cache").rename(tmp_path / "aside")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "name").write_bytes(b"other")
    assert held.read("name") == b"mine"


def test_descriptors_that_the_program_closed_are_not_used(tmp_path: Path) -> None:
    """As daemons do, which close all that they did not open."""
    held = open_private(tmp_path / "cache", create=True)
    os.close(held.descriptor)
    assert held.read("name") is None
    open_private(tmp_path / "cache", create=True).write("name", b"x")
    assert (tmp_path / "cache" / "name").read_bytes() == b"x"
    del held


def test_no_directory_is_held(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for number in range(50):
        private_directory(tmp_path / str(number), "inner").write("name", b"x")
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after == before


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


def bound(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def huge(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 1 << 40)


def writable(path: Path) -> None:
    path.write_bytes(b"planted")
    path.chmod(0o666)


def unreadable(path: Path) -> None:
    path.write_bytes(b"planted")
    path.chmod(0o000)


FOREIGN = [
    fifo, link_to_zeros, dangling, folder, bound, huge, writable, unreadable
]  # fmt: skip


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_entries_that_are_no_files_of_the_user_are_not_read(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    place = open_private(tmp_path / "cache", create=True)
    make(tmp_path / "cache" / "name")
    if make is unreadable and os.geteuid() == 0:
        pytest.skip("root reads everything")
    assert place.read("name") is None
    if make is folder:  # its content may be anything
        with pytest.raises(IsADirectoryError):
            place.write("name", b"new")
        assert (tmp_path / "cache" / "name" / "inside").read_text() == "x"
        return
    place.write("name", b"new")
    assert place.read("name") == b"new"
    place.remove("name")
    assert "name" not in place.names()


@as_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    place = open_private(tmp_path / "cache", create=True)
    place.write("name", b"planted")
    os.chown(tmp_path / "cache" / "name", OTHER, OTHER)
    assert place.read("name") is None


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    place = open_private(tmp_path / "cache", create=True)
    place.write("name", b"12345")
    assert place.read("name", limit=5) == b"12345"
    assert place.read("name", limit=4) is None


def test_readers_see_whole_files_only(tmp_path: Path) -> None:
    place = open_private(tmp_path / "cache", create=True)
    contents = [bytes([number]) * 200_000 for number in range(2)]
    place.write("name", contents[0])
    seen: set[bytes | None] = set()

    def read() -> None:
        while not done.is_set():
            seen.add(place.read("name"))

    done = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        place.write("name", contents[number % 2])
    done.set()
    reader.join()
    assert seen <= set(contents)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    place = open_private(tmp_path / "cache", create=True)
    with pytest.raises(OSError, match="too long"):
        place.write("x" * 300, b"content")
    assert place.scratch.names() == []


def left(scratch: Path, machine: str, process: int, age: float = 0.0) -> Path:
    path = scratch / f"{machine}-{process}-0123456789ab.tmp"
    path.write_bytes(b"half of it")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.fixture
def gone() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_unfinished_files_go_with_their_processes(tmp_path: Path, gone: int) -> None:
    scratch = open_private(tmp_path / "cache", create=True).scratch.path
    here, day = new_files._machine(), 24 * 3600
    kept = [
        left(scratch, here, os.getpid(), 2 * day),
        left(scratch, here, os.getppid()),
        left(scratch, "0123456789ab", gone),
        left(scratch, "somebody", gone, 2 * day),  # no name of ours
    ]
    kept += [scratch / "notes", scratch / f"{here}-{gone}.tmp"]
    for each in kept[-2:]:
        each.write_text("precious")
        os.utime(each, (0, 0))
    stale = [left(scratch, here, gone), left(scratch, "0123456789ab", os.getpid(), 2 * day)]
    directories._swept.clear()
    open_private(tmp_path / "cache", create=True)
    assert {*scratch.iterdir()} == {*kept}
    assert not any(each.exists() for each in stale)


def test_nothing_is_removed_from_a_directory_that_had_files_of_others(
    tmp_path: Path, gone: int
) -> None:
    """As one of the user's projects that is named as cache by mistake."""
    root = tmp_path / "work"
    (root / "tmp").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    there = [left(root / "tmp", new_files._machine(), gone), root / f"{1:064x}"]
    there[1].write_text("precious")
    used = private_directory(root, "routines")
    used.write(f"{2:064x}", b"ours")
    assert used.removable_names() == []
    assert all(each.exists() for each in there)
    assert not (root / "CACHEDIR.TAG").exists()  # programs for backups leave out what has one
    made = private_directory(tmp_path / "cache", "routines")
    made.write(f"{2:064x}", b"ours")
    made.write("notes", b"of the user")
    assert made.removable_names() == [f"{2:064x}"]


@pytest.fixture
def no_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has no temporary directory yet, and has warned of nothing."""
    monkeypatch.setattr(directories, "_temporary", [])
    warn_once.cache_clear()


def test_a_temporary_directory_takes_the_place_of_a_refused_one(
    tmp_path: Path, no_temporary: None
) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.warns(RuntimeWarning, match=r"not kept: .*cache cannot be used .*OCANNL_CACHE_DIR"):
        first = private_directory(tmp_path / "cache", "inner")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = private_directory(tmp_path / "cache", "inner")
        private_directory(tmp_path / "cache", "other")
    first.write("name", b"x")
    assert second.read("name") == b"x"
    assert first.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_temporary_directory_goes_with_the_process(tmp_path: Path) -> None:
    program = """
import os, sys, warnings
from pathlib import Path
from ocannl_core.base.files.directory import private_directory
warnings.simplefilter("ignore")
made = private_directory(Path("/dev/null/cache"), "inner")
made.write("name", b"x")
print(made.path.parent)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
if os.fork() == 0:
    sys.exit()
os.wait()
assert made.read("name") == b"x"
"""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    others = [tmp_path / "ocannl-python"]  # such as a clone of this repository
    (others[0] / "inner").mkdir(parents=True)
    os.utime(others[0], (0, 0))
    command = [sys.executable, "-c", program]
    places = []
    for end in ("killed", "ended"):
        done = subprocess.run([*command, end], env=env, stdout=subprocess.PIPE, text=True)
        places.append(Path(done.stdout.strip()))
        assert (places[-1].exists(), done.returncode == 0) == ((end == "killed"), (end == "ended"))
    assert {*tmp_path.iterdir()} == {*others, places[0]}


@pytest.mark.parametrize("kind", ["writable", "missing", "full"])
def test_a_bad_place_for_temporary_files_is_passed_over(
    tmp_path: Path, no_temporary: None, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "temporary"
    if kind == "writable":
        place.mkdir()
        place.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    if kind == "full":

        def fail() -> str:  # as it does if no directory takes a file
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

        monkeypatch.setattr(tempfile, "gettempdir", fail)
    with pytest.warns(RuntimeWarning):
        found = temporary_directory(tmp_path, "inner", error=OSError(errno.ENOSPC, "no space"))
    assert not found.path.is_relative_to(place)


def test_without_any_directory_the_error_has_both_reasons(
    tmp_path: Path, no_temporary: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise OSError(errno.ENOSPC, "none has room")

    monkeypatch.setattr(directories, "_new_temporary", fail)
    with pytest.raises(OSError, match=r"cannot be used .*no entry.*no temporary.*none has room"):
        temporary_directory(tmp_path, "inner", error=OSError(errno.ENOENT, "no entry"))


@pytest.mark.parametrize(
    ("number", "fix"),
    [("EMFILE", "ulimit -n"), ("ENFILE", "fs.file-max"), ("EAGAIN", "-u"), ("EFBIG", "-f")],
)
def test_no_directory_takes_the_place_of_one_that_meets_a_limit_of_the_process(
    tmp_path: Path, no_temporary: None, number: str, fix: str
) -> None:
    error = OSError(getattr(errno, number), "there are too many")
    with pytest.raises(CompileError, match=f"(?s)limit.*there are too many.*{fix}"):
        temporary_directory(tmp_path, "inner", error=error)
    with pytest.warns(RuntimeWarning, match=f"not kept: .*there are too many.*{fix}"):
        directories.warn_of_loss("Results are not kept", tmp_path, error)


def test_an_error_about_too_many_open_files_names_their_limit(tmp_path: Path) -> None:
    code = f"""\
import os, resource
from pathlib import Path
from ocannl_core.base.files.directory import private_directory
first = os.open("/", os.O_RDONLY)
resource.setrlimit(resource.RLIMIT_NOFILE, (first + 1, first + 1))
private_directory(Path({str(tmp_path)!r}, "cache"), "inner")
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "A process opens no more files than its limit" in result.stderr
    assert "ulimit -n" in result.stderr


@given(st.text(max_size=5), st.binary(max_size=40), st.data())
def test_every_change_of_a_sealed_file_shows(
    name: str, payload: bytes, data: st.DataObject
) -> None:
    content = add_digest(name, payload)
    assert strip_digest(name, content) == payload
    changed = bytearray(content)
    at = data.draw(st.integers(0, len(content) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    assert strip_digest(name, bytes(changed)) is None
    assert strip_digest(name, content[:at]) is None
    assert strip_digest(name + "x", content) is None


@given(st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.integers() | st.text()))
def test_every_change_of_a_sealed_json_file_shows(name: str, values: dict[str, int | str]) -> None:
    values.pop("sha256", None)
    content = add_json_digest(name, values)
    assert strip_json_digest(name, content) == values
    assert strip_json_digest(f"{name}x", content) is None
    for at in range(len(content)):
        assert strip_json_digest(name, content[:at]) is None
        for flipped in (1, 0x80):
            changed = bytearray(content)
            changed[at] ^= flipped
            assert strip_json_digest(name, bytes(changed)) is None


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("before", [0o666, 0o4777, 0o2755, 0o600, 0o444, 0o1666])
def test_a_replaced_file_is_never_wider_than_the_umask(tmp_path: Path, before: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(before)
    umask = os.umask(0o027)
    try:
        write_text(path, "new")
    finally:
        os.umask(umask)
    assert path.read_text() == "new"
    assert mode_of(path) == before & 0o640


@as_root
def test_the_file_of_another_user_lends_nothing_to_its_replacement(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("theirs")
    os.chown(path, OTHER, OTHER)
    path.chmod(0o4777)
    write_text(path, "mine")
    assert (mode_of(path) & 0o7022, path.stat().st_uid) == (0, 0)


def test_a_link_is_followed_only_where_others_make_none(tmp_path: Path) -> None:
    target, place = tmp_path / "target", tmp_path / "place"
    target.write_text("precious")
    (place / "inner").mkdir(parents=True)
    (place / "first").symlink_to("inner/second")
    (place / "inner" / "second").symlink_to(target)
    write_text(place / "first", "new")
    assert (place / "first").is_symlink()
    assert target.read_text() == "new"
    for mode in (0o777, 0o1777):
        (place / "inner").chmod(mode)
        with pytest.raises(UntrustedError):
            write_text(place / "first", "newer")
        with pytest.raises(UntrustedError):
            write_text(place / "inner" / "second", "newer")
    assert target.read_text() == "new"


@pytest.mark.parametrize("make", [fifo, folder, bound], ids=lambda it: it.__name__)
def test_only_regular_files_are_replaced(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """As `/dev/null`, which root could replace."""
    make(tmp_path / "file")
    kind = (tmp_path / "file").stat().st_mode
    with pytest.raises(OSError, match=r"no regular file|Is a directory"):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").stat().st_mode == kind
    assert len(list(tmp_path.iterdir())) == 1


def test_unfinished_files_of_killed_processes_go_with_the_next_replacement(
    tmp_path: Path, gone: int
) -> None:
    path, here = tmp_path / "file", new_files._machine()
    old = tmp_path / f".file.{here}-{gone}-0123456789ab.tmp"
    others = [
        tmp_path / f".file.{here}-{os.getppid()}-0123456789ab.tmp",
        tmp_path / f".other.{here}-{gone}-0123456789ab.tmp",
        tmp_path / ".file.tmp",
    ]
    for each in (old, *others):
        each.write_text("half")
    with replacement(path) as file:
        file.write(b"new")
    assert {*tmp_path.iterdir()} == {path, *others}


def test_a_long_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("\u00e4" * 127)
    for text in ("one", "two"):
        write_text(path, text)
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]


def test_new_files_do_not_follow_existing_links(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    new = tmp_path / "new"
    new.mkdir()
    write_new(new / "first", "mine")
    (new / "name").symlink_to(victim)
    (new / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("first", "name", "dangling"):
        with pytest.raises(FileExistsError):
            write_new(new / name, "x")
    new.rename(tmp_path / "aside")
    new.symlink_to(tmp_path)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        write_new(new / "other", "x")
    assert victim.read_text() == "precious"
    assert (tmp_path / "aside" / "first").read_text() == "mine"
    assert {each.name for each in tmp_path.iterdir()} == {"aside", "new", "victim"}


def test_a_cache_that_is_deleted_during_the_work_in_it_is_no_error(tmp_path: Path) -> None:
    with unfinished_directory(tmp_path / "cache", "build") as directory:
        directory.write("result", b"")
        shutil.rmtree(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
