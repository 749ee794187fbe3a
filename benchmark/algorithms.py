"""The README's table of algorithms, with the scores that the result files hold.

Usage:
    python benchmark/algorithms.py      # writes what is between <!-- algorithms --> and <!-- end of algorithms -->

Status: benchmarked (three seeds or more, for as many steps as is the file's default), first results (fewer seeds or
steps), tested (its losses, its resuming and its learning on something small; not trained at length).
"""

import csv
import re
import sys
from pathlib import Path

import numpy as np
from results import RESULTS, ROOT, by_budget, read_published, rounded

from cleanrl_utils.rlops.runs import RETURN, Run, read_results

README = ROOT / "README.md"
MARKED = re.compile(r"(<!-- algorithms -->\n).*?(<!-- end of algorithms -->)", re.DOTALL)
HEAD = ["| file | what it is | docs | status | score (published CleanRL in brackets) |", "|---|---|---|---|---|"]
ALGORITHMS = {
    "ppo": "PPO for discrete actions",
    "ppo_continuous_action": "PPO for continuous actions",
    "rpo_continuous_action": "robust policy optimization: PPO with noise in its update",
    "ppo_action_mask": "PPO that never takes an invalid action",
    "ppo_atari": "PPO for Atari games, exactly resumable",
    "ppo_atari_envpool": "PPO for Atari games, on EnvPool",
    "ppo_atari_lstm": "PPO with an LSTM",
    "ppo_atari_multigpu": "PPO in several processes",
    "ppo_trxl": "PPO with a Transformer-XL as memory",
    "ppo_rnd_envpool": "PPO with random network distillation for exploration",
    "ppo_pettingzoo_ma_atari": "PPO with self-play for two-player Atari games",
    "ppo_procgen": "PPO for Procgen, on EnvPool",
    "ppg_procgen": "phasic policy gradient for Procgen",
    "pqn": "Q-learning without a replay buffer or target network",
    "pqn_atari_envpool": "PQN for Atari games",
    "pqn_atari_envpool_lstm": "PQN with an LSTM",
    "dqn": "DQN",
    "dqn_atari": "DQN for Atari games, each frame stored once",
    "c51": "DQN that learns the distribution of returns",
    "c51_atari": "C51 for Atari games",
    "rainbow_atari": "C51 with noisy and dueling networks, n-step returns and prioritized replay",
    "qdagger_dqn_atari_impalacnn": "DQN that first learns from a teacher",
    "ddpg_continuous_action": "DDPG",
    "td3_continuous_action": "TD3",
    "sac_continuous_action": "SAC",
    "sac_atari": "SAC for Atari games",
    "ppo_jax": "PPO in JAX with JAX environments: many seeds in one compiled program",
    "ppo_continuous_action_mjx": "PPO in JAX for thousands of robots simulated on the GPU",
    "ppo_atari_envpool_xla_jax": "PPO for Atari games in JAX, with the games inside the compiled functions",
    "ppo_atari_envpool_xla_jax_scan": "the same, with each iteration as one compiled program",
    "dqn_jax": "DQN in JAX",
    "dqn_atari_jax": "DQN for Atari games in JAX",
    "c51_jax": "C51 in JAX",
    "c51_atari_jax": "C51 for Atari games in JAX",
    "qdagger_dqn_atari_jax_impalacnn": "QDagger in JAX",
    "ddpg_continuous_action_jax": "DDPG in JAX",
    "td3_continuous_action_jax": "TD3 in JAX",
    "sac_continuous_action_jax": "SAC in JAX",
}


def default_steps(algorithm: str) -> int:
    """What the file trains for unless it is told otherwise."""
    source = (ROOT / "cleanrl" / f"{algorithm}.py").read_text()
    return int(re.search(r"total_timesteps: int = ([\d_]+)", source)[1])


def runs_by_environment(algorithm: str) -> dict[str, list[Run]]:
    """The longest runs on environments that anybody can name; those of our own (module:id) are on the file's page."""
    path, groups = RESULTS / f"{algorithm}.csv", {}
    for run in read_results(path) if path.exists() else []:
        if run.algorithm == algorithm and ":" not in run.env_id:
            groups.setdefault(run.env_id, []).append(run)
    return {env_id: by_budget(runs)[-1] for env_id, runs in groups.items()}


def is_full_length(algorithm: str, runs: list[Run]) -> bool:
    return min(run.steps for run in runs) > 0.98 * default_steps(algorithm)


def describe_score(algorithm: str, env_id: str, runs: list[Run]) -> str:
    """The mean over seeds and their deviation; and what differs from three seeds of full length."""
    scores = [run.score(RETURN, 100) for run in runs]
    digits = 2 if np.abs(scores).max() < 2 else 1
    text = f"{env_id} **{np.mean(scores):.{digits}f}**"
    if len(runs) > 1:
        text += f" ± {np.std(scores):.{digits}f}"
    if len(runs) != 3:
        text += f", {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    if not is_full_length(algorithm, runs):
        text += f", after {rounded(min(run.steps for run in runs))}"
    return text


def describe_published(algorithm: str, env_id: str, runs: list[Run]) -> str:
    score = read_published().get((algorithm, env_id))
    if score is None:
        return "(not published)"
    with open(RESULTS / "published.csv", newline="") as file:
        steps = {(row["algorithm"], row["env_id"]): int(row["steps"] or 0) for row in csv.DictReader(file)}
    published_steps = steps[algorithm, env_id]
    if min(run.steps for run in runs) < 0.98 * published_steps:
        score += f" after {rounded(published_steps)}"
    return f"({score})"


def make_row(algorithm: str, what: str) -> str:
    groups = runs_by_environment(algorithm)
    full = [len(runs) >= 3 and is_full_length(algorithm, runs) for runs in groups.values()]
    status = "tested" if not groups else "benchmarked" if any(full) else "first results"
    scores = []
    for env_id, runs in groups.items():
        line = f"{describe_score(algorithm, env_id, runs)} {describe_published(algorithm, env_id, runs)}"
        scores.append(line.replace(" ± ", "&nbsp;±&nbsp;"))
    file, page = f"[`{algorithm}.py`](cleanrl/{algorithm}.py)", f"[docs](docs/rl-algorithms/{algorithm}.md)"
    return f"| {file} | {what} | {page} | {status} | {'<br>'.join(scores)} |"


def make_table() -> list[str]:
    return HEAD + [make_row(algorithm, what) for algorithm, what in ALGORITHMS.items()]


def regenerated(page: str) -> str:
    """A page with the table made anew."""
    return MARKED.sub(lambda match: "\n".join([match[1], *make_table(), "", match[2]]), page)


def main(page: Path = README) -> None:
    text = page.read_text()
    if not MARKED.search(text):
        sys.exit(f"{page}: there is no table of algorithms in it")
    after = regenerated(text)
    if after != text:
        page.write_text(after)
        print(f"{page.name}: table made anew")


if __name__ == "__main__":
    main()
