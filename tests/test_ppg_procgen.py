"""Phasic policy gradient on Procgen: losses and initialisation against oracles, its phases, and its checkpoints."""

import copy
import dataclasses
import functools
import math
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import test_ppo_atari_envpool as atari
import torch
from conftest import ROOT, Runner, curves
from safetensors.torch import load_file
from test_ppo_procgen import SHORT_EVALUATION, Pictures, learn, play_at_random

from cleanrl import ppg_procgen, ppo_procgen
from cleanrl.ppg_procgen import Agent, Args, AuxiliaryBuffer, auxiliary_loss, layer_init, load_policy, make_envs
from cleanrl_utils import checkpoint as checkpoints
from cleanrl_utils import memory, run, stop
from cleanrl_utils.evaluate import evaluate

envpool = pytest.importorskip("envpool", reason="needs cleanrl[procgen]", exc_type=ImportError)
pytest.importorskip("envpool.procgen.procgen_envpool", reason="needs the system's libqt5gui5", exc_type=ImportError)

SCRIPT = ROOT / "cleanrl" / "ppg_procgen.py"
MODULES = ROOT / "tests" / "modules"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def agent():
    torch.manual_seed(1)
    return Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=15)))


def test_flags_and_defaults_are_those_of_the_published_file():
    published = {
        "exp_name": "ppg_procgen", "seed": 1, "torch_deterministic": True, "cuda": True, "track": False,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "starpilot",
        "total_timesteps": 25_000_000, "learning_rate": 5e-4, "num_envs": 64, "num_steps": 256, "anneal_lr": False,
        "gamma": 0.999, "gae_lambda": 0.95, "num_minibatches": 8, "adv_norm_fullbatch": True, "clip_coef": 0.2,
        "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
        "n_iteration": 32, "e_policy": 1, "v_value": 1, "e_auxiliary": 6, "beta_clone": 1.0, "num_aux_rollouts": 4,
        "n_aux_grad_accum": 1, "batch_size": 0, "minibatch_size": 0, "num_iterations": 0, "num_phases": 0,
        "aux_batch_rollouts": 0,
    }  # fmt: skip
    assert published.items() <= dataclasses.asdict(Args()).items()


# The network


@pytest.mark.parametrize("make_layer", [lambda: torch.nn.Linear(7, 5), lambda: torch.nn.Conv2d(3, 5, 3)])
def test_layers_start_with_weights_of_a_given_norm_in_the_directions_that_pytorch_draws(make_layer):
    torch.manual_seed(3)
    drawn = make_layer().weight.detach().double().numpy()
    torch.manual_seed(3)
    layer = layer_init(make_layer(), norm=1.4)
    for ours, theirs in zip(layer.weight.detach().numpy(), drawn, strict=True):  # of each output
        np.testing.assert_allclose(ours, 1.4 * theirs / math.sqrt((theirs**2).sum()), rtol=1e-5)
    assert not layer.bias.any() and layer.weight.requires_grad


def test_norms_of_the_network_are_those_of_the_published_one(agent):
    """There, a sequence gets 1 / sqrt(3), its blocks this by sqrt(2), and a layer of a block the root of that."""
    scale = (1 / math.sqrt(3)) / math.sqrt(2)
    in_sequence = [1.0] + 4 * [math.sqrt(scale)]
    expected = 3 * in_sequence + [1.4] + 3 * [0.1]  # the linear layer, and three heads
    layers = [layer for layer in agent.modules() if hasattr(layer, "weight")]
    for layer, norm in zip(layers, expected, strict=True):
        norms = layer.weight.flatten(1).norm(dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, norm))
        assert not layer.bias.any()


def gradients(agent, loss):
    """Which parts of the network a loss changes."""
    agent.zero_grad()
    loss.backward()
    changed = set()
    for part in ("network", "actor", "critic", "aux_critic"):
        if any(x.grad is not None and x.grad.any() for x in getattr(agent, part).parameters()):
            changed.add(part)
    return changed


