"""cleanrl_utils.rlops from runs to files: reading, comparing, appending, and what it says about bad input."""

import csv
import importlib
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tyro
from conftest import ROOT, Runner, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cleanrl_utils import provenance
from cleanrl_utils.lineage import FAMILY
from cleanrl_utils.rlops import compare, events, grouping, normalize, plot, runs, wandb_report, wandb_runs
from cleanrl_utils.rlops.__main__ import Args, main

RETURN = "charts/episodic_return"
PPO = (ROOT / "cleanrl" / "ppo.py").read_text()


def write_events(folder: Path, scalars: dict, start: float = 1e9, purge_step: int | None = None) -> None:
    """An event file with {tag: [(step, seconds, value), ...]}, as TensorBoard's own writer writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("events.*")))
    writer = EventFileWriter(str(folder), filename_suffix=f".{number}")
    points = [(seconds, step, tag, value) for tag, curve in scalars.items() for step, seconds, value in curve]
    if purge_step:
        session = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=start, step=purge_step, session_log=session))
    for seconds, step, tag, value in sorted(points):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(wall_time=start + seconds, step=step, summary=summary))
    writer.close()
    path = max(folder.glob("events.*"), key=lambda path: path.name.endswith(f".{number}"))
    data = bytearray(path.read_bytes())  # the writer dates the file's first event by its own clock
    records, _ = events.split_records(bytes(data))
    first = Event.FromString(records[0])
    first.wall_time = start
    content = first.SerializeToString()
    head = struct.pack("<Q", len(content))
    checksums = [int(events.masked_crc(np.frombuffer(x, np.uint8)[None])[0]) for x in (head, content)]
    record = head + struct.pack("<I", checksums[0]) + content + struct.pack("<I", checksums[1])
    path.write_bytes(record + data[16 + len(records[0]) :])
    path.rename(folder / f"events.out.tfevents.{int(start)}.{number}")


def make_run(folder: Path, returns, algorithm="ppo", env_id="CartPole-v1", seed=1, clock=1, **args) -> Path:
    """The folder of a run whose episodes took 10 steps and a second each."""
    run_dir = folder / f"{env_id}__{algorithm}__{seed}__{clock}"
    points = [(10 * (i + 1), i + 1.0, float(x)) for i, x in enumerate(returns)]
    write_events(run_dir, {RETURN: points, "charts/SPS": [(step, seconds, 10.0) for step, seconds, _ in points]})
    args = {"exp_name": algorithm, "env_id": env_id, "seed": seed, "total_timesteps": 10 * len(points)} | args
    (run_dir / "args.json").write_text(json.dumps(args))
    return run_dir


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder with real runs, made once."""
    folder = tmp_path_factory.mktemp("trained")
    runner = Runner(folder)
    short = ["--no-cuda", "--num-steps", "64", "--total-timesteps", "4096"]
    runner.train("--seed", 1, *short, "--save-model", "--capture-video")
    runner.train("--seed", 2, *short, "--learning-rate", "0.001")
    dqn = ["--no-cuda", "--total-timesteps", "3000", "--learning-starts", "500", "--buffer-size", "1000"]
    runner.train("--seed", 1, *dqn, script=ROOT / "cleanrl" / "dqn.py")
    return folder


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """A folder to work in, where nothing is drawn: a picture takes a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plot, "plot", lambda comparison, image: None)
    return tmp_path


@pytest.fixture
def drawing(tmp_path, monkeypatch) -> Path:
    """The same with pictures."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Reading events


