"""PPO for Atari games: the nine details against the bare emulator, the network, learning, and what a run promises."""

import dataclasses
import importlib.util
import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import PPO, ROOT, Runner, assert_same_run, curves
from safetensors.torch import load_file
from test_ppo_numerics import naive_gae

from cleanrl.ppo_atari import Agent, Args, load_policy, make_envs
from cleanrl_utils.evaluate import evaluate

SCRIPT = ROOT / "cleanrl" / "ppo_atari.py"
MODULES = ROOT / "tests" / "modules"
SHORT = ["--no-cuda", "--num-envs", "2", "--num-steps", "16", "--num-minibatches", "2", "--total-timesteps", "128"]
LONGER = [*SHORT, "--total-timesteps", "640", "--update-epochs", "2", "--save-model"]  # some games of Breakout

has_atari = all(importlib.util.find_spec(name) for name in ("ale_py", "cv2", "stable_baselines3"))
needs_atari = pytest.mark.skipif(not has_atari, reason="needs cleanrl[atari]")
if has_atari:
    import ale_py  # registers its games
    import cv2


# Details 1 to 7: from the emulator to the observations, rewards and episodes of the agent


def cut_short(game: str, max_frames: int) -> str:
    """The id of a game that is cut off after fewer frames than Atari's 108,000."""
    spec = gym.spec(f"{game}NoFrameskip-v4")
    env_id = f"{game}Cut{max_frames}NoFrameskip-v4"
    if env_id not in gym.registry:
        gym.register(env_id, spec.entry_point, kwargs=spec.kwargs | {"max_num_frames_per_episode": max_frames})
    return env_id


class NaiveAtari:
    """An agent's view of a game, written down step by step on ALE alone: no wrappers of anybody."""

    def __init__(self, env_id: str, seed: int):
        settings = gym.spec(env_id).kwargs
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("max_num_frames_per_episode", settings["max_num_frames_per_episode"])
        noop_seed, emulator_seed = np.random.SeedSequence(seed).generate_state(2)
        self.random = np.random.Generator(np.random.PCG64(int(noop_seed)))
        self.ale.setInt("random_seed", emulator_seed.astype(np.int32))
        self.ale.loadROM(ale_py.roms.get_rom_path(settings["game"]))
        self.actions = self.ale.getMinimalActionSet()
        self.over = True

    def ended(self) -> tuple[bool, bool]:
        return self.ale.game_over(with_truncation=False), self.ale.game_truncated()

    def new_game(self) -> None:
        self.ale.reset_game()
        for _ in range(self.random.integers(1, 31)):
            self.ale.act(ale_py.Action.NOOP)
            assert not any(self.ended())
        self.picture = self.ale.getScreenGrayscale()
        self.over, self.score, self.length = False, 0.0, 0

    def play(self, action: int) -> float:
        """Four frames with the same action; seen is the brighter of the last two, pixel by pixel."""
        points, screens = 0, []
        for _ in range(4):
            points += self.ale.act(self.actions[action])
            if any(self.ended()):
                break
            screens.append(self.ale.getScreenGrayscale())
        if len(screens) == 4:
            self.picture = np.maximum(screens[2], screens[3])
        elif len(screens) == 3:  # the game has ended before the fourth frame, in the place of which the last picture is
            self.picture = np.maximum(screens[2], self.picture)
        self.over = any(self.ended())
        self.score += points
        self.length += 1
        return points

    def small(self) -> np.ndarray:
        return cv2.resize(self.picture, (84, 84), interpolation=cv2.INTER_AREA)

    def reset(self) -> np.ndarray:
        if self.over:
            self.new_game()
        else:  # only a life was lost: the game goes on
            self.play(0)
        if ale_py.Action.FIRE in self.actions:
            assert self.actions[1] == ale_py.Action.FIRE
            self.play(1)
            self.play(2)
        assert not self.over, "a game that ends in these steps, which nobody sees: choose another limit"
        self.lives = self.ale.lives()
        self.stack = [self.small()] * 4
        return np.stack(self.stack)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        points = self.play(action)
        termination, truncation = self.ended()
        lives = self.ale.lives()
        lost_life, self.lives = 0 < lives < self.lives, lives
        self.stack = [*self.stack[1:], self.small()]
        clipped = 1.0 if points > 0 else -1.0 if points < 0 else 0.0
        return np.stack(self.stack), clipped, termination or lost_life, truncation


