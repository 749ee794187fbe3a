"""What a run of ppo.py promises beyond its formulas: its interface, what it logs, that it is repeatable, and alone.

What it promises when it is stopped, killed or resumed is in test_nothing_lost.py, what it says to wrong flags in
test_checks.py.
"""

import dataclasses
import fcntl
import importlib
import json
import os
import pty
import shutil
import struct
import sys
import termios
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, ROOT, SHORT, assert_same_run, curves
from safetensors.torch import safe_open

from cleanrl.ppo import Args, load_policy, make_envs

MODULES = ROOT / "tests" / "modules"


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "CartPole-v1",
        "total_timesteps": 500000, "learning_rate": 2.5e-4, "num_envs": 4, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_every_flag_is_used():
    source = "".join(path.read_text() for path in (PPO, *(ROOT / "cleanrl_utils").rglob("*.py")))
    for field in dataclasses.fields(Args):
        assert f"args.{field.name}" in source, field.name


def test_importing_the_file_has_no_side_effects(runner):
    code = "import torch; a = torch.get_num_threads(), torch.initial_seed()\n"
    code += "from cleanrl.ppo import Agent, make_env\n"
    code += "assert a == (torch.get_num_threads(), torch.initial_seed())"
    result = runner.run("-c", code)
    assert result.stdout == result.stderr == ""
    assert not list(runner.folder.iterdir())


def test_run_folder_describes_the_run(runner):
    run_dir = runner.train(*SHORT, "--seed", "3", "--save-model", "--exp-name", "mine")
    env_id, exp_name, seed, _ = run_dir.name.split("__")
    assert (env_id, exp_name, seed) == ("CartPole-v1", "mine", "3")
    assert (run_dir / "ppo.py").read_bytes() == PPO.read_bytes()
    args = json.loads((run_dir / "args.json").read_text())
    assert Args(**args) == dataclasses.replace(Args(**args), seed=3, num_envs=2, batch_size=64, num_iterations=20)
    with safe_open(run_dir / "mine.safetensors", "pt") as model:
        assert json.loads(model.metadata()["args"]) == args
    assert not list(run_dir.glob("*.tmp"))


def test_metrics_are_those_of_the_published_file(runner):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()}
    published |= {f"charts/{name}" for name in ["episodic_return", "episodic_length", "learning_rate", "SPS"]}
    logged = curves(runner.train(*SHORT))
    assert published <= logged.keys()
    for tag in published - {"charts/episodic_return", "charts/episodic_length"}:
        assert [step for step, _ in logged[tag]] == list(range(64, 1281, 64)), tag
    assert logged["charts/learning_rate"][0][1] == pytest.approx(2.5e-4)
    assert logged["charts/learning_rate"][-1][1] == pytest.approx(2.5e-4 / 20)


def test_every_finished_episode_is_logged_once_at_its_own_step(runner):
    run_dir = runner.train(*SHORT, "--env-id", "trap_envs:Ended-v0", modules=MODULES)
    returns, lengths = (curves(run_dir)[f"charts/episodic_{name}"] for name in ("return", "length"))
    # two environments, an episode every five steps of each: two end together, at steps 9 and 10, 19 and 20, ...
    assert [step for step, _ in returns] == [step for end in range(10, 1281, 10) for step in (end - 1, end)]
    assert {value for _, value in returns} == {value for _, value in lengths} == {5.0}


def test_output_without_a_terminal_is_plain_lines(runner):
    result = runner.run(PPO, *SHORT)
    assert "global_step=1280" in result.stdout and "tensorboard --logdir runs" in result.stdout
    assert "\r" not in result.stdout + result.stderr


def test_terminal_shows_a_progress_bar(runner):
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = runner.start(PPO, *SHORT, stdout=terminal, stderr=terminal)
    os.close(terminal)
    output = b""
    while True:
        try:
            chunk = os.read(controller, 4096)
        except OSError:  # the program has ended
            break
        output += chunk
    assert process.wait() == 0
    text = output.decode()
    assert "100%" in text and "step/s" in text and "episodic_return=" in text


def test_observations_of_any_kind_are_flattened(runner):
    runner.train(*SHORT, "--env-id", "FrozenLake-v1")  # integers
    runner.train(*SHORT, "--env-id", "Blackjack-v1")  # tuples


@pytest.mark.parametrize("flags", [["--target-kl", "1e-9"], ["--no-norm-adv", "--no-clip-vloss", "--no-anneal-lr"]])
def test_optional_behaviour_changes_the_result(runner, flags):
    default, changed = curves(runner.train(*SHORT)), curves(runner.train(*SHORT, "--exp-name", "changed", *flags))
    assert default["losses/value_loss"] != changed["losses/value_loss"]


# Repeatable


def test_same_seed_gives_the_same_run_and_another_seed_another(runner):
    runs = [
        runner.train(*SHORT, "--save-model", "--seed", seed, "--exp-name", f"run{i}") for i, seed in enumerate("112")
    ]
    assert_same_run(runs[0], runs[1])
    with pytest.raises(AssertionError):
        assert_same_run(runs[0], runs[2])


@pytest.mark.parametrize("flag, enabled", [("--torch-deterministic", True), ("--no-torch-deterministic", False)])
def test_determinism_is_asked_of_pytorch(runner, flag, enabled):
    code = f"import runpy, sys, torch; sys.argv[1:] = {[*SHORT, flag]!r}; "
    code += f"runpy.run_path({str(PPO)!r}, run_name='__main__'); print(torch.are_deterministic_algorithms_enabled())"
    assert runner.run("-c", code).stdout.splitlines()[-1] == str(enabled)


