"""The results in git: their schema, and that the documentation shows what they say."""

import importlib.util
import json
import re
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from test_rlops import make_run, write_events

from cleanrl_utils.rlops.runs import COLUMNS, RETURN, read_results, read_rows

RESULTS = ROOT / "benchmark" / "results"
OTHERS = {"published.csv", "findings.csv"} | {path.name for path in RESULTS.glob("speed*.csv")}
FILES = sorted(path for path in RESULTS.glob("*.csv") if path.name not in OTHERS)

spec = importlib.util.spec_from_file_location("results", ROOT / "benchmark" / "results.py")
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_result_file_keeps_to_its_schema(path):
    rows = read_rows(path)
    runs = Counter((row["run"], row["algorithm"], row["env_id"], row["seed"], row["commit"]) for row in rows)
    assert max(runs.values()) <= 300 and path.stat().st_size < 2**20  # small
    for run in read_results(path):
        assert (np.diff(run.curves[RETURN].steps) > 0).all() and (np.diff(run.curves[RETURN].seconds) >= 0).all()
        assert np.isfinite(run.curves[RETURN].values).all() and run.last_100 is not None
        assert run.commit and run.versions and run.hardware
    assert len(read_results(path)) == len(runs)


def test_every_column_is_documented():
    documented = re.findall(r"^\| `(\w+)` \|", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert documented == COLUMNS


def test_documentation_shows_what_the_results_say():
    tables = 0
    for page in results.pages():
        text = page.read_text()
        tables += len(results.MARKED.findall(text))
        assert (
            text.count("<!-- results: ") == text.count("<!-- end of results -->") == len(results.MARKED.findall(text))
        )
        assert results.regenerated(text) == text, f"{page}: make results"
    assert tables >= 5
    for result_file, image in results.plots():
        drawn = results.source_of(image) == results.digest(result_file)
        assert drawn, f"{image} is not drawn from {result_file}: make results"
    assert len(results.plots()) >= 5


def test_a_table_that_differs_is_noticed_and_made_anew():
    page = (ROOT / "docs" / "rl-algorithms" / "ppo.md").read_text()
    score = "| CartPole-v1 | 500k | 500.0 ± 0.0 | 490.0 ± 6.1 |"
    assert score in page
    changed = page.replace(score, score.replace("500.0", "499.0"))
    assert results.regenerated(changed) == page != changed


def test_table_of_several_files_has_a_column_each():
    files = [RESULTS / "rpo_continuous_action.csv", RESULTS / "ppo_continuous_action.csv"]
    head, _, *rows = results.make_table(files)
    columns = [cell.split(",")[0].strip() for cell in head.strip("| ").split("|")]
    assert columns == ["environment", "steps", "`rpo_continuous_action.py`", "`ppo_continuous_action.py`"]
    scores = {run.seed: run.last_100 for run in read_results(files[1]) if run.env_id == "Hopper-v4"}
    hopper = next(row for row in rows if "Hopper" in row)
    assert f"| {np.mean(list(scores.values())):.1f} ± {np.std(list(scores.values())):.1f}" in hopper


def test_table_has_a_row_for_each_length_of_runs(tmp_path):
    """The columns of both algorithms: one has runs of both lengths, the other of one."""
    lines = [",".join(COLUMNS)]
    for run, algorithm, step, score in [("a", "rpo", 1000, 1), ("b", "rpo", 8000, 2), ("c", "ppo", 1100, 3)]:
        values = {"run": run, "algorithm": algorithm, "env_id": "Hopper-v4", "seed": 1, "step": step, "seconds": 60}
        values |= {"episodic_return": score, "episodes": 100, "last_100_return": score}
        lines.append(",".join(str(values.get(column, "")) for column in COLUMNS))
    (tmp_path / "both.csv").write_text("\n".join(lines) + "\n")
    table = results.make_table([tmp_path / "both.csv"])
    assert table[0] == "| environment | steps | `rpo.py`, seed 1 | `ppo.py`, seed 1 |"
    assert table[2:] == ["| Hopper-v4 | 1k | 1.0 | 3.0 |", "| Hopper-v4 | 8k | 2.0 |  |"]


def test_many_algorithms_on_one_environment_are_a_row_each(tmp_path):
    lines = [",".join(COLUMNS)]
    for score, algorithm in enumerate(["ppo", "rpo", "dqn", "c51"]):
        values = {
            "run": algorithm,
            "algorithm": algorithm,
            "env_id": "Hopper-v4",
            "seed": 1,
            "step": 1000,
            "seconds": 60,
        }
        values |= {"episodic_return": score, "episodes": 100, "last_100_return": score}
        lines.append(",".join(str(values.get(column, "")) for column in COLUMNS))
    (tmp_path / "many.csv").write_text("\n".join(lines) + "\n")
    head, line, *rows = results.make_table([tmp_path / "many.csv"])
    assert (head, line) == ("|  | Hopper-v4, 1k |", "|---|---|")
    assert rows == [f"| `{name}.py`, seed 1 | {score}.0 |" for score, name in enumerate(["ppo", "rpo", "dqn", "c51"])]


def test_table_says_of_a_published_score_when_it_is_after_other_steps():
    table = results.make_table([RESULTS / "rpo_continuous_action.csv"], "published")
    short, long = (next(row for row in table if f"Walker2d-v4 | {steps} |" in row) for steps in ("1M", "8M"))
    assert short.endswith("3665.5 ± 278.6 after 8M |") and long.endswith("3665.5 ± 278.6 |")


def test_plot_knows_its_source(tmp_path):
    pytest.importorskip("matplotlib")
    results.plot(RESULTS / "dqn.csv", tmp_path / "dqn.png")
    assert results.source_of(tmp_path / "dqn.png") == results.digest(RESULTS / "dqn.csv")
    assert results.source_of(tmp_path / "dqn.png") != results.digest(RESULTS / "c51.csv")


def test_collect_adds_what_the_runs_do_not_know(tmp_path, capsys):
    run_dirs = [make_run(tmp_path / "runs", range(200), seed=seed) for seed in (1, 2)]
    for _ in range(2):
        results.collect(tmp_path / "ppo.csv", run_dirs, versions="torch 2.13.0", hardware="one core")
    out = capsys.readouterr().out.splitlines()
    assert "2 runs added" in out[0] and "0 runs added, 0 replaced, 2 there already" in out[1]
    assert {(run.versions, run.hardware) for run in read_results(tmp_path / "ppo.csv")} == {
        ("torch 2.13.0", "one core")
    }
    results.table(tmp_path / "ppo.csv")
    assert "| CartPole-v1 | 2k | 149.5 ± 0.0 | 3.3 |" in capsys.readouterr().out


def test_collect_names_runs_without_a_return_and_takes_the_others(tmp_path, capsys):
    without = tmp_path / "runs" / "pong_v3__ppo_pettingzoo_ma_atari__1__1"
    write_events(without, {"charts/episodic_return-player0": [(10, 1.0, 3.0)], "charts/SPS": [(10, 1.0, 10.0)]})
    args = {"exp_name": "ppo_pettingzoo_ma_atari", "env_id": "pong_v3", "seed": 1, "total_timesteps": 10}
    (without / "args.json").write_text(json.dumps(args))
    results.collect(tmp_path / "ppo.csv", [without, make_run(tmp_path / "runs", range(200))])
    printed = capsys.readouterr()
    assert printed.err == f"{without.name}: logs no charts/episodic_return; left out\n"
    assert "1 run added" in printed.out
    with pytest.raises(ValueError, match="there is no run to add"):
        results.collect(tmp_path / "other.csv", [without])
    assert not (tmp_path / "other.csv").exists()
