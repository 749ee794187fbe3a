// Statistics: the same definitions as cleanrl_utils/rlops/stats.py, and the tests compare the two.
// `strata` is a list of lists: the scores of one group, a list for each environment, a score for each seed.
const REPS = 2000;
const ENUMERATE = 20000; // permutations up to which all are tried

function random(seed) { // mulberry32: the same page shows the same intervals
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
function deviation(list, freedom = 0) { // of the seeds at hand (0), or the estimate for all seeds (1)
  const centre = mean(list);
  return Math.sqrt(list.reduce((sum, x) => sum + (x - centre) ** 2, 0) / Math.max(list.length - freedom, 1));
}
const t975 = (freedom) => (freedom <= data.t975.length ? data.t975[freedom - 1] : 1.96 + 2.45 / freedom);
function iqm(list) {
  const cut = Math.floor(list.length / 4);
  return mean(Float64Array.from(list).sort().slice(cut, list.length - cut));
}
function median(list) {
  const sorted = Float64Array.from(list).sort(), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
const AGGREGATES = { // of normalized scores
  "IQM": (strata) => iqm(strata.flat()),
  "median": (strata) => median(strata.map(mean)),
  "mean": (strata) => mean(strata.map(mean)),
  "optimality gap": (strata) => 1 - mean(strata.flat().map((x) => Math.min(x, 1))),
};

function percentiles(values) { // 2.5% and 97.5%
  const sorted = Float64Array.from(values).sort();
  return [0.025, 0.975].map((p) => {
    const place = p * (sorted.length - 1), below = Math.floor(place);
    return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
  });
}
const resample = (list, next) => list.map(() => list[Math.floor(next() * list.length)]);
function interval(statistic, ...strata) { // 95%, by stratified bootstrap
  const next = random(1), values = [];
  for (let rep = 0; rep < REPS; rep++) {
    values.push(statistic(...strata.map((group) => group.map((list) => resample(list, next)))));
  }
  return percentiles(values);
}

const several = (...strata) => strata.flat().every((list) => list.length > 1); // or an interval has no width

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
      for (let i = start; i <= scores.length - n + chosen.length; i++) {
        chosen.push(i);
        walk(i + 1);
        chosen.pop();
      }
    };
    walk(0);
    return results;
  }
  for (let rep = 0; rep < REPS; rep++) {
    const order = scores.map((_, i) => i);
    for (let i = 0; i < n; i++) {
      const j = i + Math.floor(next() * (order.length - i));
      [order[i], order[j]] = [order[j], order[i]];
    }
    add(order.slice(0, n));
  }
  return results;
}
function pValue(xs, ys) { // two-sided permutation test of `improvement`, labels shuffled within environments
  const next = random(2), nulls = xs.map((x, i) => shuffled(x, ys[i], next)), size = nulls.length;
  let sums = [0];
  if (nulls.reduce((product, list) => product * list.length, 1) <= 5 * ENUMERATE) {
    for (const list of nulls) sums = sums.flatMap((sum) => list.map((x) => sum + x));
  } else {
    const draw = () => nulls.reduce((sum, list) => sum + list[Math.floor(next() * list.length)], 0);
    sums = Array.from({ length: 5 * ENUMERATE }, draw);
  }
  const seen = Math.abs(improvement(xs, ys) - 0.5) - 1e-12;
  return mean(sums.map((sum) => (Math.abs(sum / size - 0.5) >= seen ? 1 : 0)));
}
function smallestP(xs, ys) { // what the test gives at best, when every run of x beats every run of y
  return 2 / xs.reduce((product, x, i) => product * choose(x.length + ys[i].length, x.length), 1);
}
function verdict(xs, ys) { // its kind, and what the runs say in plain words
  const least = smallestP(xs, ys);
  if (least > 0.05) {
    return ["few", `too few seeds to call a difference: p cannot get below ${Number(least.toPrecision(2))}`];
  }
  const p = pValue(xs, ys);
  if (p > 0.05) return ["same", `no difference shown (p = ${Number(p.toPrecision(2))})`];
  const kind = improvement(xs, ys) > 0.5 ? "better" : "worse";
  return [kind, `${kind} (p ${p < 0.001 ? "< 0.001" : "= " + Number(p.toPrecision(2))})`];
}
function unequalBudgets(runs) { // in words, if some runs had more steps to learn than others
  const budgets = runs.map((run) => run.budget), [low, high] = [smallest(budgets), largest(budgets)];
  return high > EQUAL * low ? `${low.toLocaleString("en")} and ${high.toLocaleString("en")} steps` : "";
}
