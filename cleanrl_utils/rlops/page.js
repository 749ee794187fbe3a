"use strict";
// Everything on the page follows from `data` (the runs) and `state` (the controls): `render` draws it anew.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = {
  search: "", metric: data.metric, groupBy: "", facet: "env", axis: "steps", band: "interval", smoothing: 0, baseline: "",
  off: { group: new Set(), env: new Set() }, sort: { scores: ["env", 1], runs: ["group", 1] }, open: new Set(),
};
const REPS = 2000, ENUMERATE = 20000, FEW = 5, MANY = 12; // above MANY groups, pairs are not compared

// ---- small helpers ----
function h(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "rect", "circle"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const unique = (list) => [...new Set(list)];
const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
function format(x, digits = 2) {
  if (x === null || x === undefined || Number.isNaN(x)) return "";
  const size = Math.abs(x);
  if (!size) return "0";
  if ( size < 0.001 || size >= 1e7) return x.toExponential(2);
  return size < 1 ? String(Number(x.toFixed(4))) : x.toFixed(digits);
}
const plusMinus = (x, spread) => (Math.abs(x) < 1 ? `${format(x)} ± ${format(spread)}` : `${format(x)} ± ${spread.toFixed(2)}`);
function short(x) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(x) >= size) return Number((x / size).toPrecision(3)) + unit;
  return String(Number(x.toPrecision(3)));
}
function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 3600) return `${Number((seconds / 60).toPrecision(3))} min`;
  return `${Number((seconds / 3600).toPrecision(3))} h`;
}
function random(seed) { // mulberry32: the same page shows the same intervals
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// ---- statistics: the same definitions as cleanrl_utils/rlops/stats.py ----
const deviation = (list, freedom = 0) => { // of the seeds at hand (0), or the estimate for all seeds (1)
  const centre = mean(list);
  return Math.sqrt(list.reduce((sum, x) => sum + (x - centre) ** 2, 0) / Math.max(list.length - freedom, 1));
};
const t975 = (freedom) => (freedom <= data.t975.length ? data.t975[freedom - 1] : 1.96 + 2.45 / freedom);
function iqm(list) {
  const cut = Math.floor(list.length / 4);
  return mean([...list].sort((a, b) => a - b).slice(cut, list.length - cut));
}
function percentiles(values) {
  values.sort((a, b) => a - b);
  return [0.025, 0.975].map((p) => {
    const place = p * (values.length - 1), below = Math.floor(place);
    return values[below] + (place - below) * ((values[below + 1] ?? values[below]) - values[below]);
  });
}
const resample = (list, next) => list.map(() => list[Math.floor(next() * list.length)]);
function interval(statistic, ...strata) {
  const next = random(1), values = [];
  for (let rep = 0; rep < REPS; rep++) values.push(statistic(...strata.map((group) => group.map((list) => resample(list, next)))));
  return percentiles(values);
}
const wins = (x, y) => mean(x.map((a) => mean(y.map((b) => (Math.sign(a - b) + 1) / 2))));
const improvement = (xs, ys) => mean(xs.map((x, i) => wins(x, ys[i])));
function choose(n, k) {
  let result = 1;
  for (let i = 1; i <= k; i++) result = (result * (n - k + i)) / i;
  return Math.round(result);
}
function shuffled(x, y, next) { // `wins` under every, or many random, ways to tell which runs are x's
  const scores = [...x, ...y], n = x.length, results = [];
  const add = (chosen) => {
    const mine = new Set(chosen);
    results.push(wins(chosen.map((i) => scores[i]), scores.filter((_, i) => !mine.has(i))));
  };
  if (choose(scores.length, n) <= ENUMERATE) {
    const chosen = [];
    const walk = (start) => {
      if (chosen.length === n) return add(chosen);
      for (let i = start; i <= scores.length - n + chosen.length; i++) { chosen.push(i); walk(i + 1); chosen.pop(); }
    };
    walk(0);
  } else {
    for (let rep = 0; rep < REPS; rep++) {
      const order = scores.map((_, i) => i);
      for (let i = 0; i < n; i++) { const j = i + Math.floor(next() * (order.length - i)); [order[i], order[j]] = [order[j], order[i]]; }
      add(order.slice(0, n));
    }
  }
  return results;
}
function pValue(xs, ys) {
  const next = random(2), nulls = xs.map((x, i) => shuffled(x, ys[i], next)), size = nulls.length;
  let sums = [0];
  if (nulls.reduce((product, list) => product * list.length, 1) <= 5 * ENUMERATE) {
    for (const list of nulls) sums = sums.flatMap((sum) => list.map((x) => sum + x));
  } else {
    sums = Array.from({ length: 5 * ENUMERATE }, () => nulls.reduce((sum, list) => sum + list[Math.floor(next() * list.length)], 0));
  }
  const seen = Math.abs(improvement(xs, ys) - 0.5) - 1e-12;
  return mean(sums.map((sum) => (Math.abs(sum / size - 0.5) >= seen ? 1 : 0)));
}
const smallestP = (xs, ys) => 2 / xs.reduce((product, x, i) => product * choose(x.length + ys[i].length, x.length), 1);
function verdict(xs, ys) {
  const least = smallestP(xs, ys);
  if (least > 0.05) return ["few", `too few seeds to call a difference: p cannot get below ${Number(least.toPrecision(2))}`];
  const p = pValue(xs, ys);
  if (p > 0.05) return ["same", `no difference shown (p = ${Number(p.toPrecision(2))})`];
  const kind = improvement(xs, ys) > 0.5 ? "better" : "worse";
  return [kind, `${kind} (p ${p < 0.001 ? "< 0.001" : "= " + Number(p.toPrecision(2))})`];
}

// ---- which runs, in which groups ----
const plain = new Set(data.plumbing);
const argumentNames = unique(data.runs.flatMap((run) => Object.keys(run.args))).filter((name) => !plain.has(name));
const varying = argumentNames.filter((name) => unique(data.runs.filter((run) => name in run.args).map((run) => String(run.args[name]))).length > 1);
const groupOf = (run) => {
  if (!state.groupBy) return run.group;
  if (state.groupBy === "run") return run.name;
  const value = state.groupBy === "commit" ? run.commit : run.args[state.groupBy];
  return `${run.group}, ${state.groupBy} ${value ?? "unknown"}`;
};
const textOf = (run) => [run.name, run.group, run.env, `seed=${run.seed}`, run.status, run.commit, run.hardware, run.versions, ...run.tags,
  ...Object.entries(run.args).map(([name, value]) => `${name}=${value}`)].join(" ").toLowerCase();
data.runs.forEach((run) => { run.text = textOf(run); });
const searched = () => {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  return data.runs.filter((run) => words.every((word) => run.text.includes(word)));
};
const colours = new Map(); // a group keeps its colour whatever is filtered
function colour(name) {
  if (!colours.has(name)) colours.set(name, colours.size);
  return `var(--c${colours.get(name) % 8})`;
}
const dash = (name) => ["", "6 4", "2 3"][Math.floor((colours.get(name) ?? 0) / 8) % 3];

// ---- curves ----
function smooth(values) { // exponential moving average, corrected for its start as in TensorBoard
  if (!state.smoothing) return values;
  let last = 0, weight = 0;
  return values.map((x) => {
    if (x === null) return null;
    last = state.smoothing * last + (1 - state.smoothing) * x;
    weight = state.smoothing * weight + (1 - state.smoothing);
    return last / weight;
  });
}
function points(run) {
  const xs = run[state.axis], values = smooth(run.curves[state.metric] ?? []);
  return values.map((y, i) => [xs[i], y]).filter(([, y]) => y !== null);
}
function interpolate(curve, x) {
  if (x < curve[0][0] || x > curve[curve.length - 1][0]) return null;
  let low = 0, high = curve.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (curve[middle][0] <= x) low = middle; else high = middle; }
  const [[x0, y0], [x1, y1]] = [curve[low], curve[high]];
  return x1 === x0 ? y1 : y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
}
// Common x, and mean and band of the runs that reach it, from where all have begun to where the first finished run ends: a
// mean over those that happen to be there would jump.
function aggregate(curves, finished, count = 160) {
  const ends = curves.map((c) => c[c.length - 1][0]);
  const last = finished.includes(true) ? Math.min(...ends.filter((_, i) => finished[i])) : Math.max(...ends);
  const first = Math.min(Math.max(...curves.map((c) => c[0][0])), last);
  const length = first === last ? 1 : count; // one run ended before another began: they share no more than a point
  return Array.from({ length }, (_, i) => {
    const x = i === length - 1 ? last : first + ((last - first) * i) / (length - 1);
    const values = curves.map((curve) => interpolate(curve, x)).filter((y) => y !== null);
    if (!values.length) return null;
    const centre = mean(values), n = values.length;
    let low = centre, high = centre;
    if (state.band === "range") [low, high] = [Math.min(...values), Math.max(...values)];
    if (state.band === "deviation") { const s = deviation(values); [low, high] = [centre - s, centre + s]; }
    if (state.band === "interval" && n > 1) { const s = (t975(n - 1) * deviation(values, 1)) / Math.sqrt(n); [low, high] = [centre - s, centre + s]; }
    return { x, y: centre, low, high, n };
  }).filter(Boolean);
}
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const list = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) list.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  return list;
}
function chart(title, note, series, options = {}) {
  // series: {name, line: [{x, y, low, high, n}], thin: [[[x, y], ...], ...]}
  const card = h("div", { class: "card" }, h("h3", {}, title, " ", h("small", {}, note)));
  if (!series.length) { card.append(h("p", { class: "empty" }, "No curve of this metric here.")); return card; }
  const width = Math.max(options.width ?? 370, 240), height = options.height ?? 230;
  const box = { left: 46, right: 10, top: 8, bottom: 24 };
  const shown = state.band === "runs" ? series.flatMap((s) => s.thin.map((list) => list[list.length - 1][0])) : [];
  const xs = [...shown, ...series.flatMap((s) => s.line.map((p) => p.x))], x0 = options.x0 ?? Math.min(0, ...xs), x1 = Math.max(...xs, x0 + 1e-9);
  // The axis holds every run; of a band as much as fits: with two seeds a 95% interval is nearly endless.
  const ys = options.ys ?? series.flatMap((s) => [...s.thin.flat().map((p) => p[1]), ...s.line.map((p) => p.y)]);
  let y0 = ys.reduce((a, b) => Math.min(a, b), Infinity), y1 = ys.reduce((a, b) => Math.max(a, b), -Infinity);
  if (y1 - y0 < 1e-12) { y0 -= Math.abs(y0) * 0.05 || 0.5; y1 += Math.abs(y1) * 0.05 || 0.5; }
  const margin = (y1 - y0) * 0.05;
  y0 -= margin; y1 += margin;
  const px = (x) => box.left + ((x - x0) / (x1 - x0)) * (width - box.left - box.right);
  const py = (y) => height - box.bottom - ((Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (height - box.top - box.bottom);
  const path = (list) => list.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
  const svg = h("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title}: ${series.map((s) => s.name).join(", ")}` });
  for (const y of ticks(y0, y1, 5)) {
    svg.append(h("line", { class: "gridline", x1: box.left, x2: width - box.right, y1: py(y), y2: py(y) }),
      h("text", { x: box.left - 6, y: py(y) + 4, "text-anchor": "end" }, short(y)));
  }
  const time = options.axis === undefined && state.axis === "seconds";
  const unit = time ? (x1 > 7200 ? [3600, "h"] : x1 > 120 ? [60, "min"] : [1, "s"]) : [1, options.axis ? "" : "steps"];
  const marks = ticks(x0 / unit[0], x1 / unit[0], width < 420 ? 4 : 6);
  marks.forEach((x, i) => { // the last one names the unit, and may not stick out
    const place = px(x * unit[0]), label = `${short(x)} ${i === marks.length - 1 ? unit[1] : ""}`.trim();
    const sticks = place + 3.2 * label.length > width;
    svg.append(h("text", { x: sticks ? width : place, y: height - 6, "text-anchor": sticks ? "end" : "middle" }, label));
  });
  for (const s of series) {
    if (options.band ?? !["none", "runs"].includes(state.band)) {
      const outline = [...s.line.map((p) => [p.x, p.high]), ...s.line.map((p) => [p.x, p.low]).reverse()];
      if (s.line.some((p) => p.high > p.low)) svg.append(h("path", { class: "band", d: path(outline) + "Z", style: `fill: ${colour(s.name)}`, "fill-opacity": 0.16 }));
    }
    if (state.band === "runs") s.thin.forEach((list) => svg.append(h("path", { class: "thin", d: path(list), fill: "none", style: `stroke: ${colour(s.name)}`, "stroke-opacity": 0.4 })));
  }
  for (const s of series) {
    svg.append(h("path", { class: "mean", "data-name": s.name, d: path(s.line.map((p) => [p.x, p.y])), fill: "none", "stroke-width": 2,
      "stroke-linejoin": "round", "stroke-dasharray": dash(s.name), style: `stroke: ${colour(s.name)}` }));
    if (s.line.length === 1) svg.append(h("circle", { cx: px(s.line[0].x), cy: py(s.line[0].y), r: 3, style: `fill: ${colour(s.name)}` }));
  }
  const cursor = h("line", { class: "cursor", y1: box.top, y2: height - box.bottom, visibility: "hidden" });
  svg.append(cursor);
  const tip = $("tip");
  svg.addEventListener("pointermove", (event) => {
    const area = svg.getBoundingClientRect();
    const x = x0 + ((((event.clientX - area.left) / area.width) * width - box.left) / (width - box.left - box.right)) * (x1 - x0);
    if (x < x0 || x > x1) { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); return; }
    cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x)); cursor.setAttribute("visibility", "visible");
    const lines = series.map((s) => {
      const p = s.line.reduce((best, q) => (Math.abs(q.x - x) < Math.abs(best.x - x) ? q : best));
      const [first, last] = [s.line[0].x, s.line[s.line.length - 1].x];
      const pixels = (4 * (x1 - x0)) / (width - box.left - box.right); // a pointer need not hit the very end of a curve
      if (x < first - pixels || x > last + pixels) return null;
      const spread = p.high > p.low ? ` [${format(p.low)}, ${format(p.high)}]` : "";
      const runs = options.axis === undefined ? ` · ${p.n} run${p.n === 1 ? "" : "s"}` : "";
      return [p.y, h("div", {}, h("span", { class: "dot", style: `color: ${colour(s.name)}` }), h("span", {}, s.name), h("span", {}, format(p.y) + spread + runs))];
    }).filter(Boolean).sort((a, b) => b[0] - a[0]);
    const head = options.axis ? `${options.axis} ${x.toFixed(2)}` : time ? duration(x) : `step ${Math.round(x).toLocaleString("en")}`;
    tip.replaceChildren(h("strong", {}, head), ...lines.map((line) => line[1]));
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const top = event.clientY + 16 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
  card.append(svg);
  return card;
}
function renderCharts(runs) {
  const facet = state.facet === "env" ? (run) => run.env : groupOf, line = state.facet === "env" ? groupOf : (run) => run.env;
  const names = unique(runs.map(facet)).sort(compare), target = $("charts");
  const columns = Math.max(1, Math.min(names.length, Math.floor((target.clientWidth + 14) / (370 + 14))));
  const width = (target.clientWidth - 14 * (columns - 1)) / columns - 26;
  target.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  target.replaceChildren(...names.map((name) => {
    const here = runs.filter((run) => facet(run) === name);
    const series = unique(here.map(line)).sort(compare).map((label) => {
      const mine = here.filter((run) => line(run) === label && (run.curves[state.metric] ?? []).some((y) => y !== null));
      const curves = mine.map(points);
      return curves.length ? { name: label, line: aggregate(curves, mine.map((run) => run.status === "finished")), thin: curves } : null;
    }).filter(Boolean);
    return chart(name, state.metric.split("/").pop().replaceAll("_", " "), series, { width });
  }));
  if (!names.length) target.append(h("p", { class: "empty" }, "No run matches the filters."));
}

// ---- tables ----
function table(id, columns, rows, draw) {
  const [by, direction] = state.sort[id];
  rows.sort((a, b) => direction * compare(a[by] ?? "", b[by] ?? ""));
  const head = h("tr", {}, ...columns.map(([key, label, kind]) => h("th", {
    class: kind ?? "", scope: "col", tabindex: 0, "data-key": key,
    "aria-sort": key === by ? (direction > 0 ? "ascending" : "descending") : "none",
    onclick: () => { state.sort[id] = [key, key === by ? -direction : 1]; render(); },
    onkeydown: (event) => { if (event.key === "Enter") event.target.click(); },
  }, label)));
  $(id).replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows.flatMap(draw)));
}
const label = (name) => h("span", { class: "name" }, h("span", { class: "dot", style: `color: ${colour(name)}` }), name);
function cells(runs) { // scores by group and environment
  const found = new Map();
  for (const run of runs) {
    const score = run.scores[state.metric];
    if (score === undefined || score === null) continue;
    const group = groupOf(run), key = JSON.stringify([group, run.env]);
    if (!found.has(key)) found.set(key, { group, env: run.env, scores: [], runs: [] });
    found.get(key).scores.push(score);
    found.get(key).runs.push(run);
  }
  return [...found.values()];
}
function renderScores(scored) {
  const rows = scored.map(({ group, env, scores, runs }) => {
    const [low, high] = scores.length > 1 ? interval((strata) => iqm(strata.flat()), [scores]) : [NaN, NaN];
    const steps = runs.map((run) => run.last);
    return { group, env, seeds: scores.length, mean: mean(scores), std: deviation(scores), iqm: iqm(scores), low, high,
      best: Math.max(...scores), steps: Math.max(...steps), unequal: Math.min(...steps) < 0.98 * Math.max(...steps), seconds: mean(runs.map((run) => run.time)) };
  });
  const columns = [["env", "environment"], ["group", "group"], ["seeds", "seeds", "number"], ["mean", "mean ± std", "number"], ["iqm", "IQM", "number"],
    ["low", "95% interval of the IQM", "number"], ["best", "best seed", "number"], ["steps", "steps", "number"], ["seconds", "time", "number"]];
  table("scores", columns, rows, (row) => h("tr", {},
    h("td", {}, row.env), h("td", {}, label(row.group)),
    h("td", { class: "number" }, row.seeds < FEW ? h("span", { class: "badge", title: "few seeds: intervals are too narrow" }, `only ${row.seeds}`) : String(row.seeds)),
    h("td", { class: "number" }, row.seeds > 1 ? plusMinus(row.mean, row.std) : format(row.mean)), h("td", { class: "number" }, format(row.iqm)),
    h("td", { class: "number" }, row.seeds > 1 ? `[${format(row.low)}, ${format(row.high)}]` : "one seed: none"),
    h("td", { class: "number" }, format(row.best)), h("td", { class: "number" }, (row.unequal ? "up to " : "") + short(row.steps)),
    h("td", { class: "number" }, duration(row.seconds))));
}
function renderDifference(scored) {
  const groups = unique(scored.map((cell) => cell.group)).sort(compare), select = $("baseline");
  $("difference").hidden = groups.length < 2;
  if (groups.length < 2) return;
  if (!groups.includes(state.baseline)) state.baseline = groups[0];
  select.replaceChildren(...groups.map((name) => h("option", { value: name }, name)));
  select.value = state.baseline;
  if (groups.length > MANY) {
    $("few").hidden = true;
    $("verdicts").replaceChildren(h("p", { class: "empty" }, `${groups.length} groups: search or filter for at most ${MANY} to compare them.`));
    return;
  }
  const of = (group) => new Map(scored.filter((cell) => cell.group === group).map((cell) => [cell.env, cell.scores]));
  const base = of(state.baseline);
  const fewest = Math.min(...scored.map((cell) => cell.scores.length));
  $("few").hidden = smallestP([Array(fewest)], [Array(fewest)]) <= 0.05;
  $("few").textContent = `Only ${fewest} seed${fewest === 1 ? "" : "s"} in places: so few cannot show a difference in one environment, however large it looks. Run at least 4, better ${FEW} to 10.`;
  const others = groups.filter((name) => name !== state.baseline), strangers = others.filter((name) => ![...of(name).keys()].some((env) => base.has(env)));
  $("verdicts").replaceChildren(...others.filter((name) => !strangers.includes(name)).map((name) => {
    const mine = of(name), shared = [...mine.keys()].filter((env) => base.has(env)).sort(compare);
    const tests = shared.map((env) => [env, [mine.get(env)], [base.get(env)]]);
    if (shared.length > 1) tests.push([`all ${shared.length} together`, shared.map((env) => mine.get(env)), shared.map((env) => base.get(env))]);
    const card = h("div", { class: "verdict" }, h("h3", {}, label(name)));
    for (const [where, xs, ys] of tests) {
      const value = improvement(xs, ys), [low, high] = interval(improvement, xs, ys), [kind, words] = verdict(xs, ys);
      card.append(h("div", { class: "pair" }, h("span", {}, where),
        h("span", { class: "meter", role: "img", "aria-label": `${value.toFixed(2)}, interval ${low.toFixed(2)} to ${high.toFixed(2)}` },
          h("i", { style: `left: ${100 * low}%; width: ${Math.max(100 * (high - low), 0.5)}%` }), h("b", { style: `left: ${100 * value}%` })),
        h("span", {}, value.toFixed(2)), h("span", { class: kind }, words)));
    }
    return card;
  }));
  if (strangers.length) $("verdicts").append(h("p", { class: "hint" }, `No environment in common with ${state.baseline}: ${strangers.join(", ")}.`));
}
function renderProfile(scored) {
  const groups = unique(scored.map((cell) => cell.group)).sort(compare);
  const common = unique(scored.map((cell) => cell.env)).filter((env) => groups.every((group) => scored.some((cell) => cell.group === group && cell.env === env))).sort(compare);
  $("profile-section").hidden = groups.length < 2 || groups.length > MANY || !common.length;
  if ($("profile-section").hidden) return;
  $("profile-hint").textContent = `The share of runs that score above τ, over ${common.join(", ")}. In each, 0 is the lowest and 1 the highest run shown here.`;
  const normal = new Map(common.map((env) => {
    const all = scored.filter((cell) => cell.env === env).flatMap((cell) => cell.scores), low = Math.min(...all), high = Math.max(...all);
    return [env, (x) => (high > low ? (x - low) / (high - low) : 1)];
  }));
  const taus = Array.from({ length: 101 }, (_, i) => i / 100);
  const share = (strata, tau) => mean(strata.map((list) => mean(list.map((x) => (x > tau ? 1 : 0)))));
  const series = groups.map((group) => {
    const strata = common.map((env) => scored.find((cell) => cell.group === group && cell.env === env).scores.map(normal.get(env)));
    const next = random(3), samples = Array.from({ length: 400 }, () => strata.map((list) => resample(list, next)));
    const line = taus.map((tau) => {
      const [low, high] = percentiles(samples.map((sample) => share(sample, tau)));
      return { x: tau, y: share(strata, tau), low, high };
    });
    return { name: group, line, thin: [] };
  });
  const target = $("profile");
  target.replaceChildren(chart("Share of runs above τ", "normalized score τ", series, { width: Math.min(target.clientWidth, 760) - 26, height: 260, axis: "τ =", ys: [0, 1], x0: 0, band: true }));
}
function details(run) {
  const facts = [["status", run.status], ["commit", run.commit], ["versions", run.versions], ["hardware", run.hardware], ["tags", run.tags.join(", ")], ["from", run.source]];
  const list = (pairs) => h("div", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== undefined).map(([name, value]) =>
    h("div", { class: varying.includes(name) ? "differs" : "" }, h("span", {}, name), h("span", {}, String(value ?? "None")))));
  const entries = Object.entries(run.args);
  return h("div", { class: "details-inner" }, list(facts), run.command ? h("code", {}, run.command) : null,
    entries.length ? list(entries) : h("p", { class: "hint" }, "Result files do not hold all hyper-parameters; they are the defaults of the file at that commit, or in the command."));
}
function renderRuns(runs) {
  const columns = [["group", "group"], ["env", "environment"], ["seed", "seed", "number"], ["score", "score", "number"], ["last", "steps", "number"], ["time", "time", "number"],
    ...varying.slice(0, 4).map((name) => [`arg:${name}`, name, "number"]), ["status", "status"], ["commit", "commit"], ["name", "run"]];
  const rows = runs.map((run) => ({ run, group: groupOf(run), env: run.env, seed: run.seed, score: run.scores[state.metric], last: run.last, time: run.time, status: run.status,
    commit: run.commit, name: run.name, ...Object.fromEntries(varying.map((name) => [`arg:${name}`, run.args[name]])) }));
  table("runs", columns, rows, (row) => {
    const toggle = () => { if (!state.open.delete(row.run)) state.open.add(row.run); renderRuns(runs); };
    const opened = state.open.has(row.run);
    const line = h("tr", { class: "run", tabindex: 0, "aria-expanded": opened, onclick: toggle, onkeydown: (event) => { if (event.key === "Enter") toggle(); } },
      h("td", {}, label(row.group)), h("td", {}, row.env), h("td", { class: "number" }, String(row.seed)), h("td", { class: "number" }, format(row.score)),
      h("td", { class: "number" }, short(row.last)), h("td", { class: "number" }, duration(row.time)),
      ...varying.slice(0, 4).map((name) => h("td", { class: "number" }, String(row.run.args[name] ?? ""))),
      h("td", {}, row.status === "finished" ? "finished" : h("span", { class: "badge" }, row.status)), h("td", {}, row.commit), h("td", {}, row.name));
    return opened ? [line, h("tr", {}, h("td", { class: "details", colspan: columns.length }, details(row.run)))] : [line];
  });
}

