// Values under the pointer, and by the arrow keys: every mark of a figure holds its words as a title.
(function () {
  "use strict";
  var tip = document.createElement("div"), active = null;
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.appendChild(tip);
  function hide() {
    tip.hidden = true;
    if (active) { active.classList.remove("on"); active = null; }
  }
  function show(mark) {
    if (active) { active.classList.remove("on"); }
    active = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.say;
    tip.hidden = false;
    var box = mark.getBoundingClientRect(), wide = tip.offsetWidth, most = document.documentElement.clientWidth - wide - 8;
    tip.style.left = Math.max(8, Math.min(most, box.left + box.width / 2 - wide / 2)) + window.scrollX + "px";
    tip.style.top = box.top + window.scrollY - (box.height > 40 ? 0 : tip.offsetHeight + 4) + "px";
  }
  window.fedmissHover = function (svg) {
    var marks = Array.from(svg.querySelectorAll(".h"));
    if (!marks.length) { return; }
    marks.forEach(function (mark) {
      var title = mark.querySelector("title");
      if (title) { mark.dataset.say = title.textContent; title.remove(); } // else the browser shows it too, later
    });
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("pointermove", function (e) { var m = e.target.closest(".h"); if (m) { show(m); } else { hide(); } });
    svg.addEventListener("pointerdown", function (e) { var m = e.target.closest(".h"); if (m) { show(m); } });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", function (e) {
      var at = marks.indexOf(active), to = { ArrowRight: at + 1, ArrowLeft: at < 0 ? marks.length - 1 : at - 1,
        Home: 0, End: marks.length - 1 }[e.key];
      if (e.key === "Escape") { hide(); }
      if (to === undefined) { return; }
      e.preventDefault();
      show(marks[Math.max(0, Math.min(marks.length - 1, to))]);
    });
  };
  document.querySelectorAll("figure svg, td svg").forEach(window.fedmissHover);
})();
