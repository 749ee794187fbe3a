#!/usr/bin/env bash
# The runs behind the scores of ppo_jax.py: 3 tasks, 500,000 steps on the CPU. One program trains seeds 1 to 5 of a
# task, so that the benchmark starts it once, with seed 1.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 1 --workers "${JOBS:-1}" "$@" \
  --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 \
  --command "python cleanrl/ppo_jax.py --no-cuda --num-seeds 5"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name ppo_jax \
  --append benchmark/results/ppo_jax.csv --output-filename runs/ppo_jax.png
python benchmark/update.py
