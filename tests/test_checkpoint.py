"""Checkpoints: when they are due, what they hold, what never gets into one, and how everything is put back."""

import json
import random
import signal
from collections import deque
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import PPO, SHORT

from cleanrl_utils import checkpoint, provenance, stop
from cleanrl_utils.checkpoint import checkpoint_due, last_step, save_checkpoint
from cleanrl_utils.restore import load, restore, start_again

# When


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(checkpoint, "time", clock)
    checkpoint.start_clock()
    return clock


def args(frequency=1000, total=10_000, **others):
    return SimpleNamespace(checkpoint_frequency=frequency, total_timesteps=total, resume=None, seed=1, **others)


def test_checkpoint_is_due_when_a_multiple_of_the_frequency_is_crossed_and_at_the_end(clock):
    due = [step for step in range(64, 10_000, 64) if checkpoint_due(args(), step, 64)]
    assert due == [1024, 2048, 3008, 4032, 5056, 6016, 7040, 8000, 9024, 9984]  # the latter is the last rollout
    due = [step for step in range(1, 10_001) if checkpoint_due(args(frequency=4000), step, 1)]
    assert due == [4000, 8000, 10_000]
    assert checkpoint_due(args(frequency=1), 64, 64)


def test_checkpoint_is_due_ten_minutes_after_the_last_one(clock):
    clock.now += 599
    assert not checkpoint_due(args(), 500, 1)
    clock.now += 2
    assert checkpoint_due(args(), 500, 1)
    checkpoint.start_clock()
    assert not checkpoint_due(args(), 501, 1)


def test_large_checkpoints_take_at_most_a_tenth_of_the_time(clock):
    checkpoint.start_clock(2.0)
    clock.now += 17
    assert not checkpoint_due(args(), 1000, 1)
    assert checkpoint_due(args(), 10_000, 1)  # the end of the run
    clock.now += 2
    assert checkpoint_due(args(), 2000, 1) and not checkpoint_due(args(), 2001, 1)
    checkpoint.start_clock(0.4)  # a small one
    assert checkpoint_due(args(), 3000, 1)
    checkpoint.start_clock(100.0)
    clock.now += 601  # ten minutes are more important
    assert checkpoint_due(args(), 3001, 1)


def test_saving_is_timed(clock, monkeypatch, tmp_path):
    def save_slowly(*_):
        clock.now += 3

    monkeypatch.setattr(checkpoint, "save_state", save_slowly)
    save_checkpoint(str(tmp_path), args(), str(PPO), None, {"global_step": 1000})
    clock.now += 26
    assert not checkpoint_due(args(), 2000, 1)
    clock.now += 2
    assert checkpoint_due(args(), 3000, 1)


def test_without_a_frequency_a_checkpoint_is_due_only_when_the_run_is_asked_to_stop(clock, monkeypatch):
    clock.now += 10_000
    assert not any(checkpoint_due(args(frequency=0), step, 1) for step in range(1, 10_001))
    monkeypatch.setattr(stop, "requested", signal.SIGTERM)
    assert checkpoint_due(args(frequency=0), 17, 1)


