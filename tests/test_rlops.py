"""cleanrl_utils.rlops from runs to files: reading, comparing, appending, and what it says about bad input."""

import json
import os
import re
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
from cleanrl_utils.rlops import compare, events, runs, wandb_report
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


def test_commit_is_one_whose_file_is_what_ran():
    if not provenance.git("rev-parse", "HEAD", cwd=ROOT):
        pytest.skip("no git repository here")
    source = provenance.git("show", "HEAD:cleanrl/ppo.py", cwd=ROOT) + "\n"
    commit = runs.commit_of("ppo.py", source)
    assert commit and provenance.git("show", f"{commit}:cleanrl/ppo.py", cwd=ROOT) + "\n" == source
    assert runs.commit_of("ppo.py", source + "# edited\n") == ""


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
    x, mean, low, high = compare.band(found, RETURN, "steps")
    assert x[-1] == 800 and mean == pytest.approx(4)
    expected = scipy_stats.t.interval(0.95, 2, loc=4, scale=scipy_stats.sem([1, 3, 8]))
    assert (low[5], high[5]) == pytest.approx(expected, rel=1e-3)
    found[2].status = "stopped at 80%"  # does not cut the others short
    assert compare.band(found, RETURN, "steps")[0][-1] == 1000


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


def test_damaged_result_file_is_one_clear_line(elsewhere):
    make_run(elsewhere / "runs", range(20))
    main(Args(append=Path("ppo.csv")))
    text = (elsewhere / "ppo.csv").read_text()
    (elsewhere / "ppo.csv").write_text(text.replace(",400,", ",4x0,").replace(",40,", ",4x,"))
    with pytest.raises(ValueError, match="ppo.csv: could not convert") as error:
        main(Args([Path("ppo.csv")]))
    assert "\n" not in str(error.value)


def test_runs_are_compared_with_the_results_in_git_and_not_with_themselves(elsewhere, capsys):
    make_run(elsewhere / "runs", range(50))
    main(Args(append=Path("old.csv")))
    (elsewhere / "benchmark" / "results").mkdir(parents=True)
    (elsewhere / "old.csv").rename("benchmark/results/ppo.csv")
    capsys.readouterr()
    main(Args())
    assert "| CartPole-v1 | ppo | 500 | 1 |" in capsys.readouterr().out  # one run, not two
    make_run(elsewhere / "runs", range(50), seed=2)
    shutil.rmtree(elsewhere / "runs" / "CartPole-v1__ppo__1__1")
    main(Args())
    out = capsys.readouterr().out
    assert "| ppo | 500 | 1 |" in out and "| ppo (results) | 500 | 1 |" in out


# The comparison


