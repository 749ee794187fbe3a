// Tables: scores, summaries over environments, differences between groups, runs.
function table(id, key, columns, rows, drawRow) { // columns: [[key, label, "number" or nothing]]; a click sorts
  const [by, direction] = state[key];
  rows.sort((a, b) => direction * compare(a[by] ?? "", b[by] ?? ""));
  const head = columns.map(([name, text, kind]) => h("th", {
    class: kind ?? "", scope: "col", tabindex: 0, "data-key": name, "data-focus": name,
    "aria-sort": name === by ? (direction > 0 ? "ascending" : "descending") : "none",
    onclick: () => { state[key] = [name, name === by ? -direction : 1]; render(); },
    onkeydown: (event) => { if (event.key === "Enter") event.target.click(); },
  }, text));
  $(id).replaceChildren(h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows.flatMap(drawRow)));
}
const number = (...content) => h("td", { class: "number" }, ...content);

// ---- final scores ----
function scoreRow({ group, env, scores, runs }) {
  const several = scores.length > 1, steps = runs.map((run) => run.last);
  const [low, high] = several ? interval((strata) => iqm(strata.flat()), [scores]) : [NaN, NaN];
  return {
    group, env, seeds: unique(runs.map((run) => run.seed)).length, several, mean: mean(scores), std: deviation(scores),
    iqm: iqm(scores), low, high, best: largest(scores), steps: largest(steps), seconds: mean(runs.map((run) => run.time)),
    unequal: smallest(steps) < 0.98 * largest(steps),
  };
}
function renderScores(cells) {
  const columns = [["env", "environment"], ["group", "group"], ["seeds", "seeds", "number"],
    ["mean", "mean ± std", "number"], ["iqm", "IQM", "number"], ["low", "95% interval of the IQM", "number"],
    ["best", "best seed", "number"], ["steps", "steps", "number"], ["seconds", "time", "number"]];
  const rows = cells.map(scoreRow).sort((a, b) => compare(a.group, b.group)); // and then by the column that was chosen
  const few = "few seeds: intervals are too narrow";
  table("scores", "sortScores", columns, rows, (row) => h("tr", {},
    h("td", {}, row.env), h("td", {}, label(row.group)),
    number(row.seeds < FEW ? h("span", { class: "badge", title: few }, `only ${row.seeds}`) : String(row.seeds)),
    number(row.several ? plusMinus(row.mean, row.std) : format(row.mean)), number(format(row.iqm)),
    number(row.several ? `[${format(row.low)}, ${format(row.high)}]` : "one seed: none"), number(format(row.best)),
    number((row.unequal ? "up to " : "") + short(row.steps)), number(duration(row.seconds))));
  $("scores-csv").onclick = () => saveCsv("scores", [
    ["environment", "group", "seeds", "mean", "std", "iqm", "iqm_low", "iqm_high", "best", "steps", "seconds"],
    ...rows.map((r) => [r.env, r.group, r.seeds, r.mean, r.several ? r.std : "", r.iqm, r.several ? r.low : "",
      r.several ? r.high : "", r.best, r.steps, r.seconds]),
  ]);
}

