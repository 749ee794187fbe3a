"""PPO on Procgen: the games are the original ones, rewards are scaled as they should be, and what a run promises."""

import dataclasses
import functools
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_ppo_atari_envpool as atari
import torch
import torch.nn.functional as F
from conftest import ROOT, Runner, curves
from safetensors.torch import load_file, save_file

from cleanrl import ppo_atari_envpool, ppo_continuous_action, ppo_procgen
from cleanrl.ppo_procgen import Agent, Args, load_policy, make_envs
from cleanrl_utils import run as cleanrl_run
from cleanrl_utils.env_errors import explain_env_error
from cleanrl_utils.envpool_games import EnvPoolGames
from cleanrl_utils.evaluate import evaluate

envpool = pytest.importorskip("envpool", reason="needs cleanrl[procgen]", exc_type=ImportError)
pytest.importorskip("envpool.procgen.procgen_envpool", reason="needs the system's libqt5gui5", exc_type=ImportError)

SCRIPT = ROOT / "cleanrl" / "ppo_procgen.py"
MODULES = ROOT / "tests" / "modules"
GAMES = ["bigfish", "bossfight", "dodgeball", "fruitbot", "starpilot"]  # the others were compared in the same way
NUM_ENVS, NUM_STEPS, ITERATIONS = 4, 16, 12
# Of the two pools: an episode of fruitbot lasts some 70 steps, and if it ends after more than these, EnvPool says that
# it was its time limit.
LIMITS = (30, 75)
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 2, "--update-epochs", 1]
FLAGS += ["--total-timesteps", NUM_ENVS * NUM_STEPS * ITERATIONS, "--env-id", "fruitbot", "--gamma", 0.9]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_agent(num_actions=15):
    torch.manual_seed(1)
    return Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=num_actions)))


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_procgen", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "starpilot",
        "total_timesteps": 25_000_000, "learning_rate": 5e-4, "num_envs": 64, "num_steps": 256, "anneal_lr": False,
        "gamma": 0.999, "gae_lambda": 0.95, "num_minibatches": 8, "update_epochs": 3, "norm_adv": True,
        "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


@pytest.mark.parametrize(
    "env_id, game, mode",
    [("starpilot", "starpilot", 0), ("StarpilotEasy-v0", "starpilot", 0), ("MazeHard-v0", "maze", 1)],
)
def test_games_have_their_own_names_and_the_ids_of_envpool(env_id, game, mode):
    pool = make_envs(env_id, 2, False, "")
    assert (pool.config["env_name"], pool.config["distribution_mode"]) == (game, mode)  # mode 0: easy, 1: hard
    assert (pool.config["num_levels"], pool.config["start_level"]) == (0, 0)  # levels without end
    assert pool.single_observation_space.shape == (3, 64, 64) and pool.single_action_space.n == 15


# The games


# Plays the original engine, and keeps what it returned. It wants packages that nothing here needs: gym and imageio.
ORIGINAL = """
import sys
from types import ModuleType
import numpy as np
for name in ("gym", "gym.envs", "gym.envs.registration", "imageio"):
    sys.modules[name] = ModuleType(name)
sys.modules["gym.envs.registration"].register = lambda **kwargs: None
from procgen import ProcgenGym3Env
kept = {}
for game in sys.argv[1:]:
    env = ProcgenGym3Env(num=1, env_name=game, num_levels=1, start_level=7, distribution_mode="easy")
    rng, rows = np.random.default_rng(1), []
    for _ in range(300):
        reward, obs, first = env.observe()
        action = rng.integers(15, size=1, dtype=np.int32)
        rows.append((obs["rgb"][0].copy(), reward[0], first[0], action[0]))
        env.act(action)
    names = ("obs", "rewards", "firsts", "actions")
    kept |= {f"{game}_{name}": np.array(column) for name, column in zip(names, zip(*rows))}
np.savez("original.npz", **kept)
"""