GAMES = [  # game, its limit in frames, what happens in it
    ("Breakout", 700, {"lost life", "game over", "truncation", "points"}),
    ("Pong", 2000, {"truncation", "points", "points against"}),  # no lives
    ("Pong", 108_000, {"game over", "points against"}),
    ("SpaceInvaders", 1500, {"lost life", "game over", "truncation", "points"}),
    ("Qbert", 1500, {"lost life", "game over", "truncation", "points"}),  # goes on without lives for some frames
    ("MsPacman", 108_000, {"lost life", "game over", "points"}),  # no FIRE
    ("Asterix", 1200, {"lost life", "game over", "truncation", "points"}),  # no FIRE
    ("Freeway", 2500, {"truncation"}),  # neither
]


@needs_atari
@pytest.mark.parametrize("game, max_frames, expected", GAMES, ids=[f"{game}-{limit}" for game, limit, _ in GAMES])
def test_every_frame_reward_and_episode_is_that_of_the_naive_view_of_the_game(game, max_frames, expected):
    env_id, num_envs, num_steps, seed = cut_short(game, max_frames), 2, 1000, 1
    envs, games = make_envs(env_id, num_envs, False, ""), [NaiveAtari(env_id, seed + idx) for idx in range(num_envs)]
    assert envs.single_observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    obs, _ = envs.reset(seed=seed)
    for idx in range(num_envs):
        np.testing.assert_array_equal(obs[idx], games[idx].reset())
    happened, generator = set(), np.random.default_rng(seed)
    for _ in range(num_steps):
        actions = generator.integers(0, envs.single_action_space.n, num_envs)
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        for idx, naive in enumerate(games):
            expected_obs, *outcome = naive.step(actions[idx])
            assert outcome == [rewards[idx], terminations[idx], truncations[idx]]
            happened |= {"points"} if rewards[idx] > 0 else {"points against"} if rewards[idx] < 0 else set()
            ended = terminations[idx] or truncations[idx]
            assert ended == ("final_obs" in infos and infos["_final_obs"][idx])
            if ended:
                np.testing.assert_array_equal(infos["final_obs"][idx], expected_obs)
                episodes = infos["final_info"].get("episode")
                assert naive.over == (episodes is not None and infos["final_info"]["_episode"][idx])
                if naive.over:  # scores are raw, and of whole games
                    assert (episodes["r"][idx], episodes["l"][idx]) == (naive.score, naive.length)
                happened.add("truncation" if truncations[idx] else "game over" if naive.over else "lost life")
                expected_obs = naive.reset()
            np.testing.assert_array_equal(obs[idx], expected_obs)
    assert expected <= happened, happened


@needs_atari
@pytest.mark.parametrize("game, version", [("ALE/Breakout-v5", "v5"), ("Breakout-v4", "v4")])
def test_other_ids_of_a_game_skip_four_frames_as_well(game, version):
    env = make_envs(game, 1, False, "").envs[0]
    assert env.unwrapped._frameskip == 1 and env.get_wrapper_attr("frame_skip") == 4
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == {"v5": 0.25, "v4": 0.0}[version]


def test_every_detail_is_numbered_in_the_comments():
    details = re.findall(r"Atari details? ([\d, and]+)", SCRIPT.read_text())
    assert {int(x) for match in details for x in re.findall(r"\d", match)} == set(range(1, 10))


# Details 8 and 9: the network


