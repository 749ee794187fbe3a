// Which runs are shown, in which groups, and how groups are told apart.
const varying = data.varying; // arguments in which the runs differ

function groupOf(run) {
  if (!state.groupBy) return run.group;
  if (state.groupBy === "run") return run.name;
  const value = state.groupBy === "commit" ? run.commit : run.args[state.groupBy];
  return `${run.group}, ${state.groupBy} ${value ?? "unknown"}`;
}

// ---- search: words that a run has to contain, and conditions such as learning_rate>0.001 ----
const CONDITION = /^([\w./-]+)(<=|>=|!=|=|<|>)(.+)$/;
const FIELDS = { // what can be asked for besides arguments and metrics
  group: (run) => groupOf(run), algorithm: (run) => run.group, env: (run) => run.env, env_id: (run) => run.env,
  seed: (run) => run.seed, score: (run) => run.scores[state.metric], steps: (run) => run.last, time: (run) => run.time,
  status: (run) => run.status, commit: (run) => run.commit, tag: (run) => run.tags.join(" "), name: (run) => run.name,
  hardware: (run) => run.hardware, versions: (run) => run.versions,
};
const COMPARISONS = {
  "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};
function valueOf(run, field) {
  if (field in run.args) return run.args[field];
  return FIELDS[field]?.(run);
}
function meets(run, [, field, operator, wanted]) {
  const value = valueOf(run, field);
  if (value === undefined || value === null) return false;
  if (value !== "" && wanted !== "" && !Number.isNaN(Number(value)) && !Number.isNaN(Number(wanted))) {
    return COMPARISONS[operator](Number(value), Number(wanted));
  }
  const [text, part] = [String(value).toLowerCase(), wanted.toLowerCase()];
  if (operator === "=") return text.includes(part);
  if (operator === "!=") return !text.includes(part);
  return COMPARISONS[operator](text, part);
}
function textOf(run) {
  const args = Object.entries(run.args).map(([name, value]) => `${name}=${value}`);
  const facts = [run.name, run.group, run.env, run.status, run.commit, run.hardware, run.versions, ...run.tags];
  return [...facts, ...args].join(" ").toLowerCase();
}
const texts = new Map(data.runs.map((run) => [run, textOf(run)]));

function searched() { // the runs that match, and a complaint about words that nothing can match
  const words = state.search.replace(/\s*(<=|>=|!=|=|<|>)\s*/g, "$1").split(/\s+/).filter(Boolean);
  const conditions = words.map((word) => word.match(CONDITION)).filter(Boolean);
  const plain = words.filter((word) => !CONDITION.test(word)).map((word) => word.toLowerCase());
  const runs = data.runs.filter((run) => (
    plain.every((word) => texts.get(run).includes(word)) && conditions.every((condition) => meets(run, condition))
  ));
  const unknown = conditions.map(([, field]) => field)
    .filter((field) => data.runs.every((run) => valueOf(run, field) === undefined));
  return { runs, complaint: unknown.length ? `No run has ${unknown.join(", ")}.` : "" };
}

// ---- eight colours, each with five dashes; a group keeps its own whatever is filtered ----
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "9 3 2 3 2 3"];
const places = new Map();
function place(name) {
  if (!places.has(name)) places.set(name, places.size);
  return places.get(name);
}
const colour = (name) => `var(--c${place(name) % 8})`;
const dash = (name) => DASHES[Math.floor(place(name) / 8) % DASHES.length];
function swatch(name) { // a piece of its line
  const line = h("line", { x1: 1, x2: 21, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": dash(name) });
  line.style.stroke = colour(name);
  return h("svg", { class: "swatch", viewBox: "0 0 22 10", width: 22, height: 10, "aria-hidden": "true" }, line);
}
const label = (name) => h("span", { class: "name" }, swatch(name), h("span", {}, name));

// ---- scores by group and environment ----
function cellsOf(runs) {
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
const groupsOf = (cells) => unique(cells.map((cell) => cell.group)).sort(compare);

// The scale on which scores of several environments are summarized, and the environments that every group has.
function scaleOf() {
  const isReturn = state.metric.endsWith("episodic_return");
  const known = isReturn ? data.scales : data.scales.filter((scale) => !scale.bounds);
  return known.find((scale) => scale.name === state.normalize) ?? data.scales[0];
}
function normalizer(cells) { // {common, normalize(score, env), scale}
  const scale = scaleOf(), groups = groupsOf(cells);
  const has = (group, env) => cells.some((cell) => cell.group === group && cell.env === env);
  const common = unique(cells.map((cell) => cell.env)).sort(compare)
    .filter((env) => groups.every((group) => has(group, env)) && (!scale.bounds || env in scale.bounds));
  const bounds = scale.bounds ?? Object.fromEntries(common.map((env) => {
    const all = cells.filter((cell) => cell.env === env).flatMap((cell) => cell.scores);
    return [env, [smallest(all), largest(all)]];
  }));
  const normalize = (score, env) => {
    const [low, high] = bounds[env];
    return high > low ? (score - low) / (high - low) : 1;
  };
  const summarized = common.length > 1 && (groups.length > 1 || Boolean(scale.bounds));
  return { scale, groups, common, normalize, summarized };
}
