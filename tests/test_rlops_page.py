"""The page that cleanrl_utils.rlops writes, in a browser without a network."""

# ruff: noqa: F811 (a fixture that is imported is named again by the tests that use it)

import csv
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from test_rlops import RETURN, make_run, trained  # noqa: F401

from cleanrl_utils.rlops import compare, grouping, plot, runs, stats
from cleanrl_utils.rlops.__main__ import Args, main


@pytest.fixture(scope="session")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium, driver = next(filter(None, map(shutil.which, names)), None), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs Chromium and its driver, on Debian: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def page(trained, tmp_path_factory) -> Path:
    """The page of real runs: ppo.py with two seeds and learning rates, dqn.py with one."""
    folder = tmp_path_factory.mktemp("page")
    main(Args([trained / "runs"], output_filename=folder / "compare.png"))
    return folder / "compare.html"


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Path:
    """The page of 120 runs: twelve groups on two Atari games, five seeds each, and different learning rates."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    for index in range(12):
        for env_id, best in (("Breakout-v5", 300), ("Pong-v5", 20)):
            for seed in range(1, 6):
                curve = best * (0.4 + 0.05 * index) * np.linspace(0, 1, 40) + rng.normal(0, best / 20, 40)
                make_run(
                    folder / "runs", curve, f"variant_{index:02}", env_id, seed, learning_rate=10.0 ** -(index % 3)
                )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot, "plot", lambda comparison, image: None)
        main(Args([folder / "runs"], output_filename=folder / "compare.png", metric_last_n_average_window=10))
    return folder / "compare.html"


def visit(browser, page: Path, width: int = 1280, scheme: str = "light", hash: str = ""):
    """What the page looks like to a script: `ask` evaluates an expression, `choose` uses a control."""
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    for log in ("browser", "performance"):
        browser.get_log(log)
    show(browser, width, scheme)
    browser.get("about:blank")  # another hash alone would not load the page anew
    browser.get(page.as_uri() + hash)

    def ask(expression):
        return browser.execute_script(f"return {expression}")

    def choose(control, value, event="change"):
        script = "const x = document.getElementById(arguments[0]); x.value = arguments[1];"
        browser.execute_script(script + "x.dispatchEvent(new Event(arguments[2]))", control, value, event)

    return SimpleNamespace(ask=ask, choose=choose, browser=browser)


def check_console(browser) -> None:
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


@pytest.fixture
def opened(browser, page):
    yield visit(browser, page)
    check_console(browser)


@pytest.fixture
def opened_many(browser, many):
    yield visit(browser, many)
    check_console(browser)


def show(browser, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


PATHS = "[...document.querySelectorAll('#charts path.mean')].map(x => [x.dataset.name, x.getAttribute('d')])"
TITLES = "[...document.querySelectorAll('#charts .axis-title')].map(x => x.textContent)"
NUMBER_OF_RUNS = "document.querySelectorAll('#runs tr.run').length"


def eventually(condition, seconds: float = 10) -> bool:
    """Whether it comes to hold within that time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def roughness(path: str) -> float:
    """How far a drawn line goes up and down."""
    return abs(np.diff([float(point.split(" ")[1]) for point in path[1:].split("L")])).sum()