def test_real_runs_end_to_end(trained, elsewhere, capsys):
    main(Args([trained / "runs"], output_filename=Path("report.png"), append=Path("all.csv")))
    out, err = capsys.readouterr()
    assert "ppo on CartPole-v1 mixes learning_rate 0.00025, 0.001; separate with --group-by learning_rate" in err
    assert (elsewhere / "report.md").read_text() in out
    assert (elsewhere / "report.png").read_bytes().startswith(b"\x89PNG")
    page = (elsewhere / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    scores = []
    for run_dir in sorted((trained / "runs").glob("*__ppo__*")):
        scores.append(np.mean([value for _, value in curves(run_dir)[RETURN]][-100:]))
    line = f"| CartPole-v1 | ppo | 4,096 | 2 | {np.mean(scores):.2f} ± {np.std(scores):.2f} |"
    assert line in out
    assert "too few seeds to call a difference" in out and "no interval where there is a single run" in out
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
    assert "Over A-v0, B-v0; in each" in out and "| all 2 together | dqn | ppo |" in out


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


def test_unfinished_runs_are_named_and_can_be_left_out(elsewhere, capsys):
    make_run(elsewhere / "runs", [1] * 200, seed=1, total_timesteps=10_000)
    make_run(elsewhere / "runs", [1] * 1000, seed=2, total_timesteps=10_000)
    main(Args())
    out = capsys.readouterr().out
    assert "ppo on CartPole-v1: 1 run is not finished" in out and "unequal length, 2,000 to 10,000 steps" in out
    main(Args(finished_only=True))
    assert "| 10,000 | 1 |" in capsys.readouterr().out


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
        ({"output_filename": Path("no/folder.png")}, "--output-filename no/folder.png: there is no folder no"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(elsewhere, settings, line):
    make_run(elsewhere / "runs", [1] * 20)
    make_run(elsewhere / "runs", [1] * 20, "dqn", "Acrobot-v1")
    with pytest.raises(ValueError) as error:
        main(Args(**settings))
    assert str(error.value) == line
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]


def test_no_runs_at_all(elsewhere):
    with pytest.raises(ValueError, match="no runs found: train first"):
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


def test_wandb_that_does_not_answer_is_one_line(elsewhere, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse():
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "Api", refuse)
    with pytest.raises(ValueError) as error:
        main(Args(wandb_entity="e"))
    assert str(error.value) == "W&B, e/cleanrl: No API key configured. Use `wandb login` to log in."
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


# The page, in a browser


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
def page(trained, browser, tmp_path_factory) -> Path:
    """The page of the real runs, opened without a network; every test finds it freshly loaded."""
    folder = tmp_path_factory.mktemp("page")
    main(Args([trained / "runs"], output_filename=folder / "compare.png"))
    return folder / "compare.html"


@pytest.fixture
def opened(browser, page):
    """What the page looks like to a script: `ask` evaluates an expression, `choose` uses a control."""
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    for log in ("browser", "performance"):
        browser.get_log(log)
    show(browser, 1280, "light")
    browser.get(page.as_uri())

    def ask(expression):
        return browser.execute_script(f"return {expression}")

    def choose(control, value, event="change"):
        script = "const x = document.getElementById(arguments[0]); x.value = arguments[1];"
        browser.execute_script(script + "x.dispatchEvent(new Event(arguments[2]))", control, value, event)

    yield SimpleNamespace(ask=ask, choose=choose, browser=browser)
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []


def show(browser, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


PATHS = "[...document.querySelectorAll('#charts path.mean')].map(x => [x.dataset.name, x.getAttribute('d')])"
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
    assert "too few seeds to call a difference" in opened.ask("document.getElementById('verdicts').innerText")
    assert opened.ask("document.getElementById('few').innerText").startswith("Only 1 seed in places")


def test_page_computes_what_python_computes(opened):
    rng = np.random.default_rng(0)
    for n, m, environments in ((1, 1, 1), (3, 2, 1), (3, 3, 2), (5, 4, 1), (4, 4, 3), (37, 3, 1)):
        xs = [rng.integers(0, 9, n).astype(float) for _ in range(environments)]
        ys = [rng.integers(0, 9, m).astype(float) for _ in range(environments)]
        x, y = (json.dumps([list(z) for z in zs]) for zs in (xs, ys))
        assert opened.ask(f"iqm({x}.flat())") == pytest.approx(float(compare.stats.pooled_iqm(xs)))
        assert opened.ask(f"improvement({x}, {y})") == pytest.approx(float(compare.stats.improvement(xs, ys)))
        assert opened.ask(f"smallestP({x}, {y})") == pytest.approx(compare.stats.smallest_p_value(xs, ys))
        assert opened.ask(f"pValue({x}, {y})") == pytest.approx(compare.stats.p_value(xs, ys), abs=0.01)
        low, high = compare.stats.interval(compare.stats.improvement, xs, ys)
        assert opened.ask(f"interval(improvement, {x}, {y})") == pytest.approx([low, high], abs=0.06)
    assert opened.ask("t975(2)") == compare.stats.t975(2) and opened.ask("t975(99)") == compare.stats.t975(99)


def test_controls_of_the_curves(opened):
    before = opened.ask(PATHS)
    assert [name for name, _ in before] == ["dqn", "ppo"]
    opened.choose("smoothing", "0.9", "input")
    smoothed = opened.ask(PATHS)
    for (_, rough), (_, smooth) in zip(before, smoothed):
        assert roughness(smooth) < roughness(rough) / 2
    opened.choose("smoothing", "0", "input")
    assert opened.ask(PATHS) == before
    bands = "document.querySelectorAll('#charts path.band').length"
    assert opened.ask(bands) == 1  # ppo has two seeds, dqn one
    opened.choose("band", "none")
    assert opened.ask(bands) == 0
    opened.choose("band", "runs")
    assert opened.ask("document.querySelectorAll('#charts path.thin').length") == 3
    move = "new PointerEvent('pointermove', {clientX: r.left + r.width / 2, clientY: r.top})"
    for name, count in (("dqn", "1 run"), ("ppo", "2 runs")):
        curve = f"document.querySelector('#charts path.mean[data-name={name}]')"
        script = f"const c = {curve}, r = c.getBoundingClientRect(); c.closest('svg').dispatchEvent({move})"
        opened.browser.execute_script(script)
        assert re.search(rf"{name}\n.* {count}", opened.ask("document.getElementById('tip').innerText"))
        assert not opened.ask("document.getElementById('tip').hidden")
    opened.choose("axis", "seconds")
    assert opened.ask(PATHS) != before
    assert opened.ask("[...document.querySelectorAll('#charts svg text')].pop().textContent").endswith(" s")
    opened.choose("metric", "losses/td_loss")
    assert [name for name, _ in opened.ask(PATHS)] == ["dqn"]
    opened.choose("metric", "eval/episodic_return")
    assert "No curve of this metric here" in opened.ask("document.getElementById('charts').innerText")
    opened.choose("metric", RETURN)
    opened.choose("facet", "group")
    assert opened.ask("[...document.querySelectorAll('#charts h3')].map(x => x.textContent)") == [
        "dqn episodic return",
        "ppo episodic return",
    ]


def test_mean_curve_is_pythons(opened, trained):
    """The same interpolation and mean; the page's curves have up to 200 points, those of the plot 50."""
    found = [run for run in runs.read_paths([trained / "runs"], pytest.fail) if run.algorithm == "ppo"]
    script = "aggregate(data.runs.filter(r => r.group === 'ppo').map(points), [true, true])"
    ours = np.array(opened.ask(f"{script}.map(p => [p.x, p.y, p.low, p.high])"))
    curves = []
    for run in found:
        steps, _, thinned = run.thin(200)
        there = np.isfinite(thinned[RETURN])
        curves.append(np.interp(ours[:, 0], steps[there], thinned[RETURN][there]))
    mean, spread = np.mean(curves, 0), np.std(curves, 0, ddof=1)
    assert ours[:, 1] == pytest.approx(mean, rel=1e-3)
    assert ours[:, 3] - ours[:, 2] == pytest.approx(2 * compare.stats.t975(1) * spread / 2**0.5, rel=2e-2, abs=0.05)


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
    return names.map((name) => {
        const x = document.querySelector(name);
        const pair = [getComputedStyle(x).color, behind(x)].map((colour) => luminance(channels(colour)) + 0.05);
        return [name, Math.max(...pair) / Math.min(...pair)];
    });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_and_is_legible(opened, width, scheme):
    show(opened.browser, width, scheme)
    opened.browser.refresh()
    assert opened.ask("document.documentElement.dataset.theme") == scheme
    assert opened.ask("document.documentElement.scrollWidth") <= width
    assert opened.ask(f"({OUTSIDE})()") == []
    for selector, ratio in opened.ask(f"({CONTRAST})()"):
        assert ratio > 4.5, (selector, ratio)  # WCAG AA
    opened.browser.execute_script("document.getElementById('theme').click()")
    assert opened.ask("document.documentElement.dataset.theme") == ("light" if scheme == "dark" else "dark")
