"""One user's files neither run code as another user nor change the results of that user.

Runs as root, with two user ids that nobody has, as in the continuous integration; elsewhere it is
skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slow import long

VICTIM, ATTACKER = 65011, 65012
HELPER = Path(__file__).with_name("as_user.py")

pytestmark = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root becomes two users"
)

COMPUTE = """
import ocannl_core as oc
x = oc.tensor(np.arange(6, dtype=np.float32), label="x")
y = oc.exp(x) * x
context = oc.Context("cpu_c")
context.compile(oc.train.forward(y))()
assert np.allclose(context[y], np.exp(np.arange(6)) * np.arange(6), rtol=1e-5), context[y]
print("right")
"""

PLANT = """
import hashlib
from pathlib import Path
from ocannl_core.base.files.digests import add_json_digest

evil = Path("EVIL").read_bytes()
for kernels in Path("CACHE").glob("cpu_c/*/kernels"):
    name = f"{hashlib.sha256(evil).hexdigest()}.so"
    (kernels.parent / "objects" / name).write_bytes(evil)
    for record in list(kernels.iterdir()):
        content = add_json_digest(record.name, {"object": name})
        record.unlink()
        record.write_bytes(content)
"""


class Server:
    """A process of root that runs programs as other users."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HELPER)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready"

    def tell(self, order: object) -> int:
        """Return the answer to an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


class Running:
    """A program of a user."""

    def __init__(self, server: Server, order: dict[str, object], output: Path) -> None:
        self._server = server
        self._output = output
        output.touch()
        output.chmod(0o666)
        self._number = server.tell({**order, "output": str(output)})

    def wait_for(self, text: str) -> None:
        """Return when the program has printed a text."""
        end = time.monotonic() + 120
        while text not in self._output.read_text():
            assert time.monotonic() < end, self._output.read_text()
            time.sleep(0.02)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def end(self) -> int:
        """Return the exit status."""
        return self._server.tell(self._number)

    def finish(self) -> str:
        """Wait for its successful end; return its output."""
        status = self.end()
        assert status == 0, self._output.read_text()
        return self._output.read_text()


class World:
    """Directories that two users share.

    Attributes:
        base: Where they all are; it belongs to root.
        home: The victim's own.
        shared: A directory of all users, where only owners replace their files.
        loose: Everybody's, where everybody replaces everything.
        trap: What exists if the attacker's code was run.
    """

    def __init__(self, base: Path, server: Server) -> None:
        self.base = base
        self._server = server
        self._started = 0
        self.home, self.shared, self.loose = (base / each for each in ("home", "shared", "loose"))
        for path, owner, mode in (
            (self.home, VICTIM, 0o755),
            (self.shared, 0, 0o1777),
            (self.loose, 0, 0o777),
            (base / "traps", 0, 0o1777),
        ):
            path.mkdir()
            os.chown(path, owner, owner)
            path.chmod(mode)
        self.trap = base / "traps" / "sprung"

    def start(self, user: int, program: str, folder: Path, **variables: str) -> Running:
        home = self.home if user == VICTIM else self.shared
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
        order: dict[str, object] = {"user": user, "folder": str(folder), "program": program}
        self._started += 1
        output = self.base / f"output-{self._started}"
        return Running(self._server, {**order, "variables": env}, output)

    def victim(self, folder: Path | None = None, **variables: str) -> str:
        """Return the output of the victim's program, which must compute the right result."""
        output = self.start(VICTIM, COMPUTE, folder or self.home, **variables).finish()
        assert "right\n" in output
        return output

    def attacker(self, program: str, **variables: str) -> None:
        self.start(ATTACKER, program, self.shared, **variables).finish()

    def plant(self, user: int, evil: Path, cache: Path) -> None:
        """Have a user put an object into a cache, under the keys of all kernels there."""
        program = PLANT.replace("EVIL", str(evil)).replace("CACHE", str(cache))
        self.start(user, program, self.shared).finish()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.process.communicate()


@pytest.fixture
def world(server: Server) -> Iterator[World]:
    base = Path(tempfile.mkdtemp(prefix="two-users-", dir="/tmp"))
    base.chmod(0o755)
    yield World(base, server)
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def evil(world: World) -> Path:
    """An object with the kernels of the program, which springs the trap when it is loaded."""
    cache = world.home / "first"
    world.victim(OCANNL_CACHE_DIR=str(cache))
    keys = [each.stem for each in cache.glob("cpu_c/*/kernels/*.json")]
    assert keys
    shutil.rmtree(cache)
    source, made = world.base / "evil.c", world.base / "evil.so"
    nothing = ", ".join(["nothing"] * len(keys))
    source.write_text(f"""
#include <stdio.h>
static void nothing(void *const *args) {{}}
void (*const ocannl_kernels[])(void *const *) = {{{nothing}}};
const char ocannl_keys[] = "{" ".join(keys)}";
__attribute__((constructor)) static void spring(void) {{
  FILE *trap = fopen("{world.trap}", "w");
  if (trap) fclose(trap);
}}
""")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    made.chmod(0o644)
    return made