// ---- videos ----
function renderVideos(runs) {
  const filmed = runs.filter((run) => run.videos.length), select = $("video-run");
  $("videos-section").hidden = !filmed.length;
  if (!filmed.length) return;
  const before = select.value;
  select.replaceChildren(...filmed.map((run) => h("option", { value: run.name }, `${groupOf(run)} · ${run.env} · seed ${run.seed}`)));
  if (filmed.some((run) => run.name === before)) select.value = before;
  showVideo(select.value !== before);
}
function showVideo(restart) {
  const run = data.runs.find((x) => x.name === $("video-run").value), slider = $("video-slider");
  slider.max = run.videos.length - 1;
  if (restart) slider.value = slider.max;
  const video = run.videos[slider.value];
  $("video-step").textContent = video.step === null ? `after training (evaluation), ${run.videos.length} videos` : `${video.step.toLocaleString("en")}, video ${Number(slider.value) + 1} of ${run.videos.length}`;
  if ($("video").dataset.source === video.source.slice(0, 200) + video.source.length) return;
  $("video").dataset.source = video.source.slice(0, 200) + video.source.length;
  const player = h("video", { src: video.source, controls: "", playsinline: "", loop: "", autoplay: "" });
  player.muted = true; // or browsers do not let it start by itself
  player.addEventListener("error", () => $("video").replaceChildren(h("p", { class: "empty" }, `Cannot play ${video.embedded ? "this video" : video.source + ": it is a link; keep the page beside the runs"}.`)));
  $("video").replaceChildren(player);
}

