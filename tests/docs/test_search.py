"""The built site: every link leads somewhere, no server is asked, and each part has pages of its own in its index."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(out, *options):
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-t", "pages_only", "-b", "html", *options]
    done = subprocess.run([*command, ROOT / "docs", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Both parts, as `make docs` builds them: those that it built, or built here without the example reports."""
    if built := os.environ.get("FEDMISS_SITE"):
        return Path(built)
    pytest.importorskip("sphinx", reason="needs the dependency group docs: make docs")
    folder = tmp_path_factory.mktemp("site")
    build(folder / "site", "-d", folder / "users")
    build(folder / "site" / "methods", "-c", ROOT / "docs" / "research", "-d", folder / "methods")
    return folder / "site"


@pytest.mark.slow
def test_both_parts_are_whole_and_ask_no_server(site):
    """Every link of every page leads to a file and an anchor; no script, style or picture comes from elsewhere."""
    pages = {p: p.read_text(encoding="utf-8") for p in site.rglob("*.html")}
    anchors = {p: set(re.findall(r'\bid="([^"]+)"', text)) for p, text in pages.items()}
    assert len(pages) > 80
    for page, text in pages.items():
        for tag, name in re.findall(r'<(script|img|link|iframe)\b[^>]*?\b(?:src|href)="([^"]*)"', text):
            assert "//" not in name or name.startswith("data:"), f"{page}: {tag} {name}"
        body = text[text.index("<article") :] if "<article" in text else text
        for name in re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', body):
            target, _, anchor = html.unescape(name).partition("#")
            if re.match(r"[a-z]+:", target) or "gallery/" in target or "_sources" in target:
                continue
            there = (page.parent / target).resolve() if target else page
            assert there.exists(), f"{page.relative_to(site)}: {name}"
            assert not anchor or there not in anchors or anchor in anchors[there], f"{page.name}: {name}"
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "decisions/" not in index
    assert "research/core" not in index
    assert "archive" not in (site / "methods" / "searchindex.js").read_text(encoding="utf-8")[:20_000]
    model = pages[site / "guide" / "model.html"]
    assert model.count("<math") > 60
    assert "MathJax" not in model
