#!/usr/bin/env bash
# The runs behind the scores of dqn_jax.py: 3 tasks, seeds 1 to 5 (20 on CartPole-v1), 500,000 steps on the CPU, `JOBS` at a
# time.
# The same command again skips what is finished and resumes what was interrupted; --dry-run only prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 5 --workers "${JOBS:-2}" "$@" \
  --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 \
  --command "python cleanrl/dqn_jax.py --no-cuda"
# A run on CartPole-v1 that ends during a drop is far from the others: twenty seeds tell more than five.
python -m cleanrl_utils.benchmark --start-seed 6 --num-seeds 15 --workers "${JOBS:-2}" "$@" \
  --env-ids CartPole-v1 \
  --command "python cleanrl/dqn_jax.py --no-cuda"

[[ "$*" == *--dry-run* ]] && exit
python -m cleanrl_utils.rlops runs --exp-name dqn_jax \
  --append benchmark/results/dqn_jax.csv --output-filename runs/dqn_jax.png
python benchmark/update.py
