"""The page in headless Chromium: figures have a size, tables sort, nothing is asked of a server, a phone can show it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
    "--virtual-time-budget=4000", "--disable-features=NetworkTimeServiceQuerying",
]  # fmt: skip

PROBE = """
<script>
(function () {
  var errors = [];
  window.addEventListener("error", function (e) { errors.push(String(e.message)); });
  document.addEventListener("securitypolicyviolation", function (e) { errors.push("blocked: " + e.blockedURI); });
  window.addEventListener("load", function () {
    document.querySelectorAll("details").forEach(function (d) { d.open = true; });
    var figures = Array.from(document.querySelectorAll("figure svg, td svg")).map(function (s) {
      var box = s.getBoundingClientRect(); return [Math.round(box.width), Math.round(box.height)];
    });
    var sorted = Array.from(document.querySelectorAll("table.sortable")).map(function (t) {
      return Array.from(t.tHead.rows[0].cells).map(function (th, column) {
        var read = function () {
          return Array.from(t.tBodies[0].rows).map(function (r) {
            var v = r.cells[column].dataset.sort;
            return v === undefined ? r.cells[column].textContent : (v === "" ? null : parseFloat(v));
          });
        };
        th.querySelector("[role=button]").click(); var up = read();
        th.querySelector("[role=button]").click(); var down = read();
        return [up, down];
      });
    });
    var out = document.createElement("pre");
    out.id = "probe";
    out.textContent = JSON.stringify({ figures: figures, sorted: sorted, errors: errors,
      page: document.documentElement.scrollWidth, window: window.innerWidth,
      requests: performance.getEntriesByType("resource").map(function (r) { return r.name; }) });
    document.body.appendChild(out);
  });
})();
</script>
</head>
"""


def probe(page: Path, tmp_path: Path, width: int) -> tuple[dict, str]:
    """Open a copy of the page with a probe in it; return what the probe saw, and the browser's log."""
    copy = page.with_name(f"probe-{width}.html")
    copy.write_text(page.read_text(encoding="utf-8").replace("</head>", PROBE, 1), encoding="utf-8")
    try:
        run = subprocess.run(
            [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}",
             f"--window-size={width},900", "--dump-dom", copy.as_uri()],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
    finally:
        copy.unlink()
    seen = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.DOTALL)
    assert seen, run.stderr[-2000:]
    return json.loads(html.unescape(seen[1])), run.stderr


def in_order(values: list, down: bool) -> bool:
    known = [v for v in values if v is not None]
    if values[: len(known)] != known:  # blanks go last, whichever way
        return False
    if known and isinstance(known[0], str):
        return True  # the browser's own collation decides
    return known == sorted(known, reverse=down)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1000])
@pytest.mark.parametrize("which", ["report", "bare_report", "german_report"])
def test_the_page_works_in_a_browser(which, width, request, tmp_path):
    seen, log = probe(request.getfixturevalue(which) / "index.html", tmp_path, width)
    assert seen["errors"] == []
    assert "CONSOLE" not in log
    assert seen["requests"] == []
    assert len(seen["figures"]) >= 5
    for w, h in seen["figures"]:
        assert w > 200
        assert h > 60
    assert seen["page"] <= seen["window"], "the page is wider than the window"
    assert seen["sorted"]
    for table in seen["sorted"]:
        for up, down in table:
            assert in_order(up, down=False)
            assert in_order(down, down=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_index_of_many_works_in_a_browser(report, bare_report, tmp_path):
    from fedmiss.report.many import build_index

    page = build_index(
        [report, bare_report], tmp_path / "index", failures={"Corvus corax": "no counts"}, date="2026-01-02"
    )
    seen, log = probe(page, tmp_path, 400)
    assert seen["errors"] == []
    assert "CONSOLE" not in log
    assert seen["page"] <= seen["window"]
    assert len(seen["figures"]) == 5  # the indicator, and a line and an interval for each species
    assert all(
        in_order(up, down=False) and in_order(down, down=True) for t in seen["sorted"] for up, down in t
    )


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_index_can_be_filtered(report, bare_report, tmp_path):
    from fedmiss.report.many import build_index

    page = build_index([report, bare_report], tmp_path / "index", date="2026-01-02")
    script = """<script>window.addEventListener("load", function () {
      var pick = document.getElementById("filter-class"), text = document.getElementById("filter-text"), out = [];
      var shown = function () { return Array.from(document.querySelectorAll("tr[data-class]")).filter(
        function (r) { return !r.hidden; }).length; };
      out.push(shown()); pick.value = "moderate decline"; pick.dispatchEvent(new Event("change")); out.push(shown());
      text.value = "no such bird"; text.dispatchEvent(new Event("input")); out.push(shown());
      document.title = "shown " + out.join(" ");
    });</script></body>"""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", script, 1), encoding="utf-8")
    run = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "<title>shown 2 1 0</title>" in run.stdout
