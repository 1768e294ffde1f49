"""The documentation site: Sphinx with MyST; `make docs` builds it offline, and a warning is an error."""

import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

import fedmiss

project = "fedmiss"
author = "the fedmiss developers"
copyright = "the fedmiss developers, MIT licence"
release = version = fedmiss.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["README.md", "decisions/README.md"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
suppress_warnings = ["myst.header", "ref.python"]  # names of attributes that two classes share
# Equations are set as text (Unicode) in code blocks: a page that asks no server can load no MathJax.
smartquotes = False  # "--map" in a sentence is an option, not a dash
html_theme = "furo"
html_title = f"fedmiss {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False


def _copy_gallery(app, exception):
    """Put the example reports into the site as they are: each is a page of its own."""
    import shutil

    if exception is None and app.builder.name == "html":
        source = Path(__file__).parent.parent / "reports" / "example"
        target = Path(app.outdir) / "gallery" / "great-egret"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        from make_gallery import place

        place(Path(app.outdir) / "gallery" / "simulated-wigeon")


def _one_line_entries(app, what, name, obj, options, lines):
    """Give ``name : text`` of our docstrings the two lines that napoleon reads: it takes text behind a colon for a type."""
    out, inside = [], False
    for i, line in enumerate(lines):
        if i + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[i + 1]):
            inside = line in ("Parameters", "Returns", "Raises", "Attributes")
        entry = re.fullmatch(r"(\S.*?) : (.+)", line) if inside else None
        out += [entry[1], f"    {entry[2]}"] if entry else [line]
    lines[:] = out


def setup(app):
    """Hook docstrings and gallery into the build."""
    app.connect("autodoc-process-docstring", _one_line_entries, priority=400)  # before napoleon's 500
    app.connect("build-finished", _copy_gallery)
