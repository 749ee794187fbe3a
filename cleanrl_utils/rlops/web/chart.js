// A chart: lines with bands, axes with titles, a legend; zoom, tooltip, downloads.
// series: [{name, line: [{x, y, low, high, n}], thin: [[[x, y], ...], ...], band: whether, runs: whether}]
const LEGEND = 12; // entries on the screen; a downloaded picture names every line
const FONT = "11px system-ui, sans-serif";
const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = FONT;
  return ruler.measureText(text).width;
}
function fitted(text, width) { // cut where it is too long
  if (textWidth(text) <= width) return text;
  let end = text.length;
  while (end > 1 && textWidth(`${text.slice(0, end)}…`) > width) end--;
  return `${text.slice(0, end)}…`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const list = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) {
    list.push(Math.abs(x) < step * 1e-9 ? 0 : x);
  }
  return list;
}
const tickLabel = (x, [size, unit]) => (x === 0 ? "0" : Number((x / size).toPrecision(4)) + unit);

// How the numbers of a chart's x axis are written: on the axis, in its title and in the tooltip.
function xAxis(kind, title, longest) {
  if (kind === "seconds") {
    const [size, unit] = longest > 7200 ? [3600, "hours"] : longest > 120 ? [60, "minutes"] : [1, "seconds"];
    return { size, unit: [1, ""], title: `wall-clock time in ${unit}`, tell: duration };
  }
  if (kind === "steps") {
    return { size: 1, unit: unitOf(1.05 * longest), title, tell: (x) => `step ${Math.round(x).toLocaleString("en")}` };
  }
  return { size: 1, unit: [1, ""], title, tell: (x) => `${title} ${Number(x.toPrecision(3))}` };
}

function rangeOf(chart) { // of both axes; of y, what is visible between the ends of x
  const { series, zoom } = chart;
  const drawn = (s) => [...(s.runs ? s.thin.flat().map((p) => p[0]) : []), ...s.line.map((p) => p.x)];
  const end = largest(series.flatMap(drawn)), round = Number(end.toPrecision(2)); // 999,424 steps end at 1M
  const [x0, x1] = zoom ?? [0, Math.max(round > end && round < 1.01 * end ? round : end, 1e-9)];
  if (chart.yRange && !zoom) return { x0, x1, y0: chart.yRange[0], y1: chart.yRange[1] };
  // The axis holds every run; of a band as much as fits: with two seeds a 95% interval is nearly endless.
  const inside = ([x]) => x >= x0 && x <= x1;
  const all = (s) => [...s.thin.flat(), ...s.line.map((p) => [p.x, p.y])];
  let ys = series.flatMap(all).filter(inside).map((p) => p[1]);
  if (!ys.length) ys = series.flatMap(all).map((p) => p[1]);
  let y0 = smallest(ys), y1 = largest(ys);
  if (y1 - y0 < 1e-12) {
    y0 -= Math.abs(y0) * 0.05 || 0.5;
    y1 += Math.abs(y1) * 0.05 || 0.5;
  }
  const margin = (y1 - y0) * 0.05;
  return { x0, x1, y0: y0 - margin, y1: y1 + margin };
}

function layLegend(names, width, limit) { // [{name, text, x, row}], as many in a row as fit
  const shown = names.slice(0, limit), entries = [];
  let x = 0, row = 0;
  for (const name of shown) {
    const text = fitted(name, width - 30), size = 28 + textWidth(text) + 14;
    if (x && x + size - 14 > width) { x = 0; row++; }
    entries.push({ name, text, x, row });
    x += size;
  }
  const more = names.length - shown.length;
  if (more) entries.push({ text: `and ${more} more`, x: 0, row: row + 1 });
  return entries;
}

