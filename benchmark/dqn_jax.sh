#!/usr/bin/env bash
# The runs behind the scores of dqn_jax.py: 3 environments, 5 seeds, 500,000 steps on the CPU, `JOBS` at a time.
# The same command again skips what is finished and resumes what was interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m cleanrl_utils.benchmark --num-seeds 5 --workers "${JOBS:-2}" \
  --env-ids CartPole-v1 Acrobot-v1 MountainCar-v0 \
  --command "python cleanrl/dqn_jax.py --no-cuda"

python -m cleanrl_utils.rlops runs --exp-name dqn_jax --append benchmark/results/dqn_jax.csv --output-filename runs/dqn_jax.png
python benchmark/results.py docs