// ---- controls ----
function chips(id, names, key, coloured) {
  $(id).replaceChildren(...names.map((name) => {
    const shown = !state.off[key].has(name);
    return h("button", { class: "chip", type: "button", "aria-pressed": shown, title: "Click: show or hide. Double click: only this one.",
      onclick: () => { if (shown) state.off[key].add(name); else state.off[key].delete(name); render(); },
      ondblclick: () => { state.off[key] = new Set(names.filter((other) => other !== name)); render(); } },
    coloured ? h("span", { class: "dot", style: `color: ${colour(name)}` }) : null, name);
  }));
  $(id).hidden = names.length < 2;
}
function render(curvesOnly = false) {
  const found = searched();
  found.map(groupOf).sort(compare).forEach(colour);
  const runs = found.filter((run) => !state.off.group.has(groupOf(run)) && !state.off.env.has(run.env));
  if (state.facet === "group") unique(runs.map((run) => run.env)).sort(compare).forEach(colour);
  renderCharts(runs);
  if (curvesOnly) return;
  chips("groups", unique(found.map(groupOf)).sort(compare), "group", true);
  chips("envs", unique(found.map((run) => run.env)).sort(compare), "env", false);
  $("count").textContent = runs.length === data.runs.length ? `${runs.length} runs` : `${runs.length} of ${data.runs.length} runs`;
  $("score-hint").textContent = `Of a run: mean of the last ${data.window} values of ${state.metric}. IQM: mean without the lowest and the highest quarter of the runs; its interval is a stratified bootstrap.`;
  const scored = cells(runs);
  renderScores(scored);
  renderDifference(scored);
  renderProfile(scored);
  renderVideos(runs);
  renderRuns(runs);
}
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀" : "☾";
}
function start() {
  document.title = data.title;
  $("title").textContent = data.title;
  const count = (list, word) => `${unique(list).length} ${word}${unique(list).length === 1 ? "" : "s"}`;
  $("subtitle").textContent = [count(data.runs.map((r) => r.name), "run"), count(data.runs.map((r) => r.group), "group"), count(data.runs.map((r) => r.env), "environment")].join(" · ");
  $("footer").textContent = `Made by python -m cleanrl_utils.rlops, ${data.made}. ${data.videos}`;
  $("notes-section").hidden = !data.notes.length;
  $("notes").replaceChildren(...data.notes.map((note) => h("li", {}, note)));
  const metrics = unique(data.runs.flatMap((run) => Object.keys(run.scores))).sort(compare);
  $("metric").replaceChildren(...metrics.map((name) => h("option", { value: name }, name)));
  $("metric").value = state.metric;
  const commits = unique(data.runs.map((run) => run.commit)).length > 1 ? ["commit"] : [];
  $("groupby").replaceChildren(h("option", { value: "" }, data.grouping), ...[...commits, ...varying].map((name) => h("option", { value: name }, name)), h("option", { value: "run" }, "single runs"));
  for (const [id, key] of [["metric", "metric"], ["groupby", "groupBy"], ["facet", "facet"], ["axis", "axis"], ["band", "band"], ["baseline", "baseline"]]) {
    $(id).addEventListener("change", (event) => {
      state[key] = event.target.value;
      if (key === "groupBy") { state.off.group.clear(); colours.clear(); }
      render(["facet", "axis", "band"].includes(key));
    });
  }
  let waiting = 0;
  $("search").addEventListener("input", (event) => {
    state.search = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(render, 120);
  });
  $("smoothing").addEventListener("input", (event) => {
    state.smoothing = Number(event.target.value);
    $("smoothing-value").textContent = state.smoothing || "0";
    render(true);
  });
  $("video-run").addEventListener("change", () => showVideo(true));
  $("video-slider").addEventListener("input", () => showVideo(false));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!chosen) theme(dark.matches ? "dark" : "light"); });
  $("theme").addEventListener("click", () => theme((chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark")));
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
  render();
}
start();
