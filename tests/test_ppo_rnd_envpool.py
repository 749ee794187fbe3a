"""PPO with random network distillation: how the new is rewarded, how both streams are learned, what a run keeps."""

import dataclasses
import random
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_ppo_atari_envpool as atari
import torch
import torch.nn.functional as F
from conftest import ROOT, Runner, curves
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from cleanrl import ppo_atari_envpool, ppo_rnd_envpool
from cleanrl.ppo_rnd_envpool import (
    Agent,
    Args,
    RandomNetworkDistillation,
    compute_gae,
    discounted_sums,
    load_policy,
    make_envs,
    rnd_loss,
)
from cleanrl_utils.checks import find_mistake
from cleanrl_utils.evaluate import evaluate

envpool = pytest.importorskip("envpool", reason="needs cleanrl[envpool]", exc_type=ImportError)
SCRIPT = ROOT / "cleanrl" / "ppo_rnd_envpool.py"
MODULES = ROOT / "tests" / "modules"
NUM_ENVS, NUM_STEPS, ITERATIONS, RANDOM_ROLLOUTS = 4, 16, 10, 2
# Of the two pools that the training plays: the first games are cut off within a rollout, those of the other pool end by
# themselves. The third pool plays the random actions, for as long as it likes.
LIMITS = (24, 27_000)
INT_GAMMA, GAMMA, GAE_LAMBDA, EXT_COEF, INT_COEF = 0.9, 0.95, 0.9, 2.0, 0.5
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 2, "--update-epochs", 1]
FLAGS += ["--total-timesteps", NUM_ENVS * NUM_STEPS * ITERATIONS, "--env-id", "Asterix-v5"]
FLAGS += ["--num-iterations-obs-norm-init", RANDOM_ROLLOUTS, "--int-gamma", INT_GAMMA, "--gamma", GAMMA]
FLAGS += ["--gae-lambda", GAE_LAMBDA, "--int-coef", INT_COEF, "--no-anneal-lr"]
KEPT = ["obs", "actions", "rewards", "terminations", "truncations", "valid", "next_obs", "games_over", "b_next_frames"]
KEPT += ["curiosities", "int_rewards", "advantages", "returns", "int_advantages", "int_returns", "running_sum"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_agent(num_actions=18):
    torch.manual_seed(1)
    return Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=num_actions)))


# The interface


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_rnd_envpool", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "MontezumaRevenge-v5",
        "total_timesteps": 2_000_000_000, "learning_rate": 1e-4, "num_envs": 128, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.999, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.001, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None, "update_proportion": 0.25, "int_coef": 1.0, "ext_coef": 2.0, "int_gamma": 0.99,
        "num_iterations_obs_norm_init": 50, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_actions_are_sticky_and_all_else_is_as_in_the_parent():
    ours, parents = (x.make_envs("MontezumaRevenge-v5", 1, False, "") for x in (ppo_rnd_envpool, ppo_atari_envpool))
    different = {name for name, value in ours.config.items() if value != parents.config[name] and name != "seed"}
    assert different == {"repeat_action_probability"} and ours.config["repeat_action_probability"] == 0.25


@pytest.mark.parametrize(
    "flag, wrong, right",
    [
        ("update_proportion", [-0.1, 1.1], [0.0, 1.0]),
        ("int_gamma", [-0.1, 1.1], [0.0, 1.0]),
        ("int_coef", [-0.1], [0.0]),
        ("ext_coef", [-0.1], [0.0]),
        ("num_iterations_obs_norm_init", [-1], [0]),
    ],
)
def test_flags_of_rnd_are_checked(flag, wrong, right):
    for value in wrong:
        assert f"--{flag.replace('_', '-')} {value}" in find_mistake(vars(Args()) | {flag: value})
    for value in right:
        assert find_mistake(vars(Args()) | {flag: value}) is None


# The networks


