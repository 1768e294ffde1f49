// The arithmetic of the report, for one choice of a reader: the twin of fedmiss/report/question.py.
(function () {
  "use strict";
  var store = document.getElementById("question-data");
  if (!store) { return; }
  var Q = JSON.parse(store.textContent), Y = Q.years.length, held = {};

  function unpack(text, Kind) {
    var raw = atob(text), bytes = new Uint8Array(raw.length);
    for (var i = 0; i < raw.length; i++) { bytes[i] = raw.charCodeAt(i); }
    return new Kind(bytes.buffer);
  }
  function source(k) {
    if (!held[k]) {
      var s = Q.sources[k];
      held[k] = { total: unpack(s.total, Float64Array), draws: s.draws === null ? null : unpack(s.draws, Float64Array), b: s.b,
        used: Array.from(s.used, function (c) { return c === "1"; }), refuse: s.refuse, same: s.same };
    }
    return held[k];
  }
  var sites = Q.sites && { expected: unpack(Q.sites.expected, Float64Array), slope: unpack(Q.sites.slope, Float64Array),
    ends: Q.sites.ends.map(function (v) { return unpack(v, Float64Array); }), count: unpack(Q.sites.mean_count, Float32Array),
    lo: unpack(Q.sites.lo, Float32Array), hi: unpack(Q.sites.hi, Float32Array) };

  // -- statistics ------------------------------------------------------------------------------------------
  function mean(v) { return v.reduce(function (a, b) { return a + b; }, 0) / v.length; }
  function dot(u, v) { var s = 0; for (var i = 0; i < u.length; i++) { s += u[i] * v[i]; } return s; }
  function deviation(v) { // divisor n - 1
    var m = mean(v), s = 0;
    for (var i = 0; i < v.length; i++) { s += (v[i] - m) * (v[i] - m); }
    return Math.sqrt(s / (v.length - 1));
  }
  function quantile(v, p) {
    var w = v.slice().sort(function (a, b) { return a - b; }), at = (w.length - 1) * p, k = Math.floor(at);
    return k + 1 < w.length ? w[k] + (w[k + 1] - w[k]) * (at - k) : w[k];
  }
  function positive(v) { return v.every(function (x) { return x > 0 && isFinite(x); }); }
  function interval(estimate, draws) { // on the log scale where everything is positive and not skewed there, else quantiles
    if (!draws || draws.length < 2 || !isFinite(estimate)) { return [NaN, NaN]; }
    var se = estimate > 0 && positive(draws) ? deviation(draws.map(Math.log)) : Infinity;
    if (se <= Q.skewed || (se < Infinity && draws.length < Q.least[1])) { return [estimate * Math.exp(-Q.z * se), estimate * Math.exp(Q.z * se)]; }
    if (!draws.every(isFinite)) { return [NaN, NaN]; }
    return [Math.min(Math.max(quantile(draws, 0.025), 0), estimate), Math.max(quantile(draws, 0.975), 0, estimate)];
  }
  function slopeOf(x, logs) { // x centred
    return dot(x, logs) / dot(x, x);
  }
  function logs(v) { return v.map(function (t) { return t > 0 ? Math.log(t) : NaN; }); }

  // Eigenvalues and vectors of a symmetric matrix, by Jacobi's rotations; the vectors are the columns of V.
  function eigen(A) {
    var n = A.length, V = A.map(function (_, i) { return A.map(function (_, j) { return i === j ? 1 : 0; }); });
    for (var sweep = 0; sweep < 60; sweep++) {
      var off = 0, all = 0, p, q, k;
      for (p = 0; p < n; p++) { for (q = 0; q < n; q++) { all += A[p][q] * A[p][q]; off += p === q ? 0 : A[p][q] * A[p][q]; } }
      if (!(off > 1e-34 * all)) { break; }
      for (p = 0; p < n - 1; p++) {
        for (q = p + 1; q < n; q++) {
          if (A[p][q] === 0) { continue; }
          var th = (A[q][q] - A[p][p]) / (2 * A[p][q]), t = 1 / (Math.abs(th) + Math.sqrt(th * th + 1));
          t = th < 0 ? -t : t;
          var c = 1 / Math.sqrt(t * t + 1), s = t * c, u, w;
          for (k = 0; k < n; k++) { u = A[k][p]; w = A[k][q]; A[k][p] = c * u - s * w; A[k][q] = s * u + c * w; }
          for (k = 0; k < n; k++) { u = A[p][k]; w = A[q][k]; A[p][k] = c * u - s * w; A[q][k] = s * u + c * w; }
          for (k = 0; k < n; k++) { u = V[k][p]; w = V[k][q]; V[k][p] = c * u - s * w; V[k][q] = s * u + c * w; }
        }
      }
    }
    return { values: A.map(function (row, i) { return row[i]; }), V: V };
  }

  // Rows orthonormal to a constant and to x (centred): two reflections applied to the unit vectors.
  function complement(x) {
    var n = x.length, norm = Math.sqrt(dot(x, x)), mirrors = [];
    function reflect(v) {
      return mirrors.reduce(function (r, m) {
        var f = 2 * dot(m, r) / dot(m, m);
        return r.map(function (e, i) { return e - f * m[i]; });
      }, v);
    }
    [x.map(function () { return 1 / Math.sqrt(n); }), x.map(function (e) { return e / norm; })].forEach(function (q, k) {
      var m = reflect(q), sign = m[k] > 0 ? 1 : -1;
      m = m.map(function (e, i) { return i < k ? 0 : e; });
      m[k] += sign;
      mirrors.push(m);
    });
    mirrors.reverse();
    return x.slice(2).map(function (_, i) { return reflect(x.map(function (_, j) { return j === i + 2 ? 1 : 0; })); });
  }

  // Rows L^-1 N, with L the lower Cholesky factor of A = N R N', R = rho^|t - t'|; and log det A.
  function white(N, x, rho) {
    var half = N.map(function (r) {
      return x.map(function (t) { return x.reduce(function (s, u, j) { return s + r[j] * Math.pow(rho, Math.abs(t - u)); }, 0); });
    });
    var L = [], rows = [], volume = 0;
    N.forEach(function (r, i) {
      L.push([]);
      for (var j = 0; j <= i; j++) {
        var a = dot(half[i], N[j]);
        for (var k = 0; k < j; k++) { a -= L[i][k] * L[j][k]; }
        L[i].push(i === j ? Math.sqrt(a) : a / L[j][j]);
      }
      rows.push(r.map(function (v, c) {
        for (var k = 0; k < i; k++) { v -= L[i][k] * rows[k][c]; }
        return v / L[i][i];
      }));
      volume += 2 * Math.log(L[i][i]);
    });
    return { rows: rows, volume: volume };
  }

  // Variance of true log totals about their line, by restricted maximum likelihood, and -2 log of the likelihood:
  // year_variance of scatter.py.
  function variance(x, y, cov, rho) {
    var W = white(complement(x), x, rho), N = W.rows, half = N.map(function (r) { return cov.map(function (c) { return dot(c, r); }); });
    var E = eigen(N.map(function (r) { return half.map(function (h) { return dot(r, h); }); }));
    var lam = E.values.map(function (v) { return Math.max(v, 0); }), z = N.map(function (r) { return dot(r, y); });
    var z2 = lam.map(function (_, k) { var s = 0; z.forEach(function (v, i) { s += E.V[i][k] * v; }); return s * s; });
    var top = Math.max.apply(null, z2);
    if (top <= 1e-24) { return [0, 0]; }
    function loss(s) {
      return lam.reduce(function (sum, l, k) { var d = Math.max(s + l, 1e-300); return sum + Math.log(d) + z2[k] / d; }, W.volume);
    }
    var grid = [0], best = 0, least = loss(0), k;
    for (k = 0; k < 200; k++) { grid.push(top * Math.pow(10, -8 + 8 * k / 199)); }
    for (k = 1; k < grid.length; k++) { var l = loss(grid[k]); if (l < least) { least = l; best = k; } }
    if (best === 0) { return [0, least]; }
    var a = grid[best - 1], b = grid[Math.min(best + 1, 200)], lo = a, hi = b, g = (Math.sqrt(5) - 1) / 2;
    while (hi - lo > 1e-9 * b) { // golden section, then Newton's steps to the zero of the derivative
      var u = hi - g * (hi - lo), v = lo + g * (hi - lo);
      if (loss(u) < loss(v)) { hi = v; } else { lo = u; }
    }
    var s = (lo + hi) / 2;
    for (k = 0; k < 8; k++) {
      var first = 0, second = 0;
      lam.forEach(function (l, i) {
        var d = Math.max(s + l, 1e-300);
        first += 1 / d - z2[i] / (d * d); second += 2 * z2[i] / (d * d * d) - 1 / (d * d);
      });
      if (second > 0) { s = Math.min(Math.max(s - first / second, a), b); }
    }
    return [s, loss(s)];
  }

  // What the scatter of years adds to the squared error of the slope: years for themselves and in runs, averaged.
  function scatter(x, y, cov) {
    var alone = variance(x, y, cov, 0), runs = variance(x, y, cov, Q.runs[0]);
    var p = 1 / (1 + Q.runs[1] * Math.exp((runs[1] - alone[1]) / 2)), w = x.map(function (v) { return v / dot(x, x); });
    var wide = w.reduce(function (s, v, i) {
      return s + v * w.reduce(function (sum, u, j) { return sum + u * Math.pow(Q.runs[0], Math.abs(x[i] - x[j])); }, 0);
    }, 0);
    return (1 - p) * alone[0] * dot(w, w) + p * runs[0] * wide;
  }

  // -- classes: classify of classes.py ---------------------------------------------------------------------
  function classify(b, se, n, rule, q) {
    if (!isFinite(b) || !isFinite(se)) { return [Q.none, NaN, NaN]; }
    if (rule === "pecbms") {
      var m = Math.exp(b), lo = m - q * m * se, hi = m + q * m * se;
      var name = lo > 1.05 ? "strong increase" : lo > 1 ? "moderate increase" : hi < 0.95 ? "strong decline" :
        hi < 1 ? "moderate decline" : lo > 0.95 && hi < 1.05 ? "stable" : "uncertain";
      return [name, Math.max(lo, 0), hi];
    }
    if (n < 3) { return [Q.none, NaN, NaN]; }
    var l1 = Math.exp(b - Q.t[n - 3] * se), h1 = Math.exp(Math.min(b + Q.t[n - 3] * se, 700)), e = 1e-7; // stricter levels change the label only
    var kind = l1 > 1.05 ? "strong increase" : h1 < 0.95 ? "strong decline" : l1 > 1 + e ? "moderate increase" :
      h1 < 1 - e ? "moderate decline" : l1 > 0.95 && h1 < 1.05 ? "stable" : "uncertain";
    return [kind, l1, h1];
  }

  // -- one question ----------------------------------------------------------------------------------------
  function pick(v, mask) { return Array.from(v).filter(function (_, i) { return mask[i]; }); }
  function within(range) { return Q.years.map(function (y) { return y >= range[0] && y <= range[1]; }); }
  function both(u, v) { return u.map(function (x, i) { return x && v[i]; }); }

  function chosen(c) {
    var whole = source(0), part = source(c.region), left = c.left || [];
    var s = { total: part.total, draws: part.draws, b: part.b, used: part.used, refuse: part.refuse };
    if ((c.without || left.length) && !part.same) { return { error: Q.said.season }; }
    if (c.without && c.region) {
      s = { total: whole.total.map(function (t, i) { return t - part.total[i]; }), b: whole.b, used: whole.used, draws: null,
        refuse: whole.refuse };
      if (whole.draws && part.draws) { s.draws = whole.draws.map(function (t, i) { return t - part.draws[i]; }); }
    }
    left = left.filter(function (j) { return !c.region || (Q.sites.region[j] === c.region) !== Boolean(c.without); });
    if (left.length) {
      var n = !c.region ? Q.sources[0].n : c.without ? Q.sources[0].n - Q.sources[c.region].n : Q.sources[c.region].n;
      if (left.length === n) { return { error: Q.said.site }; }
      var out = new Float64Array(Y);
      left.forEach(function (j) { for (var i = 0; i < Y; i++) { out[i] += sites.expected[j * Y + i]; } });
      s = { total: s.total.map(function (t, i) { return t - out[i]; }), draws: null, b: 0, used: s.used, refuse: Q.said.draws };
    }
    return s;
  }

  function answer(c) {
    var s = chosen(c), i, d;
    if (s.error) { return s; }
    var base = both(within(c.base), s.used), n0 = pick(base, base).length;
    if (!n0) { return { error: Q.said.base }; }
    var B = s.draws ? s.b : 0, rows = [];
    for (d = 0; d < B; d++) { rows.push(s.draws.subarray(d * Y, (d + 1) * Y)); }
    var level = mean(pick(s.total, base)), levels = rows.map(function (r) { return mean(pick(r, base)); });
    var out = { index: [], lo: [], hi: [], used: s.used };
    for (i = 0; i < Y; i++) {
      var known = s.used[i] && level > 0, value = known ? 100 * s.total[i] / level : NaN;
      var band = known && B > 1 ? interval(value, rows.map(function (r, k) { return 100 * r[i] / levels[k]; })) : [NaN, NaN];
      out.index.push(value); out.lo.push(band[0]); out.hi.push(band[1]);
    }
    var t = trend(c, s, rows);
    t.shift += Math.log(100 / level); // the line of the trend, in units of the index
    return Object.assign(out, t);
  }

  function trend(c, s, rows) {
    var mask = both(within(c.window), s.used), year = pick(Q.years, mask), n = year.length, B = rows.length;
    var least = Q.least[2] * Math.max.apply(null, [0].concat(pick(s.total, s.used)));
    function raised(v) { return pick(v, mask).map(function (t) { return t >= 0 && t < least ? least : t; }); }
    var total = raised(s.total), values = rows.map(raised);
    var mid = n ? mean(year) : 0, x = year.map(function (y) { return y - mid; });
    var slope = n < 2 ? NaN : slopeOf(x, logs(total)), sampling = NaN, added = NaN, se, q = 1.96;
    if (B > 1 && n > 1) { sampling = deviation(values.map(function (r) { return slopeOf(x, logs(r)); })); }
    if (B > 1 && n > 2 && positive(total) && values.every(positive)) {
      var L = values.map(logs), centre = x.map(function (_, i) { return mean(L.map(function (r) { return r[i]; })); });
      var cov = x.map(function (_, i) {
        return x.map(function (_, j) {
          return L.reduce(function (sum, r) { return sum + (r[i] - centre[i]) * (r[j] - centre[j]); }, 0) / (B - 1);
        });
      });
      added = scatter(x, logs(total), cov);
    }
    if (c.convention === "trim") { se = sampling; }
    else { se = n < 3 ? NaN : Math.sqrt(sampling * sampling + added); q = n < 3 ? NaN : Q.t[n - 3]; }
    var verdict = classify(slope, se, n, c.rule, q), percent = function (m) { return 100 * (m - 1); };
    // a reason is a sentence, or a sentence and what goes into its ① and ②
    var reason = s.refuse || (n < Q.least[0] ? [n === 1 ? "there is ① complete year with counts; a class needs ②" :
        "there are ① complete years with counts; a class needs ②", n, Q.least[0]] :
      !total.every(function (t) { return t > 0; }) ? "the total of some year is not positive" :
      B === 0 ? "no bootstrap replicates were made, so no interval is available" :
      B < Q.least[1] ? ["there are ① bootstrap replicates; an interval needs ②", B, Q.least[1]] :
      !values.every(positive) ? "the total of some year is not positive in some replicate" : "");
    var nought = total.filter(function (t) { return t <= least; }).length, open = verdict[0] === "stable" || verdict[0] === "uncertain";
    if (!reason && nought && (open || nought === n)) {
      reason = ["the total of some year is less than a millionth of the largest, which counts cannot tell from ①", 0];
    }
    var because = [].concat(reason);
    reason = because[0].replace("①", because[1]).replace("②", because[2]);
    return { because: because, slope: slope, slope_se: se, percent_per_year: percent(Math.exp(slope)), percent_lo: percent(verdict[1]),
      percent_hi: percent(verdict[2]), trend_class: reason ? Q.none : verdict[0], reason: reason, n_years: n,
      from_year: n ? year[0] : -1, to_year: n ? year[n - 1] : -1, shift: n ? mean(logs(total)) : NaN, mid: mid };
  }

  window.fedmissQuestion = { data: Q, sites: sites, answer: answer, interval: interval };
})();