def test_value_of_the_policy_phase_does_not_train_the_features_and_that_of_the_auxiliary_head_does(agent):
    x, action = torch.randint(256, (4, 3, 64, 64), dtype=torch.uint8), torch.arange(4)
    logprob, entropy, value = agent.evaluate_actions(x, action)
    assert gradients(agent, value.sum()) == {"critic"}
    logprob, entropy, value = agent.evaluate_actions(x, action)
    assert gradients(agent, logprob.sum() + entropy.sum()) == {"network", "actor"}
    logprobs, values, aux_values = agent.evaluate_auxiliary(x)
    assert gradients(agent, values.sum()) == {"critic"}
    logprobs, values, aux_values = agent.evaluate_auxiliary(x)
    assert gradients(agent, aux_values.sum()) == {"network", "aux_critic"}
    logprobs, values, aux_values = agent.evaluate_auxiliary(x)
    assert gradients(agent, logprobs[:, 0].sum()) == {"network", "actor"}
    torch.testing.assert_close(values, agent.get_value(x))
    torch.testing.assert_close(logprobs.gather(1, action[:, None])[:, 0], logprob)
    assert not torch.allclose(values, aux_values)


# The losses


@pytest.mark.parametrize("num_resets", [0, 3, 10])
def test_auxiliary_loss_is_that_of_the_paper_over_the_steps_that_were_played(num_resets):
    torch.manual_seed(num_resets)
    args, num_steps = SimpleNamespace(beta_clone=0.7), 10
    valid = torch.randperm(num_steps) >= num_resets
    old_logits, new_logits = torch.randn(2, num_steps, 6)
    returns = torch.randn(num_steps)
    outputs = [new_logits.log_softmax(-1), torch.randn(num_steps), torch.randn(num_steps)]
    outputs = [x.requires_grad_() for x in outputs]
    loss, stats = auxiliary_loss(*outputs, old_logits.log_softmax(-1), returns, valid, args)

    old, new = (torch.distributions.Categorical(logits=x) for x in (old_logits, outputs[0]))
    kl = torch.distributions.kl_divergence(old, new)
    losses = {
        "kl_loss": kl[valid].sum(),
        "aux_value_loss": 0.5 * ((outputs[2] - returns)[valid] ** 2).sum(),
        "real_value_loss": 0.5 * ((outputs[1] - returns)[valid] ** 2).sum(),
    }
    expected = {name: x / max(valid.sum(), 1) for name, x in losses.items()}
    assert stats.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(stats[name], x.detach(), msg=name)
        assert not stats[name].requires_grad
    whole = expected["aux_value_loss"] + 0.7 * expected["kl_loss"] + expected["real_value_loss"]
    torch.testing.assert_close(loss, whole)
    loss.backward()
    for x in outputs:
        assert x.grad.isfinite().all() and not x.grad[~valid].any() and x.grad.any() == bool(valid.any())


