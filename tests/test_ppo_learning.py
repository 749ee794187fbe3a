"""ppo.py learns: quickly to a modest score in the default suite, to the published scores among the slow tests."""

import numpy as np
import pytest
from conftest import curves


def final_return(run_dir, episodes=100):
    return np.mean([value for _, value in curves(run_dir)["charts/episodic_return"]][-episodes:])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_cartpole_passes_200_within_100k_steps(runner, seed):
    run_dir = runner.train("--no-cuda", "--seed", seed, "--total-timesteps", 100_000)
    assert final_return(run_dir) > 200


@pytest.mark.slow
@pytest.mark.parametrize("env_id, score", [("CartPole-v1", 490), ("Acrobot-v1", -90)])
def test_published_scores_are_reached(runner, env_id, score):
    returns = [final_return(runner.train("--no-cuda", "--env-id", env_id, "--seed", seed)) for seed in (1, 2, 3)]
    assert np.mean(returns) >= score, returns


@pytest.mark.slow
def test_memory_stays_flat(runner):
    process = runner.start("-c", MEMORY)
    stdout, stderr = process.communicate()
    early, late = (int(x) for x in stdout.split()[-2:])
    assert process.returncode == 0, stderr
    assert late - early < 10_000, (early, late)  # kB


MEMORY = """
import pathlib, runpy, sys, threading, time
import cleanrl, torch
sizes = []
def watch():
    while True:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        sizes.append(int(next(line for line in lines if line.startswith("VmRSS")).split()[1]))
        time.sleep(0.5)
threading.Thread(target=watch, daemon=True).start()
script = pathlib.Path(cleanrl.__file__).with_name("ppo.py")
sys.argv[1:] = ["--no-cuda", "--total-timesteps", "500000"]
runpy.run_path(str(script), run_name="__main__")
print(sizes[len(sizes) // 4], sizes[-2])
"""