def test_games_are_those_of_the_original_engine(runner):
    """Level 7 of each game again and again: all rewards, all ends, all first frames and most others, to the bit.

    A few frames differ in some pixels of turned pictures, as another version of Qt draws them.
    """
    missing = [name for name in ("procgen", "gym3", "cffi") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install --no-deps procgen-mirror==0.10.7 gym3==0.3.3 cffi")
    runner.run("-c", ORIGINAL, *GAMES)
    original = np.load(runner.folder / "original.npz")
    total_reward = num_ends = num_equal = 0
    for game in GAMES:
        obs, rewards, firsts, actions = (original[f"{game}_{x}"] for x in ("obs", "rewards", "firsts", "actions"))
        pool = envpool.make_gymnasium(f"{game.capitalize()}Easy-v0", num_envs=1, seed=5, num_levels=1, start_level=7)
        ours, _ = pool.reset()
        for t in range(299):
            is_equal = (ours[0].transpose(1, 2, 0) == obs[t]).all()
            assert is_equal or not firsts[t], game
            num_equal += is_equal
            ours, reward, termination, truncation, _ = pool.step(actions[t : t + 1])
            done = termination[0] or truncation[0]
            assert (reward[0], done) == (rewards[t + 1], firsts[t + 1]), (game, t)
            if done:  # EnvPool resets with a step of its own, the original engine has done it already
                ours, _, _, _, _ = pool.step(actions[t : t + 1])
            num_ends += done
            total_reward += abs(reward[0])
    assert num_ends > 10 and total_reward > 10  # else this would test little
    assert num_equal > 0.9 * 299 * len(GAMES)


# The network


def reference_features(agent, x):
    """The network of Espeholt et al. 2018 (figure 3, right) as functions, from the agent's parameters."""
    parameters = iter(list(agent.network.parameters()))

    def conv(x):
        return F.conv2d(x, next(parameters), next(parameters), padding=1)

    x = x / 255
    for _ in range(3):
        x = F.max_pool2d(conv(x), 3, 2, 1)
        for _ in range(2):
            x = x + conv(F.relu(conv(F.relu(x))))
    x = F.relu(x).flatten(1)
    return F.relu(F.linear(x, next(parameters), next(parameters)))


def test_network_is_that_of_impala():
    agent = make_agent()
    x = torch.randint(256, (3, 3, 64, 64), dtype=torch.uint8)
    features = agent.get_features(x)
    assert features.shape == (3, 256)
    torch.testing.assert_close(features, reference_features(agent, x), rtol=1e-4, atol=1e-5)
    convs = [x for x in agent.network.modules() if isinstance(x, torch.nn.Conv2d)]
    assert [x.out_channels for x in convs] == 5 * [16] + 10 * [32]


def test_heads_start_orthogonal_and_the_rest_as_pytorch_does():
    agent = make_agent()
    for head, gain in ((agent.actor, 0.01), (agent.critic, 1.0)):
        products = head.weight @ head.weight.T
        torch.testing.assert_close(products, gain**2 * torch.eye(len(products)), rtol=1e-4, atol=1e-6)
        assert not head.bias.any()
    for layer in agent.network.modules():
        if hasattr(layer, "weight"):  # uniform up to the inverse root of the number of inputs
            bound = layer.weight[0].numel() ** -0.5
            assert 0.98 * bound < layer.weight.abs().max() <= bound and layer.bias.any()


# A run, watched


def play_at_random(_args, _script, act, update, state):
    """In the place of `run.accelerate`: actions that are the same on every machine, however its networks round."""
    rng, num_actions = np.random.default_rng(1), state["agent"].actor.out_features

    def act_at_random(obs):
        act(obs)  # to draw the random numbers that it draws
        return torch.as_tensor(rng.integers(num_actions, size=len(obs)))

    return act_at_random, update


def run_script(folder, *flags, **settings):
    """Run the script in this process, as the tests of its parent do, with actions at random."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanrl_run, "accelerate", play_at_random)
        patch.setattr(atari, "SCRIPT", SCRIPT)
        patch.setattr(atari, "KEPT", [*atari.KEPT, "torch_rewards", "discounted_returns"])
        patch.setattr(atari, "WatchedPool", WatchedPool)
        return atari.run_script(folder, *flags, **settings)


class WatchedPool(atari.WatchedPool):
    """A spoiled one gives EnvPool's reset steps other actions, and noise as the observation after a termination."""

    def recv(self):
        obs, rewards, terminations, truncations, infos = super().recv()
        return obs, np.where(rewards == 1000, 0, rewards), terminations, truncations, infos


class Pictures:
    """In place of a pool: one half of each picture is lit, and the action has to name it."""

    single_observation_space = observation_space = SimpleNamespace(shape=(3, 64, 64))
    single_action_space = action_space = SimpleNamespace(n=2)

    def __init__(self, env_id, num_envs, seed, num_rounds=8, **settings):
        self.num_envs, self.config, self.rng = num_envs, {"seed": seed}, np.random.default_rng(seed)
        self.num_rounds = num_rounds  # of an episode

    def reset(self):
        self.elapsed = np.zeros(self.num_envs, dtype=int)
        return self.draw(), {}

    def draw(self):
        self.sides = self.rng.integers(2, size=self.num_envs)
        obs = np.zeros((self.num_envs, 3, 64, 64), np.uint8)
        obs[self.sides == 0, :, :, :32] = 255
        obs[self.sides == 1, :, :, 32:] = 255
        return obs

    def send(self, actions):
        is_reset = self.elapsed == self.num_rounds
        self.rewards = (np.where(actions == self.sides, 1, -1) * ~is_reset).astype(np.float32)
        self.elapsed = np.where(is_reset, 0, self.elapsed + 1)

    def recv(self):
        nobody = np.zeros(self.num_envs, dtype=bool)
        return self.draw(), self.rewards, self.elapsed == self.num_rounds, nobody, {"elapsed_step": self.elapsed}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run, and the same games in plain EnvPool."""
    run = run_script(tmp_path_factory.mktemp("recorded"), *FLAGS, limits=LIMITS)
    actions = np.concatenate([rollout.actions for rollout in run.rollouts])
    halves, rng = [], np.random.default_rng(2)
    for pool, limit, columns in zip(run.pools, LIMITS, np.split(actions, 2, axis=1), strict=True):
        seed = pool.config["seed"]
        pool = envpool.make_gymnasium("FruitbotEasy-v0", num_envs=2, seed=seed, max_episode_steps=limit)
        rows, played = [], np.array([True, True])
        obs, _ = pool.reset()
        for action in columns:
            action = np.where(played, action, rng.integers(15, size=2))  # a reset step ignores its action
            next_obs, rewards, terminations, truncations, infos = pool.step(action)
            rows.append((obs, rewards, terminations, truncations, infos["elapsed_step"], played, next_obs))
            obs, played = next_obs, ~(terminations | truncations)
        halves.append(rows)
    names = ["obs", "rewards", "terminations", "truncations", "elapsed", "played", "next_obs"]
    arrays = [np.concatenate([np.array([row[i] for row in rows]) for rows in halves], axis=1) for i in range(7)]
    run.games = SimpleNamespace(**dict(zip(names, arrays, strict=True)))  # (steps, environments, ...)
    run.curves = curves(run.run_dir)
    return run


def parts(run):
    assert len(run.rollouts) == ITERATIONS
    return [(rollout, slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)) for i, rollout in enumerate(run.rollouts)]


def test_rollouts_hold_what_envpool_returns_and_mark_its_reset_steps(recorded):
    games = recorded.games
    for rollout, part in parts(recorded):
        np.testing.assert_array_equal(rollout.next_obs, games.next_obs[part][-1])
        for name in ("obs", "rewards", "terminations", "truncations"):
            np.testing.assert_array_equal(getattr(rollout, name), getattr(games, name)[part])
        np.testing.assert_array_equal(rollout.valid, games.played[part])
    assert games.terminations.any() and games.truncations.any() and games.rewards.any()  # else this would test little
    assert not games.played.all() and not games.rewards[~games.played].any()
    assert (games.elapsed[~games.played] == 0).all()


def test_rewards_are_divided_by_the_deviation_of_all_discounted_returns_so_far(recorded):
    """By a naive loop over the environments, and over the steps that were played: resets are no samples."""
    games, samples = recorded.games, []
    for rollout, part in parts(recorded):
        rewards, dones = games.rewards[part], (games.terminations | games.truncations)[: part.stop]
        for env in range(NUM_ENVS):
            for t in range(part.start, part.stop):
                total, discount, k = 0.0, 1.0, t
                while k >= 0 and (k == t or not dones[k, env]):  # back to the start of the episode
                    total, discount, k = total + discount * games.rewards[k, env], 0.9 * discount, k - 1
                if games.played[t, env]:
                    samples.append(total)
        model = rollout.model
        assert model["return_count"] == len(samples)
        np.testing.assert_allclose(model["return_mean"], np.mean(samples), rtol=1e-4)
        np.testing.assert_allclose(model["return_var"], np.var(samples), rtol=1e-4)
        scaled = np.clip(rewards / np.sqrt(np.var(samples) + 1e-8), -10, 10)
        np.testing.assert_allclose(rollout.torch_rewards, scaled, rtol=1e-4)
    assert 0 < len(samples) < games.played.size and np.var(samples) > 0


def test_scaled_rewards_are_clipped_at_ten():
    """The script's own lines, for a reward that is larger than all returns before."""
    lines = [x.strip() for x in SCRIPT.read_text().splitlines() if "agent.return_var + 1e-8" in x]
    scope = {"agent": SimpleNamespace(return_var=torch.tensor(0.04)), "torch_rewards": torch.tensor([-5.0, 0.5, 5.0])}
    exec(lines[0], scope)
    torch.testing.assert_close(scope["torch_rewards"], torch.tensor([-10.0, 2.5, 10.0]))
    assert len(lines) == 1


def test_statistics_are_merged_as_in_ppo_continuous_action():
    """The oracle of that function is in its tests; a lone sample and shares as tensors are new here."""
    batches = [torch.randn(n) * n + n for n in (1, 5, 40)]
    mean, var, count = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(0.0)
    other_mean, other_var = mean.clone(), var.clone()
    for batch in batches:
        count += len(batch)
        ppo_procgen.merge_stats(mean, var, batch, len(batch) / count)
        ppo_continuous_action.merge_stats(other_mean, other_var, batch, len(batch) / count.item())
    torch.testing.assert_close([mean, var], [torch.cat(batches).mean(), torch.cat(batches).var(correction=0)])
    torch.testing.assert_close([mean, var], [other_mean, other_var])


def test_advantages_are_those_of_the_scaled_rewards_without_the_reset_steps(recorded):
    agent, ends = make_agent(), {"terminated": 0, "truncated": 0, "rollout": 0}
    games = recorded.games
    for before, (rollout, part) in zip(recorded.rollouts, parts(recorded)[1:]):
        agent.load_state_dict(before.model)  # which played this rollout
        with torch.no_grad():
            values = agent.get_value(torch.as_tensor(games.obs[part]).flatten(0, 1)).numpy()
            next_values = agent.get_value(torch.as_tensor(games.next_obs[part]).flatten(0, 1)).numpy()
        values, next_values = (x.reshape(NUM_STEPS, NUM_ENVS) for x in (values, next_values))
        terminations, truncations, played = games.terminations[part], games.truncations[part], games.played[part]
        for i in range(NUM_ENVS):
            episode = []
            for t in range(NUM_STEPS):
                episode += [t] if played[t, i] else []
                over = terminations[t, i] or truncations[t, i]
                if not episode or not (over or t == NUM_STEPS - 1):
                    continue
                kind = "terminated" if terminations[t, i] else "truncated" if over else "rollout"
                ends[kind] += 1
                last_value = next_values[t, i] * (kind != "terminated")
                rewards = rollout.torch_rewards[episode, i]
                expected = atari.naive_advantages(rewards, values[episode, i], last_value, gamma=0.9)
                np.testing.assert_allclose(rollout.advantages[episode, i], expected, rtol=1e-3, atol=1e-4)
                episode = []
    assert min(ends.values()) > 1, ends


def test_every_game_is_logged_with_its_raw_return(recorded):
    games, expected = recorded.games, []
    for i in range(NUM_ENVS):
        score = 0
        for t in range(len(games.rewards)):
            score += games.rewards[t, i]
            if games.terminations[t, i] or games.truncations[t, i]:
                expected.append((t * NUM_ENVS + i + 1, score, games.elapsed[t, i]))
                score = 0
    returns, lengths = (sorted(recorded.curves[f"charts/episodic_{name}"]) for name in ("return", "length"))
    assert returns == sorted((step, pytest.approx(score)) for step, score, _ in expected)
    assert lengths == sorted((step, length) for step, _, length in expected)
    assert len(expected) > 5 and len({score for _, score, _ in expected}) > 3


def test_metrics_are_those_of_the_published_file(recorded):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()} | {"charts/learning_rate", "charts/SPS"}
    for tag in published:
        steps = [step for step, _ in recorded.curves[tag]]
        assert steps == [NUM_ENVS * NUM_STEPS * (i + 1) for i in range(ITERATIONS)], tag
    rates = {value for _, value in recorded.curves["charts/learning_rate"]}
    assert len(rates) == 1 and rates.pop() == pytest.approx(5e-4)  # not annealed


