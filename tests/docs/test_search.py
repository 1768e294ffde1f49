"""The site answers what users ask: Sphinx's own search, run in a browser on the index of the built site."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
ASKED = {
    "install": "install", "weights": "guide/trim", "base year": "guide/trends",
    "bootstrap interval": "guide/trends", "how long does it take": "guide/time",
    "several species indicator": "howto/many-species", "many species": "howto/many-species",
    "spreadsheet": "howto/spreadsheet", "uncertainty of a cell": "howto/multiple-imputation",
    "minimum data": "guide/minimum-data", "coming from rtrim": "coming-from/rtrim",
    "what leaves my computer": "guide/privacy",
}  # fmt: skip
RESEARCHERS = {
    "step sizes": "research/core",
    "range coder": "decisions/0028-range-coder",
    "coverage": "research/truth",
}
SCRIPT = """<script>
const found = {};
for (const query of %s) {
  const results = Search._performSearch(...Search._parseQuery(query));  // the last is shown first
  found[query] = results.reverse().slice(0, 5).map((r) => [r[0], r[4]]);
}
const pre = document.createElement("pre");
pre.id = "answers";
pre.textContent = JSON.stringify(found);
document.body.replaceChildren(pre);
</script></body>"""


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


def answers(site, queries, folder):
    """Query -> the first five pages with their scores, in the order in which the site shows them."""
    text = (site / "search.html").read_text(encoding="utf-8")
    (site / "ask.html").write_text(
        text.replace("</body>", SCRIPT % json.dumps(list(queries))), encoding="utf-8"
    )
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}", "--dump-dom",
         (site / "ask.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    found = re.search(r'<pre id="answers">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_right_page_is_first(site, tmp_path):
    told = answers(site, ASKED, tmp_path / "users")
    first = {query: pages[0][0] if pages else "" for query, pages in told.items()}
    wanted = {
        query: next(p for p in pages.split("|") if (ROOT / "docs" / f"{p}.md").exists())
        for query, pages in ASKED.items()
    }
    right = [query for query, page in wanted.items() if first[query] == page]
    print("\n".join(f"{query}: {told[query]}" for query in ASKED))
    assert len(right) >= 10, {q: told[q] for q in ASKED if q not in right}
    told = answers(site / "methods", RESEARCHERS, tmp_path / "researchers")
    assert {query: pages[0][0] for query, pages in told.items()} == RESEARCHERS


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