def test_kl_divergence_is_zero_with_no_gradient_where_the_policy_has_not_changed():
    logits = torch.randn(8, 15, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    zeros = torch.zeros(8)
    loss, stats = auxiliary_loss(
        logprobs, zeros, zeros, logprobs.detach(), zeros, torch.ones(8, dtype=torch.bool), Args()
    )
    loss.backward()
    assert stats["kl_loss"].abs() < 1e-6 and logits.grad.abs().max() < 1e-6


def test_loss_of_the_policy_phase_is_that_of_the_parent_without_its_normalization():
    args = Args()
    args.norm_adv = False
    tensors = torch.randn(7, 12)
    valid = torch.arange(12) % 4 > 0
    ours, stats = ppg_procgen.ppo_loss(*tensors, valid, args)
    parents, expected = ppo_procgen.ppo_loss(*tensors, valid, args)
    assert torch.equal(ours, parents) and all(torch.equal(stats[name], x) for name, x in expected.items())


# The buffer


def test_buffer_holds_the_rollouts_of_each_environment_in_a_row_and_is_restored_as_it_was():
    torch.manual_seed(1)
    buffer, rows = AuxiliaryBuffer(9, 5, (3, 2, 2), "cpu"), []
    for _ in range(2):
        obs = torch.randint(256, (5, 3, 3, 2, 2), dtype=torch.uint8)  # (num_steps, num_envs, ...)
        returns, valid = torch.randn(5, 3), torch.rand(5, 3) < 0.8
        buffer.add(obs, returns, valid)
        rows += [(obs[:, i], returns[:, i], valid[:, i]) for i in range(3)]
    assert buffer.num_rows == 6 and buffer.obs.dtype == torch.uint8
    picked = torch.tensor([4, 0, 5])
    expected = [torch.cat([rows[i][k] for i in picked]) for k in range(3)]
    for ours, theirs in zip(buffer.get(picked, "cpu"), expected, strict=True):
        assert torch.equal(ours, theirs)
    saved = buffer.state_dict()
    assert saved["obs"].shape == (6, 5, 3, 2, 2)  # without the empty rows
    other = AuxiliaryBuffer(9, 5, (3, 2, 2), "cpu")
    other.load_state_dict(saved)
    assert other.num_rows == 6
    for ours, theirs in zip(other.get(torch.arange(6), "cpu"), buffer.get(torch.arange(6), "cpu"), strict=True):
        assert torch.equal(ours, theirs)


def test_memory_of_the_buffer_is_known_in_advance_and_checked(monkeypatch):
    """64 x 32 rollouts of 256 pictures, at a byte for each of three colours of 64 x 64 pixels: 6.4 GB."""
    settings = {"device": torch.device("cpu"), "flag": "--num-envs x --n-iteration =", "trial": 10}
    monkeypatch.setattr(memory, "free_memory", lambda: 3.3e9)
    with pytest.raises(SystemExit) as end:
        run.place_buffer(AuxiliaryBuffer, 2048, 256, (3, 64, 64), **settings)
    fits = int(3.3e9 / (256 * (3 * 64 * 64 + 4 + 1)))
    words = f"--num-envs x --n-iteration = 2048 takes 6.4 GB, 3.3 GB of memory are free; at most {fits} fit"
    assert end.value.code == words
    assert len(run.place_buffer(AuxiliaryBuffer, 20, 256, (3, 64, 64), **settings).obs) == 20


# The phases, in runs of the script


class NoisyPictures(Pictures):
    """No two pictures are the same."""

    def draw(self):
        obs = super().draw()
        return obs // 2 + self.rng.integers(128, size=obs.shape, dtype=np.uint8)


def run_script(folder, *flags, pool=NoisyPictures, at_the_end_of_an_iteration=None):
    """Run the script in this process, and keep what happens in its phases.

    `calls` are all evaluations of the auxiliary phases: the observations, whether they were learned from, and agent and
    optimizer at that moment. `updates` are the inputs of the updates of the policy phases, and `saved` the checkpoints.
    """
    watched = SimpleNamespace(calls=[], updates=[], saved=[])
    checkpoint_due, save_checkpoint = run.checkpoint_due, run.save_checkpoint

    def watch_functions(args, script, act, update, state):
        agent, optimizer = state["agent"], state["optimizer"]
        evaluate_auxiliary = agent.evaluate_auxiliary

        def watched_evaluation(obs):
            learns = torch.is_grad_enabled()
            before = None if learns else copy.deepcopy((agent.state_dict(), optimizer.state_dict()))
            watched.calls.append(SimpleNamespace(obs=obs.clone(), learns=learns, before=before))
            return evaluate_auxiliary(obs)

        def watched_update(*inputs):
            watched.updates.append([x.clone() for x in inputs])
            return update(*inputs)

        agent.evaluate_auxiliary = watched_evaluation
        return play_at_random(args, script, act, watched_update, state)

    def watch_end(args, global_step, steps):
        if at_the_end_of_an_iteration:
            at_the_end_of_an_iteration(global_step)
        return checkpoint_due(args, global_step, steps)

    def watch_save(run_dir, args, script, writer, state):
        watched.saved.append((state["global_step"], state["aux_buffer"].num_rows))
        save_checkpoint(run_dir, args, script, writer, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "accelerate", watch_functions)
        patch.setattr(run, "checkpoint_due", watch_end)
        patch.setattr(run, "save_checkpoint", watch_save)
        patch.setattr(envpool, "make_gymnasium", pool)
        patch.setattr(atari, "SCRIPT", SCRIPT)
        try:
            vars(watched).update(vars(atari.run_script(folder, *flags, watch=False)))
        except SystemExit as end:
            watched.code, watched.run_dir = end.code, next(folder.glob("runs/*"), None)
    return watched


NUM_ENVS, NUM_STEPS, ITERATIONS = 2, 6, 5
FLAGS = ["--no-cuda", "--num-envs", NUM_ENVS, "--num-steps", NUM_STEPS, "--num-minibatches", 2, "--n-iteration", 3]
FLAGS += ["--e-auxiliary", 2, "--num-aux-rollouts", 2, "--n-aux-grad-accum", 2, "--total-timesteps", 60]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two phases, the last of them shorter: of three iterations (6 rows in the buffer) and of two (4 rows)."""
    flags = [*FLAGS, "--anneal-lr", "--learning-rate", 1e-3, "--beta-clone", 0.6, "--max-grad-norm", 4]
    recorded = run_script(tmp_path_factory.mktemp("recorded"), *flags)
    recorded.curves = curves(recorded.run_dir)
    recorded.phases = [recorded.rollouts[:3], recorded.rollouts[3:]]
    first = 3 + 2 * 3  # calls: in parts of 2 rows, once to remember the policy, and twice to learn
    recorded.phase_calls = [recorded.calls[:first], recorded.calls[first:]]
    return recorded


def rows_of(phase):
    """What the buffer should hold: of each iteration and environment, observations, returns, and what was played."""
    return [(x.obs[:, i], x.returns[:, i], x.valid[:, i]) for x in phase for i in range(NUM_ENVS)]


def test_auxiliary_phase_remembers_the_policy_and_then_learns_from_each_rollout_in_each_epoch(recorded):
    for phase, calls in zip(recorded.phases, recorded.phase_calls, strict=True):
        rows = [obs.tobytes() for obs, _, _ in rows_of(phase)]
        seen = [x.obs[i : i + NUM_STEPS].numpy().tobytes() for x in calls for i in (0, NUM_STEPS)]
        num_rows = len(rows)
        assert [x.learns for x in calls] == [False] * (num_rows // 2) + [True] * num_rows
        assert seen[:num_rows] == rows
        epochs = seen[num_rows : 2 * num_rows], seen[2 * num_rows :]
        assert [sorted(epoch) for epoch in epochs] == [sorted(rows), sorted(rows)]
    assert epochs[0] != epochs[1]  # in another order


def test_auxiliary_phase_ends_where_a_naive_one_does(recorded):
    """With gradients of whole groups, distributions of PyTorch, and its plain Adam, from the same parameters."""
    norms = []
    for phase, calls in zip(recorded.phases, recorded.phase_calls, strict=True):
        rows = {obs.tobytes(): (returns, valid) for obs, returns, valid in rows_of(phase)}
        agent_state, optimizer_state = calls[0].before
        agent = Agent(SimpleNamespace(single_action_space=SimpleNamespace(n=2)))
        agent.load_state_dict(agent_state)
        policy = copy.deepcopy(agent)
        optimizer = torch.optim.Adam(agent.parameters(), eps=1e-8, foreach=False)
        optimizer_state["param_groups"][0] |= {"fused": None, "foreach": False}
        optimizer_state["param_groups"][0]["lr"] = optimizer_state["param_groups"][0]["lr"].item()
        assert optimizer_state["param_groups"][0]["eps"] == 1e-8
        optimizer.load_state_dict(optimizer_state)
        num_rows = len(rows)
        parts = calls[num_rows // 2 :]
        groups = [[0, 1], [2], [3, 4], [5]] if num_rows == 6 else [[0, 1], [2, 3]]
        for group in groups:
            loss = 0
            for part in (parts[i].obs for i in group):
                known = [rows[part[i : i + NUM_STEPS].numpy().tobytes()] for i in (0, NUM_STEPS)]
                returns, valid = (torch.as_tensor(np.concatenate(x)) for x in zip(*known))
                features, old_features = agent.get_features(part), policy.get_features(part).detach()
                old = torch.distributions.Categorical(logits=policy.actor(old_features))
                new = torch.distributions.Categorical(logits=agent.actor(features))
                kl = torch.distributions.kl_divergence(old, new)[valid].mean()
                aux_value_loss = 0.5 * (agent.aux_critic(features).flatten() - returns)[valid].square().mean()
                value_loss = 0.5 * (agent.critic(features.detach()).flatten() - returns)[valid].square().mean()
                loss = loss + (aux_value_loss + 0.6 * kl + value_loss) / len(group)
            optimizer.zero_grad()
            loss.backward()
            norm = math.sqrt(sum((x.grad**2).sum().item() for x in agent.parameters()))
            norms.append(norm)
            for x in agent.parameters():
                x.grad *= min(1, 4 / norm)
            optimizer.step()
        for name, x in agent.state_dict().items():
            torch.testing.assert_close(phase[-1].model[name], x, rtol=1e-3, atol=1e-4, msg=name)
        assert not torch.allclose(agent.aux_critic.weight, policy.aux_critic.weight, atol=1e-4)
    assert min(norms) < 4 < max(norms)  # some of them are clipped


def test_auxiliary_head_is_left_alone_in_policy_phases(recorded):
    first, last = recorded.rollouts[0].model, recorded.rollouts[1].model
    assert torch.equal(first["aux_critic.weight"], last["aux_critic.weight"])
    assert not torch.equal(first["network.0.conv.weight"], last["network.0.conv.weight"])
    before_phase, _ = recorded.phase_calls[1][0].before
    assert torch.equal(recorded.rollouts[2].model["aux_critic.weight"], before_phase["aux_critic.weight"])


def test_advantages_are_normalized_over_the_whole_rollout(recorded):
    assert len(recorded.updates) == 2 * ITERATIONS  # one epoch
    for i, rollout in enumerate(recorded.rollouts):
        minibatches = recorded.updates[2 * i : 2 * i + 2]
        ours, valid = (torch.cat([x[k] for x in minibatches]) for k in (3, 6))
        played = rollout.advantages[rollout.valid]
        expected = (played - played.mean()) / played.std(ddof=1)
        np.testing.assert_allclose(sorted(ours[valid].tolist()), sorted(expected), rtol=1e-3, atol=1e-5)
        assert abs(minibatches[0][3].mean()) > 1e-3  # not in each minibatch
    assert not all(rollout.valid.all() for rollout in recorded.rollouts)


def test_rollouts_of_single_steps_stay_finite(tmp_path):
    """Episodes of one step: a rollout holds one step that was played, or none, so that nothing can be normalized."""
    flags = ["--no-cuda", "--num-envs", 1, "--num-steps", 1, "--num-minibatches", 1, "--n-iteration", 3]
    short = run_script(tmp_path, *flags, "--total-timesteps", 8, pool=functools.partial(Pictures, num_rounds=1))
    assert [rollout.valid.item() for rollout in short.rollouts] == 4 * [True, False]
    assert all(x.isfinite().all() for x in short.rollouts[-1].model.values())


def test_learning_rate_is_annealed_over_the_whole_run_and_not_in_each_phase(recorded):
    rates = [rate for _, rate in recorded.curves["charts/learning_rate"]]
    assert rates == pytest.approx([1e-3 * (1 - i / ITERATIONS) for i in range(ITERATIONS)])


def test_metrics_are_those_of_the_published_file(recorded):
    losses = "value_loss policy_loss entropy old_approx_kl approx_kl clipfrac explained_variance"
    for tag in [f"losses/{name}" for name in losses.split()] + ["charts/learning_rate", "charts/SPS"]:
        assert [step for step, _ in recorded.curves[tag]] == [12, 24, 36, 48, 60], tag
    for name in ("kl_loss", "aux_value_loss", "real_value_loss"):
        assert [step for step, _ in recorded.curves[f"losses/aux/{name}"]] == [36, 60]
        assert all(value > 0 for _, value in recorded.curves[f"losses/aux/{name}"])
    assert {"charts/episodic_return", "charts/episodic_length"} <= recorded.curves.keys()


# Checkpoints


def test_checkpoints_are_saved_between_phases_and_within_one_only_after_ten_minutes(tmp_path, monkeypatch, recorded):
    assert recorded.saved == [(36, 0), (60, 0)]  # with nothing in the buffer
    monkeypatch.setattr(checkpoints, "MINUTES", 0)
    late = run_script(tmp_path, *FLAGS)
    assert late.saved == [(12, 2), (24, 4), (36, 0), (48, 2), (60, 0)]


def test_run_that_is_asked_to_stop_within_a_phase_saves_and_resumes_it(tmp_path):
    def ask(global_step):
        if global_step == 24:
            stop.requested = signal.SIGTERM

    games = {"pool": envpool.make_gymnasium}
    flags = [*FLAGS, "--total-timesteps", 36]
    (tmp_path / "whole").mkdir()
    whole = run_script(tmp_path / "whole", *flags, **games)
    stopped = run_script(tmp_path, *flags, at_the_end_of_an_iteration=ask, **games)
    assert stopped.code == 128 + signal.SIGTERM and stopped.saved == [(24, 4)] and not stopped.calls
    saved = torch.load(stopped.run_dir / "checkpoint.pt", weights_only=False)["aux_buffer"]
    for ours, expected in zip(zip(*saved.values()), rows_of(whole.rollouts[:2]), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, expected, strict=True))

    resume = ["--resume", f"runs/{stopped.run_dir.name}"]
    changed = run_script(tmp_path, *resume, "--num-steps", 4, **games)
    assert "--num-steps is" in changed.code and "cannot change" in changed.code and "\n" not in changed.code
    shorter = run_script(tmp_path, *resume, "--n-iteration", 2, **games)  # whose buffer would be full already
    assert "--n-iteration is 3 there and cannot change" in shorter.code and "\n" not in shorter.code
    resumed = run_script(tmp_path, *resume, **games)
    assert resumed.saved == [(36, 0)] and len(resumed.rollouts) == 1
    remembered, expected = (torch.cat([x.obs for x in y.calls if not x.learns]) for y in (resumed, whole))
    before, after = slice(4 * NUM_STEPS), slice(4 * NUM_STEPS, None)
    assert torch.equal(remembered[before], expected[before])
    assert not torch.equal(remembered[after], expected[after])  # new games
    assert [step for step, _ in curves(stopped.run_dir)["losses/aux/kl_loss"]] == [36]


# A run


TRAIN = ["--no-cuda", "--num-envs", 2, "--num-steps", 16, "--num-minibatches", 2, "--n-iteration", 2]
TRAIN += ["--e-auxiliary", 1, "--total-timesteps", 96, "--save-model"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, as a user starts it: its folder and what it printed."""
    runner = Runner(tmp_path_factory.mktemp("trained"))
    stdout = runner.run("-c", SHORT_EVALUATION, SCRIPT, *TRAIN).stdout
    return SimpleNamespace(run_dir=next(runner.folder.glob("runs/*")), stdout=stdout)


def test_copied_out_file_trains_without_the_repository_and_learns_the_same_from_the_same_seed(trained, runner):
    script = Path(shutil.copy(SCRIPT, runner.folder / "mine.py"))
    run_dir = runner.train(*TRAIN, script=script, modules=MODULES / "without_utils")
    ours, theirs = load_file(trained.run_dir / "ppg_procgen.safetensors"), load_file(run_dir / "mine.safetensors")
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    evaluated = curves(trained.run_dir)
    del evaluated["eval/episodic_return"]
    atari.assert_same_curves(evaluated, curves(run_dir))


def test_run_says_what_its_buffer_takes_and_evaluates_its_model(trained):
    assert "the auxiliary buffer takes 0.0 GB of memory (cpu)" in trained.stdout.splitlines()[0]
    logged = [value for _, value in curves(trained.run_dir)["eval/episodic_return"]]
    model = trained.run_dir / "ppg_procgen.safetensors"
    again = evaluate(model, "starpilot", make_envs, load_policy, seed=1_000_001, device="cpu", max_episode_steps=12)
    assert len(logged) == 10 and again.returns == pytest.approx(logged)


@pytest.mark.slow
def test_pictures_are_told_apart(tmp_path, monkeypatch):
    flags = ["--num-minibatches", 2, "--n-iteration", 4, "--e-auxiliary", 2, "--total-timesteps", 5760]
    returns = learn(monkeypatch, SCRIPT, tmp_path, *flags)
    assert abs(np.mean(returns[:16])) < 3 and np.mean(returns[-60:]) > 5, returns


# Mistakes


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--v-value", 2], ["--v-value 2", "must be 1", "--e-policy"]),
        (["--n-iteration", 0], ["--n-iteration 0", "at least 1"]),
        (["--num-aux-rollouts", 0], ["--num-aux-rollouts 0", "at least 1"]),
        (["--beta-clone", -1.0], ["--beta-clone -1.0", "at least 0"]),
        (["--n-iteration", 10**6], ["--n-iteration = 64000000 takes 201", "GB of memory are free; at most"]),
        (["--env-id", "Breakout-v5"], ["no game of Procgen", "starpilot"]),
        (["--capture-video"], ["only an evaluation can be filmed"]),
    ],
)
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd, flags, words):
    end = run_script(tmp_path, *flags, pool=envpool.make_gymnasium)
    atari.assert_one_clear_line(end.code, capfd.readouterr(), words)
    assert not list(tmp_path.iterdir())