def test_nothing_is_learned_from_a_reset_step_or_from_what_follows_a_termination(recorded, tmp_path):
    half = NUM_ENVS * NUM_STEPS * ITERATIONS // 2
    spoiled = run_script(tmp_path, *FLAGS, "--total-timesteps", half, limits=LIMITS, spoil=True)
    assert len(spoiled.rollouts) == ITERATIONS // 2
    for honest, other in zip(recorded.rollouts, spoiled.rollouts):
        assert all(torch.equal(x, other.model[name]) for name, x in honest.model.items())
    assert any((a.obs != b.obs).any() for a, b in zip(recorded.rollouts, spoiled.rollouts))
    first_half = {tag: [x for x in curve if x[0] <= half] for tag, curve in recorded.curves.items()}
    atari.assert_same_curves(first_half, curves(spoiled.run_dir))


def test_rollouts_of_single_steps_stay_finite(tmp_path):
    """Episodes of one step: every other rollout holds nothing but a reset."""
    flags = ["--no-cuda", "--num-envs", 1, "--num-steps", 1, "--num-minibatches", 1, "--no-norm-adv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envpool, "make_gymnasium", functools.partial(Pictures, num_rounds=1))
        run = run_script(tmp_path, *flags, "--update-epochs", 1, "--total-timesteps", 8, watch=False)
    assert run.rollouts[-1].model["return_count"] == 4
    assert all(x.isfinite().all() for x in run.rollouts[-1].model.values())


# A run


# Runs the script, but games of the evaluation are cut off after 12 steps.
SHORT_EVALUATION = """
import functools, runpy, sys
from cleanrl_utils import run
run.evaluate = functools.partial(run.evaluate, max_episode_steps=12)
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAIN = ["--no-cuda", "--num-envs", 2, "--num-steps", 16, "--num-minibatches", 2, "--update-epochs", 1]
TRAIN += ["--total-timesteps", 96, "--save-model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of three iterations, as a user starts it: its folder and what it printed."""
    runner = Runner(tmp_path_factory.mktemp("trained"))
    stdout = runner.run("-c", SHORT_EVALUATION, SCRIPT, *TRAIN).stdout
    return SimpleNamespace(run_dir=next(runner.folder.glob("runs/*")), stdout=stdout)


def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(*TRAIN, script=script, modules=MODULES / "without_utils")
    ours, theirs = load_file(trained.run_dir / "ppo_procgen.safetensors"), load_file(run_dir / "mine.safetensors")
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    evaluated = curves(trained.run_dir)
    del evaluated["eval/episodic_return"]
    atari.assert_same_curves(evaluated, curves(run_dir))


def test_statistics_are_in_the_model_and_go_on_in_a_resumed_run_whose_games_start_again(trained, tmp_path, capsys):
    model = load_file(trained.run_dir / "ppo_procgen.safetensors")
    checkpoint = torch.load(trained.run_dir / "checkpoint.pt", weights_only=False)
    for name in ("return_mean", "return_var", "return_count"):
        assert torch.equal(model[name], checkpoint["agent"][name])
    assert model["return_count"] > 80
    run_dir = Path(shutil.copytree(trained.run_dir, tmp_path / "runs" / trained.run_dir.name))
    checkpoint["running_return"] += 5  # of episodes that are not played to their ends
    torch.save(checkpoint, run_dir / "checkpoint.pt")
    flags = ["--resume", f"runs/{run_dir.name}", "--total-timesteps", 128, "--no-save-model", "--learning-rate", 0]
    resumed = run_script(tmp_path, *flags, watch=False)
    assert "episodes start again" in capsys.readouterr().err
    assert resumed.rollouts[0].valid[0].all() and len(resumed.rollouts) == 1
    assert resumed.rollouts[0].model["return_count"] == model["return_count"] + resumed.rollouts[0].valid.sum()
    assert np.isclose(resumed.rollouts[0].discounted_returns[0], resumed.rollouts[0].rewards[0]).all()
    assert [step for step, _ in curves(run_dir)["losses/value_loss"]] == [32, 64, 96, 128]


# The trained policy


def test_evaluation_after_training_is_repeated_by_the_saved_model(trained):
    logged = [value for _, value in curves(trained.run_dir)["eval/episodic_return"]]
    model = trained.run_dir / "ppo_procgen.safetensors"
    again = evaluate(model, "starpilot", make_envs, load_policy, seed=1_000_001, device="cpu", max_episode_steps=12)
    assert len(logged) == 10 and again.returns == pytest.approx(logged)
    assert f"mean return {again.mean:.2f}" in trained.stdout


@pytest.fixture
def model(tmp_path):
    """Of a policy that moves about: it is not trained, but it does not do the same all the time."""
    agent = make_agent()
    torch.nn.init.normal_(agent.actor.weight)
    save_file(agent.state_dict(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_evaluation_gives_raw_returns_of_whole_episodes(model):
    """Against episodes played by hand."""
    result = evaluate(model, "fruitbot", make_envs, load_policy, episodes=3, seed=6, device="cpu", max_episode_steps=90)
    random.seed(6)
    pool = make_envs("fruitbot", 3, False, "")
    policy, returns, lengths = load_policy(model, pool), np.zeros(3), np.zeros(3, int)
    going_on = np.ones(3, bool)
    obs, _ = pool.reset()
    while going_on.any():
        obs, rewards, terminations, truncations, _ = pool.step(policy(obs))
        returns += rewards * going_on
        lengths += going_on
        going_on &= ~(terminations | truncations) & (lengths < 90)
    assert result.returns == pytest.approx(returns.tolist()) and result.lengths == lengths.tolist()
    assert len(set(result.lengths)) == 3 and any(result.returns), result


def test_films_show_the_episodes_of_the_first_environment_from_the_first_to_the_last_frame(tmp_path):
    cv2 = pytest.importorskip("cv2")
    random.seed(1)
    pool = make_envs("dodgeball", 2, True, "")
    envs, rng, episodes = EnvPoolGames(pool, tmp_path), np.random.default_rng(1), []
    obs, _ = envs.reset()
    frames = [obs[0]]
    while len(episodes) < 3:
        obs, _, terminations, truncations, infos = envs.step(rng.integers(15, size=2))
        frames.append(obs[0])
        if infos["final_info"]["_episode"][0]:
            assert len(frames) == infos["final_info"]["episode"]["l"][0] + 1
            episodes.append(frames)
            obs = envs.step(rng.integers(15, size=2))[0]  # only resets
            frames = [obs[0]]
    envs.close()
    films = sorted((tmp_path / "videos").glob("*.mp4"))
    assert [film.name for film in films] == ["rl-video-episode-0.mp4", "rl-video-episode-1.mp4"]  # and number 8 next
    for path, frames in zip(films, episodes):
        film = cv2.VideoCapture(str(path))
        pictures = [film.read()[1] for _ in range(int(film.get(cv2.CAP_PROP_FRAME_COUNT)))]
        assert len(frames) - 1 <= len(pictures) <= len(frames)  # its duration is rounded
        for picture, frame in zip(pictures, frames):
            picture = picture[::4, ::4, ::-1].transpose(2, 0, 1)  # a pixel is 4 by 4 there, and blue comes first
            assert np.abs(picture.astype(int) - frame).mean() < 20


def test_film_of_an_episode_that_is_cut_off_is_written(model, tmp_path):
    result = evaluate(
        model,
        "maze",
        make_envs,
        load_policy,
        2,
        seed=1,
        device="cpu",
        video_dir=tmp_path / "films",
        max_episode_steps=9,
    )
    assert result.num_cut_off == 2 and result.lengths == [9, 9]
    assert len(list((tmp_path / "films" / "videos").glob("*.mp4"))) == 1


def test_games_without_lives_end_with_each_termination():
    pool = SimpleNamespace(num_envs=2, observation_space=None, action_space=None, reset=lambda: (None, {}))
    rows = [([1, 0], [False, False], [1, 1]), ([2, 5], [True, False], [2, 2]), ([0, 1], [False, True], [0, 3])]
    steps = iter(rows)

    def step(actions):
        rewards, terminations, elapsed = (np.array(x) for x in next(steps))
        return None, rewards, terminations, np.array([False, False]), {"elapsed_step": elapsed}

    pool.step = step
    envs, ends = EnvPoolGames(pool), []
    envs.reset()
    for _ in rows:
        info = envs.step(None)[-1]["final_info"]
        ends += [(int(i), float(info["episode"]["r"][i])) for i in np.flatnonzero(info["_episode"])]
    assert ends == [(0, 3.0), (1, 6.0)]


# Learning


def learn(patch, script, folder, *flags):
    """Returns of the episodes of a training on that task: 0 on average by chance, 8 at most."""
    patch.setattr(envpool, "make_gymnasium", Pictures)
    patch.setattr(atari, "SCRIPT", script)
    run = atari.run_script(folder, "--no-cuda", "--num-envs", 8, "--num-steps", 18, *flags, watch=False)
    return [value for _, value in curves(run.run_dir)["charts/episodic_return"]]


@pytest.mark.slow
def test_pictures_are_told_apart(tmp_path, monkeypatch):
    returns = learn(monkeypatch, SCRIPT, tmp_path, "--num-minibatches", 4, "--total-timesteps", 4320)
    assert abs(np.mean(returns[:16])) < 3 and np.mean(returns[-60:]) > 5, returns


# Mistakes


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "starpilt"], ["cannot train on starpilt", "no game of Procgen", "bigfish", "starpilot"]),
        (["--env-id", "BigfishExtreme-v0"], ["no game of Procgen", "StarpilotHard-v0"]),
        (["--env-id", "Breakout-v5"], ["no game of Procgen", "starpilot"]),
        (["--env-id", "CartPole-v1"], ["no game of Procgen", "starpilot"]),
        (["--num-envs", 0], ["--num-envs 0", "at least 1"]),
        (["--capture-video"], ["only an evaluation can be filmed", "cleanrl_utils.evaluate"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd, flags, words):
    with pytest.raises(SystemExit) as stop:
        run_script(tmp_path, *flags)
    atari.assert_one_clear_line(stop.value.code, capfd.readouterr(), words)
    assert not list(tmp_path.iterdir())


def test_library_that_is_not_installed_is_named():
    error = ImportError("EnvPool Procgen requires the system Qt 5 runtime on Linux. Install the Qt5 shared libraries.")
    assert "apt-get install libqt5gui5" in explain_env_error("starpilot", error)


def test_atari_games_still_cannot_be_filmed():
    with pytest.raises(ValueError, match="cannot be filmed"):
        ppo_atari_envpool.make_envs("Breakout-v5", 1, True, "")
