// Controls, videos, and `render`, which draws everything anew.
function renderVideos(runs) {
  const filmed = runs.filter((run) => run.videos.length), select = $("video-run");
  $("videos-section").hidden = !filmed.length;
  if (!filmed.length) return;
  const before = select.value;
  const name = (run) => `${groupOf(run)} · ${run.env} · seed ${run.seed}`;
  select.replaceChildren(...filmed.map((run) => h("option", { value: run.name }, name(run))));
  if (filmed.some((run) => run.name === before)) select.value = before;
  showVideo(select.value !== before);
}
function showVideo(restart) {
  const run = data.runs.find((x) => x.name === $("video-run").value), slider = $("video-slider");
  slider.max = run.videos.length - 1;
  if (restart) slider.value = slider.max;
  const video = run.videos[slider.value], count = run.videos.length;
  $("video-step").textContent = video.step === null
    ? `after training (evaluation), ${plural(count, "video")}`
    : `${video.step.toLocaleString("en")}, video ${Number(slider.value) + 1} of ${count}`;
  const source = video.source.slice(0, 200) + video.source.length;
  if ($("video").dataset.source === source) return;
  $("video").dataset.source = source;
  const player = h("video", { src: video.source, controls: "", playsinline: "", loop: "", autoplay: "" });
  player.muted = true; // or browsers do not let it start by itself
  const what = video.embedded ? "this video" : `${video.source}: it is a link; keep the page beside the runs`;
  player.addEventListener("error", () => $("video").replaceChildren(h("p", { class: "empty" }, `Cannot play ${what}.`)));
  $("video").replaceChildren(player);
}

function chips(id, names, key, coloured) { // buttons that show and hide
  const set = (hidden) => { state[key] = hidden; render(); };
  $(id).replaceChildren(...names.map((name) => {
    const shown = !state[key].includes(name);
    const toggle = () => set(shown ? [...state[key], name] : state[key].filter((other) => other !== name));
    const alone = () => set(names.filter((other) => other !== name));
    return h("button", {
      class: "chip", type: "button", "data-focus": name, "aria-pressed": shown, onclick: toggle, ondblclick: alone,
      title: "Click: show or hide. Double click: only this one.",
    }, coloured ? swatch(name) : null, name);
  }));
  if (names.some((name) => state[key].includes(name))) {
    $(id).append(h("button", { class: "chip all", type: "button", onclick: () => set([]) }, "show all"));
  }
  $(id).hidden = names.length < 2;
}

let shown = { runs: [], cells: [], over: null }; // what was rendered last
function render() {
  keepFocus(renderAll);
  writeState();
}
function renderAll() {
  const found = searched();
  data.runs.map(groupOf).sort(compare).forEach(place); // a link gives every group the colour that its sender saw
  const visible = (run) => !state.hiddenGroups.includes(groupOf(run)) && !state.hiddenEnvs.includes(run.env);
  const runs = found.runs.filter(visible), cells = cellsOf(runs);
  shown = { runs, cells, over: normalizer(cells) };
  chips("groups", unique(found.runs.map(groupOf)).sort(compare), "hiddenGroups", true);
  chips("envs", unique(found.runs.map((run) => run.env)).sort(compare), "hiddenEnvs", false);
  const total = plural(data.runs.length, "run");
  $("count").textContent = found.complaint || (runs.length === data.runs.length ? total : `${runs.length} of ${total}`);
  $("score-hint").textContent = `Of a run: mean of the last ${plural(data.window, "value")} of ${state.metric}. `
    + "IQM: mean without the lowest and the highest quarter of the runs; its interval is a stratified bootstrap.";
  drawCurves();
  renderScores(cells);
  renderAggregates(cells, shown.over);
  renderSummaryCharts(cells, shown.over);
  renderDifference(cells);
  renderVideos(runs);
  renderRuns(runs);
}
function drawCurves() {
  if (state.facet === "group") unique(shown.runs.map((run) => run.env)).sort(compare).forEach(place);
  renderCharts(shown.runs);
}
function renderCurves() { // after a change that concerns the curves alone
  keepFocus(drawCurves);
  writeState();
}
function renderPart(id) { // the chart with this name, and its neighbours
  if (id.includes(":")) return renderCurves();
  keepFocus(() => renderSummaryCharts(shown.cells, shown.over));
  writeState();
}

const SELECTS = [["metric", "metric"], ["groupby", "groupBy"], ["facet", "facet"], ["axis", "axis"], ["band", "band"],
  ["baseline", "baseline"], ["normalize", "normalize"]];
function showControls() { // as the state has them; what a link asks for and is not there becomes the default
  for (const [id, key] of SELECTS.slice(0, 5)) {
    $(id).value = state[key];
    if ($(id).selectedIndex < 0) $(id).value = state[key] = DEFAULTS[key];
  }
  $("search").value = state.search;
  $("smoothing").value = state.smoothing;
  $("smoothing-value").textContent = state.smoothing;
}
function listenToControls() {
  for (const [id, key] of SELECTS) {
    $(id).addEventListener("change", (event) => {
      state[key] = event.target.value;
      if (key === "groupBy") { state.hiddenGroups = []; places.clear(); }
      if (["facet", "axis"].includes(key)) { state.zoom = {}; state.large = ""; }
      if (["facet", "axis", "band"].includes(key)) renderCurves(); else render();
    });
  }
  let waiting = 0;
  $("search").addEventListener("input", (event) => {
    state.search = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(render, 120); // until the typing ends
  });
  $("smoothing").addEventListener("input", (event) => {
    state.smoothing = Number(event.target.value);
    $("smoothing-value").textContent = state.smoothing;
    renderCurves();
  });
  $("video-run").addEventListener("change", () => showVideo(true));
  $("video-slider").addEventListener("input", () => showVideo(false));
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; render(); } });
  addEventListener("hashchange", () => { readState(); showControls(); render(); });
}
function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "☀" : "☾";
}
function listenToTheme() { // as the system has it, until the button is used
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { if (!chosen) theme(dark.matches ? "dark" : "light"); });
  $("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    theme(chosen);
  });
}
function start() {
  document.title = data.title;
  $("title").textContent = data.title;
  const counts = [["run", "name"], ["group", "group"], ["environment", "env"]];
  $("subtitle").textContent = counts
    .map(([thing, key]) => plural(unique(data.runs.map((run) => run[key])).length, thing)).join(" · ");
  $("footer").textContent = `Made by python -m cleanrl_utils.rlops, ${data.made}. ${data.videos}`;
  $("notes-section").hidden = !data.notes.length;
  $("notes").replaceChildren(...data.notes.map((note) => h("li", {}, note)));
  const option = (value, text = value) => h("option", { value }, text);
  const metrics = unique(data.runs.flatMap((run) => Object.keys(run.scores))).sort(compare);
  $("metric").replaceChildren(...metrics.map((name) => option(name)));
  const commits = unique(data.runs.map((run) => run.commit)).length > 1 ? ["commit"] : [];
  const grouping = [...commits, ...varying].map((name) => option(name));
  $("groupby").replaceChildren(option("", data.grouping), ...grouping, option("run", "single runs"));
  readState();
  showControls();
  listenToControls();
  listenToTheme();
  render();
}
start();