function drawAxes(svg, chart, frame) {
  const { left, right, top, bottom, px, py, range, axis, yMarks, yUnit } = frame;
  for (const y of yMarks) {
    svg.append(h("line", { class: "gridline", x1: left, x2: right, y1: py(y), y2: py(y) }),
      h("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, tickLabel(y, yUnit)));
  }
  for (const x of ticks(range.x0 / axis.size, range.x1 / axis.size, Math.max(3, Math.min(10, Math.floor((right - left) / 55))))) {
    const at = px(x * axis.size), text = tickLabel(x, axis.unit), half = textWidth(text) / 2;
    const anchor = at + half > right + 10 ? "end" : "middle"; // the last one may not stick out
    svg.append(h("text", { x: anchor === "end" ? right + 10 : at, y: bottom + 15, "text-anchor": anchor }, text));
  }
  const middle = (top + bottom) / 2;
  svg.append(
    h("text", { class: "axis-title", x: (left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, axis.title),
    h("text", { class: "axis-title", x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${middle}) rotate(-90)` },
      fitted(chart.yTitle, bottom - top + 20)),
  );
}
function drawLines(svg, series, { px, py }) {
  const path = (list) => list.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
  const stroke = (s, attributes) => h("path", { fill: "none", style: `stroke: ${colour(s.name)}`, ...attributes });
  for (const s of series) {
    const outline = [...s.line.map((p) => [p.x, p.high]), ...s.line.map((p) => [p.x, p.low]).reverse()];
    if (s.band && s.line.some((p) => p.high > p.low)) {
      const style = `fill: ${colour(s.name)}`;
      svg.append(h("path", { class: "band", "data-name": s.name, d: `${path(outline)}Z`, style, "fill-opacity": 0.16 }));
    }
    for (const list of s.runs ? s.thin : []) {
      svg.append(stroke(s, { class: "thin", "data-name": s.name, d: path(list), "stroke-opacity": 0.35 }));
    }
  }
  for (const s of series) {
    const d = path(s.line.map((p) => [p.x, p.y]));
    const style = { "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash(s.name) };
    svg.append(stroke(s, { class: "mean", "data-name": s.name, d, ...style }));
    if (s.line.length === 1) {
      const [point] = s.line;
      svg.append(h("circle", { cx: px(point.x), cy: py(point.y), r: 3, style: `fill: ${colour(s.name)}` }));
    }
  }
}
function drawLegend(svg, entries, left, top) {
  for (const { name, text, x, row } of entries) {
    const y = top + 16 * row, item = h("g", { class: "legend" });
    if (name) {
      const line = { x1: left + x, x2: left + x + 22, y1: y - 4, y2: y - 4, "stroke-width": 2.5 };
      item.append(h("title", {}, name),
        h("line", { ...line, "stroke-dasharray": dash(name), style: `stroke: ${colour(name)}` }));
      item.addEventListener("pointerenter", () => emphasize(svg, name));
      item.addEventListener("pointerleave", () => emphasize(svg, null));
    }
    item.append(h("text", { x: left + x + (name ? 28 : 0), y }, text));
    svg.append(item);
  }
}
function emphasize(svg, name) { // fade all other lines
  for (const path of svg.querySelectorAll("path[data-name]")) {
    path.style.opacity = name === null || path.dataset.name === name ? "" : 0.12;
  }
}

let clips = 0;
function draw(chart, width, height, legendLimit) { // the picture, and the frame that maps numbers to places
  const range = rangeOf(chart);
  const yUnit = unitOf(Math.max(Math.abs(range.y0), Math.abs(range.y1)) / 10); // 2000, but 20k
  const yMarks = ticks(range.y0, range.y1, height > 300 ? 7 : 5);
  const left = 26 + largest(yMarks.map((y) => textWidth(tickLabel(y, yUnit)))), right = width - 12;
  const top = 8, bottom = height - 40, axis = xAxis(chart.kind, chart.xTitle, range.x1);
  const within = (y) => Math.min(Math.max(y, range.y0), range.y1);
  const frame = {
    left, right, top, bottom, range, axis, yMarks, yUnit,
    px: (x) => left + ((x - range.x0) / (range.x1 - range.x0)) * (right - left),
    py: (y) => bottom - ((within(y) - range.y0) / (range.y1 - range.y0)) * (bottom - top),
    xAt: (p) => range.x0 + ((p - left) / (right - left)) * (range.x1 - range.x0),
  };
  const entries = layLegend(chart.series.map((s) => s.name), width - 16, legendLimit);
  const full = height + 16 * (1 + largest(entries.map((entry) => entry.row)));
  const names = chart.series.map((s) => s.name).join(", ");
  const svg = h("svg", { viewBox: `0 0 ${width} ${full}`, width, height: full, role: "img",
    "aria-label": `${chart.title}: ${names}` });
  const clip = `clip${clips++}`;
  const defs = document.createElementNS("http://www.w3.org/2000/svg", "clipPath");
  defs.id = clip;
  defs.append(h("rect", { x: left, y: top - 3, width: right - left + 2, height: bottom - top + 6 }));
  const lines = h("g", { "clip-path": `url(#${clip})` });
  drawAxes(svg, chart, frame);
  drawLines(lines, chart.series, frame);
  svg.append(defs, lines);
  drawLegend(svg, entries, 8, height + 8);
  return { svg, frame };
}

// ---- the pointer: what is where, and zoom ----
function tooltip(chart, frame, event, x) {
  const tip = $("tip"), { range, left, right, axis } = frame;
  const near = (4 * (range.x1 - range.x0)) / (right - left); // a pointer need not hit the very end of a curve
  const rows = chart.series.map((s) => {
    if (x < s.line[0].x - near || x > s.line[s.line.length - 1].x + near) return null;
    const p = s.line.reduce((best, q) => (Math.abs(q.x - x) < Math.abs(best.x - x) ? q : best));
    const spread = p.high > p.low ? ` [${format(p.low)}, ${format(p.high)}]` : "";
    const runs = p.n ? ` · ${plural(p.n, "run")}` : "";
    return [p.y, h("div", {}, swatch(s.name), h("span", {}, s.name), h("span", {}, format(p.y) + spread + runs))];
  }).filter(Boolean).sort((a, b) => b[0] - a[0]).map((row) => row[1]);
  const more = rows.length > LEGEND ? [h("div", {}, `and ${rows.length - LEGEND} more below`)] : [];
  tip.replaceChildren(h("strong", {}, axis.tell(x)), ...rows.slice(0, LEGEND), ...more);
  tip.hidden = false;
  const beside = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const fits = event.clientY + 16 + tip.offsetHeight <= innerHeight;
  tip.style.left = `${Math.max(8, beside)}px`;
  tip.style.top = `${fits ? event.clientY + 16 : Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
}
function listen(chart, svg, frame, width) {
  const { left, right, top, bottom, range, px, xAt } = frame;
  const cursor = h("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
  const selection = h("rect", { class: "selection", y: top, height: bottom - top, visibility: "hidden" });
  svg.append(cursor, selection);
  const placeOf = (event) => { // of the pointer, in the numbers of the picture
    const area = svg.getBoundingClientRect();
    return ((event.clientX - area.left) / area.width) * width;
  };
  const below = (event) => (event.clientY - svg.getBoundingClientRect().top) > bottom; // on the legend
  const clamp = (p) => Math.min(Math.max(p, left), right);
  const leave = () => { $("tip").hidden = true; cursor.setAttribute("visibility", "hidden"); };
  let from = null;
  svg.addEventListener("pointerdown", (event) => {
    const p = placeOf(event);
    if (event.button === 0 && p >= left && p <= right && !below(event)) from = p;
  });
  svg.addEventListener("pointermove", (event) => {
    const p = placeOf(event), x = xAt(p);
    if (from !== null && Math.abs(p - from) > 4) {
      const [a, b] = [clamp(from), clamp(p)].sort((m, n) => m - n);
      svg.setPointerCapture?.(event.pointerId);
      selection.setAttribute("x", a);
      selection.setAttribute("width", b - a);
      selection.setAttribute("visibility", "visible");
    }
    if (x < range.x0 || x > range.x1 || below(event)) return leave();
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, px(x));
    cursor.setAttribute("visibility", "visible");
    tooltip(chart, frame, event, x);
  });
  const finish = (event) => {
    if (from === null) return;
    const [a, b] = [clamp(from), clamp(placeOf(event))].sort((m, n) => m - n);
    from = null;
    selection.setAttribute("visibility", "hidden");
    if (b - a > 8) setZoom(chart.id, [xAt(a), xAt(b)].map((x) => Number(x.toPrecision(4))));
  };
  svg.addEventListener("pointerup", finish);
  svg.addEventListener("pointercancel", () => { from = null; selection.setAttribute("visibility", "hidden"); });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("dblclick", () => setZoom(chart.id, null));
}
function setZoom(id, range) {
  if (range) state.zoom[id] = range; else delete state.zoom[id];
  $("tip").hidden = true;
  renderPart(id);
}

// ---- downloads ----
const INLINE = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "font-size",
  "font-family", "font-weight"];
function downloadSvg(chart) { // drawn anew: larger, every line named, and styles inside, as no style sheet goes with it
  const { svg } = draw(chart, 760, 420, Infinity);
  const holder = h("div", { style: "position: absolute; visibility: hidden" }, svg);
  document.body.append(holder);
  for (const element of svg.querySelectorAll("path, line, text, rect, circle")) {
    const computed = getComputedStyle(element);
    for (const name of INLINE) element.setAttribute(name, computed.getPropertyValue(name));
    element.removeAttribute("style");
    element.removeAttribute("class");
  }
  const height = Number(svg.getAttribute("height")), style = getComputedStyle(document.documentElement);
  const heading = { x: 8, y: -10, fill: style.getPropertyValue("--ink"), "font-size": 15, "font-family": "sans-serif" };
  svg.prepend(h("rect", { x: 0, y: -30, width: 760, height: height + 34, fill: style.getPropertyValue("--card") }));
  svg.append(h("text", { ...heading, "font-weight": "bold" }, chart.title));
  svg.setAttribute("viewBox", `0 -30 760 ${height + 34}`);
  svg.setAttribute("height", height + 34);
  holder.remove();
  save(`${chart.title}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(svg));
}
function downloadCsv(chart) {
  const rows = chart.series.flatMap((s) => s.line.map((p) => [s.name, p.x, p.y, p.low, p.high, p.n]));
  saveCsv(chart.title, [["curve", chart.xName, chart.yTitle, "low", "high", "runs"], ...rows]);
}

// ---- the card around it ----
function card(chart, width) {
  const large = state.large === chart.id;
  const element = h("div", { class: large ? "card large" : "card", "data-id": chart.id });
  const button = (key, text, name, action) => h("button", {
    type: "button", class: "tool", title: name, "aria-label": `${name}: ${chart.title}`, "data-focus": key, onclick: action,
  }, text);
  const tools = h("span", { class: "tools" });
  element.append(h("div", { class: "card-head" }, h("h3", {}, chart.title, " ", h("small", {}, chart.note ?? "")), tools));
  if (!chart.series.length) {
    element.append(h("p", { class: "empty" }, "No curve of this metric here."));
    return element;
  }
  if (chart.zoom) tools.append(button("zoom", "reset zoom", "Show everything again", () => setZoom(chart.id, null)));
  tools.append(
    button("size", large ? "smaller" : "larger", large ? "Draw smaller" : "Draw larger", () => {
      const before = state.large;
      state.large = large ? "" : chart.id;
      unique([before, chart.id]).filter(Boolean).forEach(renderPart);
    }),
    button("svg", "SVG", "Save as a picture", () => downloadSvg(chart)),
    button("csv", "CSV", "Save the numbers", () => downloadCsv(chart)),
  );
  const height = large ? 480 : chart.height ?? 240;
  const { svg, frame } = draw(chart, Math.max(width, 240), height, large ? Infinity : LEGEND);
  listen(chart, svg, frame, Math.max(width, 240));
  element.append(svg);
  return element;
}
