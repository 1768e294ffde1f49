"""The users' site: Sphinx with MyST; ``make docs`` builds it offline, and a warning is an error.

The part for method researchers, with a search of its own, is built from the same folder by ``research/conf.py``.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()
sys.path[:0] = [str(HERE.parent), str(HERE)]

import fedmiss

project = "fedmiss"
author = "the fedmiss developers"
copyright = "the fedmiss developers, MIT licence"
release = version = fedmiss.__version__
extensions = ["myst_parser", "site_parts"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
suppress_warnings = ["myst.header"]
smartquotes = False  # "--map" in a sentence is an option, not a dash
html_math_renderer = "mathml"  # made at build time: a page that asks no server can load no MathJax
html_theme = "furo"
html_title = f"fedmiss {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

from site_parts import RESEARCH

exclude_patterns = [*RESEARCH, "decisions/archive/**", "examples/**"]