// ---- over all environments ----
function meter(low, value, high, start, end) { // an interval with its middle, on a scale
  const at = (x) => (100 * (x - start)) / (end - start);
  const words = `${value.toFixed(3)}, interval ${low.toFixed(3)} to ${high.toFixed(3)}`;
  return h("span", { class: "meter", role: "img", "aria-label": words },
    low < high ? h("i", { style: `left: ${at(low)}%; width: ${at(high) - at(low)}%` }) : null,
    h("b", { style: `left: ${at(value)}%` }));
}
function renderAggregates(cells, over) {
  const { scale, groups, common, normalize } = over, select = $("normalize");
  const offered = state.metric.endsWith("episodic_return") ? data.scales : data.scales.filter((x) => !x.bounds);
  $("summary").hidden = unique(cells.map((cell) => cell.env)).length < 2 && groups.length < 2;
  select.replaceChildren(...offered.map(({ name }) => h("option", { value: name }, name)));
  select.value = scale.name;
  $("summary-hint").textContent = common.length
    ? `In ${common.length > 1 ? "each of " : ""}${common.join(", ")}: ${scale.words}.`
    : "No environment has runs of every group shown and a score to normalize with: filter the groups.";
  $("aggregates-box").hidden = !over.summarized;
  if (!over.summarized) return;
  const names = Object.keys(AGGREGATES);
  const rows = groups.map((group) => {
    const strata = common.map((env) => (
      cells.find((cell) => cell.group === group && cell.env === env).scores.map((x) => normalize(x, env))
    ));
    const found = names.map((name) => {
      const value = AGGREGATES[name](strata);
      return [value, ...(several(strata) ? interval(AGGREGATES[name], strata) : [value, value])];
    });
    return { group, runs: strata.flat().length, found, single: !several(strata) };
  });
  const ends = names.map((_, i) => [
    Math.min(0, smallest(rows.map((row) => row.found[i][1]))), Math.max(1, largest(rows.map((row) => row.found[i][2]))),
  ]);
  const head = ["group", "runs", ...names].map((text, i) => h("th", { scope: "col", class: i === 1 ? "number" : "" }, text));
  const body = rows.map((row) => h("tr", {}, h("td", {}, label(row.group)), number(String(row.runs)),
    ...row.found.map(([value, low, high], i) => h("td", { class: "aggregate" },
      h("strong", {}, value.toFixed(3)),
      h("small", { title: row.single ? "one seed in places" : null },
        row.single ? " no interval" : ` [${low.toFixed(2)}, ${high.toFixed(2)}]`),
      meter(low, value, high, ...ends[i])))));
  $("aggregates").replaceChildren(h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body));
}

// ---- is there a difference? ----
function judge(xs, ys) { // cells of two groups, environment by environment
  for (const [i, x] of xs.entries()) {
    const unequal = unequalBudgets([...x.runs, ...ys[i].runs]);
    if (unequal) return ["few", `no verdict: unequal budgets, ${unequal}${xs.length > 1 ? ` on ${x.env}` : ""}`];
  }
  return verdict(xs.map((cell) => cell.scores), ys.map((cell) => cell.scores));
}
function verdictCard(name, mine, base) {
  const shared = [...mine.keys()].filter((env) => base.has(env)).sort(compare);
  const tests = shared.map((env) => [env, [env]]);
  if (shared.length > 1) tests.push([`${shared.length === 2 ? "both" : `all ${shared.length}`} together`, shared]);
  const element = h("div", { class: "verdict" }, h("h3", {}, label(name)));
  for (const [where, envs] of tests) {
    const [x, y] = [mine, base].map((cells) => envs.map((env) => cells.get(env)));
    const [xs, ys] = [x, y].map((cells) => cells.map((cell) => cell.scores));
    const value = improvement(xs, ys), [kind, words] = judge(x, y);
    const [low, high] = several(xs, ys) ? interval(improvement, xs, ys) : [value, value];
    element.append(h("div", { class: "pair" }, h("span", {}, where), meter(low, value, high, 0, 1),
      h("span", {}, value.toFixed(2)), h("span", { class: kind }, words)));
  }
  return element;
}
function renderDifference(cells) {
  const groups = groupsOf(cells), select = $("baseline"), target = $("verdicts");
  $("difference").hidden = groups.length < 2;
  if (groups.length < 2) return;
  const baseline = groups.includes(state.baseline) ? state.baseline : groups[0];
  select.replaceChildren(...groups.map((name) => h("option", { value: name }, name)));
  select.value = baseline;
  $("few").hidden = true;
  if (groups.length > MANY) {
    const words = `${groups.length} groups: search or filter for at most ${MANY} to compare them.`;
    target.replaceChildren(h("p", { class: "empty" }, words));
    return;
  }
  const of = (group) => new Map(cells.filter((cell) => cell.group === group).map((cell) => [cell.env, cell]));
  const base = of(baseline), fewest = smallest(cells.map((cell) => cell.scores.length));
  $("few").hidden = smallestP([Array(fewest)], [Array(fewest)]) <= 0.05;
  $("few").textContent = `Only ${plural(fewest, "seed")} in places: so few cannot show a difference in one environment, `
    + `however large it looks. Run at least 4, better ${FEW} to 10.`;
  const others = groups.filter((name) => name !== baseline);
  const strangers = others.filter((name) => ![...of(name).keys()].some((env) => base.has(env)));
  const comparable = others.filter((name) => !strangers.includes(name));
  target.replaceChildren(...comparable.map((name) => verdictCard(name, of(name), base)));
  if (strangers.length) {
    target.append(h("p", { class: "hint" }, `No environment in common with ${baseline}: ${strangers.join(", ")}.`));
  }
}

