"""PPO in self-play: each player has its own row, games end as they should, and what a run promises."""

import dataclasses
import os
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, Runner, assert_same_run, curves
from safetensors.torch import load_file

from cleanrl import ppo_atari
from cleanrl.ppo_pettingzoo_ma_atari import Agent, Args, Game, compute_gae, load_policy, make_envs, ppo_loss
from cleanrl_utils.evaluate import evaluate
from cleanrl_utils.snapshot import restore_snapshot, take_snapshot

ale_py = pytest.importorskip("ale_py", reason="needs cleanrl[pettingzoo]")
cv2 = pytest.importorskip("cv2", reason="needs cleanrl[pettingzoo]")
pettingzoo = pytest.importorskip("pettingzoo", reason="needs cleanrl[pettingzoo]")
base = pytest.importorskip("pettingzoo.atari.base_atari_env", reason="needs cleanrl[pettingzoo]", exc_type=ImportError)

SCRIPT = ROOT / "cleanrl" / "ppo_pettingzoo_ma_atari.py"
MODULES = ROOT / "tests" / "modules"
ROMS = os.path.join(os.path.dirname(ale_py.__file__), "roms")
PLAYERS = ["first_0", "second_0"]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def limit_games(monkeypatch, max_frames):
    """PettingZoo's own time limit, made shorter."""
    make = base.ParallelAtariEnv.__init__
    monkeypatch.setattr(
        base.ParallelAtariEnv, "__init__", lambda self, **kwargs: make(self, **kwargs | {"max_cycles": max_frames})
    )


# The games


class NaiveGame:
    """A game as PettingZoo plays it, with all of its checks, frame by frame: whole histories, and no wrappers."""

    def __init__(self, env_id, seed, max_frames, last_frame=None):
        self.last_frame = last_frame
        self.env = pettingzoo.make("parallel", f"atari/{env_id}", auto_rom_install_path=ROMS, max_cycles=max_frames)
        self.reset(seed)

    def reset(self, seed=None):
        screens, _ = self.env.reset(seed=seed)
        self.frames = [screens["first_0"]]
        self.pictures = [self.frames[0]] * 4
        self.returns, self.length, self.out = np.zeros(2), 0, set()

    def views(self):
        """Of the two players: the last 4 pictures, then a white plane for themselves and a black one for the other."""
        blue = [cv2.resize(picture[..., 2], (84, 84), interpolation=cv2.INTER_AREA) for picture in self.pictures[-4:]]
        white, black = np.full((84, 84), 255), np.zeros((84, 84))
        return np.array([[*blue, white, black], [*blue, black, white]])

    def step(self, moves):
        """The raw points of both players, whether the game is over, and whether it was cut off."""
        points, over, cut_off = np.zeros(2), False, False
        for _ in range(4):
            if over or cut_off:
                continue
            chosen = {player: move for player, move in zip(PLAYERS, moves) if player in self.env.agents}
            screens, rewards, terminations, truncations, _ = self.env.step(chosen)
            points += [rewards.get(player, 0) for player in PLAYERS]
            self.frames.append(list(screens.values())[-1])
            self.out |= {player for player, is_out in terminations.items() if is_out}
            over = self.out == set(PLAYERS) or self.env.unwrapped.frame == self.last_frame
            cut_off = any(truncations.values())
        self.pictures.append(np.maximum(self.frames[-2], self.frames[-1]))
        self.returns, self.length = self.returns + points, self.length + 1
        return points, over, cut_off


