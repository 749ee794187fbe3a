// Learning curves, sample efficiency and performance profile: what the charts show.
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
function points(run) { // the run's curve as the controls want it
  const xs = run[state.axis], values = smooth(run.curves[state.metric] ?? []);
  return values.map((y, i) => [xs[i], y]).filter(([, y]) => y !== null);
}
function interpolate(curve, x) {
  if (x < curve[0][0] || x > curve[curve.length - 1][0]) return null;
  let low = 0, high = curve.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve[middle][0] <= x) low = middle; else high = middle;
  }
  const [[x0, y0], [x1, y1]] = [curve[low], curve[high]];
  return x1 === x0 ? y1 : y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
}
function bandOf(values) {
  const centre = mean(values), n = values.length;
  if (state.band === "range") return [smallest(values), largest(values)];
  if (state.band === "deviation") return [centre - deviation(values), centre + deviation(values)];
  if (n < 2 || !["interval", "auto"].includes(state.band)) return [centre, centre];
  const half = (t975(n - 1) * deviation(values, 1)) / Math.sqrt(n);
  return [centre - half, centre + half];
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
    const [low, high] = bandOf(values);
    return { x, y: mean(values), low, high, n: values.length };
  }).filter(Boolean);
}
function seriesOf(name, runs) { // by itself: every run below five seeds, their interval from there on
  const mine = runs.filter((run) => (run.curves[state.metric] ?? []).some((y) => y !== null));
  if (!mine.length) return null;
  const thin = mine.map(points), few = thin.length < FEW;
  return {
    name, thin, line: aggregate(thin, mine.map((run) => run.status === "finished")),
    runs: state.band === "runs" || (state.band === "auto" && few && thin.length > 1),
    band: ["interval", "deviation", "range"].includes(state.band) || (state.band === "auto" && !few),
  };
}

function renderCharts(runs) {
  const byEnv = state.facet === "env", target = $("charts");
  const facet = byEnv ? (run) => run.env : groupOf, line = byEnv ? groupOf : (run) => run.env;
  const names = unique(runs.map(facet)).sort(compare), gap = 14;
  const columns = Math.max(1, Math.min(names.length, Math.floor((target.clientWidth + gap) / (360 + gap))));
  const narrow = (target.clientWidth - gap * (columns - 1)) / columns - 26, wide = target.clientWidth - 26;
  target.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  target.replaceChildren(...names.map((name) => {
    const here = runs.filter((run) => facet(run) === name), id = `${state.facet}:${name}`;
    const labels = unique(here.map(line)).sort(compare);
    const series = labels.map((text) => seriesOf(text, here.filter((run) => line(run) === text))).filter(Boolean);
    const chart = { id, title: name, series, zoom: state.zoom[id], kind: state.axis, xTitle: "environment steps" };
    chart.yTitle = readable(state.metric);
    chart.xName = state.axis;
    return card(chart, state.large === id ? wide : narrow);
  }));
  if (!names.length) target.append(h("p", { class: "empty" }, "No run matches the filters."));
}

// ---- over all environments ----
const SHARES = Array.from({ length: 40 }, (_, i) => (i + 1) / 40);
function efficiencyOf(cells, { groups, common, normalize }) { // IQM in the course of training, and the unit of its x
  const cellOf = new Map(cells.map((cell) => [JSON.stringify([cell.group, cell.env]), cell]));
  const curves = new Map();
  for (const group of groups) {
    for (const env of common) {
      const list = cellOf.get(JSON.stringify([group, env])).runs.map((run) => (
        (run.curves[state.metric] ?? []).map((y, i) => [run.steps[i], y]).filter(([, y]) => y !== null)
      ));
      if (list.some((curve) => !curve.length)) return null;
      curves.set(JSON.stringify([group, env]), list);
    }
  }
  const ends = Object.fromEntries(common.map((env) => [env, smallest(groups.flatMap((group) => (
    curves.get(JSON.stringify([group, env])).map((curve) => curve[curve.length - 1][0])
  )))]));
  const [shortest, longest] = [smallest(Object.values(ends)), largest(Object.values(ends))];
  const bySteps = longest <= EQUAL * shortest;
  const lines = groups.map((name) => {
    const strata = common.map((env) => curves.get(JSON.stringify([name, env])).map((curve) => SHARES.map((share) => (
      normalize(interpolate(curve, share * ends[env]) ?? curve[0][1], env)
    ))));
    const next = random(4), samples = Array.from({ length: 200 }, () => strata.flatMap((list) => resample(list, next)));
    const line = SHARES.map((share, i) => {
      const [low, high] = percentiles(samples.map((sample) => iqm(sample.map((curve) => curve[i]))));
      return { x: share * (bySteps ? shortest : 100), y: iqm(strata.flat().map((curve) => curve[i])), low, high };
    });
    return { name, line, thin: [], band: several(strata) };
  });
  return { lines, bySteps };
}
function renderEfficiency(cells, over, width) {
  const found = over.summarized && over.groups.length <= 3 * MANY ? efficiencyOf(cells, over) : null;
  if (!found) return null;
  const id = "efficiency";
  return card({
    id, title: "Sample efficiency", note: "IQM in the course of training", series: found.lines, zoom: state.zoom[id],
    kind: found.bySteps ? "steps" : "plain", xTitle: found.bySteps ? "environment steps" : "% of the environment steps",
    xName: found.bySteps ? "steps" : "percent", yTitle: "IQM of normalized scores", height: 270,
  }, width);
}
function renderProfile(cells, { groups, common, normalize }, width) {
  const strataOf = (group) => common.map((env) => (
    cells.find((cell) => cell.group === group && cell.env === env).scores.map((x) => normalize(x, env))
  ));
  const highest = Math.max(1, largest(groups.flatMap((group) => strataOf(group).flat())));
  const taus = Array.from({ length: 101 }, (_, i) => (i * highest) / 100);
  const share = (strata, tau) => mean(strata.map((list) => mean(list.map((x) => (x > tau ? 1 : 0)))));
  const series = groups.map((name) => {
    const strata = strataOf(name), next = random(3);
    const band = groups.length <= 4 && strata.every((list) => list.length >= FEW); // of few seeds, it hides everything
    const samples = Array.from({ length: band ? 400 : 0 }, () => strata.map((list) => resample(list, next)));
    const line = taus.map((tau) => {
      const y = share(strata, tau);
      const [low, high] = band ? percentiles(samples.map((sample) => share(sample, tau))) : [y, y];
      return { x: tau, y, low, high };
    });
    return { name, line, thin: [], band };
  });
  const id = "profile";
  return card({
    id, title: "Performance profile", note: "share of runs above a score", series, zoom: state.zoom[id], kind: "plain",
    xTitle: "normalized score τ", xName: "tau", yTitle: "share of runs above τ", yRange: [0, 1], height: 270,
  }, width);
}
function renderSummaryCharts(cells, over) {
  const target = $("summary-charts"), gap = 14;
  const enough = over.common.length && over.groups.length > 1 && over.groups.length <= 3 * MANY;
  const both = target.clientWidth >= 740;
  const width = (id) => (both && state.large !== id ? (target.clientWidth - gap) / 2 : target.clientWidth) - 26;
  const charts = [renderEfficiency(cells, over, width("efficiency"))];
  charts.push(enough || over.summarized ? renderProfile(cells, over, width("profile")) : null);
  target.style.gridTemplateColumns = both ? "repeat(2, minmax(0, 1fr))" : "minmax(0, 1fr)";
  target.replaceChildren(...charts.filter(Boolean));
}
