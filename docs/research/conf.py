"""The part of the site for method researchers: pages, table of contents and search of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import re

from conf import *  # noqa: F403  (theme, title, mathematics: those of the users' site)
from conf import release
from site_parts import RESEARCH

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_parts"]
exclude_patterns = ["decisions/archive/**"]
include_patterns = RESEARCH
root_doc = "research/index"
html_static_path = ["../_static"]
html_title = f"fedmiss {release}, for method researchers"
suppress_warnings = ["myst.header", "ref.python"]  # names of attributes that two classes share
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_rtype = False


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
    """Hook docstrings into the build."""
    app.connect("autodoc-process-docstring", _one_line_entries, priority=400)  # before napoleon's 500