@pytest.mark.parametrize(
    "env_id, max_frames, num_steps, expected",
    [
        ("pong_v3", 242, 130, {"cut off"}),  # in the middle of a step
        ("space_invaders_v2", 100_000, 420, {"over", "clipped"}),  # scores of 5 to 200, and not zero-sum
        ("maze_craze_v3", 100_000, 300, {"alone"}),  # one player is out, which does not end the game
    ],
)
def test_each_player_has_the_view_reward_and_end_of_its_own_game_in_its_row(
    env_id, max_frames, num_steps, expected, monkeypatch
):
    limit_games(monkeypatch, max_frames)
    envs = make_envs(env_id, 4, False, "", self_play=True)
    naive_games = [NaiveGame(env_id, 5, max_frames), NaiveGame(env_id, 6, max_frames)]
    obs, _ = envs.reset(seed=5)
    assert obs.shape == (4, *envs.single_observation_space.shape) and obs.dtype == np.uint8 and envs.num_envs == 4
    rng, seen = np.random.default_rng(1), set()
    for _ in range(num_steps):
        actions = rng.integers(envs.single_action_space.n, size=4)
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        for i, naive in enumerate(naive_games):
            rows = slice(2 * i, 2 * i + 2)
            points, over, cut_off = naive.step(actions[rows])
            np.testing.assert_array_equal(rewards[rows], np.clip(points, -1, 1))
            seen |= {"scored"} if points.any() else set()
            assert (terminations[rows] == over).all() and (truncations[rows] == cut_off).all()
            seen |= {"clipped"} if abs(points).max() > 1 else set()
            seen |= {"alone"} if len(naive.out) == 1 else set()
            if over or cut_off:
                seen.add("over" if over else "cut off")
                np.testing.assert_array_equal(infos["final_obs"][i], naive.views())
                np.testing.assert_array_equal(infos["final_info"]["returns"][i], naive.returns)
                assert infos["final_info"]["episode"]["l"][i] == naive.length
                naive.reset()
            np.testing.assert_array_equal(obs[rows], naive.views())
    assert seen >= expected | {"scored"}
    envs.close()


def test_one_players_point_in_pong_is_the_others_loss():
    envs = make_envs("pong_v3", 4, False, "", self_play=True)
    envs.reset(seed=1)
    rng = np.random.default_rng(1)
    rewards = np.array([envs.step(rng.integers(6, size=4))[1] for _ in range(400)])
    np.testing.assert_array_equal(rewards[:, 0::2], -rewards[:, 1::2])
    assert {-1, 0, 1} == set(rewards[:, 0]) == set(rewards[:, 2])
    assert (rewards[:, 0] != rewards[:, 2]).any()  # two games, not one


def test_player_who_does_not_serve_in_pong_loses_points_that_the_other_one_does_not_win():
    """So a score can be far below -21, as the page says: the game goes on until it is truncated."""
    game = Game("pong_v3")
    game.reset(seed=1)
    for _step in range(1000):
        _, _, termination, truncation, _ = game.step([0, 0])
        assert not termination and not truncation
    assert game.returns.min() < -21 and game.returns.max() <= 0


def test_screens_are_shrunk_by_the_mean_of_the_area_of_each_pixel_in_the_blue_channel():
    def overlaps(size):  # how much of each old pixel lies in each of the 84 new ones
        edges = np.arange(85) * size / 84
        pixels = np.arange(size)
        covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        return covered.clip(0) * 84 / size

    screen = np.random.default_rng(1).integers(256, size=(210, 160, 3), dtype=np.uint8)
    expected = overlaps(210) @ screen[:, :, 2] @ overlaps(160).T
    np.testing.assert_allclose(Game.shrink(None, screen), expected, atol=0.51)