@pytest.fixture
def agent():
    torch.manual_seed(1)
    agent = Agent(SimpleNamespace(single_action_space=gym.spaces.Discrete(4)))
    torch.nn.init.normal_(agent.actor.weight, std=0.1)  # a policy far from uniform
    return agent


def pixels(*shape):
    return torch.randint(0, 256, (*shape, 4, 84, 84), dtype=torch.uint8)


def naive_network(agent, x):
    """Logits and values, layer by layer and in double precision."""
    weights = {name: w.double() for name, w in agent.named_parameters()}
    x = x.double() / 255
    for layer, stride in (0, 4), (2, 2), (4, 1):
        x = F.conv2d(x, weights[f"network.{layer}.weight"], weights[f"network.{layer}.bias"], stride).clamp(min=0)
    x = (x.reshape(len(x), -1) @ weights["network.7.weight"].T + weights["network.7.bias"]).clamp(min=0)
    return x @ weights["actor.weight"].T + weights["actor.bias"], x @ weights["critic.weight"][0] + agent.critic.bias


def test_network_has_the_size_of_the_one_in_nature(agent):
    shared = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64 + (64 * 7 * 7 + 1) * 512
    assert sum(p.numel() for p in agent.network.parameters()) == shared == 1_684_128
    assert sum(p.numel() for p in agent.parameters()) == shared + (512 + 1) * (4 + 1)


def test_weights_start_orthogonal_with_their_gains_and_biases_at_zero():
    agent = Agent(SimpleNamespace(single_action_space=gym.spaces.Discrete(18)))
    gains = {"network.0": 2**0.5, "network.2": 2**0.5, "network.4": 2**0.5, "network.7": 2**0.5}
    gains |= {"critic": 1.0, "actor": 0.01}
    for name, gain in gains.items():
        layer = agent.get_submodule(name)
        rows = layer.weight.detach().flatten(1) / gain
        torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), rtol=0, atol=1e-4)
        assert (layer.bias == 0).all()
    assert len(list(agent.parameters())) == 2 * len(gains)


def test_logprobs_entropy_and_values_equal_those_of_the_naive_network_and_of_torch_distributions(agent):
    x = pixels(5)
    actions = agent.get_action(x).clone()  # out of inference mode
    logprobs, entropy, values = agent.evaluate_actions(x, actions)
    logits, expected_values = naive_network(agent, x)
    reference = torch.distributions.Categorical(logits=logits)
    assert actions.shape == (5,) and actions.dtype == torch.int64
    torch.testing.assert_close(logprobs.double(), reference.log_prob(actions), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(entropy.double(), reference.entropy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values.double(), expected_values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values, agent.get_value(x))
    torch.testing.assert_close(values, agent.get_value(x.float()))  # as evaluation and bootstrapping give them
    assert (agent.get_action(x, deterministic=True) == logits.argmax(-1)).all()


def test_images_of_a_batch_do_not_see_each_other(agent):
    x, actions = pixels(6), torch.randint(0, 4, (6,))
    for together, alone in zip(agent.evaluate_actions(x, actions), agent.evaluate_actions(x[2:3], actions[2:3])):
        torch.testing.assert_close(together[2:3], alone, rtol=1e-4, atol=1e-5)


def test_gradient_equals_that_of_the_naive_network(agent):
    x, actions, weights = pixels(4), torch.randint(0, 4, (4,)), torch.randn(3, 4)
    ours = agent.evaluate_actions(x, actions)
    logits, values = naive_network(agent, x)
    reference = torch.distributions.Categorical(logits=logits)
    naive = [reference.log_prob(actions), reference.entropy(), values]
    gradients, expected = (
        torch.autograd.grad(sum((w * y).sum() for w, y in zip(weights, outputs)), list(agent.parameters()))
        for outputs in (ours, naive)
    )
    for got, wanted in zip(gradients, expected, strict=True):
        assert wanted.abs().max() > 0
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


def test_actions_are_sampled_from_the_policy(agent):
    x = pixels(1)
    probabilities = torch.softmax(naive_network(agent, x)[0][0], -1)
    features = agent.get_features(x).detach()
    agent.get_features = lambda many: features.expand(len(many), -1)
    counts = torch.bincount(agent.get_action(torch.empty(100_000)), minlength=4)
    torch.testing.assert_close((counts / 100_000).double(), probabilities, rtol=0, atol=0.01)
    assert probabilities.max() - probabilities.min() > 0.1


def test_bf16_is_close_to_full_precision_and_keeps_the_parameters_in_it(agent):
    x, actions = pixels(8), torch.randint(0, 4, (8,))
    exact = agent.evaluate_actions(x, actions)
    agent.bf16 = True
    rough = agent.evaluate_actions(x, actions)
    for got, wanted in zip(rough, exact, strict=True):
        assert got.dtype == torch.float32 and (got != wanted).any()
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)
    sum(rough).sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in agent.parameters())


