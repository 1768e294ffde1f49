"""What both parts of the site share: links from one to the other, equations as MathML, the example reports."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

RESEARCH = [
    "research/**",
    "decisions/*.md",
    "reference/**",
    "guide/tables.md",
    "guide/python.md",
]  # every other page is the users'
FOLDER = "methods"  # where the researchers' part lies inside of the users' site
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:]+\.md)(#[^)\s]*)?\)")


def link_parts(app: Any, page: str, source: list[str]) -> None:
    """Point links to a page of the other part at the HTML that its own build makes.

    In the files they are links between Markdown files, so that they work where the files are read as they are.
    """
    ours = app.env.found_docs
    research = app.config.root_doc != "index"
    here = Path(FOLDER if research else ".") / page

    def turned(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(page), target))
        name = path.removesuffix(".md")
        if name in ours or path.startswith("..") or not (Path(app.srcdir) / path).exists():
            return found[0]
        there = Path("." if research else FOLDER) / f"{name}.html"
        href = os.path.relpath(there, here.parent).replace(os.sep, "/")
        return f'<a class="reference external" href="{href}{anchor}">{text}</a>'

    source[0] = LINK.sub(turned, source[0])


def _math(self: Any, node: Any, block: bool) -> None:
    from docutils import nodes
    from docutils.utils.math.latex2mathml import MathError, tex2mathml
    from sphinx.util.math import get_node_equation_number

    try:
        made = tex2mathml(node.astext(), as_block=block)
    except MathError as reason:
        raise ValueError(f"an equation that MathML cannot say: {node.astext()!r}: {reason}") from reason
    if not block:
        self.body.append(made)
        raise nodes.SkipNode
    self.body.append(self.starttag(node, "div", CLASS="equation"))
    self.body.append(made)
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
    self.body.append("</div>\n")
    raise nodes.SkipNode


def copy_reports(app: Any, exception: Exception | None) -> None:
    """Put the example reports into the users' site as they are: each is a page of its own."""
    if exception is not None or app.builder.name != "html" or app.config.root_doc != "index":
        return
    if app.tags.has("pages_only"):
        return
    target = Path(app.outdir) / "gallery" / "great-egret"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(Path(app.srcdir).parent / "reports" / "example", target)
    from make_gallery import place

    place(Path(app.outdir) / "gallery" / "simulated-wigeon")


def setup(app: Any) -> dict[str, bool]:
    """Hook links, equations and reports into the build."""

    def inline(self: Any, node: Any) -> None:
        _math(self, node, False)

    def display(self: Any, node: Any) -> None:
        _math(self, node, True)

    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    app.connect("source-read", link_parts)
    app.connect("build-finished", copy_reports)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