def command(world: World, folder: Path) -> Path:
    """Have the attacker write a compiler that springs the trap."""
    script = folder / "evil-cc"
    world.attacker(
        f"open({str(script)!r}, 'w').write('#!/bin/sh\\n: > {world.trap}\\nexec cc \"$@\"\\n')\n"
        f"import os; os.chmod({str(script)!r}, 0o755)"
    )
    return script


def test_files_planted_by_the_user_are_run(world: World, evil: Path) -> None:
    cache = world.home / "cache"
    world.victim(OCANNL_CACHE_DIR=str(cache))
    world.plant(VICTIM, evil, cache)
    world.start(VICTIM, COMPUTE, world.home, OCANNL_CACHE_DIR=str(cache)).end()
    assert world.trap.exists()


def test_the_compiler_is_run_where_the_user_trusts_it(world: World) -> None:
    script = command(world, world.shared)
    world.victim(OCANNL_CPU_C__CC=str(script))
    assert world.trap.exists()


@pytest.mark.parametrize("name", ["ocannl.toml", "pyproject.toml"])
@pytest.mark.parametrize("where", ["shared", "loose"])
def test_a_file_of_another_user_sets_no_compiler(world: World, name: str, where: str) -> None:
    folder = getattr(world, where)
    script = command(world, folder)
    table = "" if name == "ocannl.toml" else "[tool.ocannl]\n"
    path = folder / name
    text = f'{table}cc = "{script}"'
    world.attacker(f"open({str(path)!r}, 'w').write({text!r})")
    inner = folder / "inner"
    inner.mkdir()
    os.chown(inner, VICTIM, VICTIM)
    output = world.victim(inner)
    assert f"The configuration file {path} is not used" in output
    assert not world.trap.exists()


def test_a_file_that_the_user_copied_names_no_compiler(world: World) -> None:
    """As that of a repository which the user cloned."""
    script = command(world, world.shared)
    path = world.home / "project" / "ocannl.toml"
    path.parent.mkdir()
    path.write_text(f"seed = 3\n[plugins.cpu_c]\ncc = '{script}'\n")
    for each in (path.parent, path):
        os.chown(each, VICTIM, VICTIM)
    output = world.victim(path.parent)
    assert "The setting plugins.cpu_c.cc of" in output
    assert not world.trap.exists()
    world.victim(path.parent, OCANNL_TRUSTED_DIRECTORIES=str(path.parent))
    assert world.trap.exists()


def test_a_file_of_the_user_under_a_second_name_is_not_used(world: World) -> None:
    own = world.home / "ocannl.toml"
    own.write_text("seed = 1\n")
    os.chown(own, VICTIM, VICTIM)
    os.link(own, world.shared / "ocannl.toml")
    assert f"{world.shared}: every user can write to it" in world.victim(world.shared)


def test_a_cache_of_another_user_is_not_used(world: World, evil: Path) -> None:
    cache = world.shared / "cache"
    world.attacker(COMPUTE, OCANNL_CACHE_DIR=str(cache))
    world.plant(ATTACKER, evil, cache)
    world.attacker(f"import os; os.system('chmod -R a+rwX {cache}')")
    output = world.victim(OCANNL_CACHE_DIR=str(cache))
    assert f"{cache}: it belongs to user {ATTACKER}" in output
    assert not world.trap.exists()


@pytest.mark.parametrize(
    "opened", ["", "cpu_c/*", "tmp", *long(["cpu_c", "cpu_c/*/objects", "cpu_c/*/kernels"])]
)
def test_a_cache_that_was_open_to_everybody_is_not_used(
    world: World, evil: Path, opened: str
) -> None:
    cache = world.home / "cache"
    world.victim(OCANNL_CACHE_DIR=str(cache))
    for each in (cache, *cache.rglob("*")):
        each.chmod(0o755 if each.is_dir() else 0o644)
    (loose,) = cache.glob(opened) if opened else (cache,)
    loose.chmod(0o777)
    world.attacker(f"open({str(loose / 'planted')!r}, 'w').write('x')")
    with_all = opened != "tmp"
    for each in loose.rglob("*") if with_all else ():
        each.chmod(0o777)
    if with_all and opened in ("", "cpu_c", "cpu_c/*"):
        world.plant(ATTACKER, evil, cache)
    output = world.victim(OCANNL_CACHE_DIR=str(cache))
    assert "every user can write to it" in output
    assert "OCANNL_CACHE_DIR" in output
    assert not world.trap.exists()


