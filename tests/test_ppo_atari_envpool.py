"""PPO on EnvPool's games: its reset steps are not trained on, its pools play at once, and what a run promises."""

import dataclasses
import random
import runpy
import shutil
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils.tensorboard import SummaryWriter

from cleanrl import ppo_atari
from cleanrl.ppo_atari_envpool import Agent, Args, load_policy, make_envs, ppo_loss
from cleanrl_utils.envpool_games import EnvPoolGames
from cleanrl_utils.evaluate import evaluate, main

envpool = pytest.importorskip("envpool", reason="needs cleanrl[envpool]", exc_type=ImportError)
SCRIPT = ROOT / "cleanrl" / "ppo_atari_envpool.py"
MODULES = ROOT / "tests" / "modules"
NUM_ENVS, NUM_STEPS, ITERATIONS = 6, 16, 20
HALVES = slice(NUM_ENVS // 2), slice(NUM_ENVS // 2, NUM_ENVS)
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 2, "--update-epochs", 1]
FLAGS += ["--total-timesteps", NUM_ENVS * NUM_STEPS * ITERATIONS]
# Time limits of the two pools. The short one of Breakout cuts the first games off at the last step of the first
# rollout; the long ones let some games end by themselves. A life lasts 24 steps at least in Breakout.
LIMITS = {"Breakout-v5": (NUM_STEPS, 150), "Asterix-v5": (60, 215)}
KEPT = ["obs", "actions", "rewards", "terminations", "truncations", "valid", "advantages", "returns", "next_obs"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Watching the script


class WatchedPool:
    """One pool of environments. `clock` counts the time that the script waits if every step of a pool takes 1.

    A spoiled one passes other actions to EnvPool's reset steps, and returns rubbish where only these could learn from
    it: as their rewards, and as the observation after the end of an episode.
    """

    def __init__(self, pool, clock, spoil):
        self.pool, self.clock, self.spoil = pool, clock, spoil
        self.over = np.zeros(pool.num_envs, dtype=bool)
        self.rng = np.random.default_rng(1)

    def __getattr__(self, name):
        return getattr(self.pool, name)

    def send(self, actions):
        if self.spoil:
            others = self.rng.integers(self.pool.single_action_space.n, size=actions.shape)
            actions = np.where(self.over, others, actions)
        self.ready = self.clock["now"] + 1
        self.pool.send(actions)

    def recv(self):
        self.clock["now"] = max(self.clock["now"], self.ready)
        obs, rewards, terminations, truncations, infos = self.pool.recv()
        if self.spoil:
            rewards = np.where(self.over, 1000, rewards)
            noise = self.rng.integers(256, size=obs.shape, dtype=np.uint8)
            obs = np.where(terminations[:, None, None, None], noise, obs)
            self.over = terminations | truncations
        return obs, rewards, terminations, truncations, infos


def run_script(folder, *flags, limits=(), spoil=False, watch=True):
    """Run the script in this process; returns its pools, what each rollout held, and how long the pools played."""
    make, add_scalar, clock, pools, rollouts = envpool.make_gymnasium, SummaryWriter.add_scalar, {"now": 0}, [], []
    limits = list(limits)

    def make_watched(env_id, **settings):
        limit = {"max_episode_steps": limits.pop(0)} if limits else {}
        pool = make(env_id, **settings, **limit)
        pools.append(WatchedPool(pool, clock, spoil) if watch else pool)
        return pools[-1]

    def add_scalar_and_look(writer, tag, *rest):
        add_scalar(writer, tag, *rest)
        if tag == "charts/avg_episodic_return":  # the last of an iteration
            script = sys._getframe(1).f_globals
            rollout = {name: torch.as_tensor(script[name]).numpy().copy() for name in KEPT}
            model = {name: x.clone() for name, x in script["agent"].state_dict().items()}
            seeds = [pool.config["seed"] for pool in script["envs"]]
            rollouts.append(SimpleNamespace(**rollout, model=model, seeds=seeds))

    deterministic = torch.are_deterministic_algorithms_enabled()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(SCRIPT), *map(str, flags)])
        patch.setattr(sys, "excepthook", sys.excepthook)  # the script sets these: put them back afterwards
        patch.setattr(threading, "excepthook", threading.excepthook)
        patch.setattr(envpool, "make_gymnasium", make_watched)
        patch.setattr(SummaryWriter, "add_scalar", add_scalar_and_look)
        try:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        finally:
            torch.use_deterministic_algorithms(deterministic)
    return SimpleNamespace(pools=pools, rollouts=rollouts, time=clock["now"], run_dir=next(folder.glob("runs/*")))


