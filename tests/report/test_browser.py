"""The page in headless Chromium: figures have a size, tables sort, nothing is asked of a server, a phone can show it."""

import pytest

from fedmiss.report.many import build_index

from .browser import in_browser, needs_browser

pytestmark = [pytest.mark.browser, needs_browser]

LOOK = """
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
  return { figures: figures, sorted: sorted, wide: document.documentElement.scrollWidth - window.innerWidth };
"""


def in_order(values: list, down: bool) -> bool:
    known = [v for v in values if v is not None]
    if values[: len(known)] != known:  # blanks go last, whichever way
        return False
    if known and isinstance(known[0], str):
        return True  # the browser's own collation decides
    return known == sorted(known, reverse=down)


def looked_at(page, tmp_path, width):
    """Hold order and width of a page; return the sizes of its figures."""
    seen = in_browser(page, LOOK, tmp_path, width)
    assert seen["wide"] <= 0, "the page is wider than the window"
    columns = [column for table in seen["sorted"] for column in table]
    assert columns
    assert all(in_order(up, down=False) and in_order(down, down=True) for up, down in columns)
    return seen["figures"]


@pytest.mark.parametrize("width", [400, 1000])
@pytest.mark.parametrize("which", ["report", "bare_report", "german_report"])
def test_the_page_works_in_a_browser(which, width, request, tmp_path):
    figures = looked_at(request.getfixturevalue(which) / "index.html", tmp_path, width)
    assert len(figures) >= 5
    assert all(w > 200 and h > 60 for w, h in figures)


def test_the_index_of_many_works_in_a_browser_and_can_be_filtered(report, bare_report, tmp_path):
    page = build_index(
        [report, bare_report], tmp_path / "index", failures={"Corvus corax": "no counts"}, date="2026-01-02"
    )
    # the indicator, and a line and an interval for each species
    assert len(looked_at(page, tmp_path, 400)) == 5
    script = """
      var pick = document.getElementById("filter-class"), text = document.getElementById("filter-text"), out = [];
      var shown = function () { return Array.from(document.querySelectorAll("tr[data-class]")).filter(
        function (r) { return !r.hidden; }).length; };
      out.push(shown()); pick.value = "moderate decline"; pick.dispatchEvent(new Event("change")); out.push(shown());
      text.value = "no such bird"; text.dispatchEvent(new Event("input")); out.push(shown());
      return out;"""
    assert in_browser(page, script, tmp_path) == [2, 1, 0]
