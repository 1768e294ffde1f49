document.querySelectorAll("table.sortable th").forEach(function (th) {
  var button = document.createElement("button");
  button.type = "button";
  button.textContent = th.textContent;
  th.textContent = "";
  th.appendChild(button);
  button.addEventListener("click", function () {
    var table = th.closest("table"), body = table.tBodies[0], column = th.cellIndex;
    var down = th.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach(function (other) { other.removeAttribute("aria-sort"); });
    th.setAttribute("aria-sort", down ? "descending" : "ascending");
    var key = function (row) {
      var cell = row.cells[column], value = cell.dataset.sort;
      return value === undefined ? cell.textContent : (value === "" ? null : parseFloat(value));
    };
    Array.from(body.rows).map(function (row) { return [key(row), row]; }).sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      var order = typeof a[0] === "number" ? a[0] - b[0] : a[0].localeCompare(b[0]);
      return down ? -order : order;
    }).forEach(function (pair) { body.appendChild(pair[1]); });
  });
});
// Paper has no folds: open every folded table before printing, and fold those again that were folded.
(function () {
  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (d) { d.open = true; });
  });
  window.addEventListener("afterprint", function () { opened.forEach(function (d) { d.open = false; }); });
})();