def reference_features(network, x, slope):
    """The convolutions of a network as functions, from its parameters."""
    parameters = list(network.parameters())
    for i, stride in enumerate((4, 2, 1)):
        x = F.conv2d(x, parameters[2 * i], parameters[2 * i + 1], stride=stride)
        x = torch.where(x > 0, x, slope * x)
    x = F.linear(x.flatten(1), parameters[6], parameters[7])
    for i in range(4, len(parameters) // 2):
        x = F.linear(x.relu(), parameters[2 * i], parameters[2 * i + 1])
    return x


def test_curiosity_is_the_squared_error_about_normalized_and_clipped_frames():
    rnd, frames = RandomNetworkDistillation(), torch.randint(256, (3, 1, 84, 84), dtype=torch.uint8)
    rnd.obs_mean.uniform_(0, 255)
    rnd.obs_var.uniform_(0, 5000)
    rnd.obs_var[0, :20] = 0  # a pixel that has always been the same so far
    mean, deviation = rnd.obs_mean.numpy(), np.sqrt(rnd.obs_var.numpy().astype(float) + 1e-8)
    x = np.clip((frames.numpy().astype(float) - mean) / deviation, -5, 5)
    assert (abs(x) == 5).any() and (abs(x) < 5).any()
    x = torch.as_tensor(x, dtype=torch.float32)
    expected = (reference_features(rnd.predictor, x, 0.01) - reference_features(rnd.target, x, 0.01)) ** 2
    torch.testing.assert_close(rnd(frames), expected, rtol=1e-3, atol=1e-3)
    assert expected.shape == (3, 512)
    sizes = [tuple(x.shape) for x in rnd.predictor.parameters() if x.dim() > 1]
    assert sizes == [(32, 1, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (512, 512), (512, 512)]


def test_policy_and_both_values_come_from_the_network_of_the_published_file():
    agent, x = make_agent(), torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8)
    hidden = reference_features(agent.network, x / 255, 0.0).relu()
    assert hidden.shape == (3, 448)
    layer, critic_ext, critic_int = agent.critic_layer[0], agent.critic_ext, agent.critic_int
    features = hidden + F.linear(hidden, layer.weight, layer.bias).relu()
    ext_value = features @ critic_ext.weight[0] + critic_ext.bias
    int_value = features @ critic_int.weight[0] + critic_int.bias
    torch.testing.assert_close(agent.get_value(x), (ext_value, int_value), rtol=1e-3, atol=1e-5)
    logits = F.linear(F.linear(hidden, agent.actor[0].weight).relu(), agent.actor[2].weight)
    actions = torch.tensor([0, 17, 5])
    logprobs, entropy, *values = agent.evaluate_actions(x, actions)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[range(3), actions])
    torch.testing.assert_close(entropy, -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1))
    torch.testing.assert_close(tuple(values), agent.get_value(x))
    for weight, gain in ((layer.weight, 0.1), (critic_ext.weight, 0.01), (agent.actor[0].weight, 0.01)):
        products = weight @ weight.T
        torch.testing.assert_close(products, gain**2 * torch.eye(len(products)), rtol=1e-3, atol=1e-6)


def test_predictor_learns_what_it_sees_and_stays_wrong_about_what_it_does_not_see():
    torch.manual_seed(1)
    rnd = RandomNetworkDistillation()
    rnd.obs_mean.fill_(127)
    rnd.obs_var.fill_(74**2)
    seen, new = torch.zeros(2, 4, 1, 84, 84)
    for i in range(4):  # bars that stand, and others that lie
        seen[i, 0, :, 20 * i : 20 * i + 20] = new[i, 0, 20 * i : 20 * i + 20, :] = 255
    optimizer = torch.optim.Adam(rnd.parameters(), 5e-4, eps=1e-5)
    target = [x.clone() for x in rnd.target.parameters()]
    before = rnd(seen).mean().item()
    for _ in range(40):
        optimizer.zero_grad()
        rnd_loss(rnd(seen), torch.zeros(4), torch.zeros(4), Args(update_proportion=0.5))[0].backward()
        optimizer.step()
    of_seen, of_new = rnd(seen).mean().item(), rnd(new).mean().item()
    assert of_seen < 0.1 * before and of_new > 3 * of_seen, (before, of_seen, of_new)
    assert all(torch.equal(x, y) for x, y in zip(target, rnd.target.parameters()))


