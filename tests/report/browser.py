"""A page in headless Chromium: what a script in it returns; errors, requests and words on the console fail."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
    "--virtual-time-budget=4000", "--disable-features=NetworkTimeServiceQuerying", "--dump-dom",
]  # fmt: skip

PROBE = """<script>var errors = [];
window.addEventListener("error", function (e) { errors.push(String(e.message)); });
document.addEventListener("securitypolicyviolation", function (e) { errors.push("blocked: " + e.blockedURI); });
window.addEventListener("load", function () {
  var plain = function (k, v) { return typeof v === "number" && !isFinite(v) ? null : v; };
  var got = (function () { SCRIPT })(), pre = document.createElement("pre");
  pre.id = "probe";
  pre.textContent = JSON.stringify({ got: got, errors: errors,
    requests: performance.getEntriesByType("resource").map(function (r) { return r.name; }) }, plain);
  document.body.appendChild(pre);
});</script></head>"""


def in_browser(page: Path, script: str, tmp_path: Path, width: int = 1000):
    """Return what a script returns once a copy of the page is loaded."""
    copy, probe = page.with_name(f"probe-{width}.html"), PROBE.replace("SCRIPT", script)
    copy.write_text(page.read_text(encoding="utf-8").replace("</head>", probe, 1), encoding="utf-8")
    command = [
        CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900",
        copy.as_uri(),
    ]  # fmt: skip
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    finally:
        copy.unlink()
    seen = re.search(r'<pre id="probe">(.*?)</pre>', run.stdout, re.DOTALL)
    assert seen, run.stderr[-2000:]
    out = json.loads(html.unescape(seen[1]))
    assert (out["errors"], out["requests"]) == ([], [])
    assert "CONSOLE" not in run.stderr
    return out["got"]
