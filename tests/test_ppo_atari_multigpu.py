"""PPO in several processes: it learns what one process with all the environments learns, and ends as one."""

import dataclasses
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves

from cleanrl import ppo_atari, ppo_atari_multigpu

pytest.importorskip("ale_py", reason="needs cleanrl[atari]")
pytest.importorskip("stable_baselines3", reason="needs cleanrl[atari]")

PARENT = ROOT / "cleanrl" / "ppo_atari.py"
SCRIPT = ROOT / "cleanrl" / "ppo_atari_multigpu.py"
MODULES = ROOT / "tests" / "modules"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
DRIFT = [MODULES / "pixel_game.py", SCRIPT, "--no-cuda", "--env-id", "Drift-v0"]  # an Atari game with short episodes
SHORT = ["--local-num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--update-epochs", "2"]
RUN = [*TORCHRUN, *DRIFT, *SHORT, "--save-model", "--checkpoint-frequency", "64"]


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_atari_multigpu", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False,
        "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000, "learning_rate": 2.5e-4,
        "local_num_envs": 8, "num_steps": 128, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95,
        "num_minibatches": 4, "update_epochs": 4, "norm_adv": True, "clip_coef": 0.1, "clip_vloss": True,
        "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None, "backend": "gloo",
        "local_batch_size": 0, "local_minibatch_size": 0, "num_envs": 0, "batch_size": 0, "minibatch_size": 0,
        "num_iterations": 0, "world_size": 0,
    }  # fmt: skip
    defaults = dataclasses.asdict(ppo_atari_multigpu.Args())
    assert published.items() <= defaults.items() and list(defaults["device_ids"]) == []


# What is learned


def test_mean_of_the_losses_of_two_halves_is_the_loss_of_the_whole():
    args = SimpleNamespace(norm_adv=False, clip_coef=0.1, clip_vloss=True, ent_coef=0.01, vf_coef=0.5)
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(64, generator=generator) * 0.3 for _ in range(7)]
    leaves = [x.requires_grad_() for x in whole[:3]]
    loss, stats = ppo_atari.ppo_loss(*whole, args)
    expected = torch.autograd.grad(loss, leaves)
    halves = [ppo_atari_multigpu.ppo_loss(*half, args) for half in zip(*(x.split(32) for x in whole), strict=True)]
    torch.testing.assert_close((halves[0][0] + halves[1][0]) / 2, loss)
    for name, x in stats.items():
        torch.testing.assert_close((halves[0][1][name] + halves[1][1][name]) / 2, x)
    for gradient, reference in zip(torch.autograd.grad((halves[0][0] + halves[1][0]) / 2, leaves), expected):
        torch.testing.assert_close(gradient, reference)


# Runs a script with the random numbers of two halves of the environments, in one process or in two: the same noise for
# the same environment, and minibatches that consist of the same transitions. Keeps what the clipping gets to see.
HALVES = """
import os, runpy, sys
import gymnasium as gym, numpy as np, torch
script, half, minibatches, sys.argv[1:] = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
rank, halves = int(os.environ.get("RANK", 0)), [int(os.environ["RANK"])] if "RANK" in os.environ else [0, 1]
noise, shuffles = np.random.default_rng(1), [np.random.default_rng(2), np.random.default_rng(3)]
clip, reset, gradients, seeds, agent = torch.nn.utils.clip_grad_norm_, gym.vector.SyncVectorEnv.reset, [], [], []

def exponential(x):
    everyones = torch.as_tensor(noise.exponential(size=(2 * half, x.shape[1])))
    return x.copy_(everyones[rank * half :][: len(x)])

def randperm(n, device):
    parts = []
    for place, i in enumerate(halves):
        step, env = np.divmod(shuffles[i].permutation(n // len(halves)), half)
        parts.append(np.split((step * len(halves) + place) * half + env, minibatches))
    return torch.as_tensor(np.concatenate(parts, axis=1).flatten())

def watch_clip(parameters, norm):
    agent[:] = parameters
    if not gradients:
        gradients.append(torch.cat([p.detach().flatten() for p in agent]))
    gradients.append(torch.cat([p.grad.flatten() for p in agent]))
    return clip(agent, norm)

def watch_reset(envs, *, seed=None, options=None):
    seeds.extend(range(seed, seed + envs.num_envs))
    return reset(envs, seed=seed, options=options)

torch.Tensor.exponential_, torch.randperm, torch.nn.utils.clip_grad_norm_ = exponential, randperm, watch_clip
gym.vector.SyncVectorEnv.reset = watch_reset
try:
    runpy.run_path(script, run_name="__main__")
except SystemExit as end:  # how the ranks beside the first one end
    assert rank == 1 and not end.code
final = torch.cat([p.detach().flatten() for p in agent])
name = f"rank{rank}.npz" if "RANK" in os.environ else "one.npz"
np.savez(name, initial=gradients[0], gradients=torch.stack(gradients[1:]), final=final, seeds=seeds)
"""
PONG = ["--no-cuda", "--env-id", "PongNoFrameskip-v4", "--num-steps", "16", "--num-minibatches", "2"]
PONG += ["--update-epochs", "3", "--total-timesteps", "192", "--learning-rate", "1e-3", "--target-kl", "7e-4"]
PONG += ["--accelerate", "off"]  # what is replayed would not call what the harness watches


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """What one process with four environments did, what two with two did, and the folder of both."""
    runner = Runner(tmp_path_factory.mktemp("halves"))
    harness = runner.folder / "harness.py"
    harness.write_text(HALVES)
    runner.run(harness, PARENT, 2, 2, *PONG, "--num-envs", 4, "--exp-name", "one")
    runner.run(*TORCHRUN, harness, SCRIPT, 2, 2, *PONG, "--local-num-envs", 2, "--exp-name", "two")
    one, *two = (np.load(runner.folder / name) for name in ("one.npz", "rank0.npz", "rank1.npz"))
    return one, two, runner.folder