// ---- runs ----
function details(run) {
  const facts = [["status", run.status], ["commit", run.commit], ["versions", run.versions], ["hardware", run.hardware],
    ["tags", run.tags.join(", ")], ["from", run.source]];
  const fact = ([name, value]) => h("div", { class: varying.includes(name) ? "differs" : "" },
    h("span", {}, name), h("span", {}, String(value ?? "None")));
  const list = (pairs) => h("div", { class: "facts" },
    ...pairs.filter(([, value]) => value !== "" && value !== undefined).map(fact));
  const entries = Object.entries(run.args);
  const partial = "A result file has those of the command; all others are the defaults of the algorithm file at that commit.";
  return h("div", { class: "details-inner" }, list(facts), run.command ? h("code", {}, run.command) : null,
    entries.length ? list(entries) : null, run.partial ? h("p", { class: "hint" }, partial) : null);
}
function renderRuns(runs) {
  const extra = varying.slice(0, 4);
  const columns = [["group", "group"], ["env", "environment"], ["seed", "seed", "number"], ["score", "score", "number"],
    ["last", "steps", "number"], ["time", "time", "number"], ...extra.map((name) => [`arg:${name}`, name, "number"]),
    ["status", "status"], ["commit", "commit"], ["name", "run"]];
  const rows = runs.map((run) => ({
    run, group: groupOf(run), env: run.env, seed: run.seed, score: run.scores[state.metric], last: run.last,
    time: run.time, status: run.status, commit: run.commit, name: run.name,
    ...Object.fromEntries(extra.map((name) => [`arg:${name}`, run.args[name]])),
  }));
  table("runs", "sortRuns", columns, rows, (row) => {
    const toggle = () => {
      if (!opened.delete(row.run)) opened.add(row.run);
      keepFocus(() => renderRuns(runs));
    };
    const expanded = opened.has(row.run), listeners = { onclick: toggle };
    listeners.onkeydown = (event) => { if (event.key === "Enter") toggle(); };
    const line = h("tr", { class: "run", tabindex: 0, "data-focus": row.name, "aria-expanded": expanded, ...listeners },
      h("td", {}, label(row.group)), h("td", {}, row.env), number(String(row.seed)), number(format(row.score)),
      number(short(row.last)), number(duration(row.time)),
      ...extra.map((name) => number(String(row.run.args[name] ?? ""))),
      h("td", {}, row.status === "finished" ? "finished" : h("span", { class: "badge" }, row.status)),
      h("td", {}, row.commit), h("td", {}, row.name));
    if (!expanded) return [line];
    return [line, h("tr", {}, h("td", { class: "details", colspan: columns.length }, details(row.run)))];
  });
  $("runs-csv").onclick = () => saveCsv("runs", [
    columns.map(([, text]) => text), ...rows.map((row) => columns.map(([key]) => row[key])),
  ]);
}