def test_files_planted_before_the_cache_was_private_are_not_used(world: World, evil: Path) -> None:
    cache = world.home / "cache"
    world.victim(OCANNL_CACHE_DIR=str(cache))
    places = [each for each in (cache, *cache.rglob("*")) if each.is_dir()]
    for each in places:
        each.chmod(0o777)
    world.plant(ATTACKER, evil, cache)
    for each in places:
        each.chmod(0o700)
    world.victim(OCANNL_CACHE_DIR=str(cache))
    assert not world.trap.exists()


def test_a_cache_behind_another_users_link_costs_no_file(world: World) -> None:
    """The link leads to a directory of the user, which is used like any that is not empty."""
    own, link = world.home / "work", world.loose / "link"
    precious = [own / "tmp" / "draft.tmp", own / "routines" / f"{1:064x}"]
    for each in precious:
        each.parent.mkdir(parents=True, mode=0o700)
        each.write_text("precious")
        os.utime(each, (0, 0))
    for each in (own, *own.rglob("*")):
        os.chown(each, VICTIM, VICTIM)
    world.attacker(f"import os; os.symlink({str(own)!r}, {str(link)!r})")
    world.victim(OCANNL_CACHE_DIR=str(link))
    assert [each.read_text() for each in precious] == ["precious"] * 2


def test_a_cache_that_is_exchanged_while_a_process_runs_is_not_used(
    world: World, evil: Path
) -> None:
    parent = world.home / "parent"
    parent.mkdir()
    os.chown(parent, VICTIM, VICTIM)
    cache, go = parent / "cache", world.home / "go"
    program = f"""
import os, time
os.environ["OCANNL_CACHE_DIR"] = {str(cache)!r}
one = oc.tensor(np.ones(3, np.float32))
oc.Context("cpu_c").compile(oc.train.forward(one * 2.0))()
os.chmod({str(parent)!r}, 0o777)
print("first", flush=True)
while not os.path.exists({str(go)!r}):
    time.sleep(0.05)
{COMPUTE}"""
    theirs = world.shared / "cache"
    world.attacker(COMPUTE, OCANNL_CACHE_DIR=str(theirs))
    world.plant(ATTACKER, evil, theirs)
    world.attacker(f"import os; os.system('chmod -R a+rwX {theirs}')")
    running = world.start(VICTIM, program, world.home)
    running.wait_for("first")
    world.attacker(
        f"import os; os.rename({str(cache)!r}, {str(parent / 'aside')!r}); "
        f"os.rename({str(theirs)!r}, {str(cache)!r})"
    )
    go.touch()
    assert "right\n" in running.finish()
    assert not world.trap.exists()


def test_generated_code_of_another_user_is_not_used(world: World) -> None:
    """Entries for routines name the classes that they consist of: none that is not expected."""
    cache = world.home / "cache"
    world.victim(OCANNL_CACHE_DIR=str(cache))
    entries = [*(cache / "routines").iterdir(), *(cache / "kernels").iterdir()]
    assert {each.parent.name for each in entries} == {"routines", "kernels"}
    for each in entries:
        content = each.read_bytes()
        each.unlink()
        each.write_bytes(content)
        os.chown(each, ATTACKER, ATTACKER)
        each.chmod(0o644)
    before = {each: each.stat().st_ino for each in entries}
    world.victim(OCANNL_CACHE_DIR=str(cache))
    for each in entries:
        assert each.stat().st_uid == VICTIM
        assert each.stat().st_ino != before[each]


def test_without_a_cache_a_private_temporary_directory_is_used(world: World) -> None:
    program = (
        COMPUTE
        + """
import os
from ocannl_core.base.files.directory import _temporary
place = _temporary[0]
status = os.stat(place)
print(oct(status.st_mode), status.st_uid, place.parent)
"""
    )
    loose = {"OCANNL_CACHE_DIR": "/dev/null/cache", "TMPDIR": str(world.loose)}
    output = world.start(VICTIM, program, world.home, **loose).finish()
    mode, owner, parent = output.splitlines()[-1].split()
    assert (mode, int(owner)) == ("0o40700", VICTIM)
    assert Path(parent) != world.loose  # where it could be exchanged


