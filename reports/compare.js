// The page of many species: the lines with another base year.
(function () {
  "use strict";
  var store = document.getElementById("compare-data"), select = document.getElementById("compare-base");
  if (!store || !select) { return; }
  var held = JSON.parse(store.textContent), W = 100, H = 28, years = {};
  var rows = Array.from(document.querySelectorAll("tr[data-class]")).map(function (row, k) {
    held[k][0].forEach(function (y) { years[y] = true; });
    var svg = row.cells[1].querySelector("svg");
    return { cell: row.cells[1], svg: svg, year: held[k][0], total: held[k][1], was: row.cells[1].innerHTML, sort: row.cells[1].dataset.sort,
      marks: svg ? Array.from(svg.querySelectorAll(".h")) : [] };
  });
  function option(value, text) { var o = document.createElement("option"); o.value = value; o.textContent = text; select.appendChild(o); }
  option("", "as in each report");
  Object.keys(years).sort().forEach(function (y) { option(y, y); });
  function rounded(v) { return v >= 100 || v === 0 ? Math.round(v).toLocaleString("en-US") : String(Number(v.toPrecision(3))); }
  function redraw(r, base) {
    var at = r.year.indexOf(base), parts = { line: r.svg.querySelector("polyline"), base: r.svg.querySelector("path"), text: r.svg.querySelector("text") };
    if (at < 0 || !(r.total[at] > 0)) { r.svg.style.visibility = "hidden"; r.cell.dataset.sort = ""; return false; }
    var index = r.total.map(function (t) { return 100 * t / r.total[at]; }), n = index.length, last = index[n - 1];
    var top = Math.max.apply(null, index.concat(100)), span = r.year[n - 1] - r.year[0];
    function y(v) { return H - 2 - v / top * (H - 4); }
    r.svg.style.visibility = "";
    parts.line.setAttribute("points", index.map(function (v, i) { return (2 + (r.year[i] - r.year[0]) / span * (W - 4)).toFixed(1) + "," + y(v).toFixed(1); }).join(" "));
    parts.base.setAttribute("d", "M2 " + y(100).toFixed(1) + "H" + (W - 2));
    parts.text.textContent = Math.round(last).toLocaleString("en-US");
    parts.text.setAttribute("y", Math.min(Math.max(y(last) + 4, 11), H - 3).toFixed(1));
    r.svg.setAttribute("aria-label", "index " + r.year[0] + " to " + r.year[n - 1] + ": " + rounded(index[0]) + " to " + rounded(last));
    r.marks.forEach(function (m, i) { m.dataset.say = r.year[i] + ": " + rounded(index[i]); });
    r.cell.dataset.sort = String(last);
    return true;
  }
  select.addEventListener("change", function () {
    var without = 0, whose = rows.filter(function (r) { return r.svg; });
    whose.forEach(function (r) {
      if (select.value !== "") { without += redraw(r, Number(select.value)) ? 0 : 1; return; }
      r.cell.innerHTML = r.was; // the page's own drawing, as it came
      r.svg = r.cell.querySelector("svg"); r.marks = Array.from(r.svg.querySelectorAll(".h")); r.cell.dataset.sort = r.sort;
      window.fedmissHover(r.svg);
    });
    document.getElementById("compare-said").textContent = select.value === "" ? "" : "Lines with " + select.value + " = 100." +
      (without ? " Without a line: " + without + " species that have no such year." : "") + " Trends, classes and the indicator stay as they are.";
  });
  document.getElementById("compare").hidden = false;
})();
