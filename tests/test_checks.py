"""Flags that make no sense end a program with one line before it has begun, in every file."""

import dataclasses
import importlib
import importlib.util
from pathlib import Path

import pytest
from conftest import PPO, ROOT

from cleanrl_utils.checks import LIMITS, find_mistake

FILES = sorted(path.stem for path in (ROOT / "cleanrl").glob("*.py") if path.stem != "__init__")
if not importlib.util.find_spec("flax"):  # of the extra jax
    FILES = [name for name in FILES if "jax" not in name]


def mistake(file: str, **flags) -> str | None:
    """What is wrong with the defaults of a file if these flags are given."""
    defaults = vars(importlib.import_module(f"cleanrl.{file}").Args())
    assert flags.keys() <= defaults.keys()
    return find_mistake(defaults | flags)


@pytest.mark.parametrize("file", FILES)
def test_defaults_make_sense(file):
    assert mistake(file) is None


NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
TABLE = [
    # files, flag, values that are wrong, values at the edge that are right
    ("ppo dqn c51", "learning_rate", [-1e-9, *NOT_FINITE], [0.0, 10.0]),
    ("pqn", "q_lambda", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("sac_continuous_action sac_atari", "policy_lr", [-1.0, *NOT_FINITE], [0.0]),
    ("sac_continuous_action sac_atari", "q_lr", [-1.0, *NOT_FINITE], [0.0]),
    ("ppo ppo_continuous_action", "max_grad_norm", [-0.5, 0.0, *NOT_FINITE], [1e-9, 1e9]),
    ("ppo ppo_continuous_action", "clip_coef", [-0.2, 0.0, *NOT_FINITE], [1e-9, 2.0]),
    ("ppo dqn sac_atari", "gamma", [-0.1, 1.000001, *NOT_FINITE], [0.0, 1.0]),
    ("ppo", "gae_lambda", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("ppo", "target_kl", [-0.1, 0.0, *NOT_FINITE], [None, 1e-9]),
    ("ppo", "ent_coef", NOT_FINITE, [0.0]),
    ("dqn ddpg_continuous_action sac_atari", "tau", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("ppo dqn", "seed", [-1, 2**32], [0, 2**32 - 1]),
    ("ppo dqn", "exp_name", ["", "a/b", "/tmp/x", "..", "a\\b"], ["a-b_c.d"]),
    ("ppo dqn", "resume", [""], [None, "runs/x"]),
    ("ppo dqn", "checkpoint_frequency", [-1], [0, 1]),
    ("ppo dqn", "total_timesteps", [-1, 0], [10**9]),
    ("ppo dqn", "num_envs", [-1, 0], [1]),
    ("ppo", "num_steps", [-1, 0], [4]),
    ("ppo", "num_minibatches", [-1, 0], [1]),
    ("ppo", "update_epochs", [-1, 0], [1]),
    ("ppo_atari_multigpu", "local_num_envs", [-1, 0], [1]),
    ("dqn c51_atari td3_continuous_action", "buffer_size", [-1, 0, 1], [10**7]),
    ("dqn c51_atari td3_continuous_action", "batch_size", [-1, 0], [1]),
    ("dqn c51", "train_frequency", [-1, 0], [1]),
    ("dqn c51", "target_network_frequency", [-1, 0], [1]),
    ("td3_continuous_action", "policy_frequency", [-1, 0], [1]),
    ("sac_atari", "update_frequency", [-1, 0], [1]),
    ("dqn", "learning_starts", [-1, 500_000, 10**9], [0, 499_999]),
    ("c51 c51_atari", "n_atoms", [-1, 0, 1], [2]),
    ("c51", "v_min", [100.0, 101.0, *NOT_FINITE], [99.0]),
    ("c51", "v_max", [-100.0, *NOT_FINITE], [-99.0]),
    ("dqn c51", "start_e", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("dqn c51", "end_e", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("dqn c51", "exploration_fraction", [-0.1, 1.1, *NOT_FINITE], [0.0, 1.0]),
    ("ddpg_continuous_action", "exploration_noise", [-0.1, *NOT_FINITE], [0.0]),
    ("td3_continuous_action", "policy_noise", [-0.1, *NOT_FINITE], [0.0]),
    ("td3_continuous_action", "noise_clip", [-0.1, *NOT_FINITE], [0.0]),
    ("rpo_continuous_action", "rpo_alpha", [-0.1, *NOT_FINITE], [0.0]),
    ("sac_continuous_action sac_atari", "alpha", [-0.1, *NOT_FINITE], [0.0]),
]


@pytest.mark.parametrize("files, flag, wrong, right", TABLE)
def test_flag_out_of_range_is_named_with_its_value(files, flag, wrong, right):
    for file in files.split():
        for value in wrong:
            line = mistake(file, **{flag: value})
            assert line and "--" + flag.replace("_", "-") in line and "\n" not in line, (file, value)
            assert str(value) in line or value in ("", "a\\b"), line
        for value in right:
            assert mistake(file, **{flag: value}) is None, (file, value)


TOGETHER = [
    ("ppo", {"num_envs": 3, "num_steps": 5}, "3 envs x 5 steps do not split into 4 minibatches"),
    ("ppo", {"num_envs": 2, "num_steps": 2}, "minibatches of one sample"),
    ("ppo", {"num_envs": 2, "num_steps": 2, "norm_adv": False}, None),
    ("ppo", {"num_envs": 4, "num_steps": 128, "total_timesteps": 511}, "at least 512"),
    ("ppo", {"num_envs": 1000}, None),
    ("ppo", {"num_envs": 5000}, "at least 640000"),
    ("ppo_atari_multigpu", {"local_num_envs": 1, "num_steps": 4}, "minibatches of one sample"),
    ("dqn", {"num_envs": 600_000}, "--total-timesteps 500000: must be at least --num-envs 600000"),
    ("dqn", {"total_timesteps": 10_000}, "more than --learning-starts 10000"),
    ("dqn", {"buffer_size": 127}, "--buffer-size 127: must be at least --batch-size 128"),
    ("dqn", {"buffer_size": 128}, None),
    ("c51", {"v_min": 5.0, "v_max": 5.0}, "--v-min 5.0: must be less than --v-max 5.0"),
]


@pytest.mark.parametrize("file, flags, words", TOGETHER)
def test_flags_that_do_not_go_together_are_named(file, flags, words):
    line = mistake(file, **flags)
    assert line is None if words is None else words in line


def test_minibatch_of_one_sample_is_fine_where_other_processes_have_more(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert mistake("ppo_atari_multigpu", local_num_envs=1, num_steps=4, total_timesteps=1000) is None


@pytest.mark.parametrize("file", FILES)
def test_every_number_that_a_user_can_set_is_checked(file):
    """A new flag needs a row in checks.py, or a place here with the reason why any number will do."""
    any_number = {"ent_coef", "vf_coef", "v_min", "v_max", "target_entropy_scale"}
    checked = {name for _, _, names in LIMITS for name in names.split()} | any_number
    source = (ROOT / "cleanrl" / f"{file}.py").read_text()
    computed = source.partition("# Computed at run time")[2].partition("\ndef ")[0].partition("\nclass ")[0]
    for field in dataclasses.fields(importlib.import_module(f"cleanrl.{file}").Args):
        is_number = type(field.default) in (int, float)
        if is_number and f"    {field.name}:" not in computed:
            assert field.name in checked, field.name


def test_flag_of_ones_own_is_checked_for_being_finite():
    assert find_mistake(defaults() | {"my_weight": float("nan")}) == "--my-weight nan: must be a finite number"
    assert find_mistake(defaults() | {"my_weight": -1.0, "my_count": -1}) is None


def defaults() -> dict:
    return vars(importlib.import_module("cleanrl.ppo").Args())


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--learning-rate", "-1"], "--learning-rate -1.0: must be at least 0"),
        (["--gamma", "nan"], "--gamma nan: must be a finite number"),
        (["--seed", "4294967296"], "--seed 4294967296: must be between 0 and 2**32 - 1"),
        (["--exp-name", "a/b"], "--exp-name 'a/b': must be a name without a slash"),
        (["--resume", ""], "--resume: name the folder of the run"),
        (["--num-minibatches", "512"], "--num-minibatches 512: minibatches of one sample"),
        (["--env-id", "CartPol-v1"], "Did you mean: `CartPole`"),
        (["--env-id", "CartPole-v9"], "`v1`"),
        (["--env-id", "no_such_module:Env-v0"], "no_such_module"),
        (["--env-id", "Pendulum-v1"], "Box(-2.0, 2.0, (1,), float32); try ppo_continuous_action.py"),
        (["--env-id", "Pendulum-v1", "--capture-video"], "Box(-2.0, 2.0, (1,), float32); try ppo_continuous_action.py"),
        (["--env-id", "dm_control/cheetah-run-v0"], "its actions are continuous; that is for ppo_continuous_action.py"),
        (["--resume", "nowhere"], "--resume nowhere: not a run folder"),
        (["--upload-model"], "--upload-model needs --save-model"),
    ],
)
def test_mistake_ends_the_program_with_one_line_and_leaves_nothing_on_disk(runner, flags, words):
    result = runner.run(PPO, *flags, check=False)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1 and words in result.stderr
    assert not list(runner.folder.iterdir())


# Environments that cannot be made


MODULES = ROOT / "tests" / "modules"


def test_missing_extra_is_named(runner):
    for modules, env_id in (("without_mujoco", "HalfCheetah-v5"), ("without_shimmy", "dm_control/cheetah-run-v0")):
        script = ROOT / "cleanrl" / "ppo_continuous_action.py"
        result = runner.run(script, "--env-id", env_id, modules=MODULES / modules, check=False)
        extra = "mujoco" if modules == "without_mujoco" else "dm_control"
        assert result.stderr.count("\n") == 1 and f'pip install "cleanrl[{extra}]"' in result.stderr
    assert not list(runner.folder.iterdir())


BUGS = {
    "TypeError": "len(3)",
    "ValueError": "int('three')",
    "AttributeError": "None.nothing",
    "FileNotFoundError": "open('maps/first.txt')",
}


@pytest.mark.parametrize("error, bug", BUGS.items())
def test_bug_in_ones_own_environment_keeps_its_traceback(runner, error, bug):
    module = "import gymnasium as gym\nclass Mine(gym.Env):\n    def __init__(self):\n"
    (runner.folder / "mine.py").write_text(f"{module}        {bug}\ngym.register('Mine-v0', Mine)\n")
    result = runner.run(PPO, "--env-id", "mine:Mine-v0", modules=runner.folder, check=False)
    assert result.returncode != 0
    assert "Traceback" in result.stderr and bug in result.stderr and error in result.stderr


def test_bug_in_an_edited_file_keeps_its_traceback(runner):
    script = Path(runner.folder, "mine.py")
    script.write_text(PPO.read_text().replace("else gym.make(env_id)", "else gym.make(env_id, wrong=1)"))
    result = runner.run(script, check=False)
    assert "'wrong'" in result.stderr  # what gymnasium says of it is clear enough
    script.write_text(PPO.read_text().replace("else gym.make(env_id)", "else gym.make(env_id).to('cpu')"))
    result = runner.run(script, check=False)
    assert "Traceback" in result.stderr and "AttributeError" in result.stderr
    script.write_text(PPO.read_text().replace("self.critic = mlp(obs_dim, 1,", "self.critic = mlp(obs_dim, one,"))
    result = runner.run(script, check=False)
    assert "Traceback" in result.stderr and "NameError" in result.stderr


def test_unwritable_runs_folder_is_named(runner):
    (runner.folder / "runs").write_text("a file, where a folder should be")
    for flags in ([], ["--capture-video"]):
        result = runner.run(PPO, *flags, check=False)
        assert result.returncode == 1 and result.stderr.count("\n") <= 2 and "runs" in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr
    assert [path.name for path in runner.folder.iterdir()] == ["runs"]
