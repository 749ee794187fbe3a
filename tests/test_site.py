"""The site: what is made for it when it is built, that it needs no network, and how it behaves in a browser."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import ROOT

pytest.importorskip("mkdocs", reason='needs the extra docs: pip install -e ".[docs]"')
pytest.importorskip("latex2mathml", reason='needs the extra docs: pip install -e ".[docs]"')
sys.path.insert(0, str(ROOT / "docs" / "hooks"))

import family_tree  # noqa: E402
import learning_curves  # noqa: E402
import site_build  # noqa: E402
import source_pages  # noqa: E402
from code_links import LinkError, find_line, find_links  # noqa: E402
from equations import EquationError, replace_equations, to_mathml  # noqa: E402
from mkdocs.config import load_config  # noqa: E402

from cleanrl_utils.lineage_diff import count_changes  # noqa: E402
from cleanrl_utils.lineage_source import Source, load_family  # noqa: E402
from cleanrl_utils.rlops.runs import read_results  # noqa: E402

PAGES = [ROOT / "README.md", *(ROOT / path for path in site_build.INCLUDED), *ROOT.glob("docs/**/*.md")]
FAMILY = load_family(ROOT)
RESULT_FILES = [path for path in (ROOT / "benchmark" / "results").glob("*.csv") if learning_curves.read(path)]
MATHML = "{http://www.w3.org/1998/Math/MathML}"

# Links to code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_code_lead_to_a_line(page):
    for link in find_links(page.read_text()):
        path = (page.parent / link["path"]).resolve()
        if path.suffix == ".py":
            find_line(path, link["text"], link["anchor"])  # raises if there is none


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "cleanrl" / "x.py"
    path.parent.mkdir()
    path.write_text(
        'x = 1\n\n\ndef update(a):\n    b = a[0]\n    x = 1\n\n\nif __name__ == "__main__":\n    x = 1 | 2\n'
    )
    return path


def test_a_link_by_text_leads_to_the_first_line_that_has_it(code):
    assert find_line(code, "`x = 1`", None) == 1
    assert find_line(code, "`b = a[0]`", None) == 5
    code.write_text("# a line above\n" + code.read_text())
    assert find_line(code, "`b = a[0]`", None) == 6


def test_a_link_by_text_and_name_leads_to_the_first_line_below_the_definition(code):
    assert find_line(code, "`x = 1`", "update") == 6
    assert find_line(code, "`x = 1`", "main") == 10
    assert find_line(code, "the update", "update") == 4  # no code: the definition itself


def test_a_link_by_the_name_of_the_file_leads_to_the_file(code):
    for text in ("`x.py`", "`cleanrl/x.py`", "`cleanrl/`", "the file"):
        assert find_line(code, text, None) is None


def test_line_numbers_in_links_are_ignored(code):
    assert find_line(code, "`b = a[0]`", "L999") == 5


def test_text_that_a_page_breaks_or_escapes_is_found(code):
    assert find_line(code, "`b =\n  a[0]`", None) == 5
    assert find_line(code, r"`1 \| 2`", None) == 10


@pytest.mark.parametrize(
    ("text", "anchor", "message"),
    [
        ("`y = 1`", None, "no line of x.py contains `y = 1`"),
        ("`b = a`", "main", "no line of x.py below the definition of `main` contains `b = a`"),
        ("`x = 1`", "gone", "x.py defines no `gone`"),
    ],
)
def test_a_link_to_code_that_is_gone_is_an_error(code, text, anchor, message):
    with pytest.raises(LinkError, match=re.escape(message)):
        find_line(code, text, anchor)


def test_links_inside_of_code_and_images_are_no_links():
    text = "[`a[b]`](x.py) `[no](no.py)` ![no](no.png) [no](https://example.org)\n```\n[no](no.py)\n```\n[y](y.py#f)"
    assert [(link["text"], link["path"], link["anchor"]) for link in find_links(text)] == [
        ("`a[b]`", "x.py", None),
        ("y", "y.py", "f"),
    ]


def rewritten(link: str, src_uri: str = "rl-algorithms/ppo.md") -> str:
    config = load_config(str(ROOT / "mkdocs.yml"))
    site_build.on_config(config)
    return site_build.TOKEN.sub(lambda token: site_build.rewrite(token, src_uri, config), link)


def test_links_out_of_docs_lead_to_pages_of_the_site():
    line = find_line(ROOT / "cleanrl" / "ppo.py", "`def update(`", None)
    assert rewritten("[`def update(`](../../cleanrl/ppo.py)") == (
        f'<a href="../source/cleanrl/ppo.py.html#L{line}">`def update(`</a>'
    )
    assert rewritten("[`ppo.sh`](../../benchmark/ppo.sh)") == "[`ppo.sh`](../source/benchmark/ppo.sh.md)"
    assert rewritten("[how](../../CONTRIBUTING.md#tests)") == "[how](../contribute/contributing.md#tests)"
    assert (
        rewritten("[PPO](docs/rl-algorithms/ppo.md)", "contribute/contributing.md") == "[PPO](../rl-algorithms/ppo.md)"
    )
    assert rewritten("`[x](../../cleanrl/ppo.py)`") == "`[x](../../cleanrl/ppo.py)`"


def test_pages_of_files_link_to_the_repository_where_it_is_known(monkeypatch):
    config = load_config(str(ROOT / "mkdocs.yml"))
    for address, links in (("https://example.org/us/cleanrl", 1), ("", 0)):
        monkeypatch.setenv("REPOSITORY_URL", address)
        page = site_build.describe_source("cleanrl/ppo.py", site_build.on_config(config))
        assert page.count("(https://example.org/us/cleanrl/blob/HEAD/cleanrl/ppo.py)") == links


@pytest.mark.parametrize("link", ["[`no such code`](../../cleanrl/ppo.py)", "[x](../../cleanrl/no_such_file.py)"])
def test_a_broken_link_is_a_warning_and_so_an_error_of_the_strict_build(link, caplog):
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        rewritten(link)
    assert [(record.name, record.levelname) for record in caplog.records] == [("mkdocs.hooks.site", "WARNING")]


# Equations


def test_equations_become_mathml():
    html = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[\\frac{1}{2}\\]</div>'
    inline, block = (ET.fromstring(x) for x in re.findall("<math.*?</math>", replace_equations(html)))
    assert [x.text for x in inline.iter() if x.text] == ["a", "<", "b"]
    assert block.get("display") == "block" and [
        x.text for x in block.find(f".//{MATHML}mfrac").iter(f"{MATHML}mn")
    ] == ["1", "2"]


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"\mathbb{1}", "𝟙"),
        (r"\mathbf{x}", "𝐱"),
        (r"\boldsymbol{\theta}", "𝜽"),
        (r"a \sim p", "a∼p"),
        (r"\arg\max_a Q", "arg\u2009maxaQ"),
        (r"\operatorname*{arg\,max}_a Q", "arg\u2009maxaQ"),
        (r"\lVert x \rVert", "‖x‖"),
    ],
)
def test_what_latex2mathml_does_not_know_is_shown(latex, text):
    assert "".join(ET.fromstring(to_mathml(latex)).itertext()) == text


def test_aligned_equations_have_rows_and_columns():
    table = ET.fromstring(to_mathml(r"\begin{aligned} a &= b \\ c &= d \end{aligned}")).find(f".//{MATHML}mtable")
    assert [len(row) for row in table] == [2, 2]


def test_what_is_maximized_over_stands_below_in_a_display():
    assert ET.fromstring(to_mathml(r"\max_a Q", "block")).find(f".//{MATHML}munder") is not None
    assert ET.fromstring(to_mathml(r"\max_a Q")).find(f".//{MATHML}munder") is None


@pytest.mark.parametrize("latex", [r"\nosuchcommand x", r"\frac{1}{2", "a & b"])
def test_an_equation_that_cannot_be_shown_is_an_error(latex):
    with pytest.raises(EquationError):
        to_mathml(latex)


# Learning curves


def test_curves_show_every_environment_and_algorithm_by_step_and_by_time():
    paths = [ROOT / "benchmark" / "results" / name for name in ("dqn.csv", "ppo.csv")]
    runs = [run for path in paths for run in learning_curves.read(path)]
    for by, unit in (("step", "steps"), ("time", "seconds")):
        html = learning_curves.figure(paths, by)
        assert len(ET.fromstring(html).findall(".//svg")) == len({run.env_id for run in runs}) == 3
        assert set(re.findall(r'class="title"[^>]*>([^<]+)<', html)) == {run.env_id for run in runs}
        assert re.findall(r"</i>(\w+)</span>", html) == ["dqn", "ppo"]
        assert html.count('class="run"') == len(runs) and html.count('class="mean"') == 6
        assert f">{unit}</text>" in html


def test_curves_stay_inside_of_their_panels():
    for path in (ROOT / "benchmark" / "results").glob("*.csv"):
        for by in ("step", "time"):
            points = re.findall(
                r"([\d.-]+),([\d.-]+)", " ".join(re.findall('points="(.*?)"', learning_curves.figure([path], by)))
            )
            xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
            if points:
                assert (
                    min(xs) >= learning_curves.LEFT and max(xs) <= learning_curves.WIDTH - learning_curves.RIGHT + 0.1
                )
                assert (
                    min(ys) >= learning_curves.TOP - 0.1
                    and max(ys) <= learning_curves.HEIGHT - learning_curves.BOTTOM + 0.1
                )


def test_mean_curve_ends_with_the_shortest_run_and_interpolates():
    assert learning_curves.mean([[(0, 0.0), (2, 2.0), (4, 4.0)], [(1, 1.0), (3, 3.0)]]) == [(0, 0.5), (2, 2.0)]


def test_ticks_are_round_numbers_within_the_range():
    assert learning_curves.ticks(0, 500_000) == [0, 200_000, 400_000]
    assert learning_curves.ticks(-200, -136) == [-200, -180, -160, -140]
    assert learning_curves.short(2_500_000) == "2.5M" and learning_curves.short(-10_000) == "−10k"


def test_curves_replace_pictures_and_follow_tables_without_one():
    table = "<!-- results: dqn.csv with published -->\n| a |\n<!-- end of results -->"
    picture = "![Learning curves](../assets/dqn.png)"
    for text in (f"{table}\n\n{picture}\n", f"{table}\n"):
        made = site_build.add_curves(text, "rl-algorithms/dqn.md")
        assert made.count("<!-- site: curves step dqn.csv -->") == made.count("<!-- site: curves time dqn.csv -->") == 1
        assert "dqn.png" not in made and table in made
    other = "![The page](../assets/rlops.png)\n"
    assert site_build.add_curves(other, "get-started/rlops.md") == other


def test_curves_of_results_that_are_not_there_are_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        site_build.add_curves("<!-- curves: no_such_file.csv -->", "index.md")
    assert "no_such_file.csv" in caplog.text


# The family


def boxes() -> dict[str, tuple[float, float, float, float]]:
    svg = ET.fromstring(family_tree.tree(FAMILY, lambda name: f"{name}.html")).find("svg")
    found = {}
    for link in svg.iter("a"):
        rect = link.find("rect")
        found[link.get("href").removesuffix(".html")] = tuple(float(rect.get(x)) for x in ("x", "y", "width", "height"))
    return found


def test_family_tree_shows_every_file_once_right_of_its_parent():
    found = boxes()
    assert found.keys() == FAMILY.keys()
    for name, (x, *_) in found.items():
        parent = found.get(FAMILY[name].parent)
        assert parent is None or parent[0] + parent[2] < x


def test_boxes_of_the_family_tree_do_not_touch():
    found = sorted(boxes().values())
    for i, (x, y, width, height) in enumerate(found):
        for other_x, other_y, _, other_height in found[i + 1 :]:
            assert other_x > x + width or other_y > y + height or y > other_y + other_height


def test_table_of_variants_has_a_row_for_each_descendant():
    rows = family_tree.variants(FAMILY, "c51.py", lambda name: f"{name}.md").splitlines()[4:-2]
    assert [re.search(r"\((\w+\.py)\.md\)", row)[1] for row in rows] == ["c51.py", "c51_atari.py", "rainbow_atari.py"]
    added, removed = count_changes(FAMILY["dqn.py"], FAMILY["c51.py"])
    assert f"| +{added} −{removed} |" in rows[0] and "learns the distribution" in rows[0]


def test_difference_shows_what_changed_and_where():
    old = Source(Path("old.py"), "a = 1\nb = 2\nc = 3\n")
    new = Source(Path("new.py"), "a = 1\nb = 20\nc = 3\n")
    html, lines = source_pages.difference(old, new, "old.html", "new.html")
    kinds = re.findall(r'class="line (\w+)"', html)
    assert kinds == ["same", "removed", "added", "same"] and lines == 4
    removed, added = re.findall(r'class="line (?:removed|added)">(.*?)\n', html)
    assert "old.html#L2" in removed and "new.html" not in removed and "new.html#L2" in added
    assert "".join(ET.fromstring(f"<p>{added}</p>").itertext()) == "b = 20"


def test_listing_has_all_lines_and_marks_those_that_the_parent_does_not_have():
    text = '"""A docstring\nof two lines < 3."""\n\n\nx = 1\n'
    html = source_pages.listing("x.py", text, Source(Path("y.py"), text.replace("x = 1", "y = 1")))
    assert "".join(ET.fromstring(html).itertext()) == text
    assert re.findall(r'class="line added" id="L(\d+)"', html) == ["5"]


# Pages


def test_installation_page_names_every_extra():
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    text = (ROOT / "docs" / "get-started" / "installation.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == extras.keys()


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_site_is_whole(site):
    """Nothing is loaded from another host, and every link inside of it leads to a page and a place on it."""
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 90
    anchors = {path: set(re.findall(r' id="?([^"\s>]+)', text)) for path, text in pages.items()}
    for path, text in pages.items():
        loaded = re.findall(r'<(?:script|img|iframe|source|video)[^>]* src="([^"]+)"|<link[^>]* href="([^"]+)"', text)
        outside = [address for address in map("".join, loaded) if re.match(r"(\w+:)?//", address)]
        assert not outside, f"{path.relative_to(site)} loads {outside}"
        for address in set(re.findall(r' (?:href|src)="([^"]+)"', text)):
            if re.match(r"\w+:", address):
                continue
            target, _, anchor = unquote(address).partition("#")
            place = Path(os.path.normpath(path.parent / target)) if target else path
            assert place.exists(), f"{path.relative_to(site)}: {address}"
            known = place not in pages or not anchor or anchor.startswith("__") or anchor in anchors[place]
            assert known, f"{path.relative_to(site)}: {address}"
        assert not re.search(r"<!-- (site|variants|curves|family tree)|class=\"arithmatex\"", text), path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text()), path


def test_every_page_of_an_algorithm_has_its_source_family_and_difference(site):
    for name, source in FAMILY.items():
        page = (site / "rl-algorithms" / f"{source.path.stem}.html").read_text()
        assert f'href="../source/cleanrl/{name}.html"' in page
        assert ('id="difference"' in page) == (source.parent in FAMILY) == ('class="line added"' in page)
        listing = (site / "source" / "cleanrl" / f"{name}.html").read_text()
        assert f'id="L{len(source.lines)}"' in listing


def test_page_of_a_file_that_has_results_shows_their_curves_by_step_and_by_time(site):
    for source in FAMILY.values():
        results = ROOT / "benchmark" / "results" / f"{source.path.stem}.csv"
        page = (site / "rl-algorithms" / f"{source.path.stem}.html").read_text()
        assert not results.exists() or page.count('<figure class="curves">') >= 2, source.path.stem


def test_page_of_curves_has_the_scores_and_curves_of_every_result_file(site):
    page = (site / "curves.html").read_text()
    files = [path for path in (ROOT / "benchmark" / "results").glob("*.csv") if learning_curves.read(path)]
    assert len(files) > 10 and page.count('<figure class="curves">') == 2 * len(files)
    for path in files:
        assert f'<h2 id="{path.stem}">' in page
    runs = read_results(ROOT / "benchmark" / "results" / "td3_continuous_action.csv")
    scores = [run.last_100 for run in runs if run.env_id == "HalfCheetah-v4"]
    assert f"<td>{sum(scores) / len(scores):.1f}" in page


# In the browser


@pytest.fixture(scope="module")
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
    browser.implicitly_wait(10)
    yield browser
    browser.quit()


def look(browser, width: int, scheme: str) -> None:
    """As on a screen of this width, set to light or dark."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def test_search_finds_pages_that_were_opened_from_disk(site, browser):
    look(browser, 1280, "light")
    browser.get((site / "index.html").as_uri())
    browser.find_element("css selector", ".md-search__input").click()
    browser.find_element("css selector", ".md-search__input").send_keys("checkpoint resume")
    first = browser.find_element("css selector", ".md-search-result__item a")
    assert "Stop and resume a run" in first.text
    first.click()
    assert "get-started/resume.html" in browser.current_url
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [x["params"]["request"]["url"] for x in events if x["method"] == "Network.requestWillBeSent"]
    assert any(address.endswith("search_index.js") for address in requests)
    assert all(address.startswith(("file:", "data:")) for address in requests)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_and_are_legible(site, browser, width, scheme):
    look(browser, width, scheme)
    pages = (
        "index.html",
        "algorithms.html",
        "family-tree.html",
        "results.html",
        "speed.html",
        "rl-algorithms/ppo_atari.html",
        "contribute/contributing.html",
    )
    for page in pages:
        browser.get((site / page).as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page
    browser.get((site / "index.html").as_uri())
    text, line = (
        browser.execute_script(f"return getComputedStyle(document.querySelector('{element}')).{colour}")
        for element, colour in ((".curves text.title", "fill"), (".curves .mean", "stroke"))
    )
    for colour in (text, line):
        brightness = sum(float(x) for x in re.findall(r"[\d.]+", colour)[:3]) / 3
        assert brightness < 128 if scheme == "light" else brightness > 128, colour


def test_a_link_to_code_shows_the_line_and_highlights_it(site, browser):
    look(browser, 1280, "light")
    browser.get((site / "rl-algorithms" / "td3_continuous_action.html").as_uri())
    browser.find_element("xpath", "//a[code='if policy_is_due']").click()
    line = browser.find_element("css selector", ".listing .line:target")
    assert line.text.strip().startswith("if policy_is_due:") and line.is_displayed()
    assert 60 < browser.execute_script("return arguments[0].getBoundingClientRect().top", line) < 900
    plain = browser.find_element("css selector", ".listing .line:not(:target)")
    colour = "return getComputedStyle(arguments[0]).backgroundColor"
    assert browser.execute_script(colour, line) != browser.execute_script(colour, plain)


def test_curves_can_be_shown_by_time(site, browser):
    look(browser, 1280, "light")
    browser.get((site / "rl-algorithms" / "ppo.html").as_uri())
    by_step, by_time = browser.find_elements("css selector", "figure.curves")
    assert by_step.is_displayed() and not by_time.is_displayed()
    browser.execute_script("arguments[0].click()", browser.find_element("xpath", "//label[.='By time']"))
    assert by_time.is_displayed() and "seconds" in by_time.text and "AMD EPYC" in by_time.text


def test_table_of_results_is_sorted_and_filtered_from_disk(site, browser):
    look(browser, 1280, "light")
    browser.get((site / "results.html").as_uri())
    table = browser.find_element("css selector", ".sortable table")
    headings = [heading.text.strip(" ↕") for heading in table.find_elements("css selector", "th")]

    def column(name: str) -> list[str]:
        rows = "[...arguments[0].tBodies[0].rows].filter(row => !row.hidden)"
        texts = f"{rows}.map(row => row.cells[{headings.index(name)}].textContent.trim())"
        return browser.execute_script(f"return {texts}", table)

    tasks = column("task")
    heading = table.find_elements("css selector", "th button")[headings.index("minutes")]
    for ascending in (True, False):
        browser.execute_script("arguments[0].click()", heading)
        minutes = [float(x) for x in column("minutes") if x]
        assert minutes == sorted(minutes, reverse=not ascending) and len(minutes) > 20
        assert column("minutes")[: len(minutes)] == [x for x in column("minutes") if x]  # what is not known comes last
    assert sorted(column("task")) == sorted(tasks)
    browser.find_element("css selector", ".sortable input").send_keys("CartPole-v1 dqn")
    assert set(column("task")) == {"CartPole-v1"} and set(column("file")) == {"dqn", "dqn_jax", "dqn_stable_baselines3"}


def test_page_of_rlops_shows_all_results_without_a_network(site, browser):
    look(browser, 1280, "light")
    browser.get((site / "compare.html").as_uri())
    algorithms = {run.algorithm for path in RESULT_FILES for run in read_results(path)}
    text = browser.find_element("css selector", "body").text
    assert len(algorithms) > 10 and all(algorithm in text for algorithm in algorithms)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert 'href="compare.html"' in (site / "results.html").read_text()