def test_games_are_those_of_supersuit_except_for_how_screens_are_shrunk(monkeypatch):
    """The wrappers of the published file; they interpolate between the four nearest pixels."""
    supersuit = pytest.importorskip("supersuit")
    import tinyscaler

    def bilinear(self, screen):
        blue = np.ascontiguousarray(screen[:, :, 2:])
        return tinyscaler.scale(src=blue, size=(84, 84), mode="bilinear").reshape(84, 84)

    monkeypatch.setattr(Game, "shrink", bilinear)
    peer = pettingzoo.make("parallel", "atari/pong_v3", auto_rom_install_path=ROMS, max_cycles=242)
    peer = supersuit.frame_skip_v0(supersuit.max_observation_v0(peer, 2), 4)
    peer = supersuit.color_reduction_v0(supersuit.clip_reward_v0(peer, lower_bound=-1, upper_bound=1), mode="B")
    peer = supersuit.frame_stack_v1(supersuit.resize_v1(peer, x_size=84, y_size=84), 4)
    peer = supersuit.agent_indicator_v0(peer, type_only=False)
    limit_games(monkeypatch, 242)
    envs = make_envs("pong_v3", 2, False, "", self_play=True)
    envs.reset(seed=1)
    peer.reset(seed=1)
    rng = np.random.default_rng(1)
    for step in range(1, 62):
        actions = rng.integers(6, size=2)
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        views, peer_rewards, peer_terminations, peer_truncations, _ = peer.step(dict(zip(PLAYERS, actions)))
        assert rewards.tolist() == list(peer_rewards.values())
        assert terminations.tolist() == list(peer_terminations.values())
        assert truncations.tolist() == list(peer_truncations.values()) == [step == 61] * 2
        obs = infos["final_obs"][0] if step == 61 else obs
        if step > 3:  # it starts with black frames
            np.testing.assert_array_equal(obs, [views[player].transpose(2, 0, 1) for player in PLAYERS])


def test_restored_games_go_on_like_the_originals(env_id="joust_v3"):
    def play(envs, seed):
        rng = np.random.default_rng(seed)
        outcomes = [envs.step(rng.integers(envs.single_action_space.n, size=4))[:4] for _ in range(40)]
        return [[x.tobytes() for x in outcome] for outcome in outcomes]

    envs, others = (make_envs(env_id, 4, False, "", self_play=True) for _ in range(2))
    envs.reset(seed=1)
    others.reset(seed=2)
    play(envs, 1)
    snapshot = take_snapshot(envs)
    expected = play(envs, 2)
    assert play(others, 2) != expected
    restore_snapshot(others, snapshot)
    assert play(others, 2) == expected


# The evaluation


def play_against_random(monkeypatch, seed, num_steps=60):
    """Player 0 fires all the time; returns the envs, their observations, and the moves of both players in two games."""
    moves, step = [[], []], Game.step
    envs = make_envs("pong_v3", 2, False, "")
    games = [env.unwrapped for env in envs.envs]

    def watched(self, action):
        moves[games.index(self)].append(list(action))
        return step(self, action)

    with monkeypatch.context() as patch:
        patch.setattr(Game, "step", watched)
        all_obs = [envs.reset(seed=seed)[0].copy()]
        for _ in range(num_steps):
            all_obs.append(envs.step(np.array([1, 1]))[0].copy())
    return envs, np.array(all_obs), np.array(moves)


def test_evaluation_is_played_by_player_0_against_random_moves_that_depend_on_the_seed_alone(monkeypatch):
    envs, all_obs, moves = play_against_random(monkeypatch, seed=1)
    assert envs.single_observation_space.shape == (6, 84, 84) and envs.single_action_space.n == 6
    assert (all_obs[:, :, 4] == 255).all() and (all_obs[:, :, 5] == 0).all()
    assert (moves[:, :, 0] == 1).all()
    assert set(moves[0, :, 1]) == set(moves[1, :, 1]) == set(range(6))
    assert (moves[0, :, 1] != moves[1, :, 1]).any()
    np.testing.assert_array_equal(play_against_random(monkeypatch, seed=1)[2], moves)
    assert (play_against_random(monkeypatch, seed=3)[2][:, :, 1] != moves[:, :, 1]).any()


def test_random_moves_are_equally_likely(monkeypatch):
    _, _, moves = play_against_random(monkeypatch, seed=2, num_steps=300)
    counts = np.bincount(moves[:, :, 1].ravel(), minlength=6)
    assert abs(counts - 100).max() < 5 * np.sqrt(100 * 5 / 6), counts  # five standard deviations