def test_page_needs_nothing_from_outside(opened):
    asked = [json.loads(line["message"])["message"] for line in opened.browser.get_log("performance")]
    urls = [x["params"]["request"]["url"] for x in asked if x["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(("file:", "data:")) for url in urls)


def test_page_shows_the_scores_of_the_markdown_table(opened, page):
    rows = [line.strip("| ").split(" | ") for line in page.with_suffix(".md").read_text().splitlines()]
    expected = {(row[1], row[0]): (row[3], row[4]) for row in rows if len(row) == 8 and row[0] == "CartPole-v1"}
    cells = "[...document.querySelectorAll('#scores tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))"
    found = {(row[1], row[0]): (row[2].removeprefix("only "), row[3]) for row in opened.ask(cells)}
    assert found == expected and len(found) == 2
    words = opened.ask("document.getElementById('verdicts').innerText")
    assert "no verdict: unequal budgets, 3,000 and 4,096 steps" in words
    assert opened.ask("document.getElementById('few').innerText").startswith("Only 1 seed in places")


def test_page_computes_what_python_computes(opened):
    rng = np.random.default_rng(0)
    for n, m, environments in ((1, 1, 1), (3, 2, 1), (3, 3, 2), (5, 4, 1), (4, 4, 3), (37, 3, 1)):
        xs = [rng.integers(0, 9, n).astype(float) for _ in range(environments)]
        ys = [rng.integers(0, 9, m).astype(float) for _ in range(environments)]
        x, y = (json.dumps([list(z) for z in zs]) for zs in (xs, ys))
        for name, function in compare.AGGREGATES.items():
            assert opened.ask(f"AGGREGATES['{name}']({x})") == pytest.approx(float(function(xs)))
            low, high = stats.interval(function, xs)
            assert opened.ask(f"interval(AGGREGATES['{name}'], {x})") == pytest.approx([low, high], abs=0.3)
        assert opened.ask(f"improvement({x}, {y})") == pytest.approx(float(stats.improvement(xs, ys)))
        assert opened.ask(f"smallestP({x}, {y})") == pytest.approx(stats.smallest_p_value(xs, ys))
        assert opened.ask(f"pValue({x}, {y})") == pytest.approx(stats.p_value(xs, ys), abs=0.01)
        low, high = stats.interval(stats.improvement, xs, ys)
        assert opened.ask(f"interval(improvement, {x}, {y})") == pytest.approx([low, high], abs=0.06)
    assert opened.ask("t975(2)") == stats.t975(2) and opened.ask("t975(99)") == stats.t975(99)


def test_controls_of_the_curves(opened):
    first_sight = opened.ask(PATHS)
    assert [name for name, _ in first_sight] == ["dqn", "ppo"]
    opened.choose("smoothing", "0", "input")
    before = opened.ask(PATHS)
    for (_, rough), (_, smooth) in zip(before, first_sight):
        assert roughness(smooth) < roughness(rough)
    opened.choose("smoothing", "0.9", "input")
    for (_, rough), (_, smooth) in zip(before, opened.ask(PATHS)):
        assert roughness(smooth) < roughness(rough) / 2
    opened.choose("smoothing", "0", "input")
    assert opened.ask(PATHS) == before
    bands = "document.querySelectorAll('#charts path.band').length"
    single = "document.querySelectorAll('#charts path.thin').length"
    assert (opened.ask(bands), opened.ask(single)) == (0, 2)  # ppo has two seeds, so few are drawn one by one
    opened.choose("band", "interval")
    assert (opened.ask(bands), opened.ask(single)) == (1, 0)
    opened.choose("band", "none")
    assert (opened.ask(bands), opened.ask(single)) == (0, 0)
    opened.choose("band", "runs")
    assert opened.ask(single) == 3
    move = "new PointerEvent('pointermove', {clientX: r.left + r.width / 2, clientY: r.top})"
    for name, count in (("dqn", "1 run"), ("ppo", "2 runs")):
        curve = f"document.querySelector('#charts path.mean[data-name={name}]')"
        script = f"const c = {curve}, r = c.getBoundingClientRect(); c.closest('svg').dispatchEvent({move})"
        opened.browser.execute_script(script)
        assert re.search(rf"{name}\n.* {count}", opened.ask("document.getElementById('tip').innerText"))
        assert not opened.ask("document.getElementById('tip').hidden")
    opened.choose("axis", "seconds")
    assert opened.ask(PATHS) != before
    assert opened.ask(TITLES) == ["wall-clock time in seconds", "episodic return"]
    opened.choose("metric", "losses/td_loss")
    assert [name for name, _ in opened.ask(PATHS)] == ["dqn"]
    opened.choose("metric", "eval/episodic_return")
    assert "No curve of this metric here" in opened.ask("document.getElementById('charts').innerText")
    opened.choose("metric", RETURN)
    opened.choose("facet", "group")
    assert opened.ask("[...document.querySelectorAll('#charts h3')].map(x => x.textContent)") == [
        "dqn ",
        "ppo ",
    ]


def test_mean_curve_is_pythons(opened, trained):
    """The same interpolation and mean; the page's curves have up to 200 points, those of the plot 50."""
    found = [run for run in runs.read_paths([trained / "runs"], pytest.fail) if run.algorithm == "ppo"]
    opened.choose("smoothing", "0", "input")
    script = "aggregate(data.runs.filter(r => r.group === 'ppo').map(points), [true, true])"
    ours = np.array(opened.ask(f"{script}.map(p => [p.x, p.y, p.low, p.high])"))
    curves = []
    for run in found:
        steps, _, thinned = run.thin(200)
        there = np.isfinite(thinned[RETURN])
        curves.append(np.interp(ours[:, 0], steps[there], thinned[RETURN][there]))
    mean, spread = np.mean(curves, 0), np.std(curves, 0, ddof=1)
    assert ours[:, 1] == pytest.approx(mean, rel=1e-3)
    assert ours[:, 3] - ours[:, 2] == pytest.approx(2 * stats.t975(1) * spread / 2**0.5, rel=2e-2, abs=0.05)


def test_runs_that_share_no_time_have_a_mean_of_one_point(opened):
    """It was drawn as 160 points on top of each other, which no pointer could hit."""
    one, other = [[0, 1], [1, 2]], [[2, 3], [3, 4]]
    assert opened.ask(f"aggregate([{one}, {other}], [true, true]).map(p => [p.x, p.y, p.n])") == [[1, 2, 1]]
    assert opened.ask(f"aggregate([{one}, {one}], [true, true]).length") == 160


def test_search_filter_group_and_sort(opened):
    def search(words: str, count: int) -> None:
        """The page waits for the end of the typing before it searches."""
        opened.choose("search", words, "input")
        assert eventually(lambda: opened.ask(NUMBER_OF_RUNS) == count)

    assert opened.ask(NUMBER_OF_RUNS) == 3
    search("ppo seed=2", 1)
    assert opened.ask("document.getElementById('count').innerText") == "1 of 3 runs"
    search("learning_rate=0.00025", 2)
    search("learning_rate=0.0002", 0)  # the number, not the beginning of one
    search("learning_rate>0.0005", 1)
    search("learning_rate > 0.0005", 1)
    search("learning_rate <= 0.00025 ppo", 1)
    search("learning_rate!=0.001", 2)
    search("seed>=2", 1)
    search("env=cartpole status=finished algorithm!=dqn", 2)
    search("steps<4000", 1)
    search("anneal_lr=true", 2)
    search("lerning_rate>0", 0)
    assert opened.ask("document.getElementById('count').innerText") == "No run has lerning_rate."
    search("nothing like it", 0)
    assert "No run matches the filters" in opened.ask("document.getElementById('charts').innerText")
    search("", 3)
    opened.choose("groupby", "learning_rate")
    names = ["dqn, learning_rate 0.00025", "ppo, learning_rate 0.00025", "ppo, learning_rate 0.001"]
    assert sorted(name for name, _ in opened.ask(PATHS)) == names
    opened.browser.execute_script("document.querySelector('#groups .chip').click()")
    assert opened.ask(NUMBER_OF_RUNS) == 2
    opened.choose("groupby", "")
    scores = "[...document.querySelectorAll('#runs tr.run')].map(r => Number(r.cells[3].textContent))"
    sort = "document.querySelector('#runs th[data-key=score]').click()"
    opened.browser.execute_script(sort)
    assert opened.ask(scores) == sorted(opened.ask(scores)) and len(set(opened.ask(scores))) == 3
    opened.browser.execute_script(sort)
    assert opened.ask(scores) == sorted(opened.ask(scores), reverse=True)


def test_hyper_parameters_of_a_run_open_with_a_click(opened, trained):
    opened.browser.execute_script("document.querySelectorAll('#runs tr.run')[1].click()")
    text = opened.ask("document.querySelector('#runs .details').innerText")
    args = json.loads(next((trained / "runs").glob("*__ppo__1__*/args.json")).read_text())
    lines = text.splitlines()
    assert lines[lines.index("learning_rate") + 1] == str(args["learning_rate"])
    assert lines[lines.index("num_steps") + 1] == "64"
    assert "python cleanrl/ppo.py --env-id CartPole-v1 --seed 1 --no-cuda" in text
    opened.browser.execute_script("document.querySelectorAll('#runs tr.run')[1].click()")
    assert opened.ask("document.querySelector('#runs .details')") is None


def test_videos_play_and_follow_the_step(opened, trained):
    run = next(run for run in runs.read_paths([trained / "runs"], pytest.fail) if run.videos)
    assert opened.ask("Number(document.getElementById('video-slider').max)") == len(run.videos) - 1
    assert "after training" in opened.ask("document.getElementById('video-step').innerText")
    opened.choose("video-slider", "0", "input")
    assert opened.ask("document.getElementById('video-step').innerText").startswith(f"{run.videos[0][0]}, video 1 of")
    assert eventually(lambda: opened.ask("document.querySelector('#video video').readyState") >= 2)
    assert opened.ask("document.querySelector('#video video').error") is None
    assert opened.ask("document.querySelector('#video video').videoWidth") > 0


OUTSIDE = """() => [...document.querySelectorAll("body *")]
    .filter((x) => !x.closest(".scroll") && !x.closest("#tip") && x.getBoundingClientRect().right > innerWidth + 1)
    .map((x) => x.outerHTML.slice(0, 80))"""
CONTRAST = """() => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(v / 255));
    const luminance = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
    const behind = (x) => {
        const colour = getComputedStyle(x).backgroundColor;
        return colour === "rgba(0, 0, 0, 0)" ? behind(x.parentElement) : colour;
    };
    const names = ["h1", ".hint", "#count", "td", "th", ".badge", ".warning", ".few", ".chip", "label", "#footer"];
    return names.filter((name) => document.querySelector(name)).map((name) => {
        const x = document.querySelector(name);
        const pair = [getComputedStyle(x).color, behind(x)].map((colour) => luminance(channels(colour)) + 0.05);
        return [name, Math.max(...pair) / Math.min(...pair)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_and_is_legible(browser, page, width, scheme):
    opened = visit(browser, page, width, scheme)
    assert opened.ask("document.documentElement.dataset.theme") == scheme
    assert opened.ask("document.documentElement.scrollWidth") <= width
    assert opened.ask(f"({OUTSIDE})()") == []
    found = opened.ask(f"({CONTRAST})()")
    assert len(found) == 11
    for selector, ratio in found:
        assert ratio > 4.5, (selector, ratio)  # WCAG AA
    opened.browser.execute_script("document.getElementById('theme').click()")
    assert opened.ask("document.documentElement.dataset.theme") == ("light" if scheme == "dark" else "dark")
    check_console(browser)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_120_runs_fit_and_are_drawn_in_time(browser, many, width, scheme):
    start = time.monotonic()
    opened = visit(browser, many, width, scheme)
    assert opened.ask(NUMBER_OF_RUNS) == 120 and time.monotonic() - start < 30
    assert opened.ask("document.documentElement.scrollWidth") <= width
    assert opened.ask(f"({OUTSIDE})()") == []
    assert opened.ask(f"({OVERLAPS})()") == []
    for selector, ratio in opened.ask(f"({CONTRAST})()"):
        assert ratio > 4.5, (selector, ratio)
    check_console(browser)


# Words of a chart that lie over each other, or outside of it.
OVERLAPS = """() => [...document.querySelectorAll("main .card svg")].flatMap((svg) => {
    const area = svg.getBoundingClientRect();
    const words = [...svg.querySelectorAll("text")].map((x) => [x.textContent, x.getBoundingClientRect()]);
    const outside = words.filter(([, r]) =>
        r.left < area.left - 1 || r.right > area.right + 1 || r.bottom > area.bottom + 1);
    const over = words.filter(([, a], i) => words.slice(i + 1).some(([, b]) =>
        a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3));
    return [...outside, ...over].map(([text]) => text);
})"""


def test_axes_have_titles_and_one_unit(opened_many):
    assert opened_many.ask(TITLES) == ["environment steps", "episodic return"] * 2
    labels = opened_many.ask("['0', '500000', '1500000'].map(x => tickLabel(Number(x), unitOf(1500000)))")
    assert labels == ["0", "0.5M", "1.5M"]


def test_more_than_eight_groups_are_told_apart_and_named(opened_many):
    script = "[...document.querySelector('#charts svg').querySelectorAll('path.mean')]"
    looks = opened_many.ask(f"{script}.map(x => getComputedStyle(x).stroke + x.getAttribute('stroke-dasharray'))")
    assert len(set(looks)) == 12
    assert opened_many.ask("8 * new Set(DASHES).size") == 40  # more than there are files
    legend = "[...document.querySelector('#charts svg').querySelectorAll('.legend text')].map(x => x.textContent)"
    assert opened_many.ask(legend) == [f"variant_{index:02}" for index in range(12)]
    opened_many.choose("groupby", "run")  # 60 curves in a chart: it names some, and a picture to keep names all
    assert opened_many.ask(legend)[-1] == "and 48 more"


def test_summary_over_environments_is_pythons(opened_many, many):
    lines = many.with_suffix(".md").read_text().splitlines()
    start = lines.index("| algorithm | runs | IQM | median | mean | optimality gap |")
    rows = [line.strip("| ").split(" | ") for line in lines[start + 2 : start + 14]]
    expected = [[float(cell.split(" ")[0]) for cell in row[2:]] for row in rows]
    values = "[...document.querySelectorAll('#aggregates tbody tr')].map(r => [...r.querySelectorAll('strong')]"
    assert opened_many.ask(f"{values}.map(x => Number(x.textContent)))") == expected


def test_scale_of_the_summary_can_be_chosen(opened_many):
    assert opened_many.ask("[...document.getElementById('normalize').options].map(x => x.value)") == [
        "runs",
        "human",
        "published",
    ]
    hint = "document.getElementById('summary-hint').textContent"
    assert "0 is the lowest and 1 the highest run compared here" in opened_many.ask(hint)
    first = "Number(document.querySelector('#aggregates strong').textContent)"
    before = opened_many.ask(first)
    opened_many.choose("normalize", "human")
    assert "0 is a random policy and 1 a human" in opened_many.ask(hint) and opened_many.ask(first) != before
    opened_many.choose("metric", "charts/SPS")  # of which nobody has published a human's
    assert opened_many.ask("document.getElementById('normalize').options.length") == 1


@pytest.mark.parametrize("width", [1280, 390])
def test_tooltip_names_the_runs_under_the_pointer_and_fits(browser, many, width):
    opened = visit(browser, many, width)
    script = """const svg = document.querySelector("#charts svg"), area = svg.getBoundingClientRect();
        const place = {clientX: area.left + 0.7 * area.width, clientY: area.top + 50};
        svg.dispatchEvent(new PointerEvent("pointermove", place))"""
    browser.execute_script(script)
    words = opened.ask("document.getElementById('tip').innerText")
    assert (
        re.match(r"step \d+\n", words)
        and words.count("5 runs") == 12
        and words.index("variant_11") < words.index("variant_00")
    )
    inside = """[...document.querySelectorAll("#tip span")].every((x) => {
        const tip = document.getElementById("tip").getBoundingClientRect(), word = x.getBoundingClientRect();
        return word.left >= tip.left && word.right <= tip.right && tip.right <= innerWidth && tip.left >= 0;
    })"""
    assert opened.ask(inside)
    check_console(browser)


def test_sample_efficiency_is_pythons(opened_many, many):
    found = runs.read_paths([many.parent / "runs"], pytest.fail)
    for run in found:
        run.group = run.algorithm
    python = compare.Comparison(found, RETURN, 10).efficiency
    lines = "efficiencyOf(shown.cells, shown.over).lines.map(s => [s.name, s.line.map(p => [p.x, p.y, p.low, p.high])])"
    for name, line in opened_many.ask(lines):
        x, y, low, high = np.array(line).T
        assert x[-1] == python.x[-1] == 400
        iqm, lower, upper = (np.interp(x[5:], python.x, values) for values in python.lines[name])
        assert y[5:] == pytest.approx(iqm, abs=0.05)
        assert low[5:] == pytest.approx(lower, abs=0.1) and high[5:] == pytest.approx(upper, abs=0.1)


def drag(browser, start: float, end: float, selector: str = "#charts svg") -> None:
    """With the mouse over a part of the chart, both ends as a share of its width."""
    actions = pytest.importorskip("selenium.webdriver.common.action_chains").ActionChains(browser, duration=50)
    svg = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    width, height = svg.size["width"], svg.size["height"]
    actions.move_to_element_with_offset(svg, (start - 0.5) * width, 60 - height / 2).click_and_hold()
    actions.move_by_offset((end - start) * width, 5).release().perform()


def test_dragging_zooms_and_a_double_click_shows_everything_again(opened_many):
    before = opened_many.ask(PATHS)
    drag(opened_many.browser, 0.3, 0.6)
    (zoom,) = opened_many.ask("Object.values(state.zoom)")
    assert 50 < zoom[0] < zoom[1] < 300
    zoomed = opened_many.ask(PATHS)
    assert zoomed[0] != before[0] and zoomed[12:] == before[12:]  # one chart of two
    marks = "[...document.querySelector('#charts svg').querySelectorAll('text')].map(x => x.textContent)"
    assert "0" not in opened_many.ask(marks)[4:10] and "reset zoom" in opened_many.ask("document.body.innerText")
    opened_many.browser.execute_script(
        "document.querySelector('#charts svg').dispatchEvent(new MouseEvent('dblclick'))"
    )
    assert opened_many.ask(PATHS) == before


def test_a_chart_can_be_drawn_larger(opened_many):
    width = "document.querySelector('#charts svg').getBoundingClientRect().width"
    before = opened_many.ask(width)
    opened_many.browser.execute_script("document.querySelector('#charts .tool').click()")
    assert opened_many.ask(width) > 1.8 * before
    opened_many.browser.execute_script("document.querySelector('#charts .tool').click()")
    assert opened_many.ask(width) == before


@pytest.mark.parametrize("selector", ["#groups .chip", "#runs th[data-key=score]", "#charts .tool", "#runs tr.run"])
def test_keyboard_stays_where_it_was(opened_many, selector):
    """What is pressed is drawn anew, and must not lose the focus."""
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    opened_many.browser.execute_script("(window.old = document.querySelector(arguments[0])).focus()", selector)
    opened_many.ask("document.activeElement").send_keys(keys.ENTER)
    script = "return [old.isConnected, document.activeElement === document.querySelector(arguments[0])]"
    assert opened_many.browser.execute_script(script, selector) == [False, True]


def test_address_keeps_what_is_seen(browser, many):
    opened = visit(browser, many)
    assert "#" not in opened.ask("location.href")
    opened.choose("band", "range")
    opened.choose("smoothing", "0.3", "input")
    opened.choose("normalize", "human")
    opened.choose("search", "learning_rate>0.05", "input")
    assert eventually(lambda: opened.ask(NUMBER_OF_RUNS) == 80)
    opened.browser.execute_script("document.querySelector('#groups .chip').click()")
    opened.browser.execute_script("document.querySelector('#runs th[data-key=score]').click()")
    drag(browser, 0.3, 0.6)
    address = opened.ask("location.hash")
    charts = "$('charts').innerHTML.replace(/clip\\d+/g, '')"  # the numbers of clipping paths go on
    seen = f"[state, {charts}, $('runs').innerText, $('search').value]"
    before = opened.ask(seen)
    again = visit(browser, many, hash=address)
    assert again.ask(seen) == before
    assert again.ask("[$('band').value, $('smoothing-value').textContent, $('normalize').value]") == [
        "range",
        "0.3",
        "human",
    ]
    damaged = visit(browser, many, hash='#zoom={"a":[2]}&metric=nothing&smoothing=x&groupBy=y&sortRuns=5&large=&band=z')
    assert damaged.ask(NUMBER_OF_RUNS) == 120 and damaged.ask("JSON.stringify(state) === JSON.stringify(DEFAULTS)")
    check_console(browser)


def test_curves_and_tables_can_be_saved(opened_many, tmp_path):
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened_many.browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    opened_many.choose("groupby", "run")
    for button in ("[aria-label='Save as a picture: Breakout-v5']", "[aria-label='Save the numbers: Breakout-v5']"):
        opened_many.browser.execute_script(f'document.querySelector("{button}").click()')
    opened_many.browser.execute_script("$('scores-csv').click(); $('runs-csv').click()")
    names = {"Breakout-v5.svg", "Breakout-v5.csv", "scores.csv", "runs.csv"}
    assert eventually(lambda: {path.name for path in tmp_path.iterdir()} == names)
    picture = ElementTree.fromstring((tmp_path / "Breakout-v5.svg").read_text())
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len([word for word in words if word.startswith("Breakout-v5__variant_")]) == 60  # every curve is named
    assert "environment steps" in words and "var(" not in (tmp_path / "Breakout-v5.svg").read_text()
    rows = list(csv.DictReader((tmp_path / "Breakout-v5.csv").open()))
    assert rows[0].keys() == {"curve", "steps", "episodic return", "low", "high", "runs"}
    assert len({row["curve"] for row in rows}) == 60 and float(rows[0]["steps"]) == 10
    assert len(list(csv.DictReader((tmp_path / "scores.csv").open()))) == 120
    assert {row["learning_rate"] for row in csv.DictReader((tmp_path / "runs.csv").open())} == {"1", "0.1", "0.01"}


def test_unequal_budgets_get_no_verdict_in_the_page_either(opened_many):
    cell = "{env: 'A', scores: [1, 2, 3, 4], runs: [{budget: %d}]}"
    words = opened_many.ask(f"judge([{cell % 1000}], [{cell % 1040}])[1]")
    assert words.startswith("no difference shown")
    words = opened_many.ask(f"judge([{cell % 1000}], [{cell % 2000}])[1]")
    assert words == "no verdict: unequal budgets, 1,000 and 2,000 steps"


def test_one_seed_gets_no_interval_over_all_environments(opened):
    strata = "[[1], [1, 2]]"
    assert opened.ask(f"[several([[1, 2], [3, 4]]), several({strata}), several([[1, 2]], [[1]])]") == [
        True,
        False,
        False,
    ]
    cell = "([group, scores]) => ({ group, env, scores, runs: [] })"
    cells = f"['A', 'B'].flatMap(env => [['x', [1, 2]], ['y', [1]]].map({cell}))"
    opened.browser.execute_script(f"const cells = {cells}; renderAggregates(cells, normalizer(cells))")
    rows = opened.ask("[...document.querySelectorAll('#aggregates tbody tr')].map(row => row.cells[2].innerText)")
    assert rows[0].startswith("0.500 [") and rows[1] == "0.000 no interval"


def test_names_are_in_the_order_of_their_numbers(opened):
    names = ["ppo n=128", "ppo lr=1e-05", "ppo n=64", "ppo", "ppo lr=0.001", "ppo lr=0.0003", "dqn"]
    assert opened.ask(f"{json.dumps(names)}.sort(compare)") == sorted(names, key=grouping.natural)


def test_one_run_is_a_run_and_two_are_runs(opened):
    assert opened.ask("document.getElementById('subtitle').innerText") == "3 runs · 2 groups · 1 environment"
    assert opened.ask("[plural(1, 'run'), plural(2, 'run')]") == ["1 run", "2 runs"]