# The functions


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 0.25, 0.7, 1.0]))
def test_loss_and_its_gradients_are_those_of_a_loop_over_the_chosen_samples(seed, size, proportion):
    args = SimpleNamespace(update_proportion=proportion, vf_coef=0.3)
    torch.manual_seed(seed)
    errors = torch.rand(size, 5, requires_grad=True)
    values, returns = torch.randn(size, requires_grad=True), torch.randn(size)
    torch.manual_seed(seed + 1)
    loss, stats = rnd_loss(errors, values, returns, args)
    loss.backward()
    torch.manual_seed(seed + 1)
    chosen = [i for i, x in enumerate(torch.rand(size).tolist()) if x < proportion]
    fwd_loss = sum(np.mean(errors[i].tolist()) for i in chosen) / max(len(chosen), 1)
    value_loss = sum(0.5 * (v - r) ** 2 for v, r in zip(values.tolist(), returns.tolist())) / size
    assert stats["fwd_loss"].item() == pytest.approx(fwd_loss, rel=1e-5)
    assert stats["int_value_loss"].item() == pytest.approx(value_loss, rel=1e-5)
    assert loss.item() == pytest.approx(fwd_loss + 0.3 * value_loss, rel=1e-5)
    expected = np.zeros((size, 5))
    expected[chosen] = 1 / 5 / max(len(chosen), 1)
    np.testing.assert_allclose(errors.grad, expected, rtol=1e-5)
    np.testing.assert_allclose(values.grad, 0.3 * (values - returns).detach() / size, rtol=1e-4, atol=1e-7)
    assert not stats["fwd_loss"].requires_grad and not stats["int_value_loss"].requires_grad


def test_a_quarter_of_the_samples_trains_the_predictor_by_default():
    errors = torch.ones(100_000, 1, requires_grad=True)
    rnd_loss(errors, torch.zeros(100_000), torch.zeros(100_000), Args())[0].backward()
    assert errors.grad.count_nonzero().item() == pytest.approx(25_000, abs=1_000)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.floats(0, 1))
