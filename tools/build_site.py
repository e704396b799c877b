"""Build the documentation of several versions into one folder, and check pages that were built.

    python tools/build_site.py                    # of this checkout: build/site/0.1.0
    python tools/build_site.py v0.1.0 v0.2.0      # and of these tags or commits
    python tools/build_site.py --check FOLDER     # the pages in a folder work without a server

`versions.js` in the folder lists the versions, for the menu of every page; `index.html` leads to
the newest. The pages need no server: they load nothing from elsewhere, and the search index is a
script.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.compile(r'__version__ = "([^"]+)"')
_LOADING = {"script": "src", "img": "src", "link": "href"}
OPTIONAL = "versions.js"
"""The list of versions, which pages of a single version lack."""


def build(tree: Path, site: Path) -> str:
    """Build the pages of a tree into a folder named after its version; return the version."""
    text = (tree / "ocannl_core/base/version.py").read_text(encoding="utf-8")
    found = _VERSION.search(text)
    assert found is not None
    paths = [str(tree), *(str(path) for path in sorted(tree.glob("plugins/*/src")))]
    program = (
        f"import sys; sys.path[:0] = {paths}; from sphinx.cmd.build import main; sys.exit(main())"
    )
    out = site / found[1]
    options = ["-W", "--keep-going", "-q", "-b", "html", str(tree / "docs"), str(out)]
    subprocess.run([sys.executable, "-c", program, *options], check=True, cwd=tree)
    return found[1]


def build_all(refs: Sequence[str], site: Path) -> list[str]:
    """Build the pages of this checkout and of commits; return the versions, newest first."""
    site.mkdir(parents=True, exist_ok=True)
    versions = {build(ROOT, site)}
    for ref in refs:
        with tempfile.TemporaryDirectory(prefix="ocannl-site-") as folder:
            archive = Path(folder, "tree.tar")
            tree = Path(folder, "tree")
            tree.mkdir()
            subprocess.run(["git", "archive", "-o", archive, ref], check=True, cwd=ROOT)
            subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
            version = build(tree, site)
            if version in versions:
                raise SystemExit(f"error: {ref} has the version {version}, as another tree has")
            versions.add(version)
    ordered = sorted(versions, key=lambda each: [int(n) for n in re.findall(r"\d+", each)])[::-1]
    listed = f"window.documentedVersions = {json.dumps(ordered)};\n"
    (site / OPTIONAL).write_text(listed, encoding="utf-8")
    newest = (
        f'<!doctype html><meta http-equiv="refresh" content="0; url={ordered[0]}/index.html">\n'
    )
    (site / "index.html").write_text(newest, encoding="utf-8")
    return ordered


class _Page(HTMLParser):
    """The references and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := known.get(name))}
        reference = known.get(_LOADING.get(tag, "")) or ""
        if reference and known.get("rel") not in ("canonical", "author"):
            self.loaded.append(reference)
        if tag == "a" and (target := known.get("href")):
            self.linked.append(target)


def problems(folder: Path) -> Iterator[str]:
    """Yield what does not work in pages that are opened as files."""
    pages = {
        path: _Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
    }
    for path, page in pages.items():
        place = path.relative_to(folder)
        for each in page.loaded:
            if urlsplit(each).scheme in ("http", "https") or each.startswith("//"):
                yield f"{place} loads {each} from elsewhere"
        for each in (*page.loaded, *page.linked):
            parts = urlsplit(each)
            if parts.scheme or parts.netloc or each.endswith(OPTIONAL):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{place} leads to {each}, which does not exist"
            elif target in pages and parts.fragment:
                if unquote(parts.fragment) in pages[target].anchors:
                    continue
                yield f"{place} leads to {each}, which has no such place"
    index = folder / "searchindex.js"
    if not index.exists() or not index.read_text(encoding="utf-8").startswith("Search.setIndex("):
        yield "searchindex.js is no script, which pages could load from a file"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the documentation of several versions.")
    parser.add_argument("refs", nargs="*", metavar="REF", help="tags or commits to build, too")
    parser.add_argument("--out", type=Path, default=ROOT / "build/site", help="default: build/site")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="check pages that were built")
    parsed = parser.parse_args(arguments)
    if parsed.check:
        folders = [parsed.check]
    else:
        folders = [parsed.out / version for version in build_all(parsed.refs, parsed.out)]
    found = [each for folder in folders for each in problems(folder.resolve())]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