# The network


def make_agent(num_actions=6):
    torch.manual_seed(1)
    return Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=num_actions)))


def test_network_sees_frames_and_indicator_between_0_and_1():
    agent, seen = make_agent(), []
    agent.network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    game = Game("pong_v3")
    obs, _ = game.reset(seed=1)
    values = agent.get_value(torch.as_tensor(obs))
    np.testing.assert_allclose(seen[0], obs / 255.0, rtol=1e-6)
    assert seen[0][:, 4:].mean((2, 3)).tolist() == [[1, 0], [0, 1]]
    assert values[0] != values[1]  # the same screen, but not the same player


def test_loss_and_advantages_are_those_of_the_parent():
    for ours in (ppo_loss, compute_gae):
        theirs = getattr(ppo_atari, ours.__name__)
        assert ours.__code__.co_code == theirs.__code__.co_code and ours.__code__.co_consts == theirs.__code__.co_consts


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppo_pettingzoo_ma_atari", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "pong_v3",
        "total_timesteps": 20_000_000, "learning_rate": 2.5e-4, "num_envs": 16, "num_steps": 128, "anneal_lr": True,
        "gamma": 0.99, "gae_lambda": 0.95, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
        "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5,
        "target_kl": None,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


# A run of the script


# Runs the script with games of 250 frames, of which every second one is over after 150: 63 and 38 steps.
SHORT_GAMES = """
import runpy, sys
from pettingzoo.atari.base_atari_env import ParallelAtariEnv
make, step, games = ParallelAtariEnv.__init__, ParallelAtariEnv.step, []
def make_short(self, **kwargs):
    make(self, **kwargs | {"max_cycles": 250})
    games.append(self)
def step_short(self, moves):
    obs, rewards, terminations, truncations, infos = step(self, moves)
    if self.frame == 150 and games.index(self) % 2 == 1:
        self.agents, terminations = [], dict.fromkeys(self.possible_agents, True)
    return obs, rewards, terminations, truncations, infos
ParallelAtariEnv.__init__, ParallelAtariEnv.step = make_short, step_short
sys.argv[:] = sys.argv[1:]
end = runpy.run_path(sys.argv[0], run_name="__main__")
"""
KEEP = """
import numpy as np, torch
names = "obs actions rewards terminations truncations advantages returns".split()
np.savez("end.npz", **{name: np.asarray(end[name]) for name in names})
torch.save(end["agent"].state_dict(), "agent.pt")
"""
TINY = ["--no-cuda", "--num-envs", 4, "--num-steps", 16, "--num-minibatches", 2, "--update-epochs", 1]
TINY += ["--total-timesteps", 256, "--save-model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of four iterations."""
    runner = Runner(tmp_path_factory.mktemp("trained"))
    result = runner.run("-c", SHORT_GAMES, SCRIPT, *TINY, "--capture-video")
    (run_dir,) = runner.folder.glob("runs/*")
    return SimpleNamespace(run_dir=run_dir, curves=curves(run_dir), stdout=result.stdout)


def naive_gae(rewards, terminations, truncations, values, next_values, gamma=0.99, gae_lambda=0.95):
    """By definition, of one player: the discounted sum of the errors up to the end of the game."""
    advantages = []
    for start in range(len(rewards)):
        total, weight = 0.0, 1.0
        for t in range(start, len(rewards)):
            bootstrap = 0 if terminations[t] else next_values[t]
            total += weight * (rewards[t] + gamma * bootstrap - values[t])
            weight *= gamma * gae_lambda
            if terminations[t] or truncations[t]:
                break
        advantages.append(total)
    return np.array(advantages)


def test_rollout_and_targets_are_those_of_the_naive_view_of_both_players(runner):
    flags = [*TINY[:-3], "--num-steps", 72, "--total-timesteps", 288, "--learning-rate", 0]
    runner.run("-c", SHORT_GAMES + KEEP, SCRIPT, *flags)
    end = np.load(runner.folder / "end.npz")
    agent = make_agent()
    agent.load_state_dict(torch.load(runner.folder / "agent.pt"))
    assert end["obs"].shape == (72, 4, 6, 84, 84) and end["obs"].dtype == np.uint8
    for i, naive in enumerate([NaiveGame("pong_v3", 1, 250), NaiveGame("pong_v3", 2, 250, last_frame=150)]):
        rows = slice(2 * i, 2 * i + 2)
        next_obs = np.zeros((72, 2, 6, 84, 84), dtype=np.uint8)
        for step in range(72):
            np.testing.assert_array_equal(end["obs"][step, rows], naive.views())
            points, over, cut_off = naive.step(end["actions"][step, rows])
            np.testing.assert_array_equal(end["rewards"][step, rows], np.clip(points, -1, 1))
            assert (end["terminations"][step, rows] == over).all() and (end["truncations"][step, rows] == cut_off).all()
            next_obs[step] = naive.views()  # what really came next, also where the game was cut off
            if over or cut_off:
                naive.reset()
        with torch.no_grad():
            values = agent.get_value(torch.as_tensor(end["obs"][:, rows]).flatten(0, 1)).view(72, 2).numpy()
            next_values = agent.get_value(torch.as_tensor(next_obs).flatten(0, 1)).view(72, 2).numpy()
        for player in range(2):
            row = 2 * i + player
            outcomes = [end[name][:, row] for name in ("rewards", "terminations", "truncations")]
            advantages = naive_gae(*outcomes, values[:, player], next_values[:, player])
            np.testing.assert_allclose(end["advantages"][:, row], advantages, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(end["returns"][:, row], advantages + values[:, player], rtol=1e-3, atol=1e-4)
    assert end["truncations"].sum() == end["terminations"].sum() == 2 and end["rewards"].any()
    (run_dir,) = runner.folder.glob("runs/*")
    assert abs(curves(run_dir)["losses/approx_kl"][0][1]) < 1e-6  # the policy that played is the one that is updated


def test_metrics_are_those_of_the_published_file_with_both_players_of_every_game(trained):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    published = {f"losses/{name}" for name in losses.split()}
    published |= {"charts/learning_rate", "charts/SPS"}
    for tag in published:
        assert [step for step, _ in trained.curves[tag]] == list(range(64, 257, 64)), tag
    for player in range(2):
        # the second game is over after 38 steps, the first one cut off after 63
        lengths = trained.curves[f"charts/episodic_length-player{player}"]
        expected = [(37 * 4 + 3 + player, 38), (62 * 4 + 1 + player, 63)]
        assert lengths == expected
        assert [step for step, _ in trained.curves[f"charts/episodic_return-player{player}"]] == [
            x for x, _ in expected
        ]
    first, second = ([x for _, x in trained.curves[f"charts/episodic_return-player{player}"]] for player in range(2))
    assert [-x for x in first] == second


@pytest.mark.slow
def test_resumed_run_equals_one_that_never_stopped(trained, runner):
    flags = ["--exp-name", "killed", "--checkpoint-frequency", 64]
    process = runner.start("-c", SHORT_GAMES, SCRIPT, *TINY, *flags)
    checkpoint = runner.wait_for("runs/*killed*/checkpoint.pt", process)
    time.sleep(0.5)
    process.kill()
    process.communicate()
    assert torch.load(checkpoint, weights_only=False)["global_step"] < 256
    result = runner.run("-c", SHORT_GAMES, SCRIPT, "--resume", checkpoint.parent)
    assert "episodes start again" not in result.stderr
    assert_same_run(trained.run_dir, checkpoint.parent)


def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    runner.run("-c", SHORT_GAMES, script, *TINY, modules=MODULES / "without_utils")
    (model,) = runner.folder.glob("runs/*/mine.safetensors")
    ours, theirs = load_file(trained.run_dir / "ppo_pettingzoo_ma_atari.safetensors"), load_file(model)
    assert ours.keys() == theirs.keys() and all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_evaluation_after_training_is_repeated_by_the_saved_model_and_counts_raw_points_of_player_0(
    trained, monkeypatch
):
    limit_games(monkeypatch, 600)
    model = trained.run_dir / "ppo_pettingzoo_ma_atari.safetensors"
    result = evaluate(model, "pong_v3", make_envs, load_policy, episodes=2, seed=1_000_001, device="cpu")
    policy, scores = load_policy(model, make_envs("pong_v3", 1, False, "")), []
    for idx in range(2):
        naive, rng = NaiveGame("pong_v3", 1_000_001 + idx, 600), np.random.default_rng(1_000_001 + idx)
        cut_off = False
        while not cut_off:
            _, _, cut_off = naive.step([policy(naive.views()[:1])[0], rng.integers(6)])
        scores.append(naive.returns[0])
    assert result.returns == scores and result.lengths == [150, 150] and any(scores)
    logged = [value for _, value in trained.curves["eval/episodic_return"]]
    assert len(logged) == 10 and "evaluation: mean return" in trained.stdout


def test_training_and_evaluation_are_filmed(trained):
    for folder in ("videos", "evaluation/videos"):
        assert (trained.run_dir / folder / "rl-video-episode-0.mp4").stat().st_size > 1000


# Rewards a move of its own for each player: only the indicator tells which.
ONE_MOVE_EACH = """
import runpy, sys
from pettingzoo.atari.base_atari_env import ParallelAtariEnv
step = ParallelAtariEnv.step
def step_and_judge(self, moves):
    obs, _, terminations, truncations, infos = step(self, moves)
    rewards = {"first_0": float(moves["first_0"] == 2), "second_0": float(moves["second_0"] == 3)}
    return obs, rewards, terminations, truncations, infos
ParallelAtariEnv.step = step_and_judge
sys.argv[:] = sys.argv[1:]
end = runpy.run_path(sys.argv[0], run_name="__main__")
print("rewards:", *end["rewards"].mean(0))
"""


@pytest.mark.slow
def test_players_learn_different_moves_from_the_same_screen(runner):
    flags = ["--no-cuda", "--num-envs", 8, "--num-steps", 32, "--total-timesteps", 7_680, "--gamma", 0.5]
    stdout = runner.run("-c", ONE_MOVE_EACH, SCRIPT, *flags, "--learning-rate", 1e-3).stdout
    rewards = [float(x) for x in re.search("rewards: (.*)", stdout)[1].split()]
    assert len(rewards) == 8 and min(rewards) > 0.8, rewards  # at random: 1/6


# Mistakes


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--env-id", "breakout_v3"], ["breakout_v3", "no game of PettingZoo's Atari", "pong_v3", "ppo_atari.py"]),
        (["--env-id", "BreakoutNoFrameskip-v4"], ["no game of PettingZoo's Atari", "ppo_atari.py"]),
        (["--env-id", "pong_v2"], ["no game of PettingZoo's Atari", "pong_v3"]),
        (["--env-id", "quadrapong_v4"], ["more than two players"]),
        (["--num-envs", "3"], ["--num-envs 3", "must be even"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(SCRIPT, *flags, check=False)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert not list(runner.folder.iterdir())


@pytest.mark.parametrize("module", ["ale_py", "pettingzoo", "multi_agent_ale_py"])
def test_missing_extra_is_named(runner, module):
    result = runner.run(SCRIPT, modules=MODULES / f"without_{module}", check=False)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, result.stderr
    assert 'pip install "cleanrl[pettingzoo]"' in result.stderr
