"""PPO in JAX with one compiled program per iteration: it does what its parent does in loops of Python."""

import functools
import importlib.util
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

if not importlib.util.find_spec("flax"):
    pytest.skip("the extra jax is not installed", allow_module_level=True)

import jax
import test_ppo_atari_envpool_xla_jax as parent

from cleanrl import ppo_atari_envpool_xla_jax_scan as ours

SCRIPT = ROOT / "cleanrl" / "ppo_atari_envpool_xla_jax_scan.py"


@functools.cache
def script_with_the_pools_of_the_parent():
    """A copy that plays two pools instead of four: each has a seed of its own, so only then are the games the same."""
    parent.kept_folders.append(tempfile.TemporaryDirectory())
    copy = Path(parent.kept_folders[-1].name, SCRIPT.name)
    four, two = "(args.num_envs + 3) // 4", "(args.num_envs + 1) // 2"
    text = SCRIPT.read_text()
    assert text.count(four) == 1 and two in parent.SCRIPT.read_text()
    copy.write_text(text.replace(four, two))
    return copy


def test_advantages_and_returns_are_those_of_the_twin():
    parent.assert_same_advantages(ours.compute_gae)


@pytest.mark.slow
def test_iterations_are_those_of_the_parent():
    """From the same seed: the same games, the same marks of reset steps, and the same weights up to rounding."""
    scanned, looped = parent.recorded_run(script_with_the_pools_of_the_parent()), parent.recorded_run()
    for one, other in zip(scanned.rollouts, looped.rollouts, strict=True):
        for name in ours.Games._fields[1:]:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
        for x, y in zip(jax.tree.leaves(one.model), jax.tree.leaves(other.model), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)
    assert not all(rollout.valid.all() for rollout in scanned.rollouts)
    assert scanned.curves.keys() == looped.curves.keys()
    for tag in scanned.curves.keys() - {"charts/SPS", "charts/SPS_update"}:
        x, y = np.array(scanned.curves[tag]), np.array(looped.curves[tag])
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4, err_msg=tag)


@pytest.mark.slow
def test_metrics_are_those_of_the_published_file_and_of_the_parent():
    parent.assert_metrics(parent.recorded_run(SCRIPT).curves)


def test_short_run_plays_and_learns(tmp_path):
    """One environment that resets in every other step; three iterations."""
    flags = ["--no-cuda", "--num-envs", 1, "--num-steps", 4, "--num-minibatches", 1, "--update-epochs", 1]
    result = parent.run_script(SCRIPT, tmp_path, *flags, "--total-timesteps", 12, limits=(1,))
    for rollout in result.rollouts:
        assert rollout.valid[:, 0].tolist() == [True, False, True, False]
    assert [step for step, _ in result.curves["charts/episodic_length"]] == [1, 3, 5, 7, 9, 11]
    first, last = (jax.tree.leaves(result.rollouts[i].model) for i in (0, -1))
    assert all(np.isfinite(x).all() for x in last)
    assert any((x != y).any() for x, y in zip(first, last, strict=True))


def test_flags_and_defaults_are_those_of_the_published_file_and_all_are_used():
    parent.assert_flags(SCRIPT, ours.Args)


@pytest.mark.slow
def test_several_epochs_and_minibatches_are_those_of_the_parent(tmp_path):
    flags = ["--no-cuda", "--num-envs", 3, "--num-steps", 16, "--num-minibatches", 3, "--update-epochs", 2]
    flags += ["--total-timesteps", 144, "--no-norm-adv", "--no-clip-vloss", "--no-anneal-lr"]
    models = []
    for name, script in (("ours", script_with_the_pools_of_the_parent()), ("parents", parent.SCRIPT)):
        (tmp_path / name).mkdir()
        result = parent.run_script(script, tmp_path / name, *flags)
        models.append(jax.tree.leaves(result.rollouts[-1].model))
    for x, y in zip(*models, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_pool_gets_its_actions_before_the_next_pool_is_waited_for():
    """In the compiled loop: else the pools would not play while the policy is computed."""
    variables = parent.recorded_run(SCRIPT).variables
    names = ("train_state", "games", "iteration_key", "learning_rate")
    program = variables["iterate"].lower(*(variables[name] for name in names)).compile().as_text()
    calls = [re.findall(r'custom_call_target="\w+EnvPool_(\d+)_(recv|send)"', part) for part in program.split("\n\n")]
    num_pools = len(variables["envs"])
    assert num_pools == 4
    (in_loop,) = [part for part in calls if [call for _, call in part] == ["recv", "send"] * num_pools]
    pools = [pool for pool, _ in in_loop]
    assert pools[::2] == pools[1::2] and len(set(pools)) == num_pools


@pytest.mark.slow
def test_nothing_is_learned_from_a_reset_step():
    parent.assert_nothing_is_learned_from_a_reset_step(SCRIPT)


@pytest.mark.slow
def test_epochs_stop_once_the_divergence_exceeds_target_kl(tmp_path):
    parent.assert_epochs_stop_at_target_kl(SCRIPT, tmp_path)


@pytest.mark.slow
def test_resumed_run_goes_on_with_new_games_and_the_saved_model_is_evaluated(tmp_path, capsys):
    parent.assert_resumes_and_evaluates(SCRIPT, tmp_path, capsys)


@pytest.mark.slow
def test_mistake_gets_one_clear_line_and_leaves_nothing_on_disk(tmp_path, capfd):
    parent.assert_mistakes_get_one_line(SCRIPT, tmp_path, capfd)