def test_two_processes_have_the_gradients_of_one_with_all_environments(halves):
    one, two, _ = halves
    assert 6 < len(one["gradients"]) < 18  # three iterations, and the KL divergence ended some of their epochs
    for rank in two:
        assert rank["gradients"].shape == one["gradients"].shape
        for gradient, reference in zip(rank["gradients"], one["gradients"], strict=True):
            assert np.linalg.norm(gradient - reference) < 1e-4 * np.linalg.norm(reference)


def test_two_processes_arrive_at_the_parameters_of_one_with_all_environments(halves):
    one, two, _ = halves
    moved = np.linalg.norm(one["final"] - one["initial"])
    assert moved > 0.5
    for rank in two:
        np.testing.assert_array_equal(rank["initial"], one["initial"])
        assert np.linalg.norm(rank["final"] - one["final"]) < 1e-3 * moved


def test_processes_agree_to_the_bit_and_have_environments_of_their_own(halves):
    _, (rank0, rank1), _ = halves
    for name in ("initial", "gradients", "final"):
        np.testing.assert_array_equal(rank0[name], rank1[name])
    assert rank0["seeds"].tolist() == [1, 2] and rank1["seeds"].tolist() == [3, 4]


def test_logged_losses_are_those_of_all_processes(halves):
    one, two = (curves(next(halves[2].glob(f"runs/*__{name}__*"))) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for tag in one.keys() - {"charts/SPS", "losses/explained_variance"}:  # of rank 0 alone
        assert [step for step, _ in two[tag]] == [step for step, _ in one[tag]], tag
        np.testing.assert_allclose(
            [x for _, x in two[tag]], [x for _, x in one[tag]], rtol=1e-3, atol=1e-5, err_msg=tag
        )


# What a run leaves behind


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    runner = Runner(tmp_path_factory.mktemp("trained"))
    result = runner.run(*RUN, "--total-timesteps", "384")
    return next(runner.folder.glob("runs/*")), result


def test_only_rank_0_writes(trained):
    run_dir, result = trained
    assert [x.name for x in run_dir.parent.iterdir()] == [run_dir.name]
    events = list(run_dir.rglob("events*"))
    files = {"args.json", "provenance.json", "progress.json", "checkpoint.pt"}
    files |= {"ppo_atari_multigpu.py", "ppo_atari_multigpu.safetensors"}
    files.add(events[0].name)
    assert len(events) == 1 and {x.name for x in run_dir.iterdir()} == files
    assert result.stdout.count("global_step=384,") == 1 and result.stdout.count("evaluation:") == 1


def test_steps_are_counted_over_all_processes(trained):
    args = json.loads((trained[0] / "args.json").read_text())
    computed = {"world_size": 2, "num_envs": 4, "local_batch_size": 32, "batch_size": 64, "local_minibatch_size": 16}
    assert args.items() >= (computed | {"minibatch_size": 32, "num_iterations": 6, "seed": 1}).items()
    assert [step for step, _ in curves(trained[0])["losses/value_loss"]] == list(range(64, 385, 64))


def test_curves_are_the_published_ones(trained):
    published = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    tags = {f"losses/{name}" for name in published.split()}
    tags |= {f"charts/{name}" for name in ("episodic_return", "episodic_length", "learning_rate", "SPS")}
    assert curves(trained[0]).keys() == tags | {"losses/grad_norm", "eval/episodic_return"}


def test_episodes_of_all_processes_are_logged_each_at_a_step_of_its_own(trained):
    steps = [step for step, _ in curves(trained[0])["charts/episodic_return"]]
    assert steps == sorted(set(steps)) and {(step - 1) % 4 for step in steps} == {0, 1, 2, 3}  # of four environments
    returns = torch.load(trained[0] / "checkpoint.pt", weights_only=False)["recent_returns"]
    assert list(returns) == [value for _, value in curves(trained[0])["charts/episodic_return"]][-100:]


def test_model_loads_as_one_of_the_parent(trained):
    model = trained[0] / "ppo_atari_multigpu.safetensors"
    envs = ppo_atari_multigpu.make_envs("PongNoFrameskip-v4", 1, False, "")
    obs, _ = envs.reset(seed=1)
    envs.single_action_space = SimpleNamespace(n=3)  # those of Drift
    actions = [module.load_policy(model, envs)(obs) for module in (ppo_atari, ppo_atari_multigpu)]
    assert actions[0] == actions[1]


@pytest.mark.slow
def test_replayed_policy_gives_the_same_numbers_in_all_processes(runner, trained):
    result = runner.run(*RUN, "--total-timesteps", "384", "--accelerate", "on")
    assert "as written" not in result.stderr  # the policy is replayed, and of the update nothing is asked
    assert_same_run(trained[0], next(runner.folder.glob("runs/*")))


def test_run_with_a_killed_rank_ends_and_resumes_to_the_same_numbers(runner, trained):
    process = runner.start(*RUN, "--total-timesteps", "384")
    checkpoint = runner.wait_for("runs/*/checkpoint.pt", process)
    ranks = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0 and not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 384

    alone = runner.run(*DRIFT, "--resume", checkpoint.parent, check=False)
    assert alone.returncode != 0 and "nproc_per_node=2" in alone.stderr and "Traceback" not in alone.stderr
    result = runner.run(*TORCHRUN, *DRIFT, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_run(trained[0], checkpoint.parent)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM], ids=["ctrl_c", "sigterm"]
)
def test_run_that_is_asked_to_stop_saves_the_state_of_all_processes_and_says_how_to_go_on(runner, number):
    process = runner.start(*RUN, "--total-timesteps", "38400", start_new_session=True)
    checkpoint = runner.wait_for("runs/*/checkpoint.pt", process)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)  # as a scheduler does, to torchrun alone
    _, stderr = process.communicate(timeout=120)
    saved = torch.load(checkpoint, weights_only=False)
    assert process.returncode != 0
    assert f"step {saved['global_step']} is saved" in stderr
    assert f"--nproc_per_node=2 {os.path.relpath(SCRIPT, runner.folder)} --resume" in stderr
    assert f"--resume {checkpoint.parent.relative_to(runner.folder)}" in stderr
    assert len(saved["ranks"]) == 2 and all(own["envs"] is not None for own in saved["ranks"])
    assert stderr.count("Traceback") == 1  # torchrun's own