def test_sums_run_over_time_in_each_environment_and_go_on_from_the_rollout_before(seed, num_steps, num_envs, gamma):
    rng = np.random.default_rng(seed)
    rewards, before = rng.random((num_steps, num_envs)), rng.random(num_envs)
    sums = discounted_sums(rewards, before, gamma)
    for t in range(num_steps):
        for env in range(num_envs):
            expected = sum(gamma ** (t - k) * rewards[k, env] for k in range(t + 1)) + gamma ** (t + 1) * before[env]
            assert sums[t, env] == pytest.approx(expected)
    halves = [rewards[: num_steps // 2], rewards[num_steps // 2 :]]
    if len(halves[0]):
        first = discounted_sums(halves[0], before, gamma)
        np.testing.assert_array_equal(np.concatenate([first, discounted_sums(halves[1], first[-1], gamma)]), sums)


def test_statistics_of_each_pixel_are_merged_batch_by_batch():
    batches = [torch.rand(4, 1, 2, 3) * n for n in (1, 10, 100)]
    mean, var = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    for i, batch in enumerate(batches):
        ppo_rnd_envpool.merge_stats(mean, var, batch, 1 / (i + 1))
    samples = np.concatenate([x.numpy() for x in batches])
    np.testing.assert_allclose(mean, samples.mean(0), rtol=1e-5)
    np.testing.assert_allclose(var, samples.var(0), rtol=1e-5)


# A run, watched


class WatchedPool(atari.WatchedPool):
    """Notes the frames that random actions show. If spoiled, EnvPool's reset steps get other actions and rewards."""

    def __init__(self, pool, clock, spoil):
        super().__init__(pool, clock, spoil)
        self.random_frames = []

    def step(self, actions):
        assert self.pool.single_action_space.contains(actions.max()) and actions.min() >= 0
        outcome = self.pool.step(actions)
        self.random_frames.append(outcome[0][:, 3])
        return outcome

    def recv(self):
        self.clock["now"] = max(self.clock["now"], self.ready)
        obs, rewards, terminations, truncations, infos = self.pool.recv()
        if self.spoil:
            rewards = np.where(self.over, 1000, rewards)
            self.over = terminations | truncations
        return obs, rewards, terminations, truncations, infos


def run_script(folder, *flags, **settings):
    """Run the script in this process, as the tests of its parent do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "SCRIPT", SCRIPT)
        patch.setattr(atari, "KEPT", KEPT)
        patch.setattr(atari, "WatchedPool", WatchedPool)
        return atari.run_script(folder, *flags, **settings)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run, its whole history of each environment, and its curves."""
    run = run_script(tmp_path_factory.mktemp("recorded"), *FLAGS, limits=LIMITS)
    assert len(run.rollouts) == ITERATIONS
    names = [name for name in KEPT if name not in ("next_obs", "running_sum", "b_next_frames")]
    run.games = SimpleNamespace(**{name: np.concatenate([getattr(x, name) for x in run.rollouts]) for name in names})
    run.games.next_obs = np.concatenate([run.games.obs[1:], run.rollouts[-1].next_obs[None]])
    run.curves = curves(run.run_dir)
    return run


def parts(run):
    return [(rollout, slice(i * NUM_STEPS, (i + 1) * NUM_STEPS)) for i, rollout in enumerate(run.rollouts)]


def test_recording_has_all_kinds_of_ends(recorded):
    """What the tests below would otherwise not see."""
    games = recorded.games
    assert games.truncations[:, :2].any() and games.terminations[:, 2:].any() and games.rewards.any()
    assert not games.valid.all() and games.games_over.any()
    assert [pool.num_envs for pool in recorded.pools] == [2, 2, NUM_ENVS]
    for rollout, before in zip(recorded.rollouts[1:], recorded.rollouts):  # nothing lies between two rollouts
        np.testing.assert_array_equal(rollout.obs[0], before.next_obs)


def test_statistics_of_the_observations_are_those_of_all_newest_frames_random_ones_included(recorded):
    frames = recorded.pools[2].random_frames
    assert len(frames) == RANDOM_ROLLOUTS * NUM_STEPS and not recorded.pools[0].random_frames
    for rollout, part in parts(recorded):
        seen = np.concatenate([*frames, *recorded.games.next_obs[: part.stop, :, 3]]).astype(float)
        np.testing.assert_allclose(rollout.model["rnd.obs_mean"][0], seen.mean(0), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(rollout.model["rnd.obs_var"][0], seen.var(0), rtol=1e-3, atol=1e-2)
    assert seen.shape == (NUM_ENVS * NUM_STEPS * (RANDOM_ROLLOUTS + ITERATIONS), 84, 84) and seen.var(0).any()


def test_curiosity_is_half_the_squared_error_about_what_follows_before_the_predictor_learns_from_it(recorded):
    agent = make_agent(9)
    for before, (rollout, part) in zip(recorded.rollouts, parts(recorded)[1:]):
        agent.load_state_dict(before.model)
        frames = recorded.games.next_obs[part, :, 3:4].reshape(-1, 1, 84, 84)
        np.testing.assert_array_equal(rollout.b_next_frames, frames)
        with torch.no_grad():
            errors = agent.rnd(torch.as_tensor(frames)).numpy()
        curiosities = [sum(row.astype(float)) / 2 for row in errors]
        np.testing.assert_allclose(rollout.curiosities.flatten(), curiosities, rtol=1e-3)


def test_intrinsic_rewards_are_divided_by_the_deviation_of_all_discounted_sums_over_time(recorded):
    """By a naive loop: in each environment on its own, over all steps so far, through the ends of episodes."""
    samples, sums = [], np.zeros(NUM_ENVS)
    for rollout, _ in parts(recorded):
        for step in range(NUM_STEPS):
            for env in range(NUM_ENVS):
                sums[env] = INT_GAMMA * sums[env] + rollout.curiosities[step, env]
                samples.append(sums[env])
        np.testing.assert_allclose(rollout.running_sum, sums, rtol=1e-4)
        np.testing.assert_allclose(rollout.model["rnd.return_mean"], np.mean(samples), rtol=1e-4)
        np.testing.assert_allclose(rollout.model["rnd.return_var"], np.var(samples), rtol=1e-3)
        expected = rollout.curiosities / np.sqrt(np.var(samples) + 1e-8)
        np.testing.assert_allclose(rollout.int_rewards, expected, rtol=1e-3)
    # the fault of the published file, sums over the environments of a step, is a different number
    over_envs = np.var([discounted_sums(x.curiosities.T, np.zeros(NUM_STEPS), INT_GAMMA) for x in recorded.rollouts])
    assert not np.isclose(over_envs, np.var(samples), rtol=0.1)


def naive_advantages(rewards, values, next_values, gamma):
    """Of one stretch of steps, by definition: the discounted sum of the errors that follow."""
    deltas = rewards + gamma * next_values - values
    decay = gamma * GAE_LAMBDA
    return [sum(decay**k * delta for k, delta in enumerate(deltas[t:])) for t in range(len(deltas))]


def both_values(agent, obs):
    with torch.no_grad():
        pair = agent.get_value(torch.as_tensor(obs).flatten(0, 1))
    return [x.view(NUM_STEPS, NUM_ENVS).double().numpy() for x in pair]


def test_advantages_add_an_episodic_stream_and_one_without_ends(recorded):
    """Extrinsic ones stop at the ends of episodes and leave out the reset steps, intrinsic ones go through both."""
    agent, num_ends = make_agent(9), {"terminated": 0, "truncated": 0, "rollout": 0}
    for before, (rollout, part) in zip(recorded.rollouts, parts(recorded)[1:]):
        agent.load_state_dict(before.model)
        values, int_values = both_values(agent, recorded.games.obs[part])
        next_values, next_int_values = both_values(agent, recorded.games.next_obs[part])
        for env in range(NUM_ENVS):
            rewards = rollout.int_rewards[:, env]
            column = int_values[:, env], next_int_values[:, env]
            int_advantages = np.array(naive_advantages(rewards, *column, INT_GAMMA))
            np.testing.assert_allclose(rollout.int_advantages[:, env], int_advantages, rtol=1e-3, atol=1e-3)
            int_returns = int_advantages + int_values[:, env]
            np.testing.assert_allclose(rollout.int_returns[:, env], int_returns, rtol=1e-3, atol=1e-3)
            episode = []
            for t in range(NUM_STEPS):
                episode += [t] if rollout.valid[t, env] else []
                over = rollout.terminations[t, env] or rollout.truncations[t, env]
                if not episode or not (over or t == NUM_STEPS - 1):
                    continue
                kind = "terminated" if rollout.terminations[t, env] else "truncated" if over else "rollout"
                num_ends[kind] += 1
                following = next_values[episode, env]
                following[-1] *= kind != "terminated"
                rewards = rollout.rewards[episode, env]
                expected = np.array(naive_advantages(rewards, values[episode, env], following, GAMMA))
                returns = expected + values[episode, env]
                np.testing.assert_allclose(rollout.returns[episode, env], returns, rtol=1e-3, atol=1e-3)
                expected = EXT_COEF * expected + INT_COEF * int_advantages[episode]
                np.testing.assert_allclose(rollout.advantages[episode, env], expected, rtol=1e-3, atol=1e-3)
                episode = []
    assert min(num_ends.values()) > 1, num_ends


def test_stream_without_ends_bootstraps_over_the_end_of_an_episode():
    """In numbers: a termination hides a reward of 100 from the extrinsic stream alone."""
    rewards, zeros = torch.tensor([[0.0], [100.0]]), torch.zeros(2, 1)
    ends, never = torch.tensor([[True], [False]]), torch.zeros(2, 1, dtype=torch.bool)
    assert compute_gae(rewards, ends, never, zeros, zeros, 0.5, 1.0)[0].flatten().tolist() == [0, 100]
    assert compute_gae(rewards, never, never, zeros, zeros, 0.5, 1.0)[0].flatten().tolist() == [50, 100]


def test_no_policy_and_no_extrinsic_value_is_learned_from_a_reset_step(recorded, tmp_path):
    half = ITERATIONS // 2
    spoiled = run_script(tmp_path, *FLAGS, "--total-timesteps", NUM_ENVS * NUM_STEPS * half, limits=LIMITS, spoil=True)
    for honest, other in zip(recorded.rollouts[:half], spoiled.rollouts, strict=True):
        assert all(torch.equal(x, other.model[name]) for name, x in honest.model.items())
    rewards = np.concatenate([x.rewards for x in spoiled.rollouts])
    np.testing.assert_array_equal(rewards == 1000, ~recorded.games.valid[: len(rewards)])
    assert (rewards == 1000).sum() > 3


def test_everything_is_trained_or_brought_up_to_date_except_the_target(recorded):
    first, last = recorded.rollouts[0].model, recorded.rollouts[-1].model
    for name in first:
        assert torch.equal(first[name], last[name]) == name.startswith("rnd.target."), name


def test_error_of_the_predictor_falls(recorded):
    errors = [value for _, value in recorded.curves["losses/fwd_loss"]]
    assert np.mean(errors[-2:]) < 0.7 * errors[0], errors


def test_metrics_are_those_of_the_published_file(recorded):
    losses = "value_loss policy_loss entropy old_approx_kl fwd_loss approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in [*losses.split(), "int_value_loss"]}
    published |= {f"charts/{name}" for name in ["avg_episodic_return", "learning_rate", "SPS"]}
    for tag in published:
        steps = [step for step, _ in recorded.curves[tag]]
        assert steps == [NUM_ENVS * NUM_STEPS * (i + 1) for i in range(ITERATIONS)], tag


def test_every_game_is_logged_with_the_sum_of_its_curiosity_rewards(recorded):
    games, expected = recorded.games, []
    for env in range(NUM_ENVS):
        total = 0.0
        for t in range(len(games.curiosities)):
            total += games.curiosities[t, env]
            if games.games_over[t, env]:
                expected.append((t * NUM_ENVS + env + 1, pytest.approx(total, rel=1e-4)))
                total = 0.0
    assert sorted(recorded.curves["charts/episode_curiosity_reward"]) == sorted(expected, key=lambda x: x[0])
    returns, lengths = (recorded.curves[f"charts/episodic_{name}"] for name in ("return", "length"))
    steps = [step for step, _ in sorted(expected, key=lambda x: x[0])]
    assert sorted(step for step, _ in returns) == sorted(step for step, _ in lengths) == steps and len(steps) > 3


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
TRAIN += ["--num-iterations-obs-norm-init", 1, "--total-timesteps", 96, "--save-model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of three iterations, as a user starts it: its folder and what it printed."""
    runner = Runner(tmp_path_factory.mktemp("trained"))
    stdout = runner.run("-c", SHORT_EVALUATION, SCRIPT, *TRAIN).stdout
    return SimpleNamespace(run_dir=next(runner.folder.glob("runs/*")), stdout=stdout)


def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(*TRAIN, script=script, modules=MODULES / "without_utils")
    ours, theirs = load_file(trained.run_dir / "ppo_rnd_envpool.safetensors"), load_file(run_dir / "mine.safetensors")
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    evaluated = curves(trained.run_dir)
    del evaluated["eval/episodic_return"]
    atari.assert_same_curves(evaluated, curves(run_dir))
    assert trained.stdout.startswith("32 random steps")


def test_resumed_run_keeps_networks_and_statistics_and_plays_no_random_steps(trained, tmp_path, capsys):
    saved = load_file(trained.run_dir / "ppo_rnd_envpool.safetensors")
    checkpoint = torch.load(trained.run_dir / "checkpoint.pt", weights_only=False)
    assert all(torch.equal(x, checkpoint["agent"][name]) for name, x in saved.items())
    names = {name.split(".")[1] for name in saved if name.startswith("rnd.")}
    assert names == {"predictor", "target", "obs_mean", "obs_var", "return_mean", "return_var"}
    run_dir = Path(shutil.copytree(trained.run_dir, tmp_path / "runs" / trained.run_dir.name))
    flags = ["--resume", f"runs/{run_dir.name}", "--total-timesteps", 128, "--no-save-model", "--learning-rate", 0]
    resumed = run_script(tmp_path, *flags, watch=False)
    printed = capsys.readouterr()
    assert "episodes start again" in printed.err and "random steps" not in printed.out
    assert len(resumed.pools) == 2 and len(resumed.rollouts) == 1
    rollout, model = resumed.rollouts[0], resumed.rollouts[0].model
    for name, x in saved.items():
        assert torch.equal(x, model[name]) == (name.split(".")[-1] not in names - {"predictor", "target"}), name
    # sums and statistics go on where they were: this rollout is one of four, and with the random one, one of five
    sums = discounted_sums(rollout.curiosities, checkpoint["running_sum"], 0.99)
    np.testing.assert_allclose(rollout.running_sum, sums[-1], rtol=1e-5)
    assert checkpoint["running_sum"].min() > 0
    mean = 0.75 * saved["rnd.return_mean"] + 0.25 * sums.mean()
    torch.testing.assert_close(model["rnd.return_mean"], mean, rtol=1e-4, atol=0)
    frames = torch.as_tensor(rollout.b_next_frames).float()
    obs_mean = 0.8 * saved["rnd.obs_mean"] + 0.2 * frames.mean(0)
    torch.testing.assert_close(model["rnd.obs_mean"], obs_mean, rtol=1e-4, atol=1e-3)
    assert [step for step, _ in curves(run_dir)["losses/fwd_loss"]] == [32, 64, 96, 128]


def test_number_of_random_steps_cannot_change_when_a_run_is_resumed(trained, tmp_path):
    shutil.copytree(trained.run_dir, tmp_path / "runs" / "run")
    with pytest.raises(SystemExit, match="--num-iterations-obs-norm-init is 1 there and cannot change"):
        run_script(tmp_path, "--resume", "runs/run", "--total-timesteps", 128, "--num-iterations-obs-norm-init", 2)


def test_evaluation_after_training_is_repeated_by_the_saved_model(trained):
    logged = [value for _, value in curves(trained.run_dir)["eval/episodic_return"]]
    model = trained.run_dir / "ppo_rnd_envpool.safetensors"
    settings = {"seed": 1_000_001, "device": "cpu", "max_episode_steps": 12}
    again = evaluate(model, "MontezumaRevenge-v5", make_envs, load_policy, **settings)
    assert len(logged) == 10 and again.returns == logged
    assert f"mean return {again.mean:.2f}" in trained.stdout


def test_loaded_policy_takes_the_most_likely_action_of_the_trained_agent(trained):
    model = trained.run_dir / "ppo_rnd_envpool.safetensors"
    random.seed(1)
    pool = make_envs("MontezumaRevenge-v5", 3, False, "")
    policy, agent = load_policy(model, pool), make_agent()
    agent.load_state_dict(load_file(model))
    obs, _ = pool.reset()
    with torch.no_grad():
        logits = agent.actor(agent.get_features(torch.as_tensor(obs)))
    np.testing.assert_array_equal(policy(obs), logits.argmax(-1))


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "MontezumaNoFrameskip-v4"], ["no game of EnvPool", "ppo_atari.py"]),
        (["--env-id", "CartPole-v1"], ["no Atari game"]),
        (["--int-gamma", 1.5], ["--int-gamma 1.5", "between 0 and 1"]),
        (["--capture-video"], ["--capture-video", "ppo_atari.py"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd, flags, words):
    with pytest.raises(SystemExit) as stop:
        run_script(tmp_path, *flags)
    atari.assert_one_clear_line(stop.value.code, capfd.readouterr(), words)
    assert not list(tmp_path.iterdir())


# Learning


class Corridor:
    """In place of a pool: games of 30 steps in a corridor, to the left or to the right, without any reward.

    A step out of the left end stays there. Who walks at random is back near that end when the game is over.
    """

    single_observation_space = observation_space = SimpleNamespace(shape=(4, 84, 84))
    single_action_space = action_space = SimpleNamespace(n=2)
    last_places: list[int] = []  # where the games of all pools ended

    def __init__(self, env_id, num_envs, seed, **settings):
        self.num_envs, self.config = num_envs, {"seed": seed}

    def reset(self):
        self.places, self.elapsed = np.zeros(self.num_envs, int), np.zeros(self.num_envs, int)
        return self.draw(), {}

    def draw(self):
        obs = np.zeros((self.num_envs, 4, 84, 84), np.uint8)
        for idx, place in enumerate(self.places):
            obs[idx, :, :, 4 * place : 4 * place + 4] = 255
        return obs

    def send(self, actions):
        is_reset = self.elapsed == 30
        moved = np.clip(self.places + np.where(actions == 1, 1, -1), 0, 20)
        self.places = np.where(is_reset, 0, moved)
        self.elapsed = np.where(is_reset, 0, self.elapsed + 1)
        self.last_places.extend(self.places[self.elapsed == 30].tolist())

    def recv(self):
        nothing, over = np.zeros(self.num_envs, np.float32), self.elapsed == 30
        infos = {"reward": nothing, "terminated": over, "elapsed_step": self.elapsed}
        return self.draw(), nothing, over, np.zeros(self.num_envs, bool), infos

    def step(self, actions):
        self.send(actions)
        return self.recv()

    def close(self):
        self.last_places.clear()  # of the random actions


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_curiosity_alone_leads_down_a_corridor_that_random_actions_do_not_get_through(seed, tmp_path):
    flags = ["--no-cuda", "--num-envs", 8, "--num-steps", 32, "--total-timesteps", 2560, "--learning-rate", 5e-4]
    flags += ["--no-anneal-lr", "--num-iterations-obs-norm-init", 2, "--seed", seed]
    distances = {}
    for int_coef in (1, 0):
        folder = tmp_path / str(int_coef)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(envpool, "make_gymnasium", Corridor)
            run_script(folder, *flags, "--int-coef", int_coef, watch=False)
        distances[int_coef] = np.mean(Corridor.last_places[-24:])
        Corridor.last_places.clear()
    assert distances[1] > 8 and distances[0] < 6, distances


# The rooms of Montezuma's Revenge


def test_rooms_are_those_that_the_training_sees_and_not_the_random_actions():
    watcher = runpy.run_path(str(ROOT / "benchmark" / "ppo_rnd_rooms.py"))
    pool = make_envs("MontezumaRevenge-v5", 2, False, "")
    pool.reset()
    outcome = watcher["step_unnoted"](pool, np.zeros(2, int))
    assert outcome[-1]["ram"].shape == (2, 128) and watcher["rooms"] == set()
    pool.send(np.zeros(2, int))
    watcher["receive_and_note"](pool)
    assert watcher["rooms"] == {1}  # where a game starts
