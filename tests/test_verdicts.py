"""The page "Results": its verdicts are right, every file is in it, and it shows what the result files say."""

import importlib
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats

from cleanrl_utils.rlops.runs import RETURN, Curve, Run


@pytest.fixture
def benchmark(monkeypatch):
    """A script of the folder benchmark/, as a module."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmark"), *sys.path])
    return importlib.import_module


@pytest.fixture
def verdicts(benchmark):
    return benchmark("verdicts")


def make_row(verdicts, scores, published=None, steps=1_000_000):
    runs = []
    for seed, score in enumerate(scores, 1):
        curve = Curve(np.array([steps]), np.array([60.0]), np.array([float(score)]))
        curves = {RETURN: curve}
        run = Run(f"run{seed}", "ppo", "Hopper-v4", seed, curves, last_100=score, end=(steps, 60.0))
        run.episodes = np.array([100])
        runs.append(run)
    return verdicts.Row("ppo", "Hopper-v4", runs, published)


# The verdicts


def test_interval_is_that_of_welch(verdicts):
    rng = np.random.default_rng(0)
    for _ in range(50):
        ours, theirs = rng.normal(10, 3, rng.integers(2, 6)), rng.normal(12, 1, 3)
        published = verdicts.Published(theirs.mean(), theirs.std(), 1_000_000, 3)
        distance, low, high = verdicts.difference(ours, published)
        test = stats.ttest_ind(ours, theirs, equal_var=False)
        error = (ours.mean() - theirs.mean()) / test.statistic
        exact = stats.t.ppf(0.975, np.floor(test.df + 1e-9)) * error  # degrees of freedom are rounded down
        assert distance == pytest.approx(ours.mean() - theirs.mean())
        assert (high - distance, distance - low) == pytest.approx((exact, exact), rel=1e-3)
        interval = test.confidence_interval(0.95)
        assert low <= interval.low + 1e-2 and high >= interval.high - 1e-2


def test_equal_files_are_rarely_called_ahead_or_behind(verdicts):
    rng = np.random.default_rng(1)
    wrong = Counter()
    for _ in range(2000):
        for seeds in (1, 3, 5):
            theirs = rng.normal(size=3)
            published = verdicts.Published(theirs.mean(), theirs.std(), 1_000_000, 3)
            _, low, high = verdicts.difference(rng.normal(size=seeds), published)
            wrong[seeds] += low > 0 or high < 0
    assert all(count / 2000 < 0.065 for count in wrong.values()), wrong


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([200, 201, 199], "ahead"),
        ([50, 51, 49], "behind"),
        ([100, 101, 98], "level"),
        ([99, 60, 140], "level"),
        ([20, 140, 100], "lower, too few seeds"),
        ([180, 60, 110], "higher, too few seeds"),
        ([100.0, 100.0, 100.0], "level"),
        ([101], "one seed, within"),
        ([200], "one seed, above"),
        ([50], "one seed, below"),
        ([], "not run yet"),
    ],
)
def test_verdict(verdicts, scores, expected):
    row = make_row(verdicts, scores, verdicts.Published(100.0, 2.0, 1_000_000, 3))
    assert verdicts.verdict(row) == expected


def test_only_equal_budgets_are_compared(verdicts):
    published = verdicts.Published(100.0, 2.0, 1_000_000, 3)
    for steps, expected in ((999_424, "behind"), (960_000, "other steps"), (8_000_000, "other steps")):
        assert verdicts.verdict(make_row(verdicts, [50, 51, 49], published, steps)) == expected
    assert verdicts.verdict(make_row(verdicts, [50, 51, 49])) == "nothing published"


def test_runs_of_different_lengths_have_rows_of_their_own(verdicts, monkeypatch):
    """A run that was stopped a little earlier belongs to the others; one that is twice as long does not."""
    steps = {8_000_000: [30.0], 1_000_000: [10.0, 12.0], 1_300_000: [14.0]}
    runs = [run for budget, scores in steps.items() for run in make_row(verdicts, scores, steps=budget).runs]
    assert verdicts.by_budget(runs) == [runs[1:], runs[:1]]
    assert verdicts.by_budget([]) == []
    monkeypatch.setattr(verdicts, "read_runs", lambda: {("ppo", "Hopper-v4"): runs})
    rows = [row for row in verdicts.make_rows() if (row.algorithm, row.env_id) == ("ppo", "Hopper-v4")]
    assert [row.scores.tolist() for row in rows] == [[10.0, 12.0, 14.0], [30.0]]


def test_equal_scores_without_spread_are_level(verdicts):
    published = verdicts.Published(-200.0, 0.0, 1_000_000, 3)
    assert verdicts.verdict(make_row(verdicts, [-200.0] * 5, published)) == "level"
    assert verdicts.verdict(make_row(verdicts, [-190.0] * 5, published)) == "ahead"


def test_number_of_published_seeds_is_that_of_the_source(verdicts):
    published = verdicts.read_published()
    assert published["rpo_continuous_action", "Walker2d-v4"].seeds == 10
    assert published["ppo", "CartPole-v1"].seeds == 3


# The table


def test_every_algorithm_file_has_a_row(verdicts):
    files = {path.stem for path in (ROOT / "cleanrl").glob("[!_]*.py")}
    rows = verdicts.make_rows()
    assert files <= {row.algorithm for row in rows}
    without = [row for row in rows if not row.runs]
    assert all("not run yet" in verdicts.make_line(row, {}) for row in without)


def test_every_run_is_counted_once(verdicts):
    rows = verdicts.make_rows()
    assert sum(len(row.runs) for row in rows) == sum(len(runs) for runs in verdicts.read_runs().values())
    for row in rows:
        seeds = [run.seed for run in row.runs]
        assert len(seeds) == len(set(seeds)), f"{row.algorithm} on {row.env_id}: a seed twice"


def test_what_is_behind_has_a_finding(verdicts):
    missing = [f"{row.algorithm} on {row.env_id}" for row in verdicts.without_finding()]
    assert not missing, f"say why in benchmark/results/findings.csv: {missing}"
    rows = {(row.algorithm, row.env_id) for row in verdicts.make_rows()}
    assert verdicts.read_findings().keys() <= rows, "a finding about nothing"


def test_finding_is_shown_beside_its_row(verdicts, monkeypatch):
    row = make_row(verdicts, [50, 51, 49], verdicts.Published(100.0, 2.0, 1_000_000, 3))
    monkeypatch.setattr(verdicts, "read_published_texts", lambda: {("ppo", "Hopper-v4"): "100.0 ± 2.0"})
    assert "behind<br><small>too slow</small>" in verdicts.make_line(row, {("ppo", "Hopper-v4"): "too slow"})


def test_speeds_are_medians_of_a_session(benchmark, tmp_path, monkeypatch):
    table = benchmark("speed_table")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    lines = ["env_id,num_envs,what,version,round,steps_per_second", "X,8,peer,1.2,0,100", "X,8,ours,,0,300"]
    lines += ["X,8,peer,1.2,1,200", "X,8,ours,,1,500", "X,8,peer,1.3,0,1000"]
    (tmp_path / "speed_new.csv").write_text("\n".join(lines))
    rows = [row[:6] for row in table.read_speeds("speed_new")]
    assert rows == [
        ["new, X, 8 environments, session 1", "peer", "1.2", "2", "150", "1.00"],
        ["new, X, 8 environments, session 1", "ours", "", "2", "400", "2.67"],
        ["new, X, 8 environments, session 2", "peer", "1.3", "1", "1,000", "1.00"],
    ]


def test_latest_speed_of_a_file_is_shown_for_each_kind_of_hardware(benchmark, tmp_path, monkeypatch):
    table = benchmark("speed_table")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    lines = ["contestant,env_id,version,hardware,steps_per_second", "ppo.py,X,a,a CPU,100", "dqn.py,X,a,a CPU,9.6"]
    lines += ["ppo.py,X,b,a CPU,1200", 'ppo.py,X,b,"a CPU, NVIDIA H200",5000', "ppo.py,Y,b,a CPU,7"]
    (tmp_path / "speed_files.csv").write_text("\n".join(lines))
    rows = [line.split(" | ") for line in table.make_table_of_files() if line.startswith("| [")]
    assert [row[0].split("`")[1] for row in rows] == ["dqn.py", "ppo.py", "ppo.py"]
    assert [row[1:] for row in rows] == [["X", "10", " |"], ["X", "1,200", "5,000 |"], ["Y", "7", " |"]]
    assert not [row for row in table.make_table_of_all() if "`speed_files.csv`" in row]


# One command makes everything


def test_pages_show_what_the_results_say(verdicts, benchmark):
    for module, tables in ((verdicts, 1), (benchmark("speed_table"), 2)):
        page = module.PAGE.read_text()
        assert len(module.MARKED.findall(page)) == tables
        assert module.regenerated(page) == page, f"{module.PAGE.name}: make results"
        changed = page.replace("| 1.0", "| 7.0").replace("1.00", "7.00")
        assert module.regenerated(changed) == page != changed


def test_every_page_with_speeds_shows_what_was_measured(benchmark):
    table = benchmark("speed_table")
    shown = set()
    for page in table.pages():
        text = page.read_text()
        assert table.regenerated(text, page) == text, f"{page.name}: make results"
        shown |= {source for _, source, _ in table.MARKED.findall(text)}
        without_tables = table.MARKED.sub(r"\1\3", text)
        assert table.regenerated(without_tables, page) == text
    assert shown >= {"all", "training", "speed.csv"}
    assert shown >= {f"speed_{task}.csv" for task in ("halfcheetah", "dqn", "ddpg", "td3", "sac")}


def test_speeds_of_a_file_are_those_of_its_latest_session(benchmark, tmp_path, monkeypatch):
    table = benchmark("speed_table")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "MEASURED", {"speed_x": ("X", table.CPU), "speed_y": ("Y", "a GPU")})
    lines = ["contestant,version,round,steps_per_second", "stable-baselines3,1,1,5", "sbx,1,1,5", "x.py,1,1,5"]
    lines += ["stable-baselines3,2,1,100", "sbx,2,1,200", "x.py,2,1,300", "x.py --compile,2,1,450", "x_jax.py,2,1,1000"]
    (tmp_path / "speed_x.csv").write_text("\n".join(lines))
    (tmp_path / "speed_y.csv").write_text("what,round,steps_per_second\nenvironments,1,7")
    (tmp_path / "x_jax.md").touch()
    text = "<!-- speeds: speed_x.csv -->\n<!-- end of speeds -->"
    made = table.regenerated(text, tmp_path / "x.md").splitlines()
    assert made[2:5] == ["|  | steps per second | x Stable-Baselines3 | x SBX |", "|---|---|---|---|", made[4]]
    assert made[4:6] == ["| Stable-Baselines3 | 100 | 1.00 | 0.50 |", "| SBX | 200 | 2.00 | 1.00 |"]
    assert made[6:8] == ["| `x.py` | 300 | 3.00 | 1.50 |", "| `x.py --compile` | 450 | 4.50 | 2.25 |"]
    assert made[8] == "| [`x_jax.py`](x_jax.md) | 1,000 | 10.00 | 5.00 |"
    *_, row = table.make_table_of_training()
    assert row == "| X | 100 | 200 (2.00x) | 300 (3.00x) |  | 450 (4.50x) | 1,000 (10.00x) |"
    made = table.regenerated(text.replace("_x", "_y"), tmp_path / "y.md").splitlines()
    assert made[2] == "|  | steps per second | x the first |" and made[4] == "| `environments` | 7 | 1.00 |"
    with pytest.raises(ValueError, match="x.md: no speed_z.csv in benchmark/results/"):
        table.regenerated(text.replace("_x", "_z"), tmp_path / "x.md")


def test_make_results_in_a_copy_changes_nothing(tmp_path):
    """As in a clean clone: what git keeps, and nothing that it ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a repository of git")
    kept = {}
    for name in listed.stdout.splitlines():
        is_needed = name.startswith(("README.md", "docs/", "benchmark/", "cleanrl/", "cleanrl_utils/"))
        if is_needed and (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
            kept[name] = (tmp_path / name).read_bytes()
    recipe = (ROOT / "Makefile").read_text().partition("\nresults: ")[2].splitlines()[1]
    assert recipe.strip() == "$(BIN)/python benchmark/update.py"
    command = [sys.executable, "benchmark/update.py"]
    environment = {"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    changed = [name for name, data in kept.items() if (tmp_path / name).read_bytes() != data]
    assert not changed, f"make results: {changed}"
    assert result.stdout == ""
