document.querySelectorAll("table.sortable th").forEach(function (th) {
  // A button of the form kind is not painted where a printed table repeats its head on the next page.
  var button = document.createElement("span");
  button.setAttribute("role", "button");
  button.tabIndex = 0;
  button.addEventListener("keydown", function (e) {
    if (e.key === "Enter" || e.key === " ") { e.preventDefault(); button.click(); }
  });
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
// The page of many species: show the rows whose name and class match.
(function () {
  var text = document.getElementById("filter-text"), kind = document.getElementById("filter-class");
  if (!text || !kind) { return; }
  var rows = Array.from(document.querySelectorAll("tr[data-class]"));
  var show = function () {
    var wanted = text.value.trim().toLowerCase(), n = 0;
    rows.forEach(function (row) {
      var hit = row.cells[0].textContent.toLowerCase().indexOf(wanted) >= 0 && (!kind.value || row.dataset.class === kind.value);
      row.hidden = !hit;
      n += hit ? 1 : 0;
    });
    document.getElementById("filter-count").textContent = n === rows.length ? "" : n + " of " + rows.length + " shown";
  };
  text.addEventListener("input", show);
  kind.addEventListener("change", show);
})();