def test_one_process_needs_neither_torchrun_nor_the_repository(runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    flags = [*DRIFT[2:], *SHORT, "--total-timesteps", "96", "--save-model"]
    runner.run(MODULES / "pixel_game.py", script, *flags, modules=MODULES / "without_utils")
    run_dir = next(runner.folder.glob("runs/*"))
    assert (run_dir / "mine.safetensors").exists() and len(curves(run_dir)["losses/value_loss"]) == 3


# Mistakes


POISON = """
import os, runpy, sys
sys.path.insert(0, sys.argv.pop(1))
import pixel_game
step = pixel_game.Drift.step
def poisoned(env, action):
    obs, reward, *rest = step(env, action)
    return obs, float("nan") if os.environ["RANK"] == "1" else reward, *rest
pixel_game.Drift.step = poisoned
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_non_finite_numbers_of_one_rank_end_all(runner):
    (runner.folder / "poison.py").write_text(POISON)
    flags = [*TORCHRUN, runner.folder / "poison.py", MODULES, *DRIFT[1:], *SHORT, "--total-timesteps", "38400"]
    result = runner.run(*flags, check=False)
    assert result.returncode != 0 and "is not finite at global_step=64" in result.stderr


def test_mistake_gets_one_line_and_ends_all(runner):
    process = runner.start(*TORCHRUN, *DRIFT[1:], *SHORT, "--num-minibatches", 5)
    _, stderr = process.communicate(timeout=120)
    ours = stderr.split("Traceback")[0].splitlines()  # the rest is torchrun's, as are lines that begin with W or E
    assert [x for x in ours if x[:1] not in "WE"] == ["2 envs x 16 steps do not split into 5 minibatches"]
    assert process.returncode != 0 and not list(runner.folder.iterdir())


def test_unusable_gpus_and_backends_get_one_line(runner):
    mistakes = {
        "--device-ids 0 1": "--device-ids: each of 1 processes needs one of 0 GPUs",
        "--backend nccl": "--backend nccl: ",
        "--backend carrier-pigeon": "--backend carrier-pigeon: this PyTorch was built without it",
    }
    for flags, line in mistakes.items():
        result = runner.run(SCRIPT, *flags.split(), check=False)
        assert result.returncode == 1 and result.stderr.startswith(line) and result.stderr.count("\n") == 1
    assert not list(runner.folder.iterdir())
