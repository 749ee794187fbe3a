"""Checks of the flags, before anything is started: one line says what is wrong with which flag.

Flags are known by their names, which mean the same in every file. A flag of your own is only checked for being a finite
number; add its name to a row of the tables below to have it checked for more.
"""

import math
import os
import sys
from typing import Any

# What the flags must be: a test of the value, the words for it, and the names.
LIMITS = [
    (lambda x: x >= 1, "at least 1", "total_timesteps num_envs local_num_envs num_steps num_minibatches update_epochs"),
    (lambda x: x >= 1, "at least 1", "buffer_size batch_size train_frequency policy_frequency update_frequency"),
    (lambda x: x >= 1, "at least 1", "n_step teacher_eval_episodes teacher_steps num_seeds log_frequency"),
    (lambda x: x >= 1, "at least 1", "target_network_frequency anneal_steps"),
    (lambda x: x >= 1, "at least 1", "trxl_num_layers trxl_num_heads trxl_dim trxl_memory_length"),
    (lambda x: x >= 1, "at least 1", "n_iteration e_policy v_value e_auxiliary num_aux_rollouts n_aux_grad_accum"),
    (lambda x: x >= 2, "at least 2", "n_atoms"),
    (lambda x: x >= 0, "at least 0", "checkpoint_frequency learning_starts learning_rate policy_lr q_lr alpha"),
    (lambda x: x >= 0, "at least 0", "offline_steps prioritized_replay_alpha"),
    (lambda x: x >= 0, "at least 0", "exploration_noise policy_noise noise_clip rpo_alpha"),
    (lambda x: x >= 0, "at least 0", "beta_clone init_lr final_lr init_ent_coef final_ent_coef reconstruction_coef"),
    (lambda x: x >= 0, "at least 0", "int_coef ext_coef num_iterations_obs_norm_init"),
    (lambda x: x > 0, "more than 0", "temperature prioritized_replay_eps max_grad_norm clip_coef target_kl"),
    (lambda x: x > 0, "more than 0", "reward_scaler"),
    (lambda x: 0 <= x <= 1, "between 0 and 1", "gamma gae_lambda q_lambda tau start_e end_e exploration_fraction"),
    (lambda x: 0 <= x <= 1, "between 0 and 1", "prioritized_replay_beta int_gamma update_proportion"),
    (lambda x: 0 <= x < 2**32, "between 0 and 2**32 - 1", "seed"),
]
# What a file computes from other flags, and then not the user's to set.
COMPUTED = {
    "num_steps": ("batch_size",),  # with rollouts, a batch is num_envs * num_steps
    "local_num_envs": ("num_envs",),  # with several processes, num_envs is that of all of them
}


def check(args: Any) -> None:
    """End the program with one line if a flag, or several together, make no sense."""
    mistake = find_mistake(vars(args))
    if mistake:
        sys.exit(mistake)


def find_mistake(flags: dict[str, Any]) -> str | None:
    """The first mistake in the flags, in words."""
    return check_names(flags) or check_limits(flags) or check_together(flags)


def check_names(flags: dict[str, Any]) -> str | None:
    exp_name = flags["exp_name"]
    if exp_name in ("", ".", "..") or any(character in exp_name for character in "/\\\0"):
        return f"--exp-name {exp_name!r}: must be a name without a slash, as a folder is named after it"
    if flags["resume"] == "":
        return "--resume: name the folder of the run"
    return None


def check_limits(flags: dict[str, Any]) -> str | None:
    """Each flag by itself."""
    computed = {name for flag, names in COMPUTED.items() if flag in flags for name in names}
    for name, value in flags.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{option(name)} {value}: must be a finite number"
    for is_fine, words, names in LIMITS:
        for name in names.split():
            value = flags.get(name)  # None: there is no such flag here, or it is switched off
            if value is not None and name not in computed and not is_fine(value):
                return f"{option(name)} {value}: must be {words}"
    return None


def check_together(flags: dict[str, Any]) -> str | None:
    """Flags that are fine alone, but not beside each other."""
    if "num_steps" in flags:
        mistake = check_rollout(flags)
    else:
        mistake = check_replay(flags)
    if mistake:
        return mistake
    if "num_seeds" in flags and flags["seed"] + flags["num_seeds"] > 2**32:
        return f"--num-seeds {flags['num_seeds']}: the last seed would be more than 2**32 - 1"
    if "v_min" in flags and flags["v_min"] >= flags["v_max"]:
        return f"--v-min {flags['v_min']}: must be less than --v-max {flags['v_max']}"
    return None


def check_rollout(flags: dict[str, Any]) -> str | None:
    """On-policy files: rollouts that are split into minibatches."""
    num_steps, num_minibatches = flags["num_steps"], flags.get("num_minibatches", 1)
    if "local_num_envs" in flags:
        own_envs, world_size = flags["local_num_envs"], int(os.environ.get("WORLD_SIZE", 1))
    else:
        own_envs, world_size = flags["num_envs"], 1
    own_batch = own_envs * num_steps
    batch = own_batch * world_size
    if own_batch % num_minibatches:
        return f"{own_envs} envs x {num_steps} steps do not split into {num_minibatches} minibatches"
    if flags.get("norm_adv") and batch == num_minibatches:
        return f"--num-minibatches {num_minibatches}: minibatches of one sample cannot be normalized; --no-norm-adv"
    if flags["total_timesteps"] < batch:
        return f"--total-timesteps {flags['total_timesteps']}: must be at least {batch}, the steps of one rollout"
    return None


def check_replay(flags: dict[str, Any]) -> str | None:
    """Off-policy files: steps that are taken one by one and replayed."""
    total = flags["total_timesteps"]
    if "num_envs" in flags and total < flags["num_envs"]:
        return f"--total-timesteps {total}: must be at least --num-envs {flags['num_envs']}"
    if "learning_starts" in flags and total <= flags["learning_starts"]:
        return f"--total-timesteps {total}: must be more than --learning-starts {flags['learning_starts']}"
    if "buffer_size" in flags and flags["buffer_size"] < flags.get("batch_size", 1):
        return f"--buffer-size {flags['buffer_size']}: must be at least --batch-size {flags['batch_size']}"
    return None


def option(name: str) -> str:
    return "--" + name.replace("_", "-")
