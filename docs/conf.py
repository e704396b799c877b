"""Configuration of Sphinx: `sphinx-build -W docs build/docs`."""

project = "OCANNL for Python"
author = "the OCANNL for Python authors"
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
exclude_patterns = ["_build"]