def replay(env_id, seeds, limits, actions):
    """What plain EnvPool, one environment at a time, returns to the same actions.

    Only to those that it does not ignore: others take their place where an episode has just ended.
    """
    columns, rng = [], np.random.default_rng(2)
    for seed, limit, column in zip(seeds, limits, actions.T, strict=True):
        settings = {"num_envs": 1, "seed": seed, "episodic_life": True, "reward_clip": True}
        pool = envpool.make_gymnasium(env_id, max_episode_steps=limit, **settings)
        rows, over = [], False
        obs, _ = pool.reset()
        for action in column:
            action = rng.integers(pool.single_action_space.n) if over else action
            next_obs, reward, termination, truncation, infos = pool.step(np.array([action]))
            outcome = reward, termination, truncation, infos["reward"], infos["terminated"], infos["elapsed_step"]
            rows.append((obs[0], *(x[0] for x in outcome), next_obs[0]))
            obs, over = next_obs, termination[0] or truncation[0]
        columns.append(rows)
    names = ["obs", "rewards", "terminations", "truncations", "scores", "over", "elapsed", "next_obs"]
    arrays = {name: np.array([[row[i] for row in rows] for rows in columns]) for i, name in enumerate(names)}
    return SimpleNamespace(**{name: x.swapaxes(0, 1) for name, x in arrays.items()})  # (steps, environments, ...)


@pytest.fixture(scope="module", params=LIMITS)
def recorded(request, tmp_path_factory):
    """A run, and the same games in plain EnvPool."""
    env_id, limits = request.param, LIMITS[request.param]
    run = run_script(tmp_path_factory.mktemp("recorded"), *FLAGS, "--env-id", env_id, limits=limits)
    size = NUM_ENVS // 2
    seeds = [pool.config["seed"] + i for pool in run.pools for i in range(size)]
    actions = np.concatenate([rollout.actions for rollout in run.rollouts])
    run.env_id = env_id
    run.games = replay(env_id, seeds, np.repeat(limits, size), actions)
    run.curves = curves(run.run_dir)
    # EnvPool counts the steps of a game that it has played: not those that only reset
    elapsed = np.concatenate([np.zeros((1, NUM_ENVS)), run.games.elapsed])
    run.games.played = np.diff(elapsed, axis=0) == 1
    return run


def parts(run):
    """Each rollout of the script with the slice of the game that it should hold."""
    assert len(run.rollouts) == ITERATIONS
    return [(rollout, slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)) for i, rollout in enumerate(run.rollouts)]


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_atari_envpool", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "Breakout-v5",
        "total_timesteps": 10_000_000, "learning_rate": 2.5e-4, "num_envs": 8, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_metrics_are_those_of_the_published_file(recorded):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()}
    published |= {f"charts/{name}" for name in ["avg_episodic_return", "learning_rate", "SPS"]}
    for tag in published:
        steps = [step for step, _ in recorded.curves[tag]]
        assert steps == [NUM_ENVS * NUM_STEPS * (i + 1) for i in range(ITERATIONS)], tag
    assert {"charts/episodic_return", "charts/episodic_length"} <= recorded.curves.keys()


# The rollout


def test_recording_has_all_kinds_of_ends(recorded):
    """What the tests below would otherwise not see."""
    games = recorded.games
    life_lost = games.terminations & ~games.over.astype(bool)
    game_over = games.terminations & games.over.astype(bool)
    for half in HALVES:
        assert games.truncations[:, half].any()
    assert life_lost.any() and game_over.any()
    if recorded.env_id == "Breakout-v5":
        ends = slice(NUM_STEPS - 1, None, NUM_STEPS)  # the last steps of rollouts
        assert games.truncations[ends].any() and games.terminations[ends].any()