WRITERS = {
    "checkpoint": """
w, context = oc.declare("w", output=[2]), oc.Context("interp")
context[w] = 1.0
oc.save("PATH", context, [w])
""",
    "picture": """
oc.graph(oc.tensor(np.ones(3, np.float32)) * 2.0).save("PATH.svg")
""",
    "timeline": """
from ocannl_core import settings
from ocannl_core.base import timeline
with settings.overrides(timeline="PATH"):
    oc.Context("interp").compile(oc.train.forward(oc.tensor(np.ones(3, np.float32)) * 2.0))
timeline.write()
""",
    "trace": """
routine = oc.Context("interp").compile(oc.train.forward(oc.tensor(np.ones(3, np.float32)) * 2.0))
routine.profile().save_trace("PATH")
""",
}


@pytest.mark.parametrize("what", WRITERS)
@pytest.mark.parametrize("user", [0, VICTIM])
def test_a_saved_file_has_no_permissions_of_another_users_file(
    world: World, what: str, user: int
) -> None:
    path = world.loose / f"file{'.svg' * (what == 'picture')}"
    world.attacker(f"import os; open({str(path)!r}, 'w'); os.chmod({str(path)!r}, 0o6777)")
    assert path.stat().st_mode & 0o7777 == 0o6777
    program = WRITERS[what].replace("PATH", str(world.loose / "file"))
    world.start(user, program, world.home).finish()
    found = path.stat()
    assert found.st_size > 0
    assert (found.st_uid, found.st_mode & 0o7022) == (user, 0)


@pytest.mark.parametrize("what", WRITERS)
@pytest.mark.parametrize("place", ["shared", "loose"])
@pytest.mark.parametrize("user", [0, VICTIM])
def test_links_of_another_user_redirect_no_saved_file(
    world: World, what: str, place: str, user: int
) -> None:
    precious = world.home / "precious"
    precious.write_text("precious")
    os.chown(precious, user, user)
    folder = getattr(world, place)
    for name in ("file", "file.svg"):
        world.attacker(f"import os; os.symlink({str(precious)!r}, {str(folder / name)!r})")
    program = WRITERS[what].replace("PATH", str(folder / "file"))
    running = world.start(user, program, world.home)
    assert running.end() != 0
    assert "it is a symbolic link" in running.output
    assert precious.read_text() == "precious"


def test_a_directory_open_to_all_gets_no_files_of_compilers(world: World) -> None:
    script = world.home / "cc"
    script.write_text(
        f'#!/bin/sh\nstat -L -c \'%u %a %n\' "$TMPDIR" >> {world.home}/places\nexec cc "$@"\n'
    )
    script.chmod(0o755)
    world.victim(OCANNL_CPU_C__CC=str(script), TMPDIR=str(world.loose))
    places = (world.home / "places").read_text().splitlines()
    assert len(places) > 1
    assert all(place.startswith(f"{VICTIM} 700 /proc/self/fd/") for place in places)


def test_dumps_do_not_write_through_links_of_another_user(world: World) -> None:
    precious = world.home / "precious"
    precious.write_text("precious")
    os.chown(precious, VICTIM, VICTIM)
    dumps = world.loose / "dumps"
    racer = world.start(
        ATTACKER,
        f"""
import os, time
os.mkdir({str(dumps)!r}); os.chmod({str(dumps)!r}, 0o777)
end = time.monotonic() + 20
while time.monotonic() < end and not os.path.exists({str(world.loose / "stop")!r}):
    for name in os.listdir({str(dumps)!r}):
        path = os.path.join({str(dumps)!r}, name)
        if "aside" in name or "theirs" in name:
            continue
        try:
            os.rename(path, path + "-aside")
            os.mkdir(path + "-theirs")
            for file in ("00_assignments", "01_lowered", "memory", "seconds"):
                os.symlink({str(precious)!r}, f"{{path}}-theirs/{{file}}.txt")
            os.rename(path + "-theirs", path)
        except OSError:
            pass
""",
        world.shared,
    )
    while not dumps.exists():
        time.sleep(0.05)
    program = f"""
from ocannl_core import settings
for number in range(8):
    try:
        with settings.overrides(dump_dir={str(dumps)!r}), oc.Session():
            x = oc.tensor(np.arange(4, dtype=np.float32))
            oc.Context("interp").compile(oc.train.forward(x * float(number)))
    except settings.SettingsError:
        pass
"""
    world.start(VICTIM, program, world.home).finish()
    (world.loose / "stop").touch()
    racer.finish()
    assert precious.read_text() == "precious"
