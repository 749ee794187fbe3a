// What every other part uses: the data, the state of the controls, and small helpers.
// Everything on the page follows from `data` (the runs) and `state`: `render` in main.js draws it anew.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

const FEW = 5; // seeds below which bootstrap intervals are known to be too narrow
const MANY = 12; // groups above which pairs are not compared
const EQUAL = 1.05; // budgets that differ by no more than this factor count as equal

// What is kept in the address, so that a link shows what its sender has seen. Lists and objects are JSON there.
const DEFAULTS = {
  search: "", metric: data.metric, normalize: data.normalize, groupBy: "", facet: "env", axis: "steps", band: "auto",
  smoothing: 0.6, baseline: "", hiddenGroups: [], hiddenEnvs: [], zoom: {}, large: "", sortScores: ["env", 1],
  sortRuns: ["group", 1],
};
const state = structuredClone(DEFAULTS);
const opened = new Set(); // runs whose hyper-parameters are shown

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [key, initial] of Object.entries(DEFAULTS)) {
    state[key] = structuredClone(initial);
    if (!given.has(key)) continue;
    try {
      const value = typeof initial === "string" ? given.get(key) : JSON.parse(given.get(key));
      if (typeof value === typeof initial && Array.isArray(value) === Array.isArray(initial)) state[key] = value;
    } catch { /* a damaged link shows the default */ }
  }
  state.smoothing = Math.min(Math.max(state.smoothing, 0), 0.99);
  const isRange = (range) => Array.isArray(range) && Number.isFinite(range[0]) && range[0] < range[1];
  state.zoom = Object.fromEntries(Object.entries(state.zoom ?? {}).filter(([, range]) => isRange(range)));
}
function writeState() {
  const differing = new URLSearchParams();
  for (const [key, initial] of Object.entries(DEFAULTS)) {
    const text = JSON.stringify(state[key]);
    if (text !== JSON.stringify(initial)) differing.set(key, typeof initial === "string" ? state[key] : text);
  }
  const hash = String(differing);
  history.replaceState(null, "", hash ? `#${hash}` : location.href.split("#")[0]);
}

const SVG_TAGS = ["svg", "g", "path", "line", "text", "rect", "circle", "title"];
function h(tag, attributes = {}, ...children) { // an element, with its attributes, listeners and children
  const element = SVG_TAGS.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
const unique = (list) => [...new Set(list)];
const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;
const smallest = (list) => list.reduce((a, b) => Math.min(a, b), Infinity); // Math.min(...list) fails on long lists
const largest = (list) => list.reduce((a, b) => Math.max(a, b), -Infinity);
const NUMBER = /(\d+\.?\d*(?:e[-+]?\d+)?)/;
function compare(a, b) { // numbers inside of names count as such: batch_size=64 comes before batch_size=128
  if (typeof a === "number" && typeof b === "number") return a - b;
  const [left, right] = [String(a).split(NUMBER), String(b).split(NUMBER)];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const order = i % 2 ? Number(left[i]) - Number(right[i]) : left[i].localeCompare(right[i], "en");
    if (order) return order;
  }
  return left.length - right.length;
}
const plural = (count, thing) => `${count.toLocaleString("en")} ${thing}${count === 1 ? "" : "s"}`;
const readable = (metric) => metric.split("/").pop().replaceAll("_", " ");

function format(x, digits = 2) {
  if (x === null || x === undefined || Number.isNaN(x)) return "";
  const size = Math.abs(x);
  if (!size) return "0";
  if (size < 0.001 || size >= 1e7) return x.toExponential(2);
  return size < 1 ? String(Number(x.toFixed(4))) : x.toFixed(digits);
}
const plusMinus = (x, spread) => `${format(x)} ± ${Math.abs(x) < 1 ? format(spread) : spread.toFixed(2)}`;
function unitOf(size) { // one unit for a whole axis: with 1M on it, 500k is 0.5M
  return [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([limit]) => size >= limit) ?? [1, ""];
}
function short(x) {
  const [size, unit] = unitOf(Math.abs(x));
  return Number((x / size).toPrecision(3)) + unit;
}
function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  if (seconds < 3600) return `${Number((seconds / 60).toPrecision(3))} min`;
  return `${Number((seconds / 3600).toPrecision(3))} h`;
}

function keepFocus(redraw) { // a button that is drawn anew keeps the keyboard's focus; data-focus says which it is
  const before = document.activeElement, key = before?.dataset.focus;
  const place = before?.closest("[data-id], [id]"), id = place?.dataset.id ?? place?.id;
  redraw();
  if (key === undefined || before.isConnected) return;
  const inside = (element) => [element.closest("[data-id], [id]")].some((x) => (x?.dataset.id ?? x?.id) === id);
  const again = [...document.querySelectorAll("[data-focus]")].find((x) => x.dataset.focus === key && inside(x));
  again?.focus({ preventScroll: true });
}

function save(name, type, text) { // a download, made here
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
function saveCsv(name, rows) {
  const quote = (x) => (/[",\n]/.test(x) ? `"${x.replaceAll('"', '""')}"` : x);
  const text = rows.map((row) => row.map((x) => quote(String(x ?? ""))).join(",")).join("\n");
  save(`${name}.csv`, "text/csv", `${text}\n`);
}