def test_rollouts_hold_what_envpool_returns_each_pool_in_its_columns(recorded):
    for rollout, part in parts(recorded):
        np.testing.assert_array_equal(rollout.obs, recorded.games.obs[part])
        np.testing.assert_array_equal(rollout.next_obs, recorded.games.next_obs[part][-1])
        for name in ("rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(rollout, name), getattr(recorded.games, name)[part])


def test_steps_whose_action_envpool_ignores_are_marked_and_no_others(recorded):
    for rollout, part in parts(recorded):
        np.testing.assert_array_equal(rollout.valid, recorded.games.played[part])
    first_rows = recorded.games.played[::NUM_STEPS]
    assert not first_rows.all() and not recorded.games.played.all()


def test_every_environment_has_a_seed_of_its_own(recorded):
    seeds = {pool.config["seed"] + i for pool in recorded.pools for i in range(NUM_ENVS // 2)}
    assert len(seeds) == NUM_ENVS


def test_pools_play_at_the_same_time(recorded):
    """One after the other they would take twice as long."""
    assert recorded.time == NUM_STEPS * ITERATIONS


@pytest.mark.parametrize(
    "num_envs, sizes",
    [(1, [1]), (5, [3, 2]), pytest.param(64, [32, 32], marks=pytest.mark.slow), (70, [32, 32, 6])],
)
def test_pools_share_any_number_of_environments(num_envs, sizes, tmp_path):
    flags = ["--no-cuda", "--num-envs", num_envs, "--num-steps", 2, "--num-minibatches", 1, "--update-epochs", 1]
    run = run_script(tmp_path, "--env-id", "Breakout-v5", *flags, "--total-timesteps", 4 * num_envs)
    assert [pool.num_envs for pool in run.pools] == sizes
    assert len(run.rollouts) == 2 and run.time == 4  # all pools play at the same time


# The targets


def naive_advantages(rewards, values, last_value, gamma=0.99, gae_lambda=0.95):
    """Of one episode, by definition: the discounted sum of the errors that follow (Schulman et al. 2016, eq. 16)."""
    next_values = np.append(values[1:], last_value)
    deltas = rewards + gamma * next_values - values
    return [sum((gamma * gae_lambda) ** k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def test_advantages_are_those_of_the_episodes_without_the_reset_steps(recorded):
    agent = Agent(recorded.pools[0])
    ends = {"terminated": 0, "truncated": 0, "rollout": 0}
    for before, (rollout, part) in zip(recorded.rollouts, parts(recorded)[1:]):
        agent.load_state_dict(before.model)  # which played this rollout
        games = SimpleNamespace(**{name: x[part] for name, x in vars(recorded.games).items()})
        with torch.no_grad():
            values = agent.get_value(torch.as_tensor(games.obs).flatten(0, 1)).double().numpy()
        values = values.reshape(NUM_STEPS, NUM_ENVS)
        for i in range(NUM_ENVS):
            episode = []
            for t in range(NUM_STEPS):
                if not games.played[t, i]:
                    continue
                episode.append(t)
                over = games.terminations[t, i] or games.truncations[t, i]
                if not over and t < NUM_STEPS - 1:
                    continue
                kind = "terminated" if games.terminations[t, i] else "truncated" if over else "rollout"
                ends[kind] += 1
                with torch.no_grad():
                    last_value = agent.get_value(torch.as_tensor(games.next_obs[t, i, None]).float()).item()
                last_value *= kind != "terminated"
                advantages = naive_advantages(games.rewards[episode, i], values[episode, i], last_value)
                np.testing.assert_allclose(rollout.advantages[episode, i], advantages, rtol=1e-3, atol=1e-4)
                returns = advantages + values[episode, i]
                np.testing.assert_allclose(rollout.returns[episode, i], returns, rtol=1e-3, atol=1e-4)
                episode = []
    assert min(ends.values()) > 5, ends


# The update


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(0, 20), st.booleans(), st.booleans())
def test_loss_stats_and_gradients_are_those_of_the_parent_without_the_reset_steps(
    seed, num_played, num_resets, norm_adv, clip_vloss
):
    args = SimpleNamespace(norm_adv=norm_adv, clip_vloss=clip_vloss, clip_coef=0.1, ent_coef=0.01, vf_coef=0.5)
    torch.manual_seed(seed)
    played = torch.arange(num_played + num_resets)[torch.randperm(num_played + num_resets)] < num_played
    tensors = torch.randn(7, len(played))
    tensors[0] = tensors[3] + 0.2 * torch.randn(len(played))  # the new log-probabilities are near the old ones
    rubbish = torch.randn(7, len(played)) * torch.tensor([5, 1e3, 1e3, 5, 1e3, 1e3, 1e3])[:, None]
    tensors = torch.where(played, tensors, rubbish)

    ours, parents = tensors.clone().requires_grad_(), tensors[:, played].requires_grad_()
    loss, stats = ppo_loss(*ours, played, args)
    expected_loss, expected_stats = ppo_atari.ppo_loss(*parents, args)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-5)
    assert stats.keys() == expected_stats.keys()
    for name, x in expected_stats.items():
        torch.testing.assert_close(stats[name], x, rtol=1e-4, atol=1e-5, msg=name)
    loss.backward()
    expected_loss.backward()
    torch.testing.assert_close(ours.grad[:3, played], parents.grad[:3], rtol=1e-4, atol=1e-5)
    assert (ours.grad[:3, ~played] == 0).all()  # of the network's outputs


@pytest.mark.parametrize("norm_adv", [True, False])
@pytest.mark.parametrize("num_played", [0, 1])
def test_minibatch_with_fewer_than_two_steps_that_were_played_has_a_finite_loss_and_gradient(num_played, norm_adv):
    args = SimpleNamespace(norm_adv=norm_adv, clip_vloss=True, clip_coef=0.1, ent_coef=0.01, vf_coef=0.5)
    torch.manual_seed(1)
    played = torch.arange(6) < num_played
    outputs = torch.randn(3, 6, requires_grad=True)  # of the network
    loss, stats = ppo_loss(*outputs, *torch.randn(4, 6), played, args)
    loss.backward()
    assert outputs.grad.isfinite().all() and (outputs.grad[:, ~played] == 0).all()
    assert outputs.grad.any() == (num_played > 0)  # one step is enough to learn a value from
    assert all(x.isfinite() for x in stats.values())


def test_run_with_as_many_reset_steps_as_others_stays_finite(tmp_path):
    """Games of one step: every other step only resets, and minibatches of two steps often hold no other."""
    flags = ["--no-cuda", "--num-envs", 2, "--num-steps", 4, "--num-minibatches", 4, "--total-timesteps", 400]
    run = run_script(tmp_path, *flags, limits=(1, 1))
    assert len(run.rollouts) == 50
    assert all(x.isfinite().all() for x in run.rollouts[-1].model.values())
    np.testing.assert_array_equal(run.rollouts[-1].valid[:, 0], [True, False, True, False])
    logged = curves(run.run_dir)
    for name in ("value_loss", "policy_loss", "entropy", "approx_kl", "grad_norm"):
        assert np.isfinite([value for _, value in logged[f"losses/{name}"]]).all(), name


@pytest.mark.parametrize("recorded", ["Breakout-v5"], indirect=True)
def test_nothing_is_learned_from_a_reset_step(recorded, tmp_path):
    """Other actions and rewards, and other observations before it, leave every weight and every curve as they are."""
    flags = [*FLAGS, "--env-id", recorded.env_id]
    spoiled = run_script(tmp_path, *flags, limits=LIMITS[recorded.env_id], spoil=True)
    rubbish = [(rollout.rewards == 1000) for rollout in spoiled.rollouts]
    assert np.array_equal(np.concatenate(rubbish), ~recorded.games.played)
    for honest, other in zip(recorded.rollouts, spoiled.rollouts, strict=True):
        assert all(torch.equal(x, other.model[name]) for name, x in honest.model.items())
    assert_same_curves(recorded.curves, curves(spoiled.run_dir))


def assert_same_curves(curves_a, curves_b):
    assert curves_a.keys() == curves_b.keys()
    for tag in curves_a.keys() - {"charts/SPS"}:
        assert str(curves_a[tag]) == str(curves_b[tag]), tag  # as text: NaN equals itself there


# The log


def test_every_game_is_logged_with_its_own_score_truncated_ones_included(recorded):
    """Whole games, not lives; raw scores, not clipped ones; nothing of one game in the score of the next."""
    games, expected = recorded.games, []
    for i in range(NUM_ENVS):
        score = length = 0
        for t, (points, over) in enumerate(zip(games.scores[:, i], games.over[:, i] | games.truncations[:, i])):
            score, length = score + points, length + games.played[t, i]
            if over:
                expected.append((t * NUM_ENVS + i + 1, score, length))
                score = length = 0
    expected.sort()
    returns, lengths = (recorded.curves[f"charts/episodic_{name}"] for name in ("return", "length"))
    assert sorted(returns) == [(step, score) for step, score, _ in expected]
    assert sorted(lengths) == [(step, length) for step, _, length in expected]
    for step, mean in recorded.curves["charts/avg_episodic_return"]:  # of up to 100 games
        scores = [score for end, score, _ in expected if end <= step]
        assert mean == pytest.approx(np.mean(scores or [np.nan]), nan_ok=True)
    assert 12 < len(expected) < 100
    if recorded.env_id == "Asterix-v5":
        assert games.scores.max() >= 50 and games.rewards.max() == 1


# A run


TRAIN = ["--no-cuda", "--num-envs", 4, "--num-steps", 64, "--num-minibatches", 2, "--update-epochs", 1]
TRAIN += ["--total-timesteps", 768, "--save-model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of three iterations, as a user starts it: its folder and what it printed."""
    runner = Runner(tmp_path_factory.mktemp("trained"))
    stdout = runner.run(SCRIPT, *TRAIN).stdout
    return SimpleNamespace(run_dir=next(runner.folder.glob("runs/*")), stdout=stdout)


def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(*TRAIN, script=script, modules=MODULES / "without_utils")
    ours, theirs = load_file(trained.run_dir / "ppo_atari_envpool.safetensors"), load_file(run_dir / "mine.safetensors")
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    evaluated = curves(trained.run_dir)
    del evaluated["eval/episodic_return"]
    assert_same_curves(evaluated, curves(run_dir))


def test_resumed_run_goes_on_with_new_games_of_other_seeds_and_says_so(trained, tmp_path, capsys):
    run_dir = Path(shutil.copytree(trained.run_dir, tmp_path / "runs" / trained.run_dir.name))
    flags = ["--resume", f"runs/{run_dir.name}", "--total-timesteps", 1280, "--no-save-model", "--learning-rate", 0]
    resumed = run_script(tmp_path, *flags, watch=False)
    assert "episodes start again" in capsys.readouterr().err
    assert len(resumed.rollouts) == 2 and resumed.rollouts[0].valid[0].all()
    saved = load_file(run_dir / "ppo_atari_envpool.safetensors")
    assert all(torch.equal(x, resumed.rollouts[-1].model[name]) for name, x in saved.items())
    assert [step for step, _ in curves(run_dir)["losses/value_loss"]] == [256, 512, 768, 1024, 1280]
    at_the_start = [pool.config["seed"] for pool in resumed.pools]  # the same as when the run began
    random.seed(1)
    assert at_the_start == [random.getrandbits(30) for _ in range(2)]
    played = {seed + i for seed in at_the_start for i in range(2)}
    assert not played & {seed + i for seed in resumed.rollouts[0].seeds for i in range(2)}


def test_run_resumed_at_another_step_plays_other_games(trained, tmp_path):
    """Each time that it is resumed, a run sees games that it has not seen."""
    seeds = []
    for number, total_timesteps in enumerate([1024, 1280]):
        folder = tmp_path / str(number)
        run_dir = Path(shutil.copytree(trained.run_dir, folder / "runs" / trained.run_dir.name))
        flags = ["--resume", f"runs/{run_dir.name}", "--no-save-model", "--total-timesteps", total_timesteps]
        seeds.append(run_script(folder, *flags, watch=False).rollouts[-1].seeds)
    assert seeds[0] == seeds[1]  # resumed at the same step
    again = run_script(tmp_path / "1", *flags[:3], "--total-timesteps", 1536, watch=False)
    assert not set(again.rollouts[-1].seeds) & set(seeds[0])


def test_evaluating_again_and_again_gives_what_the_run_gave_at_its_end(trained, runner, capsys):
    main([trained.run_dir], cuda=False)
    printed = capsys.readouterr().out
    assert runner.run("-m", "cleanrl_utils.evaluate", trained.run_dir).stdout == printed
    result = printed.removeprefix("Breakout-v5 ppo_atari_envpool: ")
    assert f"evaluation: {result}" in trained.stdout and "10 episodes" in result


def test_evaluation_counts_whole_games_with_their_raw_scores(trained):
    """Against games played by hand until there is no life left."""
    model = trained.run_dir / "ppo_atari_envpool.safetensors"
    result = evaluate(model, "Breakout-v5", make_envs, load_policy, episodes=2, seed=3, device="cpu")
    random.seed(3)
    pool = make_envs("Breakout-v5", 2, False, "")
    policy, scores, lengths, lives_lost = load_policy(model, pool), np.zeros(2), np.zeros(2, int), np.zeros(2, int)
    obs, _ = pool.reset()
    while (lives_lost < 5).any():
        going_on = lives_lost < 5
        obs, _, terminations, _, infos = pool.step(policy(obs))
        scores[going_on] += infos["reward"][going_on]
        lengths[going_on] = infos["elapsed_step"][going_on]
        lives_lost += terminations
    assert result.returns == scores.tolist() and result.lengths == lengths.tolist()
    assert min(result.lengths) > 100  # a life may be lost after 24


class ScriptedPool:
    """Four steps of two games: a life lost, a game over and a time limit reached."""

    num_envs, observation_space, action_space = 2, None, None

    def reset(self):
        points = [[30, 5], [20, 5], [0, 5], [7, 5]]
        lives_or_games_over = [[True, False], [True, False], [False, False], [False, True]]
        games_over = [[0, 0], [1, 0], [0, 0], [0, 0]]
        truncations = [[False, False], [False, False], [False, True], [False, False]]
        elapsed = [[1, 1], [2, 2], [0, 3], [1, 0]]
        self.rows = zip(*map(np.array, (points, lives_or_games_over, truncations, games_over, elapsed)))
        return None, {}

    def step(self, actions):
        points, terminations, truncations, games_over, elapsed = next(self.rows)
        infos = {"reward": points, "terminated": games_over, "elapsed_step": elapsed}
        return None, np.sign(points), terminations, truncations, infos


def test_games_of_envpool_end_with_the_last_life_or_at_the_time_limit():
    envs = EnvPoolGames(ScriptedPool())
    envs.reset()
    ends = []
    for _ in range(4):
        info = envs.step(None)[-1]["final_info"]
        for idx in np.flatnonzero(info["_episode"]):
            ends.append((int(idx), float(info["episode"]["r"][idx]), int(info["episode"]["l"][idx])))
    assert ends == [(0, 50.0, 2), (1, 15.0, 3)]


# Mistakes


def assert_one_clear_line(code, output, words):
    assert isinstance(code, str) and "\n" not in code  # which Python prints, and exits with status 1
    assert output.out == output.err == ""
    assert all(word in code for word in words), code


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "BreakoNoFrameskip-v4"], ["Breakout-v5", "ppo_atari.py"]),
        (["--env-id", "ALE/Breako-v5"], ["like Breakout-v5", "ppo_atari.py"]),
        (["--env-id", "CartPole-v1"], ["CartPole-v1", "no Atari game", "Breakout-v5"]),
        (["--env-id", "NoSuchGame-v5"], ["no game of EnvPool", "Breakout-v5"]),
        (["--num-envs", 0], ["--num-envs 0", "at least 1"]),
        (["--capture-video"], ["--capture-video", "ppo_atari.py"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd, flags, words):
    with pytest.raises(SystemExit) as stop:
        run_script(tmp_path, *flags)
    assert_one_clear_line(stop.value.code, capfd.readouterr(), words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "modules, words",
    [
        ("without_envpool", ['pip install "cleanrl[envpool]"']),
        ("without_libegl", ["EnvPool needs", "apt-get install libegl1 libopengl0"]),
    ],
)
def test_what_is_not_installed_is_named(runner, modules, words):
    result = runner.run(SCRIPT, modules=MODULES / modules, check=False)
    assert result.returncode != 0 and len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


def test_evaluation_cannot_be_filmed_and_says_so(trained):
    with pytest.raises(SystemExit, match="EnvPool cannot be filmed"):
        main([trained.run_dir], cuda=False, capture_video=True)