SLOW_CLOCK = """
import itertools, runpy, sys
from types import SimpleNamespace
from cleanrl_utils import checkpoint, run
minutes = itertools.count()
checkpoint.time = SimpleNamespace(monotonic=lambda: 60 * next(minutes))  # each look at the clock is a minute later
save = run.save_checkpoint
def save_and_tell(run_dir, args, script, writer, state):
    print("SAVED", state["global_step"])
    save(run_dir, args, script, writer, state)
run.save_checkpoint = save_and_tell
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_training_is_saved_every_ten_minutes(runner):
    """Ten minutes are over at the 11th look at the clock; saving sets it anew, which is a look as well."""
    result = runner.run("-c", SLOW_CLOCK, PPO, *SHORT)
    saved = [int(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("SAVED")]
    assert saved == [11 * 64, 20 * 64]  # and at the end


# What


class Writer:
    flushed = 0

    def flush(self):
        self.flushed += 1


class Buffer:
    """A replay buffer of which two rows are in use."""

    def __init__(self):
        self.rows = torch.zeros(10_000, 3)

    def state_dict(self):
        return {"rows": self.rows[:2]}

    def load_state_dict(self, state):
        self.rows[:2] = state["rows"]


def make_state(seed: int) -> dict:
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    network.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    optimizer = torch.optim.Adam(network.parameters(), torch.tensor(0.1 * seed))
    for _ in range(seed):
        network(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    envs = gym.make_vec("CartPole-v1", 2)
    envs.reset(seed=seed)
    state = {
        "global_step": 10 * seed,
        "next_obs": np.full((2, 4), seed, np.float32),
        "recent_returns": deque([float(seed)], maxlen=100),
        "envs": envs,
        "network": network,
        "optimizer": optimizer,
        "log_alpha": torch.full((1,), float(seed), requires_grad=True),
        "memory": (torch.full((2, 3), float(seed)), torch.full((2, 3), -float(seed))),
        "buffer": Buffer(),
        "note": f"seed {seed}",
    }
    state["buffer"].rows += seed
    return state


def save(run_dir, state, **flags):
    save_checkpoint(str(run_dir), args(**flags), "ppo.py", Writer(), state)


def tensors(state: dict) -> list[torch.Tensor]:
    modules = [*state["network"].state_dict().values(), state["log_alpha"], *state["memory"]]
    moments = [x for entry in state["optimizer"].state_dict()["state"].values() for x in entry.values()]
    return [x.detach().clone() for x in (*modules, *moments, state["buffer"].rows[:2])]


def test_everything_is_put_back_in_place(tmp_path):
    saved, state = make_state(2), make_state(3)
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    save(tmp_path, saved)
    numbers = random.random(), np.random.rand(), torch.rand(1).item()
    objects = dict(state)
    rate = state["optimizer"].param_groups[0]["lr"]
    loaded = load(str(tmp_path), "somewhere/ppo.py")
    restore(loaded, state)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == numbers
    for x, y in zip(tensors(state), tensors(saved), strict=True):
        assert torch.equal(x, y)
    for name in ("envs", "network", "optimizer", "log_alpha", "memory", "buffer"):
        assert state[name] is objects[name], name
    assert state["memory"][0] is objects["memory"][0] and state["log_alpha"].requires_grad
    assert (state["global_step"], state["note"], list(state["recent_returns"])) == (20, "seed 2", [2.0])
    assert state["recent_returns"].maxlen == 100 and (state["next_obs"] == 2).all()
    for actions in np.random.default_rng(1).integers(2, size=(100, 2)):
        for x, y in zip(state["envs"].step(actions)[:4], saved["envs"].step(actions)[:4], strict=True):
            np.testing.assert_array_equal(x, y)
    assert state["optimizer"].param_groups[0]["lr"] is rate and rate == torch.tensor(0.2)


@pytest.mark.parametrize(
    "changed, rate", [([], 0.2), (["gamma"], 0.2), (["learning_rate"], 0.3), (["q_lr"], 0.3), (["anneal_lr"], 0.3)]
)
def test_learning_rate_is_the_saved_one_unless_a_flag_changes_it(tmp_path, changed, rate):
    save(tmp_path, make_state(2))
    state = make_state(3)
    restore(load(str(tmp_path), "ppo.py") | {"changed": changed}, state)
    assert state["optimizer"].param_groups[0]["lr"] == torch.tensor(rate)


def test_rate_that_is_a_number_is_restored_like_one_that_is_a_tensor(tmp_path):
    def state(rate):
        network = torch.nn.Linear(1, 1)
        return {"global_step": 1, "network": network, "optimizer": torch.optim.Adam(network.parameters(), rate)}

    save(tmp_path, state(0.1))
    for changed, rate in (([], 0.1), (["learning_rate"], 0.5)):
        other = state(0.5)
        restore(load(str(tmp_path), "ppo.py") | {"changed": changed}, other)
        assert other["optimizer"].param_groups[0]["lr"] == rate


def test_unused_rows_of_a_replay_buffer_are_not_saved(tmp_path):
    save(tmp_path, {"global_step": 1, "buffer": Buffer()})
    assert (tmp_path / "checkpoint.pt").stat().st_size < 50_000


# What not


def spoil_parameter(state, x):
    with torch.no_grad():
        state["network"][0].weight[1, 1] = x


def spoil_moment(state, x):
    parameter = next(state["network"].parameters())
    state["optimizer"].state[parameter]["exp_avg"][0, 0] = x


def spoil_statistics(state, x):
    state["network"][1].running_mean[2] = x


def spoil_tensor(state, x):
    with torch.no_grad():
        state["log_alpha"].fill_(x)


def spoil_buffer(state, x):
    state["buffer"].rows[1, 2] = x


def spoil_observation(state, x):
    state["next_obs"][0, 0] = x


@pytest.mark.parametrize(
    "spoil, x, name",
    [
        (spoil_parameter, torch.nan, "network.0.weight"),
        (spoil_parameter, torch.inf, "network.0.weight"),
        (spoil_moment, torch.nan, "optimizer.0.exp_avg"),
        (spoil_moment, -torch.inf, "optimizer.0.exp_avg"),
        (spoil_statistics, torch.nan, "network.1.running_mean"),
        (spoil_tensor, torch.nan, "log_alpha"),
        (spoil_buffer, torch.nan, "buffer.rows"),
        (spoil_observation, np.nan, "next_obs"),
    ],
)
def test_checkpoint_that_is_not_finite_never_replaces_a_good_one(tmp_path, spoil, x, name):
    state = make_state(2)
    save(tmp_path, state)
    good = (tmp_path / "checkpoint.pt").read_bytes()
    spoil(state, x)
    state["global_step"] = 30
    with pytest.raises(FloatingPointError, match=f"{name} is not finite at global_step=30"):
        save(tmp_path, state)
    assert (tmp_path / "checkpoint.pt").read_bytes() == good and last_step(tmp_path) == 20
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "provenance.json"}


def test_rows_of_a_replay_buffer_that_are_not_in_use_may_hold_anything(tmp_path):
    state = make_state(2)
    state["buffer"].rows[2:] = torch.nan
    save(tmp_path, state)


# How far


def test_step_of_a_run_is_known_without_executing_its_checkpoint(tmp_path):
    assert last_step(tmp_path) is None
    (tmp_path / "provenance.json").write_text(json.dumps({"commit": "abc", "tags": ["x"]}))
    assert last_step(tmp_path) is None  # a run from before steps were noted
    save(tmp_path, make_state(2))
    (tmp_path / "checkpoint.pt").write_bytes(b"not to be read")
    assert last_step(tmp_path) == 20
    assert provenance.read(tmp_path) == {"commit": "abc", "tags": ["x"], "global_step": 20}
    (tmp_path / "provenance.json").write_text("{")
    assert last_step(tmp_path) is None


# Environments that cannot be restored


class Life(gym.Wrapper):
    """Like EpisodicLifeEnv: only the first reset reaches the environment with its seed, later ones take a step."""

    begun = False

    def reset(self, **options):
        if not self.begun:
            self.begun = True
            return self.env.reset(**options)
        return self.env.step(0)[0], {}


def first_observations(reset):
    thunk = lambda: Life(gym.make("CartPole-v1"))  # noqa: E731
    envs = gym.vector.SyncVectorEnv([thunk, thunk], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    envs.reset(seed=1)
    return reset(envs).copy()


def test_environments_that_start_again_get_fresh_seeds_for_certain():
    as_before = first_observations(lambda envs: envs.reset()[0])
    by_wrapper = first_observations(lambda envs: envs.reset(seed=7)[0])
    np.testing.assert_array_equal(as_before, by_wrapper)  # the wrapper keeps the seed to itself
    fresh = first_observations(lambda envs: start_again(envs, 7)[1])
    same = first_observations(lambda envs: start_again(envs, 7)[1])
    other = first_observations(lambda envs: start_again(envs, 8)[1])
    np.testing.assert_array_equal(fresh, same)
    assert (fresh != as_before).all() and (fresh != other).all()


@pytest.mark.parametrize("in_list", [False, True])
def test_pools_of_envpool_start_again_with_fresh_seeds(in_list):
    envpool = pytest.importorskip("envpool")

    def play(seed):
        pool = envpool.make_gymnasium("Pong-v5", num_envs=2, seed=1, episodic_life=True)
        pool.reset()
        if seed is not None:
            envs, next_obs = start_again([pool] if in_list else pool, seed)
            pool = envs[0] if in_list else envs
            assert next_obs.shape == (2, 4, 84, 84) and pool.config["episodic_life"]
        pool.reset()
        frames = [pool.step(np.array([2, 3]))[0] for _ in range(40)]
        return np.stack(frames)

    fresh, same, as_before = play(7), play(7), play(None)
    assert (fresh == same).all() and (fresh != as_before).any()


# Several processes


TWO_RANKS = """
import os, signal, sys
from types import SimpleNamespace
import torch, torch.distributed as dist
from cleanrl_utils import checkpoint, stop
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "WORLD_SIZE": "2"}
children = []
for rank in range(2):
    child = os.fork()
    if not child:
        os.environ["RANK"] = str(rank)
        dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
        args = SimpleNamespace(checkpoint_frequency=1000, total_timesteps=10**6, resume=None)
        code = 1
        try:
            assert not checkpoint.checkpoint_due(args, 1, 1)
            if rank == 0:
                checkpoint.last_saved -= 601  # the clocks of two machines differ
            assert checkpoint.checkpoint_due(args, 2, 1)
            checkpoint.start_clock()
            assert not checkpoint.checkpoint_due(args, 3, 1)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            assert checkpoint.checkpoint_due(args, 4, 1)
            writer = SimpleNamespace(flush=lambda: None) if rank == 0 else None
            checkpoint.save_checkpoint(".", args, "ppo.py", writer, {"global_step": 4})
        except SystemExit as end:
            code = end.code or 0
        sys.stderr.flush()
        os._exit(code)
    children.append(child)
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_processes_that_train_together_save_and_stop_together(runner):
    result = runner.run("-c", TWO_RANKS)
    assert result.stdout.strip() == "143 0", result.stderr
    assert result.stderr.count("stopped by SIGTERM: step 4 is saved") == 1 and "Traceback" not in result.stderr
    assert last_step(runner.folder) == 4