# The script: a run of several games, its folder and its targets


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of some games, with its output."""
    if not has_atari:
        pytest.skip("needs cleanrl[atari]")
    runner = Runner(tmp_path_factory.mktemp("atari"))
    result = runner.run(SCRIPT, *LONGER)
    (run_dir,) = runner.folder.glob("runs/*")
    return SimpleNamespace(run_dir=run_dir, output=result.stdout, curves=curves(run_dir))


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_atari", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False,
        "env_id": "BreakoutNoFrameskip-v4", "total_timesteps": 10_000_000, "learning_rate": 2.5e-4, "num_envs": 8,
        "num_steps": 128, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4,
        "update_epochs": 4, "norm_adv": True, "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5,
        "max_grad_norm": 0.5, "target_kl": None, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


def test_run_folder_describes_the_run(finished):
    assert finished.run_dir.name.startswith("BreakoutNoFrameskip-v4__ppo_atari__1__")
    assert (finished.run_dir / "ppo_atari.py").read_bytes() == SCRIPT.read_bytes()
    args = json.loads((finished.run_dir / "args.json").read_text())
    assert (args["num_envs"], args["batch_size"], args["num_iterations"]) == (2, 32, 20)
    assert {path.suffix for path in finished.run_dir.iterdir() if "tfevents" not in path.name} == {
        ".json", ".pt", ".py", ".safetensors",
    }  # fmt: skip


def test_metrics_are_those_of_the_published_file(finished):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()} | {"charts/learning_rate", "charts/SPS"}
    for tag in published:
        assert [step for step, _ in finished.curves[tag]] == list(range(32, 641, 32)), tag
    returns, lengths = (finished.curves[f"charts/episodic_{name}"] for name in ("return", "length"))
    assert [step for step, _ in returns] == [step for step, _ in lengths]
    # five lives of a player who moves at random: whole games, not single lives, and in steps of four frames
    assert len(returns) >= 2 and all(80 < length < 500 for _, length in lengths)


def test_saved_model_is_evaluated_by_raw_scores_of_whole_games(finished):
    logged = [value for _, value in finished.curves["eval/episodic_return"]]
    assert len(logged) == 10 and "evaluation: mean return" in finished.output
    model = finished.run_dir / "ppo_atari.safetensors"
    again = evaluate(model, "BreakoutNoFrameskip-v4", make_envs, load_policy, seed=1 + 1_000_000, device="cpu")
    assert again.returns == logged


def test_loaded_policy_is_the_trained_one(finished):
    envs = make_envs("BreakoutNoFrameskip-v4", 2, False, "")
    agent = Agent(envs)
    agent.load_state_dict(load_file(finished.run_dir / "ppo_atari.safetensors"))
    x = pixels(6)
    actions = load_policy(finished.run_dir / "ppo_atari.safetensors", envs)(x.numpy())
    np.testing.assert_array_equal(actions, naive_network(agent, x)[0].argmax(-1))


# Runs the script for one iteration in which nothing changes, and keeps what it was trained on.
KEEP = """
import runpy, sys
import ale_py, gymnasium as gym, numpy as np, torch
script, *sys.argv[1:] = sys.argv[1:]
spec = gym.spec("BreakoutNoFrameskip-v4")
gym.register("BreakoutCut260NoFrameskip-v4", spec.entry_point, kwargs=spec.kwargs | {"max_num_frames_per_episode": 260})
end = runpy.run_path(script, run_name="__main__")
names = "obs actions rewards terminations truncations b_logprobs values advantages returns".split()
np.savez("end.npz", **{name: np.asarray(end[name]) for name in names})
torch.save(end["agent"].state_dict(), "agent.pt")
"""


@needs_atari
def test_targets_of_a_rollout_are_those_of_the_naive_view_of_its_games(runner):
    flags = ["--env-id", "BreakoutCut260NoFrameskip-v4", "--learning-rate", "0", "--num-steps", "128"]
    runner.run("-c", KEEP, SCRIPT, *SHORT, *flags, "--total-timesteps", "256")
    end = np.load(runner.folder / "end.npz")
    agent = Agent(SimpleNamespace(single_action_space=gym.spaces.Discrete(4)))
    agent.load_state_dict(torch.load(runner.folder / "agent.pt"))
    env_id = cut_short("Breakout", 260)
    assert end["obs"].dtype == np.uint8 and end["obs"].shape == (128, 2, 4, 84, 84)
    assert end["terminations"].sum() > 3 and end["truncations"].sum() > 2
    next_values = np.zeros((128, 2), np.float32)
    for idx in range(2):
        naive = NaiveAtari(env_id, 1 + idx)
        obs = naive.reset()
        for step in range(128):
            np.testing.assert_array_equal(end["obs"][step, idx], obs)
            obs, *outcome = naive.step(end["actions"][step, idx])
            assert outcome == [end[name][step, idx] for name in ("rewards", "terminations", "truncations")]
            with torch.no_grad():  # of the observation that really came next, also where the game was cut off
                next_values[step, idx] = agent.get_value(torch.as_tensor(obs)[None])
            if any(outcome[1:]):
                obs = naive.reset()
    with torch.no_grad():
        logits, values = naive_network(agent, torch.as_tensor(end["obs"]).flatten(0, 1))
    logprobs = torch.distributions.Categorical(logits=logits).log_prob(torch.as_tensor(end["actions"]).flatten())
    np.testing.assert_allclose(end["b_logprobs"], logprobs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(end["values"].ravel(), values, rtol=1e-4, atol=1e-5)
    outcomes = (end[name] for name in ("rewards", "terminations", "truncations"))
    advantages = naive_gae(*outcomes, end["values"], next_values, 0.99, 0.95)
    np.testing.assert_allclose(end["advantages"], advantages, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(end["returns"], advantages + end["values"], rtol=1e-3, atol=1e-4)
    (run_dir,) = runner.folder.glob("runs/*")
    assert abs(curves(run_dir)["losses/approx_kl"][0][1]) < 1e-6  # the policy that played is the one that is updated


# Repeatable and resumable


@pytest.mark.slow
@needs_atari
def test_same_seed_gives_the_same_run_and_another_seed_another(runner, finished):
    assert_same_run(finished.run_dir, runner.train(*LONGER, script=SCRIPT))
    other = curves(runner.train(*SHORT, "--seed", "2", script=SCRIPT))
    assert other["losses/value_loss"][0] != finished.curves["losses/value_loss"][0]


@needs_atari
def test_resumed_run_equals_one_that_never_stopped(runner, finished):
    process = runner.start(SCRIPT, *LONGER, "--exp-name", "killed", "--checkpoint-frequency", "64")
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(1)  # some iterations and a lost life later
    process.kill()
    process.communicate()
    assert 64 <= torch.load(checkpoint, weights_only=False)["global_step"] < 640
    result = runner.run(SCRIPT, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_run(finished.run_dir, checkpoint.parent)


@needs_atari
def test_bf16_learns_nearly_the_same_at_first(runner):
    exact, rough = (
        curves(runner.train(*SHORT, "--exp-name", name, *flags, script=SCRIPT))
        for name, flags in (("exact", []), ("rough", ["--bf16"]))
    )
    for tag in ("losses/value_loss", "losses/entropy"):
        (_, wanted), (_, got) = exact[tag][0], rough[tag][0]
        assert got != wanted and got == pytest.approx(wanted, rel=0.05)
    assert all(np.isfinite(value) for _, value in rough["losses/value_loss"]) and len(rough["losses/value_loss"]) == 4


@needs_atari
def test_videos_are_of_whole_games(runner):
    run_dir = runner.train(*SHORT, "--capture-video", "--total-timesteps", "640", "--update-epochs", "1", script=SCRIPT)
    names = sorted(path.name for path in run_dir.glob("videos/*.mp4"))
    games = [
        step for step, _ in curves(run_dir)["charts/episodic_return"] if step % 2
    ]  # those of the first environment
    assert len(games) >= 1  # lives would be five times as many; RecordVideo films the games 0, 1, 8, 27, ...
    assert names == [f"rl-video-episode-{i}.mp4" for i in (0, 1)]
    assert all(path.stat().st_size > 1000 for path in run_dir.glob("videos/*.mp4"))


@needs_atari
def test_copied_out_file_trains_in_an_empty_folder_without_the_repository(runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(*SHORT, script=script, modules=MODULES / "without_utils")
    assert len(curves(run_dir)["losses/value_loss"]) == 4


# Learning


@needs_atari
def test_direction_of_a_drifting_bar_is_learned_from_the_stack_of_frames(runner):
    flags = ["--no-cuda", "--env-id", "Drift-v0", "--num-envs", "4", "--num-steps", "32", "--learning-rate", "5e-4"]
    runner.run(MODULES / "pixel_game.py", SCRIPT, *flags, "--total-timesteps", "3072")
    (run_dir,) = runner.folder.glob("runs/*")
    returns = [value for _, value in curves(run_dir)["charts/episodic_return"]]
    # of 34 to 63 points in a game: a third of them by chance
    assert np.mean(returns[:20]) < 24 and np.mean(returns[-40:]) > 34


# Mistakes


@needs_atari
@pytest.mark.parametrize(
    "env_id, words",
    [
        ("Breako-v5", ["no such Atari game", "like BreakoutNoFrameskip-v4"]),
        ("SpaceInvader", ["no such Atari game", "like SpaceInvadersNoFrameskip-v4"]),
        ("CartPole-v1", ["no Atari game", "BreakoutNoFrameskip-v4"]),
        ("BreakoNoFrameskip-v4", ["no such Atari game"]),
        ("ALE/Breako-v5", ["no such Atari game"]),
        ("PongNoFrameskip-v7", ["v7", "`v4`"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, env_id, words):
    assert_one_clear_line(runner.run(SCRIPT, "--env-id", env_id, check=False), *words)
    assert not list(runner.folder.iterdir())


@pytest.mark.parametrize("module", ["ale_py", "cv2", "stable_baselines3"])
def test_missing_extra_is_named(runner, module):
    result = runner.run(SCRIPT, modules=MODULES / f"without_{module}", check=False)
    assert_one_clear_line(result, 'pip install "cleanrl[atari]"')
    assert not list(runner.folder.iterdir())


def test_atari_game_given_to_ppo_gets_the_name_of_this_file(runner):
    assert_one_clear_line(runner.run(PPO, "--env-id", "BreakoutNoFrameskip-v4", check=False), "ppo_atari.py")
    assert not list(runner.folder.iterdir())


def assert_one_clear_line(result, *words):
    assert result.returncode != 0
    banner = ("A.L.E: Arcade Learning Environment", "[Powered by Stella]")  # of the emulator, where it gets that far
    lines = [line for line in result.stderr.strip().splitlines() if not line.startswith(banner)]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]