def test_compiled_update_learns_the_same_as_the_eager_one(runner):
    eager = curves(runner.train(*SHORT, "--exp-name", "eager"))
    compiled = curves(runner.train(*SHORT, "--exp-name", "compiled", "--compile"))
    # rounding differs, and chaos makes more of it over time: the first iterations agree closely
    for tag in ("losses/value_loss", "losses/policy_loss", "losses/entropy", "losses/grad_norm"):
        pairs = zip(eager[tag][:5], compiled[tag][:5], strict=True)
        np.testing.assert_allclose(*zip(*((x, y) for (_, x), (_, y) in pairs), strict=True), rtol=1e-3, atol=1e-5)


def test_tracking_works_offline_and_keeps_the_videos(runner):
    runner.run(PPO, *SHORT, "--track", "--capture-video")
    (tracked,) = runner.folder.glob("wandb/offline-run-*-CartPole-v1__ppo__1__*")
    assert list(tracked.glob("files/media/videos/videos/*.mp4"))


def test_tracking_without_an_account_says_what_to_do(runner):
    result = runner.run("-c", NO_ACCOUNT, PPO, *SHORT, "--track", check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "wandb login" in result.stderr and "WANDB_MODE=offline" in result.stderr


NO_ACCOUNT = """
import os, runpy, sys
os.environ |= {"WANDB_MODE": "online", "WANDB_API_KEY": "", "HOME": os.getcwd(), "NETRC": os.getcwd() + "/netrc"}
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# Alone


def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner):
    script = Path(shutil.copy(PPO, runner.folder / "my_ppo.py"))
    alone = MODULES / "without_utils"
    run_dir = runner.train(*SHORT, "--save-model", script=script, modules=alone)
    assert run_dir.name.startswith("CartPole-v1__my_ppo__1__") and (run_dir / "my_ppo.safetensors").exists()
    assert len(curves(run_dir)["losses/value_loss"]) == 20
    result = runner.run(script, "--resume", run_dir, modules=alone, check=False)
    assert result.returncode != 0 and "install cleanrl_utils" in result.stderr


def test_a_broken_cleanrl_utils_is_an_error_and_not_a_training_without_checkpoints(runner):
    without_a_module = "import sys, runpy; sys.modules['cleanrl_utils.progress'] = None; del sys.argv[0]; "
    without_a_module += "runpy.run_path(sys.argv[0], run_name='__main__')"
    result = runner.run("-c", without_a_module, PPO, *SHORT, check=False)
    assert result.returncode != 0 and "cleanrl_utils is there, but not complete" in result.stderr
    (runner.folder / "cleanrl_utils").mkdir()
    (runner.folder / "cleanrl_utils" / "__init__.py").write_text("")
    (runner.folder / "cleanrl_utils" / "run.py").write_text("from json import no_such_name")
    result = runner.run(PPO, *SHORT, modules=runner.folder, check=False)
    assert result.returncode != 0 and "no_such_name" in result.stderr
    assert not (runner.folder / "runs").exists()


# Truncation


@pytest.mark.parametrize(
    "env_id, value", [("Cut-v0", 1 / (1 - 0.9)), ("Ended-v0", np.mean([1, 1.9, 2.71, 3.439, 4.0951]))]
)
def test_value_of_a_truncated_episode_is_that_of_one_that_goes_on(runner, env_id, value):
    """Reward 1 for ever, seen in episodes of five steps: worth 10 if they are cut off, 2.6 if they end."""
    flags = ["--env-id", f"trap_envs:{env_id}", "--gamma", "0.9", "--gae-lambda", "1.0", "--learning-rate", "5e-3"]
    flags += ["--no-clip-vloss", "--num-steps", "25", "--num-envs", "4", "--total-timesteps", "15000", "--no-cuda"]
    run_dir = runner.train(*flags, "--save-model", modules=MODULES)
    sys.path.insert(0, str(MODULES))
    envs = make_envs(f"trap_envs:{env_id}", 1, False, "")
    policy = load_policy(next(run_dir.glob("*.safetensors")), envs)
    agent = policy.__closure__[policy.__code__.co_freevars.index("agent")].cell_contents
    assert agent.get_value(torch.ones(1, 1)).item() == pytest.approx(value, rel=0.05)


class OneArray(gym.Env):
    """Counts its steps in one array, which it returns from `step` and `reset` alike, and is cut off after three."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space
        self.array = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        self.array[:] = 0
        return self.array, {}

    def step(self, action):
        self.array += 1
        return self.array, 0.0, False, self.array[0] == 3, {}


gym.register("OneArrayDiscrete-v0", OneArray, kwargs={"action_space": gym.spaces.Discrete(2)})
gym.register("OneArrayBox-v0", OneArray, kwargs={"action_space": gym.spaces.Box(-1, 1, (1,))})
DISCRETE = ["ppo", "pqn", "dqn", "c51", "dqn_jax", "c51_jax"]
ROBOTS = ["ppo", "rpo", "ddpg", "td3", "sac"]
CONTINUOUS = [f"{name}_continuous_action" for name in ROBOTS] + [f"{name}_continuous_action_jax" for name in ROBOTS[2:]]


@pytest.mark.parametrize("name", DISCRETE + CONTINUOUS)
def test_last_observation_survives_the_reset_of_an_environment_that_reuses_its_array(name):
    if name.endswith("jax"):
        pytest.importorskip("jax")
    kind = "Discrete" if name in DISCRETE else "Box"
    envs = importlib.import_module(f"cleanrl.{name}").make_envs(f"OneArray{kind}-v0", 2, False, "")
    envs.reset(seed=1)
    for _ in range(3):
        next_obs, _, _, _, infos = envs.step(envs.action_space.sample())
    assert np.array_equal(next_obs, np.zeros((2, 2)))
    assert np.array_equal(np.stack(infos["final_obs"]), np.full((2, 2), 3.0))
