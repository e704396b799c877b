"""Configuration of Sphinx: `sphinx-build -W docs build/docs`."""

import sys
from pathlib import Path

import ocannl_core

sys.path.insert(0, str(Path(__file__).parent))

project = "OCANNL for Python"
author = "the OCANNL for Python authors"
version = release = ocannl_core.__version__
extensions = ["myst_parser", "docstrings", "notebooks"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"{project} {release}"
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "versions.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
# Without a server, browsers refuse to read pages for excerpts; the search itself is a script.
html_show_search_summary = False
exclude_patterns = ["_build", "_templates"]
python_maximum_signature_line_length = 80
toc_object_entries = (
    False  # each page would copy all of them; pages of docstrings begin with a list
)
