// What a reader chooses, and what the page says to it. The arithmetic is in question.js.
(function () {
  "use strict";
  var M = window.fedmissQuestion;
  if (!M) { return; }
  var Q = M.data, S = M.sites, left = [], published, NS = "http://www.w3.org/2000/svg";
  function el(id) { return document.getElementById(id); }
  function made(tag, text, parent) {
    var e = document.createElement(tag);
    if (text !== undefined) { e.textContent = text; }
    if (parent) { parent.appendChild(e); }
    return e;
  }
  function fill(select, items, value) { // items: [value, text]
    items.forEach(function (i) { var o = made("option", i[1], select); o.value = i[0]; o.defaultSelected = i[0] === value; });
    select.value = value;
  }

  // -- words in the page's language: WORDS of sections/question.py, with ①, ② for what goes in ---------------
  var words = {}, sign = { ",": ",", ".": "." };
  if (el("ask-words")) {
    el("ask-words").content.querySelectorAll("p").forEach(function (p) { words[p.dataset.english] = p.textContent; });
    sign = { ",": el("ask-words").dataset.group, ".": el("ask-words").dataset.decimal };
  }
  function say(text) { // say("① to ②", 2004, 2009)
    var slots = arguments;
    return (words[text] || text).replace(/[①②③]/g, function (c) { return slots["①②③".indexOf(c) + 1]; });
  }
  function local(text) { return text.replace(/[.,]/g, function (c) { return sign[c]; }); }

  // -- numbers as words.py writes them ---------------------------------------------------------------------
  function number(v) {
    if (!isFinite(v)) { return say("n/a"); }
    if (v === 0) { return "0"; }
    var power = Number(v.toExponential(2).split("e")[1]), places = 2 - power, unit = Math.pow(10, Math.max(-places, 0));
    if (power < -4 || power > 14) {
      power = Number(v.toExponential(1).split("e")[1]);
      return local((v / Math.pow(10, power)).toFixed(1)).replace("-", "−") + " × 10" +
        String(power).replace(/./g, function (c) { return c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]; });
    }
    var text = (Math.round(v / unit) * unit).toLocaleString("en-US", { minimumFractionDigits: Math.max(places, 0),
      maximumFractionDigits: Math.max(places, 0) });
    return local(places > 0 ? v.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places }) : text).replace("-", "−");
  }
  function percent(v) {
    if (!isFinite(v)) { return say("n/a"); }
    if (v > -100 && v <= -99.95) { return "−" + local(Math.min(-v, 99.99).toFixed(2)) + " %"; }
    if (Math.abs(v) >= 1000) { return (v > 0 ? "+" : "") + number(v) + " %"; }
    var text = Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en-US") : v.toFixed(Math.abs(v) < 0.05 ? 2 : 1);
    if (Math.abs(Number(text)) === 5) { text = v.toFixed(2); }
    if (Number(text) === 0) { return local("0.0 %"); }
    return (v > 0 ? "+" : "") + local(text).replace("-", "−") + " %";
  }
  function range(lo, hi, words) { return isFinite(lo) && isFinite(hi) ? say("① to ②", words(lo), words(hi)) : say("no interval"); }
  function limited(lo, hi) { return " (" + (isFinite(lo) ? say("① % interval ②", 95, range(lo, hi, percent)) : say("no interval")) + ")"; }
  function fixed(v) { return local(v.toFixed(4)).replace("-", "−"); }

  // -- figures ---------------------------------------------------------------------------------------------
  function shape(tag, at, parent, kind) {
    var e = document.createElementNS(NS, tag);
    Object.keys(at).forEach(function (k) { e.setAttribute(k, at[k]); });
    if (kind) { e.setAttribute("class", kind); }
    parent.appendChild(e);
    return e;
  }
  function nice(top) {
    var p = Math.pow(10, Math.floor(Math.log10(top / 4 || 1))), f = top / 4 / p;
    return p * (f > 5 ? 10 : f > 2 ? 5 : f > 1 ? 2 : 1);
  }
  // f: value, lo, hi, dots, fit (arrays over the years, NaN where there is none), base, label, unit, say(i)
  function draw(place, f) {
    place.textContent = "";
    var W = Math.max(300, Math.min(560, place.clientWidth || 560)), H = 270, R = 10, T = 14, B = 28, n = Q.years.length;
    var svg = shape("svg", { viewBox: "0 0 " + W + " " + H, role: "img", "aria-label": f.label }, place, "chart");
    // the axis ends where intervals do, but not far above the values, where nobody would see them
    function most(v) { return Math.max.apply(null, v.filter(isFinite).concat(f.base || 1e-9)); }
    var values = f.value.concat(f.dots || []), high = most(values.concat(f.hi || [])), limit = 5 * most(values), top = Math.min(high * 1.06, limit);
    var first = Q.years[0] - 0.6, last = Q.years[n - 1] + 0.6;
    var ticks = [], step = nice(top);
    for (var t = 0; t <= top; t += step) { ticks.push([t, local(Number(t.toPrecision(6)).toLocaleString("en-US"))]); }
    var L = 30 + 7 * Math.max.apply(null, ticks.map(function (k) { return k[1].length; }).concat(4)); // room for the unit beside them
    function X(y) { return L + (y - first) / (last - first) * (W - L - R); }
    function V(v) { return H - B - Math.max(0, Math.min(1, v / top)) * (H - T - B); }
    ticks.forEach(function (k) {
      shape("path", { d: "M" + L + " " + V(k[0]) + "H" + (W - R) }, svg, "grid");
      shape("text", { x: L - 6, y: V(k[0]) + 4, "text-anchor": "end" }, svg).textContent = k[1];
    });
    var every = Math.ceil(n / (W / 70));
    Q.years.forEach(function (y, i) {
      if (i % every === 0) { shape("text", { x: X(y), y: H - 8, "text-anchor": "middle" }, svg).textContent = y; }
    });
    shape("text", { x: 12, y: (H - B) / 2, "text-anchor": "middle", transform: "rotate(-90 12 " + (H - B) / 2 + ")" }, svg).textContent = f.unit;
    if (f.base) { shape("path", { d: "M" + L + " " + V(f.base) + "H" + (W - R) }, svg, "base"); }
    function line(values, kind) {
      var d = "", pen = false;
      values.forEach(function (v, i) { d += isFinite(v) ? (pen ? "L" : "M") + X(Q.years[i]).toFixed(1) + " " + V(v).toFixed(1) : ""; pen = isFinite(v); });
      shape("path", { d: d || "M0 0" }, svg, kind);
    }
    Q.years.forEach(function (y, i) {
      if (f.lo && isFinite(f.lo[i])) { shape("path", { d: "M" + X(y) + " " + V(f.lo[i]) + "V" + V(f.hi[i]) }, svg, "bar"); }
    });
    if (f.fit) { line(f.fit, "fit"); }
    line(f.value, "line");
    f.value.forEach(function (v, i) { if (isFinite(v) && !f.dots) { shape("circle", { cx: X(Q.years[i]), cy: V(v), r: 3.2 }, svg, "point"); } });
    (f.dots || []).forEach(function (v, i) { if (isFinite(v)) { shape("circle", { cx: X(Q.years[i]), cy: V(v), r: 3.6 }, svg, "count"); } });
    Q.years.forEach(function (y, i) {
      var r = shape("rect", { x: X(y - 0.5), y: T - 8, width: X(y + 0.5) - X(y - 0.5), height: H - T - B + 8 }, svg, "h");
      shape("title", {}, r).textContent = f.say(i);
    });
    window.fedmissHover(svg);
    return high > limit;
  }

  // -- the form --------------------------------------------------------------------------------------------
  var years = Q.years.filter(function (_, i) { return Q.sources[0].used[i] === "1"; });
  var ends = [years[0], years[years.length - 1]], b0 = Q.base[0], b1 = Q.base[Q.base.length - 1];
  [["ask-from", ends[0]], ["ask-to", ends[1]], ["ask-base", b0], ["ask-base-to", b1]].forEach(function (p) {
    fill(el(p[0]), years.map(function (y) { return [String(y), y]; }), String(p[1]));
  });
  fill(el("ask-rule"), Q.rules.map(function (r) { return [r, r === "pecbms" ? "PECBMS" : r]; }), Q.rule);
  el("ask-convention").querySelectorAll("option").forEach(function (o) { o.defaultSelected = o.value === Q.convention; });
  el("ask-convention").value = Q.convention;
  if (el("ask-region")) {
    fill(el("ask-region"), Q.sources.map(function (s, k) { return [String(k), k ? s.name : say("all")]; }), "0");
    Q.absent.forEach(function (name) { made("option", say("① (not held by the page)", name), el("ask-region")).disabled = true; });
  }
  Q.notes.forEach(function (n) { made("li", say(n), el("ask-notes")); });
  function value(id) { return Number(el(id).value); }
  function choice() {
    var region = el("ask-region") ? value("ask-region") : 0, base = [value("ask-base"), value("ask-base-to")];
    var window_ = [value("ask-from"), value("ask-to")];
    return { region: region, without: Boolean(region) && el("ask-without").checked, base: base, window: window_,
      rule: el("ask-rule").value, convention: el("ask-convention").value, left: left.slice() };
  }
  function tell(c, a) {
    var who = c.region ? (c.without ? say("All but ①", Q.sources[c.region].name) : Q.sources[c.region].name) + ", " : "";
    var without = c.left.length ? ", " + say(c.left.length === 1 ? "without ① site" : "without ① sites", c.left.length) : "";
    var kind = a.trend_class === Q.none ? say("No trend class") : say(a.trend_class);
    kind = kind[0].toUpperCase() + kind.slice(1);
    var text = who + say("① to ②", a.from_year, a.to_year) + without + ": " + say("① per year", percent(a.percent_per_year)) +
      limited(a.percent_lo, a.percent_hi) + "; " + say("slope ①", fixed(a.slope)) +
      (isFinite(a.slope_se) ? ", " + say("standard error ①", fixed(a.slope_se)) : "") + " (" + say("logarithms") + "). " +
      say(c.convention === "trim" ? "Rule: ①, without the scatter of years." : "Rule: ①, with the scatter of years.", c.rule === "pecbms" ? "PECBMS" : c.rule);
    return [kind, text.charAt(0).toUpperCase() + text.slice(1)];
  }
  function renew() {
    var c = choice(), a = M.answer(c), box = el("ask-answer"), echo = el("site-echo");
    var said = a.error ? [say("No answer"), say(a.error)] : tell(c, a);
    box.querySelector("strong").textContent = said[0];
    box.querySelector("p").textContent = said[1];
    var now = JSON.stringify(c);
    published = published || now;
    el("question").classList.toggle("asked", now !== published); // paper repeats no answer that it has already
    el("ask-why").textContent = a.reason ? say("No class: ①.", say.apply(null, a.because)) : "";
    box.classList.toggle("grey", Boolean(a.error || a.reason));
    if (echo) { echo.textContent = left.length ? said.join(". ") + " " + el("ask-why").textContent : ""; }
    if (el("ask-without")) { el("ask-without").disabled = !c.region || !Q.sources[c.region].same; }
    el("ask-left").textContent = left.length ? say("Left out (press to take back):") + " " : "";
    left.forEach(function (j) {
      var b = made("button", Q.sites.name[j] + " ×", el("ask-left"));
      b.type = "button";
      b.addEventListener("click", function () { leave(j); });
    });
    el("ask-figure").textContent = el("ask-table").textContent = el("ask-caption").textContent = "";
    if (!a.error) { show(c, a); }
  }
  function show(c, a) {
    var base = c.base[0] === c.base[1] ? c.base[0] : say("① to ②", c.base[0], c.base[1]);
    var fit = Q.years.map(function (y, i) { // the trend's line, through the index
      var inside = y >= a.from_year && y <= a.to_year && isFinite(a.slope);
      return inside ? Math.exp(a.shift + a.slope * (y - a.mid)) : NaN;
    });
    var rows = Q.years.map(function (y, i) {
      return [y, number(a.index[i]), Math.abs(a.lo[i] - a.hi[i]) < 1e-9 ? say("base") : range(a.lo[i], a.hi[i], number)];
    });
    var beyond = draw(el("ask-figure"), { value: a.index, lo: a.lo, hi: a.hi, fit: fit, base: 100, unit: say("index (① = ②)", base, 100),
      label: say("Yearly index with its interval, and the straight trend.") + " " + el("ask-answer").textContent,
      say: function (i) { return rows[i][0] + ": " + (isFinite(a.index[i]) ? say("index ① (②)", rows[i][1], rows[i][2]) : say("not used")); } });
    el("ask-caption").textContent = say("Index, ① = ②; bars: ③ % interval; orange: straight trend of the chosen years.", base, 100, 95) + " " +
      (beyond ? say("The axis ends at five times the largest index; intervals go on beyond it.") + " " : "") + say("Arrow keys move from year to year.");
    var table = made("table", undefined, el("ask-table")), head = made("tr", undefined, made("thead", undefined, table));
    made("caption", say("Index, ① = ②", base, 100), table);
    [say("Year"), say("Index"), say("① % interval", 95)].forEach(function (t) { made("th", t, head).scope = "col"; });
    var body = made("tbody", undefined, table);
    rows.forEach(function (r) { var tr = made("tr", undefined, body); r.forEach(function (t) { made("td", t, tr); }); });
  }
  function leave(j) {
    left = left.indexOf(j) < 0 ? left.concat(j) : left.filter(function (k) { return k !== j; });
    renew();
    site();
  }
  el("ask").addEventListener("change", function (e) {
    [["ask-from", "ask-to"], ["ask-base", "ask-base-to"]].forEach(function (p) { // the first year is not after the last
      if (p.indexOf(e.target.id) >= 0 && value(p[0]) > value(p[1])) { el(p[e.target.id === p[0] ? 1 : 0]).value = e.target.value; }
    });
    renew();
  });
  el("ask").addEventListener("reset", function () { left = []; setTimeout(function () { renew(); site(); }); });

  // -- one site --------------------------------------------------------------------------------------------
  var picker = el("site-pick"), map = document.querySelector("#fig-map svg"), ring;
  function part(v, j) { return Array.from(v.subarray(j * Q.years.length, (j + 1) * Q.years.length)); }
  function site() {
    if (!picker || picker.value === "") { return; }
    var j = Number(picker.value), name = Q.sites.name[j], mean = part(S.expected, j), count = part(S.count, j);
    var lo = part(S.lo, j), hi = part(S.hi, j), b = S.slope[j], pc = function (v) { return 100 * (Math.exp(v) - 1); };
    var kind = Q.sites.kind[j] === Q.none ? say("no class (counted in too few years, no interval, or no class of all sites together)") : say(Q.sites.kind[j]);
    var words = name + (isFinite(b) ? ": " + say("① per year", percent(pc(b))) + limited(S.ends[0][j], S.ends[1][j]) + ", " + kind : "") + ".";
    el("site-said").textContent = words;
    draw(el("site-figure"), { value: mean, dots: count, lo: lo, hi: hi, unit: say("① a visit", say(Q.unit)), label: say("Counts and fitted line of ①", words),
      say: function (i) {
        return Q.years[i] + ": " + (isFinite(count[i]) ? say("counted ①", number(count[i])) : say("no count")) + ", " + say("expected ①", number(mean[i])) +
          (isFinite(lo[i]) ? " (" + range(lo[i], hi[i], number) + ")" : "");
      } });
    el("site-out").textContent = left.indexOf(j) < 0 ? say("Leave this site out") : say("Take this site back");
    if (ring) { ring.remove(); ring = null; }
    if (map && Q.sites.at[j]) { ring = shape("circle", { cx: Q.sites.at[j][0], cy: Q.sites.at[j][1], r: 9 }, map, "ring"); }
  }
  if (picker && Q.sites) {
    el("site").hidden = false;
    fill(picker, [["", say("choose")]].concat(Q.sites.name.map(function (n, j) { return [String(j), n]; }).sort(function (u, v) {
      return u[1].localeCompare(v[1]);
    })), "");
    el("site-one").hidden = true;
    picker.addEventListener("change", function () { el("site-one").hidden = picker.value === ""; site(); });
    el("site-out").addEventListener("click", function () { leave(Number(picker.value)); });
    if (map) {
      map.classList.add("clicked");
      map.addEventListener("click", function (e) {
        var p = new DOMPoint(e.clientX, e.clientY).matrixTransform(map.getScreenCTM().inverse()), best = -1, near = 900;
        Q.sites.at.forEach(function (at, j) {
          var d = at ? Math.pow(at[0] - p.x, 2) + Math.pow(at[1] - p.y, 2) : Infinity;
          if (d < near) { near = d; best = j; }
        });
        if (best >= 0) { picker.value = String(best); picker.dispatchEvent(new Event("change")); }
      });
    }
  }
  document.querySelectorAll("#question, nav a[href='#question']").forEach(function (e) { e.hidden = false; });
  renew();
})();