def test_checksum_is_crc32c():
    row = np.frombuffer(b"123456789", np.uint8)[None]
    crc = 0xE3069283  # the check value of CRC-32C in every catalogue
    assert events.masked_crc(row)[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_scalars_are_what_tensorboard_reads(trained):
    for run_dir in (trained / "runs").iterdir():
        ours = events.read_scalars(run_dir, pytest.fail)
        expected = curves(run_dir)
        assert ours.keys() == expected.keys()
        for tag, curve in ours.items():
            assert str(list(zip(curve.steps.tolist(), curve.values.tolist()))) == str(expected[tag])  # NaN is NaN
            assert (np.diff(curve.seconds) >= 0).all() and curve.seconds[0] >= 0


def test_resumed_run_has_no_doubled_points_and_no_pause(tmp_path):
    write_events(tmp_path, {RETURN: [(1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)]})  # killed after a checkpoint at step 2
    write_events(tmp_path, {RETURN: [(3, 5, 30.0), (4, 6, 40.0)]}, start=2e9, purge_step=3)
    curve = events.read_scalars(tmp_path, pytest.fail)[RETURN]
    assert curves(tmp_path)[RETURN] == list(zip(curve.steps, curve.values)) == [(1, 1), (2, 2), (3, 30), (4, 40)]
    assert curve.seconds.tolist() == [1, 2, 7, 8]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_or_damaged_file_gives_its_beginning_and_never_other_numbers(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    write_events(folder, {RETURN: [(i, i, float(i)) for i in range(1, 30)]})
    path = next(folder.glob("events.*"))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    warnings = []
    path.write_bytes(content[:place])  # still being written
    curve = events.read_scalars(folder, warnings.append).get(RETURN)
    assert not warnings
    assert curve is None or curve.values.tolist() == [float(i) for i in range(1, len(curve.values) + 1)]
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    curve = events.read_scalars(folder, warnings.append).get(RETURN)
    assert len(warnings) == 1 and "damaged after step" in warnings[0] and "\n" not in warnings[0]
    assert curve is None or curve.values.tolist() == [float(i) for i in range(1, len(curve.values) + 1)]


def test_reading_is_quick(tmp_path):
    """A run of 20,000 events; TensorBoard's accumulator takes four to five times as long."""
    write_events(tmp_path, {f"losses/{name}": [(i, i / 100, 1.0) for i in range(5000)] for name in "abcd"})
    start = time.process_time()
    ours = events.read_scalars(tmp_path, pytest.fail)
    middle = time.process_time()
    assert len(curves(tmp_path)) == len(ours)
    assert middle - start < (time.process_time() - middle) / 2


# Runs


def test_command_of_a_run_gives_its_arguments_again(trained):
    sys.path.insert(0, str(ROOT / "cleanrl"))
    import ppo

    for run_dir in (trained / "runs").glob("*__ppo__*"):
        run = runs.read_folder(run_dir, pytest.fail)
        words = shlex.split(run.command)
        assert words[:2] == ["python", "cleanrl/ppo.py"]
        again = tyro.cli(ppo.Args, args=words[2:])
        ignored = runs.COMPUTED | {"save_model", "capture_video"}
        for name, value in run.args.items():
            assert name in ignored or getattr(again, name) == value, name


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_hardware_names_the_cores_that_the_program_may_use(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert ", 8 cores" in provenance.hardware()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert ", 1 of 8 cores" in provenance.hardware()


def test_provenance_of_a_run_is_used_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_TAGS", "v1,pr-7")
    facts = provenance.provenance(ROOT / "cleanrl" / "ppo.py")
    assert facts["tags"] == ["v1", "pr-7"] and "torch 2." in facts["versions"] and "cores" in facts["hardware"]
    assert facts["commit"].startswith(provenance.git("rev-parse", "--short", "HEAD", cwd=ROOT))
    run_dir = make_run(tmp_path, [1, 2])
    (run_dir / "provenance.json").write_text(json.dumps(facts))
    run = runs.read_folder(run_dir, pytest.fail)
    assert (run.commit, run.versions, run.tags) == (facts["commit"], facts["versions"], ["v1", "pr-7"])


def test_videos_are_placed_at_the_training_step_where_their_episode_ended(trained):
    run = next(run for run in runs.read_paths([trained / "runs"], pytest.fail) if run.videos)
    ends = [step for step, _ in curves(trained / "runs" / run.name)[RETURN] if (step - 1) % run.args["num_envs"] == 0]
    numbers = [int(path.stem.split("-")[-1]) for step, path in run.videos if step is not None]
    assert numbers == sorted(numbers) and len(numbers) >= 4
    for number, (step, _) in zip(numbers, run.videos):
        assert step == (ends[number] if number < len(ends) else run.curves[RETURN].steps[-1])
    assert run.videos[-1][0] is None and "evaluation" in run.videos[-1][1].parts


def test_thinned_curve_keeps_the_mean_and_the_ends(tmp_path):
    run = runs.read_folder(make_run(tmp_path, range(1000)), pytest.fail)
    steps, seconds, thinned = run.thin(10)
    assert steps.tolist() == [1000 * (i + 1) for i in range(10)]
    assert seconds.tolist() == [100 * (i + 1) for i in range(10)]
    assert thinned[RETURN].tolist() == [49.5 + 100 * i for i in range(10)]


def test_band_is_students_interval_and_ends_with_the_first_finished_run(tmp_path):
    scipy_stats = pytest.importorskip("scipy.stats")
    found = [make_run(tmp_path, [seed] * length, seed=seed) for seed, length in ((1, 100), (3, 100), (8, 80))]
    found = [runs.read_folder(run_dir, pytest.fail) for run_dir in found]
    x, mean, low, high = plot.band(found, RETURN, "steps")
    assert x[-1] == 800 and mean == pytest.approx(4)
    expected = scipy_stats.t.interval(0.95, 2, loc=4, scale=scipy_stats.sem([1, 3, 8]))
    assert (low[5], high[5]) == pytest.approx(expected, rel=1e-3)
    found[2].status = "stopped at 80%"  # does not cut the others short
    assert plot.band(found, RETURN, "steps")[0][-1] == 1000


# Result files


def test_append_keeps_each_run_once_and_the_longer_one(elsewhere):
    result_file = elsewhere / "ppo.csv"
    run = runs.read_folder(make_run(elsewhere / "runs", range(200)), pytest.fail)
    longer = runs.read_folder(make_run(elsewhere / "longer", range(300)), pytest.fail)
    other = runs.read_folder(make_run(elsewhere / "runs", range(200), seed=2), pytest.fail)
    assert runs.append_results(result_file, [run]) == (1, 0)
    before = result_file.read_text()
    assert runs.append_results(result_file, [run]) == (0, 0) and result_file.read_text() == before
    assert runs.append_results(result_file, [longer, other]) == (1, 1)
    assert runs.append_results(result_file, [run]) == (0, 0)  # the shorter one does not come back
    back = runs.read_results(result_file)
    assert [(x.seed, x.steps) for x in back] == [(1, 3000), (2, 2000)]
    assert back[0].score(RETURN, 100) == longer.score(RETURN, 100) == np.mean(range(200, 300))
    assert back[0].score(RETURN, 60) == pytest.approx(longer.score(RETURN, 60))
    assert len(result_file.read_text().splitlines()) == 1 + 2 * runs.POINTS


def test_append_refuses_a_file_of_another_kind_and_leaves_it_alone(elsewhere):
    make_run(elsewhere / "runs", range(20))
    (elsewhere / "mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="mine.csv: not a result file"):
        main(Args(append=Path("mine.csv")))
    assert (elsewhere / "mine.csv").read_text() == "a,b\n1,2\n"


def test_files_of_another_kind_beside_result_files_are_left_out(elsewhere, capsys):
    make_run(elsewhere / "runs", range(20))
    main(Args(append=Path("ppo.csv")))
    Path("speed.csv").write_text("a,b\n1,2\n")
    capsys.readouterr()
    main(Args([Path("ppo.csv"), Path("speed.csv")]))
    out, err = capsys.readouterr()
    assert "| ppo | 200 | 1 |" in out and err == "note: speed.csv: not a result file; left out\n"
    with pytest.raises(ValueError, match="speed.csv: not a result file; its columns should be run, algorithm"):
        main(Args([Path("speed.csv")]))


def test_damaged_result_file_is_one_clear_line(elsewhere):
    make_run(elsewhere / "runs", range(20))
    main(Args(append=Path("ppo.csv")))
    text = (elsewhere / "ppo.csv").read_text()
    (elsewhere / "ppo.csv").write_text(text.replace(",400,", ",4x0,").replace(",40,", ",4x,"))
    with pytest.raises(ValueError, match="ppo.csv: could not convert") as error:
        main(Args([Path("ppo.csv")]))
    assert "\n" not in str(error.value)


def test_results_in_git_are_compared_with_when_asked_for_and_a_run_not_with_itself(elsewhere, capsys):
    make_run(elsewhere / "runs", range(50))
    main(Args(append=Path("benchmark/results/ppo.csv")))  # makes the folder
    make_run(elsewhere / "runs", range(50), seed=2)
    shutil.rmtree(elsewhere / "runs" / "CartPole-v1__ppo__1__1")
    capsys.readouterr()
    main(Args())
    out = capsys.readouterr().out
    assert "| ppo | 500 | 1 |" in out and "(results)" not in out
    for args in (Args(results=True), Args([Path("runs"), Path("benchmark/results")])):
        main(args)
        out = capsys.readouterr().out
        assert "| ppo | 500 | 1 |" in out and "| ppo (results) | 500 | 1 |" in out
    make_run(elsewhere / "runs", range(50))
    main(Args(results=True))
    assert "| CartPole-v1 | ppo | 500 | 2 |" in capsys.readouterr().out  # seed 1 is in both places, and counts once
    shutil.rmtree(elsewhere / "runs")
    main(Args(results=True))
    assert "| CartPole-v1 | ppo | 500 | 1 |" in capsys.readouterr().out
    shutil.rmtree(elsewhere / "benchmark")
    with pytest.raises(ValueError, match="--results: there is no benchmark/results here"):
        main(Args(results=True))


def test_one_run_is_added_and_two_runs_are(elsewhere, capsys):
    make_run(elsewhere / "runs", range(50))
    main(Args(append=Path("a.csv")))
    assert "a.csv: 1 run added, 0 replaced, 0 there already" in capsys.readouterr().out
    make_run(elsewhere / "runs", range(50), seed=2)
    make_run(elsewhere / "runs", range(50), seed=3)
    main(Args(append=Path("a.csv")))
    assert "a.csv: 2 runs added, 0 replaced, 1 there already" in capsys.readouterr().out


# The comparison


def test_real_runs_end_to_end(trained, drawing, capsys):
    main(Args([trained / "runs"], output_filename=Path("report.png"), append=Path("all.csv")))
    out, err = capsys.readouterr()
    assert "ppo on CartPole-v1 mixes learning_rate 0.00025, 0.001; separate with --group-by learning_rate" in err
    assert (drawing / "report.md").read_text() in out
    assert (drawing / "report.png").read_bytes().startswith(b"\x89PNG")
    page = (drawing / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    scores = []
    for run_dir in sorted((trained / "runs").glob("*__ppo__*")):
        scores.append(np.mean([value for _, value in curves(run_dir)[RETURN]][-100:]))
    line = f"| CartPole-v1 | ppo | 4,096 | 2 | {np.mean(scores):.2f} ± {np.std(scores):.2f} |"
    assert line in out
    assert "no verdict: unequal budgets, 3,000 and 4,096 steps" in out
    assert "no interval where there is a single run" in out
    assert "all.csv: 3 runs added" in out
    main(Args([Path("all.csv")], exp_name=["ppo"]))  # the same from the result file
    assert line in capsys.readouterr().out
    main(Args([trained / "runs"], metric="eval/episodic_return"))  # one value an episode: no curve, but a score
    assert "runs of dqn without eval/episodic_return: left out" in capsys.readouterr().err


def test_published_flags_work_as_a_command(trained, tmp_path):
    flags = "--exp-name ppo dqn --env-ids CartPole-v1 --metric-last-n-average-window 50 --scan-history --report"
    flags += " --output-filename a.png"
    command = [sys.executable, "-m", "cleanrl_utils.rlops", trained / "runs", *flags.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "over the last 50 values" in done.stdout and "report: a.html" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "a.md", "a.html"}
    done = subprocess.run([*command[:3], "--env-ids", "X-v0"], cwd=trained, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "cannot compare: --env-ids X-v0: no such runs; there are CartPole-v1\n"


def test_groups_by_argument_and_by_tag(elsewhere, capsys):
    for seed, rate, tag in ((1, 0.1, "old"), (2, 0.1, "old"), (3, 0.2, "new"), (4, 0.2, "new")):
        run_dir = make_run(elsewhere / "runs", [seed] * 20, seed=seed, learning_rate=rate)
        facts = {"commit": f"c{seed}", "versions": "", "hardware": "", "tags": [tag, "all"]}
        (run_dir / "provenance.json").write_text(json.dumps(facts))
    main(Args(group_by=["learning_rate"]))
    out, err = capsys.readouterr()
    assert "ppo learning_rate=0.1 on CartPole-v1 mixes commit c1, c2; separate with --group-by commit" in err
    assert "| ppo learning_rate=0.1 | 200 | 2 | 1.50 ±" in out and "| ppo learning_rate=0.2 | 200 | 2 | 3.50 ±" in out
    main(Args(tags=["old", "new;all"]))
    out = capsys.readouterr().out
    assert "| ppo (old) | 200 | 2 | 1.50 ±" in out and "| ppo (new;all) | 200 | 2 | 3.50 ±" in out
    main(Args(tags=["c1", "c4"]))
    assert "| ppo (c4) | 200 | 1 | 4.00 |" in capsys.readouterr().out


def test_unequal_environments_are_named_and_left_out_of_the_whole(elsewhere, capsys):
    for seed in (1, 2):
        for env_id in ("A-v0", "B-v0"):
            make_run(elsewhere / "runs", [seed] * 20, env_id=env_id, seed=seed)
            make_run(elsewhere / "runs", [seed + 1] * 20, "dqn", env_id, seed)
        make_run(elsewhere / "runs", [5] * 20, "dqn", "C-v0", seed)
    main(Args())
    out = capsys.readouterr().out
    assert "- C-v0: no runs of ppo; left out of what is said over all environments" in out
    assert "Over A-v0, B-v0, normalized: in each, 0 is the lowest" in out and "| both together | dqn | ppo |" in out


def make_seeds(folder: Path, env_id: str, **scores: float) -> None:
    """Five runs of each algorithm, around its score."""
    for name, score in scores.items():
        for seed in range(1, 6):
            make_run(folder, [score + seed - 3] * 20, name, env_id, seed)


def test_scores_are_normalized_by_those_of_humans_and_by_a_given_file(elsewhere, capsys):
    make_seeds(elsewhere / "runs", "BreakoutNoFrameskip-v4", ppo=16.1, dqn=30.5)  # random 1.7, human 30.5
    make_seeds(elsewhere / "runs", "ALE/Pong-v5", ppo=-3.05, dqn=14.6)  # random -20.7, human 14.6
    make_seeds(elsewhere / "runs", "CartPole-v1", ppo=400, dqn=500)
    main(Args(normalize="human"))
    out = capsys.readouterr().out
    assert "Over ALE/Pong-v5, BreakoutNoFrameskip-v4, normalized: in each, 0 is a random policy and 1 a human." in out
    assert "- CartPole-v1: no scores to normalize with; left out" in out
    row = next(line for line in out.splitlines() if line.startswith("| ppo | 10 | "))
    assert row.startswith("| ppo | 10 | 0.500 [") and row.split(" | ")[5].startswith("0.500 [")
    Path("mine.csv").write_text("env_id,low,high\nCartPole-v1,300,500\nALE/Pong-v5,-20.7,14.6\n")
    main(Args(normalize="mine.csv", exp_name=["ppo"]))  # with a scale of its own, one group can be summarized
    out = capsys.readouterr().out
    assert "normalized: in each, 0 and 1 are the scores given in mine.csv" in out and "| ppo | 10 | 0.500 [" in out
    Path("mine.csv").write_text("env_id,low,high\nCartPole-v1,500,300\n")
    with pytest.raises(ValueError, match="--normalize mine.csv: CartPole-v1: low 500 is not below high 300"):
        main(Args(normalize="mine.csv"))
    Path("mine.csv").write_text("env_id,low\nCartPole-v1,500\n")
    with pytest.raises(ValueError, match="--normalize mine.csv: its columns should be env_id,low,high"):
        main(Args(normalize="mine.csv"))


def test_one_seed_gets_no_interval_over_all_environments_either(elsewhere, capsys):
    for env_id in ("A-v0", "B-v0"):
        make_run(elsewhere / "runs", [1] * 20, "one", env_id)
        for seed in (1, 2):
            make_run(elsewhere / "runs", [seed] * 20, "two", env_id, seed)
    main(Args())
    out = capsys.readouterr().out
    assert "| one | 2 | 0.000 | 0.000 | 0.000 | 1.000 |" in out
    assert "| two | 4 | 0.500 [0.000, 1.000] | 0.500 [0.000, 1.000] |" in out


def test_published_scale_goes_from_a_random_policy_to_the_best_published_score():
    known, scale = normalize.scales(["CartPole-v1", "Breakout-v5", "Hopper-v4", "Mine-v0"], "published")
    rows = csv.DictReader((ROOT / "benchmark" / "results" / "published.csv").open())
    best = max(float(row["mean"]) for row in rows if row["env_id"] in ("Breakout-v5", "BreakoutNoFrameskip-v4"))
    assert scale.bounds["Breakout-v5"] == (1.7, best) and scale.bounds.keys() == {
        "CartPole-v1",
        "Breakout-v5",
        "Hopper-v4",
    }
    assert [x.name for x in known] == ["runs", "human", "published"] and known[1].bounds == {"Breakout-v5": (1.7, 30.5)}


def test_published_scale_needs_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(normalize, "PUBLISHED", tmp_path / "published.csv")
    with pytest.raises(ValueError, match="--normalize published: its scores are in the repository of CleanRL"):
        normalize.scales(["CartPole-v1"], "published")
    assert [scale.name for scale in normalize.scales(["CartPole-v1"], "runs")[0]] == ["runs"]


def test_reference_scores_are_of_57_games_and_of_random_policies(monkeypatch, capsys):
    human, random = normalize.reference("human"), normalize.reference("random")
    assert len(human) == 57 and human.keys() < random.keys()
    assert all(random[game] < human[game] for game in human)
    assert random.keys() - human.keys() <= normalize.best_published().keys()  # others would be of no use
    monkeypatch.syspath_prepend(ROOT / "benchmark")
    random_scores = importlib.import_module("random_scores")
    random_scores.measure(["CartPole-v1"])
    assert capsys.readouterr().out == f"CartPole-v1,{random['CartPole-v1']},,measured over 100 episodes\n"
    with pytest.raises(
        SystemExit, match="CartPole-v9: Environment version `v9` for environment `CartPole` doesn't exist"
    ):
        random_scores.measure(["CartPole-v9"])


def test_efficiency_is_the_iqm_of_the_normalized_curves(elsewhere):
    for seed in range(1, 6):
        make_run(elsewhere / "runs", np.linspace(0, 10 * seed, 200), "ppo", "A-v0", seed)
        make_run(elsewhere / "runs", np.linspace(0, 20 * seed, 200), "ppo", "B-v0", seed)
        make_run(elsewhere / "runs", [0] * 400, "dqn", "A-v0", seed)
        make_run(elsewhere / "runs", [0] * 200, "dqn", "B-v0", seed)
    found = grouping.group(runs.read_paths([elsewhere / "runs"], pytest.fail), [], [], pytest.fail)
    bounds = {"A-v0": (0.0, 50.0), "B-v0": (0.0, 100.0)}
    comparison = compare.Comparison(found, RETURN, 1, normalize.Scale("x", "", bounds))
    curve = comparison.efficiency
    assert curve.unit == "steps" and curve.x[-1] == 2000  # as far as the shortest run on A-v0
    iqm, low, high = curve.lines["ppo"]
    assert iqm[-1] == pytest.approx(0.6, abs=0.02) and iqm[24] == pytest.approx(0.3, abs=0.02)
    assert (low <= iqm).all() and (iqm <= high).all() and (curve.lines["dqn"][0] == 0).all()


def test_picture_names_every_curve_and_cuts_nothing_off(elsewhere):
    plt = pytest.importorskip("matplotlib.pyplot")
    for index in range(14):
        make_run(elsewhere / "runs", [index] * 30, f"a_rather_long_name_of_a_variant_{index}", total_timesteps=300)
    found = grouping.group(runs.read_paths([elsewhere / "runs"], pytest.fail), [], [], pytest.fail)
    figure = plot.draw(plt, compare.Comparison(found, RETURN, 10))
    figure.canvas.draw()
    (legend,) = [legend for part in figure.subfigs for legend in part.legends]
    assert [text.get_text() for text in legend.get_texts()] == [run.group for run in found]
    whole = figure.bbox
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y0 >= whole.y0 and box.y1 <= whole.y1
    styles = [(line.get_color(), line.get_linestyle()) for line in legend.get_lines()]
    assert len(set(styles)) == 14
    plt.close(figure)


def test_as_many_groups_as_there_are_files_are_drawn_differently():
    assert len(plot.COLOURS) * len(set(plot.DASHES)) >= len(FAMILY)


@pytest.mark.parametrize("longest, expected", [(500, (1, "")), (500_000, (1e3, "k")), (1_500_000, (1e6, "M"))])
def test_an_axis_has_one_unit(longest, expected):
    assert plot.unit_of(longest) == expected


def test_terminal_shows_the_beginning_of_a_long_table_and_the_file_all_of_it(elsewhere, capsys):
    for index in range(9):  # 36 pairs
        make_run(elsewhere / "runs", [index] * 20, f"a{index}")
    main(Args())
    out = capsys.readouterr().out
    assert "| CartPole-v1 | a4 | a8 |" in out and "| a5 | a6 |" not in out
    assert "\n... 6 more rows are in compare.md\n\nNotes:\n- one seed says" in out
    assert "| CartPole-v1 | a7 | a8 |" in Path("compare.md").read_text()


def test_events_of_runs_that_are_not_asked_for_are_not_read(elsewhere, capsys, monkeypatch):
    make_run(elsewhere / "runs", [1] * 20)
    make_run(elsewhere / "runs", [1] * 20, "dqn")
    read = []
    monkeypatch.setattr(runs, "read_scalars", lambda *args: read.append(args[0].name) or events.read_scalars(*args))
    main(Args(exp_name=["dqn"], env_ids=["CartPole-v1"]))
    assert read == ["CartPole-v1__dqn__1__1"] and "| dqn | 200 | 1 | 1.00 |" in capsys.readouterr().out


def test_same_seed_twice_counts_once(elsewhere, capsys):
    make_run(elsewhere / "runs", [1] * 20, clock=1)
    make_run(elsewhere / "runs", [7] * 20, clock=2)
    main(Args())
    out, err = capsys.readouterr()
    assert "| 1 | 7.00 |" in out and "has seed 1 2 times; only the latest, CartPole-v1__ppo__1__2, is used" in err


def test_unfinished_runs_are_left_out_unless_asked_for(elsewhere, capsys):
    make_run(elsewhere / "runs", [1] * 200, seed=1, total_timesteps=10_000)
    with pytest.raises(ValueError, match="no run has finished .CartPole-v1__ppo__1__1 is running.; --no-finished-only"):
        main(Args())
    make_run(elsewhere / "runs", [1] * 1000, seed=2, total_timesteps=10_000)
    main(Args())
    out, err = capsys.readouterr()
    assert "| 10,000 | 1 |" in out and "note: 1 run is not finished: left out; --no-finished-only shows them" in err
    main(Args(finished_only=False))
    out = capsys.readouterr().out
    assert "ppo on CartPole-v1: 1 run is not finished" in out and "unequal budgets, 2,000 and 10,000 steps" in out


def test_a_run_has_finished_when_it_says_so_however_little_it_has_logged(tmp_path):
    run_dir = make_run(tmp_path, [1] * 20, total_timesteps=800, num_envs=3)
    facts = {"commit": "", "versions": "", "hardware": "", "tags": [], "global_step": 798}  # whole steps of three
    (run_dir / "provenance.json").write_text(json.dumps(facts))
    run = runs.read_folder(run_dir, pytest.fail)
    assert (run.steps, run.budget, run.status) == (200, 798, "finished")
    (run_dir / "provenance.json").write_text(json.dumps(facts | {"global_step": 300}))
    os.utime(next(run_dir.glob("events.*")), (1, 1))
    assert runs.read_folder(run_dir, pytest.fail).status == "stopped at 25%"


def test_abandoned_runs_and_trials_of_the_tuner_stay_out_unless_named(elsewhere, capsys):
    make_run(elsewhere / "runs", [1] * 20)
    abandoned = make_run(elsewhere / "runs" / "benchmark" / "CartPole-v1__ppo__2__x" / "abandoned", [1] * 20, seed=2)
    for trial in range(2):
        make_run(elsewhere / "runs", [1] * 20, f"ppo_2026_trial{trial}")
    main(Args())
    out, err = capsys.readouterr()
    assert "| CartPole-v1 | ppo | 200 | 1 |" in out and "trial" not in out
    assert "1 run abandoned by the benchmark: left out" in err and "2 runs of trials of the tuner: left out" in err
    main(Args(exp_name=["ppo_2026_trial1"]))
    assert "| CartPole-v1 | ppo_2026_trial1 | 200 | 1 |" in capsys.readouterr().out
    main(Args([abandoned]))
    assert "| CartPole-v1 | ppo | 200 | 1 |" in capsys.readouterr().out


def test_the_tuner_names_its_runs_as_rlops_expects():
    sources = [*ROOT.glob("cleanrl_utils/tuner*.py"), *ROOT.glob("cleanrl_utils/tuner/*.py")]
    assert any('exp_name = f"{study}_trial{trial.number}"' in path.read_text() for path in sources)
    assert runs.TRIAL.search("CartPole-v1__ppo-1a2b_trial12__3__1794907069")
    assert not runs.TRIAL.search("CartPole-v1__ppo_trials__3__1794907069")


def test_runs_of_one_seed_with_other_arguments_are_groups_of_their_own(elsewhere, capsys):
    for seed in (1, 2):
        make_run(elsewhere / "runs", [seed] * 20, seed=seed, clock=1, learning_rate=0.1, gamma=0.9, batch_size=32)
        make_run(elsewhere / "runs", [seed + 5] * 20, seed=seed, clock=2, learning_rate=0.2, gamma=0.9, batch_size=64)
    make_run(elsewhere / "runs", [3] * 20, seed=3, learning_rate=0.1, gamma=0.9, batch_size=32)
    main(Args())
    out, err = capsys.readouterr()
    assert "| ppo learning_rate=0.1 batch_size=32 | 200 | 3 | 2.00 ±" in out
    assert "| ppo learning_rate=0.2 batch_size=64 | 200 | 2 | 6.50 ±" in out
    assert "ppo has runs of one seed that differ in learning_rate, batch_size: groups of their own" in err
    assert "mixes" not in err


def test_the_same_again_at_another_commit_is_another_group(elsewhere, capsys):
    for clock, commit in ((1, "aaa"), (2, "bbb")):
        run_dir = make_run(elsewhere / "runs", [clock] * 20, clock=clock)
        facts = {"commit": commit, "versions": "", "hardware": "", "tags": []}
        (run_dir / "provenance.json").write_text(json.dumps(facts))
    main(Args())
    out, err = capsys.readouterr()
    assert "| ppo commit=aaa | 200 | 1 | 1.00 |" in out and "| ppo commit=bbb | 200 | 1 | 2.00 |" in out
    assert "ppo has runs of one seed that differ in commit: groups of their own" in err


def test_groups_are_in_the_order_of_the_numbers_in_their_names():
    names = ["ppo n=128", "ppo lr=1e-05", "ppo n=64", "ppo", "ppo lr=0.001", "ppo lr=0.0003", "dqn"]
    expected = ["dqn", "ppo", "ppo lr=1e-05", "ppo lr=0.0003", "ppo lr=0.001", "ppo n=64", "ppo n=128"]
    assert sorted(names, key=grouping.natural) == expected


def test_runs_of_one_seed_in_result_files_are_told_apart_by_their_commands(elsewhere, capsys):
    first = runs.read_folder(make_run(elsewhere / "a", range(50), clock=1), pytest.fail)
    second = runs.read_folder(make_run(elsewhere / "a", range(50), clock=2), pytest.fail)
    first.command, second.command = (
        "python cleanrl/ppo.py --seed 1",
        "python cleanrl/ppo.py --seed 1 --num-envs 8 --no-cuda",
    )
    runs.append_results(elsewhere / "ppo.csv", [first, second])
    main(Args([Path("ppo.csv")]))
    out = capsys.readouterr().out
    assert "| ppo num_envs=default no_cuda=default |" in out and "| ppo num_envs=8 no_cuda=True |" in out
    main(Args([Path("ppo.csv")], group_by=["num_envs"]))
    out = capsys.readouterr().out
    assert "| ppo num_envs=default |" in out and "| ppo num_envs=8 |" in out


def test_unequal_budgets_get_no_verdict(elsewhere, capsys):
    for seed in range(1, 6):
        make_run(elsewhere / "runs", [seed] * 200, seed=seed)
        make_run(elsewhere / "runs", [seed + 9] * 400, "dqn", seed=seed)
        make_run(elsewhere / "runs", [seed + 9] * 205, "c51", seed=seed)  # 2.5% more
    main(Args())
    out = capsys.readouterr().out
    assert "| c51 | ppo | 1.00 | [1.00, 1.00] | better (p = 0.0079) |" in out
    assert "| dqn | ppo | 1.00 | [1.00, 1.00] | no verdict: unequal budgets, 2,000 and 4,000 steps |" in out
    assert "- CartPole-v1: runs had unequal budgets, 2,000 and 4,000 steps; no verdict where groups differ" in out


def test_values_that_are_no_numbers_are_left_out_with_a_note(elsewhere, capsys):
    make_run(elsewhere / "runs", [1, float("nan"), 3, float("inf")] * 5)
    main(Args())
    out, err = capsys.readouterr()
    assert "10 of 20 values of charts/episodic_return are not finite; left out" in err and "| 1 | 2.00 |" in out
    assert "NaN" not in (elsewhere / "compare.html").read_text().split('id="data">')[1].split("</script>")[0]


def test_runs_that_have_logged_nothing_or_are_damaged_do_not_stop_the_others(elsewhere, capsys):
    make_run(elsewhere / "runs", [1] * 20)
    empty = make_run(elsewhere / "runs", [1] * 20, seed=2)
    next(empty.glob("events.*")).write_bytes(b"")
    (make_run(elsewhere / "runs", [1] * 20, seed=3) / "args.json").write_text("{")
    damaged = next(make_run(elsewhere / "runs", [1] * 20, seed=4).glob("events.*"))
    damaged.write_bytes(damaged.read_bytes()[:700] + b"\xff" * 300)
    main(Args())
    out, err = capsys.readouterr()
    assert "| 2 | 1.00 ±" in out
    (make_run(elsewhere / "runs", [1] * 20, seed=5) / "provenance.json").write_text("[]")
    main(Args())
    err = capsys.readouterr().err
    for line in (
        "nothing logged yet; left out",
        "args.json is damaged",
        "damaged after step",
        "provenance.json is damaged",
    ):
        assert err.count(line) == 1
    assert len(err.splitlines()) == 4


def test_steps_of_an_offline_phase_come_before_the_others(tmp_path):
    """QDagger counts the updates before its first environment step as steps."""
    folder = make_run(tmp_path, [1] * 100, "qdagger", total_timesteps=2000, offline_steps=2000)
    assert runs.read_folder(folder, pytest.fail).steps == 1000
    os.utime(next(folder.glob("events.*")), (1, 1))
    assert runs.read_folder(folder, pytest.fail).status == "stopped at 25%"


@pytest.mark.parametrize(
    "settings, line",
    [
        ({"paths": [Path("nowhere")]}, "nowhere: no such file or folder"),
        ({"exp_name": ["pppo"]}, "--exp-name pppo: no such runs; there are dqn, ppo"),
        ({"env_ids": ["CartPole-v0"]}, "--env-ids CartPole-v0: no such runs; there are Acrobot-v1, CartPole-v1"),
        ({"exp_name": ["dqn"], "env_ids": ["CartPole-v1"]}, "no runs of dqn on CartPole-v1"),
        ({"metric": "charts/x"}, "--metric charts/x: no run has it; there are charts/SPS, charts/episodic_return"),
        ({"tags": ["v9"]}, "--tags v9: no such runs; tags and commits there are none"),
        ({"group_by": ["lr"]}, "--group-by lr: no run has such an argument"),
        ({"metric_last_n_average_window": 0}, "--metric-last-n-average-window must be at least 1"),
        ({"normalize": "humans"}, "--normalize humans: there are runs, human, published, and files that end in .csv"),
        ({"normalize": "x.csv"}, "--normalize x.csv: no such file"),
        (
            {"normalize": "given"},
            "--normalize given: name the file instead, with columns env_id,low,high: --normalize scores.csv",
        ),
        (
            {"normalize": "human"},
            "--normalize human: it has no scores of Acrobot-v1, CartPole-v1; "
            "give your own, with columns env_id,low,high: --normalize scores.csv",
        ),
        (
            {"normalize": "published", "metric": "charts/SPS"},
            "--normalize published is about returns, not about charts/SPS",
        ),
        ({"filters": [["ppo"]]}, "--filters ppo: the first is the project, '?we=ENTITY&wpn=PROJECT'"),
        (
            {"filters": [["?we=e", "ppo?lr=1"]]},
            "--filters 'ppo?lr=1': no such key lr; "
            "there are tag (a tag), user (who ran it), cl (name in the comparison)",
        ),
        (
            {"filters": [["?we=e&wpn=p"]]},
            "--filters: name the experiments after the project, e.g. 'ppo?tag=pr-424'",
        ),
        (
            {"filters": [["?metric=charts/SPS", "ppo?tag=a&tag=b", "dqn"]], "env_ids": ["CartPole-v1"]},
            "--filters '?metric=charts/SPS' names no project on W&B (we=ENTITY&wpn=PROJECT); with local runs: "
            "python -m cleanrl_utils.rlops --exp-name ppo dqn --tags 'a;b' --env-ids CartPole-v1",
        ),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(elsewhere, settings, line):
    make_run(elsewhere / "runs", [1] * 20)
    make_run(elsewhere / "runs", [1] * 20, "dqn", "Acrobot-v1")
    with pytest.raises(ValueError) as error:
        main(Args(append=Path("results.csv"), **settings))
    assert str(error.value) == line
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]


def test_folders_of_the_output_are_made(drawing):
    make_run(drawing / "runs", [1] * 20)
    main(Args(output_filename=Path("a/b/v1.0")))
    assert {path.name for path in (drawing / "a" / "b").iterdir()} == {"v1.0.png", "v1.0.md", "v1.0.html"}


def test_no_runs_at_all(elsewhere):
    with pytest.raises(
        ValueError, match="no runs found: train first, e.g. python cleanrl/ppo.py, or compare the committed --results"
    ):
        main(Args())


def test_without_matplotlib_there_is_still_the_table_and_the_page(runner):
    make_run(runner.folder / "runs", [1] * 20)
    (runner.folder / "hidden").mkdir()
    (runner.folder / "hidden" / "matplotlib.py").write_text("raise ImportError('not here')")
    done = runner.run("-m", "cleanrl_utils.rlops", modules=f"{runner.folder / 'hidden'}:{ROOT}")
    assert (
        'no picture without matplotlib: pip install "cleanrl[rlops]"' in done.stderr and "compare.html" in done.stdout
    )
    assert not (runner.folder / "compare.png").exists() and (runner.folder / "compare.md").exists()


def test_titles_and_names_cannot_break_out_of_the_page(elsewhere):
    make_run(elsewhere / "runs", [1] * 20, "</script><b>x")
    main(Args([next((elsewhere / "runs").glob("**/args.json")).parent]))
    page = (elsewhere / "compare.html").read_text()
    assert "<b>x" not in page and page.count("</script>") == 2


def test_large_videos_become_relative_links(elsewhere):
    run_dir = make_run(elsewhere / "runs", [1] * 20)
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "rl-video-episode-0.mp4").write_bytes(b"0" * 2000)
    (run_dir / "videos" / "rl-video-episode-8.mp4").write_bytes(b"1" * 900)
    (elsewhere / "out").mkdir()
    main(Args(output_filename=Path("out/a.png"), embed_videos_mb=0.001))
    page = (elsewhere / "out" / "a.html").read_text()
    assert '"source":"../runs/CartPole-v1__ppo__1__1/videos/rl-video-episode-0.mp4","embedded":false' in page
    assert '"step":90,"source":"data:video/mp4;base64,MTEx' in page and "1 of its 2 videos are links" in page


# Weights & Biases


class FakeApi:
    """Answers as wandb.Api does, and remembers the question."""

    def __init__(self, *found):
        self.found = found

    def runs(self, path, filters):
        self.asked = (path, filters)
        return self.found


def fake_run(seed, scale=1.0, config=None):
    rows = [{"global_step": 10 * i, "_runtime": i, RETURN: scale * i} for i in range(1, 101)]
    rows.append({"global_step": 1010, "_runtime": 101, RETURN: None})  # a row of another metric

    def history(samples, keys, pandas):
        assert samples > 0 and not pandas
        return rows[::2]

    return SimpleNamespace(
        name=f"CartPole-v1__ppo__{seed}__1",
        config={"exp_name": "ppo", "env_id": "CartPole-v1", "seed": seed} if config is None else config,
        tags=["v1"],
        commit="0123456789",
        url="https://wandb.ai/e/p/runs/1",
        state="finished",
        history=history,
        scan_history=lambda keys: iter(rows),
    )


def test_wandb_is_read_only_when_asked_for_and_through_its_filters(elsewhere, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    api = FakeApi(fake_run(1), fake_run(2, 2.0), fake_run(3, config={}))
    monkeypatch.setattr(wandb, "Api", lambda: api)
    wanted = {"exp_name": ["ppo"], "env_ids": ["CartPole-v1"], "tags": ["v1"], "metric_last_n_average_window": 10}
    main(Args(wandb_entity="e", wandb_project_name="p", **wanted))
    assert api.asked[0] == "e/p"
    assert api.asked[1]["$and"][:2] == [
        {"config.exp_name.value": {"$in": ["ppo"]}},
        {"config.env_id.value": {"$in": ["CartPole-v1"]}},
    ]
    assert api.asked[1]["$and"][2] == {"$or": [{"$and": [{"tags": "v1"}]}]}
    out, err = capsys.readouterr()
    sampled = np.mean(range(81, 100, 2))
    assert f"| ppo (v1) | 990 | 2 | {1.5 * sampled:.2f} ±" in out and "has no exp_name; left out" in err
    main(Args(wandb_entity="e", scan_history=True, **wanted))
    assert api.asked[0] == "e/cleanrl"
    assert f"| ppo (v1) | 1,000 | 2 | {1.5 * np.mean(range(91, 101)):.2f} ±" in capsys.readouterr().out


def test_filters_of_openrlbenchmark_are_understood(elsewhere, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    asked = []

    class Api:
        def runs(self, path, filters):
            asked.append((path, filters))
            (name,) = filters["$and"][0].popitem()[1]["$in"]
            config = {"exp_name": name, "id": name, "env_id": "CartPole-v1", "env": "CartPole-v1"}
            return [fake_run(seed, len(name), config | {"seed": seed}) for seed in (1, 2)]

    monkeypatch.setattr(wandb, "Api", Api)
    project = "?we=openrlbenchmark&wpn=cleanrl&ceik=env_id&cen=exp_name&metric=charts/episodic_return"
    other = f"?we=o&wpn=baselines&ceik=env&cen=id&metric={RETURN}"
    words = ["--filters", project, "ppo?tag=pr-424", "dqn?tag=a&tag=b&user=me&cl=DQN anew", "--filters", other, "ppo2"]
    words += ["--filters", project, "--env-ids", "CartPole-v1", "--env-ids", "CartPole-v1"]
    words += ["--no-check-empty-runs", "--pc.ncols", "3", "--scan-history", "--output-filename", "benchmark/ppo"]
    main(tyro.cli(Args, args=wandb_runs.merge_repeated(words, lambda line: print(f"note: {line}"))))
    out = capsys.readouterr().out
    assert "note: --no-check-empty-runs is a flag of openrlbenchmark; not needed here\nnote: --pc.ncols is" in out
    assert [path for path, _ in asked] == ["openrlbenchmark/cleanrl", "openrlbenchmark/cleanrl", "o/baselines"]
    envs = {"$in": ["CartPole-v1"]}
    assert asked[0][1]["$and"][1:] == [{"config.env_id.value": envs}, {"$or": [{"$and": [{"tags": "pr-424"}]}]}]
    assert asked[1][1]["$and"][2:] == [{"$or": [{"$and": [{"tags": "a"}, {"tags": "b"}]}]}, {"username": "me"}]
    assert asked[2][1]["$and"][1:] == [{"config.env.value": envs}]
    assert "| CartPole-v1 | DQN anew | 1,000 | 2 |" in out and "| CartPole-v1 | ppo (pr-424) | 1,000 | 2 |" in out
    assert "| CartPole-v1 | ppo2 | 1,000 | 2 |" in out and (elsewhere / "benchmark" / "ppo.html").exists()


def test_wandb_that_does_not_answer_is_one_line(elsewhere, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse():
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "Api", refuse)
    with pytest.raises(ValueError) as error:
        main(Args(wandb_entity="e"))
    line = "W&B, e/cleanrl: No API key configured. Use `wandb login` to log in"
    assert str(error.value) == f"{line}; the same with local runs: python -m cleanrl_utils.rlops"
    with pytest.raises(ValueError) as error:
        main(Args(filters=[["?we=e&wpn=p", "ppo?tag=v1"]], env_ids=["CartPole-v1"]))
    instead = "python -m cleanrl_utils.rlops --exp-name ppo --tags v1 --env-ids CartPole-v1"
    assert str(error.value) == f"{line.replace('cleanrl', 'p')}; the same with local runs: {instead}"
    with pytest.raises(ValueError, match=r"cleanrl_utils.rlops --exp-name ppo --metric charts/SPS$"):
        main(Args(filters=[["?we=e&wpn=p&metric=charts/SPS", "ppo"]]))
    monkeypatch.setattr(wandb, "Api", FakeApi)
    with pytest.raises(ValueError, match="W&B, p: no runs match the filters"):
        main(Args(wandb_project_name="p"))


def test_report_on_wandb_is_made_of_what_its_library_accepts(elsewhere, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    reports = pytest.importorskip("wandb_workspaces.reports.v2")
    expressions = pytest.importorskip("wandb_workspaces.expr")
    saved = []
    monkeypatch.setattr(wandb, "Api", lambda: FakeApi(fake_run(1), fake_run(2)))
    monkeypatch.setattr(reports.Report, "save", lambda report: saved.append(report))
    monkeypatch.setattr(reports.Report, "url", "https://wandb.ai/e/p/reports/1")
    main(Args(wandb_entity="e", wandb_project_name="p", report=True))
    assert "report: https://wandb.ai/e/p/reports/1" in capsys.readouterr().out
    (report,) = saved
    text, heading, grid = report.blocks
    assert "mean ± std" in text.text and heading.text == "CartPole-v1"
    assert [panel.x for panel in grid.panels] and len(grid.panels) == 2
    chosen = expressions.expr_to_filters(grid.runsets[0].filters)
    assert (chosen.op, chosen.value) == ("IN", ["CartPole-v1__ppo__1__1", "CartPole-v1__ppo__2__1"])
    monkeypatch.setattr(reports.Report, "save", lambda report: 1 / 0)
    with pytest.raises(ValueError, match="--report: W&B refused: division by zero"):
        main(Args(wandb_entity="e", report=True))
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(ValueError, match='pip install "cleanrl\\[rlops\\]"'):
        wandb_report.blocks(None, "", None, "")
