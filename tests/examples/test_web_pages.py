"""The example `web_pages`: the networks of its pages in Node.js, and the pages in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("ocannl_cpu_c")
pytest.importorskip("ziglang")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NODE = shutil.which("node")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.slow
in_node = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


@pytest.fixture
def web_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import web_pages

    return web_pages


def run(folder: Path, program: str) -> object:
    """Return the value that a JavaScript module in a folder prints."""
    (folder / "main.mjs").write_text(program)
    ran = subprocess.run(
        [str(NODE), "main.mjs"], cwd=folder, capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


@in_node
def test_the_page_of_digits(web_pages: ModuleType, tmp_path: Path) -> None:
    assert web_pages.digits_page(tmp_path, epochs=5) > 0.9
    program = """
    import { load } from "./digits.mjs";
    const [probabilities] = Object.values((await load()).predict({ image: new Float32Array(64) }));
    console.log(JSON.stringify([...probabilities]));
    """
    probabilities = run(tmp_path, program)
    assert isinstance(probabilities, list)
    assert len(probabilities) == 10
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    served = [each for each in tmp_path.iterdir() if each.suffix in (".html", ".mjs", ".wasm")]
    assert sum(each.stat().st_size for each in served) < 100_000


@in_node
def test_the_page_of_moons(web_pages: ModuleType, tmp_path: Path) -> None:
    web_pages.moons_page(tmp_path)
    program = """
    import { readFileSync } from "node:fs";
    import { load } from "./moons.mjs";
    const cells = JSON.parse(readFileSync("points.json", "utf8"));
    const model = await load();
    const losses = [];
    for (let step = 0; step < 200; ++step) {
      const rows = cells.slice(50 * (step % 8), 50 * (step % 8) + 50);
      const points = new Float32Array(rows.flatMap(([x, y]) => [x, y]));
      const classes = new Float32Array(rows.map(([, , side]) => side));
      const made = model.train({ points, classes, rate: new Float32Array([0.1]) });
      losses.push(Object.values(made)[0][0]);
    }
    console.log(JSON.stringify([losses[0], losses.at(-1)]));
    """
    losses = run(tmp_path, program)
    assert isinstance(losses, list)
    assert losses[1] < 0.2 < losses[0]


@in_node
def test_the_page_of_a_gpt(web_pages: ModuleType, tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 20
    writer = web_pages.gpt_page(tmp_path, (text, text), steps=30, length=32, width=16)
    prompt = [writer.alphabet.index(each) for each in "the q"]
    (tmp_path / "prompt.json").write_text(json.dumps(prompt))
    program = """
    import { readFileSync } from "node:fs";
    import { load } from "./gpt.mjs";
    const model = await load();
    const text = model.cells("text");
    const prompt = JSON.parse(readFileSync("prompt.json", "utf8"));
    text.set(prompt);
    const given = new Int32Array([prompt.length]);
    const [seed, temperature] = [new BigInt64Array([7n]), new Float32Array([0.6])];
    for (let at = 0; at < 31; ++at) model.write({ at, given, seed, temperature });
    console.log(JSON.stringify([...text]));
    """
    found = run(tmp_path, program)
    assert found == writer.generate(prompt, 27, temperature=0.6, seed=7).tolist()
    served = [each for each in tmp_path.iterdir() if each.suffix in (".html", ".mjs", ".wasm")]
    assert sum(each.stat().st_size for each in served) < 100_000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def shown(folder: Path, page: str, milliseconds: int) -> str:
    """Return the document of a page after some time in a browser."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    off = ("gpu", "quic", "background-networking", "component-update", "sync")
    options = [
        "--headless",
        "--no-sandbox",
        "--no-first-run",
        *(f"--disable-{each}" for each in off),
    ]
    options.append(f"--virtual-time-budget={milliseconds}")
    command = [str(BROWSER), *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    url = f"http://127.0.0.1:{server.server_port}/{page}"
    try:
        ran = subprocess.run([*command, url], capture_output=True, text=True, timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_a_browser_runs_the_pages(web_pages: ModuleType, tmp_path: Path) -> None:
    """They compute as soon as they are open."""
    web_pages.digits_page(tmp_path / "digits", epochs=1)
    web_pages.moons_page(tmp_path / "moons")
    text = "the quick brown fox jumps over the lazy dog. " * 20
    web_pages.gpt_page(tmp_path / "gpt", (text, text), steps=30, length=32, width=16)
    for name, pattern in {
        "digits": r"computed in [\d.]+ ms",
        "moons": r"loss 0\.\d+, \d+ microseconds a step",
        "gpt": r"[1-9]\d* characters, \d+ microseconds a call",
    }.items():
        (page,) = (tmp_path / name).glob("*.html")
        address = f"{name}/{page.name}"
        waits = (4_000, 16_000, 64_000)  # a busy machine gets less done in a browser's seconds
        assert any(re.search(pattern, shown(tmp_path, address, wait)) for wait in waits), name
